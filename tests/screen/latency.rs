//! Latency in one currency on the screen: rows, card, header and evaluation table say the same, and what is in doubt is marked.

use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::profile::{Doubt, Load, Paired, Ratio};
use paring::session::{Command, Evaluation, Event};
use paring::tui::{App, Effect};

const NOISE: Doubt = Doubt::Contention { others: 0.48 };

fn app(story: fixture::Story, size: (u16, u16)) -> App {
    fixture::app(story.state, Settings::default(), size)
}

fn go(app: &mut App, layer: &str) {
    press(app, &format!("z/{layer}<enter>"));
    press(app, "n<esc>");
}

/// Every number in a line of text, minus signs of both kinds.
fn numbers(line: &str) -> Vec<f64> {
    let plain = line.replace('−', "-");
    plain.split(|c: char| !(c.is_ascii_digit() || c == '.' || c == '-')).filter_map(|w| w.parse().ok()).collect()
}

fn line_with<'a>(screen: &'a str, needle: &str) -> &'a str {
    screen.lines().find(|l| l.contains(needle)).unwrap_or_else(|| panic!("no `{needle}` on\n{screen}"))
}

/// The whole model measured while others had the processors: thirteen times what its rows add up to.
fn stained() -> fixture::Story {
    let mut s = fixture::review();
    let mut p = s.state.profile_of(0).expect("profiled").clone();
    p.whole.p50 *= 13.0;
    p.doubt = Some(NOISE);
    s.push(Event::Profiled { round: 0, profile: Box::new(p) });
    s
}

#[test]
fn no_card_saves_more_than_its_rows_show() {
    for story in [fixture::review(), stained()] {
        let mut app = app(story, (120, 40));
        for layer in ["blocks.11.mlp.fc1", "blocks.7.attn.qkv", "blocks.3.mlp.fc1"] {
            go(&mut app, layer);
            let screen = text(&drawn(&mut app));
            let o = app.expected_own.expect("a forecast");
            // Rows of the group, as the list shows them.
            let shown: f64 = app.table.layers.iter().filter_map(|l| l.fig.p50).sum();
            assert!(-o.d_latency_ms.low <= o.touched_ms + 1e-9, "{layer}: {o:?}");
            assert!(o.touched_ms <= shown + 1e-9, "{layer}: {} of {shown}", o.touched_ms);
            let row = app.table.layer(layer).and_then(|l| l.fig.p50).expect("measured");
            assert!(o.touched_ms >= row * 0.999, "{layer}: {} of which {row}", o.touched_ms);
            // The change, and below it what it is a change of: its rows', and the whole's.
            let at = screen.lines().position(|l| l.contains(" latency  ~")).expect("a line of latency");
            let below = numbers(screen.lines().nth(at + 1).expect("a line").rsplit("  of ").next().unwrap_or(""));
            let whole = app.state.profile_of(0).expect("profiled").whole.p50;
            let near = |v: f64| below.iter().any(|b| (b - v).abs() <= 0.06 * v);
            assert!(near(o.touched_ms) && near(whole), "{below:?}: {} {whole}\n{screen}", o.touched_ms);
        }
        // Rows add up to the whole that the header's factor is one of.
        let whole = app.state.profile_of(0).expect("profiled").whole.p50;
        let rows: f64 = app.table.layers.iter().filter_map(|l| l.fig.p50).sum();
        assert!((rows - whole).abs() < 1e-6 * whole, "{rows} {whole}");
    }
}

#[test]
fn after_a_round_a_decision_changes_the_rows_that_are_shown() {
    let mut s = fixture::verdict();
    s.push(Event::RoundAccepted { round: 1 });
    let mut app = app(s, (120, 40));
    go(&mut app, "blocks.11.mlp.fc1");
    let row = app.table.layer("blocks.11.mlp.fc1").and_then(|l| l.fig.p50).expect("measured");
    let base = app.state.profile_of(0).expect("profiled").clone();
    let old = base.rows.iter().find(|r| r.name == "blocks.11.mlp.fc1").map(|r| base.ms(r)).expect("row");
    assert!(row < 0.9 * old, "the round made it faster");
    // Of what is in force, what it changed of the original; of four steps more, what they change in what is left of the row.
    drawn(&mut app);
    let o = app.expected_own.expect("in force");
    let was: f64 = ["blocks.11.mlp.fc1", "blocks.11.mlp.fc2"]
        .iter()
        .filter_map(|l| base.rows.iter().find(|r| r.name == *l).map(|r| base.ms(r)))
        .sum();
    assert!(o.d_latency_ms.value < 0.0 && (o.touched_ms - was).abs() < 1e-9, "{o:?} of {was}");
    press(&mut app, "}}}}");
    let screen = text(&drawn(&mut app));
    let o = app.expected_own.expect("a draft");
    let members: f64 = ["blocks.11.mlp.fc1", "blocks.11.mlp.fc2"]
        .iter()
        .filter_map(|l| app.table.layer(l).and_then(|l| l.fig.p50))
        .sum();
    assert!(o.d_latency_ms.value < 0.0 && -o.d_latency_ms.low <= members + 1e-9, "{o:?} of {members}\n{screen}");
    assert!((o.touched_ms - members).abs() < 1e-9, "{} {members}", o.touched_ms);
}

