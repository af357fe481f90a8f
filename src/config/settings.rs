//! Layered settings: built-in < user file < project file < environment < flags.
//!
//! The project file, `./paring.toml`, is whoever's wrote the folder. What it says of the language model is a request: an
//! endpoint counts only if the user named its origin, in the own configuration or the environment; see [`Layers::asked`].
//!
//! Every key is one line of [`KEYS`]; reading a layer and the error for an unknown key come from it.
//! Invariant: loading always yields whole settings plus every diagnostic, never just the first error.

use super::MOST_BYTES;
use super::color::ColorLevel;
use super::columns::{self, OwnColumn};
use super::diag::{Diagnostic, suggestion};
use super::keymap::Keymap;
use super::origin::Origin;
use super::pictures::PictureKind;
use super::theme::Theme;
use crate::exec::device::MOST_THREADS;
use crate::files;
use crate::graph::{Calibration, MacConvention};
use crate::plan::Budget;
use crate::session::{Answers, Form, Limits, Looks, MOST_LOOKS, MOST_TURNS};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the program does unless told otherwise, after all layers.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    pub theme: Theme,
    pub colors: ColorLevel,
    /// Draw with ASCII only.
    pub ascii: bool,
    /// Wrap each frame in the terminal's synchronized update.
    pub sync_update: bool,
    /// How pictures are drawn.
    pub pictures: PictureKind,
    /// Take the mouse; else the terminal's own selection of text has it.
    pub mouse: bool,
    /// Column the layer list is sorted by at first, or `order`.
    pub sort: String,
    /// Columns that it has at first: a set, or names.
    pub columns: Vec<String>,
    /// Columns that the user wrote.
    pub own_columns: Vec<OwnColumn>,
    pub mac_convention: MacConvention,
    pub llm_url: Option<String>,
    pub llm_model: Option<String>,
    /// Roles that another model at the endpoint answers, or the planner.
    pub llm_roles: BTreeMap<String, Answers>,
    /// Origins that the user named for good: a project file may name them too, and plain http may go there.
    pub llm_trusted: Vec<Origin>,
    /// How much agents may look up.
    pub looks: Looks,
    /// What agents may take in one proposal.
    pub limits: Limits,
    /// `auto`, `cpu`, `cuda:0`.
    pub device: String,
    /// Let f32 products on a GPU round to TF32.
    pub tf32: bool,
    /// Compute threads; 0: all cores.
    pub threads: usize,
    pub batch: usize,
    /// How long latency is measured, as a factor of the usual time.
    pub patience: f64,
    pub seed: u64,
    /// How static int8 ranges are chosen.
    pub calibration: Calibration,
    pub budget: Budget,
    pub keymap: Keymap,
    /// Folder of the user's own themes.
    pub theme_dir: Option<PathBuf>,
    /// Which layer each key that is not at its default came from.
    pub origins: BTreeMap<String, String>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            theme: Theme::dark(),
            colors: ColorLevel::True,
            ascii: false,
            sync_update: true,
            pictures: PictureKind::Auto,
            mouse: true,
            sort: "p50".into(),
            columns: vec!["costs".into()],
            own_columns: Vec::new(),
            mac_convention: MacConvention::ConvLinear,
            llm_url: None,
            llm_model: None,
            llm_roles: BTreeMap::new(),
            llm_trusted: Vec::new(),
            looks: Looks::default(),
            limits: Limits::default(),
            device: "auto".into(),
            tf32: false,
            threads: 0,
            batch: 0,
            patience: 1.0,
            seed: 0,
            calibration: Calibration::Mse,
            budget: Budget::default(),
            keymap: Keymap::default(),
            theme_dir: None,
            origins: BTreeMap::new(),
        }
    }
}

impl Settings {
    /// Whether they name this origin, as the endpoint or as one to trust.
    pub fn name(&self, origin: &Origin) -> bool {
        let url = self.llm_url.as_deref().and_then(Origin::of);
        url.as_ref() == Some(origin) || self.llm_trusted.contains(origin)
    }
}

