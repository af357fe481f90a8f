//! How a session is to be opened: what the command line said, kept beside the journal for the host's first start. From
//! then on the journal's [`Recipe`] counts; of this file only what decides no result (endpoint, budget, what goes on by itself).

use crate::config::Policy;
use crate::config::{self, Origin};
use crate::graph::Calibration;
use crate::plan::Budget;
use crate::session::{Answers, Journal, Limits, Looks, Opening, Place, Recipe, State, private};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes of a kept spec at most: it may name thousands of data files.
const MOST_BYTES: u64 = 4 << 20;

/// Everything a host needs to open its model and data. Paths are absolute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpenSpec {
    #[serde(flatten)]
    pub how: Opening,
    /// Per-channel mean and standard deviation, instead of the family's or the checkpoint's own.
    pub mean: Option<[f32; 3]>,
    pub std: Option<[f32; 3]>,
    /// Evaluation data, as `data::open` takes it; at most `limit` images of it (0: all).
    pub data: String,
    pub limit: usize,
    /// Calibration data; `None`: part of the evaluation data, which needs [`Opening::calib_is_eval`].
    pub calib: Option<String>,
    pub calib_limit: usize,
    /// How long latency is measured, as a factor of the usual time.
    #[serde(default = "usual")]
    pub patience: f64,
    pub seed: u64,
    /// How static int8 ranges are chosen.
    #[serde(default = "least_error")]
    pub calibration: Calibration,
    pub budget: Budget,
    pub llm_url: Option<String>,
    pub llm_model: Option<String>,
    /// Roles that are answered by somebody else.
    #[serde(default)]
    pub llm_roles: BTreeMap<String, Answers>,
    /// How much agents may look up.
    #[serde(default)]
    pub looks: Looks,
    /// What agents may take in one proposal.
    #[serde(default)]
    pub limits: Limits,
    /// What binds the session from its beginning.
    #[serde(default)]
    pub rules: Policy,
    /// Measure and propose by itself once open.
    pub auto: bool,
}

fn usual() -> f64 {
    1.0
}

fn least_error() -> Calibration {
    Calibration::Mse
}

impl OpenSpec {
    /// A bundled demo: a small trained model on the synthetic images, or stories.
    pub fn demo(model: &str) -> OpenSpec {
        OpenSpec {
            how: Opening { model: format!("demo:{model}"), device: "auto".to_owned(), ..Opening::default() },
            mean: None,
            std: None,
            data: "synthetic:eval".to_owned(),
            limit: 0,
            calib: Some("synthetic:calib".to_owned()),
            calib_limit: 0,
            patience: usual(),
            seed: 0,
            calibration: least_error(),
            budget: Budget { macs: Some(0.6), drop: Some(1.0), ..Budget::default() },
            llm_url: None,
            llm_model: None,
            llm_roles: BTreeMap::new(),
            looks: Looks::default(),
            limits: Limits::default(),
            rules: Policy::default(),
            auto: true,
        }
    }

    /// The spec that opens a session with this recipe; what decides no result is taken from `aside`.
    pub fn of_recipe(recipe: &Recipe, aside: Option<OpenSpec>) -> OpenSpec {
        OpenSpec {
            how: recipe.how.clone(),
            mean: Some(recipe.preprocess.mean),
            std: Some(recipe.preprocess.std),
            data: recipe.data.spec.clone(),
            limit: recipe.data.limit,
            calib: (!recipe.calib_from_data).then(|| recipe.calib.spec.clone()),
            calib_limit: recipe.calib.limit,
            seed: recipe.seed(),
            calibration: recipe.ranges(),
            ..aside.unwrap_or_else(|| OpenSpec::demo("vit"))
        }
    }

    /// How the session at `place` was opened: by its journal's recipe, or while it has none by the file beside it.
    pub fn of_session(place: &Place) -> Option<OpenSpec> {
        let state = Journal::read(&place.dir).ok().map(|records| State::fold(&records));
        match state.and_then(|s| s.card).and_then(|c| c.recipe) {
            Some(recipe) => Some(OpenSpec::of_recipe(&recipe, OpenSpec::load(place))),
            None => OpenSpec::load(place),
        }
    }

    /// Paths made absolute, since a host does not run where it was started from.
    pub fn absolute(mut self) -> OpenSpec {
        let whole = |s: &str| -> String {
            // Bundled.
            if s.starts_with("demo:") {
                return s.to_owned();
            }
            match std::path::absolute(s) {
                Ok(p) if !s.is_empty() => p.display().to_string(),
                _ => s.to_owned(),
            }
        };
        let data = |s: &str| -> String {
            if s.starts_with("synthetic") {
                return s.to_owned();
            }
            s.split(',').map(|part| whole(part.trim())).collect::<Vec<_>>().join(",")
        };
        self.how.model = whole(&self.how.model);
        self.how.tokenizer = self.how.tokenizer.as_deref().map(whole);
        self.data = data(&self.data);
        self.calib = self.calib.as_deref().map(data);
        self
    }

