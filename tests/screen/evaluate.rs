//! View 2 looked into: the selected round, the items that changed, classes and confusions; keys, and what is asked of the host.

use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::session::{
    Answer, Changed, Command, Feed, HostMsg, Item, Leads, PAGE, Part, Picture, State, Taken, Way, WhatChanged,
};
use paring::tui::{App, Effect};
use ratatui::style::Color;

/// A picture of 16 pixels a side: a bright disc on a ground of a colour of its own.
fn picture(k: usize) -> Picture {
    let ground = [(k * 37 % 200) as u8, (k * 91 % 180) as u8, 90];
    let pixel = |i: usize| {
        let (x, y) = ((i % 16) as f32 - 7.5, (i / 16) as f32 - 7.5);
        if (x * x + y * y).sqrt() < 5.0 { [240, 220, 80] } else { ground }
    };
    Picture { width: 16, height: 16, rgb: (0..256).flat_map(pixel).collect() }
}

/// By class, as the fixture's evaluations have it: what is wrong now and was right is lost.
fn classes() -> Vec<[u32; 3]> {
    let state = fixture::verdict().state;
    let of = |round: u32| state.round_at(round).and_then(|r| r.evaluation.as_ref()).expect("evaluated").metrics.clone();
    let (before, now) = (of(0), of(1));
    let change = |(b, n): (&(usize, usize), &(usize, usize))| {
        [b.1 as u32, b.0.saturating_sub(n.0) as u32, n.0.saturating_sub(b.0) as u32]
    };
    before.per_class().iter().zip(now.per_class()).map(change).collect()
}

/// What the host would tell of the fixture's round: as many as it asks for of 31 lost and 9 gained.
pub fn told(asked: WhatChanged) -> Changed {
    let (lost, gained) = (31, 9);
    let all = if asked.way == Way::Lost { lost } else { gained };
    let item = |k: usize| {
        let (low, high) = (-0.4 - k as f32 * 0.05, 1.8 - k as f32 * 0.03);
        let right = Answer { score: 1.0, class: Some((k % 10) as u16), lead: Some(high), confidence: Some(0.93) };
        let wrong = Answer { score: 0.0, class: Some(((k + 3) % 10) as u16), lead: Some(low), confidence: Some(0.61) };
        let (before, after) = if asked.way == Way::Lost { (right, wrong) } else { (wrong, right) };
        Item {
            index: 100 + k,
            label: Some((k % 10) as u32),
            before,
            after,
            picture: Some(picture(k)),
            ..Item::default()
        }
    };
    Changed {
        asked,
        seen: 5000,
        lost,
        gained,
        items: (asked.from..all.min(asked.from + PAGE)).map(item).collect(),
        classes: classes(),
        taken: vec![
            Taken { label: 0, class: 3, before: 12, now: 21 },
            Taken { label: 7, class: 2, before: 30, now: 22 },
        ],
        leads: Some(Leads { low: -3.0, high: 9.0, before: (0..24).collect(), now: (0..24).rev().collect() }),
        ..Changed::default()
    }
}

/// What was asked of the host about items.
pub fn asked(effects: &[Effect]) -> Vec<WhatChanged> {
    let what = |e: &Effect| match e {
        Effect::Send(Command::Changed { what }) => Some(*what),
        _ => None,
    };
    effects.iter().filter_map(what).collect()
}

/// Draws, and answers what is asked as long as something is.
fn served(app: &mut App) -> String {
    for _ in 0..4 {
        let seen = text(&drawn(app));
        let wanted = asked(&app.wanted());
        if wanted.is_empty() {
            return seen;
        }
        for what in wanted {
            app.host(HostMsg::Feed { feed: Feed::Changed(Box::new(told(what))) });
        }
    }
    panic!("it asks without end")
}

/// In view 2; what it asks for is not answered yet.
pub fn looking(state: State, settings: Settings, size: (u16, u16)) -> App {
    let mut app = fixture::app(state, settings, size);
    press(&mut app, "2");
    app
}

