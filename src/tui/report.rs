//! The session as Markdown, and any pane as plain text: what is copied is what is shown, with whole tables.

use super::app::{App, Pane, View};
use super::list::RowRef;
use super::num;
use super::standing::{builds, word};
use crate::config::text::{clean, clean_lines};
use crate::graph::experts;
use crate::profile::Workload;
use crate::session::{Evaluation, Standing, action_text, apart, part};
use crate::words::{counted, counted_as};
use std::fmt::Write;

/// The report: model, budget, rounds, decisions in force, refused ones, movers, layers.
pub fn markdown(app: &App) -> String {
    let s = &app.state;
    let mut o = String::new();
    let Some(card) = &s.card else { return "# paring\n\nno session yet\n".into() };
    let cell = |t: &str| clean(t).replace('|', "\\|");
    let _ = writeln!(o, "# {}\n", cell(&card.model.name));
    let _ = writeln!(
        o,
        "- model `{}`, {} {}, BLAKE3 `{}`",
        cell(&card.model.source.display().to_string()),
        card.model.classes,
        if card.graph.is_language_model() { "tokens in its vocabulary" } else { "classes" },
        cell(&card.model.hash)
    );
    let _ = writeln!(
        o,
        "- evaluated on {} ({}), calibrated on {} ({})",
        cell(&card.data.name),
        card.metric().items(card.data.images),
        cell(&card.calib.name),
        card.metric().items(card.calib.images)
    );
    // Text is not prepared.
    if !card.graph.is_language_model() {
        let p = &card.model.preprocess;
        let three = |v: [f32; 3]| v.map(|x| x.to_string()).join(", ");
        let _ = writeln!(
            o,
            "- images prepared to {}x{} with mean {} and deviation {} ({}{})",
            p.size[0],
            p.size[1],
            three(p.mean),
            three(p.std),
            cell(&p.origin),
            if p.assumed() { ": **assumed**, `--mean` and `--std` say otherwise" } else { "" }
        );
    }
    for note in card.device_note.iter().chain(&experts::counted(&card.graph)) {
        let _ = writeln!(o, "- {}", cell(note));
    }
    if card.calib_is_eval {
        let item = card.metric().item;
        let _ = writeln!(o, "- **calibration {item}s are evaluation {item}s: accuracy figures are flattered**");
    }
    let _ = writeln!(
        o,
        "- {}{}, batch {}, seed {}, paring {}",
        cell(&card.device),
        // A CPU's name has them already.
        if card.device.contains(" thread") { String::new() } else { format!(", {}", counted(card.threads, "thread")) },
        card.batch,
        card.seed,
        cell(&card.version)
    );
    let budget = s.budget.to_string();
    let _ = writeln!(o, "- budget {}\n", if budget.is_empty() { "none".to_owned() } else { format!("`{budget}`") });

    let metric = s.metric();
    let digits = metric.digits;
    let first = s.rounds.iter().filter_map(|r| r.evaluation.as_ref()).find_map(|e| e.metrics.others.first());
    let other = first.map_or(String::new(), |r| cell(&format!("{} {}", r.name, r.unit)));
    let columns = format!(
        "round | {} | change (95 %) | {other} | loss | ms | of original (95 %) | MB | MACs M | params | verdict",
        cell(&metric.title())
    );
    heading(&mut o, "## Rounds", &columns);
    for r in &s.rounds {
        let Some(e) = &r.evaluation else { continue };
        let change = r.verdict.as_ref().map_or(String::new(), |v| {
            let ends = num::range(&metric, (v.d_quality_low, v.d_quality_high), ", ");
            format!("{} {ends}", num::signed(metric.shown(v.d_quality), digits))
        });
        let mark = num::mark(e.doubt.is_some());
        let factor = e.latency().filter(|_| r.number > 0).map_or(String::new(), |f| {
            let range = format!("[{}, {}]", num::factor(f.low), num::factor(f.high));
            format!("{}{mark} {range} of {} ms", num::factor(f.value), num::ms(e.baseline_ms))
        });
        let verdict = match (&r.rolled_back, &r.verdict) {
            (Some(why), _) => format!("rolled back: {}", cell(why)),
            (None, Some(v)) => {
                format!("{}{}", v.label(), if r.accepted { ", accepted" } else { "" })
            }
            (None, None) => String::new(),
        };
        let further = e.metrics.others.first().map_or(String::new(), |r| format!("{:.2}", r.score * r.scale));
        let _ = writeln!(
            o,
            "| {} | {:.digits$} | {change} | {further} | {:.4} | {} | {factor} | {} | {} | {} | {verdict} |",
            if r.number == 0 { "baseline".to_owned() } else { r.number.to_string() },
            metric.value(e.metrics.score),
            e.metrics.loss,
            num::ms(e.ms().unwrap_or(f64::NAN)) + mark,
            num::scaled(e.weight_bytes as f64, 1e6),
            num::scaled(e.macs.get(app.settings.mac_convention) as f64, 1e6),
            num::count(e.params),
        );
    }
    let part = |e: &Evaluation| part(e).map(|words| format!("round {}: {words}, on items drawn at random", e.round));
    let beside = s.rounds.iter().filter_map(|r| r.evaluation.as_ref()).flat_map(|e| [apart(e), part(e)]);
    let beside: String = beside.flatten().map(|t| format!("- {t}\n")).collect();
    if !beside.is_empty() {
        let _ = writeln!(o, "\n{}", beside.trim_end());
    }
    decisions(app, &mut o, &cell);
    repairs(app, &mut o, &cell);
    healings(app, &mut o);
    controller(app, &mut o, &cell);
    layers(app, &mut o, &cell);
    o
}

