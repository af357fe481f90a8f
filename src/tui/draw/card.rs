//! The decision card: what is proposed for the row under the cursor, by whom and why, and what it would do.

use super::{Canvas, span};
use crate::config::text::{clean, fit, left, right, wrap};
use crate::config::{Act, Role};
use crate::plan::{Action, Author, Estimate, Limit, Outcome, Target};
use crate::quant::Precision;
use crate::session::{Standing, ledger};
use crate::task::Metric;
use crate::tui::app::{Pane, Shown};
use crate::tui::columns::Set;
use crate::tui::decide::unit;
use crate::tui::list::RowRef;
use crate::tui::num::{bytes, mark, ms, range, signed};
use crate::tui::outlook::{Goal, goals, meets};
use crate::tui::standing::{self, word};
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect, tab: bool) {
    let (app, pal) = (c.app, c.pal);
    let focused = app.pane == Pane::Decision;
    let mut title = if tab { super::agents::tab_title(c, false) } else { vec![c.title("decision", focused)] };
    let sep = pal.dot();
    let shown = app.row_shown();
    let focus = app.focused();
    let name = match app.list.current() {
        Some(RowRef::Layer(i)) => app.table.layers.get(i).map(|l| l.label.as_str()),
        Some(RowRef::Block(b)) => app.table.blocks.get(b).map(|b| b.label.as_str()),
        None => None,
    };
    if let Some(n) = name {
        title.push(span(format!("{sep}{}", crate::config::text::fit_end(n, 22)), pal.fg(Role::Fg)));
    }
    if let Some(Target::Group(g)) = focus.as_ref().map(|f| &f.target) {
        let at = app.groups().iter().position(|x| x.id == *g);
        let n = at.and_then(|i| app.table.coupled.get(i)).copied().unwrap_or(0);
        let used: usize = title.iter().map(Span::width).sum();
        let words = [format!("{sep}group of {n} layers"), format!("{sep}group of {n}")];
        let fits = |w: &&String| used + crate::config::text::width(w) + 4 <= area.width as usize;
        if let Some(words) = words.iter().find(fits).filter(|_| n > 1) {
            title.push(span(words.clone(), pal.fg(Role::Dim)));
        }
    }
    let inner = c.pane(area, title, focused);
    if inner.width < 10 || inner.height == 0 {
        return;
    }
    let mut lines: Vec<Line<'static>> = Vec::new();
    match app.list.current() {
        Some(RowRef::Block(b)) => block(c, b, inner.height > 8, &mut lines),
        Some(RowRef::Layer(_)) if shown.is_empty() => nothing(c, &mut lines, inner.width),
        Some(RowRef::Layer(_)) => {
            for (i, s) in shown.iter().enumerate() {
                choice(c, s, focused && i == app.card, inner, &mut lines);
            }
        }
        None => lines.push(Line::from(span(" move to a layer to decide about it", pal.fg(Role::Dim)))),
    }
    let block = matches!(app.list.current(), Some(RowRef::Block(_)));
    if focus.is_some() || block {
        let room = (inner.height as usize).saturating_sub(lines.len());
        forecast(c, block, inner.width, room, &mut lines);
    }
    if c.app.columns.set == Set::Parameters {
        // Who has the list show them asks for them before the reasons.
        lines.extend(weights(c, inner.width, (inner.height as usize).saturating_sub(lines.len())));
    }
    let figures = lines.len();
    if let Some(f) = &focus {
        why(c, f, inner.width, &mut lines);
    }
    let mut below = facts(c, inner.width);
    if c.app.columns.set != Set::Parameters {
        let room = (inner.height as usize).saturating_sub(lines.len() + below.len());
        below.extend(weights(c, inner.width, room));
    }
    rests_on(c, inner.width, (inner.height as usize).saturating_sub(below.len()), &mut lines);
    let room = (inner.height as usize).saturating_sub(lines.len() + below.len());
    below.extend(super::whole::told(c, inner.width, room));
    at_the_foot(c, below, figures, (inner.width, inner.height as usize), &mut lines);
    for (i, l) in lines.iter().enumerate() {
        c.line(inner, i as u16, l);
    }
}

