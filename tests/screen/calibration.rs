//! View 2: how sure the selected round is against how often it is right, beside the original.

use crate::evaluate::{asked, looking, told};
use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::session::{Bin, Calibration, Changed, Feed, HostMsg, Reliability};
use paring::tui::App;

/// Bins of 15 with most items where models are surest, each `apart` (of one) surer than it is right.
fn reliability(apart: f64) -> Reliability {
    let bin = |k: usize| {
        let items: u32 = [0, 0, 3, 8, 20, 31, 44, 61, 80, 113, 160, 240, 390, 850, 3000][k];
        let sure = (k as f64 + 0.6) / 15.0;
        let right = (f64::from(items) * (sure - apart)).round().max(0.0) as u32;
        Bin { items, right, confidence: f64::from(items) * sure }
    };
    Reliability { bins: (0..15).map(bin).collect() }
}

pub fn calibration() -> Calibration {
    Calibration { before: Some(reliability(0.02)), now: Some(reliability(0.12)) }
}

/// On the page, with what the host is asked answered.
pub fn shown(settings: Settings, size: (u16, u16), of: Option<Calibration>) -> App {
    let mut app = looking(fixture::verdict().state, settings, size);
    drawn(&mut app);
    let changed = Changed { calibration: of, ..told(asked(&app.wanted())[0]) };
    app.host(HostMsg::Feed { feed: Feed::Changed(Box::new(changed)) });
    press(&mut app, "<tab><tab><tab>");
    app
}

#[test]
fn a_round_beside_the_original_at_every_size_and_in_every_colour() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = shown(Settings::default(), size, Some(calibration()));
        insta::assert_snapshot!(format!("calibration_{}x{}", size.0, size.1), text(&drawn(&mut app)));
        for colors in [ColorLevel::Ansi16, ColorLevel::None] {
            let plain = Settings { ascii: true, colors, ..Settings::default() };
            let mut app = shown(plain, size, Some(calibration()));
            let seen = text(&drawn(&mut app));
            assert!(seen.is_ascii() && seen.contains("calibration error"), "{seen}");
        }
    }
    let ascii = Settings { ascii: true, colors: ColorLevel::None, ..Settings::default() };
    let mut app = shown(ascii, (80, 24), Some(calibration()));
    insta::assert_snapshot!("calibration_80x24_ascii", text(&drawn(&mut app)));
    let sixteen = Settings { colors: ColorLevel::Ansi16, ..Settings::default() };
    let mut app = shown(sixteen, (120, 40), Some(calibration()));
    insta::assert_snapshot!("calibration_16_colours", text(&drawn(&mut app)));
}

#[test]
fn figures_are_those_of_the_bins_and_keys_go_from_bin_to_bin() {
    let both = calibration();
    let of = |r: &Option<Reliability>| r.as_ref().and_then(Reliability::error).expect("some") * 100.0;
    let (before, now) = (of(&both.before), of(&both.now));
    let mut app = shown(Settings::default(), (120, 40), Some(both.clone()));
    let seen = text(&drawn(&mut app));
    for figure in [format!("{before:.2} %"), format!("{now:.2} %"), format!("+{:.2}", now - before)] {
        assert!(seen.contains(&figure), "{figure}: {seen}");
    }
    assert!(seen.contains("of 5,000 images") || seen.contains("of 5000 images"), "{seen}");
    press(&mut app, "G");
    let last = text(&drawn(&mut app));
    assert!(last.contains("bin 93–100 %") && last.contains("3000 items"), "{last}");
    press(&mut app, "kg");
    let first = text(&drawn(&mut app));
    assert!(first.contains("bin 0–7 %") && first.contains("round 1   no items"), "{first}");
}

#[test]
fn what_is_not_known_is_said_and_never_guessed() {
    let old = Calibration { before: None, ..calibration() };
    for size in [(80, 24), (120, 40), (200, 60)] {
        let seen = text(&drawn(&mut shown(Settings::default(), size, Some(old.clone()))));
        assert!(seen.contains("the original was kept without confidence") && seen.contains("11.97 %"), "{seen}");
    }
    let neither = Calibration::default();
    let seen = text(&drawn(&mut shown(Settings::default(), (80, 24), Some(neither))));
    assert!(seen.contains("round 1 was kept without confidence: the next round has it"), "{seen}");
    assert!(!seen.contains("calibration error"), "{seen}");
    let seen = text(&drawn(&mut shown(Settings::default(), (80, 24), None)));
    assert!(seen.contains("no classes"), "{seen}");
    // A host that tells of fewer bins than there are.
    let odd =
        Calibration { now: Some(Reliability { bins: vec![Bin::default(); 3] }), before: Some(Reliability::default()) };
    text(&drawn(&mut shown(Settings::default(), (80, 24), Some(odd))));
}

#[test]
fn nothing_of_it_leaves_its_area_at_any_size() {
    for w in (1..=260).step_by(13) {
        for h in (1..=100).step_by(11) {
            let mut app = looking(fixture::verdict().state, Settings::default(), (w, h));
            drawn(&mut app);
            let changed = Changed { calibration: Some(calibration()), ..told(asked(&app.wanted())[0]) };
            app.host(HostMsg::Feed { feed: Feed::Changed(Box::new(changed)) });
            press(&mut app, "<tab><tab><tab>");
            drawn(&mut app);
            press(&mut app, "jG");
            drawn(&mut app);
        }
    }
}