/// Every setting that files, environment and flags may give: its dotted key, and the environment variable that sets it.
const KEYS: &[(&str, Option<&str>)] = &[
    ("screen.theme", Some("PARING_THEME")), // dark, light, cividis, contrast or a file in themes/
    ("screen.colors", Some("PARING_COLORS")), // auto, truecolor, 256, 16 or none
    ("screen.ascii", Some("PARING_ASCII")), // true: draw with ASCII only
    ("screen.sync_update", Some("PARING_SYNC_UPDATE")), // false: no synchronized update (for terminals that stumble)
    ("screen.pictures", Some("PARING_PICTURES")), // auto, blocks, kitty, iterm2, sixel or off
    ("screen.mouse", Some("PARING_MOUSE")), // false: leave the mouse to the terminal
    ("screen.sort", None),                  // first sort column, or "order"
    ("screen.columns", Some("PARING_COLUMNS")), // first columns: "costs", "parameters", "speed" or a list of names
    ("screen.mac_convention", None),        // what MACs count, one of MAC_CONVENTIONS
    ("llm.base_url", Some("OPENAI_BASE_URL")), // an OpenAI-compatible endpoint
    ("llm.model", Some("PARING_LLM_MODEL")), // the endpoint's model name
    ("llm.roles.profiling", None),
    ("llm.roles.analysis", None), // another model of that endpoint for one role, or "planner"
    ("llm.roles.pruning", None),
    ("llm.roles.quantization", None),
    ("llm.roles.evaluation", None),
    ("llm.trusted", Some("PARING_LLM_TRUSTED")), // origins that ./paring.toml may name and plain http may go to
    ("llm.calls", Some("PARING_LLM_CALLS")),     // what a role may look up in one turn; 0: nothing
    ("llm.turns", Some("PARING_LLM_TURNS")),     // how often agents are asked by themselves
    ("llm.rehearsals", Some("PARING_LLM_REHEARSALS")), // plans that agents may have tried in one proposal
    ("llm.measurements", Some("PARING_LLM_MEASUREMENTS")), // what their profiling role may have measured; 0: it is not asked
    ("llm.form", Some("PARING_LLM_FORM")), // when an answer is held to a JSON schema: never, repair (a first one was broken), always
    ("llm.limits", Some("PARING_LLM_LIMITS")), // what one proposal may take: "tokens=20000,seconds=300,cost=0.05,in=0.15,out=0.6"
    ("session.device", Some("PARING_DEVICE")), // auto, cpu or cuda:N
    ("session.tf32", Some("PARING_TF32")),     // true: f32 products on a GPU may round to TF32
    ("session.threads", Some("PARING_THREADS")), // compute threads; 0: all cores
    ("session.batch", None),                   // of latency measurements; 0: chosen by model
    ("session.patience", Some("PARING_PATIENCE")), // 0.1 for a quick look, 3 for a busy machine
    ("session.seed", None),                    // of every random choice
    ("session.calibration", None),             // static int8 ranges: minmax, percentile:99.99, entropy or mse
    ("session.budget", Some("PARING_BUDGET")), // such as "latency=0.6,drop=0.5"
];

/// Where settings come from. Tests give their own; the program uses [`Sources::of_process`].
pub struct Sources<'a> {
    pub user: Option<PathBuf>,
    pub project: Option<PathBuf>,
    pub env: &'a dyn Fn(&str) -> Option<String>,
    /// Dotted key and value, from the command line.
    pub flags: Vec<(String, String)>,
}

/// An environment variable of this process, if it is set and UTF-8.
pub fn process_env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// `$XDG_CONFIG_HOME/paring` or `~/.config/paring`.
pub fn config_dir(env: &dyn Fn(&str) -> Option<String>) -> Option<PathBuf> {
    env("XDG_CONFIG_HOME")
        .filter(|d| !d.is_empty())
        .map(PathBuf::from)
        .or_else(|| env("HOME").filter(|h| !h.is_empty()).map(|h| Path::new(&h).join(".config")))
        .map(|d| d.join("paring"))
}

