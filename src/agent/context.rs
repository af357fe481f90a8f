//! What a role is told: the session as compact text tables, cut to a given size. Pure.
//!
//! Names and notes come from files and people: they are cleaned and bounded here, because they travel to a server and
//! come back on the screen. Order of sacrifice when room is short: rows of small cost, then history, then notes.

use super::table::{Row, short, table};
use super::{clean, critic};
use crate::graph::Graph;
use crate::plan::{Action, Author, Basis, Cost, Decision, Forecaster, Limit, Target};
use crate::profile::{BROKEN, Profile, SensCurve, SensTarget};
use crate::quant::Precision;
use crate::session::{Ask, Role, Share, State, Table};
use crate::words::{counted, counted_as};
use std::fmt::Write;

/// Characters of context that a prompt gets unless told otherwise: about 8,000 tokens, which small local servers hold.
pub const DEFAULT_ROOM: usize = 24_000;
/// Below this a context says too little to be worth asking.
pub const LEAST_ROOM: usize = 800;

/// The facts for `role` in about `room` characters (the head, which is small and bounded, may exceed a tiny room).
pub fn context(state: &State, role: &Role, room: usize) -> String {
    let Some(card) = &state.card else { return "No session is open.".into() };
    let mut out = head(state);
    out.push_str(&constraints(state, room / 6));
    out.push_str(&notes(state, room / 8));
    if role.proposes() && !state.notes.is_empty() {
        out.push_str(super::suggest::HINT);
    }
    out.push_str(&history(state, room / 8));
    if role.task == Ask::Propose {
        out.push_str(&last_critique(state, room / 16));
    }
    let Some(profile) = state.rounds.first().and_then(|r| r.profile.as_ref()) else {
        out.push_str("\nNo profile has been measured yet.\n");
        return out;
    };
    let Some(forecaster) = state.forecaster() else { return out };
    let facts = Facts { state, graph: &card.graph, profile, forecaster: &forecaster, base: forecaster.costs.base() };
    out.push_str(&facts.standing(room / 8));
    let left = room.saturating_sub(out.chars().count()).max(LEAST_ROOM / 2);
    let share = |table, share| match share {
        Share::Part(of) => Some(facts.table(table, left / of)),
        Share::Most(most) => Some(facts.table(table, left.min(most))),
        Share::Rest => None,
    };
    let tables: Vec<Option<String>> = role.reads.iter().map(|(table, of)| share(*table, *of)).collect();
    let rest = left.saturating_sub(tables.iter().flatten().map(|t| t.chars().count()).sum());
    for ((table, _), text) in role.reads.iter().zip(tables) {
        out.push_str(&text.unwrap_or_else(|| facts.table(*table, rest)));
    }
    out
}

/// What came of `model`'s proposals so far, for a role that proposes, and how to say what it expects.
pub fn standing(state: &State, role: &Role, model: &str) -> String {
    if role.task != Ask::Propose || !role.proposes() {
        return String::new();
    }
    let metric = state.metric();
    let unit = if metric.change_unit.is_empty() { String::new() } else { format!("in {} ", metric.change_unit) };
    let worse = if metric.scale < 0.0 { "positive" } else { "negative" };
    let mut out = format!(
        "\n## What you expect, and what came\nWith the proposal goes `expect`: the change of {} {unit}that you expect of the plan as it then \
         stands, once it is built and re-fitted ({worse} is worse). It is shown to the engineer and kept with what is measured.\n",
        metric.name
    );
    let author = Author::Agent { role: role.name.to_owned(), model: model.to_owned() };
    if let Some(words) = state.standing_words(&author) {
        let _ = writeln!(out, "Your record: {words}.");
    }
    out
}