fn nothing(c: &Canvas<'_>, lines: &mut Vec<Line<'static>>, width: u16) {
    let pal = c.pal;
    let why = c.app.row_layer().and_then(|l| c.app.protection(&l.name));
    let text = match why {
        Some(p) => format!("nothing to decide here: {p}"),
        None => "nothing to decide here: no weights of its own, and no group runs through it".to_owned(),
    };
    paragraph(lines, &text, width.saturating_sub(2) as usize, usize::MAX, pal.fg(Role::Dim));
}

/// `text` in at most `most` lines of `room` columns, with `…` where there would be more.
fn most_of(text: &str, room: usize, most: usize) -> Vec<String> {
    let mut all = wrap(text, room);
    if all.len() > most {
        all.truncate(most);
        if let Some(last) = all.last_mut() {
            *last = ended(last, room);
        }
    }
    all
}

/// A line that goes on where it is not seen.
fn ended(line: &str, room: usize) -> String {
    format!("{}…", fit(line.trim_end(), room.saturating_sub(1)).trim_end_matches('…'))
}

/// `text` in at most `most` lines of `room` columns.
fn paragraph(lines: &mut Vec<Line<'static>>, text: &str, room: usize, most: usize, style: Style) {
    lines.extend(most_of(text, room, most).into_iter().map(|l| Line::from(span(format!(" {l}"), style))));
}

/// Where a shown decision stands, in a word.
fn stands(s: &Shown) -> String {
    if s.drafting { "editing".to_owned() } else { word(s.standing) }
}

fn block(c: &Canvas<'_>, b: usize, airy: bool, lines: &mut Vec<Line<'static>>) {
    let (app, pal) = (c.app, c.pal);
    let Some(block) = app.table.blocks.get(b) else { return };
    let all: Vec<Shown> = app.targets_in_block(b).iter().map(|t| app.shown(t)).filter(Shown::decided).collect();
    let count = |f: &dyn Fn(&Shown) -> bool| all.iter().filter(|s| f(s)).count();
    let open = count(&Shown::open);
    let approved = count(&|s| s.standing == Standing::Approved);
    let in_force = count(&|s| matches!(s.standing, Standing::InForce { .. }));
    let vetoed = count(&|s| matches!(s.standing, Standing::Vetoed | Standing::Leaving { .. }));
    let layers = crate::words::counted(block.layers.len(), "layer");
    let mut spans = vec![span(format!(" {layers}  "), pal.fg(Role::Fg))];
    for (n, word, role, always) in [
        (open, "open", Role::Proposed, true),
        (approved, "approved", Role::Approved, true),
        (in_force, "in force", Role::Applied, false),
        (vetoed, "vetoed", Role::Vetoed, in_force == 0),
    ] {
        if n > 0 || always {
            spans.push(span(format!("{n} {word}  "), pal.fg(if n > 0 { role } else { Role::Dim })));
        }
    }
    lines.push(Line::from(spans));
    let can = app.targets_of(RowRef::Block(b));
    let text = match can.first().map(|t| app.shown(t)) {
        Some(s) if s.action == Action::RemoveBlock => {
            let stands = if s.drafting { "not kept yet: enter keeps it".to_owned() } else { word(s.standing) };
            format!(" whole block: drop ({stands})")
        }
        Some(_) if !app.can(Act::RemoveBlock) => " may be removed whole".to_owned(),
        Some(_) => format!(" {} removes the whole block", app.label(Act::RemoveBlock)),
        None => " this block changes the shape, so it cannot be removed".to_owned(),
    };
    lines.push(Line::from(span(text, pal.fg(Role::Dim))));
    if airy {
        lines.push(Line::default());
    }
}

/// As many precisions of `all` around `now`, in their order, as `room` columns hold; one at least.
fn choices(all: &[Precision], now: Precision, room: usize) -> &[Precision] {
    let at = all.iter().position(|p| *p == now).unwrap_or(0);
    let wide = |of: &[Precision]| of.iter().map(|p| p.label().len() + 3).sum::<usize>() <= room;
    let (mut from, mut to) = (at, at + 1);
    loop {
        // What comes next matters more than what came before.
        if to < all.len() && wide(&all[from..to + 1]) {
            to += 1;
        } else if from > 0 && wide(&all[from - 1..to]) {
            from -= 1;
        } else {
            return &all[from..to];
        }
    }
}

