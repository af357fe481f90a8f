//! What a report tells of a session's course: what it is about, its rounds, decisions, repairs, and every layer.
//!
//! Not here: what is in force and how it was measured (`measured`), pictures (`figures`). Invariants: figures are made by the functions that the
//! screen shows them with; what was not measured has no figure.

use super::document::{Section, Table, Words};
use crate::graph::experts;
use crate::plan::{Action, Decision, Target};
use crate::profile::{Profile, Workload};
use crate::prune::Group;
use crate::session::{Evaluation, Planned, Round, SessionCard, Standing, action_text, apart, doubts, part};
use crate::tui::app::App;
use crate::tui::decide::unit;
use crate::tui::draw::evaluate::beside;
use crate::tui::num;
use crate::tui::standing::{builds, word};
use crate::words::counted;

/// What the session is about.
pub fn facts(app: &App, card: &SessionCard) -> Vec<Words> {
    let metric = card.metric();
    let classes = if card.graph.is_language_model() { "tokens in its vocabulary" } else { "classes" };
    let mut out = vec![
        Words::from("model ")
            .code(card.model.source.display().to_string())
            .and(format!(", {} {classes}, BLAKE3 ", card.model.classes))
            .code(&card.model.hash),
        Words::from(format!(
            "evaluated on {} ({}), calibrated on {} ({})",
            card.data.name,
            metric.items(card.data.images),
            card.calib.name,
            metric.items(card.calib.images)
        )),
    ];
    // Text is not prepared.
    if !card.graph.is_language_model() {
        let p = &card.model.preprocess;
        let three = |v: [f32; 3]| v.map(|x| x.to_string()).join(", ");
        let words = Words::from(format!(
            "images prepared to {}x{} with mean {} and deviation {} ({}",
            p.size[0],
            p.size[1],
            three(p.mean),
            three(p.std),
            p.origin,
        ));
        out.push(match p.assumed() {
            true => words.and(": ").strong("assumed").and(", `--mean` and `--std` say otherwise)"),
            false => words.and(")"),
        });
    }
    out.extend(card.device_note.iter().cloned().chain(experts::counted(&card.graph)).map(Words::from));
    if card.calib_is_eval {
        let item = &metric.item;
        out.push(
            Words::default()
                .strong(format!("calibration {item}s are evaluation {item}s: accuracy figures are flattered")),
        );
    }
    // A CPU's name has them already.
    let threads = match card.device.contains(" thread") {
        true => String::new(),
        false => format!(", {}", counted(card.threads, "thread")),
    };
    out.push(Words::from(format!(
        "{}{threads}, batch {}, seed {}, paring {}",
        card.device, card.batch, card.seed, card.version
    )));
    let budget = app.state.budget.to_string();
    out.push(match budget.is_empty() {
        true => Words::from("budget none"),
        false => Words::from("budget ").code(budget),
    });
    out
}

/// The change of the metric that a round's verdict states, with its interval.
pub fn change(app: &App, r: &Round) -> Option<String> {
    let (metric, v) = (app.state.metric(), r.verdict.as_ref()?);
    let ends = num::range(&metric, (v.d_quality_low, v.d_quality_high), ", ");
    Some(format!("{} {ends}", num::signed(metric.shown(v.d_quality), metric.digits)))
}

/// A round's latency as a factor of the original's, with its interval.
pub fn factor(e: &Evaluation) -> Option<String> {
    let f = e.latency().filter(|_| e.round > 0)?;
    let range = match f.n {
        0 => String::new(),
        _ => format!(" [{}, {}]", num::factor(f.low), num::factor(f.high)),
    };
    Some(format!("{}{}{range}", num::factor(f.value), num::mark(e.doubt.is_some())))
}

/// How a round was judged, and what was decided.
pub fn judged(r: &Round) -> String {
    match (&r.rolled_back, &r.verdict) {
        (Some(why), _) if why.is_empty() => "rolled back".to_owned(),
        (Some(why), _) => format!("rolled back: {why}"),
        (None, Some(v)) => format!("{}{}", v.label(), if r.accepted { ", accepted" } else { "" }),
        (None, None) => String::new(),
    }
}

pub fn named(round: u32) -> String {
    if round == 0 { "baseline".to_owned() } else { round.to_string() }
}