impl Sources<'static> {
    /// The user's file, `paring.toml` in the working directory, this process' environment, and `flags`.
    pub fn of_process(flags: Vec<(String, String)>) -> Sources<'static> {
        Sources {
            user: config_dir(&process_env).map(|d| d.join("config.toml")),
            project: Some(PathBuf::from("paring.toml")),
            env: &process_env,
            flags,
        }
    }
}

/// Whole settings and everything that was wrong on the way.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    pub settings: Settings,
    pub diagnostics: Vec<Diagnostic>,
    /// What a project file asked for and was not given: to be told, and no mistake of the user's.
    pub ignored: Vec<Diagnostic>,
}

/// What a section holds by dotted keys; tables in it (`[llm.roles]`) entry by entry.
fn entries<'a>(section: &str, table: &'a toml::Table) -> Vec<(String, &'a toml::Value)> {
    let one = |(name, value): (&String, &'a toml::Value)| match value {
        toml::Value::Table(inner) => inner.iter().map(|(n, v)| (format!("{section}.{name}.{n}"), v)).collect(),
        value => vec![(format!("{section}.{name}"), value)],
    };
    table.iter().flat_map(one).collect()
}

/// Loads all layers. A wrong value keeps the lower layer's and leaves a diagnostic.
pub fn load(sources: &Sources<'_>) -> Loaded {
    let mut l = Layers::default();
    l.settings.theme_dir = sources.user.as_ref().and_then(|u| u.parent()).map(|d| d.join("themes"));
    l.settings.ascii = !utf8(sources.env);
    sources.user.iter().for_each(|path| l.file(path, Layer::User));
    sources.project.iter().for_each(|path| l.file(path, Layer::Project));
    for (key, variable) in KEYS {
        if let Some(value) = variable.and_then(|v| (sources.env)(v)).filter(|v| !v.is_empty()) {
            l.set(key, &from_word(&value), ENVIRONMENT);
        }
    }
    for (key, value) in &sources.flags {
        l.set(key, &from_word(value), "flags");
    }
    l.asked();
    l.finish(sources.env)
}

/// The origin of values from the environment.
const ENVIRONMENT: &str = "environment";

/// Whose file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layer {
    User,
    Project,
}

/// A word from the environment or a flag as the TOML value it looks like.
fn from_word(word: &str) -> toml::Value {
    if let Ok(i) = word.parse::<i64>() {
        return toml::Value::Integer(i);
    }
    if let Ok(f) = word.parse::<f64>()
        && word.starts_with(|c: char| c.is_ascii_digit())
    {
        return toml::Value::Float(f);
    }
    match word {
        "true" => toml::Value::Boolean(true),
        "false" => toml::Value::Boolean(false),
        _ => toml::Value::String(word.to_owned()),
    }
}

/// Whether the locale says UTF-8; unset means yes, because every terminal of today is.
fn utf8(env: &dyn Fn(&str) -> Option<String>) -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].iter().find_map(|k| env(k).filter(|v| !v.is_empty()));
    locale.is_none_or(|l| {
        let l = l.to_ascii_lowercase();
        l.contains("utf-8") || l.contains("utf8") || l == "c" || l == "posix"
    })
}

/// What a project file says of the language model, until everybody who may name one has spoken.
#[derive(Debug, Default)]
struct Asked {
    path: String,
    keys: BTreeMap<String, toml::Value>,
}

#[derive(Default)]
struct Layers {
    settings: Settings,
    theme: Option<String>,
    colors: Option<String>,
    asked: Asked,
    diagnostics: Vec<Diagnostic>,
    ignored: Vec<Diagnostic>,
}

impl Layers {
    fn complain(&mut self, origin: &str, key: &str, message: String, hint: String) {
        self.diagnostics.push(Diagnostic::new(origin, key, message, hint));
    }