    /// A session name that suits the model: `resnet56-4bfd9763` for `…/resnet56-4bfd9763.th`.
    pub fn suggested_name(&self) -> String {
        let base = self.how.model.strip_prefix("demo:").map_or_else(
            || {
                let path = Path::new(&self.how.model);
                let stem = if path.is_dir() { path.file_name() } else { path.file_stem() };
                stem.map_or_else(|| "session".to_owned(), |s| s.to_string_lossy().into_owned())
            },
            |demo| format!("demo-{demo}"),
        );
        let clean: String = base
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.') { c } else { '-' })
            .take(48)
            .collect();
        let clean = clean.trim_start_matches('.');
        if clean.is_empty() { "session".to_owned() } else { clean.to_owned() }
    }

    pub fn save(&self, place: &Place) -> std::io::Result<()> {
        let text = serde_json::to_vec_pretty(self).map_err(std::io::Error::other)?;
        crate::files::write_privately(&place.spec_file(), &text)
    }

    /// The spec kept in the session's folder, if there is one that can be read.
    pub fn load(place: &Place) -> Option<OpenSpec> {
        serde_json::from_slice(&private::read(&place.spec_file(), MOST_BYTES).ok()?).ok()
    }

    /// The spec with the endpoint that counts. A folder outside the user's own sessions may have come from anywhere, and
    /// what it says of the language model is a request, as `./paring.toml`'s is: granted for an origin that `user` (the
    /// settings without a project's) names, else left out, and said in words.
    pub fn granted(mut self, place: &Place, user: &config::Settings) -> (OpenSpec, Option<String>) {
        let named = |url: &str| Origin::of(url).is_some_and(|origin| user.name(&origin));
        if place.is_own() || self.llm_url.as_deref().is_some_and(named) {
            return (self, None);
        }
        let Some(asked) = self.llm_url.take().or_else(|| self.llm_model.take()) else { return (self, None) };
        (self.llm_url, self.llm_model) = (user.llm_url.clone(), user.llm_model.clone());
        let asked = Origin::of(&asked).map_or(asked, |o| o.to_string());
        let said = format!(
            "`{asked}`, which the session's folder asks for, is no endpoint that you named: ignored; hint: `:llm URL MODEL`"
        );
        (self, Some(said))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_from_elsewhere_cannot_name_an_endpoint() {
        let asks = || OpenSpec {
            llm_url: Some("https://evil.example/v1".to_owned()),
            llm_model: Some("m".to_owned()),
            ..OpenSpec::demo("cnn")
        };
        let place = Place::at(Path::new("/somewhere/session"));
        let mut user = config::Settings::default();
        let (spec, said) = asks().granted(&place, &user);
        assert_eq!((spec.llm_url, spec.llm_model), (None, None));
        assert!(said.is_some_and(|s| s.contains("`https://evil.example`") && s.contains("hint:")));
        user.llm_url = Some("https://mine.example/v1".to_owned());
        assert_eq!(asks().granted(&place, &user).0.llm_url, user.llm_url);
        user.llm_trusted.extend(Origin::of("https://evil.example"));
        let (spec, said) = asks().granted(&place, &user);
        assert_eq!((spec.llm_url.as_deref(), said), (Some("https://evil.example/v1"), None));
    }

    #[test]
    fn names_and_paths() {
        let named = |m: &str| {
            let mut spec = OpenSpec::demo("vit");
            spec.how.model = m.to_owned();
            spec.suggested_name()
        };
        assert_eq!(OpenSpec::demo("vit").suggested_name(), "demo-vit");
        assert_eq!(named("/x/resnet56-4bfd9763.th"), "resnet56-4bfd9763");
        assert_eq!(named("/x/.hidden model.pt"), "hidden-model");
        for name in ["/", "é.pt", "..."] {
            assert!(Place::named(&named(name)).is_ok(), "{name}");
        }
        let spec = OpenSpec { data: "a.bin,b.bin".to_owned(), ..OpenSpec::demo("cnn") }.absolute();
        assert_eq!(spec.how.model, "demo:cnn");
        assert!(spec.data.split(',').all(|p| p.starts_with('/')), "{}", spec.data);
        assert_eq!(spec.calib.as_deref(), Some("synthetic:calib"));
    }
}
