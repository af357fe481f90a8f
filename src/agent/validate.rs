//! Turns a parsed proposal into decisions that can stand, and says what is wrong with the rest.
//!
//! Invariants: every action has passed `plan::check` (constraints bind here, in code); every text is cleaned and
//! bounded; one broken entry never takes a good one with it. Not here: whether the plan meets the budget (the screen's
//! forecast says), which units are kept (the host resolves them by importance).

use super::clean;
use crate::config::text::glob;
use crate::graph::{Graph, Node};
use crate::plan::{self, Action, Constraint, Target, TargetKind};
use crate::prune::{Group, MemberRole};
use crate::quant::Precision;
use crate::session::Role;
use crate::words::counted_as;
use serde_json::{Map, Value};

/// Most decisions that one proposal may come to, wildcards expanded.
pub const MAX_DECISIONS: usize = 1024;
/// Most entries of a proposal that are read.
pub const MAX_ENTRIES: usize = 2048;
const MAX_WHY: usize = 280;
const MAX_SUMMARY: usize = 600;
const MAX_ERRORS: usize = 20;

/// What may be decided at all: the network's layers, blocks and groups, under the engineer's constraints.
#[derive(Debug, Clone, Copy)]
pub struct SearchSpace<'a> {
    pub graph: &'a Graph,
    pub groups: &'a [Group],
    pub constraints: &'a [Constraint],
    /// Precisions that the session's device refuses, each with why and what to do.
    pub refused: &'a [(Precision, String)],
}

/// A decision that can stand: checked, clamped, with its reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    pub target: Target,
    pub action: Action,
    pub why: String,
}

/// What became of a proposal.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Validated {
    pub drafts: Vec<Draft>,
    /// What the model got wrong, each naming its entry; worth a repair round.
    pub errors: Vec<String>,
    /// What was changed or passed over without need of repair (rounding, another role's business).
    pub remarks: Vec<String>,
    pub summary: String,
    /// What the author expects of the whole plan: change of the metric as it is shown.
    pub expects: Option<f64>,
    /// Rules that it offers to be made of the engineer's notes, as they came.
    pub rules: Vec<Value>,
}

/// How an entry's target matched: an explicit name beats a pattern on the same target.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Match {
    Pattern,
    Block,
    Name,
}

/// Validates the entries of `proposal` for `role`.
pub fn validate(proposal: &Map<String, Value>, role: &Role, space: SearchSpace<'_>) -> Validated {
    let mut out = Validated::default();
    if let Some(s) = proposal.get("summary").and_then(Value::as_str) {
        out.summary = clean::line(s, MAX_SUMMARY);
    }
    out.expects = expects(proposal).filter(|e| e.is_finite());
    out.rules = proposal.get("constraints").and_then(Value::as_array).cloned().unwrap_or_default();
    let entries = proposal.get("decisions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    if entries.len() > MAX_ENTRIES {
        out.remarks.push(format!("only the first {MAX_ENTRIES} of {} entries were read", entries.len()));
    }
    let mut found: Vec<(Draft, Match, usize)> = Vec::new();
    let mut left_out = 0usize;
    for (i, entry) in entries.iter().take(MAX_ENTRIES).enumerate() {
        let number = i + 1;
        match read(entry, role, space) {
            Ok(None) => left_out += 1,
            Ok(Some((list, errors))) => {
                out.errors.extend(errors.into_iter().map(|e| format!("decision {number}: {e}")));
                for (draft, how, asked) in list {
                    if let Some(remark) = clamped(&draft, asked) {
                        out.remarks.push(remark);
                    }
                    merge(&mut found, (draft, how, number), &mut out.errors);
                }
            }
            Err(e) => out.errors.push(format!("decision {number}: {e}")),
        }
        if found.len() > MAX_DECISIONS {
            found.truncate(MAX_DECISIONS);
            out.errors.push(format!("the proposal comes to more than {MAX_DECISIONS} decisions; the rest is dropped"));
            break;
        }
    }
    whole(&mut found, &mut out, role, space);
    if left_out > 0 {
        out.remarks
            .push(format!("{} left out: another role decides on them", counted_as(left_out, "entry", "entries")));
    }
    if out.errors.len() > MAX_ERRORS {
        let more = out.errors.len() - MAX_ERRORS;
        out.errors.truncate(MAX_ERRORS);
        out.errors.push(format!("… and {more} more of the kind"));
    }
    out.drafts = found.into_iter().map(|(d, _, _)| d).collect();
    out
}

