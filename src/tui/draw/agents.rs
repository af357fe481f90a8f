//! What the agents say: the stream beside the list, and the full transcripts with what was sent.

use super::{Canvas, span};
use crate::config::{Act, Role};
use crate::session::ROLES;
use crate::tui::app::{App, Pane, View};
use crate::tui::markdown::Look;
use crate::tui::num::{count, duration};
use crate::tui::palette::Palette;
use crate::tui::stream::{LineKind, Scroll, WrappedLine};
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};

/// Who speaks where no endpoint is set.
const BUILT_IN: [&str; 2] = ["planner", "critic"];

/// Pane titles as tabs on small screens.
pub(super) fn tab_title(c: &Canvas<'_>, agents: bool) -> Vec<Span<'static>> {
    let (pal, on) = (c.pal, c.app.pane != Pane::Layers);
    let style = |mine: bool| match (mine, on) {
        (true, true) => pal.bold(Role::Focus),
        (true, false) => pal.bold(Role::Title),
        (false, _) => pal.fg(Role::Dim),
    };
    vec![
        span("agents", style(agents)),
        span(pal.glyph(" │ ", " | "), pal.fg(Role::Faint)),
        span("decision", style(!agents)),
    ]
}

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect, tab: bool) {
    let (app, pal) = (c.app, c.pal);
    let focused = app.pane == Pane::Agents;
    let mut title = if tab { tab_title(c, true) } else { vec![c.title("agents", focused)] };
    let sep = pal.dot();
    if app.asked_turns > 1 && area.width > 60 {
        title.push(span(format!("{sep}iterate {}", app.asked_turns), pal.fg(Role::Warn)));
    }
    if let Some(t) = app.turns.iter().rev().find(|t| t.live).or(app.turns.last()) {
        title.push(span(format!("{sep}{}", t.role), pal.fg(Role::Accent)));
        if !t.model.is_empty() && area.width > 44 {
            title.push(span(format!("{sep}{}", crate::config::text::fit(&t.model, 20)), pal.fg(Role::Dim)));
        }
        if t.tokens > 0 {
            let about = if t.exact { "" } else { "~" };
            let rate = t.rate().filter(|_| t.live).map(|r| format!("{sep}{r:.0}/s")).unwrap_or_default();
            title.push(span(format!("{sep}{about}{} tok{rate}", t.tokens), pal.fg(Role::Dim)));
        }
    }
    let inner = c.pane(area, title, focused);
    if app.turns.is_empty() {
        return empty(c, inner);
    }
    lines(c, inner, &app.brief);
    let mut legend = roles(c);
    if !app.brief.follow {
        legend.push(span(format!("  {}", below(app, &app.brief)), pal.fg(Role::Warn)));
    }
    c.legend(area, legend);
}

fn below(app: &App, scroll: &Scroll) -> String {
    format!("{} below, {} follows", counted(scroll.back, "line"), app.label(Act::Follow))
}

fn empty(c: &mut Canvas<'_>, inner: Rect) {
    let (app, pal) = (c.app, c.pal);
    let key = app.label(Act::Propose);
    let text = match &app.agents {
        Some(at) => {
            let often = match app.asked_turns {
                n if n > 1 => format!("up to {n} turns by themselves, until they have a question"),
                _ => format!("once; {} has them go on by themselves", app.label(Act::Mode)),
            };
            let limits = match app.asked_limits.as_str() {
                "" => String::new(),
                words => format!(" A proposal may take {words}."),
            };
            format!("Agents will use {}. {key} asks them to propose: {often}.{limits}", crate::config::text::clean(at))
        }
        None => format!(
            "No endpoint set: the built-in planner will propose and explain itself here; {key} asks it to. `:llm URL MODEL` sets an OpenAI-compatible endpoint."
        ),
    };
    for (i, l) in crate::config::text::wrap(&text, inner.width.saturating_sub(4).max(8) as usize).iter().enumerate() {
        c.put(inner, 1 + i as u16, 2, l, pal.fg(Role::Dim));
    }
}

/// Which roles have spoken, which speaks, which are still to come.
fn roles(c: &Canvas<'_>) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let spoke = |role: &str| app.turns.iter().rev().take(8).any(|t| t.role == role);
    let names: Vec<(&str, &str)> = match ROLES.iter().any(|r| spoke(r.name)) {
        // The role that asks for measurements is not asked by itself.
        true => ROLES.iter().filter(|r| !r.measures() || spoke(r.name)).map(|r| (r.name, r.short)).collect(),
        false => BUILT_IN.into_iter().filter(|name| spoke(name)).map(|name| (name, name)).collect(),
    };
    let mut out = Vec::new();
    for (name, short) in names {
        let last = app.turns.iter().rev().find(|t| t.role == name);
        let (glyph, role) = match last {
            Some(t) if t.live => (pal.glyph("●", "o"), Role::Accent),
            Some(t) if t.interrupted => (pal.glyph("✘", "x"), Role::Warn),
            Some(_) => (pal.glyph("✓", "+"), Role::Good),
            None => (pal.glyph("○", "."), Role::Dim),
        };
        if !out.is_empty() {
            out.push(Span::raw("  "));
        }
        out.push(span(format!("{short} {glyph}"), pal.fg(role)));
    }
    out
}