fn head(state: &State) -> String {
    let mut out = String::new();
    let Some(card) = &state.card else { return out };
    let name = clean::line(&card.model.name, 80);
    let _ = writeln!(out, "# The session");
    let data = match clean::line(&card.data.name, 80) {
        name if name.is_empty() => String::new(),
        name => format!("evaluated on {name}, "),
    };
    let _ = writeln!(
        out,
        "model {name} ({:?}), {} {}; {data}calibrated on {}; device {}, {}, batch {}",
        card.model.family,
        card.model.classes,
        if state.metric().chance.is_some() { "classes" } else { "outputs" },
        clean::line(&card.calib.name, 80),
        clean::line(&card.device, 80),
        counted(card.threads, "thread"),
        card.batch
    );
    let (item, items) = if card.model.family.of_text() { ("a text", "texts") } else { ("an image", "images") };
    if let Some(p) = state.rounds.first().and_then(|r| r.profile.as_ref()) {
        let _ = writeln!(
            out,
            "original: {} ms a batch, {} M MACs {item}, {} k parameters, {} KiB of weights",
            short(p.whole.p50),
            short(p.macs.conv_linear as f64 / 1e6),
            short(p.params as f64 / 1e3),
            short(p.weight_bytes as f64 / 1024.0)
        );
    }
    if let Some(e) = state.baseline() {
        let (metric, n) = (card.metric(), e.metrics.n);
        let _ = writeln!(out, "original {}: {} of {n} {items}", metric.name, metric.value_words(e.metrics.score));
    }
    if !state.sensitivity.curves.is_empty() {
        let s = &state.sensitivity;
        let metric = card.metric();
        let (loss, value) = (short(s.base_loss), metric.value_words(s.base_score));
        let _ = writeln!(out, "on calibration data: loss {loss}, {} {value}", metric.name);
    }
    let budget = state.budget.to_string();
    let budget = if budget.is_empty() { "none set: aim at macs=0.7 without visible loss".to_owned() } else { budget };
    let _ = writeln!(out, "budget: {budget}\nround {}", state.round.max(1));
    out
}

fn constraints(state: &State, room: usize) -> String {
    let row = |c: &crate::plan::Constraint| {
        let what = match c.limit {
            Limit::Freeze => match c.target {
                Target::Group(_) => "do not cut".to_owned(),
                Target::Layer(_) => "leave its precision".to_owned(),
                Target::Block(_) => "do not remove".to_owned(),
                Target::Weights(_) => "no zeros, no factors".to_owned(),
            },
            Limit::MaxRatio { ratio } => format!("remove at most {}", short(ratio)),
            Limit::MinRatio { ratio } => format!("remove at least {}", short(ratio)),
            Limit::KeepF32 => "keep f32".to_owned(),
            Limit::Together { ref set } => format!("decide alike with all of {}", clean::line(set, 80)),
            Limit::Prefer { wish } => format!("{wish} (a wish)"),
        };
        let reason = clean::line(&c.reason, 160);
        Row { weight: 0.0, text: format!("{} | {what} | {reason}", clean::line(&c.target.to_string(), 100)) }
    };
    // The newest matter most; a stable sort keeps their order.
    let rows = state.constraints.iter().rev().map(row).collect();
    table("Constraints set by the engineer (the program enforces them)", "target | limit | reason", rows, room)
}

fn notes(state: &State, room: usize) -> String {
    let row =
        |(round, text): &(u32, String)| Row { weight: 0.0, text: format!("{round} | {}", clean::line(text, 400)) };
    table("The engineer's notes (newest first)", "round | note", state.notes.iter().rev().map(row).collect(), room)
}

/// One line a measured round.
fn history(state: &State, room: usize) -> String {
    let Some(base) = state.baseline() else { return String::new() };
    let metric = state.metric();
    let over = |a: u64, b: u64| if b > 0 { short(a as f64 / b as f64) } else { "?".into() };
    let row = |r: &crate::session::Round| {
        let e = r.evaluation.as_ref()?;
        let fate = match (&r.rolled_back, r.accepted, &r.verdict) {
            (Some(why), _, _) => format!("rolled back: {}", clean::line(why, 120)),
            (None, true, _) => "accepted".into(),
            (None, false, Some(v)) => format!("{:?}", v.outcome).to_lowercase(),
            (None, false, None) => "measured".into(),
        };
        let d = r.verdict.as_ref().map_or("?".into(), |v| {
            let (digits, (low, high)) = (metric.digits, metric.shown_range(v.d_quality_low, v.d_quality_high));
            format!("{:+.digits$} [{low:+.digits$},{high:+.digits$}]", metric.shown(v.d_quality))
        });
        let latency = e.latency().map_or_else(|| "?".into(), |l| short(l.value));
        let text = format!(
            "{} | {d} | {} | {} | {} | {latency} | {fate}",
            r.number,
            over(e.macs.conv_linear, base.macs.conv_linear),
            over(e.weight_bytes, base.weight_bytes),
            over(e.params, base.params),
        );
        Some(Row { weight: 0.0, text })
    };
    let rows: Vec<Row> = state.rounds.iter().skip(1).rev().filter_map(row).collect();
    let unit = Some(&metric.change_unit).filter(|u| !u.is_empty()).map(|u| format!(" in {u}")).unwrap_or_default();
    table(
        "Rounds measured so far (newest first; factors of the original)",
        &format!("round | {} change{unit} | macs | memory | params | latency | outcome", metric.name),
        rows,
        room,
    )
}

