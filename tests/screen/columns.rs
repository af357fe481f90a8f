//! Columns that are chosen by name: what stands in them, how they are held against a baseline, and those that users write.

use crate::keys::{go, sent};
use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, OwnColumn, Role, Settings};
use paring::quant::Precision;
use paring::session::{Command, Feed, HostMsg, State};
use paring::tui::{App, Effect, Level};
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier};

const SIZES: [(u16, u16); 3] = [(80, 24), (120, 40), (200, 60)];

fn feed(app: &mut App, feed: Feed) -> Vec<Effect> {
    let effects = app.host(HostMsg::Feed { feed });
    app.settle();
    effects
}

fn errors(layer: &str) -> Feed {
    let errors = vec![(Precision::Int8, 0.0081), (Precision::W4, 0.104)];
    Feed::Rounding { layer: layer.into(), errors }
}

/// A session with a round that waits for its verdict.
fn judged(size: (u16, u16), settings: Settings) -> App {
    fixture::app(fixture::verdict().state, settings, size)
}

/// The row of `name` in a picture.
fn row(picture: &str, name: &str) -> String {
    let line = picture.lines().find(|l| l.contains(name));
    line.unwrap_or_else(|| panic!("no {name} in\n{picture}")).to_owned()
}

fn said(app: &App) -> (Level, String) {
    app.message.clone().unwrap_or((Level::Info, String::new()))
}

/// The words of a row of the list, marks of the cursor and of folds left out.
fn figures(app: &mut App, name: &str) -> Vec<String> {
    let line = row(&text(&drawn(app)), name);
    let all: Vec<String> = line.split('│').nth(1).unwrap_or(&line).split_whitespace().map(str::to_owned).collect();
    let at = all.iter().position(|w| w.ends_with(name)).unwrap_or_else(|| panic!("{all:?}"));
    all[at + 1..].to_vec()
}

#[test]
fn speed_against_a_baseline_at_every_size() {
    let shown = |size, settings| {
        let mut app = judged(size, settings);
        go(&mut app, "blocks.9.mlp.fc1");
        let planned: Vec<String> = app.table.layers.iter().filter(|l| l.weighty).map(|l| l.name.clone()).collect();
        planned.iter().take(40).for_each(|l| drop(feed(&mut app, errors(l))));
        press(&mut app, ":pin 0<enter>:columns speed<enter>");
        drawn(&mut app)
    };
    for size in SIZES {
        let seen = text(&shown(size, Settings::default()));
        insta::assert_snapshot!(format!("speed_{}x{}", size.0, size.1), seen);
    }
    for (name, colors, ascii) in [("16_colours", ColorLevel::Ansi16, false), ("ascii", ColorLevel::None, true)] {
        let seen = text(&shown((120, 40), Settings { colors, ascii, ..Settings::default() }));
        assert!(!ascii || seen.is_ascii(), "{seen}");
        insta::assert_snapshot!(format!("speed_{name}"), seen);
    }
}

/// The ground of the first cell with a percentage of `sign` that is drawn on one.
fn ground(buf: &Buffer, sign: &str) -> Option<(u8, u8, u8)> {
    let area = *buf.area();
    let all = (0..area.height).flat_map(|y| (0..area.width).map(move |x| (x, y)));
    { all }.filter(|at| buf[*at].symbol() == sign).find_map(|at| match buf[at].bg {
        Color::Rgb(r, g, b) if r.abs_diff(g) > 20 => Some((r, g, b)),
        _ => None,
    })
}

#[test]
fn changes_are_told_by_sign_and_colour_and_what_noise_hides_is_faint() {
    let mut app = judged((120, 40), Settings::default());
    press(&mut app, ":columns p50 change<enter>");
    assert!(text(&drawn(&mut app)).contains(":pin pins what rows are held against"));
    press(&mut app, ":pin 0<enter>");
    assert_eq!(said(&app).1, "rows are held against the original");
    let buf = drawn(&mut app);
    let seen = text(&buf);
    assert!(seen.contains("against the original") && seen.contains("faster −") && seen.contains("slower"), "{seen}");
    let (r, g, _) = ground(&buf, "−").expect("faster rows");
    assert!(g > r, "green for faster: {r} {g}");
    // What is told is what was measured.
    let (now, then) = (&app.state.profile_of(1).expect("round 1"), &app.state.profile_of(0).expect("round 0"));
    let ms = |p: &paring::profile::Profile| p.ms(p.rows.iter().find(|r| r.name == "blocks.11.mlp.fc1").expect("a row"));
    let wanted = 100.0 * (ms(now) / ms(then) - 1.0);
    let told = format!("−{:.1}%", wanted.abs());
    go(&mut app, "blocks.11.mlp.fc1");
    assert!(wanted < -20.0 && row(&text(&drawn(&mut app)), "│❯").contains(&told), "{told}: {}", text(&drawn(&mut app)));
    // Against themselves rows did not change, and nothing pretends that they did.
    press(&mut app, ":pin<enter>");
    let buf = drawn(&mut app);
    let seen = text(&buf);
    assert!(seen.contains("against round 1 as of") && seen.contains("±0.0%"), "{seen}");
    assert!(ground(&buf, "±").is_none());
    press(&mut app, ":pin 7<enter>");
    assert_eq!(said(&app), (Level::Bad, "round 7 has no profile to pin; hint: there are those of 0, 1".into()));
    press(&mut app, ":pin soon<enter>");
    assert!(said(&app).1.contains("is no round; hint: "), "{:?}", said(&app));
    press(&mut app, ":pin off<enter>");
    assert_eq!(said(&app).1, "nothing is pinned any more");
    let seen = text(&drawn(&mut app));
    assert!(seen.contains(":pin pins") && !seen.contains("against round"), "{seen}");
    // Nothing measured, nothing pinned.
    let mut app = fixture::app(State::default(), Settings::default(), (120, 40));
    press(&mut app, ":pin<enter>");
    assert!(said(&app).1.contains("P measures"), "{:?}", said(&app));
}