fn lines(c: &mut Canvas<'_>, inner: Rect, scroll: &Scroll) {
    let window: Vec<WrappedLine> = scroll.window(inner.height as usize).into_iter().cloned().collect();
    for (i, l) in window.iter().enumerate() {
        let row = i as u16;
        let pal = c.pal;
        match l.kind {
            LineKind::Head => {
                let (role, rest) = l.text.split_once(' ').unwrap_or((&l.text, ""));
                let line = Line::from(vec![
                    span(pal.glyph("▪ ", "# ").to_owned(), pal.fg(Role::Accent)),
                    span(role.to_owned(), pal.bold(Role::Accent)),
                    span(format!(" {rest}"), pal.fg(Role::Dim)),
                ]);
                c.line(inner, row, &line);
            }
            LineKind::Reasoning => {
                c.put(inner, row, 0, pal.glyph("▏", "|"), pal.fg(Role::Faint));
                words(c, inner, row, l, pal.fg(Role::Reasoning));
            }
            LineKind::Prompt => {
                c.put(inner, row, 0, pal.glyph("│", ">"), pal.fg(Role::Border));
                c.put(inner, row, 2, &l.text, pal.fg(Role::Dim));
            }
            LineKind::Text => words(c, inner, row, l, pal.fg(Role::Fg)),
            LineKind::Note => c.put(inner, row, 0, &l.text, pal.bold(Role::Dim)),
            LineKind::Blank => {}
        }
    }
    super::marks::rows(c, inner);
    super::marks::sought(c, inner);
}

/// A line of what was said, with its looks; reasoning keeps its colour.
fn words(c: &mut Canvas<'_>, inner: Rect, row: u16, line: &WrappedLine, plain: Style) {
    let pal = c.pal;
    let (mut spans, mut at) = (Vec::new(), 0);
    let mut push = |range: std::ops::Range<usize>, look: Look| {
        let text = line.text.get(range).unwrap_or_default();
        let text = if look.mark && pal.ascii { text.chars().map(ascii).collect() } else { text.to_owned() };
        spans.push(span(text, style(pal, look, line.kind, plain)));
    };
    for (range, look) in &line.looks {
        push(at..range.start, Look::default());
        push(range.clone(), *look);
        at = range.end;
    }
    push(at..line.text.len(), Look::default());
    let area = Rect { x: inner.x + 1, width: inner.width.saturating_sub(1), ..inner };
    c.line(area, row, &Line::from(spans));
}

/// The ASCII form of a mark that stands for Markdown's.
fn ascii(mark: char) -> char {
    match mark {
        '•' | '─' => '-',
        '┃' => '|',
        c => c,
    }
}

fn style(pal: &Palette, look: Look, kind: LineKind, plain: Style) -> Style {
    let own = |role| if kind == LineKind::Reasoning { plain } else { pal.fg(role) };
    let mut style = match look {
        Look { mark: true, .. } => pal.fg(Role::Faint),
        Look { code: true, .. } => own(Role::Key),
        Look { link: true, .. } => own(Role::Accent),
        Look { heading: true, .. } => own(Role::Title),
        _ => plain,
    };
    if look.strong || look.heading {
        style = style.add_modifier(Modifier::BOLD);
    }
    if look.emphasis {
        style = style.add_modifier(Modifier::ITALIC);
    }
    style
}

/// View 3: everything that was sent and said.
pub(super) fn transcripts(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    debug_assert!(app.view == View::Agents);
    let tokens: u64 = app.turns.iter().map(|t| t.tokens).sum();
    let seconds: f64 = app.turns.iter().map(|t| t.seconds).sum();
    let figures = format!(" {}, {} tokens, {}", counted(app.turns.len(), "turn"), count(tokens), duration(seconds));
    let title = vec![span("transcripts", pal.bold(Role::Focus)), span(figures, pal.fg(Role::Dim))];
    let inner = c.pane(area, title, true);
    if app.turns.is_empty() {
        return empty(c, inner);
    }
    lines(c, inner, &app.full);
    if !app.full.follow {
        c.legend(area, vec![span(below(app, &app.full), pal.fg(Role::Warn))]);
    }
}