/// The same with what it asks for answered, among the items that changed.
fn among(state: State, settings: Settings, size: (u16, u16)) -> App {
    let mut app = looking(state, settings, size);
    served(&mut app);
    press(&mut app, "<enter>");
    app
}

#[test]
fn what_changed_at_every_size_and_in_every_colour() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = looking(fixture::verdict().state, Settings::default(), size);
        served(&mut app);
        insta::assert_snapshot!(format!("evaluate_rounds_{}x{}", size.0, size.1), served(&mut app));
        press(&mut app, "<tab>");
        insta::assert_snapshot!(format!("evaluate_classes_{}x{}", size.0, size.1), served(&mut app));
        press(&mut app, "<tab>jj");
        insta::assert_snapshot!(format!("evaluate_changed_{}x{}", size.0, size.1), served(&mut app));
        press(&mut app, "<enter>");
        insta::assert_snapshot!(format!("evaluate_item_{}x{}", size.0, size.1), served(&mut app));
        for colors in [ColorLevel::Ansi16, ColorLevel::None] {
            let plain = Settings { ascii: true, colors, ..Settings::default() };
            let mut app = among(fixture::verdict().state, plain, size);
            let seen = served(&mut app);
            assert!(seen.is_ascii() && seen.contains("31 lost"), "{seen}");
        }
    }
    let sixteen = Settings { colors: ColorLevel::Ansi16, ..Settings::default() };
    let mut app = among(fixture::verdict().state, sixteen, (120, 40));
    insta::assert_snapshot!("evaluate_changed_16_colours", served(&mut app));
}

#[test]
fn pictures_are_in_the_colours_of_their_pixels() {
    let mut app = among(fixture::verdict().state, Settings::default(), (120, 40));
    served(&mut app);
    let buf = drawn(&mut app);
    let ground = Color::Rgb(0, 0, 90);
    let disc = Color::Rgb(240, 220, 80);
    let count = |c: Color| buf.content().iter().filter(|cell| cell.fg == c || cell.bg == c).count();
    assert!(count(ground) > 4 && count(disc) > 4, "{} {}", count(ground), count(disc));
    // A dialog lies over them.
    press(&mut app, ":");
    let buf = drawn(&mut app);
    assert_eq!(buf.content().iter().filter(|cell| cell.bg == disc || cell.fg == disc).count(), 0);
}

#[test]
fn a_page_is_asked_for_once_and_shown_for_the_round_that_it_is_of() {
    let mut app = looking(fixture::verdict().state, Settings::default(), (120, 40));
    drawn(&mut app);
    let first = asked(&app.wanted());
    assert_eq!(first, [WhatChanged { round: 1, way: Way::Lost, from: 0 }]);
    drawn(&mut app);
    assert!(asked(&app.wanted()).is_empty(), "once is enough");
    // Somebody else looked into another one.
    let other = WhatChanged { round: 2, ..first[0] };
    app.host(HostMsg::Feed { feed: Feed::Changed(Box::new(told(other))) });
    press(&mut app, "<enter>");
    assert!(text(&drawn(&mut app)).contains("is being read"));
    app.host(HostMsg::Feed { feed: Feed::Changed(Box::new(told(first[0]))) });
    assert!(text(&drawn(&mut app)).contains("31 lost"));
    // The last of the first page, and past it.
    let mut effects = press(&mut app, &"j".repeat(PAGE));
    drawn(&mut app);
    effects.extend(app.wanted());
    assert_eq!(asked(&effects), [WhatChanged { from: PAGE, ..first[0] }]);
    app.host(HostMsg::Feed { feed: Feed::Changed(Box::new(told(WhatChanged { from: PAGE, ..first[0] }))) });
    assert!(text(&drawn(&mut app)).contains("25 of 31"));
    press(&mut app, "G");
    assert!(served(&mut app).contains("31 of 31"));
    press(&mut app, "Z");
    let seen = served(&mut app);
    assert!(seen.contains("1 of 9") && seen.contains("9 gained"), "{seen}");
    // A host that cannot tell says why.
    let why = Some("what round 1 answered to each item is not known; hint: x".to_owned());
    let asked = WhatChanged { round: 1, way: Way::Gained, from: 0 };
    app.host(HostMsg::Feed { feed: Feed::Changed(Box::new(Changed { asked, why, ..Changed::default() })) });
    assert!(text(&drawn(&mut app)).contains("is not known"));
}