    fn file(&mut self, path: &Path, layer: Layer) {
        let origin = path.display().to_string();
        let text = match files::read_text(path, MOST_BYTES) {
            Ok(t) => t,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return,
            Err(e) => {
                let hint = "settings are a short text file that you may read; move this one away".into();
                return self.complain(&origin, "", format!("cannot be read: {e}"), hint);
            }
        };
        if layer == Layer::Project {
            self.asked.path.clone_from(&origin);
        }
        let table: toml::Table = match text.parse() {
            Ok(t) => t,
            Err(e) => {
                let line = e.span().map_or(1, |s| text[..s.start.min(text.len())].lines().count().max(1));
                return self.complain(&origin, "", format!("line {line}: {}", e.message()), "fix the syntax".into());
            }
        };
        for (section, value) in &table {
            match value {
                toml::Value::Table(t) if section == "keys" => {
                    self.settings.keymap.merge(t, &origin, &mut self.diagnostics);
                }
                toml::Value::Table(t) if section == "columns" => self.own_columns(t, &origin),
                toml::Value::Table(t) => {
                    for (key, v) in entries(section, t) {
                        if layer == Layer::Project && section == "llm" && KEYS.iter().any(|(known, _)| *known == key) {
                            self.asked.keys.insert(key, v.clone());
                        } else {
                            self.set(&key, v, &origin);
                        }
                    }
                }
                v => self.set(section, v, &origin),
            }
        }
    }

    /// Takes a `[columns]` table: names and expressions.
    fn own_columns(&mut self, table: &toml::Table, origin: &str) {
        for (name, value) in table {
            let key = format!("columns.{name}");
            let Some(text) = value.as_str() else {
                let hint = "an expression such as \"p50 * 1e6 / (macs * batch)\"".to_owned();
                self.complain(origin, &key, format!("cannot be {value}"), hint);
                continue;
            };
            let column = OwnColumn::parse(name, text).and_then(|column| {
                let there = columns::define(&mut self.settings.own_columns, column);
                there.ok_or_else(|| format!("is one column too many; hint: at most {}", columns::MOST_OWN))
            });
            if let Err(e) = column {
                let (message, hint) = e.split_once("; hint: ").unwrap_or((&e, "see the README"));
                self.complain(origin, &key, message.to_owned(), hint.to_owned());
            }
        }
    }

    /// Columns and order that are none give way to the usual ones.
    fn known_columns(&mut self) {
        let (s, usual) = (&self.settings, Settings::default());
        let sort = columns::check_sort(&s.sort, &s.own_columns).err();
        let list = columns::check(&s.columns, &s.own_columns).err();
        let said = |l: &Layers, key: &str| l.settings.origins.get(key).cloned().unwrap_or_default();
        if let Some(hint) = sort {
            let odd = std::mem::replace(&mut self.settings.sort, usual.sort);
            let origin = said(self, "screen.sort");
            self.complain(&origin, "screen.sort", format!("cannot be \"{odd}\""), hint);
        }
        if let Some(hint) = list {
            let odd = std::mem::replace(&mut self.settings.columns, usual.columns);
            let origin = said(self, "screen.columns");
            self.complain(&origin, "screen.columns", format!("cannot be {odd:?}"), hint);
        }
    }

    /// Grants what the project file asks of the language model, or says why not. An endpoint counts if the user named its
    /// origin; a model name, where there is an endpoint that it can belong to, since a name alone would send prompts with
    /// the user's key to OpenAI; whom to trust is never a project's to say. What the environment or a flag says comes
    /// after a project file anyway.
    fn asked(&mut self) {
        let Asked { path, keys } = std::mem::take(&mut self.asked);
        let later =
            |l: &Layers, key: &str| l.settings.origins.get(key).is_some_and(|o| o == ENVIRONMENT || o == "flags");
        for (key, value) in keys {
            let refused = match key.as_str() {
                _ if later(self, &key) => continue,
                "llm.base_url" => match value.as_str().and_then(Origin::of) {
                    // What is no address is a mistake like any other.
                    None => None,
                    Some(origin) if self.settings.name(&origin) => None,
                    Some(origin) => Some((
                        format!("`{origin}` is no endpoint that you named"),
                        format!(
                            "`--llm-url` names it for one session, `trusted = [\"{origin}\"]` under [llm] in your own \
                             config.toml for good"
                        ),
                    )),
                },
                "llm.model" if self.settings.llm_url.is_none() => {
                    Some(("no endpoint is named".to_owned(), "`--llm-model` names a model at OpenAI's own".to_owned()))
                }
                "llm.trusted" => Some((
                    "whom you trust only you can say".to_owned(),
                    "put it into your own config.toml, or PARING_LLM_TRUSTED".to_owned(),
                )),
                _ => None,
            };
            match refused {
                None => self.set(&key, &value, &path),
                Some((message, hint)) => {
                    let message = format!("ignored: {message}");
                    self.ignored.push(Diagnostic { origin: path.clone(), key, message, hint });
                }
            }
        }
    }