/// One line a target: the slider of a group, the chooser of a precision, or a block's fate.
fn choice(c: &Canvas<'_>, s: &Shown, selected: bool, inner: Rect, lines: &mut Vec<Line<'static>>) {
    let (app, pal) = (c.app, c.pal);
    let mark = if selected { pal.glyph("❯", ">") } else { " " };
    let mut spans = vec![span(mark, pal.bold(Role::Focus))];
    let status = if s.drafting { pal.bold(Role::Edited) } else { pal.fg(pal.standing_role(s.standing)) };
    let glyph = if s.drafting { pal.glyph("✎", "e") } else { pal.standing_glyph(s.standing) };
    spans.push(span(format!("{glyph} "), status));
    let mut second = None;
    match &s.target {
        Target::Group(id) => {
            let Some(g) = app.group(id) else { return };
            let kept = app.kept_of(&s.target);
            let arrow = pal.glyph("→", "->");
            spans.push(span(format!("{} ", unit(g)), pal.fg(Role::Dim)));
            let cut = 1.0 - kept as f64 / g.size.max(1) as f64;
            if kept == g.size {
                spans.push(span(format!("{kept}, all kept"), pal.bold(Role::Fg)));
            } else {
                spans.push(span(format!("{} {arrow} {kept} ", g.size), pal.bold(Role::Fg)));
                spans.push(span(format!("{} %", signed(-cut * 100.0, 1)), pal.fg(Role::Fg)));
            }
            let used: usize = spans.iter().map(|s| crate::config::text::width(&s.content)).sum();
            let step = format!(" step {}", g.granule);
            let rest = step.len() + word(s.standing).len().max(7) + 6;
            let room = (inner.width as usize).saturating_sub(used + rest).min(24);
            if room >= 10 {
                spans.push(Span::raw("  "));
                spans.extend(slider(c, cut, room, s.drafting, step));
            } else if inner.height >= 13 {
                let room = (inner.width as usize).saturating_sub(step.len() + 5).min(30);
                let mut line = vec![Span::raw("   ")];
                line.extend(slider(c, cut, room, s.drafting, step));
                second = Some(Line::from(line));
            }
        }
        Target::Layer(name) => {
            let now = app.precision_of(s, name);
            spans.push(span("precision ", pal.fg(Role::Dim)));
            let used: usize = spans.iter().map(|s| crate::config::text::width(&s.content)).sum();
            // Two columns for the marks that the menu goes on.
            let all = app.precisions(name);
            let shown = choices(&all, now, (inner.width as usize).saturating_sub(used + stands(s).len() + 4));
            let more = span(pal.glyph("…", "~"), pal.fg(Role::Dim));
            if shown.first() != all.first() {
                spans.push(more.clone());
            }
            for &p in shown {
                spans.push(match p == now {
                    true => {
                        span(format!("[{}]", p.label()), pal.bold(if s.drafting { Role::Edited } else { Role::Fg }))
                    }
                    false => span(format!(" {} ", p.label()), pal.fg(Role::Dim)),
                });
                spans.push(Span::raw(" "));
            }
            if shown.last() != all.last() {
                spans.push(more);
            }
            if now != Precision::F32 && inner.height >= 13 {
                // Of attention it is what a cache of keys and values is in.
                let about = match app.row_layer().is_some_and(|l| l.caches) {
                    true => "keys and values of earlier tokens are kept so",
                    false => now.describe(),
                };
                let about = fit(about, (inner.width as usize).saturating_sub(4));
                second = Some(Line::from(span(format!("   {about}"), pal.fg(Role::Dim))));
            }
        }
        Target::Weights(_) | Target::Block(_) => {
            let what = match &s.target {
                Target::Block(name) => format!("block {} ", clean(name)),
                _ if matches!(s.action, Action::Factorise { .. }) => "factors ".to_owned(),
                _ if matches!(s.action, Action::Sparsify { .. }) => "zeros ".to_owned(),
                _ => "weights ".to_owned(),
            };
            spans.push(span(what, pal.fg(Role::Dim)));
            spans.push(span(super::layers::brief(&s.action, pal.ascii), pal.bold(Role::Fg)));
        }
    }
    let bound = app.state.constraints_on(&s.target).next();
    // A veto is told by what it freezes; together the two would not fit.
    let frozen = s.standing == Standing::Vetoed && bound.is_some_and(|b| b.limit == Limit::Freeze);
    if s.drafting || !frozen {
        spans.push(span(format!("  {}", stands(s)), status));
    }
    let all: Vec<String> = app.state.constraints_on(&s.target).map(standing::bound).collect();
    let mut below = None;
    if !all.is_empty() {
        let text = format!("  {} {}", pal.glyph("⊘", "!"), all.join(", "));
        let used: usize = spans.iter().map(Span::width).sum();
        // What binds is told whole, on a line of its own where it must be.
        if used + crate::config::text::width(&text) <= inner.width as usize {
            spans.push(span(text, pal.fg(Role::Warn)));
        } else {
            below = Some(Line::from(span(fit(&text, inner.width as usize), pal.fg(Role::Warn))));
        }
    }
    lines.push(Line::from(spans));
    lines.extend(below);
    lines.extend(second);
}

