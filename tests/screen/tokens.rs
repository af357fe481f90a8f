//! View 2: a text token by token, each on the heat of what the round changed of its loss.

use crate::evaluate::{asked, looking};
use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::session::{Answer, Changed, Command, Feed, Guess, HostMsg, Item, Token, Tokens, WhatTokens};
use paring::tui::{App, Effect};
use ratatui::style::{Color, Modifier};

const WORDS: [&str; 16] = [
    " upon",
    " a",
    " time",
    " there",
    " was",
    " a",
    " little",
    " robot",
    " called",
    " 模型",
    ".",
    "\n\n",
    "He",
    " liked",
    "",
    " \u{1b}[31mred",
];

/// As the host would tell it: six times the words, with changes that rise and fall.
fn tokens(asked: WhatTokens) -> Tokens {
    let token = |k: usize| {
        let (before, d) = (1.0 + (k % 7) as f64 * 0.4, ((k * 5 % 11) as f64 - 4.0) * 0.15);
        let guess = |nats: f64, top: u32| Guess { nats, top, text: " once".to_owned(), chance: (-nats).exp().max(0.4) };
        Token {
            id: 300 + k as u32,
            text: WORDS[k % WORDS.len()].to_owned(),
            before: guess(before, 300 + k as u32),
            after: guess(before + d, 7),
        }
    };
    Tokens { asked, why: None, first: "Once".to_owned(), tokens: (0..96).map(token).collect() }
}

/// What was asked of the host about tokens.
fn wanted(app: &mut App) -> Vec<WhatTokens> {
    drawn(app);
    let what = |e: &Effect| match e {
        Effect::Send(Command::Tokens { what }) => Some(*what),
        _ => None,
    };
    app.wanted().iter().filter_map(what).collect()
}

/// Among the texts that changed.
fn among(settings: Settings, size: (u16, u16)) -> App {
    let mut app = looking(fixture::verdict().state, settings, size);
    drawn(&mut app);
    let what = asked(&app.wanted())[0];
    let item = |k: usize| Item {
        index: 40 + k,
        before: Answer { score: -3.0, ..Answer::default() },
        after: Answer { score: -3.5 - k as f32, ..Answer::default() },
        text: Some(format!("Once upon a time, {k}")),
        ..Item::default()
    };
    let items = (0..3).map(item).collect();
    let changed = Changed { asked: what, seen: 40, lost: 3, items, by_token: true, ..Changed::default() };
    app.host(HostMsg::Feed { feed: Feed::Changed(Box::new(changed)) });
    press(&mut app, "<enter>");
    app
}

/// In the second of them, as the host tells it.
pub fn reading(settings: Settings, size: (u16, u16)) -> App {
    let mut app = among(settings, size);
    press(&mut app, "j<enter>");
    for what in wanted(&mut app) {
        app.host(HostMsg::Feed { feed: Feed::Tokens(Box::new(tokens(what))) });
    }
    app
}

#[test]
fn a_text_at_every_size_and_in_every_colour() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = reading(Settings::default(), size);
        insta::assert_snapshot!(format!("tokens_{}x{}", size.0, size.1), text(&drawn(&mut app)));
        for colors in [ColorLevel::Ansi16, ColorLevel::None] {
            let plain = Settings { ascii: true, colors, ..Settings::default() };
            let seen = text(&drawn(&mut reading(plain, size)));
            assert!(seen.is_ascii() && seen.contains("nats/token"), "{seen}");
        }
    }
    let sixteen = Settings { colors: ColorLevel::Ansi16, ..Settings::default() };
    insta::assert_snapshot!("tokens_16_colours", text(&drawn(&mut reading(sixteen, (120, 40)))));
    let ascii = Settings { ascii: true, colors: ColorLevel::None, ..Settings::default() };
    insta::assert_snapshot!("tokens_80x24_ascii", text(&drawn(&mut reading(ascii, (80, 24)))));
}

#[test]
fn worse_and_better_are_told_apart_by_colour_and_without() {
    let mut app = reading(Settings::default(), (120, 40));
    let buf = drawn(&mut app);
    let cells = |word: &str| -> Vec<&ratatui::buffer::Cell> {
        let lines: Vec<String> = text(&buf).lines().map(str::to_owned).collect();
        let row = lines.iter().position(|l| l.contains(word)).expect("there");
        let column = paring::config::text::width(lines[row].split(word).next().expect("before"));
        (0..word.len()).map(|x| &buf[((column + x) as u16, row as u16)]).collect()
    };
    // Token 1 (` upon`): better by 0.6; token 3 (` time`) worse by 0.9.
    let (better, worse) = (cells("upon"), cells("time"));
    let red = |c: &ratatui::buffer::Cell| match c.bg {
        Color::Rgb(r, g, _) => i32::from(r) - i32::from(g),
        _ => 0,
    };
    assert!(better.iter().all(|c| red(c) < 0 && c.modifier.contains(Modifier::UNDERLINED)), "{better:?}");
    assert!(worse.iter().all(|c| red(c) > 20 && !c.modifier.contains(Modifier::UNDERLINED)), "{worse:?}");
    // The same in sixteen colours, under the words.
    let sixteen = Settings { colors: ColorLevel::Ansi16, ..Settings::default() };
    let seen = text(&drawn(&mut reading(sixteen, (120, 40))));
    let lines: Vec<&str> = seen.lines().collect();
    let row = lines.iter().position(|l| l.contains("Once upon a time")).expect("there");
    assert!(lines[row + 1].contains('═') || lines[row + 1].contains('≡'), "{}", lines[row + 1]);
    assert!(lines[row + 1].contains('▓') || lines[row + 1].contains('█'), "{}", lines[row + 1]);
}

