//! View 6: levels of a language model and who chooses one for every token: what was chosen, what that costs, and what every fixed level does
//! on the same tokens.
//!
//! Not here: how any of it is measured (`control::live`). Invariant: every figure was measured, and says against what it stands.

use super::{Canvas, span};
use crate::config::text::{clean, left, right, wrap};
use crate::config::{Act, Role};
use crate::control::{Asked, Figures, Side};
use crate::session::{Controlled, LevelMade, MAKING_LEVELS, Progress};
use crate::tui::app::App;
use crate::tui::num;
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// A name's column, and what all figures of a row take beside it.
const NAME: usize = 11;
const FIGURES: usize = 7 + 8 + 8 + 10 + 14 + 8;
/// The column of perplexities, where there is room for it.
const PERPLEXITY: usize = 12;
/// From so many columns on there are lines for room between parts: narrow screens are low as well.
const ROOMY: usize = 100;
/// A bar of shares at most.
const BAR: usize = 30;

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let mut title = vec![span("controller", pal.bold(Role::Focus))];
    title.extend(standing(app));
    let inner = c.pane(area, title, true);
    for (row, line) in lines(app, inner.width as usize).iter().skip(app.scroll).enumerate() {
        c.line(inner, u16::try_from(row).unwrap_or(u16::MAX), line);
    }
}

/// What is computed now.
fn standing(app: &App) -> Vec<Span<'static>> {
    let pal = &app.palette;
    let dim = pal.fg(Role::Dim);
    match &app.levels {
        Some(f) if app.decoding => {
            let mut out = vec![span(" at ", dim), span(named(f.asked), pal.bold(Role::Accent))];
            if let Some(next) = app.level_asked {
                out.push(span(format!(", {} is asked for", named(next)), pal.fg(Role::Warn)));
            }
            out
        }
        Some(_) => vec![span(" stopped", pal.fg(Role::Warn))],
        None => Vec::new(),
    }
}

fn named(asked: Asked) -> String {
    match asked {
        Asked::Auto => "auto".to_owned(),
        Asked::Pinned(level) => format!("level {level}"),
    }
}

/// All lines for a pane of `width` columns.
pub fn lines(app: &App, width: usize) -> Vec<Line<'static>> {
    let made = app.state.control.as_deref();
    let mut out = Vec::new();
    match (&app.levels, made) {
        (Some(f), made) => {
            strip(app, f, width, &mut out);
            table(app, f, width, &mut out);
            against(app, f, width, &mut out);
            made.into_iter().for_each(|m| how(app, m, width, &mut out));
        }
        (None, Some(made)) => {
            levels(app, made, &mut out);
            how(app, made, width, &mut out);
        }
        (None, None) => empty(app, width, &mut out),
    }
    out
}

fn say(app: &App, text: &str, role: Role, width: usize, out: &mut Vec<Line<'static>>) {
    for part in wrap(text, width.saturating_sub(2).max(8)) {
        out.push(Line::from(span(format!(" {part}"), app.palette.fg(role))));
    }
}

fn empty(app: &App, width: usize, out: &mut Vec<Line<'static>>) {
    let text = match &app.state.card {
        Some(card) if !card.graph.is_language_model() => {
            "Levels are of language models, and this session's model is none.".to_owned()
        }
        _ if app.jobs.first().is_some_and(|j| MAKING_LEVELS.contains(&j.job.as_str())) => {
            let at = |j: &Progress| format!("making them: {} {}/{}, {}", clean(&j.job), j.done, j.total, clean(&j.label));
            app.jobs.first().map(at).unwrap_or_default()
        }
        _ => "No levels yet. `:control 0.8` searches for some that share this model's weights, learns who chooses one for every token so \
              that it takes 0.8 of its time, and shows that at work beside every fixed level, on calibration text that is held back."
            .to_owned(),
    };
    out.push(Line::default());
    say(app, &text, Role::Dim, width, out);
}

