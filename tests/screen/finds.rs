//! What an engineer who read only the first screen and `?` looks for before pressing `a`, and the keys that find it: three at most, at every size.

use crate::{drawn, fixture, press, text};
use paring::config::Settings;
use paring::session::Command;
use paring::tui::{App, Effect};

/// What is looked for, the keys after the cursor stands on the row, and the words that answer.
const FINDS: [(&str, &str, &[&str]); 8] = [
    ("peak memory", "8", &["peak memory"]),
    ("who holds it", "9<tab>", &["peak"]),
    ("p99 of the model", "8", &["whole model", "p99"]),
    ("what a group holds", "8", &["made by", "read by", "3072 neurons"]),
    ("why this count of units", "8", &["keep", "in steps of 64", "KL alone"]),
    ("what int8 would change", "8", &["int8", "kB"]),
    ("which of two plans is better", "7", &["beside"]),
    ("what a word means", "K", &["the median", "expected, not measured"]),
];

/// How many keys a sequence is.
fn keys(sequence: &str) -> usize {
    let mut rest = sequence;
    let mut n = 0;
    while !rest.is_empty() {
        let end = if rest.starts_with('<') { rest.find('>').map_or(1, |i| i + 1) } else { 1 };
        (rest, n) = (&rest[end..], n + 1);
    }
    n
}

fn on_the_row(size: (u16, u16)) -> App {
    let mut app = fixture::app(fixture::review().state, Settings::default(), size);
    crate::keys::go(&mut app, "blocks.8.mlp.fc1");
    app
}

#[test]
fn what_one_looks_for_is_within_three_keys() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        for (what, sequence, words) in FINDS {
            assert!(keys(sequence) <= 3, "{what}");
            let mut app = on_the_row(size);
            press(&mut app, sequence);
            let seen = text(&drawn(&mut app));
            // A view that scrolls tells the rest a page further.
            press(&mut app, "<pgdn>");
            let all = format!("{seen}\n{}", text(&drawn(&mut app)));
            for word in words {
                assert!(all.contains(word), "{what} at {size:?} by `{sequence}`: no `{word}` in\n{all}");
            }
        }
    }
}

/// On the card, without a key, where there is room.
#[test]
fn the_whole_model_is_on_the_card_where_it_has_room() {
    let mut app = fixture::app(fixture::verdict().state, Settings::default(), (200, 60));
    let seen = text(&drawn(&mut app));
    for words in ["round 1: p50", "images/s", "peak memory", "weights"] {
        assert!(seen.contains(words), "{words}: {seen}");
    }
}

/// Freezing a block: `v` on its row vetoes all that could be decided in it, which binds later proposals (`host/commands/many`).
#[test]
fn a_block_is_frozen_in_three_keys() {
    for size in [(80, 24), (120, 40), (200, 60)] {
        let mut app = fixture::app(fixture::profiled().state, Settings::default(), size);
        // A fresh list begins with a block.
        assert!(text(&drawn(&mut app)).contains("▸ blocks.") || text(&drawn(&mut app)).contains("▾ blocks."));
        let effects = press(&mut app, "v<enter>");
        let vetoed = |e: &Effect| match e {
            Effect::Send(Command::VetoAll { targets, .. }) => targets.len(),
            _ => 0,
        };
        assert!(effects.iter().map(vetoed).sum::<usize>() > 1, "{effects:?}");
    }
}
