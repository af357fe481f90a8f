//! What agents write, set as the Markdown that it is: at three sizes, without colours and glyphs, while it streams; found, copied and jumped from.

use crate::{drawn, fixture, press, text};
use paring::config::{ColorLevel, Settings};
use paring::session::{Channel, Feed, HostMsg};
use paring::tui::{App, Effect};
use ratatui::buffer::Buffer;
use ratatui::style::Modifier;

const SAID: &str = "# Where the time goes\n\nBlocks 8–11 spend **41 % of the latency** in `fc1` and `fc2`; *their curves* stay flat.\n\n\
    - heads stay in blocks.*.attn and blocks.*.norm1\n  - `blocks.7.attn.qkv` goes to **int8**, see [the paper](https://arxiv.org/abs/2004.10568)\n\
    - layer1_0_conv1 is not here\n\n| layer | ms | cut |\n|:--|--:|--:|\n| blocks.8.mlp.fc1 | 0.52 | 37.5 % |\n| blocks.9.mlp.fc1 | 0.51 | 25 % |\n\n\
    > noted: stop at 1.60x\n> and not beyond\n\n```json\n{\"decisions\": [\n  {\"target\": \"blocks.*.mlp\", \"ratio\": 0.375}\n]}\n```\nAll of it **waits for you**.\n";

fn say(app: &mut App, text: &str) {
    let token = Feed::Token { role: "pruning".into(), channel: Channel::Text, text: text.into() };
    app.host(HostMsg::Feed { feed: token });
}

/// A session in which an agent has begun to speak, in the view of transcripts.
fn listening(settings: Settings, size: (u16, u16)) -> App {
    let mut app = fixture::app(fixture::review().state, settings, size);
    app.host(HostMsg::Feed { feed: Feed::Turn { role: "pruning".into(), model: "qwen3-32b".into() } });
    press(&mut app, "3");
    app
}

fn told(settings: Settings, size: (u16, u16)) -> App {
    let mut app = listening(settings, size);
    say(&mut app, SAID);
    app.host(HostMsg::Feed { feed: Feed::TurnEnd { role: "pruning".into() } });
    app
}

/// The modifiers of the first letters of `words`.
fn modifiers(buf: &Buffer, words: &str) -> Modifier {
    let screen = text(buf);
    let (y, line) = screen.lines().enumerate().find(|(_, l)| l.contains(words)).unwrap_or_else(|| panic!("{screen}"));
    let x = line.find(words).map(|at| line[..at].chars().count()).unwrap_or_default();
    buf[(x as u16, y as u16)].modifier
}

#[test]
fn markdown_at_three_sizes_and_in_every_colour() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let seen = text(&drawn(&mut told(Settings::default(), size)));
        insta::assert_snapshot!(format!("markdown_{}x{}", size.0, size.1), seen);
    }
    let plain = Settings { ascii: true, colors: ColorLevel::None, ..Settings::default() };
    let seen = text(&drawn(&mut told(plain, (120, 40))));
    assert!(
        seen.is_ascii() && seen.contains("- heads") && seen.contains("| noted") && seen.contains("-----  "),
        "{seen}"
    );
    insta::assert_snapshot!("markdown_ascii", seen);
    for colors in [ColorLevel::True, ColorLevel::Ansi16, ColorLevel::None] {
        let buf = drawn(&mut told(Settings { colors, ..Settings::default() }, (120, 60)));
        for (words, modifier) in
            [("41 %", Modifier::BOLD), ("their curves", Modifier::ITALIC), ("Where", Modifier::BOLD)]
        {
            assert!(modifiers(&buf, words).contains(modifier), "{colors:?}: {words}");
        }
        assert!(!modifiers(&buf, "of it").contains(Modifier::BOLD));
    }
    // Beside the list, in a pane that is narrow.
    let mut app = told(Settings::default(), (120, 40));
    press(&mut app, "1");
    insta::assert_snapshot!("markdown_beside_the_list", text(&drawn(&mut app)));
}

