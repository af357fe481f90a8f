//! The report as a page: it is sound HTML that asks for nothing, holds what Markdown holds, and lets no name out of its text.

use crate::fixture;
use paring::config::Settings;
use paring::plan::{Constraint, Limit, Status, Target};
use paring::profile::{Ladder, LadderPoint};
use paring::quant::Precision;
use paring::session::State;
use paring::tui::report::{Form, of_state};

/// A tag as it stands: its name, whether it ends an element, its attributes.
struct Tag {
    name: String,
    ends: bool,
    empty: bool,
    attributes: Vec<(String, String)>,
}

/// Tags of a page and the text between them, in order. What is no sound HTML fails here.
fn parsed(page: &str) -> Vec<Result<Tag, String>> {
    let mut rest = page.strip_prefix("<!DOCTYPE html>\n").expect("an HTML5 document");
    let mut out = Vec::new();
    while let Some(at) = rest.find('<') {
        out.push(Err(unescaped(&rest[..at])));
        let end = at + rest[at..].find('>').expect("a tag's end");
        let inner = &rest[at + 1..end];
        rest = &rest[end + 1..];
        let (ends, inner) = (inner.starts_with('/'), inner.trim_start_matches('/'));
        let (empty, inner) = (inner.ends_with('/'), inner.trim_end_matches('/'));
        let (name, mut more) = inner.split_once(' ').unwrap_or((inner, ""));
        assert!(!name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()), "a tag called `{name}`");
        let mut attributes = Vec::new();
        while let Some((key, after)) = more.trim_start().split_once("=\"") {
            let (value, after) = after.split_once('"').expect("a value's end");
            attributes.push((key.to_owned(), value.to_owned()));
            more = after;
        }
        assert_eq!(more.trim(), "", "attributes of <{inner}>");
        // A style sheet is no markup.
        if name == "style" && !ends {
            let until = rest.find("</style>").expect("its end");
            let sheet = &rest[..until];
            assert!(!sheet.contains("url(") && !sheet.contains("@import") && !sheet.contains('<'));
            rest = &rest[until..];
        }
        out.push(Ok(Tag { name: name.to_owned(), ends, empty, attributes }));
    }
    assert_eq!(rest.trim(), "");
    out
}

fn unescaped(text: &str) -> String {
    assert!(!text.contains('>'), "a `>` that ends nothing in {text:?}");
    let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
    for (at, _) in text.match_indices('&') {
        assert!(known.iter().any(|k| text[at..].starts_with(k)), "a bare `&` in {text:?}");
    }
    let plain = text.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&#39;", "'");
    plain.replace("&amp;", "&")
}

/// Fails where elements do not nest, or where anything would be loaded or run.
fn sound(page: &str) {
    const VOID: [&str; 1] = ["meta"];
    const DRAWN: [&str; 5] = ["line", "rect", "circle", "path", "text"];
    const KNOWN: [&str; 31] = [
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "main",
        "h1",
        "h2",
        "nav",
        "a",
        "section",
        "p",
        "ul",
        "li",
        "code",
        "strong",
        "div",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "figure",
        "figcaption",
        "svg",
        "details",
        "summary",
        "g",
        "span",
    ];
    let mut open: Vec<String> = Vec::new();
    let mut ids: Vec<String> = Vec::new();
    let mut links: Vec<String> = Vec::new();
    for tag in parsed(page).into_iter().flatten() {
        assert!(KNOWN.contains(&&*tag.name) || DRAWN.contains(&&*tag.name), "<{}>", tag.name);
        for (key, value) in &tag.attributes {
            match key.as_str() {
                "href" => links.push(value.strip_prefix('#').expect("a link within the page").to_owned()),
                "id" => ids.push(value.clone()),
                "class" | "lang" | "charset" | "content" | "name" | "http-equiv" | "role" | "aria-label"
                | "viewBox" => {}
                "aria-hidden" | "x" | "y" | "x1" | "x2" | "y1" | "y2" | "cx" | "cy" | "r" | "d" | "width"
                | "height" => {
                    assert!(!value.contains("NaN") && !value.contains("inf"), "{key}={value}");
                }
                "text-anchor" | "transform" => {}
                other => panic!("an attribute {other}=\"{value}\" of <{}>", tag.name),
            }
        }
        match (tag.ends, tag.empty || VOID.contains(&&*tag.name)) {
            (true, _) => assert_eq!(open.pop().as_deref(), Some(tag.name.as_str())),
            (false, true) => {}
            (false, false) => open.push(tag.name),
        }
    }
    assert_eq!((open.len(), links), (0, ids), "all is closed, and every section is linked");
}

/// Rows of tables, heads included; not of those that are folded away.
fn rows(page: &str) -> Vec<Vec<String>> {
    let (mut out, mut folded, mut cell): (Vec<Vec<String>>, bool, bool) = (Vec::new(), false, false);
    for piece in parsed(page) {
        match piece {
            Ok(t) if t.name == "details" => folded = !t.ends,
            Ok(t) if t.name == "tr" && !t.ends && !folded => out.push(Vec::new()),
            Ok(t) if t.name == "td" || t.name == "th" => cell = !t.ends && !folded,
            Err(text) if cell => out.last_mut().expect("a row").push(text),
            _ => {}
        }
    }
    out
}