#[test]
fn a_block_has_what_its_rows_add_up_to_and_nothing_else() {
    let mut app = judged((120, 40), Settings::default());
    press(&mut app, ":columns p50 p95 activations intensity change<enter>:pin 0<enter>zz");
    let block = figures(&mut app, "blocks.11");
    // The count of its rows comes before the figures.
    assert_eq!((block[2].as_str(), block[4].as_str()), ("—", "—"), "{block:?}");
    assert!(block[3].parse::<f64>().is_ok() && block[5].starts_with('−'), "{block:?}");
    // Sorted by what blocks have none of, that with the largest row comes first.
    press(&mut app, ":sort p95<enter>");
    let largest = |name: &str| {
        let of = app.table.layers.iter().filter(|l| l.name.starts_with(name));
        of.map(|l| l.p95).fold(0.0, f64::max)
    };
    let firsts: Vec<f64> = app.table.blocks.iter().map(|b| largest(&format!("{}.", b.name))).collect();
    let most = firsts.iter().copied().fold(0.0, f64::max);
    let first = app.list.shown.iter().find_map(|r| match r {
        paring::tui::RowRef::Block(b) => Some(firsts[*b]),
        paring::tui::RowRef::Layer(_) => None,
    });
    assert_eq!(first, Some(most));
}

#[test]
fn columns_are_picked_completed_and_cycled() {
    let mut app = judged((120, 40), Settings::default());
    press(&mut app, ":columns p95, intensity  macs<enter>");
    let seen = text(&drawn(&mut app));
    let head = row(&seen, "layer  ");
    let at = |word: &str| head.find(word).unwrap_or_else(|| panic!("{word}: {head}"));
    assert!(at("p95 ms") < at("FLOP/B") && at("FLOP/B") < at("MACs M") && !head.contains("p50 ms"), "{head}");
    // First the model's own order: what it was sorted by is not shown.
    press(&mut app, "sss");
    assert_eq!(app.columns.label(app.list.sort), "intensity");
    press(&mut app, "www");
    assert!(text(&drawn(&mut app)).contains("vs pin"), "costs, parameters, speed");
    press(&mut app, "w");
    assert!(text(&drawn(&mut app)).contains("FLOP/B") && !text(&drawn(&mut app)).contains("vs pin"));
    press(&mut app, ":columns p50 p59<enter>");
    assert_eq!(said(&app), (Level::Bad, "`p59` is no column; hint: did you mean `p50`?".into()));
    press(&mut app, ":sort latensy<enter>");
    assert!(said(&app).1.contains("is no column; hint: one of p50"), "{:?}", said(&app));
    press(&mut app, ":columns p50 int");
    assert!(text(&drawn(&mut app)).contains("columns p50 intensity"), "{}", text(&drawn(&mut app)));
    press(&mut app, "<esc>:column x = p50 / ma");
    assert!(text(&drawn(&mut app)).contains("column x = p50 / macs"), "{}", text(&drawn(&mut app)));
    // More than there is room for: what is left out is told.
    press(
        &mut app,
        "<esc>:columns p50 p95 share memory macs params sensitivity activations intensity change noise<enter>",
    );
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("more need room") && seen.contains("p50 ms") && seen.contains("plan"), "{seen}");
    // What is copied is what is shown.
    press(&mut app, ":columns p50 intensity<enter>");
    let Some(Effect::Yank(rows)) = press(&mut app, "y").pop() else { panic!("nothing copied") };
    assert!(rows.starts_with("layer\tp50 ms\tFLOP/B\n") && rows.contains("\t42.0\n"), "{rows}");
}