/// The levels of the newest tokens, a cell each, newest last.
fn strip(app: &App, f: &Figures, width: usize, out: &mut Vec<Line<'static>>) {
    let pal = &app.palette;
    let room = width.saturating_sub(NAME + 2);
    let newest = &f.recent[f.recent.len().saturating_sub(room)..];
    let most = f.levels.len().saturating_sub(1).max(1) as f64;
    let mut spans = vec![span(format!(" {}", left("newest", NAME)), pal.fg(Role::Dim))];
    let cell = |level: u8| {
        let digit = char::from_digit(u32::from(level), 36).unwrap_or('?');
        // The whole network is the hottest.
        span(digit.to_string(), pal.heat(1.0 - f64::from(level) / most))
    };
    spans.extend(newest.iter().map(|l| cell(*l)));
    out.push(Line::from(spans));
    blank(width, out);
}

/// Columns that figures take.
fn figures_room(width: usize) -> usize {
    FIGURES + if width >= ROOMY { PERPLEXITY } else { 0 }
}

fn bar_room(width: usize) -> usize {
    width.saturating_sub(NAME + figures_room(width) + 3).min(BAR)
}

fn row(side: &Side, width: usize) -> String {
    let pair = format!("{}/{}", num::ms(side.p50), num::ms(side.p95));
    let mut out = right(&num::factor(side.time), 8) + &right(&num::factor(side.wall), 8);
    out += &right(&format!("{:.4}", side.divergence), 10);
    if width >= ROOMY {
        out += &right(&num::ms(side.perplexity), PERPLEXITY);
    }
    out + &right(&pair, 14) + &right(&num::count(side.rate.round() as u64), 8)
}

fn table(app: &App, f: &Figures, width: usize, out: &mut Vec<Line<'static>>) {
    let pal = &app.palette;
    let (dim, bars) = (pal.fg(Role::Dim), bar_room(width));
    let perplexity = if width >= ROOMY { PERPLEXITY } else { 0 };
    let all = [
        ("tokens", 7 + bars),
        ("time", 8),
        ("wall", 8),
        ("KL", 10),
        ("perplexity", perplexity),
        ("ms p50/p95", 14),
        ("tok/s", 8),
    ];
    let titles: String = all.into_iter().filter(|(_, w)| *w > 0).map(|(title, w)| right(title, w)).collect();
    out.push(Line::from(span(format!(" {}{titles}", left("", NAME)), dim)));
    let own = format!("{} {}", pal.glyph("❯", ">"), named(f.asked));
    out.push(Line::from(vec![
        span(format!(" {}", left(&own, NAME)), pal.bold(Role::Accent)),
        span(right("100 %", 7) + &" ".repeat(bars), dim),
        span(row(&f.own, width), pal.bold(Role::Fg)),
    ]));
    for (level, side) in f.levels.iter().enumerate() {
        let share = f.shares.get(level).copied().unwrap_or(0.0);
        let best = f.best == Some(level);
        let name = match level {
            0 => "  whole, 0".to_owned(),
            n => format!("  level {n}"),
        };
        let role = if best { Role::Good } else { Role::Fg };
        let mut spans = vec![
            span(format!(" {}", left(&name, NAME)), pal.fg(role)),
            span(right(&format!("{:.0} %", 100.0 * share), 7), pal.fg(Role::Fg)),
            span(
                if bars > 1 { format!(" {}", left(&pal.bar(share, bars - 1), bars - 1)) } else { " ".repeat(bars) },
                pal.fg(Role::Bar),
            ),
            span(row(side, width), pal.fg(role)),
        ];
        if best {
            spans.push(span(pal.glyph(" ◂", " <"), pal.fg(Role::Good)));
        }
        out.push(Line::from(spans));
    }
    blank(width, out);
}

