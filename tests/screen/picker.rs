//! The precision picker: every precision with what is known of this row in it, taken with one key or refused with its reason.

use crate::keys::{event, go, sent};
use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::plan::{Action, Constraint, Limit, Target};
use paring::quant::Precision;
use paring::session::{Command, Event};
use paring::tui::App;

const QKV: &str = "blocks.3.attn.qkv";

fn picking(size: (u16, u16), settings: Settings) -> App {
    let mut app = fixture::app(fixture::review().state, settings, size);
    go(&mut app, QKV);
    press(&mut app, "O");
    app
}

fn message(app: &App) -> &str {
    app.message.as_ref().map_or("", |(_, m)| m.as_str())
}

#[test]
fn every_precision_of_a_row_at_three_sizes() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = picking(size, Settings::default());
        press(&mut app, "j");
        let seen = text(&drawn(&mut app));
        insta::assert_snapshot!(format!("picker_{}x{}", size.0, size.1), seen);
        for words in ["precision of blocks.3.attn.qkv", "f32◂", "int8", "this row ms", "enter takes it"] {
            assert!(seen.contains(words), "{words}: {seen}");
        }
    }
    let plain = Settings { ascii: true, colors: ColorLevel::None, ..Settings::default() };
    let seen = text(&drawn(&mut picking((80, 24), plain)));
    assert!(seen.is_ascii() && seen.contains("f32<"), "{seen}");
    // There is no size at which it does not draw.
    for size in [(1, 1), (10, 3), (24, 8), (40, 10), (260, 100)] {
        drawn(&mut picking(size, Settings::default()));
    }
}

#[test]
fn one_key_takes_what_is_under_the_cursor_and_what_cannot_be_had_says_why() {
    let mut app = picking((120, 40), Settings::default());
    let target = Target::Layer(QKV.into());
    let action = Action::Precision { precision: Precision::Int8 };
    assert_eq!(sent(press(&mut app, "j<enter>")), [Command::Decide { target: target.clone(), action }]);
    assert!(app.modal.is_none());
    // Leaving it changes nothing.
    let mut app = picking((120, 40), Settings::default());
    assert_eq!(sent(press(&mut app, "jj<esc>")), []);
    assert!(app.drafts.is_empty() && app.modal.is_none());
    // A constraint that comes while it is open counts.
    let mut app = picking((120, 40), Settings::default());
    let constraint = Constraint { target, limit: Limit::KeepF32, reason: "the first looks".into() };
    event(&mut app, Event::ConstraintSet { constraint });
    press(&mut app, "G");
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("Not here: ") && seen.contains("the first looks"), "{seen}");
    assert_eq!(sent(press(&mut app, "<enter>")), []);
    assert!(app.modal.is_some() && message(&app).contains("hint:"), "{}", message(&app));
    // A row without weights has nothing to pick.
    let mut app = fixture::app(fixture::review().state, Settings::default(), (120, 40));
    go(&mut app, "blocks.3.norm1");
    press(&mut app, "O");
    assert!(app.modal.is_none() && message(&app).contains("no weights"), "{}", message(&app));
}

#[test]
fn of_many_rows_it_tells_sums_and_sets_those_that_fit() {
    let mut app = fixture::app(fixture::review().state, Settings::default(), (120, 40));
    press(&mut app, ":select blocks.3.mlp.*<enter>O");
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("precision of 2 rows"), "{seen}");
    let commands = sent(press(&mut app, "j<enter>"));
    assert!(matches!(&commands[..], [Command::DecideAll { actions }] if actions.len() == 2), "{commands:?}");
}

#[test]
fn earlier_lines_and_names_come_with_a_key() {
    let mut app = fixture::app(fixture::review().state, Settings::default(), (120, 40));
    let effects = press(&mut app, ":sort macs<enter>:llm http://me:secret@h/v1 m<enter>:theme light<enter>");
    let kept: Vec<&str> = (effects.iter())
        .filter_map(|e| if let paring::tui::Effect::Remember(line) = e { Some(line.as_str()) } else { None })
        .collect();
    assert_eq!(kept, ["sort macs", "theme light"], "no line with a password is kept");
    press(&mut app, ":<up><up>");
    assert!(text(&drawn(&mut app)).contains(":sort macs"));
    press(&mut app, "<down><down><esc>:freeze 3.mlp.fc1<tab>");
    assert!(text(&drawn(&mut app)).contains(":freeze blocks.3.mlp.fc1"), "{}", text(&drawn(&mut app)));
}
