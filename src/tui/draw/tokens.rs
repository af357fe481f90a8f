//! View 2: one text token by token, each on the heat of what the round changed of its loss; the token under the cursor told exactly.

use super::{Canvas, span};
use crate::config::text::{clean, fit, width};
use crate::config::{Act, Role};
use crate::session::{Guess, Token, Tokens, WhatTokens};
use crate::tui::num;
use crate::tui::tokens::Piece;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

/// Of the tokens' changes the part that lies within the scale; those beyond are at its ends.
const WITHIN: f64 = 0.95;
/// Lines under the text, for the token under the cursor.
const FEET: u16 = 3;

/// The change of loss (nats) at the ends of the scale; `None` where nothing changed.
fn scale(tokens: &[Token]) -> Option<f64> {
    let mut sizes: Vec<f64> = tokens.iter().map(|t| t.change().abs()).filter(|d| d.is_finite()).collect();
    sizes.sort_by(f64::total_cmp);
    let within = ((sizes.len() as f64 * WITHIN).ceil() as usize).clamp(1, sizes.len().max(1)) - 1;
    // Where nearly all stay as they were, those that did not are the scale.
    let at = sizes.get(within).copied().filter(|d| *d > 0.0);
    at.or(sizes.last().copied()).filter(|d| *d > 0.0)
}

/// Of what was asked, in the inside of the pane `area`.
pub(super) fn page(c: &mut Canvas<'_>, area: Rect, inner: Rect, what: WhatTokens) {
    let (app, pal) = (c.app, c.pal);
    let room = Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner };
    let Some(told) = app.looking.reading.of(what) else {
        let text = format!("the original and round {} run on item {}, token by token", what.round, what.item);
        c.put(room, 0, 0, &text, pal.fg(Role::Dim));
        return;
    };
    if let Some(why) = &told.why {
        let (back, enter) = (app.label(Act::Cancel), app.label(Act::Confirm));
        c.put(room, 0, 0, &clean(why), pal.fg(Role::Warn));
        c.put(room, 1, 0, &format!("{back} goes back; {enter} asks again"), pal.fg(Role::Dim));
        return;
    }
    heading(c, room, told);
    let scale = scale(&told.tokens);
    let feet = if room.height > FEET + 3 { FEET } else { 0 };
    let text = Rect { y: room.y + 1, height: room.height.saturating_sub(1 + feet), ..room };
    words(c, text, told, scale);
    if feet > 0 {
        let foot = Rect { y: text.y + text.height, height: feet, ..room };
        exactly(c, foot, told);
    }
    let keys = format!(
        "{} {} token  {} {} line  {} back",
        app.label(Act::Fold),
        app.label(Act::Unfold),
        app.label(Act::Down),
        app.label(Act::Up),
        app.label(Act::Cancel)
    );
    let mut legend = legend(c, scale);
    if legend.iter().map(Span::width).sum::<usize>() + 6 > area.width as usize {
        // Half a scale would be a false one.
        legend.clear();
    }
    legend.push(span(format!("  {keys}"), pal.fg(Role::Dim)));
    c.legend(area, legend);
}

/// Which text, and its loss: the mean over its tokens.
fn heading(c: &mut Canvas<'_>, area: Rect, told: &Tokens) {
    let (pal, n) = (c.pal, told.tokens.len());
    let Some((before, after)) = told.means() else {
        return c.put(area, 0, 0, "the text has no token that another foretells", pal.fg(Role::Dim));
    };
    let (arrow, d) = (pal.glyph("→", "->"), after - before);
    let role = if d > 0.0 { Role::Bad } else { Role::Good };
    let mut spans = vec![
        span(format!("item {}: ", told.asked.item), pal.fg(Role::Dim)),
        span(format!("{before:.4} {arrow} {after:.4} nats/token "), pal.fg(Role::Fg)),
        span(num::signed(d, 4), pal.fg(role)),
        span(format!(", mean of {n} tokens"), pal.fg(Role::Dim)),
    ];
    while spans.len() > 1 && spans.iter().map(Span::width).sum::<usize>() > area.width as usize {
        spans.pop();
    }
    c.line(area, 0, &Line::from(spans));
}

