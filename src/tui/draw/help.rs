//! The help: every key from the keymap, every command, the glyphs.

use super::{Canvas, span};
use crate::config::text::left;
use crate::config::{ACTS, Act, Role};
use crate::tui::app::App;
use crate::tui::command_line::COMMANDS;
use crate::tui::palette::{Palette, STANDINGS};
use crate::tui::standing::word;
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// What every figure of latency means; in the README too.
const LATENCY: &[&str] = &[
    "Latency is the median time of a whole run of one batch, warm, without observers, on the session's device.",
    "A row's ms is its part of that: rows add up to it, so no decision saves more than its rows take.",
    "A factor is the median of new/original over pairs of runs in one minute, the order within a pair by",
    "chance; [ ] is its 95 % interval by order statistics, or with a ? the range of 95 % of single pairs.",
    "The original's ms of that minute stands beside it.",
    "Runs during which threads waited for a processor are left out. ? is a figure not to be decided on: too few",
    "such runs, samples that scatter, a row unlike its twins. {row} measures a row again, {all} all and the original.",
];

fn heading(out: &mut Vec<Line<'static>>, text: &str, pal: &Palette) {
    if !out.is_empty() {
        out.push(Line::default());
    }
    out.push(Line::from(span(format!(" {text}"), pal.bold(Role::Title))));
}

/// All lines, for any width.
pub fn lines(app: &App) -> Vec<Line<'static>> {
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
        out.push(Line::from(vec![
            span(format!("  {}", left(&keys, 16)), pal.bold(Role::Key)),
            span(spec.long.to_owned(), pal.fg(Role::Fg)),
        ]));
    }
    heading(&mut out, "Latency", pal);
    for line in LATENCY {
        let keys = [("{row}", Act::Measure), ("{all}", Act::Profile)];
        let line = keys.iter().fold(line.to_string(), |line, (mark, act)| line.replace(mark, &app.label(*act)));
        out.push(Line::from(span(format!("  {line}"), pal.fg(Role::Fg))));
    }
    heading(&mut out, "Command line", pal);
    for cmd in COMMANDS {
        out.push(Line::from(vec![
            span(format!("  :{}", left(&format!("{} {}", cmd.name, cmd.args), 44)), pal.fg(Role::Key)),
            span(cmd.about.to_owned(), pal.fg(Role::Fg)),
        ]));
    }
    heading(&mut out, "Marks", pal);
    let mut marks: Vec<Span<'static>> = vec![Span::raw("  ")];
    for s in STANDINGS {
        marks.push(span(format!("{} {}  ", pal.standing_glyph(s), word(s)), pal.fg(pal.standing_role(s))));
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
        out.push(Line::from(span(text, pal.fg(Role::Dim))));
    }
    out
}

pub(super) fn draw(c: &mut Canvas<'_>, body: Rect, scroll: usize) {
    let (app, pal) = (c.app, c.pal);
    c.clear(body);
    let inner = c.pane(body, vec![span("help", pal.bold(Role::Focus))], true);
    let all = lines(app);
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
