//! What a report tells besides a session's course: what is in force against the original, what was expected of rounds, classes, constraints, and how
//! every figure was measured.
//!
//! Not here: tables of rounds, decisions and layers (`sections`). Invariant: what was not measured is left out, or said to be so.

use super::document::{Section, Table, Words};
use super::sections::{change, factor, named};
use crate::graph::MacConvention;
use crate::plan::VerdictLine;
use crate::profile::Load;
use crate::session::{Evaluation, Round};
use crate::tui::app::App;
use crate::tui::draw::classes::{self, Mover};
use crate::tui::draw::{basis, evaluate};
use crate::tui::num;
use crate::tui::outlook::{self, CLASS, KL, Measured, QUALITY};
use crate::tui::standing::bound;
use crate::words::{bytes, counted, counted_as};

/// Classes that are told before the rest is folded away.
const FEW: usize = 20;

/// What stands, and what it is worth.
pub fn in_force(app: &App) -> Section {
    let s = &app.state;
    let section = Section::new("In force");
    let (stands, base) = (s.model_round(), s.base_round());
    let name = |round: u32| if round == 0 { "the original".to_owned() } else { format!("round {round}") };
    let built = counted(s.recipe_of(stands).len(), "decision");
    let words = match stands {
        _ if stands != base => format!(
            "Round {stands} ({built}) waits for its verdict to be accepted or rolled back; until then {} is in force.",
            name(base)
        ),
        0 => "The original is in force: no round was accepted.".to_owned(),
        _ => format!("Round {stands} ({built}) is in force."),
    };
    let section = section.words(words);
    let (Some(original), Some(m)) = (s.baseline(), Measured::of_round(s, stands)) else {
        return section.words("It was not evaluated.");
    };
    let Some((r, e)) = s.round_at(stands).and_then(|r| Some((r, r.evaluation.as_ref()?))) else { return section };
    let metric = s.metric();
    let mut t = Table::new(["", "original", &name(stands), "against the original (95 %)", "budget", "judged"]);
    for g in outlook::goals(&s.budget, &metric) {
        let line = r.verdict.as_ref().and_then(|v| v.lines.iter().find(|l| goal_of(l) == g.name));
        let value = |e: &Evaluation| figure(app, g.name, e);
        // The original's of the same minute is what the factor is of.
        let before = match g.name {
            "latency" if stands > 0 && e.latency().is_some() => {
                Some(num::ms(e.baseline_ms) + num::mark(e.doubt.is_some()))
            }
            _ => value(original),
        };
        let against = match g.name {
            "latency" => factor(e),
            QUALITY => change(app, r),
            _ if stands == 0 => None,
            name => m.get(name).filter(|v| v.is_finite()).map(|v| match line.and_then(|l| l.range) {
                Some((low, high)) => format!("{} [{}, {}]", g.show(v), g.show(low), g.show(high)),
                None => g.show(v),
            }),
        };
        t.row([
            title(g.label(&metric), g.name),
            before.unwrap_or_default(),
            if stands == 0 { String::new() } else { value(e).unwrap_or_default() },
            against.unwrap_or_default(),
            g.target.map_or(String::new(), |target| g.asked(target)),
            line.map_or(String::new(), |l| l.outcome.label().to_owned()),
        ]);
    }
    t.rows.retain(|r| r.cells.iter().skip(1).any(|c| !c.is_empty()));
    section.table(t)
}

/// The goal that a verdict's line is about.
fn goal_of(l: &VerdictLine) -> &str {
    match l.name.as_str() {
        "drop" => QUALITY,
        "macs" => "MACs",
        "kl" => KL,
        "class" => CLASS,
        other => other,
    }
}

fn title(label: &str, name: &str) -> String {
    match name {
        "latency" => "latency, ms a batch".to_owned(),
        "memory" => "stored weights".to_owned(),
        "params" => "parameters".to_owned(),
        CLASS => "the class that loses most, points".to_owned(),
        KL => "KL from the original, nats a token".to_owned(),
        _ => label.to_owned(),
    }
}

fn figure(app: &App, name: &str, e: &Evaluation) -> Option<String> {
    let metric = app.state.metric();
    Some(match name {
        "latency" => num::ms(e.ms()?) + num::mark(e.doubt.is_some()),
        "memory" => bytes(e.weight_bytes),
        "MACs" => format!("{} M", num::scaled(e.macs.get(app.settings.mac_convention) as f64, 1e6)),
        "params" => num::count(e.params),
        QUALITY => format!("{:.*} {}", metric.digits, metric.value(e.metrics.score), metric.unit).trim_end().to_owned(),
        _ => return None,
    })
}

