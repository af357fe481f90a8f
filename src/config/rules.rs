//! Rules by name pattern: what binds a session, read from a file, and what answers in a person's place where nobody sits at the terminal.
//!
//! ```toml
//! default = "approve"            # what happens to proposals that no rule names: approve or veto (runs without a person)
//! [[rule]]
//! match = "layer1.*"             # against the names of groups, layers and blocks; `*` any run, `?` any one
//! kind = "group"                 # optional: group, layer or block
//! do = "veto"                    # veto, limit, at_least, keep_f32, together, prefer or approve
//! ratio = 0.3                    # of limit and at_least
//! wish = "int8"                  # of prefer: cut, spare or a precision
//! reason = "first stage is thin"
//! ```
//! All but approvals become constraints before anything is proposed. Of several rules of one kind the first that matches counts; `approve` excepts
//! what it matches from every rule behind it.

use crate::config::text::{clean, glob};
use crate::plan::{Constraint, Decision, Limit, Target, TargetKind, Wish};
use crate::session::SessionCard;
use serde::{Deserialize, Serialize, Serializer};
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    Veto,
    Limit,
    AtLeast,
    KeepF32,
    /// What it matches is decided alike, groups by their cuts and layers by their precisions.
    Together,
    Prefer,
    Approve,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    #[default]
    Approve,
    Veto,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    #[serde(rename = "match")]
    pub pattern: String,
    #[serde(default, serialize_with = "kind_word", skip_serializing_if = "Option::is_none")]
    pub kind: Option<TargetKind>,
    #[serde(rename = "do")]
    pub verb: Verb,
    #[serde(default)]
    pub ratio: Option<f64>,
    #[serde(default)]
    pub wish: Option<String>,
    #[serde(default)]
    pub reason: String,
}

/// As it is read.
fn kind_word<S: Serializer>(kind: &Option<TargetKind>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(match kind {
        Some(TargetKind::Group) => "group",
        Some(TargetKind::Layer) => "layer",
        Some(TargetKind::Block) => "block",
        Some(TargetKind::Weights) => "weights",
        None => "",
    })
}

/// No set of rules comes near this many bytes.
const MAX_BYTES: u64 = 1 << 20;

/// How proposals are answered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    #[serde(default)]
    pub default: Fallback,
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule>,
    /// The file, for reports; empty for `auto`.
    #[serde(skip)]
    pub file: String,
}

impl Policy {
    /// `auto`, or a file of rules.
    pub fn load(word: &str) -> Result<Policy, String> {
        if word == "auto" {
            return Ok(Policy::default());
        }
        let text = crate::files::read_text(Path::new(word), MAX_BYTES)
            .map_err(|e| format!("policy `{word}`: {e}; hint: `auto`, or a TOML file of rules"))?;
        Policy::parse(&text, word)
    }

    /// A file of rules that bind a session.
    pub fn of_file(path: &Path) -> Result<Policy, String> {
        let shown = path.display().to_string();
        let shown = clean(&shown);
        let text = crate::files::read_text(path, MAX_BYTES)
            .map_err(|e| format!("rules `{shown}`: {e}; hint: a TOML file of [[rule]] match, do, ratio, reason"))?;
        Policy::parse(&text, &shown)
    }

    /// What they amount to in this model.
    ///
    /// # Errors
    /// In words: a pattern that nothing is called by, or that nothing can be bound by in this way.
    pub fn bind(&self, card: &SessionCard) -> Result<Vec<Constraint>, String> {
        let (constraints, idle) = self.constraints(card);
        match idle.first() {
            Some(pattern) => Err(format!(
                "no group, layer or block is called `{}`; hint: names are those of the layer list, `*` stands for any run",
                clean(pattern)
            )),
            None => Ok(constraints),
        }
    }