/// What constraints ask of the whole of a role's plan, told once: the program sees to it either way.
fn whole(found: &mut [(Draft, Match, usize)], out: &mut Validated, role: &Role, space: SearchSpace<'_>) {
    if !found.iter().any(|(d, ..)| role.may(d.target.kind())) {
        return;
    }
    for (name, targets) in plan::ties(space.constraints) {
        let of: Vec<&Draft> = found.iter().map(|(d, ..)| d).filter(|d| targets.contains(&&d.target)).collect();
        let Some(first) = of.first() else { continue };
        if let Some(other) =
            of.iter().find(|d| !plan::same_cut(&plan::bare(d.action.clone()), &plan::bare(first.action.clone()), 0.05))
        {
            out.errors.push(format!(
                "`{}` and `{}` are kept together ({}) and must be decided alike; give all of them the same, whatever else is said to be accepted",
                clean::line(first.target.name(), 80),
                clean::line(other.target.name(), 80),
                clean::line(name, 80)
            ));
        }
    }
}

/// Adds a draft unless its target is taken: a name beats a pattern, equals are merged, contradictions are errors and
/// the first stands.
fn merge(found: &mut Vec<(Draft, Match, usize)>, new: (Draft, Match, usize), errors: &mut Vec<String>) {
    let Some(old) = found.iter_mut().find(|(d, _, _)| d.target == new.0.target) else {
        found.push(new);
        return;
    };
    if new.1 > old.1 {
        *old = new;
    } else if new.1 == old.1 && new.0.action != old.0.action {
        errors.push(format!(
            "decision {}: `{}` was already decided, differently, in decision {}; give each target once",
            new.2,
            new.0.target.name(),
            old.2
        ));
    }
}

/// A remark when the action that stands differs from the asked ratio by more than rounding to one percent.
fn clamped(draft: &Draft, asked: Option<f64>) -> Option<String> {
    let asked = asked?;
    let stands = match &draft.action {
        Action::Prune { ratio, .. } => *ratio,
        Action::Keep => 0.0,
        Action::Precision { .. } | Action::RemoveBlock | Action::Sparsify { .. } | Action::Factorise { .. } => {
            return None;
        }
    };
    let name = clean::line(draft.target.name(), 80);
    ((stands - asked).abs() > 0.01).then(|| format!("`{name}`: asked to remove {asked:.3}, stands at {stands:.3}"))
}

/// A decision as read, how it matched and the ratio that was asked for.
type Found = (Draft, Match, Option<f64>);

/// Drafts of one entry, and what was wrong with some of its targets; `None`: another role decides on them.
type Read = Option<(Vec<Found>, Vec<String>)>;

#[derive(Clone, Copy, PartialEq)]
enum Verb {
    Keep,
    Prune,
    Precision,
    RemoveBlock,
}

impl Verb {
    /// What it can be said of; `None`: of everything.
    fn changes(self) -> Option<TargetKind> {
        match self {
            Verb::Keep => None,
            Verb::Prune => Some(TargetKind::Group),
            Verb::Precision => Some(TargetKind::Layer),
            Verb::RemoveBlock => Some(TargetKind::Block),
        }
    }
}

