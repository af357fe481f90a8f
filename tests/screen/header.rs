//! The header tells whole figures or none, at every width.

use crate::{drawn, fixture, text};
use paring::config::Settings;
use paring::session::{Event, State};

/// `state` with another budget.
fn with_budget(mut story: fixture::Story, budget: &str) -> State {
    story.push(Event::BudgetSet { budget: budget.parse().expect("a budget") });
    story.state
}

fn rows(state: &State, size: (u16, u16)) -> Vec<String> {
    let mut app = fixture::app(state.clone(), Settings::default(), size);
    text(&drawn(&mut app)).lines().map(str::to_owned).collect()
}

/// Every figure of the header's first line with its name; fails on one that is not whole.
fn figures(line: &str) -> Vec<(String, String)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let names = ["latency", "mem", "MACs", "params", "top-1"];
    let mut out = Vec::new();
    for (i, name) in words.iter().enumerate().filter(|(_, w)| names.contains(w)) {
        let value = words.get(i + 1).copied().unwrap_or("");
        let digits = value.trim_start_matches(['~', '−', '+', '±']);
        let whole = match *name {
            "top-1" => digits.split_once('.').is_some_and(|(_, d)| d.len() == 2),
            _ => digits.strip_suffix('x').and_then(|v| v.split_once('.')).is_some_and(|(_, d)| d.len() == 2),
        };
        assert!(whole || value == "—", "`{name} {value}` is cut: {line}");
        out.push(((*name).to_owned(), value.to_owned()));
    }
    out
}

const BUDGETS: [&str; 5] = [
    "drop=1",
    "macs=0.6,drop=1",
    "macs=0.6,latency=0.6,drop=1",
    "macs=0.6,latency=0.6,memory=0.3,drop=1",
    "macs=0.6,latency=0.6,memory=0.3,params=0.5,drop=0.5",
];

#[test]
fn no_width_shows_half_a_figure_or_a_goal_in_the_phases() {
    for budget in BUDGETS {
        for state in [with_budget(fixture::review(), budget), with_budget(fixture::verdict(), budget)] {
            for width in 16..=130 {
                for height in [12, 40] {
                    let rows = rows(&state, (width, height));
                    figures(&rows[0]);
                    if width < 108 || height < 28 {
                        continue;
                    }
                    let line = &rows[1];
                    assert!(line.contains("✎ pen") && line.contains("drop ≤ "), "{width}: {line}");
                    let course = line.split("drop ≤ ").next().expect("text");
                    let last = course.rsplit('❯').next().unwrap_or("").split_whitespace().next().unwrap_or("");
                    let phases = ["profile", "reason", "review", "compress", "evaluate", "verdict", "round"];
                    let short = last.strip_prefix('r').is_some_and(|n| n.parse::<u32>().is_ok());
                    assert!(short || phases.contains(&last), "{width}: `{last}` runs into the goal: {line}");
                }
            }
        }
    }
}

#[test]
fn a_bar_beyond_its_tick_is_beyond_its_goal() {
    let bar = |budget: &str| {
        let line = rows(&with_budget(fixture::verdict(), budget), (200, 60))[0].clone();
        let rest = line.split("latency 0.62x ").nth(1).unwrap_or_else(|| panic!("{line}")).to_owned();
        rest.split_whitespace().next().unwrap_or_default().to_owned()
    };
    assert_eq!(bar("latency=0.6,drop=1"), "▓▓▓▓▓│▓░░", "0.62 is over 0.60");
    assert_eq!(bar("latency=0.63,drop=1"), "▓▓▓▓▓│░░░", "0.62 is under 0.63");
    assert_eq!(bar("latency=0.1,drop=1"), "▓│▓▓▓▓░░░");
}

#[test]
fn accuracy_is_the_last_figure_to_go() {
    for budget in BUDGETS {
        for state in [with_budget(fixture::review(), budget), with_budget(fixture::verdict(), budget)] {
            for size in [(40, 12), (60, 20), (80, 24), (108, 28), (120, 40), (200, 60)] {
                let line = &rows(&state, size)[0];
                let shown = figures(line);
                assert!(shown.iter().any(|(n, _)| n == "top-1"), "{size:?} {budget}: {line}");
            }
        }
    }
    // Two goals have room beside it where a review is usually done.
    let line = &rows(&with_budget(fixture::review(), BUDGETS[2]), (120, 40))[0];
    assert_eq!(figures(line).len(), 3, "{line}");
    assert!(line.contains("vit_b16"), "{line}");
    // And one on the smallest screen.
    let line = &rows(&with_budget(fixture::review(), BUDGETS[1]), (40, 12))[0];
    assert_eq!(figures(line).len(), 2, "{line}");
}