    fn set(&mut self, key: &str, value: &toml::Value, origin: &str) {
        match self.try_set(key, value) {
            Ok(()) => drop(self.settings.origins.insert(key.to_owned(), origin.to_owned())),
            Err(Wants::Known) => {
                let hint = suggestion(key, KEYS.iter().map(|(known, _)| *known));
                self.complain(origin, key, "unknown key".into(), hint);
            }
            Err(Wants::Hint(hint)) => self.complain(origin, key, format!("cannot be {}", shown(key, value)), hint),
        }
    }

    fn try_set(&mut self, key: &str, value: &toml::Value) -> Result<(), Wants> {
        let s = &mut self.settings;
        let string = || value.as_str().map(str::to_owned).ok_or_else(|| Wants::Hint("a string".into()));
        let boolean = || value.as_bool().ok_or_else(|| Wants::Hint("true or false".into()));
        let number = || value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
        let count = |most: i64| {
            let whole = value.as_integer().filter(|n| (0..=most).contains(n)).map(|n| n as usize);
            whole.ok_or_else(|| Wants::Hint(format!("a whole number from 0 to {most}")))
        };
        match key {
            "screen.theme" => self.theme = Some(string()?),
            "screen.colors" => {
                let word = match value {
                    toml::Value::Integer(i) => i.to_string(),
                    _ => string()?,
                };
                self.colors = Some(one_of(&word, &["auto", "truecolor", "256", "16", "none"])?);
            }
            "screen.ascii" => s.ascii = boolean()?,
            "screen.sync_update" => s.sync_update = boolean()?,
            "screen.pictures" => {
                let word = one_of(&string()?, &PictureKind::WORDS.map(|(word, _)| word))?;
                s.pictures = PictureKind::named(&word).unwrap_or_default();
            }
            "screen.mouse" => s.mouse = boolean()?,
            // Whether there are such columns is known once all layers have spoken.
            "screen.sort" => s.sort = string()?,
            "screen.columns" => {
                let words: Option<Vec<String>> = match value {
                    toml::Value::String(s) => {
                        Some(s.split([',', ' ']).filter(|w| !w.is_empty()).map(str::to_owned).collect())
                    }
                    toml::Value::Array(a) => a.iter().map(|v| v.as_str().map(str::to_owned)).collect(),
                    _ => None,
                };
                s.columns = words.ok_or_else(|| Wants::Hint("a list such as [\"p50\", \"p95\"]".into()))?;
            }
            "screen.mac_convention" => {
                let word = string()?;
                s.mac_convention = mac_convention(&word)
                    .ok_or_else(|| Wants::Hint(suggestion(&word, MAC_CONVENTIONS.iter().map(|(n, _)| *n))))?;
            }
            "llm.base_url" => {
                let url = string()?;
                if Origin::of(&url).is_none() {
                    return Err(Wants::Hint("a URL such as \"http://localhost:11434/v1\"".into()));
                }
                s.llm_url = Some(url);
            }
            "llm.model" => s.llm_model = Some(string()?),
            role if role.strip_prefix("llm.roles.").is_some() => {
                let by = match string()?.as_str() {
                    "planner" => Answers::Planner,
                    model => Answers::Model { model: model.to_owned(), base_url: None },
                };
                s.llm_roles.insert(role["llm.roles.".len()..].to_owned(), by);
            }
            "llm.trusted" => {
                let words: Option<Vec<&str>> = match value {
                    toml::Value::String(s) => Some(s.split(',').collect()),
                    toml::Value::Array(a) => a.iter().map(toml::Value::as_str).collect(),
                    _ => None,
                };
                let origins: Option<Vec<Origin>> = words.and_then(|w| w.into_iter().map(Origin::of).collect());
                s.llm_trusted =
                    origins.ok_or_else(|| Wants::Hint("origins such as [\"http://gpu-box:8000\"]".into()))?;
            }
            "llm.calls" => s.looks.calls = count(MOST_LOOKS as i64)?,
            "llm.rehearsals" => s.looks.rehearsals = count(MOST_LOOKS as i64)?,
            "llm.measurements" => s.looks.measurements = count(MOST_LOOKS as i64)?,
            "llm.form" => {
                let word = string()?;
                s.looks.form =
                    Form::parse(&word).ok_or_else(|| Wants::Hint(suggestion(&word, Form::WORDS.iter().copied())))?;
            }
            "llm.limits" => s.limits = string()?.parse().map_err(Wants::Hint)?,
            "llm.turns" => s.looks.turns = count(MOST_TURNS as i64)?.max(1),
            "session.device" => {
                let d = string()?;
                let cuda = d.strip_prefix("cuda:").is_some_and(|n| n.parse::<u16>().is_ok());
                if d != "auto" && d != "cpu" && d != "cuda" && !cuda {
                    return Err(Wants::Hint("auto, cpu or cuda:N".into()));
                }
                s.device = d;
            }
            "session.tf32" => s.tf32 = boolean()?,
            "session.threads" => s.threads = count(MOST_THREADS as i64)?,
            "session.batch" => s.batch = count(65536)?,
            "session.patience" => {
                let wanted = number().filter(|p| (0.02..=20.0).contains(p));
                s.patience = wanted.ok_or_else(|| Wants::Hint("a factor between 0.02 and 20".into()))?;
            }
            "session.seed" => s.seed = count(i64::MAX)? as u64,
            "session.calibration" => s.calibration = string()?.parse().map_err(Wants::Hint)?,
            "session.budget" => {
                s.budget = string()?.parse().map_err(|e: crate::plan::BudgetError| Wants::Hint(e.to_string()))?;
            }
            _ => return Err(Wants::Known),
        }
        Ok(())
    }