#[test]
fn the_token_under_the_cursor_is_told_exactly() {
    let mut app = reading(Settings::default(), (120, 40));
    let all = tokens(WhatTokens::default()).tokens;
    let d: Vec<f64> = all.iter().map(Token::change).collect();
    let told = |app: &mut App, k: usize| {
        let seen = text(&drawn(app));
        let t = &all[k - 1];
        let figures = format!("token {k} of 96  {:.4} → {:.4} nats", t.before.nats, t.after.nats);
        assert!(seen.contains(&figures), "{figures}: {seen}");
        seen
    };
    // It begins at the token that lost most.
    let most = (0..96).max_by(|a, b| d[*a].total_cmp(&d[*b])).expect("some") + 1;
    let seen = told(&mut app, most);
    let mean = |of: fn(&Token) -> f64| all.iter().map(of).sum::<f64>() / 96.0;
    let head = format!("item 41: {:.4} → {:.4} nats/token", mean(|t| t.before.nats), mean(|t| t.after.nats));
    assert!(seen.contains(&head) && !seen.contains('\u{1b}'), "{head}: {seen}");
    press(&mut app, "h");
    told(&mut app, most - 1);
    press(&mut app, "g");
    press(&mut app, &"h".repeat(40));
    assert!(text(&drawn(&mut app)).contains("nothing foretells it"));
    press(&mut app, "lll");
    let seen = told(&mut app, 3);
    assert!(
        seen.contains("` time`") && seen.contains("its likeliest") && seen.contains("likeliest ` once` with"),
        "{seen}"
    );
    // Down and up again is where it was.
    press(&mut app, "jk");
    told(&mut app, 3);
    press(&mut app, "G");
    press(&mut app, &"l".repeat(40));
    told(&mut app, 96);
}

#[test]
fn it_is_asked_for_once_and_again_where_it_could_not_be_told() {
    let mut app = among(Settings::default(), (120, 40));
    assert!(wanted(&mut app).is_empty(), "a list asks for none");
    press(&mut app, "<enter>");
    let first = wanted(&mut app);
    assert_eq!(first, [WhatTokens { round: 1, item: 40 }]);
    assert!(wanted(&mut app).is_empty(), "once is enough");
    assert!(text(&drawn(&mut app)).contains("run on item 40"));
    // What somebody else looked at is not shown.
    app.host(HostMsg::Feed { feed: Feed::Tokens(Box::new(tokens(WhatTokens { round: 1, item: 2 }))) });
    assert!(text(&drawn(&mut app)).contains("run on item 40"));
    let why = Tokens::untold(first[0], "`heal` is running; hint: wait for it or cancel it".to_owned());
    app.host(HostMsg::Feed { feed: Feed::Tokens(Box::new(why)) });
    let seen = text(&drawn(&mut app));
    assert!(seen.contains("`heal` is running") && wanted(&mut app).is_empty(), "{seen}");
    press(&mut app, "<enter>");
    assert_eq!(wanted(&mut app), first, "enter asks again");
    app.host(HostMsg::Feed { feed: Feed::Tokens(Box::new(tokens(first[0]))) });
    assert!(text(&drawn(&mut app)).contains("mean of 96 tokens"));
    // Out to the list and back: it is there still.
    press(&mut app, "<esc>");
    assert!(text(&drawn(&mut app)).contains("Once upon a time, 2"));
    press(&mut app, "<enter>");
    assert!(wanted(&mut app).is_empty() && text(&drawn(&mut app)).contains("mean of 96 tokens"));
}

#[test]
fn nothing_of_it_leaves_its_area_at_any_size() {
    for w in (1..=260).step_by(13) {
        for h in (1..=100).step_by(11) {
            for (ascii, colors) in [(false, ColorLevel::True), (true, ColorLevel::None)] {
                let mut app = reading(Settings { ascii, colors, ..Settings::default() }, (w, h));
                drawn(&mut app);
                press(&mut app, "jlGkhg");
                drawn(&mut app);
            }
        }
    }
}