/// The same of Markdown.
fn rows_of_markdown(text: &str) -> Vec<Vec<String>> {
    let rows = text.lines().filter_map(|l| l.strip_prefix("| ")?.strip_suffix(" |"));
    let cells = |row: &str| row.split(" | ").map(|c| c.replace("\\|", "|").replace("\\<", "<")).collect::<Vec<_>>();
    rows.map(cells).filter(|r| r.iter().any(|c| c != "---")).collect()
}

fn page(state: State) -> String {
    of_state(state, Settings::default(), Form::Html)
}

#[test]
fn the_page_is_sound_and_holds_the_figures_that_markdown_holds() {
    let states = [State::default(), fixture::profiled().state, fixture::review().state, fixture::verdict().state];
    for state in states.into_iter().chain([fixture::rolled_back().state]) {
        let page = page(state.clone());
        sound(&page);
        let markdown = of_state(state.clone(), Settings::default(), Form::Markdown);
        let (here, there) = (rows(&page), rows_of_markdown(&markdown));
        assert_eq!(here, there);
        // Every round has its row, and where there are two or more its point.
        let evaluated: Vec<String> = state
            .rounds
            .iter()
            .filter(|r| r.evaluation.is_some())
            .map(|r| if r.number == 0 { "baseline".to_owned() } else { r.number.to_string() })
            .collect();
        let at = here.iter().position(|r| r.first().is_some_and(|c| c == "round"));
        let told =
            at.map_or(Vec::new(), |at| here[at + 1..].iter().take(evaluated.len()).map(|r| r[0].clone()).collect());
        assert_eq!(told, evaluated);
        for name in evaluated.iter().filter(|_| evaluated.len() > 1).skip(1) {
            assert!(page.contains(&format!(">round {name}</text>")), "round {name} is drawn");
        }
    }
}

#[test]
fn what_was_not_measured_has_no_place_on_the_page() {
    let bare = page(fixture::profiled().state);
    for missing in ["Classes", "Latency by width", "Expected and measured", "Constraints", "Repairs", "Healing"] {
        assert!(!bare.contains(&format!(">{missing}")), "{missing}");
    }
    let whole = page(fixture::verdict().state);
    for there in
        ["In force", "Rounds", "Decisions", "Sensitivities", "How it was measured", "Timeline", "Layers (round 1)"]
    {
        assert!(whole.contains(&format!("<h2>{there}")), "{there}");
    }
    assert!(whole.contains("Wilson&#39;s 95 % interval") && whole.contains("waits for its verdict"));
}

#[test]
fn a_hollow_point_is_what_is_expected_or_in_doubt() {
    let mut state = fixture::verdict().state;
    let point = |out_width, ms, noisy| LadderPoint {
        in_width: 8,
        out_width,
        precision: Precision::F32,
        ms,
        spread: 0.1,
        noisy,
    };
    let points = vec![point(4, 1.0, false), point(8, 2.0, true)];
    state.ladders = vec![Ladder { layer: "only".into(), points, own: vec![] }];
    let page = page(state);
    sound(&page);
    let drawn = page.split("<figcaption>only</figcaption>").nth(1).and_then(|r| r.split("</figure>").next());
    let drawn = drawn.expect("the ladder's picture");
    assert_eq!((drawn.matches("class=\"full").count(), drawn.matches("class=\"hollow").count()), (1, 1), "{drawn}");
    // Each with the bar of what another measurement may find.
    assert_eq!(drawn.matches("class=\"bar").count(), 2);
}

#[test]
fn no_name_leaves_its_text() {
    let hostile = "\"><script src=http://x>a</script><img src=x onerror=1>'|&amp;\u{1b}]8;;http://x\u{202e}";
    let mut state = fixture::verdict().state;
    let card = state.card.as_mut().expect("a card");
    card.model.name = hostile.into();
    card.model.source = hostile.into();
    card.device = hostile.into();
    card.data.class_names = vec![hostile.into(); 10];
    state.rounds[1].rolled_back = Some(hostile.into());
    state.constraints.push(Constraint {
        target: Target::Group(hostile.into()),
        limit: Limit::Together { set: hostile.into() },
        reason: hostile.into(),
    });
    for d in &mut state.decisions {
        d.rationale = hostile.into();
        if d.status == Status::Vetoed {
            d.veto_reason = Some(hostile.into());
        }
    }
    for e in &mut state.timeline {
        e.text = hostile.into();
    }
    if let Some(profile) = &mut state.rounds[0].profile {
        profile.rows[0].name = hostile.into();
        profile.rows[0].kernel = hostile.into();
    }
    let page = page(state.clone());
    sound(&page);
    assert!(
        !page.contains('\u{1b}') && !page.contains('\u{202e}') && !page.contains("<script") && !page.contains("<img")
    );
    assert!(page.contains("&quot;&gt;&lt;script src=http://x&gt;"), "it is told as it is");
    let markdown = of_state(state, Settings::default(), Form::Markdown);
    assert!(
        !markdown.contains("<script")
            || markdown.matches("<script").count()
                == markdown.matches("\\<script").count() + markdown.matches("`\"><script").count()
    );
    assert_eq!(rows(&page), rows_of_markdown(&markdown));
}
