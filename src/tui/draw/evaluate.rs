//! View 2: the baseline against every round, per metric, with intervals; and which of the panes below it are seen. Their own drawing:
//! `classes`, `changed`, `calibration`, `plot`.

use super::{Canvas, calibration, changed, classes, heal, plot, span};
use crate::config::text::{clean, left, right, width, wrap};
use crate::config::{Act, Role};
use crate::plan::{Outcome, Verdict};
use crate::session::{Evaluation, Round, State, apart, part};
use crate::tui::app::App;
use crate::tui::evaluate::Part;
use crate::tui::layout::{Class, class};
use crate::tui::num;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

pub fn class_name(state: &State, class: usize) -> String {
    let named = state.card.as_ref().and_then(|c| {
        c.data.class_names.get(class).or_else(|| c.model.class_names.as_ref().and_then(|n| n.get(class)))
    });
    named.map_or_else(|| format!("class {class}"), |n| clean(n).into_owned())
}

/// Lines that scroll: the class table.
pub fn lines(app: &App) -> usize {
    app.state.baseline().map_or(0, |b| b.metrics.per_class().len())
}

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let evals = app.evaluations();
    if evals.is_empty() {
        let inner = c.pane(area, vec![span("evaluate", pal.bold(Role::Focus))], true);
        let dim = pal.fg(Role::Dim);
        let text =
            format!("every round after its run. {} profiles; 1 goes back to the layers.", app.label(Act::Profile));
        c.put(inner, 1, 2, "no evaluation yet: the baseline is evaluated when the session opens,", dim);
        c.put(inner, 2, 2, &text, dim);
        return;
    }
    let inside = usize::from(area.width.saturating_sub(2));
    let told: usize = app.looked_at().map_or(1, |e| rests_on(e, inside).iter().map(|(_, text, _)| text.len()).sum());
    let judged = app.looked_at().and_then(|e| app.state.round_at(e.round)).and_then(|r| r.verdict.as_ref());
    let told = told + judged.map_or(1, |v| budget(c, v, inside).len());
    let wanted = (evals.len() + 3 + told).max(7).min(area.height.into()) as u16;
    let wide = class(app.size.0, app.size.1) == Class::Wide;
    // Where the panes below are looked into they have the room.
    let most = if app.looking.part == Part::Rounds || wide { area.height.saturating_sub(4) } else { area.height / 3 };
    let top = Rect { height: wanted.min(most.max(7)).min(area.height), ..area };
    table(c, top, &evals);
    let rest = Rect { y: area.y + top.height, height: area.height - top.height, ..area };
    if rest.height < 3 {
        return;
    }
    match app.looking.part {
        _ if wide => all(c, rest, &evals),
        Part::Rounds => both(c, rest, &evals),
        Part::Classes if rest.width < 90 => classed(c, rest, &evals),
        Part::Classes => {
            let side = rest.width * 6 / 10;
            classed(c, Rect { width: side, ..rest }, &evals);
            classes::taken(c, Rect { x: rest.x + side, width: rest.width - side, ..rest });
        }
        Part::Changed => changed::pane(c, rest),
        Part::Calibration => calibration::pane(c, rest),
    }
}

/// The classes of the round that is looked at.
fn classed(c: &mut Canvas<'_>, area: Rect, evals: &[&Evaluation]) {
    if let (Some(base), Some(now)) = (evals.first(), c.app.looked_at()) {
        classes::pane(c, area, (base, now));
    }
}

/// Classes, where the task has them, and the plot.
fn both(c: &mut Canvas<'_>, area: Rect, evals: &[&Evaluation]) {
    let side = match c.app.has_classes() {
        false => 0,
        true if area.width >= 70 => area.width / 2,
        true => area.width,
    };
    if side > 0 {
        classed(c, Rect { width: side, ..area }, evals);
    }
    if side < area.width {
        course(c, Rect { x: area.x + side, width: area.width - side, ..area });
    }
}

fn course(c: &mut Canvas<'_>, area: Rect) {
    match heal::course(c.app) {
        Some(_) => heal::pane(c, area),
        None => plot::pane(c, area),
    }
}