    fn finish(mut self, env: &dyn Fn(&str) -> Option<String>) -> Loaded {
        self.known_columns();
        let (name, dir) = (self.theme.as_deref().unwrap_or("dark"), self.settings.theme_dir.clone());
        if let Some(theme) = Theme::load(name, dir.as_deref(), &mut self.diagnostics) {
            self.settings.theme = theme;
        }
        self.settings.colors = self.colors.as_deref().and_then(ColorLevel::parse).unwrap_or_else(|| {
            // `auto` is the default, whoever says it.
            self.settings.origins.remove("screen.colors");
            ColorLevel::detect(env)
        });
        Loaded { settings: self.settings, diagnostics: self.diagnostics, ignored: self.ignored }
    }
}

/// `word`, if it is one of `known`.
fn one_of(word: &str, known: &[&str]) -> Result<String, Wants> {
    let found = known.contains(&word).then(|| word.to_owned());
    found.ok_or_else(|| Wants::Hint(suggestion(word, known.iter().copied())))
}

/// What a value should have been.
enum Wants {
    /// The key itself is unknown.
    Known,
    Hint(String),
}

/// MAC conventions by their setting's name.
pub const MAC_CONVENTIONS: [(&str, MacConvention); 3] = [
    ("conv_linear", MacConvention::ConvLinear),
    ("attention", MacConvention::Attention),
    ("norms", MacConvention::Norms),
];

pub fn mac_convention(word: &str) -> Option<MacConvention> {
    MAC_CONVENTIONS.iter().find(|(n, _)| *n == word).map(|(_, c)| *c)
}