fn read(entry: &Value, role: &Role, space: SearchSpace<'_>) -> Result<Read, String> {
    let entry = entry.as_object().ok_or("is not an object with `target` and `action`")?;
    let name = target_name(entry)?;
    let shown = clean::line(name, 80);
    let verb = verb(entry, &shown)?;
    let why = ["why", "reason", "rationale"].iter().find_map(|k| entry.get(*k)?.as_str());
    let why = clean::line(why.unwrap_or(""), MAX_WHY);
    if verb.changes().is_some_and(|kind| !role.may(kind)) {
        return Ok(None);
    }
    let action = match verb {
        Verb::Keep => Action::Keep,
        Verb::Prune => Action::Prune { ratio: ratio(entry, &shown)?, kept: Vec::new() },
        Verb::Precision => Action::Precision { precision: precision(entry, &shown)? },
        Verb::RemoveBlock => Action::RemoveBlock,
    };
    if let Some(why) = crate::plan::refusal(space.refused, &action) {
        return Err(format!("`{shown}`: {why}"));
    }
    let asked = if let Action::Prune { ratio, .. } = action { Some(ratio) } else { None };
    let (targets, how) = resolve(name, verb, role, space)?;
    let (mut drafts, mut errors) = (Vec::new(), Vec::new());
    for target in targets.into_iter().take(MAX_DECISIONS + 1) {
        match crate::plan::check(&action, &target, space.groups, space.graph, space.constraints) {
            Ok(action) => drafts.push((Draft { target, action, why: why.clone() }, how, asked)),
            // A pattern simply passes over what may not be touched.
            Err(_) if how != Match::Name => {}
            Err(e) => errors.push(clean::line(&e.to_string(), 300)),
        }
    }
    if drafts.is_empty() && errors.is_empty() {
        errors.push(format!("`{shown}` matches nothing that may be changed so"));
    }
    Ok(Some((drafts, errors)))
}

/// The name in `target`: a string, perhaps with the kind in front, or an object with `name` or `id`.
fn target_name(entry: &Map<String, Value>) -> Result<&str, String> {
    let value = ["target", "name", "layer", "group", "block", "id"].iter().find_map(|k| entry.get(*k));
    let name = match value {
        Some(Value::String(s)) => Some(s.as_str()),
        Some(Value::Object(o)) => ["name", "id"].iter().find_map(|k| o.get(*k)?.as_str()),
        _ => None,
    };
    let name = name.map(str::trim).filter(|n| !n.is_empty()).ok_or("has no `target` string")?;
    let bare = ["group ", "layer ", "block ", "group:", "layer:", "block:"].iter().find_map(|p| name.strip_prefix(p));
    Ok(bare.unwrap_or(name).trim().trim_matches('`'))
}

fn verb(entry: &Map<String, Value>, shown: &str) -> Result<Verb, String> {
    let word =
        entry.get("action").and_then(Value::as_str).map(|s| s.trim().to_ascii_lowercase().replace(['-', ' '], "_"));
    match word.as_deref() {
        Some("keep" | "skip" | "none") => Ok(Verb::Keep),
        Some("prune") => Ok(Verb::Prune),
        Some("precision" | "quantize" | "quantise") => Ok(Verb::Precision),
        Some("remove_block" | "remove" | "drop_block") => Ok(Verb::RemoveBlock),
        Some(other) => Err(format!(
            "`{shown}`: unknown action `{}`; use prune, precision, remove_block or keep",
            clean::line(other, 40)
        )),
        None => Err(format!("`{shown}` has no `action`; use prune, precision, remove_block or keep")),
    }
}

fn ratio(entry: &Map<String, Value>, shown: &str) -> Result<f64, String> {
    let value = entry.get("ratio").unwrap_or(&Value::Null);
    let number = match value {
        Value::Number(n) => n.as_f64(),
        Value::String(s) => match s.trim().strip_suffix('%') {
            Some(percent) => percent.trim().parse::<f64>().ok().map(|p| p / 100.0),
            None => s.trim().parse::<f64>().ok(),
        },
        _ => None,
    };
    let number =
        number.ok_or_else(|| format!("`{shown}`: `ratio` is missing or not a number; 0.25 removes a quarter"))?;
    if !number.is_finite() || !(0.0..1.0).contains(&number) {
        return Err(format!(
            "`{shown}`: ratio {number} is out of range; the part to remove lies in [0, 1), such as 0.25"
        ));
    }
    Ok(number)
}

/// The expected change: a number, perhaps in quotes and with its unit.
fn expects(proposal: &Map<String, Value>) -> Option<f64> {
    match ["expect", "expects", "expected"].iter().find_map(|k| proposal.get(*k))? {
        Value::Number(n) => n.as_f64(),
        Value::String(s) => s.split_whitespace().next()?.trim_end_matches('%').parse().ok(),
        _ => None,
    }
}