/// Everything at once, where there is room: classes, what they are taken for, decisions and plot in a row, what changed below, or how sure
/// models are while that has the keys.
fn all(c: &mut Canvas<'_>, area: Rect, evals: &[&Evaluation]) {
    let below = area.height / 2;
    let upper = Rect { height: area.height - below, ..area };
    let mut panes: Vec<(u16, Pane)> = Vec::new();
    if c.app.has_classes() {
        panes.extend([(66, classed as Pane), (50, |c, area, _| classes::taken(c, area))]);
    }
    panes.extend([(44, (|c, area, _| classes::decisions(c, area)) as Pane), (40, |c, area, _| course(c, area))]);
    let (mut x, total) = (upper.x, panes.iter().map(|(w, _)| *w).sum::<u16>());
    let mut left = upper.width;
    for (i, (weight, pane)) in panes.iter().enumerate() {
        let share = (u32::from(upper.width) * u32::from(*weight) / u32::from(total)) as u16;
        let width = if i + 1 == panes.len() { left } else { share.min(left) };
        pane(c, Rect { x, width, ..upper }, evals);
        (x, left) = (x + width, left - width);
    }
    let lower = Rect { y: area.y + upper.height, height: below, ..area };
    match c.app.looking.part {
        Part::Calibration => calibration::pane(c, lower),
        Part::Rounds | Part::Classes | Part::Changed => changed::pane(c, lower),
    }
}

