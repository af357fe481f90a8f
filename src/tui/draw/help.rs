//! The help: every key from the keymap, every command, the glyphs.

use super::{Canvas, span};
use crate::config::text::{left, width, wrap};
use crate::config::{ACTS, Act, Role};
use crate::tui::app::App;
use crate::tui::command_line::COMMANDS;
use crate::tui::palette::{Palette, STANDINGS};
use crate::tui::standing::word;
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// What every figure of latency means; in the README too.
const LATENCY: &str = "Latency is the median time of a whole run of one batch, warm, without observers, on the session's device. A \
     row's ms is its part of that: rows add up to it, so no decision saves more than its rows take. A factor is the \
     median of new/original over pairs of runs in one minute, the order within a pair by chance; [ ] is its 95 % \
     interval by order statistics, or with a ? the range of 95 % of single pairs. The original's ms of that minute \
     stands beside it. Runs during which threads waited for a processor are left out. ? is a figure not to be decided \
     on: too few such runs, samples that scatter, a row unlike its twins. {row} measures a row again, {all} all and \
     the original.";

fn heading(out: &mut Vec<Line<'static>>, text: &str, pal: &Palette) {
    if !out.is_empty() {
        out.push(Line::default());
    }
    out.push(Line::from(span(format!(" {text}"), pal.bold(Role::Title))));
}

/// Columns of a command before what it does, where there is room for both beside each other.
const COMMAND: usize = 46;
/// And from how many columns there is.
const BESIDE: usize = 100;

/// `text` behind `head` in `columns`, what does not fit below it.
fn hung(head: Span<'static>, text: &str, style: Style, columns: usize) -> Vec<Line<'static>> {
    let indent = width(&head.content);
    let parts = wrap(text, columns.saturating_sub(indent).max(16));
    let first = std::iter::once(head).chain(std::iter::repeat_with(|| Span::raw(" ".repeat(indent))));
    first.zip(parts).map(|(head, part)| Line::from(vec![head, span(part, style)])).collect()
}

/// All lines, each within `columns`.
pub fn lines(app: &App, columns: usize) -> Vec<Line<'static>> {
    let pal = &app.palette;
    let mut out: Vec<Line<'static>> = Vec::new();
    let mut section = "";
    for spec in ACTS {
        if spec.section != section {
            section = spec.section;
            heading(&mut out, section, pal);
        }
        let keys: Vec<String> = app.settings.keymap.keys(spec.act).iter().map(ToString::to_string).collect();
        let keys = if keys.is_empty() { "-".to_owned() } else { keys.join(" ") };
        let head = span(format!("  {}", left(&keys, 16)), pal.bold(Role::Key));
        out.extend(hung(head, spec.long, pal.fg(Role::Fg), columns));
    }
    heading(&mut out, "Latency", pal);
    let keys = [("{row}", Act::Measure), ("{all}", Act::Profile)];
    let text = keys.iter().fold(LATENCY.to_owned(), |text, (mark, act)| text.replace(mark, &app.label(*act)));
    out.extend(hung(Span::raw("  "), &text, pal.fg(Role::Fg), columns.min(BESIDE + 10)));
    heading(&mut out, "Command line", pal);
    for cmd in COMMANDS {
        let typed = format!("  :{} {}", cmd.name, cmd.args);
        let style = pal.fg(Role::Fg);
        if columns >= BESIDE && width(&typed) < COMMAND {
            out.extend(hung(span(left(&typed, COMMAND + 1), pal.fg(Role::Key)), cmd.about, style, columns));
        } else {
            let key = pal.fg(Role::Key);
            out.extend(wrap(&typed, columns).into_iter().map(|part| Line::from(span(part, key))));
            out.extend(hung(Span::raw("      "), cmd.about, style, columns));
        }
    }
    heading(&mut out, "Marks", pal);
    let mut marks: Vec<Span<'static>> = vec![Span::raw("  ")];
    for s in STANDINGS {
        let mark = span(format!("{} {}  ", pal.standing_glyph(s), word(s)), pal.fg(pal.standing_role(s)));
        if marks.iter().chain([&mark]).map(Span::width).sum::<usize>() > columns {
            out.push(Line::from(std::mem::replace(&mut marks, vec![Span::raw("  ")])));
        }
        marks.push(mark);
    }
    out.push(Line::from(marks));
    let (follower, stale) = (pal.glyph("┊", ":"), pal.glyph("†", "'"));
    let bars: String = [0.1, 0.4, 1.0].map(|t| pal.spark(t)).iter().collect();
    for text in [
        format!(
            "  {follower} moves with its group   ~ expected, not measured   ? in doubt   {stale} measured before the last change"
        ),
        "  |w| norm of the weights   zeros: exact ones   rank: the effective one, of what it could be".to_owned(),
        "  |g| norm of the gradient while a run heals   |gw| what removing the weights would change the loss by"
            .to_owned(),
        "  noise: images a batch needs before its gradient is more than noise (all of about 20 steps)".to_owned(),
        format!("  {bars} sens: how far the output moves as more is cut, after the re-fit (KL in nats, roots drawn)"),
    ] {
        out.extend(hung(Span::raw("  "), text.trim_start(), pal.fg(Role::Dim), columns));
    }
    out
}

pub(super) fn draw(c: &mut Canvas<'_>, body: Rect, scroll: usize) {
    let (app, pal) = (c.app, c.pal);
    c.clear(body);
    let inner = c.pane(body, vec![span("help", pal.bold(Role::Focus))], true);
    let all = lines(app, inner.width.into());
    for (i, l) in all.iter().skip(scroll).take(inner.height as usize).enumerate() {
        c.line(inner, i as u16, l);
    }
    let more = all.len().saturating_sub(scroll + inner.height as usize);
    let text = if more > 0 {
        format!("{} below; any other key closes", counted(more, "more line"))
    } else {
        "any other key closes".into()
    };
    c.legend(body, vec![span(text, pal.fg(Role::Dim))]);
}
