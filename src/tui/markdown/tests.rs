//! What agents write, set: as it stands, while it grows, and where it is hostile.

use super::*;
use crate::config::text::width as columns;

/// All lines of a finished text.
fn lines(text: &str, width: usize) -> Vec<Rendered> {
    let (mut place, mut out) = (Place::default(), Vec::new());
    settle(text, &mut place, width, &mut out);
    rest(text, &place, false, width, &mut out);
    out
}

fn texts(text: &str, width: usize) -> Vec<String> {
    lines(text, width).into_iter().map(|l| l.text).collect()
}

/// The words of a line that look like that.
fn looking(line: &Rendered, look: impl Fn(&Look) -> bool) -> Vec<&str> {
    line.looks.iter().filter(|(_, l)| look(l)).map(|(r, _)| &line.text[r.clone()]).collect()
}

#[test]
fn what_markdown_has_is_set() {
    let text = "# Plan\n\nCut **fc1** by *a lot of* it, see [the paper](https://x.org/a) and `layer1.0`.\n\n- one\n  - two\n    more\n- three\n\n\
                7. seven\n8. eight\n\n> quoted\n> twice\n\n```json\n{\"a\": 1}\n  b\n```\n\n---\nend";
    let all = lines(text, 80);
    let told: Vec<&str> = all.iter().map(|l| l.text.as_str()).collect();
    let rule = "─".repeat(40);
    let want = [
        "Plan",
        "",
        "Cut fc1 by a lot of it, see the paper (https://x.org/a) and layer1.0.",
        "",
        "• one",
        "  • two",
        "    more",
        "• three",
        "",
        "7. seven",
        "8. eight",
        "",
        "┃ quoted",
        "┃ twice",
        "",
        "  {\"a\": 1}",
        "    b",
        "",
        &rule,
        "end",
    ];
    assert_eq!(told, want);
    assert_eq!(looking(&all[0], |l| l.heading), ["Plan"]);
    assert_eq!(looking(&all[2], |l| l.strong), ["fc1"]);
    assert_eq!(looking(&all[2], |l| l.emphasis), ["a lot of"]);
    assert_eq!(looking(&all[2], |l| l.code), ["layer1.0"]);
    assert_eq!(looking(&all[2], |l| l.link), ["the paper (https://x.org/a)"]);
    assert_eq!(looking(&all[15], |l| l.code), ["{\"a\": 1}"]);
    assert_eq!(looking(&all[12], |l| l.mark), ["┃ "]);
}

#[test]
fn names_and_figures_stay_as_they_were_written() {
    for text in [
        "layer1_0_conv1 and layer2_1_conv2",
        "blocks.*.mlp and blocks.*.attn",
        "*.mlp.fc1, *.mlp.fc2",
        "*.mlp and blocks.*",
        "layers like *conv* or *fc*",
        "_private_ and __init__",
        "from ~0.3 to ~0.5 ms, 2*3*4 = 24, $3 or $4",
        "a * b * c, x ** y",
        "prune_ratio_max * size_of_group",
        "x[0](y) and [1, 2](see)",
        "[critic]: agrees",
        "- [a]: b",
        "see [critic] and [1]",
        "<think>5 < 6 && 7 > 3</think>",
        "~~no~~ \"quotes\" -- and ... dots",
        "layer*.conv? and blocks.**.mlp, x.**.y",
    ] {
        let want = text.replace("- [a]", "• [a]");
        assert_eq!(texts(text, 200), [want], "{text}");
    }
    // Strong words around a name leave the name alone.
    let strong = lines("**blocks.*.mlp** (**layer1_0_conv1**) **a**/**b**", 80).remove(0);
    assert_eq!(strong.text, "blocks.*.mlp (layer1_0_conv1) a/b");
    assert_eq!(looking(&strong, |l| l.strong), ["blocks.*.mlp", "layer1_0_conv1", "a", "b"]);
    let both = lines("***both*** at once", 80).remove(0);
    assert_eq!((both.text.as_str(), looking(&both, |l| l.strong && l.emphasis)), ("both at once", vec!["both"]));
    // Definitions that are told twice, in quotes, before other things.
    assert_eq!(texts("[a]: x\n[a]: y\n\n> [b]: z\n\nend", 80).concat().matches("]: ").count(), 3);
}

#[test]
fn tables_are_aligned_where_they_fit_and_else_stand_as_they_are() {
    let text = "| layer | ms |\n|:--|--:|\n| `fc1` | 0.5 |\n| attention | 12.25 |\nafter | it\n";
    let all = lines(text, 40);
    let told: Vec<&str> = all.iter().map(|l| l.text.as_str()).collect();
    let want = ["layer         ms", "─────────  ─────", "fc1          0.5", "attention  12.25", "after         it"];
    assert_eq!(told, want);
    assert_eq!(looking(&all[0], |l| l.strong), ["layer", "ms"]);
    assert_eq!(looking(&all[2], |l| l.code), ["fc1"]);
    assert_eq!(texts("| layer | ms |\n|:--|--:|\n| attention | 12.25 |", 15)[0], "| layer | ms |");
}

#[test]
fn wrapped_words_keep_their_looks() {
    for width in 1..40 {
        let all = lines(
            "some **strong words that go on** and `code of it` modelled 模型 **模型模型模型**\n\n- an item that is long",
            width,
        );
        let strong: String = all.iter().flat_map(|l| looking(l, |l| l.strong)).collect();
        assert_eq!(strong.replace(' ', ""), "strongwordsthatgoon模型模型模型", "{width}");
        assert!(all.iter().all(|l| columns(&l.text) <= width.max(8)), "{width}");
    }
}