/// How much of a group goes, and in which `step`.
fn slider(c: &Canvas<'_>, t: f64, columns: usize, drafting: bool, step: String) -> [Span<'static>; 6] {
    let pal = c.pal;
    let inner = columns.saturating_sub(2).max(1);
    let at = ((t * (inner - 1) as f64).round() as usize).min(inner - 1);
    let knob = if drafting { pal.bold(Role::Edited) } else { pal.bold(Role::Bar) };
    [
        span(pal.glyph("◂", "<"), pal.fg(Role::Dim)),
        span(pal.glyph("━", "=").repeat(at), pal.fg(Role::Bar)),
        span(pal.glyph("●", "O"), knob),
        span(pal.glyph("─", "-").repeat(inner - 1 - at), pal.fg(Role::Faint)),
        span(pal.glyph("▸", ">"), pal.fg(Role::Dim)),
        span(step, pal.fg(Role::Dim)),
    ]
}

/// The goals that fit into `room` lines: accuracy and what the budget names first, then the rest in order.
fn fitting(budget: &crate::plan::Budget, metric: &Metric, room: usize) -> Vec<Goal> {
    let all = goals(budget, metric);
    let must = |g: &Goal| g.points || g.target.is_some();
    let mut spare = room.saturating_sub(all.iter().filter(|g| must(g)).count());
    let mut out: Vec<Goal> = Vec::new();
    for g in all {
        let wanted = match g.name {
            "params" => false,
            "MACs" => room > 5,
            _ => true,
        };
        if must(&g) || (wanted && spare > 0) {
            spare -= usize::from(!must(&g));
            out.push(g);
        }
    }
    while out.len() > room {
        let Some(i) = out.iter().rposition(|g| !g.points) else { break };
        out.remove(i);
    }
    out
}