/// What was expected of rounds before they ran, beside what was measured.
pub fn forecasts(app: &App) -> Option<Section> {
    let s = &app.state;
    let metric = s.metric();
    let mut t = Table::new(["round", "by", "expected", "measured (95 %)", "as expected"].map(str::to_owned));
    for r in s.rounds.iter().filter(|r| r.verdict.is_some()) {
        let measured = || change(app, r).unwrap_or_default();
        if let Some(q) = r.expected() {
            let range = num::range(&metric, (q.low, q.high), ", ");
            let expected = format!("~{} {range}", num::signed(metric.shown(q.value), metric.digits));
            let held = r.verdict.as_ref().map(|v| q.low <= v.d_quality && v.d_quality <= q.high);
            let by = format!("forecast, {}, range meant to hold {:.0} %", q.basis.label(), 100.0 * q.coverage);
            t.row([
                named(r.number),
                by,
                expected,
                measured(),
                held.map_or("", |h| if h { "in its range" } else { "outside" }).to_owned(),
            ]);
        }
        for c in s.claims.iter().filter(|c| c.round == r.number) {
            let Some(expects) = c.expects else { continue };
            let expected = format!("~{}", num::signed(metric.shown(expects), metric.digits));
            t.row([named(r.number), c.author.to_string(), expected, measured(), String::new()]);
        }
    }
    let unit = if metric.change_unit.is_empty() { String::new() } else { format!(" in {}", metric.change_unit) };
    let words = format!("Changes of {}{unit}, against the original.", metric.name);
    (!t.rows.is_empty()).then(|| Section::new("Expected and measured").table(t).words(words))
}

/// How every class fares in the newest model that was not rolled back.
pub fn classes(app: &App) -> Option<Section> {
    let s = &app.state;
    let (base, now) = (s.baseline()?, s.evaluation().filter(|e| e.round > 0)?);
    let section = Section::new(format!("Classes (round {} against the original)", now.round));
    if base.metrics.per_class().is_empty() {
        return None;
    }
    if now.part.is_some() {
        return Some(
            section.words("Not told: the round was evaluated on a part of the data, the original on all of it."),
        );
    }
    let movers = classes::movers(base, now, None);
    let table = |all: &[&Mover]| {
        let mut t = Table::new(["class", "original %", &format!("round {} %", now.round), "change, points", "items"]);
        for m in all {
            let items = base.metrics.per_class().get(m.class).map_or(0, |(_, n)| *n);
            t.row([
                evaluate::class_name(s, m.class),
                format!("{:.1}", 100.0 * m.base),
                format!("{:.1}", 100.0 * m.now),
                num::signed(100.0 * (m.now - m.base), 1),
                items.to_string(),
            ]);
        }
        t
    };
    let all: Vec<&Mover> = movers.iter().collect();
    let few: Vec<&Mover> = match all.len() {
        n if n > FEW => all[..FEW / 2].iter().chain(&all[n - FEW / 2..]).copied().collect(),
        _ => all.clone(),
    };
    let bars = super::figures::classes(s, &few);
    let section = section.pictures([bars], "").table(table(&few));
    let section = match all.len() - few.len() {
        0 => section,
        n => section
            .words(format!("{} between these.", counted_as(n, "class lies", "classes lie")))
            .folded(format!("all {}", counted_as(all.len(), "class", "classes")), table(&all)),
    };
    Some(section.words(
        "Right answers of a class as a share of its items; one class moves by chance more than all do together: the verdict's interval is of all.",
    ))
}

pub fn constraints(app: &App) -> Option<Section> {
    let all = &app.state.constraints;
    let mut t = Table::new(["target", "bound", "reason"]);
    for c in all {
        t.row([c.target.to_string(), bound(c), c.reason.clone()]);
    }
    let words = format!("{} later proposals.", counted_as(all.len(), "constraint binds", "constraints bind"));
    (!all.is_empty()).then(|| Section::new("Constraints").table(t).words(words))
}