/// The rounds beside each other, as a table and in words.
pub fn rounds(app: &App) -> (Table, Vec<Words>) {
    let s = &app.state;
    let metric = s.metric();
    let first = s.rounds.iter().filter_map(|r| r.evaluation.as_ref()).find_map(|e| e.metrics.others.first());
    let other = first.map_or(String::new(), |r| format!("{} {}", r.name, r.unit));
    let items = format!("{}s", metric.item);
    let mut t = Table::new(
        ["round", &metric.title(), "change (95 %)", &other, "loss", &items, "ms", "of original (95 %)", "MB", "MACs M"]
            .into_iter()
            .chain(["params", "verdict"]),
    );
    for r in &s.rounds {
        let Some(e) = &r.evaluation else { continue };
        let factor = factor(e).map(|f| format!("{f} of {} ms", num::ms(e.baseline_ms)));
        t.row([
            named(r.number),
            format!("{:.*}", metric.digits, metric.value(e.metrics.score)),
            change(app, r).unwrap_or_default(),
            e.metrics.others.first().map_or(String::new(), |r| format!("{:.2}", r.score * r.scale)),
            format!("{:.4}", e.metrics.loss),
            e.metrics.n.to_string(),
            num::ms(e.ms().unwrap_or(f64::NAN)) + num::mark(e.doubt.is_some()),
            factor.unwrap_or_default(),
            num::scaled(e.weight_bytes as f64, 1e6),
            num::scaled(e.macs.get(app.settings.mac_convention) as f64, 1e6),
            num::count(e.params),
            judged(r),
        ]);
        if let Some(row) = t.rows.last_mut() {
            row.faint = r.rolled_back.is_some();
        }
    }
    let part = |e: &Evaluation| part(e).map(|words| format!("round {}: {words}, on items drawn at random", e.round));
    let told = s.rounds.iter().filter_map(|r| r.evaluation.as_ref()).flat_map(|e| [apart(e), part(e), beside(e)]);
    (t, told.flatten().map(Words::from).collect())
}

/// What `action` makes of `target`: units, precision, or that there is nothing left.
fn becomes(app: &App, target: &Target, action: &Action) -> String {
    let group = |id: &str| app.group(id);
    let filed = |layer: &str| {
        let row = app.state.profile_of(0).and_then(|p| p.rows.iter().find(|r| r.name == layer));
        row.map(|r| r.precision.label())
    };
    match (action, target) {
        (Action::Prune { ratio, kept }, Target::Group(id)) => group(id).map_or(String::new(), |g| {
            let left = if kept.is_empty() { g.kept_at(*ratio) } else { kept.len() };
            format!("{} → {left} {}", g.size, unit(g))
        }),
        (Action::Precision { precision }, target) => match filed(target.name()) {
            Some(before) => format!("{before} → {}", precision.label()),
            None => format!("→ {}", precision.label()),
        },
        (Action::RemoveBlock, _) => "there → gone".to_owned(),
        (Action::Factorise { rank }, _) => format!("one layer → two of rank {rank}"),
        (Action::Sparsify { sparsity }, _) => format!("dense → {sparsity}"),
        (Action::Keep | Action::Prune { .. }, _) => String::new(),
    }
}