    pub fn parse(text: &str, file: &str) -> Result<Policy, String> {
        let mut policy: Policy = toml::from_str(text).map_err(|e| {
            format!(
                "rules of `{file}`: {}; hint: keys are default and [[rule]] match, kind, do, ratio, wish, reason",
                e.message()
            )
        })?;
        for r in &policy.rules {
            r.check().map_err(|why| format!("rules of `{file}`: {why}"))?;
        }
        policy.file = file.to_owned();
        Ok(policy)
    }

    /// Constraints that the rules amount to in this model, and patterns that match nothing in it.
    pub fn constraints(&self, card: &SessionCard) -> (Vec<Constraint>, Vec<String>) {
        let targets = targets(card);
        let mut out: Vec<Constraint> = Vec::new();
        let mut idle = Vec::new();
        for (at, rule) in self.rules.iter().enumerate() {
            let mut any = false;
            for target in targets.iter().filter(|t| rule.matches(t)) {
                any = true;
                // An earlier rule has spoken for it: of its own kind, or one that excepts it from all that come.
                let spoke = |r: &Rule| r.verb == rule.verb || r.verb == Verb::Approve;
                if self.rules[..at].iter().any(|r| spoke(r) && r.matches(target)) {
                    continue;
                }
                let Some(limit) = rule.limit(target) else { continue };
                out.push(Constraint { target: target.clone(), limit, reason: rule.reason.clone() });
            }
            if !any {
                idle.push(rule.pattern.clone());
            }
        }
        (out, idle)
    }

    /// Whether a proposal is approved; the reason when it is not.
    pub fn answer(&self, decision: &Decision) -> Result<(), String> {
        let mut here = self.rules.iter().filter(|r| r.matches(&decision.target)).peekable();
        let named = here.peek().is_some();
        match here.find(|r| matches!(r.verb, Verb::Approve | Verb::Veto)) {
            Some(r) if r.verb == Verb::Veto => Err(r.reason.clone()),
            Some(_) => Ok(()),
            None if !named && self.default == Fallback::Veto => Err("no rule approves it".to_owned()),
            None => Ok(()),
        }
    }
}

impl Rule {
    /// What it makes of a target; `None` where it says nothing of such.
    fn limit(&self, target: &Target) -> Option<Limit> {
        let wish = || self.wish.as_deref().and_then(Wish::parse);
        match (self.verb, self.ratio, target) {
            (Verb::Veto, _, _) => Some(Limit::Freeze),
            (Verb::Limit, Some(ratio), Target::Group(_)) => Some(Limit::MaxRatio { ratio }),
            (Verb::AtLeast, Some(ratio), Target::Group(_)) => Some(Limit::MinRatio { ratio }),
            (Verb::KeepF32, _, Target::Layer(_)) => Some(Limit::KeepF32),
            (Verb::Together, _, Target::Group(_) | Target::Layer(_)) => {
                Some(Limit::Together { set: self.pattern.clone() })
            }
            (Verb::Prefer, _, target) => match (wish()?, target) {
                (wish @ Wish::Precision { .. }, Target::Layer(_)) => Some(Limit::Prefer { wish }),
                (wish @ (Wish::Cut | Wish::Spare), Target::Group(_) | Target::Block(_)) => Some(Limit::Prefer { wish }),
                _ => None,
            },
            (Verb::Limit | Verb::AtLeast | Verb::KeepF32 | Verb::Together | Verb::Approve, _, _) => None,
        }
    }

    /// # Errors
    /// In words: a ratio or a wish that is missing, is none, or has no place here.
    pub fn check(&self) -> Result<(), String> {
        let (of, ratio) = (clean(&self.pattern), self.ratio);
        let fits = match self.verb {
            Verb::Limit | Verb::AtLeast => ratio.is_some_and(|v| (0.0..=1.0).contains(&v)),
            Verb::Veto | Verb::KeepF32 | Verb::Together | Verb::Prefer | Verb::Approve => ratio.is_none(),
        };
        if !fits {
            return Err(format!(
                "the rule for `{of}` has ratio {ratio:?}; hint: limit and at_least need one from 0 to 1, others have none"
            ));
        }
        let wished = match (self.verb, &self.wish) {
            (Verb::Prefer, wish) => wish.as_deref().and_then(Wish::parse).is_some(),
            (_, wish) => wish.is_none(),
        };
        match wished {
            true => Ok(()),
            false => Err(format!(
                "the rule for `{of}` has no wish that is one; hint: prefer needs cut, spare or a precision, others have none"
            )),
        }
    }

