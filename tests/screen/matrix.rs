//! Every page and every mark at 80x24, 120x40 and 200x60, in 24-bit colours, in 16 and in ASCII without any: what each is for is there, and
//! nothing that such a terminal cannot show. What pages look like in full is in the snapshots beside; this keeps one of each in ASCII on the small screen.

use crate::evaluate::{asked, looking, told};
use crate::keys::go;
use crate::{calibration, drawn, fixture, press, text, tokens};
use paring::config::{ColorLevel, Settings};
use paring::quant::Precision;
use paring::session::{Activations, Feed, HostMsg, Machine, Progress, State};
use paring::tui::App;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::Color;

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

/// The same at its end.
fn below(settings: Settings, size: (u16, u16)) -> App {
    let mut app = inspected(settings, size);
    drawn(&mut app);
    press(&mut app, "G");
    app
}

/// The machine's history while a job runs.
fn machine(settings: Settings, size: (u16, u16)) -> App {
    let mut app = working(settings, size);
    press(&mut app, "9<tab><tab><tab><tab>");
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
    ("row, below", below, &["decided"]),
    ("plans", |s, z| on_row(s, z, "7"), &["beside"]),
    ("roofline", |s, z| on_row(s, z, "9"), &["FLOP/B"]),
    ("memory", |s, z| on_row(s, z, "9<tab>"), &["peak"]),
    ("icicle", |s, z| on_row(s, z, "9<tab><tab>"), &["icicle"]),
    ("spread", |s, z| on_row(s, z, "9<tab><tab><tab>"), &["spread"]),
    ("machine", machine, &["machine"]),
    ("rounds", |s, z| round(s, z, ""), &["baseline", "round 1"]),
    ("changed", |s, z| round(s, z, "<enter>"), &["lost"]),
    ("one item", |s, z| round(s, z, "<enter><enter>"), &["lost"]),
    ("classes", |s, z| round(s, z, "<tab>"), &["class"]),
    ("calibration", |s, z| calibration::shown(s, z, Some(calibration::calibration())), &["calibration error"]),
    ("tokens", tokens::reading, &["robot"]),
    ("agents", |s, z| of(fixture::verdict().state, s, z, "3"), &["qwen3-32b"]),
    ("timeline", |s, z| of(fixture::verdict().state, s, z, "4"), &["timeline"]),
    ("report", |s, z| of(fixture::verdict().state, s, z, "5"), &["report"]),
    ("help", |s, z| on_row(s, z, "?"), &["next row or line"]),
    ("words", |s, z| on_row(s, z, "K"), &["the median"]),
];

/// What is wrong with a page, if anything: words that are missing, colours that the terminal has not.
fn wrong(words: &[&str], settings: &Settings, buf: &Buffer) -> Vec<String> {
    let seen = text(buf);
    let mut out = Vec::new();
    for word in words {
        let parts: Vec<&str> = word.split('|').collect();
        let word = parts[usize::from(settings.ascii).min(parts.len() - 1)];
        if !seen.contains(word) {
            out.push(format!("no `{word}`"));
        }
    }
    if settings.ascii
        && let Some(odd) = seen.lines().find(|l| !l.is_ascii())
    {
        out.push(format!("not ASCII: {odd}"));
    }
    let has = |color: Color| match settings.colors {
        ColorLevel::None => color == Color::Reset,
        ColorLevel::Ansi16 => !matches!(color, Color::Rgb(..) | Color::Indexed(_)),
        ColorLevel::Ansi256 | ColorLevel::True => true,
    };
    let odd = |cell: &&Cell| !has(cell.fg) || !has(cell.bg);
    if let Some(cell) = buf.content().iter().find(odd) {
        out.push(format!("{:?} on {:?} at `{}`", cell.fg, cell.bg, cell.symbol()));
    }
    out
}

#[test]
fn every_page_says_what_it_is_for_at_every_size_and_in_every_colour() {
    let mut all = Vec::new();
    for (name, make, words) in PAGES {
        for size in [(80, 24), (120, 40), (200, 60)] {
            for (colors, ascii) in [(ColorLevel::True, false), (ColorLevel::Ansi16, false), (ColorLevel::None, true)] {
                let settings = Settings { colors, ascii, ..Settings::default() };
                let buf = drawn(&mut make(settings.clone(), size));
                let found = wrong(words, &settings, &buf);
                if !found.is_empty() {
                    all.push(format!("{name} at {size:?}, {colors:?}: {}\n{}", found.join("; "), text(&buf)));
                }
                if ascii && size.1 == 24 {
                    insta::assert_snapshot!(format!("ascii_{}", name.replace([' ', ','], "")), text(&buf));
                }
            }
        }
    }
    assert!(all.is_empty(), "{} pages: {}", all.len(), all.join("\n"));
}