/// What the newest measured round taught about the forecasts.
fn last_critique(state: &State, room: usize) -> String {
    let newest = state.rounds.iter().rev().find_map(|r| critic::compare(state, r.number));
    newest.map_or(String::new(), |c| {
        let text = clean::cut(&c.to_string(), room.max(500));
        format!("\n## Forecast against measurement, round {}\n{text}\n", c.round)
    })
}

/// The tables that need costs.
struct Facts<'a> {
    state: &'a State,
    graph: &'a Graph,
    profile: &'a Profile,
    forecaster: &'a Forecaster,
    base: Cost,
}

/// What an action saves, in percent of the original's latency, MACs, parameters and bytes.
struct Saved {
    latency: f64,
    macs: f64,
    params: f64,
    bytes: f64,
}

impl Facts<'_> {
    fn table(&self, table: Table, room: usize) -> String {
        match table {
            Table::Layers => self.layers(room),
            Table::Groups => self.groups(room),
            Table::Blocks => self.blocks(room),
            Table::Precisions => self.precisions(room),
        }
    }

    fn saved(&self, target: Target, action: Action) -> Option<Saved> {
        let new = self.forecaster.costs.cost(&[(target, action)]).ok()?;
        let part = |old: f64, new: f64| if old > 0.0 { 100.0 * (old - new) / old } else { 0.0 };
        Some(Saved {
            latency: part(self.base.latency_ms, new.latency_ms),
            macs: part(self.base.macs as f64, new.macs as f64),
            params: part(self.base.params as f64, new.params as f64),
            bytes: part(self.base.bytes as f64, new.bytes as f64),
        })
    }

    /// What is decided already, and how far it reaches.
    fn standing(&self, room: usize) -> String {
        let given = self.state.given();
        if given.is_empty() {
            return String::new();
        }
        let (f, metric) = (self.forecaster.plan(&given), self.state.metric());
        let row = |d: &&Decision| {
            let here = self.state.planned(&d.target);
            let how = match (here.approved, here.in_force) {
                (Some(a), _) if a.id == d.id => "approved".to_owned(),
                (_, Some((i, since))) if i.id == d.id => format!("in force since round {since}"),
                _ => "the engineer's own, not approved yet".to_owned(),
            };
            Row { weight: 0.0, text: format!("{} | {how}", decision_line(d)) }
        };
        let mut out = table(
            "What the next run builds, and the engineer's own decisions (what is in force stays unless you propose \
             otherwise for the same target; the others stand)",
            "target | action | by | standing",
            given.iter().map(row).collect(),
            room,
        );
        let _ = writeln!(
            out,
            "together, by forecast: latency {} macs {} memory {} params {} {} {}",
            short(f.latency.value),
            short(f.macs.value),
            short(f.memory.value),
            short(f.params.value),
            metric.name,
            match f.quality.basis {
                Basis::Unmeasured => "unmeasured".to_owned(),
                basis => format!(
                    "{} {} ({})",
                    metric.change_words(f.quality.value),
                    metric.range_words(f.quality.low, f.quality.high),
                    basis.label()
                ),
            }
        );
        out
    }

    fn layers(&self, room: usize) -> String {
        let total = self.profile.macs.conv_linear.max(1) as f64;
        let rows = self.profile.rows.iter().map(|r| Row {
            weight: r.share,
            text: format!(
                "{} | {} | {} | {} | {} | {} | {} | {:?} | {}",
                clean::line(&r.name, 80),
                clean::line(&r.kind, 40),
                short(self.profile.ms(r)) + if r.doubt.is_some() { "?" } else { "" },
                short(100.0 * r.share),
                short(100.0 * r.macs.conv_linear as f64 / total),
                short(r.weight_bytes as f64 / 1024.0),
                short(r.activation_bytes as f64 / 1024.0),
                r.bound,
                r.precision.label(),
            ),
        });
        table(
            "Layers as measured (by latency; ? = in doubt, do not decide on it)",
            "layer | kind | ms | latency % | MACs % | weights KiB | output KiB | bound | precision",
            rows.collect(),
            room,
        )
    }

    fn groups(&self, room: usize) -> String {
        let groups = self.state.card.iter().flat_map(|c| &c.groups);
        let mut protected = 0;
        let mut rows = Vec::new();
        for g in groups {
            if g.protected.is_some() {
                protected += 1;
                continue;
            }
            let target = Target::Group(g.id.clone());
            let half = Action::Prune { ratio: g.ratio_of(g.kept_at(0.5)), kept: Vec::new() };
            let saved = self.saved(target.clone(), half);
            let cells = saved.as_ref().map_or("? | ? | ?".into(), |s| {
                format!("{} | {} | {}", short(s.latency), short(s.macs), short(s.params))
            });
            let curve = self.state.sensitivity.get(&SensTarget::Group(g.id.clone()));
            rows.push(Row {
                weight: saved.map_or(0.0, |s| s.macs.max(s.latency) / 100.0),
                text: format!(
                    "{} | {:?} | {} | {} | {cells} | {}",
                    clean::line(&g.id, 80),
                    g.kind,
                    g.size,
                    g.granule,
                    points(curve)
                ),
            });
        }
        let mut out = table(
            "Groups that can be pruned (by what half of them saves)",
            "group | kind | units | step | saves at 0.5 in % of the model: latency | MACs | params | ratio: KL in nats after the re-fit, ...",
            rows,
            room,
        );
        if protected > 0 {
            let protected = counted_as(protected, "further group is", "further groups are");
            let _ = writeln!(out, "({protected} protected and cannot be pruned)");
        }
        out
    }

    fn blocks(&self, room: usize) -> String {
        let rows = self.graph.blocks.iter().filter(|b| !b.residual.is_empty()).filter_map(|b| {
            let saved = self.saved(Target::Block(b.name.clone()), Action::RemoveBlock)?;
            let curve = self.state.sensitivity.get(&SensTarget::Block(b.name.clone()));
            Some(Row {
                weight: saved.macs / 100.0,
                text: format!(
                    "{} | {} | {} | {} | {}",
                    clean::line(&b.name, 80),
                    short(saved.latency),
                    short(saved.macs),
                    short(saved.params),
                    one(curve)
                ),
            })
        });
        table(
            "Residual blocks that can be removed whole",
            "block | saves in % of the model: latency | MACs | params | KL in nats when removed",
            rows.collect(),
            room,
        )
    }

    fn precisions(&self, room: usize) -> String {
        let int8 = Precision::Int8;
        let rows = self.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear()).filter_map(|n| {
            let saved = self.saved(Target::Layer(n.name.clone()), Action::Precision { precision: int8 })?;
            let curve = self.state.sensitivity.get(&SensTarget::Layer(n.name.clone(), int8));
            let row = self.profile.rows.iter().find(|r| r.name == n.name || r.fused.contains(&n.name));
            Some(Row {
                weight: (saved.bytes.max(saved.latency) / 100.0).max(0.0),
                text: format!(
                    "{} | {} | {} | {} | {} | {}",
                    clean::line(&n.name, 80),
                    clean::line(&crate::graph::describe(&n.op), 40),
                    row.map_or("?".into(), |r| short(100.0 * r.share)),
                    short(saved.latency),
                    short(saved.bytes),
                    one(curve)
                ),
            })
        });
        table(
            "Layers that can run in int8 (by what it saves)",
            "layer | kind | latency % | int8 saves in % of the model: latency | bytes | KL in nats in int8",
            rows.collect(),
            room,
        )
    }
}