/// Draws one of the panes below the rounds.
type Pane = fn(&mut Canvas<'_>, Rect, &[&Evaluation]);

/// A column of the rounds' table after their names.
#[derive(Debug, Clone, Copy)]
enum Col {
    Score,
    Interval,
    Change,
    Paired,
    /// The first of the further metrics.
    Other,
    Ms,
    Factor,
    Megabytes,
    Macs,
}

/// The columns with their titles (the task names its metrics), their widths, and the width of the table that shows them.
/// They go whole: half an interval would be a false one.
const COLUMNS: [(Col, &str, usize, u16); 9] = [
    (Col::Score, "", 8, 0),
    (Col::Interval, "", 16, 72),
    (Col::Change, "change", 7, 0),
    (Col::Paired, "  paired", 18, 72),
    (Col::Other, "", 8, ROOMY),
    (Col::Ms, "ms", 8, 104),
    (Col::Factor, "of orig.", 9, 104),
    (Col::Megabytes, "MB", 8, 104),
    (Col::Macs, "MACs M", 9, 104),
];

/// Their titles, where they do not come from the task.
#[cfg(test)]
pub fn headings() -> Vec<String> {
    COLUMNS.iter().map(|(_, title, ..)| title.trim().to_owned()).collect()
}

/// From here on there is room for a further metric.
const ROOMY: u16 = 92;
/// Columns before the first of them, and for a verdict of one word.
const NAME: usize = 10;
const VERDICT: usize = 17;

/// The columns that a table of `room` columns shows, with their titles and widths: wider than usual where a metric's name or
/// figures are, and then without the further metric where there is no room for all.
fn columns(room: usize, cells: impl Fn(Col, &str) -> (String, usize)) -> Vec<(Col, String, usize)> {
    let shown = COLUMNS.into_iter().filter(|(.., least)| room >= *least as usize);
    let mut cols: Vec<_> = shown
        .map(|(col, fixed, usual, _)| {
            let (title, widest) = cells(col, fixed);
            let apart = usize::from(!matches!(col, Col::Interval | Col::Paired));
            let w = usual.max(widest + apart);
            (col, title, w, w > usual)
        })
        .collect();
    let all = NAME + VERDICT + cols.iter().map(|(_, _, w, _)| w).sum::<usize>();
    if all > room && cols.iter().any(|(.., wider)| *wider) {
        cols.retain(|(col, ..)| !matches!(col, Col::Other));
    }
    cols.into_iter().map(|(col, title, w, _)| (col, title, w)).collect()
}

impl Col {
    /// What the column says of `e`; empty where there is nothing to say.
    fn text(self, app: &App, e: &Evaluation, base: &Evaluation) -> Option<String> {
        let metric = app.state.metric();
        let verdict = app.state.round_at(e.round).and_then(|r| r.verdict.as_ref());
        let mark = num::mark(e.doubt.is_some());
        Some(match self {
            Col::Score => format!("{:.*}", metric.digits, metric.value(e.metrics.score)),
            Col::Interval => {
                let (low, high) = e.metrics.interval();
                let (low, high) = metric.shown_range(metric.scale.abs() * low, metric.scale.abs() * high);
                format!("  [{low:.0$}, {high:.0$}]", metric.digits)
            }
            Col::Change if e.round == 0 => return None,
            Col::Change => {
                let d = verdict.map_or(metric.change(base.metrics.score, e.metrics.score), |v| v.d_quality);
                num::signed(metric.shown(d), metric.digits)
            }
            Col::Paired => {
                verdict.map(|v| format!("  {}", num::range(&metric, (v.d_quality_low, v.d_quality_high), ", ")))?
            }
            Col::Other => e.metrics.others.first().map(|r| format!("{:.2}", r.score * r.scale))?,
            Col::Ms => format!("{}{mark}", num::ms(e.ms().unwrap_or(f64::NAN))),
            Col::Factor => e.latency().filter(|_| e.round > 0).map(|f| format!("{}{mark}", num::factor(f.value)))?,
            Col::Megabytes => num::scaled(e.weight_bytes as f64, 1e6),
            Col::Macs => num::scaled(e.macs.get(app.settings.mac_convention) as f64, 1e6),
        })
    }

    fn aligned(self, text: &str, width: usize) -> String {
        match self {
            Col::Interval | Col::Paired => left(text, width),
            _ => right(text, width),
        }
    }
}

/// A round's name, with how many items its scores are over where those are not all.
fn name(e: &Evaluation) -> String {
    match (e.round, e.part) {
        (0, _) => "baseline".to_owned(),
        (round, None) => format!("round {round}"),
        (round, Some(_)) => format!("r{round} of {}", e.metrics.n),
    }
}

fn table(c: &mut Canvas<'_>, area: Rect, evals: &[&Evaluation]) {
    let (app, pal) = (c.app, c.pal);
    let (Some(base), Some(selected)) = (evals.first(), app.looked_at()) else { return };
    let data = app.state.card.as_ref().map(|c| clean(&c.data.name).into_owned()).unwrap_or_default();
    let images = app.state.metric().items(base.metrics.n);
    let mut title = vec![
        span("rounds", pal.bold(Role::Focus)),
        span(format!(" {images} of {data}, 95 % intervals"), pal.fg(Role::Dim)),
    ];
    if app.state.card.as_ref().is_some_and(|c| c.model.preprocess.assumed()) {
        title.push(span(", preprocessing assumed", pal.fg(Role::Warn)));
    }
    let focused = app.looking.part == Part::Rounds;
    title[0] = c.title("rounds", focused);
    let inner = c.pane(area, title, focused);
    let other = evals.iter().find_map(|e| e.metrics.others.first()).map(|r| format!("{} {}", r.name, r.unit));
    let (score, other) = (app.state.metric().title(), other.unwrap_or_default());
    let names = evals.iter().map(|e| width(&name(e))).max().unwrap_or(0).max(NAME - 1);
    let cols = columns((inner.width as usize).saturating_sub(names + 1 - NAME), |col, fixed| {
        let title = match col {
            Col::Score => score.as_str(),
            Col::Other => other.as_str(),
            _ => fixed,
        };
        let of = |e: &&Evaluation| col.text(app, e, base).map_or(0, |t| width(&t));
        (title.to_owned(), evals.iter().map(of).max().unwrap_or(0).max(width(title.trim_end())))
    });
    // A verdict of two words where both are whole.
    let used = names + 1 + cols.iter().map(|(_, _, w)| w).sum::<usize>();
    let words = |e: &&Evaluation| verdict(c, app.state.round_at(e.round), true).iter().map(Span::width).sum();
    let roomy = used + evals.iter().map(words).max().unwrap_or(0) <= inner.width.into();
    let titles: String = cols.iter().map(|(col, title, w)| col.aligned(title, *w)).collect();
    c.put(inner, 0, 0, &format!(" {}{titles}  verdict", left("round", names)), pal.fg(Role::Dim));
    // The selected one is seen, with what its verdict rests on where there is room for that.
    let rows = inner.height.saturating_sub(1) as usize;
    let at = evals.iter().position(|e| e.round == selected.round).unwrap_or(0);
    let skip = (at + 1).saturating_sub(rows).max(evals.len().saturating_sub(rows).min(at));
    let mut row = 1;
    for e in evals[skip..].iter().take(rows) {
        let round = app.state.round_at(e.round);
        let rolled = round.is_some_and(|r| r.rolled_back.is_some());
        let fg = pal.fg(if rolled { Role::Faint } else { Role::Fg });
        let mut spans = vec![span(format!(" {}", left(&name(e), names)), fg)];
        for &(col, _, w) in &cols {
            let style = match col {
                Col::Score if !rolled => pal.bold(Role::Fg),
                Col::Interval | Col::Paired => pal.fg(Role::Dim),
                Col::Ms | Col::Factor if e.doubt.is_some() && !rolled => pal.fg(Role::Warn),
                _ => fg,
            };
            spans.push(span(col.aligned(&col.text(app, e, base).unwrap_or_default(), w), style));
        }
        spans.extend(verdict(c, round, roomy));
        c.line(inner, row, &Line::from(spans));
        if e.round == selected.round {
            c.cursor(inner, row);
        }
        row += 1;
    }
    for (head, text, role) in rests_on(selected, inner.width.into()) {
        for (i, text) in text.into_iter().enumerate() {
            let head = left(if i == 0 { head } else { "" }, HEAD);
            c.line(inner, row, &Line::from(vec![span(head, pal.fg(Role::Dim)), span(text, pal.fg(role))]));
            row += 1;
        }
    }
    let verdict = app.state.round_at(selected.round).and_then(|r| r.verdict.as_ref());
    if let Some(v) = verdict.filter(|v| !v.lines.is_empty()) {
        for line in budget(c, v, inner.width as usize) {
            c.line(inner, row, &line);
            row += 1;
        }
    }
}

/// Columns before what a verdict rests on.
const HEAD: usize = 9;

/// What the verdict of `e` rests on, under what name, in lines of `columns`.
fn rests_on(e: &Evaluation, columns: usize) -> Vec<(&'static str, Vec<String>, Role)> {
    let room = columns.saturating_sub(HEAD).max(1);
    let mut all = Vec::new();
    if let Some(text) = beside(e) {
        // Where it does not fit it goes without what the table tells.
        let text = match width(&text) > room {
            true => text.trim_start_matches(&format!("round {}: ", e.round)).replace(" of that minute", ""),
            false => text,
        };
        all.push((" latency", text, if e.doubt.is_some() { Role::Warn } else { Role::Fg }));
    }
    all.extend(apart(e).map(|text| (" outputs", text, Role::Fg)));
    let part = part(e).map(|text| format!("round {}: {text}; `:evaluate-all` looks at the others", e.round));
    all.extend(part.map(|text| (" part", text, Role::Warn)));
    all.into_iter().map(|(head, text, role)| (head, wrap(&text, room), role)).collect()
}

/// How a round was judged, and what was decided.
fn verdict(c: &Canvas<'_>, round: Option<&Round>, roomy: bool) -> Vec<Span<'static>> {
    let pal = c.pal;
    let (glyph, word, role) = match round.and_then(|r| r.verdict.as_ref()) {
        _ if round.is_some_and(|r| r.rolled_back.is_some()) => (pal.glyph("↺ ", ""), "rolled back", Role::RolledBack),
        Some(v) if v.unbounded() => ("", "no budget", Role::Dim),
        Some(Verdict { outcome: o, .. }) => {
            let glyph = match o {
                Outcome::Accept => pal.glyph("✓ ", ""),
                Outcome::Reject => pal.glyph("✗ ", ""),
                Outcome::Undecided => "? ",
            };
            (glyph, o.label(), pal.outcome(*o).1)
        }
        None => ("", "", Role::Dim),
    };
    let accepted = round.is_some_and(|r| r.accepted);
    // Where both words do not fit, what was decided stands for itself, and the mark for the verdict.
    let mut text = format!("{glyph}{word}");
    if accepted && !roomy {
        let mark = round.and_then(|r| r.verdict.as_ref()).filter(|v| !v.unbounded()).map(|v| pal.outcome(v.outcome).0);
        text = mark.map_or("accepted".to_owned(), |mark| format!("{mark} accepted"));
    }
    let mut spans = vec![Span::raw("  "), span(text, pal.fg(role))];
    if accepted && roomy {
        spans.push(span(", accepted", pal.fg(Role::Good)));
    }
    spans
}

/// The budget's items as measured, in as many lines of `width` columns as they take.
fn budget(c: &Canvas<'_>, verdict: &Verdict, width: usize) -> Vec<Line<'static>> {
    let pal = c.pal;
    let le = pal.glyph("≤", "<=");
    let mut lines = Vec::new();
    let mut spans = vec![span(left(" budget", HEAD), pal.fg(Role::Dim))];
    for l in &verdict.lines {
        let (mark, role) = pal.outcome(l.outcome);
        let text = match l.name.as_str() {
            // No loss is none, whichever way it was rounded.
            "drop" => {
                let lost = if l.measured.abs() < 0.005 { 0.0 } else { l.measured };
                format!("drop {lost:.2} ({le} {:.2})", l.target)
            }
            "class" => {
                let whose = l.class.map_or_else(|| "a class".to_owned(), |class| class_name(&c.app.state, class));
                format!("{whose} loses {:.1} ({le} {})", l.measured, l.target)
            }
            "kl" => format!("KL {:.4} ({le} {})", l.measured, l.target),
            name => {
                let name = if name == "macs" { "MACs".into() } else { clean(name) };
                format!("{name} {} ({le} {})", num::factor_over(l.measured, l.target), num::factor(l.target))
            }
        };
        let next = span(format!("{text} {mark}   "), pal.fg(role));
        if spans.iter().map(Span::width).sum::<usize>() + next.content.trim_end().len() > width {
            lines.push(Line::from(std::mem::replace(&mut spans, vec![Span::raw(" ".repeat(HEAD))])));
        }
        spans.push(next);
    }
    lines.push(Line::from(spans));
    lines
}

/// A round's latency, the original's of the same minute, and what that makes: nothing for the baseline.
pub fn beside(e: &Evaluation) -> Option<String> {
    let ratio = e.latency().filter(|_| e.round > 0)?;
    let mut text = format!(
        "round {}: {} ms beside the original's {} of that minute, {}",
        e.round,
        num::ms(e.whole.p50),
        num::ms(e.baseline_ms),
        num::factor(ratio.value)
    );
    if ratio.n > 0 {
        text.push_str(&format!(" [{}, {}], {} pairs", num::factor(ratio.low), num::factor(ratio.high), ratio.n));
    }
    text.push_str(e.whole.origin());
    if let Some(why) = e.doubt {
        text.push_str(&format!("; in doubt: {why}"));
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wider_than_usual_is_whole_and_takes_the_room_of_the_further_metric() {
        let usual = columns(118, |_, fixed| (fixed.to_owned(), 0));
        assert_eq!(usual.iter().map(|(_, _, w)| *w).collect::<Vec<_>>(), COLUMNS.map(|(_, _, w, _)| w));
        let wide = |col, fixed: &str| match col {
            Col::Score => ("nats/token".to_owned(), 10),
            Col::Interval | Col::Paired => (fixed.to_owned(), 20),
            _ => (fixed.to_owned(), 3),
        };
        let of = |room| columns(room, wide).into_iter().map(|(_, title, w)| (title, w)).collect::<Vec<_>>();
        assert_eq!(of(118)[..2], [("nats/token".to_owned(), 11), (String::new(), 20)]);
        assert_eq!((of(118).len(), of(200).len(), of(60).len()), (8, 9, 2));
    }
}