/// A title and the head of a table whose columns have these names.
fn heading(o: &mut String, title: &str, columns: &str) {
    let rules = vec!["---"; columns.split(" | ").count()].join(" | ");
    let _ = writeln!(o, "{title}\n\n| {columns} |\n| {rules} |");
}

fn decisions(app: &App, o: &mut String, cell: &dyn Fn(&str) -> String) {
    let s = &app.state;
    let plan = s.plan();
    let plan: Vec<_> = plan.into_iter().filter(|(_, p)| p.standing() != Standing::Free).collect();
    if plan.is_empty() {
        return;
    }
    heading(o, "\n## Decisions", "target | the next run builds | standing | decided | author | why");
    for (target, here) in plan {
        let Some(d) = here.shown() else { continue };
        let mut why = cell(&d.rationale);
        if let Some(r) = d.veto_reason.as_deref().filter(|r| !r.is_empty()) {
            why = format!("vetoed: {}", cell(r));
        }
        let mut action = action_text(&d.action);
        if let Some(from) = &d.edited_from {
            let _ = write!(action, " (proposed {})", action_text(from));
        }
        let standing = match (here.standing(), app.story(target)) {
            (Standing::InForce { .. } | Standing::Leaving { .. } | Standing::RolledBack, Some(story)) => story,
            (standing, _) => word(standing),
        };
        let _ = writeln!(
            o,
            "| {} | {} | {} | {action} | {} | {why} |",
            cell(&target.to_string()),
            builds(&here),
            cell(&standing),
            cell(&d.author.to_string())
        );
    }
    if !s.constraints.is_empty() {
        let _ = writeln!(
            o,
            "\n{} later proposals.",
            counted_as(s.constraints.len(), "constraint binds", "constraints bind")
        );
    }
}

fn repairs(app: &App, o: &mut String, cell: &dyn Fn(&str) -> String) {
    for r in app.state.rounds.iter().filter(|r| !r.repairs.is_empty()) {
        let title = format!("\n## Repairs of round {}", r.number);
        heading(o, &title, "step | loss at its place before | after | kept | s");
        for p in &r.repairs {
            let kept = if p.kept { "yes" } else { "reverted" };
            let _ = writeln!(
                o,
                "| {} | {:.4} | {:.4} | {kept} | {:.1} |",
                cell(&p.name),
                p.loss_before,
                p.loss_after,
                p.seconds
            );
        }
    }
}

fn healings(app: &App, o: &mut String) {
    for r in &app.state.rounds {
        let Some(course) = &r.course else { continue };
        let title = format!("\n## Healing of round {}", r.number);
        heading(o, &title, "step | divergence on held-back images | of the original's classes | kept");
        for look in &course.looks {
            let kept = if look.step == course.best.step { "yes" } else { "" };
            let _ = writeln!(o, "| {} | {:.4} | {:.2} % | {kept} |", look.step, look.loss, 100.0 * look.agreement);
        }
    }
}

fn controller(app: &App, o: &mut String, cell: &dyn Fn(&str) -> String) {
    let Some(c) = &app.state.control else { return };
    let title = format!("\n## Controller of {}", c.whose());
    heading(
        o,
        &title,
        "level | MB a token | of the whole's | time (95 %) | KL where it learnt | MLPs whole/narrow/gone",
    );
    for (i, l) in c.levels.iter().enumerate() {
        let (t, [whole, narrow, gone]) = (l.time, l.mlps);
        let _ = writeln!(
            o,
            "| {i} | {} | {:.1} % | {} [{}, {}] | {:.4} | {whole}/{narrow}/{gone} |",
            num::scaled(l.bytes as f64, 1e6),
            100.0 * l.share,
            num::factor(t.value),
            num::factor(t.low),
            num::factor(t.high),
            l.divergence
        );
    }
    let (kl, time) = c.promised;
    let _ = writeln!(
        o,
        "\nBy {}, seed {}, for {} of the whole network's time a token; where it learnt ({} tokens) KL {kl:.4} at {}. Timed on {}.",
        c.learner.label(),
        c.seed,
        num::factor(c.target),
        c.taught,
        num::factor(time),
        cell(&c.device)
    );
}

