//! The baseline that rows are held against: the profile of a round, or the figures as they were when they were pinned.
//!
//! Here: what is pinned and how a row changed against it. Not here: how that is drawn. Invariant: figures of passes are held against figures of passes,
//! those of a token against those of a token.

use super::app::{App, Level};
use super::table::Table;
use crate::profile::Profile;
use std::collections::HashMap;

/// What rows are held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Round(u32),
    /// The figures of a round as they were then.
    Taken {
        round: u32,
        at_ms: i64,
    },
}

/// A row's figures then.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Then {
    /// Milliseconds a batch.
    p50: f64,
    /// Half of the range around it, as a part of it.
    spread: f64,
    doubtful: bool,
}

/// The baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct Pin {
    what: What,
    /// Of one token after a context.
    tokens: bool,
    rows: HashMap<String, Then>,
}

/// How a row's time changed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// A part: 0.1 is 10 % slower.
    pub part: f64,
    /// The ranges around both medians meet: no change is shown by it.
    pub within: bool,
    /// What it is held against was in doubt.
    pub doubtful: bool,
}

impl Pin {
    fn of(what: What, tokens: bool, profile: &Profile) -> Pin {
        let then = |r: &crate::profile::LayerRow| Then {
            p50: profile.ms(r),
            spread: r.latency.spread(),
            doubtful: r.doubt.is_some(),
        };
        Pin { what, tokens, rows: profile.rows.iter().map(|r| (r.name.clone(), then(r))).collect() }
    }

    /// How layer `i` changed.
    pub fn layer(&self, table: &Table, i: usize) -> Option<Change> {
        self.change(table, &[i])
    }

    /// How the layers of a block changed together.
    pub fn block(&self, table: &Table, b: usize) -> Option<Change> {
        self.change(table, &table.blocks.get(b)?.layers)
    }

    /// `None` where a row that runs now was not measured then, or is not now. One that is gone takes no time.
    fn change(&self, table: &Table, layers: &[usize]) -> Option<Change> {
        let (mut now, mut then, mut off, mut doubtful) = (0.0, 0.0, 0.0, false);
        for l in layers.iter().filter_map(|&i| table.layers.get(i)) {
            let was = self.rows.get(&l.name);
            if !l.gone {
                let p50 = l.fig.p50?;
                was?;
                now += p50;
                off += p50 * l.spread;
            }
            if let Some(was) = was {
                then += was.p50;
                off += was.p50 * was.spread;
                doubtful |= was.doubtful;
            }
        }
        let part = now / then - 1.0;
        part.is_finite().then_some(Change { part, within: (now - then).abs() <= off, doubtful })
    }
}

impl App {
    /// `:pin`, `:pin 2`, `:pin off`.
    pub(super) fn pin(&mut self, words: &str) {
        let newest = self.table.of_round;
        let what = match (words.trim(), newest) {
            ("off", _) => {
                let none = self.pinned.take().is_none();
                let said = if none { "nothing was pinned" } else { "nothing is pinned any more" };
                self.resort_by_change();
                return self.nothing(said);
            }
            ("" | "now", Some(round)) => What::Taken { round, at_ms: self.now_ms },
            ("" | "now", None) => {
                let key = self.label(crate::config::Act::Profile);
                return self.say(Level::Warn, format!("nothing is measured that could be pinned; {key} measures"));
            }
            (word, _) => match word.trim_start_matches('r').parse() {
                Ok(round) => What::Round(round),
                Err(_) => {
                    let said = format!(
                        "`{word}` is no round; hint: `:pin` pins what is shown, `:pin 0` the original, `:pin off`"
                    );
                    return self.say(Level::Bad, said);
                }
            },
        };
        let (What::Round(round) | What::Taken { round, .. }) = what;
        match self.figures_of(round) {
            Some(profile) => self.pinned = Some(Pin::of(what, self.tokens, profile)),
            None => {
                let all: Vec<String> = self.pinnable().iter().map(u32::to_string).collect();
                let there = if all.is_empty() {
                    format!("{} measures", self.label(crate::config::Act::Profile))
                } else {
                    format!("there are those of {}", all.join(", "))
                };
                return self.say(Level::Bad, format!("round {round} has no profile to pin; hint: {there}"));
            }
        }
        let (shown, change) = (self.columns.shown(), super::columns::Column::Figure(super::columns::Figure::Change));
        if !shown.contains(&change) {
            self.columns.show(change);
        }
        self.resort_by_change();
        let what = self.pinned_words().unwrap_or_default();
        self.say(Level::Good, format!("rows are held against {what}"));
    }

    /// Rounds that have figures of what is shown.
    pub(super) fn pinnable(&self) -> Vec<u32> {
        self.state.rounds.iter().map(|r| r.number).filter(|&r| self.figures_of(r).is_some()).collect()
    }

    fn figures_of(&self, round: u32) -> Option<&Profile> {
        if self.tokens { self.state.decoding_of(round) } else { self.state.profile_of(round) }
    }

    /// The baseline, where it is of what is shown.
    pub fn baseline(&self) -> Option<&Pin> {
        self.pinned.as_ref().filter(|p| p.tokens == self.tokens)
    }

    /// What rows are held against, in words.
    pub fn pinned_words(&self) -> Option<String> {
        let pin = self.pinned.as_ref()?;
        let (was, is) = if pin.tokens { ("a token", "passes") } else { ("a pass", "tokens") };
        Some(match pin.what {
            _ if pin.tokens != self.tokens => format!("nothing: what is pinned is of {was}, shown are {is}"),
            What::Round(0) => "the original".to_owned(),
            What::Round(round) => format!("round {round}"),
            What::Taken { round, at_ms } => {
                let of = if round == 0 { "the original".to_owned() } else { format!("round {round}") };
                format!("{of} as of {}", super::num::clock(at_ms))
            }
        })
    }

    /// A round that is pinned may have been measured again, or be no more.
    pub(super) fn repin(&mut self) {
        let Some(Pin { what: What::Round(round), tokens, .. }) = self.pinned else { return };
        let profile = if tokens { self.state.decoding_of(round) } else { self.state.profile_of(round) };
        self.pinned = profile.map(|p| Pin::of(What::Round(round), tokens, p));
    }

    fn resort_by_change(&mut self) {
        if self.list.sort.is_some() {
            self.resort();
        }
        self.dirty = true;
    }
}