/// What is seen of `text` behind what was settled before, which is elsewhere.
fn step_of(text: &str, live: bool, place: &mut Place, width: usize, kept: &mut Vec<String>) -> Vec<String> {
    let (mut settled, mut last) = (Vec::new(), Vec::new());
    settle(text, place, width, &mut settled);
    kept.extend(settled.into_iter().map(|l| l.text));
    rest(text, place, live, width, &mut last);
    kept.iter().cloned().chain(last.into_iter().map(|l| l.text)).collect()
}

/// What is seen while `text` grows by `step` letters at a time.
fn grown(text: &str, step: usize, width: usize) -> Vec<Vec<String>> {
    let letters: Vec<char> = text.chars().collect();
    let (mut place, mut kept, mut seen) = (Place::default(), Vec::new(), Vec::new());
    for end in (0..=letters.len()).step_by(step) {
        let so_far: String = letters[..end].iter().collect();
        seen.push(step_of(&so_far, true, &mut place, width, &mut kept));
    }
    seen.push(step_of(text, false, &mut place, width, &mut kept));
    seen
}

const STREAM: &str = "# Where it goes\n\nFirst a **strong claim** about `blocks.0.mlp`, then more.\nA second line\n- one **bold** item\n\
                      - two\n\n  with a paragraph\n\n> a quote\n> goes on\n\n```json\n{\"layer1_0\": [1, 2]}\n\n# no heading\n```\nAfter **all** of it.\n";

#[test]
fn a_stream_ends_as_the_whole_text_and_nothing_earlier_moves() {
    let whole = texts(STREAM, 60);
    for step in [1, 3, 17] {
        let seen = grown(STREAM, step, 60);
        assert_eq!(seen.last(), Some(&whole), "{step}");
        for (before, after) in seen.iter().zip(&seen[1..]) {
            // All but the last block stays, and of that nothing is lost: what was seen goes on.
            let settled = before.len().saturating_sub(2);
            for (a, b) in before[..settled].iter().zip(after) {
                assert!(b.starts_with(a.as_str()), "{step}: {a:?} became {b:?}");
            }
            assert!(after.len() + 1 >= before.len(), "{step}: {before:?} became {after:?}");
        }
    }
}

#[test]
fn strong_words_and_code_that_are_not_over_show_as_what_they_become() {
    let now = |text: &str| {
        let mut out = Vec::new();
        rest(text, &Place::default(), true, 60, &mut out);
        (out.iter().map(|l| l.text.clone()).collect::<Vec<_>>().join("\n"), out)
    };
    let (text, all) = now("some **words that");
    assert_eq!((text.as_str(), looking(&all[0], |l| l.strong)), ("some words that", vec!["words that"]));
    assert_eq!(now("some `code").0, "some code");
    for (text, want) in
        [("a\n-", "a"), ("a\n``", "a"), ("a **", "a"), ("a\n```js\nx = **b", "a\n  x = **b"), ("2 ** 3", "2 ** 3")]
    {
        assert_eq!(now(text).0, want, "{text}");
    }
}

#[test]
fn hostile_text_is_bounded_and_plain() {
    let many = |s: &str, n: usize| s.repeat(n);
    let table = format!("{}\n{}\n", many("|a", 3000), many("|-", 3000));
    for text in [
        many("> ", 6_000) + "x",
        many("- ", 6_000) + "x",
        many("*a ", 12_000),
        many("**", 12_000),
        many("[", 12_000),
        many("[a](", 6_000),
        many("`", 20_000) + " ``",
        many("a", 40_000),
        many("\n", 20_000),
        many("> a\n", 6_000),
        many("1. a\n", 6_000),
        many("[a]: b\n", 6_000),
        many("<a>", 6_000),
        many("&#27;[2J&#x202e;&lt;", 2_000),
        table,
        format!("```\n{}", many("code line\n", 10_000)),
    ] {
        for width in [0, 9, 60] {
            let all = lines(&text, width);
            assert!(all.iter().all(|l| !l.text.chars().any(crate::plain::hostile)), "{:?}", &text[..20]);
            let named = all.iter().flat_map(|l| l.looks.iter().map(move |(r, _)| l.text.get(r.clone())));
            assert!({ named }.all(|t| t.is_some()), "{:?}", &text[..20]);
        }
        grown(&text[..text.len().min(4000)], 97, 20);
    }
    // Code that is longer than what is read at once stays code.
    let code = format!("```py\n{}```\nend", many("**x** = 1\n", 5_000));
    let all = texts(&code, 60);
    assert_eq!((all.len(), all.last().map(String::as_str)), (5_001, Some("end")));
    assert!(all[..5_000].iter().all(|l| l == "  **x** = 1"));
}

#[test]
fn a_long_text_is_not_read_anew_for_every_token() {
    let mut text = String::new();
    let (mut place, mut kept) = (Place::default(), Vec::new());
    let begun = std::time::Instant::now();
    for i in 0..4_000 {
        text.push_str(if i % 10 == 9 { "word\n\n" } else { "word " });
        settle(&text, &mut place, 60, &mut kept);
        rest(&text, &place, true, 60, &mut Vec::new());
        assert!(text.len() - place.at < 300, "the tail is short");
    }
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    // One endless line: a bounded tail as well.
    for _ in 0..800 {
        text.push_str("endless words of one line ");
        settle(&text, &mut place, 60, &mut kept);
        assert!(text.len() - place.at <= MOST, "the tail is bounded");
    }
}
