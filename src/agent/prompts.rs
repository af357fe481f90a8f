//! The roles' prompts: built in from `prompts/*.md`, each replaceable by a file of the same name in the user's folder.
//!
//! Invariant: loading never fails; what is wrong with a user's file is a diagnostic, and the built-in text stands in.

use crate::config::MOST_BYTES;
use crate::session::{Ask, ROLES, Role};
use std::collections::BTreeMap;
use std::path::Path;

/// One prompt file: its name, the built-in text, and the placeholders it must hold to be of use.
struct Spec {
    name: &'static str,
    text: &'static str,
    needs: &'static [&'static str],
}

/// Every prompt file: what all roles are told, the roles' own, and what follows a proposal that could not stand.
fn specs() -> impl Iterator<Item = Spec> {
    let of_role = |r: &'static Role| {
        let needs: &[&str] = match r.task {
            Ask::Propose => &["context"],
            Ask::Evaluate => &["context", "critique"],
        };
        Spec { name: r.name, text: r.prompt, needs }
    };
    let system = Spec { name: "system", text: include_str!("../../prompts/system.md"), needs: &[] };
    let repair = Spec { name: "repair", text: include_str!("../../prompts/repair.md"), needs: &["errors"] };
    let tools = Spec { name: "tools", text: include_str!("../../prompts/tools.md"), needs: &[] };
    [system].into_iter().chain(ROLES.iter().map(of_role)).chain([repair, tools])
}

/// All prompt texts by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompts(BTreeMap<&'static str, String>);

impl Default for Prompts {
    fn default() -> Prompts {
        Prompts(specs().map(|s| (s.name, s.text.to_owned())).collect())
    }
}

impl Prompts {
    /// The built-in prompts with those that `dir` holds (`pruning.md` …) in their place, and a line for every file that
    /// could not be used. A missing folder is no diagnostic.
    pub fn load(dir: &Path) -> (Prompts, Vec<String>) {
        let mut prompts = Prompts::default();
        let mut diagnostics = Vec::new();
        let Ok(entries) = std::fs::read_dir(dir) else { return (prompts, diagnostics) };
        let mut paths: Vec<_> = entries.flatten().map(|e| e.path()).collect();
        paths.sort();
        for path in paths.iter().filter(|p| p.extension().is_some_and(|e| e == "md")) {
            let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or("");
            let shown = super::clean::line(&path.display().to_string(), 160);
            let Some(spec) = specs().find(|s| s.name == stem) else {
                let names = specs().map(|s| s.name).collect::<Vec<_>>().join(", ");
                diagnostics.push(format!("`{shown}` is no prompt; hint: one of {names}"));
                continue;
            };
            match read(path, spec.needs) {
                Ok(text) => drop(prompts.0.insert(spec.name, text)),
                Err(e) => diagnostics.push(format!("`{shown}`: {e}; the built-in prompt is used")),
            }
        }
        (prompts, diagnostics)
    }

    /// The user's prompts: built-in, with the files of `prompts/` in the configuration folder in their place.
    pub fn of_user() -> (Prompts, Vec<String>) {
        match crate::config::config_dir(&crate::config::process_env) {
            Some(dir) => Prompts::load(&dir.join("prompts")),
            None => (Prompts::default(), Vec::new()),
        }
    }

    /// What tells these prompts from others: the same text has the same.
    pub fn version(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for (name, text) in &self.0 {
            hash.update(name.as_bytes()).update(text.as_bytes());
        }
        hash.finalize().to_hex()[..8].to_owned()
    }

    fn get(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// The system message for a role.
    pub fn system(&self, role: &Role) -> String {
        fill(self.get("system"), &[("role", role.name)])
    }

    /// The question to a role; `values` fill its placeholders.
    pub fn question(&self, role: &Role, values: &[(&str, &str)]) -> String {
        fill(self.get(role.name), values)
    }

    /// What follows the system message where tools may be called.
    pub fn tools(&self, values: &[(&str, &str)]) -> String {
        fill(self.get("tools"), values)
    }

    pub fn repair(&self, values: &[(&str, &str)]) -> String {
        fill(self.get("repair"), values)
    }
}

fn read(path: &Path, needs: &[&str]) -> Result<String, String> {
    let text = crate::files::read_text(path, MOST_BYTES).map_err(|e| e.to_string())?;
    match needs.iter().find(|n| !text.contains(&format!("{{{{{n}}}}}"))) {
        Some(n) => Err(format!("it lacks the placeholder `{{{{{n}}}}}`")),
        None => Ok(text),
    }
}

/// Replaces `{{name}}` in one pass, so that a value cannot introduce a placeholder; unknown ones become empty.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        match after.split_once("}}") {
            Some((name, tail)) if name.len() < 32 && !name.contains('\n') => {
                let value = values.iter().find(|(n, _)| *n == name.trim()).map(|(_, v)| *v);
                out.push_str(value.unwrap_or(""));
                rest = tail;
            }
            _ => {
                out.push_str("{{");
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_prompts_hold_their_placeholders() {
        for s in specs() {
            for n in s.needs {
                assert!(s.text.contains(&format!("{{{{{n}}}}}")), "{} lacks {n}", s.name);
            }
        }
        for role in &ROLES {
            assert!(!Prompts::default().question(role, &[("context", "x")]).is_empty(), "{role}");
        }
    }

    #[test]
    fn values_are_filled_once() {
        assert_eq!(fill("a {{x}} {{ y }} {{z}} {\"q\": {{", &[("x", "{{y}}"), ("y", "2")]), "a {{y}} 2  {\"q\": {{");
    }

    #[test]
    fn a_users_file_replaces_ours_or_says_why_not() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("pruning.md"), "mine {{context}}").unwrap();
        std::fs::write(dir.path().join("analysis.md"), "no placeholder").unwrap();
        std::fs::write(dir.path().join("prunning.md"), "x").unwrap();
        std::fs::write(dir.path().join("notes.txt"), "x").unwrap();
        let (p, diagnostics) = Prompts::load(dir.path());
        let [_, analysis, pruning, ..] = &ROLES;
        assert_eq!(p.question(pruning, &[("context", "C")]), "mine C");
        assert_eq!(p.question(analysis, &[]), Prompts::default().question(analysis, &[]));
        assert_eq!(diagnostics.len(), 2, "{diagnostics:?}");
        assert!(diagnostics.iter().any(|d| d.contains("{{context}}")));
        assert!(Prompts::load(Path::new("/nonexistent")).1.is_empty());
    }
}
