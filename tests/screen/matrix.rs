//! Every page and every mark at 80x24, 120x40 and 200x60, in 24-bit colours, in 16 and in ASCII without any: what each is for is there. What pages look
//! like in full is in the snapshots beside; this keeps one of each in ASCII on the small screen.

use crate::evaluate::{asked, looking, told};
use crate::keys::go;
use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::quant::Precision;
use paring::session::{Activations, Feed, HostMsg, Machine, Progress, State};
use paring::tui::App;

const ROW: &str = "blocks.8.mlp.fc1";

fn feed(app: &mut App, feed: Feed) {
    app.host(HostMsg::Feed { feed });
}

/// Keys on the row, in the review.
fn on_row(settings: Settings, size: (u16, u16), keys: &str) -> App {
    let mut app = fixture::app(fixture::review().state, settings, size);
    go(&mut app, ROW);
    press(&mut app, keys);
    app
}

/// View 2 of a round with what it asks for answered.
fn round(settings: Settings, size: (u16, u16), keys: &str) -> App {
    let mut app = looking(fixture::verdict().state, settings, size);
    drawn(&mut app);
    for what in asked(&app.wanted()) {
        feed(&mut app, Feed::Changed(Box::new(told(what))));
    }
    press(&mut app, keys);
    app
}

fn of(state: State, settings: Settings, size: (u16, u16), keys: &str) -> App {
    let mut app = fixture::app(state, settings, size);
    press(&mut app, keys);
    app
}

/// View 8 with what it asks for told.
fn inspected(settings: Settings, size: (u16, u16)) -> App {
    let mut app = on_row(settings, size, "8");
    let scores = (0..96).map(|i| if i < 24 { 1.0 - i as f32 * 0.04 } else { 0.05 - (i - 24) as f32 * 5e-4 }).collect();
    feed(&mut app, Feed::Units { group: ROW.into(), scores });
    feed(&mut app, Feed::Rounding { layer: ROW.into(), errors: vec![(Precision::Int8, 0.009)] });
    let found = Activations {
        items: 8,
        values: 4096,
        lo: -1.0,
        hi: 2.0,
        bars: vec![1, 5, 9, 4, 1],
        off: vec![(Precision::Int8, 0.0123)],
        ..Activations::default()
    };
    feed(&mut app, Feed::Activations { layer: ROW.into(), found: Box::new(found) });
    app
}

fn working(settings: Settings, size: (u16, u16)) -> App {
    let mut app = on_row(settings, size, "");
    let job = Progress { job: "ladders".into(), label: ROW.into(), done: 3, total: 9, ..Progress::default() };
    feed(&mut app, Feed::Progress(job));
    feed(&mut app, Feed::Machine(Machine { processors: vec![70, 71], ..Machine::default() }));
    app
}

type Page = (&'static str, fn(Settings, (u16, u16)) -> App, &'static [&'static str]);

/// Pages, and words that each is for; `|` parts what is said with glyphs from what is said without.
const PAGES: &[Page] = &[
    ("review", |s, z| on_row(s, z, ""), &["layers", "plan", "3072"]),
    ("marked", |s, z| on_row(s, z, "Vjj"), &["selected"]),
    ("folded", |s, z| of(fixture::review().state, s, z, "zg"), &["blocks.", "−|-"]),
    ("working", working, &["ladders", "»|*", "cpu"]),
    ("precisions", |s, z| on_row(s, z, "O"), &["precision of", "this row ms", "int8"]),
    ("speed", |s, z| on_row(s, z, ":columns speed<enter>"), &["p95 ms"]),
    ("change", |s, z| on_row(s, z, ":columns p50 change<enter>:pin<enter>"), &["vs pin"]),
    ("own", |s, z| on_row(s, z, ":column ns = p50 * 1e6 / macs<enter>:columns p50 ns<enter>"), &["ns"]),
    ("panes", |s, z| on_row(s, z, ":layout card<enter>"), &["layers"]),
    ("line", |s, z| on_row(s, z, ":the"), &["theme"]),
    ("row", inspected, &["in the graph", "made by", "knee"]),
    (
        "row, below",
        |s, z| {
            let mut a = inspected(s, z);
            drawn(&mut a);
            press(&mut a, "G");
            a
        },
        &["decided"],
    ),
    ("plans", |s, z| on_row(s, z, "7"), &["beside"]),
    ("roofline", |s, z| on_row(s, z, "9"), &["FLOP/B"]),
    ("memory", |s, z| on_row(s, z, "9<tab>"), &["peak"]),
    ("icicle", |s, z| on_row(s, z, "9<tab><tab>"), &["icicle"]),
    ("spread", |s, z| on_row(s, z, "9<tab><tab><tab>"), &["spread"]),
    (
        "machine",
        |s, z| {
            let mut a = working(s, z);
            press(&mut a, "9<tab><tab><tab><tab>");
            a
        },
        &["machine"],
    ),
    ("rounds", |s, z| round(s, z, ""), &["baseline", "round 1"]),
    ("changed", |s, z| round(s, z, "<enter>"), &["lost"]),
    ("one item", |s, z| round(s, z, "<enter><enter>"), &["lost"]),
    ("classes", |s, z| round(s, z, "<tab><tab>"), &["class"]),
    ("agents", |s, z| of(fixture::verdict().state, s, z, "3"), &["qwen3-32b"]),
    ("timeline", |s, z| of(fixture::verdict().state, s, z, "4"), &["timeline"]),
    ("report", |s, z| of(fixture::verdict().state, s, z, "5"), &["report"]),
    ("help", |s, z| on_row(s, z, "?"), &["next row or line"]),
    ("words", |s, z| on_row(s, z, "K"), &["the median"]),
];

#[test]
fn every_page_says_what_it_is_for_at_every_size_and_in_every_colour() {
    for (name, make, words) in PAGES {
        for size in [(80, 24), (120, 40), (200, 60)] {
            for (colors, ascii) in [(ColorLevel::True, false), (ColorLevel::Ansi16, false), (ColorLevel::None, true)] {
                let mut app = make(Settings { colors, ascii, ..Settings::default() }, size);
                let seen = text(&drawn(&mut app));
                for word in *words {
                    let parts: Vec<&str> = word.split('|').collect();
                    let word = parts[usize::from(ascii).min(parts.len() - 1)];
                    assert!(seen.contains(word), "{name} at {size:?} in {colors:?}: no `{word}` in\n{seen}");
                }
                // Names of data sets and layers are the model's own; what the program draws is ASCII.
                assert!(!ascii || seen.is_ascii(), "{name} at {size:?}: {seen}");
                if ascii && size.1 == 24 {
                    insta::assert_snapshot!(format!("ascii_{}", name.replace([' ', ','], "")), seen);
                }
            }
        }
    }
}