/// This decision, the whole plan, the budget.
fn forecast(c: &Canvas<'_>, block: bool, width: u16, room: usize, lines: &mut Vec<Line<'static>>) {
    let (app, pal) = (c.app, c.pal);
    let own = app.expected_own;
    let base_ms = app.state.profile_of(0).map(|p| p.whole.p50);
    let wide = width >= 58;
    let (w1, w2) = match width {
        74.. => (22, 32),
        _ if wide => (22, 18),
        _ => (12, 16),
    };
    let dim = pal.fg(Role::Dim);
    if own.is_none() && app.expected.is_none() {
        let text = if base_ms.is_none() {
            " forecasts come with the first profile"
        } else {
            " no plan yet: nothing to forecast"
        };
        lines.push(Line::from(span(text, dim)));
        return;
    }
    let head = match (block, wide) {
        (true, _) => "this block",
        (false, true) => "this decision",
        (false, false) => "this one",
    };
    let whole = left(&app.plan_words(), w2);
    lines.push(Line::from(span(format!(" {}{}{whole}{}", left("", 9), left(head, w1), "budget"), dim)));
    // Its heading, and what the latency is one of.
    let other = 1 + usize::from(app.state.profile_of(0).is_some());
    let metric = app.state.metric();
    for g in fitting(&app.state.budget, &metric, room.saturating_sub(other)) {
        // What is in doubt stands where there is room for all of it.
        let doubted = |value: String, doubt: String| match format!("{value} {doubt}") {
            both if wide && crate::config::text::width(&both) < w1 => both,
            _ => value,
        };
        let mine = own.map(|o| match g.name {
            "latency" => {
                let e = o.d_latency_ms;
                let spread = format!("±{}", ms((e.high - e.low).abs() / 2.0));
                doubted(format!("~{} ms", signed(e.value, 2)), spread)
            }
            "memory" if o.d_bytes != 0 && o.d_bytes.abs() < 10_000 => {
                format!("{} kB", signed(o.d_bytes as f64 / 1e3, 2))
            }
            "memory" => format!("{} MB", signed(o.d_bytes as f64 / 1e6, 2)),
            "MACs" => format!("{} M", signed(o.d_macs as f64 / 1e6, 1)),
            "params" => format!("{} k", signed(o.d_params as f64 / 1e3, 1)),
            _ if g.unforetold() => pal.none().to_owned(),
            _ => {
                let e = o.d_quality;
                match e.value == 0.0 && o.unmeasured > 0 {
                    true => "unmeasured".to_owned(),
                    false => doubted(
                        format!("~{}", signed(metric.shown(e.value), metric.digits)),
                        range(&metric, (e.low, e.high), ","),
                    ),
                }
            }
        });
        let value = app.expected.and_then(|e| e.get(g.name));
        let before = app.expected_without.and_then(|e| e.get(g.name));
        let (before, after) = (before.map(|e| g.show(e.value)), value.map(|e| g.show(e.value)));
        let arrow = pal.glyph("→", "->");
        // Figures that rest on different things make no course: a scan's and a rehearsal's may differ the other way.
        let bases = [app.expected_without, app.expected].map(|e| e.and_then(|e| e.quality).map(|q| q.basis));
        let alike = !g.points || bases[0] == bases[1];
        let about = app.expected.map_or("~", |e| e.mark(g.name));
        let plan = match (before, after) {
            (Some(a), Some(b)) if a != b && own.is_some() && alike => format!("~{a} {arrow} {about}{b}"),
            (_, Some(b)) => format!("{about}{b}"),
            _ if g.points && app.expected.is_some() => "unmeasured".to_owned(),
            _ => pal.none().into(),
        };
        let ends = value.filter(|e| g.points && e.low < e.high);
        let whole = ends.map(|e| format!("{plan} {}", range(&metric, (e.low, e.high), ",")));
        let plan = whole.filter(|w| crate::config::text::width(w) < w2).unwrap_or(plan);
        // Where the arrow's blanks are all that is too much they go.
        let plan =
            if crate::config::text::width(&plan) < w2 { plan } else { plan.replace(&format!(" {arrow} "), arrow) };
        let style = pal.fg(Role::Forecast);
        let mut spans = vec![
            span(format!(" {}", left(g.label(&metric), 9)), dim),
            span(left(&fit(&mine.unwrap_or_else(|| pal.none().into()), w1 - 1), w1), style),
            span(left(&fit(&plan, w2 - 1), w2), style),
        ];
        spans.extend(target(c, &g, value));
        lines.push(Line::from(spans));
        // What the rows that it changes take, of which no more can be saved; and what the factor is one of.
        if let (true, Some(p)) = (g.name == "latency", app.state.profile_of(0)) {
            let mark = mark(p.doubt.is_some());
            let rows = own.map_or(String::new(), |o| format!("{} ms", ms(o.touched_ms)));
            let whole = format!("{}{mark} ms", ms(p.whole.p50));
            let text = format!(" {}{}{whole}", left("  of", 9), left(&format!(" {rows}"), w1));
            lines.push(Line::from(span(text, pal.fg(if p.doubt.is_some() { Role::Warn } else { Role::Dim }))));
        }
    }
    let quality = app.expected.and_then(|e| e.quality);
    if let Some(text) = quality.and_then(|q| super::basis::short(&q, &metric)) {
        lines.push(Line::from(span(format!(" {}", fit(&text, usize::from(width).saturating_sub(2))), dim)));
    }
}