/// A value as it may be shown; an address can hold a password.
fn shown(key: &str, value: &toml::Value) -> String {
    match value.as_str().filter(|_| key == "llm.base_url") {
        Some(url) => format!("\"{}\"", crate::mask::address(url)),
        None => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Role;

    fn none(_: &str) -> Option<String> {
        None
    }

    /// What `user`, `project`, the environment and one flag say, loaded.
    fn four(user: &str, project: &str, env: &dyn Fn(&str) -> Option<String>, flag: Option<(&str, &str)>) -> Loaded {
        let dir = tempfile::tempdir().unwrap();
        let (mine, theirs) = (dir.path().join("config.toml"), dir.path().join("paring.toml"));
        std::fs::write(&mine, user).unwrap();
        std::fs::write(&theirs, project).unwrap();
        let flags = flag.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        load(&Sources { user: Some(mine), project: Some(theirs), env, flags })
    }

    fn three(user: &str, project: &str, env: &dyn Fn(&str) -> Option<String>) -> Loaded {
        four(user, project, env, None)
    }

    #[test]
    fn later_layers_win_and_say_where_they_came_from() {
        let user = "[screen]\ntheme = \"light\"\nsort = \"macs\"\n[session]\nthreads = 2\nseed = 1\n";
        let project = "[session]\nthreads = 3\nseed = 2\nbudget = \"macs=0.5\"\n[keys]\nrun = \"=\"\n";
        let env = |k: &str| (k == "PARING_THREADS").then(|| "4".to_owned());
        let l = four(user, project, &env, Some(("session.device", "cpu")));
        assert_eq!(l.diagnostics, []);
        let s = &l.settings;
        assert_eq!((s.theme.name.as_str(), s.sort.as_str(), s.threads, s.seed), ("light", "macs", 4, 2));
        assert_eq!((s.device.as_str(), s.budget.macs), ("cpu", Some(0.5)));
        assert_eq!(s.origins["session.threads"], "environment");
        assert!(s.origins["session.seed"].ends_with("/paring.toml"), "{:?}", s.origins);
        assert!(s.origins["screen.theme"].ends_with("/config.toml"), "{:?}", s.origins);
        assert_eq!(s.keymap.label(super::super::Act::Run), "=");
    }

    #[test]
    fn every_mistake_is_reported_and_nothing_else_is_lost() {
        let l = four(
            "[screen]\nteme = \"light\"\ncolors = \"lots\"\nascii = 3\n[session]\nthreads = -1\nbudget = \"mcas=1\"\nbatch = 8\n\
             [llm]\nbase_url = \"me:secret@localhost\"\n[sesion]\nseed = 1\n[keys]\nnope = \"a\"\n",
            "",
            &none,
            Some(("x", "1")),
        );
        let text: Vec<String> = l.diagnostics.iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), 9, "{text:#?}");
        for wanted in
            ["did you mean `screen.theme`?", "`session.threads`", "did you mean `session.seed`?", "mcas", "keys.nope"]
        {
            assert!(text.iter().any(|t| t.contains(wanted)), "{wanted}: {text:#?}");
        }
        assert!(text.iter().all(|t| t.contains("hint: ") && !t.contains("secret")), "{text:#?}");
        assert_eq!(l.settings.batch, 8);
        assert_eq!(l.settings.theme.color(Role::Fg), Theme::dark().color(Role::Fg));
    }

    #[test]
    fn broken_toml_names_its_line() {
        let l = three("[screen]\ntheme = \n", "", &none);
        assert_eq!(l.diagnostics.len(), 1);
        assert!(l.diagnostics[0].message.starts_with("line "), "{}", l.diagnostics[0]);
    }

    #[test]
    fn a_project_cannot_name_an_endpoint_by_itself() {
        let asks = "[llm]\nbase_url = \"http://evil.example:8000/v1\"\nmodel = \"m\"\ntrusted = [\"http://evil.example:8000\"]\n";
        let l = three("", asks, &none);
        assert_eq!(l.diagnostics, []);
        assert_eq!((&l.settings.llm_url, &l.settings.llm_model), (&None, &None));
        assert_eq!(l.settings.llm_trusted, []);
        let said: Vec<String> = l.ignored.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 3, "{said:#?}");
        assert!(
            said[0].contains("ignored: `http://evil.example:8000`") && said[0].contains("--llm-url"),
            "{}",
            said[0]
        );

        // Where the user has an endpoint, that one stays, with the project's model.
        let mine = "[llm]\nbase_url = \"https://mine.example/v1\"\n";
        let l = three(mine, asks, &none);
        assert_eq!(l.settings.llm_url.as_deref(), Some("https://mine.example/v1"));
        assert_eq!((l.settings.llm_model.as_deref(), l.ignored.len()), (Some("m"), 2));
    }

    #[test]
    fn a_project_may_name_an_origin_that_the_user_named() {
        let asks = "[llm]\nbase_url = \"https://lab.example/team/v1\"\nmodel = \"m\"\n";
        let listed = |k: &str| (k == "PARING_LLM_TRUSTED").then(|| "https://lab.example,http://gpu:1".to_owned());
        for (mine, env) in [
            ("[llm]\nbase_url = \"https://lab.example/v1\"\n", &none as &dyn Fn(&str) -> Option<String>),
            ("[llm]\ntrusted = [\"https://lab.example\"]\n", &none),
            ("", &listed),
        ] {
            let l = three(mine, asks, env);
            assert_eq!((l.diagnostics.len(), l.ignored.len()), (0, 0), "{:?}", l.ignored);
            assert_eq!(l.settings.llm_url.as_deref(), Some("https://lab.example/team/v1"));
            assert_eq!(l.settings.llm_model.as_deref(), Some("m"));
        }
        // What the environment names wins over a project file, as always.
        let env = |k: &str| (k == "OPENAI_BASE_URL").then(|| "http://localhost:1/v1".to_owned());
        let l = three("", asks, &env);
        assert_eq!((l.settings.llm_url.as_deref(), l.ignored.len()), (Some("http://localhost:1/v1"), 0));
    }

    #[test]
    fn what_is_no_file_is_a_diagnostic_at_once() {
        for odd in ["/dev/zero", "/dev", "/dev/full"] {
            let l = load(&Sources { user: None, project: Some(odd.into()), env: &none, flags: vec![] });
            assert_eq!(l.diagnostics.len(), 1);
            assert!(l.diagnostics[0].to_string().contains("not a regular file"), "{}", l.diagnostics[0]);
        }
    }

    #[test]
    fn columns_are_checked_once_all_layers_have_spoken() {
        let user = "[columns]\nns_per_mac = \"p50 * 1e6 / (macs * batch)\"\nodd = \"p05 + 1\"\nn = 3\n[screen]\n";
        let l = three(&format!("{user}columns = [\"p50\", \"ns_per_mac\"]\nsort = \"ns_per_mac\""), "", &none);
        let said: Vec<String> = l.diagnostics.iter().map(ToString::to_string).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said.iter().any(|s| s.contains("columns.odd") && s.contains("no figure `p05`") && s.contains("`p50`")));
        assert!(said.iter().any(|s| s.contains("columns.n") && s.contains("an expression such as")), "{said:?}");
        assert_eq!(
            (l.settings.columns, l.settings.sort.as_str()),
            (vec!["p50".into(), "ns_per_mac".into()], "ns_per_mac")
        );
        assert_eq!(l.settings.own_columns.len(), 1);
        // What is none is told with the nearest, and the usual ones stay.
        for (odd, wanted) in [
            ("columns = [\"p50\", \"p59\"]", "did you mean `p50`?"),
            ("columns = [\"costs\", \"p50\"]", "`costs` stands alone"),
            ("columns = []", "at least one"),
            ("sort = \"latensy\"", "one of order, p50"),
        ] {
            let l = three(&format!("[screen]\n{odd}"), "", &none);
            assert_eq!(l.diagnostics.len(), 1, "{odd}");
            assert!(l.diagnostics[0].to_string().contains(wanted), "{}", l.diagnostics[0]);
            assert_eq!((l.settings.columns, l.settings.sort), (vec!["costs".to_owned()], "p50".to_owned()));
        }
        let env = |k: &str| (k == "PARING_COLUMNS").then(|| "p50,p95".to_owned());
        assert_eq!(three("", "", &env).settings.columns, ["p50", "p95"]);
    }

    #[test]
    fn every_listed_key_is_understood() {
        for (key, _) in KEYS {
            let mut l = Layers::default();
            l.set(key, &toml::Value::Float(-0.5), "test");
            assert_eq!(l.diagnostics.len(), 1);
            assert_ne!(l.diagnostics[0].message, "unknown key", "{key}");
        }
    }
}