/// One decision as a table row.
pub fn decision_line(d: &Decision) -> String {
    action_line(&d.target, &d.action) + &format!(" | {}", clean::line(&d.author.to_string(), 60))
}

/// Target and action as table cells.
pub fn action_line(target: &Target, action: &Action) -> String {
    let what = match action {
        Action::Keep => "keep".to_owned(),
        Action::Prune { ratio, .. } => format!("prune {}", short(*ratio)),
        Action::Precision { precision } => precision.label().to_owned(),
        Action::RemoveBlock => "remove".to_owned(),
        Action::Sparsify { sparsity } => sparsity.to_string(),
        Action::Factorise { rank } => format!("rank {rank}"),
    };
    format!("{} | {what}", clean::line(target.name(), 80))
}

/// A curve's sensitivities, from which the plan is made: calibration loss and accuracy barely move on training images.
fn points(curve: Option<&SensCurve>) -> String {
    let Some(c) = curve.filter(|c| !c.points.is_empty()) else { return "not measured".into() };
    let cell = |p: &crate::profile::SensPoint| format!("{}: {}", short(p.ratio), nats(p.kl));
    c.points.iter().filter(|p| p.ratio > 0.0).map(cell).collect::<Vec<_>>().join(", ")
}

fn one(curve: Option<&SensCurve>) -> String {
    let last = curve.and_then(|c| c.points.last());
    last.map_or("not measured".into(), |p| nats(p.kl))
}

/// A divergence with three significant digits: the small ones are what targets are told apart by.
fn nats(kl: f64) -> String {
    match kl {
        k if !k.is_finite() || k >= BROKEN => "broken".into(),
        k if k < 1e-6 => "0".into(),
        k if k < 0.1 => {
            let digits = (2.0 - k.log10().floor()).clamp(0.0, 8.0) as usize;
            format!("{k:.digits$}").trim_end_matches('0').to_owned()
        }
        k => short(k),
    }
}