/// A page of the text: the one with the cursor, so that no line moves while it goes over them.
fn words(c: &mut Canvas<'_>, area: Rect, told: &Tokens, scale: Option<f64>) {
    let (app, pal, at) = (c.app, c.pal, c.app.looking.reading.at);
    // Below 256 colours each line has its densities under it.
    let tall = if pal.wants_density() { 2 } else { 1 };
    let rows = usize::from(area.height / tall);
    if rows == 0 {
        return;
    }
    let lines = app.laid(told);
    let holds = |line: &Vec<Piece>| line.iter().any(|p| p.token == at);
    let first = lines.iter().position(holds).unwrap_or(0) / rows * rows;
    let last = lines.len().div_ceil(rows).max(1);
    for (row, line) in lines.iter().skip(first).take(rows).enumerate() {
        let row = row as u16 * tall;
        for piece in line {
            let t = lean(told, piece.token, scale);
            let style = match t {
                Some(t) => pal.diverging(t),
                None => pal.fg(Role::Dim),
            };
            let style = if piece.token == at { style.add_modifier(Modifier::REVERSED | Modifier::BOLD) } else { style };
            c.put(area, row, piece.column as u16, &piece.text, style);
            if tall > 1 {
                let mark = pal.leaning(t.unwrap_or(0.0)).to_string().repeat(width(&piece.text));
                c.put(area, row + 1, piece.column as u16, &mark, pal.diverging(t.unwrap_or(0.0)));
            }
        }
    }
    if last > 1 {
        let text = format!("page {} of {last}", first / rows + 1);
        let from = area.width.saturating_sub(width(&text) as u16);
        let above = Rect { y: area.y.saturating_sub(1), height: 1, ..area };
        // The heading is what the page is of: it stays whole.
        if from > 64 {
            c.put(above, 0, from, &text, pal.fg(Role::Dim));
        }
    }
}

/// Where a token's change lies on the scale, −1 to 1; `None` of the one that nothing foretells.
fn lean(told: &Tokens, token: usize, scale: Option<f64>) -> Option<f64> {
    let change = told.tokens.get(token.checked_sub(1)?)?.change();
    Some(scale.map_or(0.0, |scale| change / scale))
}

/// The token under the cursor.
fn exactly(c: &mut Canvas<'_>, area: Rect, told: &Tokens) {
    let (app, pal) = (c.app, c.pal);
    let (at, n, arrow) = (app.looking.reading.at, told.tokens.len(), pal.glyph("→", "->"));
    let Some(token) = at.checked_sub(1).and_then(|k| told.tokens.get(k)) else {
        let text = format!("{}  the text begins with it, and nothing foretells it", quoted(&told.first, None));
        c.put(area, 0, 0, &fit(&text, area.width as usize), pal.fg(Role::Dim));
        return;
    };
    let d = token.change();
    let role = match d {
        d if d > 0.0 => Role::Bad,
        d if d < 0.0 => Role::Good,
        _ => Role::Dim,
    };
    let figures = format!("  {:.4} {arrow} {:.4} nats ", token.before.nats, token.after.nats);
    let spans = vec![
        span(quoted(&token.text, Some(token.id)), pal.bold(Role::Fg)),
        span(format!("  token {at} of {n}"), pal.fg(Role::Dim)),
        span(figures, pal.fg(Role::Fg)),
        span(num::signed(d, 4), pal.fg(role)),
    ];
    c.line(area, 0, &Line::from(spans));
    let round = format!("round {}", told.asked.round);
    for (row, (whose, guess)) in [("original", &token.before), (round.as_str(), &token.after)].into_iter().enumerate() {
        let text = expected(guess, token.id);
        let text = fit(&text, (area.width as usize).saturating_sub(11)).into_owned();
        let line = vec![span(format!("{whose:<10} "), pal.fg(Role::Dim)), span(text, pal.fg(Role::Fg))];
        c.line(area, row as u16 + 1, &Line::from(line));
    }
}