/// What it is held against, and what came of it.
fn against(app: &App, f: &Figures, width: usize, out: &mut Vec<Line<'static>>) {
    let pal = &app.palette;
    let dot = pal.glyph("·", "|");
    if let Some(r) = &f.regret {
        let [a, b] = r.levels;
        let mix = match (100.0 * r.share).round() {
            0.0 => format!("level {b}"),
            100.0 => format!("level {a}"),
            _ if a == b => format!("level {a}"),
            part => format!("{part:.0} % level {a}, else level {b}"),
        };
        let range =
            r.by.range
                .map_or(String::new(), |(low, high)| format!(" [{}, {}]", num::signed(low, 4), num::signed(high, 4)));
        let (role, word) = match r.by.range {
            Some((_, high)) if high < 0.0 => (Role::Good, ": better"),
            Some((low, _)) if low > 0.0 => (Role::Bad, ": worse"),
            _ => (Role::Fg, ""),
        };
        let text = format!(
            "regret {}{range} nats a token{word} {dot} against the best fixed in as much time: {mix}, KL {:.4}",
            num::signed(r.by.value, 4),
            r.divergence
        );
        say(app, &text, role, width, out);
    } else {
        say(app, "faster than every fixed level: nothing to hold it against", Role::Dim, width, out);
    }
    let best = match f.best {
        Some(_) => format!("{} the best fixed that takes no longer {dot} ", pal.glyph("◂", "<")),
        None => String::new(),
    };
    let text = format!(
        "{best}the newest {} tokens in {} held back, every level on the same ones; KL from the whole network",
        f.counted,
        counted(f.windows as usize, "window")
    );
    say(app, &text, Role::Dim, width, out);
    blank(width, out);
}

/// Room between parts, where there is enough.
fn blank(width: usize, out: &mut Vec<Line<'static>>) {
    if width >= ROOMY {
        out.push(Line::default());
    }
}

/// The levels as they were made.
fn levels(app: &App, made: &Controlled, out: &mut Vec<Line<'static>>) {
    let pal = &app.palette;
    let titles = [("MB a token", 12), ("time", 20), ("KL", 10), ("MLPs whole/narrow/gone", 24)]
        .map(|(title, w)| right(title, w))
        .concat();
    out.push(Line::from(span(format!(" {}{titles}", left("level", NAME)), pal.fg(Role::Dim))));
    for (i, l) in made.levels.iter().enumerate() {
        let LevelMade { bytes, time, divergence, mlps: [whole, narrow, gone], .. } = l;
        let time = format!("{} [{:.2}, {:.2}]", num::factor(time.value), time.low, time.high);
        let cells = [
            right(&num::scaled(*bytes as f64, 1e6), 12),
            right(&time, 20),
            right(&format!("{divergence:.4}"), 10),
            right(&format!("{whole}/{narrow}/{gone}"), 24),
        ];
        out.push(Line::from(span(format!(" {}{}", left(&i.to_string(), NAME), cells.concat()), pal.fg(Role::Fg))));
    }
    out.push(Line::default());
}

/// What it was made with, and what can be done with it.
fn how(app: &App, made: &Controlled, width: usize, out: &mut Vec<Line<'static>>) {
    let pal = &app.palette;
    let dot = pal.glyph("·", "|");
    let shares: Vec<String> = made.levels.iter().map(|l| format!("{:.0}", 100.0 * l.share)).collect();
    let (kl, time) = made.promised;
    // Of the way there; what it is worth now is told beside what it does.
    let regret = made.regret.filter(|_| app.levels.is_none()).map_or(String::new(), |r| {
        let cost = num::signed(r, 4);
        format!(
            "; on the way there its choices cost {cost} nats a token beside the best single level's, time at its price"
        )
    });
    let text = format!(
        "made of {} for {} of the time by {}, seed {} {dot} bytes a token {} %, {} of their own",
        made.whose(),
        num::factor(made.target),
        made.learner.label(),
        made.seed,
        shares.join("/"),
        num::bytes(made.own_bytes)
    );
    say(app, &text, Role::Dim, width, out);
    let text = format!(
        "learnt from {} tokens of calibration text, where it has KL {kl:.4} at {}{regret}",
        num::count(made.taught),
        num::factor(time)
    );
    say(app, &text, Role::Dim, width, out);
    let text = match app.decoding {
        true => format!("{} switches the level {dot} `:control off` stops, then", app.label(Act::NextLevel)),
        false => format!("`:control` runs it {dot}"),
    };
    let text = format!("{text} `:export FILE.safetensors` writes model, levels and controller");
    say(app, &text, Role::Dim, width, out);
}
