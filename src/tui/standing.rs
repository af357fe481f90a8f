//! Where a target stands, in words: short beside a glyph, and in full with what it would go back to.

use super::app::App;
use crate::config::text::clean;
use crate::plan::{Action, Constraint, Decision, Limit, Status, Target};
use crate::session::{Planned, Standing, action_text};

/// A standing in a word or two.
pub fn word(standing: Standing) -> String {
    match standing {
        Standing::Free => "open".into(),
        Standing::Proposed => "proposed".into(),
        Standing::Edited => "edited".into(),
        Standing::Approved => "approved".into(),
        Standing::InForce { since } => format!("in force r{since}"),
        Standing::Leaving { since } => format!("vetoed, leaves r{since}"),
        Standing::Vetoed => "vetoed".into(),
        Standing::RolledBack => "rolled back".into(),
    }
}

impl App {
    /// What runs on `target` now and what the newest decision there came to, where the word alone does not say it.
    pub fn story(&self, target: &Target) -> Option<String> {
        let here = self.state.planned(target);
        let stays = |(d, since): (&Decision, u32)| format!("round {since}'s {}", action_text(&d.action));
        match here.standing() {
            Standing::Free => None,
            Standing::Proposed | Standing::Edited | Standing::Approved => {
                Some(format!("until this runs, {} stays in force", stays(here.in_force?)))
            }
            Standing::InForce { since } if since == self.state.round => {
                Some(format!("in round {since}, which waits for its verdict"))
            }
            Standing::InForce { since } => {
                let fate = self.fate(&here).map(|f| format!("; {f}")).unwrap_or_default();
                Some(format!("in force since round {since}{fate}"))
            }
            Standing::Leaving { since } => {
                Some(format!("in force since round {since}, vetoed since: the next run goes back to the original here"))
            }
            Standing::Vetoed | Standing::RolledBack => {
                // A block that stays says nothing of what is cut inside it.
                let now = match target {
                    Target::Block(_) => "stays, with what is decided on its rows",
                    _ => "as in the original",
                };
                Some(format!("{now}; {}", self.fate(&here).unwrap_or_else(|| "frozen".into())))
            }
        }
    }

    /// What became of the newest decision, where it is not what is in force.
    fn fate(&self, here: &Planned<'_>) -> Option<String> {
        let d = here.newest.filter(|d| here.in_force.is_none_or(|(f, _)| f.id != d.id))?;
        let what = action_text(&d.action);
        match d.status {
            Status::RolledBack => {
                let round =
                    self.state.rounds.iter().rev().find(|r| r.ids.contains(&d.id)).map_or(d.round, |r| r.number);
                Some(format!("round {round}'s {what} was rolled back"))
            }
            Status::Vetoed => {
                let why = d.veto_reason.as_deref().map(clean).filter(|r| !r.is_empty());
                Some(format!("{what} was vetoed{}", why.map(|r| format!(": {r}")).unwrap_or_default()))
            }
            Status::Proposed | Status::Edited | Status::Approved | Status::Applied => None,
        }
    }
}

/// What a freeze of the target forbids.
pub fn kind(target: &Target) -> &'static str {
    match target {
        Target::Group(_) => "cuts",
        Target::Layer(_) => "precision, zeros, factors",
        Target::Block(_) => "removal",
        Target::Weights(_) => "zeros or factors",
    }
}

/// What a constraint binds, in a few words.
pub fn bound(c: &Constraint) -> String {
    match c.limit {
        Limit::Freeze => format!("{} frozen", kind(&c.target)),
        Limit::MaxRatio { ratio } => format!("at most {:.0} %", ratio * 100.0),
        Limit::MinRatio { ratio } => format!("at least {:.0} %", ratio * 100.0),
        Limit::KeepF32 => "stays f32".to_owned(),
        Limit::Together { ref set } => format!("together: {}", crate::config::text::clean(set)),
        Limit::Prefer { wish } => wish.to_string(),
    }
}

/// What the next run builds on a target, for a table: the action, or that it is as in the original.
pub fn builds(here: &Planned<'_>) -> String {
    match here.runs().map(|d| &d.action) {
        None | Some(Action::Keep) => "as in the original".into(),
        Some(action) => action_text(action),
    }
}