#[test]
fn keys_go_into_it_and_out_again() {
    let mut app = looking(fixture::verdict().state, Settings::default(), (120, 40));
    let seen = served(&mut app);
    assert!(seen.contains("classes, round 1 against baseline"), "{seen}");
    press(&mut app, "k");
    let seen = served(&mut app);
    assert!(seen.contains("classes, baseline") && !seen.contains("round 1 against"), "{seen}");
    press(&mut app, "<enter>");
    assert!(text(&drawn(&mut app)).contains("the original is what rounds are held against"));
    press(&mut app, "j<enter><enter>");
    let large = served(&mut app);
    assert!(large.contains("the right class leads by"), "{large}");
    press(&mut app, "<esc>");
    assert!(!served(&mut app).contains("the right class leads by"));
    press(&mut app, "<esc>");
    assert!(served(&mut app).contains("classes, round 1 against baseline"));
    press(&mut app, "<esc>");
    assert_eq!(app.view, paring::tui::View::Review);
    // Round and round through the panes.
    press(&mut app, "2<tab><tab>");
    assert!(served(&mut app).contains("31 lost"));
    press(&mut app, "<tab>");
    assert!(served(&mut app).contains("calibration"));
    press(&mut app, "<tab>");
    assert!(app.view == paring::tui::View::Evaluate && served(&mut app).contains("classes, round 1 against baseline"));
    press(&mut app, "1Z");
    assert!(text(&drawn(&mut app)).contains("in view 2"));
}

#[test]
fn texts_are_listed_with_their_words() {
    let mut app = looking(fixture::verdict().state, Settings::default(), (120, 40));
    drawn(&mut app);
    let what = asked(&app.wanted())[0];
    press(&mut app, "<enter>");
    let item = |k: usize| Item {
        index: k,
        before: Answer { score: -3.0, ..Answer::default() },
        after: Answer { score: -3.5 - k as f32, ..Answer::default() },
        text: Some(format!("Once there was\na \u{1b}[31mstory {k} that went on")),
        ..Item::default()
    };
    let changed = Changed { asked: what, seen: 40, lost: 3, items: (0..3).map(item).collect(), ..Changed::default() };
    app.host(HostMsg::Feed { feed: Feed::Changed(Box::new(changed)) });
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("Once there was a") && seen.contains("story 2") && !seen.contains('\u{1b}'), "{seen}");
    press(&mut app, "<enter>");
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("story 0") && !seen.contains("story 1"), "{seen}");
}

#[test]
fn nothing_of_it_leaves_its_area_at_any_size() {
    for w in (1..=200).step_by(7) {
        for h in (1..=60).step_by(5) {
            let mut app = among(fixture::verdict().state, Settings::default(), (w, h));
            served(&mut app);
            press(&mut app, "<enter>");
            served(&mut app);
            press(&mut app, "<tab>");
            served(&mut app);
        }
    }
}

/// A round that stopped early says over how many items its figures are, wherever they stand beside those of all.
#[test]
fn figures_of_a_part_say_of_how_many() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut state = fixture::verdict().state;
        let e = state.rounds[1].evaluation.as_mut().expect("evaluated");
        e.part = Some(Part { of: e.metrics.n, level: 0.95 });
        e.metrics.n = 640;
        let mut app = looking(state, Settings::default(), size);
        let seen = text(&drawn(&mut app));
        assert!(seen.lines().any(|l| l.contains("r1 of 640")), "the list: {seen}");
        let header = seen.lines().next().unwrap_or_default();
        assert!(header.contains("of 640"), "{header}");
        if size.0 > 80 {
            assert!(seen.matches("r1 of 640").count() >= 2, "and the plot: {seen}");
        }
    }
}