/// The rows that a decision on `target` touches.
fn touched<'a>(app: &'a App, target: &'a Target) -> Vec<&'a str> {
    let members = |g: &'a Group| g.members.iter().map(|m| m.node.as_str()).collect::<Vec<_>>();
    let nodes: Vec<&str> = match target {
        Target::Group(id) => app.group(id).map(members).unwrap_or_default(),
        Target::Layer(name) | Target::Weights(name) => vec![name],
        Target::Block(name) => {
            let block = app.table.blocks.iter().find(|b| &b.name == name);
            let layers = block.map_or(&[][..], |b| &b.layers);
            layers.iter().filter_map(|&i| app.table.layers.get(i)).map(|l| l.name.as_str()).collect()
        }
    };
    let mut rows: Vec<&str> = nodes.into_iter().filter_map(|n| app.table.layer(n)).map(|l| l.name.as_str()).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

/// What the rows of these names take in `profile` together; those that are gone take nothing.
fn take(profile: &Profile, names: &[&str]) -> (f64, bool) {
    let rows = profile.rows.iter().filter(|r| names.contains(&r.name.as_str()));
    rows.fold((0.0, false), |(ms, doubt), r| (ms + profile.ms(r), doubt || r.doubt.is_some()))
}

/// Milliseconds of a target's rows before and after, where its decision is part of what was profiled.
fn measured(app: &App, here: &Planned<'_>, target: &Target) -> Option<String> {
    let round = app.table.of_round.filter(|r| *r > 0)?;
    let (before, after) = (app.state.profile_of(0)?, app.state.profile_of(round)?);
    let d = here.in_force.map(|(d, _)| d)?;
    let names = touched(app, target);
    let comparable = before.batch == after.batch && !names.is_empty();
    if !comparable || d.action == Action::Keep || !app.state.round_at(round)?.recipe.contains(&d.id) {
        return None;
    }
    let told = |(ms, doubt): (f64, bool)| num::ms(ms) + num::mark(doubt);
    Some(format!("{} → {}", told(take(before, &names)), told(take(after, &names))))
}

/// What its author was told, or told, that a decision alone would do.
fn forecast(app: &App, d: &Decision) -> [String; 2] {
    let Some(f) = d.forecast.filter(|_| d.action != Action::Keep) else { return [String::new(), String::new()] };
    let metric = app.state.metric();
    let quality = match f.d_quality.value == 0.0 && f.unmeasured > 0 {
        true => "unmeasured".to_owned(),
        false => format!(
            "~{} {}",
            num::signed(metric.shown(f.d_quality.value), metric.digits),
            num::range(&metric, (f.d_quality.low, f.d_quality.high), ", ")
        ),
    };
    let ms = f.d_latency_ms;
    [format!("~{} [{}, {}]", num::signed(ms.value, 2), num::signed(ms.low, 2), num::signed(ms.high, 2)), quality]
}

pub fn decisions(app: &App) -> Option<Section> {
    let plan: Vec<_> = app.state.plan().into_iter().filter(|(_, p)| p.standing() != Standing::Free).collect();
    let metric = app.state.metric();
    let mut t = Table::new(
        ["target", "the next run builds", "standing", "decided", "author", "why", "before → after"]
            .map(str::to_owned)
            .into_iter()
            .chain([
                "forecast alone, ms".to_owned(),
                format!("forecast alone, {} {}", metric.name, metric.change_unit).trim_end().to_owned(),
                "its rows, ms".to_owned(),
            ]),
    );
    for (target, here) in &plan {
        let Some(d) = here.shown() else { continue };
        let why = match d.veto_reason.as_deref().filter(|r| !r.is_empty()) {
            Some(r) => format!("vetoed: {r}"),
            // Reasons of what was edited, whose figures are not the edit's.
            None if d.edited_from.is_some() && !d.rationale.is_empty() => {
                format!("edited; why it was first proposed: {}", d.rationale)
            }
            None => d.rationale.clone(),
        };
        let proposed = d.edited_from.as_ref().map(|from| format!(" (proposed {})", action_text(from)));
        let standing = match (here.standing(), app.story(target)) {
            (Standing::InForce { .. } | Standing::Leaving { .. } | Standing::RolledBack, Some(story)) => story,
            (standing, _) => word(standing),
        };
        let [ms, quality] = forecast(app, d);
        t.row([
            target.to_string(),
            builds(here),
            standing,
            action_text(&d.action) + &proposed.unwrap_or_default(),
            d.author.to_string(),
            why,
            becomes(app, target, &d.action),
            ms,
            quality,
            measured(app, here, target).unwrap_or_default(),
        ]);
    }
    let forecast = plan.iter().any(|(_, p)| p.shown().is_some_and(|d| d.forecast.is_some()));
    let rows = t.rows.iter().any(|r| r.cells.last().is_some_and(|c| !c.is_empty()));
    let notes = [
        forecast.then_some(
            "forecasts are of each decision alone, as it was proposed, against the original: those of a plan do not add up",
        ),
        rows.then_some(
            "its rows: what the layers that it touches take in the original and in the newest profiled model, measured; other decisions on them are in it too",
        ),
    ];
    let section = Section::new("Decisions").table(t).list(notes.into_iter().flatten().map(Words::from));
    (!section.parts.is_empty()).then_some(section)
}

pub fn repairs(app: &App) -> Vec<Section> {
    let of = |r: &Round| {
        let mut t = Table::new(["step", "loss at its place before", "after", "kept", "s"]);
        for p in &r.repairs {
            let kept = if p.kept { "yes" } else { "reverted" };
            let figures = [p.loss_before, p.loss_after].map(|v| format!("{v:.4}"));
            let [before, after] = figures;
            t.row([p.name.clone(), before, after, kept.to_owned(), format!("{:.1}", p.seconds)]);
        }
        Section::new(format!("Repairs of round {}", r.number)).table(t)
    };
    app.state.rounds.iter().filter(|r| !r.repairs.is_empty()).map(of).collect()
}

pub fn healing(r: &Round) -> Option<Section> {
    let course = r.course.as_ref()?;
    let mut t = Table::new(["step", "divergence on held-back images", "of the original's classes", "kept"]);
    for look in &course.looks {
        let kept = if look.step == course.best.step { "yes" } else { "" };
        let agreement = format!("{:.2} %", 100.0 * look.agreement);
        t.row([look.step.to_string(), format!("{:.4}", look.loss), agreement, kept.to_owned()]);
    }
    Some(Section::new(format!("Healing of round {}", r.number)).table(t))
}

pub fn controller(app: &App) -> Option<Section> {
    let c = app.state.control.as_ref()?;
    let mut t = Table::new([
        "level",
        "MB a token",
        "of the whole's",
        "time (95 %)",
        "KL where it learnt",
        "MLPs whole/narrow/gone",
    ]);
    for (i, l) in c.levels.iter().enumerate() {
        let (time, [whole, narrow, gone]) = (l.time, l.mlps);
        t.row([
            i.to_string(),
            num::scaled(l.bytes as f64, 1e6),
            format!("{:.1} %", 100.0 * l.share),
            format!("{} [{}, {}]", num::factor(time.value), num::factor(time.low), num::factor(time.high)),
            format!("{:.4}", l.divergence),
            format!("{whole}/{narrow}/{gone}"),
        ]);
    }
    let (kl, time) = c.promised;
    let words = format!(
        "By {}, seed {}, for {} of the whole network's time a token; where it learnt ({} tokens) KL {kl:.4} at {}. Timed on {}.",
        c.learner.label(),
        c.seed,
        num::factor(c.target),
        c.taught,
        num::factor(time),
        c.device
    );
    Some(Section::new(format!("Controller of {}", c.whose())).table(t).words(words))
}

/// Every layer of the newest profiled model, beside the original's time.
pub fn layers(app: &App) -> Option<Section> {
    let t = &app.table;
    let of = match t.of_round {
        None => "not measured".to_owned(),
        Some(0) => "the original".to_owned(),
        Some(round) => format!("round {round}"),
    };
    let run = match t.workload {
        Workload::Pass => String::new(),
        Workload::Decode { context, .. } => format!(", one token after {context}"),
    };
    let none = || "—".to_owned();
    let original = t.of_round.filter(|r| *r > 0).and_then(|_| app.state.profile_of(0));
    let columns =
        ["layer", "kind", "original p50 ms", "p50 ms", "share %", "precision", "MB", "MACs M", "params", "kernel"];
    let mut table = Table::new(columns);
    for l in &t.layers {
        let first = original.and_then(|p| Some((p, p.rows.iter().find(|r| r.name == l.name)?)));
        let before = first.map_or(String::new(), |(p, r)| num::ms(p.ms(r)) + num::mark(r.doubt.is_some()));
        if l.gone {
            let cells = [l.name.clone(), l.kind.clone(), before, "gone".to_owned()].into_iter();
            table.row(cells.chain(std::iter::repeat_n(String::new(), columns.len() - 4)));
            continue;
        }
        let now = l.row.as_ref().map(|r| r.precision.label());
        let precision = match (first.map(|(_, r)| r.precision.label()), now) {
            (Some(was), Some(is)) if was != is => format!("{was} → {is}"),
            (_, is) => is.unwrap_or_default().to_owned(),
        };
        table.row([
            l.name.clone(),
            l.kind.clone(),
            before,
            l.fig.p50.map_or_else(none, |v| num::ms(v) + num::mark(l.fig.doubtful)),
            l.fig.share.map_or_else(none, |s| format!("{:.1}", s * 100.0)),
            precision,
            num::scaled(l.fig.bytes as f64, 1e6),
            num::scaled(l.fig.macs.get(app.settings.mac_convention) as f64, 1e6),
            num::count(l.fig.params),
            l.row.as_ref().map_or(String::new(), |r| r.kernel.clone()),
        ]);
    }
    let profiled = t.of_round.and_then(|r| app.state.profile_of(r)).filter(|_| t.workload == Workload::Pass);
    let doubts = profiled.into_iter().flat_map(doubts).map(|d| Words::from(format!("in doubt: {d}")));
    let section = Section::new(format!("Layers ({of}{run})")).table(table).list(doubts);
    (!section.parts.is_empty()).then_some(section)
}