fn layers(app: &App, o: &mut String, cell: &dyn Fn(&str) -> String) {
    let t = &app.table;
    if t.layers.is_empty() {
        return;
    }
    let of = t
        .of_round
        .map_or("not measured".to_owned(), |r| if r == 0 { "the original".into() } else { format!("round {r}") });
    let columns = "layer | kind | p50 ms | share % | MB | MACs M | params | kernel";
    let run = match t.workload {
        Workload::Pass => String::new(),
        Workload::Decode { context, .. } => format!(", one token after {context}"),
    };
    heading(o, &format!("\n## Layers ({of}{run})"), columns);
    for l in t.layers.iter().filter(|l| !l.gone) {
        let _ = writeln!(
            o,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            cell(&l.name),
            cell(&l.kind),
            l.fig.p50.map_or("—".into(), |v| num::ms(v) + num::mark(l.fig.doubtful)),
            l.fig.share.map_or("—".into(), |s| format!("{:.1}", s * 100.0)),
            num::scaled(l.fig.bytes as f64, 1e6),
            num::scaled(l.fig.macs.get(app.settings.mac_convention) as f64, 1e6),
            num::count(l.fig.params),
            cell(l.row.as_ref().map_or("", |r| &r.kernel))
        );
    }
}

impl App {
    /// The text of the pane that has the keys, for copying.
    pub fn pane_text(&self) -> String {
        let mut o = String::new();
        match (self.view, self.pane) {
            (View::Review, Pane::Layers) => {
                for r in &self.list.shown {
                    let name = match *r {
                        RowRef::Block(b) => self.table.blocks.get(b).map(|b| b.label.clone()),
                        RowRef::Layer(i) => self.table.layers.get(i).map(|l| format!("  {}", clean(&l.name))),
                    };
                    let (Some(name), Some(f)) = (name, r.figures(&self.table)) else { continue };
                    let _ = writeln!(
                        o,
                        "{name}\t{}\t{}\t{}\t{}",
                        f.p50.map_or("-".into(), num::ms),
                        num::scaled(f.bytes as f64, 1e6),
                        num::scaled(f.macs.get(self.settings.mac_convention) as f64, 1e6),
                        num::count(f.params)
                    );
                }
            }
            (View::Review, Pane::Agents) | (View::Agents, _) => {
                for t in &self.turns {
                    let _ = writeln!(o, "## {} {}", t.role, t.model);
                    for (reasoning, text) in &t.pieces {
                        let _ = writeln!(o, "{}{text}", if *reasoning { "(reasoning) " } else { "" });
                    }
                }
            }
            (View::Review, Pane::Decision) => {
                for s in self.row_shown() {
                    let _ = writeln!(
                        o,
                        "{}: {} ({})",
                        clean(&s.target.to_string()),
                        action_text(&s.action),
                        word(s.standing)
                    );
                    if let Some(d) = s.id.and_then(|id| self.state.decision(id)) {
                        let _ = writeln!(o, "  by {}: {}", clean(&d.author.to_string()), clean_lines(&d.rationale));
                    }
                }
            }
            (View::Timeline, _) => {
                for e in &self.state.timeline {
                    let undone = if e.undone { " (undone)" } else { "" };
                    let _ = writeln!(o, "{}\t{}\t{}{undone}", e.seq, num::clock(e.at_ms), clean(&e.text));
                }
            }
            (View::Control, _) => {
                for line in super::draw::control::lines(self, 120) {
                    let _ = writeln!(o, "{}", line.to_string().trim_end());
                }
            }
            (View::Plans, _) => {
                for line in super::draw::plans::lines(self, 120) {
                    let _ = writeln!(o, "{}", line.to_string().trim_end());
                }
            }
            (View::Inspect, _) => {
                for line in super::draw::inspect::lines(self, 120) {
                    let _ = writeln!(o, "{}", line.to_string().trim_end());
                }
            }
            (View::Profile, _) => {
                for line in super::draw::profile::lines(self, 120) {
                    let _ = writeln!(o, "{}", line.to_string().trim_end());
                }
            }
            (View::Evaluate | View::Report, _) => o = markdown(self),
        }
        o
    }
}