/// How every figure was measured.
pub fn how(app: &App) -> Section {
    let s = &app.state;
    let metric = s.metric();
    let mut all: Vec<Words> = Vec::new();
    let mut say = |what: &str, text: String| all.push(Words::default().strong(what).and(format!(": {text}")));
    if let Some(p) = s.profile_of(0) {
        let (aside, load) = (p.load.as_ref().and_then(Load::words), p.load.as_ref().map(load));
        let told = [load, aside, p.doubt.map(|d| format!("in doubt: {d}"))].into_iter().flatten();
        say(
            "latency of the original",
            format!(
                "median of {} of one batch of {} without observers{}, known to ±{:.1} %{}",
                counted(p.whole.n, "run"),
                p.batch,
                p.whole.origin(),
                100.0 * p.whole.spread(),
                told.map(|t| format!("; {t}")).collect::<String>()
            ),
        );
        say(
            "latency of layers",
            format!(
                "{} with observers, in turns with whole runs; each row is its part of the whole model's median, so that rows add up to it",
                counted(p.runs, "run")
            ),
        );
    }
    if s.rounds.iter().any(|r| r.evaluation.as_ref().is_some_and(|e| e.paired.is_some())) {
        say(
            "latency of rounds",
            "runs of the round's model and of the original in pairs, the order within each by chance; the factor is the median of the pairs' ratios, its interval two of their order statistics that hold the median with 95 % or more (less where there are fewer than six pairs: each round's coverage follows)".to_owned(),
        );
    }
    for r in s.rounds.iter().filter(|r| r.number > 0) {
        let Some(p) = r.evaluation.as_ref().and_then(|e| e.paired) else { continue };
        let (ratio, doubt) = (p.ratio, p.doubt.map(|d| format!("; in doubt: {d}")));
        let text = format!("{}, coverage {:.1} %; {}", counted(ratio.n, "pair"), 100.0 * ratio.coverage, load(&p.load));
        say(&format!("round {}", r.number), text + &doubt.unwrap_or_default());
    }
    if let Some(e) = s.baseline() {
        let score = match e.metrics.correct() {
            Some(_) => "Wilson's 95 % interval",
            None => "the normal 95 % interval of a mean",
        };
        say(
            &metric.name,
            format!(
                "on {}; a score has {score}; a change is paired, item by item with the original, and so is its interval",
                metric.items(e.metrics.n)
            ),
        );
    }
    let counted_as_macs = match app.settings.mac_convention {
        MacConvention::ConvLinear => "of convolutions and linear layers",
        MacConvention::Attention => "of convolutions, linear layers and attention's two products",
        MacConvention::Norms => {
            "of convolutions, linear layers, attention's two products and norms as fvcore counts them"
        }
    };
    let item = if s.card.as_ref().is_some_and(|c| c.graph.is_language_model()) { "window" } else { &metric.item };
    let factor = match app.settings.mac_convention {
        MacConvention::ConvLinear => "",
        _ => "; factors and budgets are of convolutions and linear layers alone",
    };
    say("MACs", format!("{counted_as_macs}, of one {item}{factor}"));
    say("MB", "10^6 bytes of weights as they are stored, in the precision of each layer".to_owned());
    if let Some(q) = app.expected.and_then(|e| e.quality).filter(|_| app.plan_differs()) {
        let words = [basis::short(&q, &metric), basis::words(s, &q)].into_iter().flatten().collect::<Vec<_>>();
        if !words.is_empty() {
            say("forecast of the plan that is shown", words.join("; "));
        }
    }
    if !s.trials.list.is_empty() {
        let correction = s.trials.correction.as_ref().map_or(String::new(), |c| format!("; {c}"));
        say(
            "plans that were built and tried",
            format!("{}, on held-back calibration data{correction}", s.trials.list.len()),
        );
    }
    if let Some(first) = s.sensitivity.curves.first() {
        say(
            "sensitivities",
            format!(
                "{}, each changed alone against the untouched model, cuts after a local least-squares re-fit; {} of calibration data, never the evaluation's; both outputs softened where the original is over-sure",
                counted(s.sensitivity.curves.len(), "target"),
                metric.items(first.images)
            ),
        );
    }
    if !s.ladders.is_empty() {
        say(
            "latency by width",
            "each layer compiled and run alone as in the model, twice at least, all widths in turns; what no two times agree on is marked ? and no forecast uses it".to_owned(),
        );
    }
    say("marks", "~ expected, not measured; ? in doubt, not to be decided on; — not measured".to_owned());
    if s.rounds.iter().any(|r: &Round| r.rolled_back.is_some()) {
        say(
            "rolled back",
            "figures of such rounds were measured as the others' were; the model is not in force".to_owned(),
        );
    }
    Section::new("How it was measured").list(all)
}

fn load(l: &Load) -> String {
    let clock = match l.clock {
        c if c > 0.0 && c < 1.0 => format!(", the clock fell to {:.0} %", 100.0 * c),
        _ => String::new(),
    };
    let gpu = l.gpu_others.map_or(String::new(), |part| format!(", others had {:.0} % of the GPU", 100.0 * part));
    format!(
        "meanwhile others had {:.0} % of the processors, threads waited {:.0} % of their time{clock}{gpu}; {:.0} % of the runs were set aside",
        100.0 * l.others.max(l.steal),
        100.0 * l.waited,
        100.0 * l.set_aside
    )
}

/// Everything that happened, folded away.
pub fn timeline(app: &App) -> Option<Section> {
    let all = &app.state.timeline;
    let mut t = Table::new(["event", "UTC", "what"]);
    for e in all {
        let undone = if e.undone { " (undone)" } else { "" };
        t.row([e.seq.to_string(), num::moment(e.at_ms), format!("{}{undone}", e.text)]);
        if let Some(row) = t.rows.last_mut() {
            row.faint = e.undone;
        }
    }
    (!all.is_empty()).then(|| Section::new("Timeline").folded(counted(all.len(), "event"), t))
}