/// How likely a model held the token, and which it held likeliest.
fn expected(guess: &Guess, id: u32) -> String {
    let chance = percent((-guess.nats).exp());
    match guess.top == id {
        true => format!("{chance}, its likeliest"),
        false => format!("{chance}; likeliest {} with {}", quoted(&guess.text, Some(guess.top)), percent(guess.chance)),
    }
}

fn percent(p: f64) -> String {
    // What is no nought is not shown as one.
    if p > 0.0 && p < 0.0005 { "below 0.1 %".to_owned() } else { format!("{:.1} %", p * 100.0) }
}

/// A token as it stands, with line breaks told; by its id where it is no character.
fn quoted(text: &str, id: Option<u32>) -> String {
    let shown = clean(&text.replace('\n', "\\n").replace('\t', "\\t")).into_owned();
    match id {
        Some(id) if shown.is_empty() => format!("part of a character, id {id}"),
        _ => format!("`{}`", fit(&shown, 24)),
    }
}

/// What the heat says.
fn legend(c: &Canvas<'_>, scale: Option<f64>) -> Vec<Span<'static>> {
    let pal = c.pal;
    let Some(scale) = scale else { return vec![span("no token's loss changed", pal.fg(Role::Dim))] };
    let ramp = (-4..=4).map(|k| {
        let t = f64::from(k) / 4.0;
        let glyph = if pal.wants_density() { pal.leaning(t) } else { ' ' };
        span(glyph.to_string(), pal.diverging(t))
    });
    let digits = if scale < 0.1 { 3 } else { 2 };
    let mut spans = vec![span(format!("better {} ", num::signed(-scale, digits)), pal.fg(Role::Dim))];
    spans.extend(ramp);
    spans.push(span(format!(" {} nats worse", num::signed(scale, digits)), pal.fg(Role::Dim)));
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(before: f64, after: f64) -> Token {
        let guess = |nats| Guess { nats, ..Guess::default() };
        Token { before: guess(before), after: guess(after), ..Token::default() }
    }

    #[test]
    fn the_scale_is_that_of_nearly_all_tokens_and_ends_are_told_as_such() {
        // Twenty tokens: changes of 0.1 to 1.9, and one of 40.
        let mut all: Vec<Token> = (1..20).map(|k| token(2.0, 2.0 + 0.1 * f64::from(k))).collect();
        all.push(token(45.0, 5.0));
        assert!((scale(&all).expect("changed") - 1.9).abs() < 1e-9);
        let told = Tokens { tokens: all, ..Tokens::default() };
        assert_eq!(lean(&told, 0, Some(1.9)), None);
        assert!(lean(&told, 20, Some(1.9)).is_some_and(|t| t < -1.0) && lean(&told, 10, Some(2.0)) == Some(0.5));
        // One of many that did.
        let mut still = vec![token(1.0, 1.0); 99];
        assert_eq!(scale(&still), None);
        still.push(token(1.0, 1.5));
        assert_eq!((scale(&still), scale(&[])), (Some(0.5), None));
    }

    #[test]
    fn tokens_are_told_as_they_stand() {
        assert_eq!(quoted("a\n", Some(3)), "`a\\n`");
        assert_eq!(quoted("", Some(3)), "part of a character, id 3");
        assert!(!quoted("\u{1b}[2J", None).contains('\u{1b}'));
        let guess = Guess { nats: 0.25f64.ln().abs(), top: 4, text: " cat".into(), chance: 0.5 };
        assert_eq!(expected(&guess, 3), "25.0 %; likeliest ` cat` with 50.0 %");
        assert_eq!(expected(&guess, 4), "25.0 %, its likeliest");
        assert_eq!((percent(0.0), percent(1e-9).as_str()), ("0.0 %".to_owned(), "below 0.1 %"));
    }
}