#[test]
fn columns_of_ones_own_are_computed_sorted_and_explained() {
    let mut app = judged((120, 40), Settings::default());
    press(&mut app, ":columns p50 macs<enter>:column ns_per_mac = p50 * 1e6 / (macs * batch)<enter>");
    go(&mut app, "blocks.8.attn.qkv");
    let l = app.table.layers.iter().find(|l| l.name == "blocks.8.attn.qkv").expect("a row");
    let wanted = l.fig.p50.expect("measured") * 1e6 / (l.fig.macs.conv_linear as f64 * 8.0);
    let seen = text(&drawn(&mut app));
    let told = row(&seen, "│❯");
    let shown = format!("{wanted:.1e}");
    assert!(seen.contains("ns_per_mac") && told.contains(&shown), "{shown}: {told}");
    // Norms multiply nothing: no figure, and no infinity.
    press(&mut app, ":filter blocks.8.norm1<enter>");
    let seen = text(&drawn(&mut app));
    let norm = row(&seen, "  norm1");
    assert!(norm.contains('—') && !norm.contains("inf") && !norm.contains("NaN"), "{seen}");
    press(&mut app, ":filter<enter>");
    press(&mut app, ":sort ns_per_mac<enter>K");
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("a column of your own: p50 * 1e6 / (macs * batch)"), "{seen}");
    assert!(seen.contains("macs in MACs of one item") && seen.contains("batch in items of a batch"), "{seen}");
    press(&mut app, "<esc>:explain ns_per_mac<enter>");
    assert!(text(&drawn(&mut app)).contains("a column of your own"));
    press(&mut app, "<esc>:explain latancy<enter>");
    assert_eq!(said(&app).1, "no word `latancy` in the glossary; hint: did you mean `latency`?");
    // Negative figures have a scale of their own.
    press(&mut app, ":column less = p50 - 1<enter>");
    assert!(text(&drawn(&mut app)).contains('−'));
    for (line, wanted) in [
        ("column x = p05", "no figure `p05`; hint: did you mean `p50`? there are p50, p95"),
        ("column p50 = 3", "is there already"),
        ("column x", "needs a name and an expression"),
        ("column zz = off", "no column of yours is called `zz`; hint: one of ns_per_mac, less"),
    ] {
        press(&mut app, &format!(":{line}<enter>"));
        assert!(said(&app).0 == Level::Bad && said(&app).1.contains(wanted), "{line}: {:?}", said(&app));
    }
    press(&mut app, ":column ns_per_mac = off<enter>");
    let seen = text(&drawn(&mut app));
    assert!(!seen.contains("ns_per_mac") && seen.contains("less"), "{seen}");
    assert_eq!(app.list.sort, None, "the column that it was sorted by is gone");
}

#[test]
fn settings_keep_columns() {
    let own = OwnColumn::parse("ratio", "p95 / p50").expect("an expression");
    let columns = ["p50", "ratio", "intensity"].map(str::to_owned).to_vec();
    let settings = Settings { columns, own_columns: vec![own], sort: "ratio".into(), ..Settings::default() };
    for size in SIZES {
        let mut app = judged(size, settings.clone());
        let seen = text(&drawn(&mut app));
        assert!(seen.contains("layers ratio ↓") && seen.contains("FLOP/B") && !seen.contains("MACs M"), "{seen}");
        assert!(seen.contains("1.06"), "{seen}");
    }
}

#[test]
fn errors_are_looked_up_one_after_the_other() {
    let mut app = judged((120, 40), Settings::default());
    press(&mut app, ":filter blocks.8.<enter>:columns p50 int8 w4<enter>");
    assert!(text(&drawn(&mut app)).contains(":errors looks up errors"));
    let asked = |effects: Vec<Effect>| -> Vec<String> {
        let layer = |c| match c {
            Command::Rounding { layer } => Some(layer),
            _ => None,
        };
        sent(effects).into_iter().filter_map(layer).collect()
    };
    let mut known: Vec<String> = Vec::new();
    let mut next = asked(press(&mut app, ":errors<enter>"));
    assert!(text(&drawn(&mut app)).contains("errors of 3 rows to come"), "{}", text(&drawn(&mut app)));
    while let [layer] = &next[..] {
        known.push(layer.clone());
        next = asked(feed(&mut app, errors(layer)));
    }
    assert_eq!(known.len(), 4, "{known:?}");
    assert!(known.iter().all(|l| l.starts_with("blocks.8.")) && next.is_empty());
    let seen = text(&drawn(&mut app));
    assert!(row(&seen, "mlp.fc1").contains("0.8") && row(&seen, "mlp.fc1").contains("10.4"), "{seen}");
    press(&mut app, ":errors<enter>");
    assert_eq!(said(&app).1, "the errors of 4 rows are known");
    // The planned precision's error, where one is planned.
    press(&mut app, ":filter<enter>:columns p50 error<enter>:errors<enter>:errors off<enter>");
    assert_eq!(said(&app).1, "no further errors are looked up");
}

#[test]
fn few_colours_tell_changes_too() {
    let mut app = judged((120, 40), Settings { colors: ColorLevel::Ansi16, ..Settings::default() });
    press(&mut app, ":pin 0<enter>:columns p50 change<enter>");
    let buf = drawn(&mut app);
    let area = *buf.area();
    let all = (0..area.height).flat_map(|y| (0..area.width).map(move |x| (x, y)));
    let good = app.palette.color(Role::Good);
    let faster =
        |at: (u16, u16)| buf[at].symbol() == "−" && buf[at].fg == good && buf[at].modifier.contains(Modifier::BOLD);
    assert!({ all }.any(faster) && text(&buf).contains('█'), "{}", text(&buf));
}