fn measured(s: &mut fixture::Story, base: f64, new: f64, doubt: Option<Doubt>) {
    let mut e: Evaluation = s.state.round_at(1).and_then(|r| r.evaluation.clone()).expect("evaluated");
    let stats = |p50| paring::profile::LatencyStats { n: 60, p50, ..Default::default() };
    let value = new / base;
    let ratio = Ratio { n: 60, value, low: value * 0.98, high: value * 1.02, coverage: 0.97 };
    e.measured_again(&Paired { base: stats(base), new: stats(new), ratio, doubt, load: Load::default() });
    s.push(Event::Evaluated { evaluation: Box::new(e) });
}

/// 10.4 -> 6.13 ms must not be 0.38x, nor a slower round 0.66x: a factor is that of the two figures beside it.
#[test]
fn a_factor_stands_beside_the_baseline_that_it_refers_to() {
    for (base, new, factor) in [(16.1, 6.13, "0.38x"), (10.4, 6.13, "0.59x"), (10.4, 11.2, "1.08x")] {
        let mut s = fixture::verdict();
        measured(&mut s, base, new, None);
        let mut app = app(s, (120, 40));
        press(&mut app, "2");
        let screen = text(&drawn(&mut app));
        let line = line_with(&screen, "beside the original's");
        let near = |line: &str, v: f64| numbers(line).iter().any(|n| (n - v).abs() < 0.06);
        assert!(near(line, new) && near(line, base) && line.contains(factor), "{line}");
        let row = line_with(&screen, "│ round 1 ");
        assert!(row.contains(factor) && near(row, new), "{row}");
        // The baseline's own row is the original of that minute: it was sound, and newer.
        assert!(near(line_with(&screen, "│ baseline "), base), "{screen}");
        let header = screen.lines().next().expect("a header");
        assert!(header.contains(factor), "{header}");
    }
}

#[test]
fn a_baseline_in_doubt_does_not_stay() {
    // Measured in doubt at first, soundly beside a round: the sound one counts, and rows are parts of it.
    let mut s = stained();
    assert!(s.state.profile_of(0).is_some_and(|p| p.doubt.is_some()));
    let mut round = fixture::verdict();
    let mut p = s.state.profile_of(0).expect("profiled").clone();
    round.push(Event::Profiled { round: 0, profile: Box::new(p.clone()) });
    measured(&mut round, 10.4, 6.13, None);
    let base = round.state.profile_of(0).expect("profiled");
    assert_eq!((base.whole.p50, base.doubt), (10.4, None));
    let sum: f64 = base.rows.iter().map(|r| base.ms(r)).sum();
    assert!((sum - 10.4).abs() < 1e-9);
    // And a sound one is not stained by one in doubt.
    measured(&mut round, 99.0, 50.0, Some(NOISE));
    assert_eq!(round.state.profile_of(0).map(|p| p.whole.p50), Some(10.4));
    assert_eq!(round.state.baseline().map(|b| (b.whole.p50, b.doubt)), Some((10.4, None)));
    // Measuring a row again clears what was in doubt with it.
    p.doubt = None;
    p.whole.p50 = 12.0;
    let layer = p.rows[0].name.clone();
    s.push(Event::Remeasured { round: 0, layer, profile: Box::new(p) });
    assert_eq!(s.state.profile_of(0).map(|p| (p.whole.p50, p.doubt)), Some((12.0, None)));
}

#[test]
fn what_could_not_be_measured_is_marked_in_every_colour_and_in_ascii() {
    let layer = "blocks.11.mlp.fc1";
    let mut s = fixture::review();
    let mut p = s.state.profile_of(0).expect("profiled").clone();
    for r in p.rows.iter_mut().filter(|r| r.name == layer) {
        r.doubt = Some(Doubt::Scatter { spread: 0.31 });
    }
    s.push(Event::Profiled { round: 0, profile: Box::new(p) });
    for colors in [ColorLevel::True, ColorLevel::Ansi16, ColorLevel::None] {
        let settings = Settings { colors, ascii: colors == ColorLevel::None, ..Settings::default() };
        let mut app = fixture::app(s.state.clone(), settings, (120, 40));
        go(&mut app, layer);
        let ms = app.table.layer(layer).and_then(|l| l.fig.p50).expect("measured");
        let screen = text(&drawn(&mut app));
        let row = screen.lines().find(|l| l.contains("mlp.fc1") && l.contains('?'));
        assert!(row.is_some(), "{colors:?}:\n{screen}");
        assert!(screen.contains("? 1 noisy, M measures again"), "{colors:?}:\n{screen}");
        assert!(screen.contains("31 %"), "{colors:?}: the card says why\n{screen}");
        assert!(ms > 0.0);
        let sent = press(&mut app, "M");
        assert!(
            sent.iter().any(|e| matches!(e, Effect::Send(Command::Measure { layer: l }) if l == layer)),
            "{sent:?}"
        );
    }
}