fn precision(entry: &Map<String, Value>, shown: &str) -> Result<Precision, String> {
    let word = ["precision", "to", "dtype"].iter().find_map(|k| entry.get(*k)?.as_str()).unwrap_or("");
    let known = || Precision::menu(false).iter().map(|p| p.label()).collect::<Vec<_>>().join(", ");
    match Precision::parse(word) {
        Some(precision) => Ok(precision),
        None if word.trim().is_empty() => Err(format!("`{shown}` names no `precision`; use one of {}", known())),
        None => Err(format!("`{shown}`: no precision `{}` here; use one of {}", clean::line(word, 40), known())),
    }
}

/// The targets that `name` means for this verb.
fn resolve(name: &str, verb: Verb, role: &Role, space: SearchSpace<'_>) -> Result<(Vec<Target>, Match), String> {
    let layers = || space.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear());
    let open = || space.groups.iter().filter(|g| g.protected.is_none());
    let block = space.graph.block(name);
    let the_block = block.map(|b| Target::Block(b.name.clone()));
    let of_layer = |n: &Node| Target::Layer(n.name.clone());
    let the_layer = layers().find(|n| n.name == name).map(of_layer);
    let named = |target: Target| (vec![target], Match::Name);
    let pattern = name.contains('*');
    if verb == Verb::RemoveBlock {
        let blocks = || space.graph.blocks.iter().map(|b| b.name.as_str());
        return the_block.map(named).ok_or_else(|| unknown("block", name, blocks()));
    }
    if verb == Verb::Precision || (verb == Verb::Keep && !role.may(TargetKind::Group)) {
        return match (the_layer, block) {
            (Some(layer), _) => Ok(named(layer)),
            (None, Some(b)) => {
                let inside = b.nodes.iter().filter_map(|id| space.graph.nodes.get(id.index()));
                Ok((inside.filter(|n| n.op.is_conv_or_linear()).map(of_layer).collect(), Match::Block))
            }
            (None, None) if pattern => {
                Ok((layers().filter(|n| glob(name, &n.name, None)).map(of_layer).collect(), Match::Pattern))
            }
            (None, None) => Err(unknown("layer", name, layers().map(|n| n.name.as_str()))),
        };
    }
    let of_group = |g: &Group| Target::Group(g.id.clone());
    if verb == Verb::Keep && role.may(TargetKind::Layer) {
        // Whoever may decide on units and precisions means both.
        let groups = space.groups.iter().filter(|g| match pattern {
            true => g.protected.is_none() && glob(name, &g.id, None),
            false => g.id == name,
        });
        let layers = layers().filter(|n| if pattern { glob(name, &n.name, None) } else { n.name == name });
        let found: Vec<Target> = groups.map(of_group).chain(layers.map(of_layer)).chain(the_block.clone()).collect();
        if !found.is_empty() {
            return Ok((found, if pattern { Match::Pattern } else { Match::Name }));
        }
    }
    // A layer that computes the units of exactly one group stands for it.
    let producing = |g: &&Group| g.members.iter().any(|m| m.node == name && m.role == MemberRole::Producer);
    let mut producing = space.groups.iter().filter(producing);
    let only = producing.next().filter(|_| producing.next().is_none());
    let the_group = space.groups.iter().find(|g| g.id == name).or(only).map(of_group);
    match the_group.or(the_block.or(the_layer).filter(|_| verb == Verb::Keep)) {
        Some(target) => Ok(named(target)),
        None if pattern => Ok((open().filter(|g| glob(name, &g.id, None)).map(of_group).collect(), Match::Pattern)),
        None => Err(unknown("group", name, open().map(|g| g.id.as_str()))),
    }
}

/// No `kind` is called `name`; the nearest that is.
pub(super) fn unknown<'a>(kind: &str, name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let shown = clean::line(name, 80);
    let short: String = name.chars().take(200).collect();
    let near = known.map(|k| (strsim::normalized_damerau_levenshtein(k, &short), k)).max_by(|a, b| a.0.total_cmp(&b.0));
    match near {
        Some((_, k)) => format!("no {kind} is named `{shown}`; the nearest is `{k}`"),
        None => format!("no {kind} is named `{shown}`, and there is none to choose"),
    }
}
