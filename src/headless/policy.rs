//! What answers in a person's place: approve everything, or a TOML file of rules by name pattern.
//!
//! ```toml
//! default = "approve"            # what happens to proposals that no rule names: approve or veto
//! [[rule]]
//! match = "layer1.*"             # against the names of groups, layers and blocks; `*` any run, `?` any one
//! kind = "group"                 # optional: group, layer or block
//! do = "veto"                    # veto, limit, keep_f32 or approve
//! ratio = 0.3                    # of a limit
//! reason = "first stage is thin"
//! ```
//! Vetoes and limits become constraints before anything is proposed; the first rule that matches a proposal decides it.

use crate::config::text::glob;
use crate::plan::{Constraint, Decision, Limit, Target, TargetKind};
use crate::session::SessionCard;
use serde::Deserialize;
use std::path::Path;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    Veto,
    Limit,
    KeepF32,
    Approve,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fallback {
    #[default]
    Approve,
    Veto,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    #[serde(rename = "match")]
    pub pattern: String,
    pub kind: Option<TargetKind>,
    #[serde(rename = "do")]
    pub verb: Verb,
    pub ratio: Option<f64>,
    #[serde(default)]
    pub reason: String,
}

/// No set of rules comes near this many bytes.
const MAX_BYTES: u64 = 1 << 20;

/// How proposals are answered.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
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

    pub fn parse(text: &str, file: &str) -> Result<Policy, String> {
        let mut policy: Policy = toml::from_str(text).map_err(|e| {
            format!(
                "policy `{file}`: {}; hint: keys are default and [[rule]] match, kind, do, ratio, reason",
                e.message()
            )
        })?;
        for r in &policy.rules {
            let fits = match r.verb {
                Verb::Limit => r.ratio.is_some_and(|v| (0.0..=1.0).contains(&v)),
                Verb::Veto | Verb::KeepF32 | Verb::Approve => r.ratio.is_none(),
            };
            if !fits {
                return Err(format!(
                    "policy `{file}`: rule for `{}` has ratio {:?}; hint: a limit needs a ratio from 0 to 1, others have none",
                    r.pattern, r.ratio
                ));
            }
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
                // An earlier rule has spoken for it.
                if self.rules[..at].iter().any(|r| r.matches(target)) {
                    continue;
                }
                let limit = match (rule.verb, rule.ratio, target) {
                    (Verb::Veto, _, _) => Limit::Freeze,
                    (Verb::Limit, Some(ratio), Target::Group(_)) => Limit::MaxRatio { ratio },
                    (Verb::KeepF32, _, Target::Layer(_)) => Limit::KeepF32,
                    (Verb::Limit | Verb::KeepF32 | Verb::Approve, _, _) => continue,
                };
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
        match self.rules.iter().find(|r| r.matches(&decision.target)) {
            Some(r) if r.verb == Verb::Veto => Err(r.reason.clone()),
            Some(_) => Ok(()),
            None if self.default == Fallback::Veto => Err("no rule approves it".to_owned()),
            None => Ok(()),
        }
    }
}

impl Rule {
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
        ] {
            let e = Policy::parse(bad, "p.toml").expect_err(bad);
            assert!(e.contains("`p.toml`") && e.contains("hint:"), "{e}");
        }
    }
}