#[test]
fn help_says_what_a_latency_is() {
    let mut app = app(fixture::review(), (120, 60));
    press(&mut app, "?");
    let mut all = String::new();
    for _ in 0..8 {
        all.push_str(&text(&drawn(&mut app)));
        press(&mut app, "<down><down><down><down><down><down><down><down><down><down><down><down>");
    }
    for words in ["median time of a whole run", "rows add up to it", "95 % interval", "M measures a row again"] {
        assert!(all.contains(words), "{words}");
    }
}

/// A journal of an older version has no pairs: the factor is that of the two medians it has.
#[test]
fn older_journals_still_have_a_factor() {
    let s = fixture::verdict();
    let e = s.state.round_at(1).and_then(|r| r.evaluation.clone()).expect("evaluated");
    let mut old = serde_json::to_value(&e).expect("json");
    for field in ["paired", "doubt"] {
        old.as_object_mut().expect("an object").remove(field);
    }
    for field in ["spread", "middle"] {
        old["whole"].as_object_mut().expect("an object").remove(field);
    }
    old["whole"]["p99"] = 7.0.into();
    let old: Evaluation = serde_json::from_value(old).expect("reads");
    let l = old.latency().expect("a factor");
    assert!((l.value - e.whole.p50 / e.baseline_ms).abs() < 1e-12 && l.low == l.value && l.n == 0);
    let baseline = s.state.baseline().expect("evaluated");
    assert_eq!(baseline.latency().map(|l| l.value), Some(1.0));
}

/// What decides is whole at every size: that a figure is in doubt, why, and how a round was judged and decided.
#[test]
fn what_a_verdict_rests_on_is_whole_at_every_size() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut s = fixture::verdict();
        measured(&mut s, 16.1, 6.13, Some(NOISE));
        s.push(Event::RoundAccepted { round: 1 });
        let mut app = app(s, size);
        press(&mut app, "2");
        let screen = text(&drawn(&mut app));
        // In lines of its own where one does not hold it.
        let words: String = screen.replace(['│', '\n'], " ").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("in doubt: {NOISE}")), "{size:?}\n{screen}");
        assert!(line_with(&screen, "│ round 1 ").contains("accepted"), "{size:?}\n{screen}");
        assert!(!line_with(&screen, "│ round 1 ").contains('…'), "{size:?}\n{screen}");
    }
}

/// The list's border tells its rows' sum, which is not what the round took beside the original and is not called the whole then.
#[test]
fn a_border_does_not_call_the_whole_what_others_measured_otherwise() {
    let mut s = fixture::verdict();
    let sum = s.state.profile_of(1).expect("profiled").whole.p50;
    measured(&mut s, 16.1, sum * 1.3, None);
    let mut of_round = app(s, (200, 60));
    let screen = text(&drawn(&mut of_round));
    assert!(screen.contains("rows add up to") && !screen.contains("· whole"), "{screen}");
    let screen = text(&drawn(&mut app(fixture::review(), (200, 60))));
    assert!(screen.contains("· whole") && !screen.contains("rows add up to"), "{screen}");
}

#[test]
fn a_column_of_ones_own_has_the_doubt_of_the_time_it_is_made_of() {
    let mut s = fixture::review();
    let mut p = s.state.profile_of(0).expect("profiled").clone();
    let name = p.rows[0].name.clone();
    p.rows[0].doubt = Some(NOISE);
    s.push(Event::Profiled { round: 0, profile: Box::new(p) });
    let mut app = app(s, (200, 60));
    press(&mut app, ":column twice = p50 * 2<enter>");
    press(&mut app, ":column store = memory * 2<enter>");
    go(&mut app, &name);
    let screen = text(&drawn(&mut app));
    let row = line_with(&screen, "│❯");
    assert_eq!(row.matches('?').count(), 2, "its p50 and twice that: {row}\n{screen}");
}

/// However many items a budget has, all are judged in sight.
#[test]
fn every_item_of_a_budget_is_seen_at_every_size() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = app(fixture::verdict(), size);
        let verdict = app.state.rounds[1].verdict.as_mut().expect("judged");
        let latency = verdict.lines.iter().find(|l| l.name == "latency").expect("asked for").clone();
        for name in ["memory", "params", "energy"] {
            verdict.lines.insert(0, paring::plan::VerdictLine { name: name.into(), ..latency.clone() });
        }
        let wanted: Vec<String> = verdict.lines.iter().map(|l| l.name.clone()).collect();
        press(&mut app, "2");
        let screen = text(&drawn(&mut app));
        let at = screen.lines().position(|l| l.contains("│ budget ")).expect("a budget");
        let told: String = screen.lines().skip(at).take(3).collect();
        assert!(wanted.iter().all(|name| told.contains(&format!("{name} "))), "{size:?} {wanted:?}\n{screen}");
    }
}