    /// In words.
    pub fn words(&self) -> String {
        let percent = |r: Option<f64>| format!("{:.0} %", 100.0 * r.unwrap_or(0.0));
        let of = clean(&self.pattern);
        match self.verb {
            Verb::Veto => format!("nothing new at {of}"),
            Verb::Limit => format!("at most {} of {of} goes", percent(self.ratio)),
            Verb::AtLeast => format!("at least {} of {of} goes", percent(self.ratio)),
            Verb::KeepF32 => format!("{of} stays f32"),
            Verb::Together => format!("{of} is decided alike"),
            Verb::Prefer => format!("at {of}: rather {}", clean(self.wish.as_deref().unwrap_or_default())),
            Verb::Approve => format!("{of} is approved"),
        }
    }

    fn matches(&self, target: &Target) -> bool {
        self.kind.is_none_or(|k| k == target.kind()) && glob(&self.pattern, target.name(), Some('?'))
    }
}

/// Everything a rule can name in a model.
fn targets(card: &SessionCard) -> Vec<Target> {
    let groups = card.groups.iter().filter(|g| g.protected.is_none()).map(|g| Target::Group(g.id.clone()));
    let layers = card.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear()).map(|n| Target::Layer(n.name.clone()));
    let blocks = card.graph.blocks.iter().filter(|b| !b.residual.is_empty()).map(|b| Target::Block(b.name.clone()));
    groups.chain(layers).chain(blocks).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Action, Author};

    fn proposal(name: &str) -> Decision {
        Decision::new(Target::Group(name.to_owned()), Action::Keep, Author::Planner)
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let text = r#"
            default = "veto"
            [[rule]]
            match = "layer1.0.*"
            do = "approve"
            [[rule]]
            match = "layer1.*"
            kind = "group"
            do = "veto"
            reason = "thin"
            [[rule]]
            match = "layer3.*"
            do = "limit"
            ratio = 0.5
        "#;
        let policy = Policy::parse(text, "p.toml").expect("parses");
        assert_eq!(policy.answer(&proposal("layer1.0.conv1")), Ok(()));
        assert_eq!(policy.answer(&proposal("layer1.1.conv1")), Err("thin".to_owned()));
        assert_eq!(policy.answer(&proposal("layer3.1.conv1")), Ok(()));
        assert!(policy.answer(&proposal("layer2.1.conv1")).is_err());
        assert_eq!(Policy::default().answer(&proposal("x")), Ok(()));
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        for bad in [
            "default = \"perhaps\"",
            "[[rule]]\nmatch = \"a\"\ndo = \"limit\"",
            "[[rule]]\nmatch = \"a\"\ndo = \"veto\"\nratio = 0.5",
            "[[rule]]\nmatch = \"a\"\ndo = \"veto\"\nwhy = \"typo\"",
            "[[rule]]\nmatch = \"a\"\ndo = \"limit\"\nratio = 7.0",
            "[[rule]]\nmatch = \"a\"\ndo = \"at_least\"",
            "[[rule]]\nmatch = \"a\"\ndo = \"prefer\"",
            "[[rule]]\nmatch = \"a\"\ndo = \"prefer\"\nwish = \"int9\"",
            "[[rule]]\nmatch = \"a\"\ndo = \"together\"\nwish = \"cut\"",
        ] {
            let e = Policy::parse(bad, "p.toml").expect_err(bad);
            assert!(e.contains("`p.toml`") && e.contains("hint:"), "{e}");
        }
    }
}