/// What the whole plan's figure of quality rests on, where there is room for it.
fn rests_on(c: &Canvas<'_>, width: u16, height: usize, lines: &mut Vec<Line<'static>>) {
    let quality = c.app.expected.and_then(|e| e.quality);
    let Some(text) = quality.and_then(|q| super::basis::words(&c.app.state, &q)) else { return };
    let mut more = Vec::new();
    paragraph(&mut more, &text, usize::from(width).saturating_sub(2), usize::MAX, c.pal.fg(Role::Dim));
    if lines.len() + more.len() + 1 < height {
        lines.extend(more);
    }
}

fn target(c: &Canvas<'_>, g: &Goal, value: Option<Estimate>) -> Vec<Span<'static>> {
    let pal = c.pal;
    let Some(t) = g.target else { return vec![span(pal.none(), pal.fg(Role::Faint))] };
    let text = g.asked(t);
    let mut out = vec![span(format!("{} ", right(&text, 5)), pal.fg(Role::Dim))];
    // A tick is for what holds over the whole range.
    if let Some((low, high)) = value.and_then(|v| Some((meets(g, v.low)?, meets(g, v.high)?))) {
        let (glyph, role) = pal.outcome(match (low, high) {
            (true, true) => Outcome::Accept,
            (false, false) => Outcome::Reject,
            _ => Outcome::Undecided,
        });
        out.push(span(glyph, pal.bold(role)));
    }
    out
}

fn why(c: &Canvas<'_>, f: &Shown, width: u16, lines: &mut Vec<Line<'static>>) {
    let (app, pal) = (c.app, c.pal);
    let room = width.saturating_sub(2) as usize;
    if f.drafting {
        let [k, d, a] = [Act::Confirm, Act::Cancel, Act::Approve].map(|act| app.label(act));
        lines.push(Line::from(span(format!(" {k} keeps the edit, {d} drops, {a} approves"), pal.fg(Role::Edited))));
    }
    if let Some(text) = &app.slower {
        paragraph(lines, text, room, usize::MAX, pal.fg(Role::Warn));
    }
    if let Some(story) = app.story(&f.target) {
        paragraph(lines, &story, room, 3, pal.fg(pal.standing_role(f.standing)));
    }
    let Some(d) = f.id.and_then(|id| app.state.decision(id)) else { return };
    let told = matches!(f.standing, Standing::Vetoed);
    if let Some(r) = d.veto_reason.as_deref().filter(|r| !r.is_empty() && !told) {
        paragraph(lines, &format!("vetoed: {}", clean(r)), room, 2, pal.fg(Role::Vetoed));
    }
    // Whose veto it is was told before.
    let proposed = if told && !d.by_person() { "proposed by" } else { "by" };
    let mut by = format!("{proposed} {}", clean(&d.author.to_string()));
    if let Some(from) = &d.edited_from {
        by = format!("edited {by}; first proposed {}", super::layers::brief(from, pal.ascii));
    }
    lines.push(Line::from(span(format!(" {}", fit(&by, room)), pal.fg(Role::Dim))));
    if let Author::Agent { .. } = &d.author {
        if let Some(expects) = app.state.expected_by(&d.author) {
            let words = format!("expects {} of the whole plan", app.state.metric().change_words(expects));
            paragraph(lines, &words, room, 1, pal.fg(Role::Dim));
        }
        if let Some(words) = app.records.get(ledger::who(&d.author).as_ref()) {
            paragraph(lines, &format!("so far: {}", clean(words)), room, 4, pal.fg(Role::Dim));
        }
    }
    if !d.rationale.is_empty() {
        // An edit keeps the reasons of what it replaced, whose figures are not its own.
        let head = if d.edited_from.is_some() || f.drafting { "why it was proposed:" } else { "why:" };
        for (i, l) in most_of(&format!("{head} {}", clean(&d.rationale)), room, 4).into_iter().enumerate() {
            let style = pal.fg(Role::Fg);
            let line = match l.strip_prefix(head).filter(|_| i == 0) {
                Some(rest) => {
                    Line::from(vec![span(format!(" {head}"), pal.fg(Role::Dim)), span(rest.to_owned(), style)])
                }
                None => Line::from(span(format!(" {l}"), style)),
            };
            lines.push(line);
        }
    }
}

/// What was measured of the row, at the bottom when there is room.
fn facts(c: &Canvas<'_>, width: u16) -> Vec<Line<'static>> {
    let (app, pal) = (c.app, c.pal);
    let Some(l) = app.row_layer() else { return Vec::new() };
    let mut text = vec![l.kind.clone()];
    if let Some(row) = &l.row {
        if !row.out_shape.is_empty() {
            let dims: Vec<String> = row.out_shape.iter().map(ToString::to_string).collect();
            text.push(format!("out {}", dims.join("x")));
        }
        if !row.kernel.is_empty() {
            text.push(format!("{} {}", row.precision.label(), clean(&row.kernel)));
        }
    }
    let sep = pal.dot();
    let mut out = vec![text.join(sep)];
    if let (Some(p50), Some(row)) = (l.fig.p50, &l.row) {
        let bound = match row.bound {
            crate::profile::Bound::Memory => "memory-bound",
            crate::profile::Bound::Compute => "compute-bound",
            crate::profile::Bound::Unknown => "bound by what is not known",
        };
        let tail = l.p99.map_or_else(String::new, |p| format!(" p99 {}", ms(p)));
        if let Some(why) = &l.doubt {
            out.push(format!("? noisy, {} measures again: {why}", app.label(Act::Measure)));
        }
        let reached = match row.efficiency {
            e if e <= 0.0 => "no ceiling measured".to_owned(),
            e if e > 1.05 && row.bound == crate::profile::Bound::Memory => {
                format!("{e:.1} times the memory's bandwidth: a cache holds its values")
            }
            e if e > 1.05 => "past the ceiling, which was measured while the machine was busier".to_owned(),
            e => format!("{:.0} % of the ceiling", e * 100.0),
        };
        out.push(format!(
            "p50 {}{} ±{} p95 {}{tail} ms{sep}{:.0} FLOP/B, {bound}, {reached}{sep}activations {}",
            ms(p50),
            mark(l.doubt.is_some()),
            ms(p50 * l.spread),
            ms(l.p95),
            row.intensity,
            bytes(row.activation_bytes)
        ));
    }
    let mut lines = Vec::new();
    for text in &out {
        paragraph(&mut lines, text, width.saturating_sub(2) as usize, usize::MAX, pal.fg(Role::Dim));
    }
    lines
}

/// What its weights and gradients are: as many paragraphs, each whole, as `room` lines hold.
fn weights(c: &Canvas<'_>, width: u16, room: usize) -> Vec<Line<'static>> {
    let mut out = Vec::new();
    for text in c.app.row_layer().map(|l| super::weights::told(c, l)).unwrap_or_default() {
        let mut more = Vec::new();
        paragraph(&mut more, &text, width.saturating_sub(2) as usize, usize::MAX, c.pal.fg(Role::Dim));
        if out.len() + more.len() <= room {
            out.append(&mut more);
        }
    }
    out
}

/// What the layer is, at the foot where there is room; else at least why its time is in doubt, unless that would hide one of
/// the `figures` lines that are decided on.
fn at_the_foot(
    c: &Canvas<'_>,
    below: Vec<Line<'static>>,
    figures: usize,
    (width, height): (u16, usize),
    lines: &mut Vec<Line<'static>>,
) {
    if lines.len() + below.len() <= height {
        lines.resize(height - below.len(), Line::default());
        lines.extend(below);
    } else if let Some(why) = c.app.row_layer().and_then(|l| l.doubt).filter(|_| figures < height) {
        // What a figure is worth comes before what speaks for a cut.
        lines.truncate(height.saturating_sub(1));
        if let Some(last) = lines.last_mut().and_then(|line| line.spans.last_mut()).filter(|_| figures + 1 < height) {
            last.content = ended(&last.content, usize::from(width)).into();
        }
        lines.push(Line::from(span(format!(" ? {why}"), c.pal.fg(Role::Warn))));
    }
}