#[test]
fn a_stream_shows_what_it_becomes_and_moves_nothing_that_was_read() {
    let mut app = listening(Settings::default(), (120, 60));
    let mut before = text(&drawn(&mut app));
    for (n, c) in SAID.chars().enumerate() {
        say(&mut app, &c.to_string());
        if n % 7 != 0 {
            continue;
        }
        let now = text(&drawn(&mut app));
        assert!(!now.contains("**") && !now.contains("```"), "{now}");
        // Rows above the last that was there stay, but for the block that goes on.
        let rows = |s: &str| {
            s.lines().filter(|l| l.starts_with('│')).map(|l| l.trim_matches(['│', ' ']).to_owned()).collect::<Vec<_>>()
        };
        let (old, new) = (rows(&before), rows(&now));
        let end = old.iter().rposition(|l| !l.is_empty()).unwrap_or(0);
        let first = old.iter().position(|l| l.contains("Where the time")).unwrap_or(end);
        assert!(old[first..end.saturating_sub(5).max(first)].iter().all(|l| new.contains(l)), "{before}\n{now}");
        before = now;
    }
    app.host(HostMsg::Feed { feed: Feed::TurnEnd { role: "pruning".into() } });
    let whole = text(&drawn(&mut told(Settings::default(), (120, 60))));
    let body = |s: &str| s.lines().filter(|l| l.starts_with('│')).map(str::to_owned).collect::<Vec<_>>();
    let (streamed, whole) = (text(&drawn(&mut app)), whole);
    let skip = |rows: Vec<String>| rows.into_iter().skip_while(|l| !l.contains("Where the time")).collect::<Vec<_>>();
    assert_eq!(skip(body(&streamed)), skip(body(&whole)));
}

#[test]
fn words_are_found_across_emphasis_rows_by_their_names_and_what_is_copied_is_as_it_was_written() {
    let mut app = told(Settings::default(), (120, 40));
    press(&mut app, "/spend 41 % of the latency in fc1<enter>");
    assert!(app.message.as_ref().is_some_and(|(_, m)| m.starts_with("line 1 of 1")), "{:?}", app.message);
    let effects = press(&mut app, "y");
    let copied = effects.iter().find_map(|e| match e {
        Effect::Yank(text) => Some(text.clone()),
        _ => None,
    });
    assert!(copied.expect("copied").contains(SAID), "as it was written");
    // Names are whole, and keys go to their rows.
    let seen = text(&drawn(&mut told(Settings::default(), (120, 60))));
    for name in ["blocks.*.attn and blocks.*.norm1", "layer1_0_conv1", "\"blocks.*.mlp\"", "blocks.8.mlp.fc1  0.52"] {
        assert!(seen.contains(name), "{name}: {seen}");
    }
    let mut app = told(Settings::default(), (120, 60));
    drawn(&mut app);
    press(&mut app, "J");
    let mut layer = |keys: &str| {
        press(&mut app, keys);
        let name = app.inspected.as_ref().map(|i| i.name.clone());
        press(&mut app, "1");
        name.expect("a layer")
    };
    assert_eq!(layer("8"), "blocks.9.mlp.fc1");
    assert_eq!(layer("JJ8"), "blocks.7.attn.qkv");
}

#[test]
fn hostile_markdown_leaves_no_mark_at_any_size() {
    let bad = format!(
        "{}x\n\n&#27;[2J&#x9b;1m **&#x202e;a**\n\n[a](javascript:&#10;b)\n\n{}\n",
        "> ".repeat(3_000),
        "|a".repeat(500)
    );
    for size in [(1, 1), (9, 3), (20, 6), (80, 24), (260, 100)] {
        let mut app = listening(Settings::default(), size);
        say(&mut app, &bad);
        say(&mut app, &"word ".repeat(2_000));
        let seen = text(&drawn(&mut app));
        assert!(seen.chars().all(|c| c == '\n' || !c.is_control()), "{seen}");
        press(&mut app, "1");
        drawn(&mut app);
    }
}
