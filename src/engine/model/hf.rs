//! The JSON files that lie beside weights: Hugging Face's `config.json` (also timm's on the hub) and
//! `preprocessor_config.json`. Read leniently for what is absent, strictly for what is there and wrong.

use super::{Fit, Interpolation, ModelError, Preprocess, Result, printable};
use crate::files;
use crate::graph::Activation;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// No configuration comes near this many bytes; an index of a hundred thousand tensors has ten million.
pub(super) const MAX_BYTES: u64 = 16 << 20;

/// One JSON object with the path that it came from; null where there is no file.
#[derive(Debug, Clone, Default)]
pub(super) struct Json {
    path: PathBuf,
    value: Value,
}

/// What lies beside the weights; empty when nothing does.
#[derive(Debug, Clone, Default)]
pub(super) struct Sidecar {
    pub config: Json,
    preprocessor: Json,
}

impl Json {
    pub fn bad(&self, why: impl Into<String>) -> ModelError {
        ModelError::Config { path: self.path.clone(), why: why.into() }
    }

    /// The file at `path`; null where there is none.
    pub fn read(path: PathBuf) -> Result<Json> {
        if !path.exists() {
            return Ok(Json::default());
        }
        let text = files::read(&path, MAX_BYTES).map_err(ModelError::read(&path))?;
        match serde_json::from_slice::<Value>(&text) {
            Ok(value @ Value::Object(_)) => Ok(Json { path, value }),
            Ok(_) => Err(ModelError::Config { path, why: "it is no JSON object".into() }),
            Err(e) => Err(ModelError::Config { path, why: format!("it is not valid JSON: {e}") }),
        }
    }

    /// The object; `None` where there is no file.
    pub fn whole(&self) -> Option<&Value> {
        Some(&self.value).filter(|v| v.is_object())
    }

    pub fn is_there(&self) -> bool {
        !self.value.is_null()
    }

    /// An object in a field.
    pub fn inside(&self, key: &str) -> Option<Json> {
        Some(Json { path: self.path.clone(), value: self.field(key)?.clone() })
    }

    pub fn is_object(&self) -> bool {
        self.value.is_object()
    }

    pub fn is_empty(&self) -> bool {
        self.value.as_object().is_some_and(|o| o.is_empty())
    }

    /// Is there a field `key`, even if it is null?
    pub fn mentions(&self, key: &str) -> bool {
        self.value.get(key).is_some()
    }

    /// Is there an object in one of its fields?
    pub fn holds_objects(&self) -> bool {
        self.value.as_object().is_some_and(|o| o.values().any(Value::is_object))
    }

    /// Every field; none where there is no file.
    pub fn fields(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.value.as_object().into_iter().flatten()
    }

    pub fn field(&self, key: &str) -> Option<&Value> {
        self.value.get(key).filter(|v| !v.is_null())
    }

    fn typed<'a, T>(&'a self, key: &str, what: &str, as_type: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.field(key) {
            None => Ok(None),
            Some(v) => as_type(v).map(Some).ok_or_else(|| self.bad(format!("`{key}` is not {what}"))),
        }
    }

    pub fn count(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a positive number", as_count)
    }

    /// A short list of numbers, zeros too.
    pub fn counts(&self, key: &str) -> Result<Option<Vec<usize>>> {
        let small = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n <= 1 << 20);
        self.typed(key, "a list of numbers", |v| {
            v.as_array().filter(|a| a.len() <= 1 << 10)?.iter().map(small).collect::<Option<Vec<_>>>()
        })
    }

    /// A list of numbers, no longer than a head is wide.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        let finite = |v: &Value| v.as_f64().filter(|n| n.is_finite());
        self.typed(key, "a list of numbers", |v| {
            v.as_array().filter(|a| a.len() <= 1 << 16)?.iter().map(finite).collect::<Option<Vec<_>>>()
        })
    }

    /// A list of words.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.typed(key, "a list of strings", |v| v.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>())
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |v| v.as_f64().filter(|f| f.is_finite()))
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", |v| v.as_bool())
    }

    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a string", |v| v.as_str())
    }

    fn triple(&self, key: &str) -> Result<Option<[f32; 3]>> {
        self.typed(key, "three numbers", |v| {
            let v: Vec<f32> = v.as_array()?.iter().map(|x| x.as_f64().map(|f| f as f32)).collect::<Option<_>>()?;
            // One number is for all channels, or for the only one.
            let v = if let [one] = v[..] { vec![one; 3] } else { v };
            <[f32; 3]>::try_from(v).ok().filter(|v| v.iter().all(|x| x.is_finite()))
        })
    }
}

fn as_count(v: &Value) -> Option<usize> {
    v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=1 << 20).contains(n))
}

/// `size` fields come as a number, `{height, width}` or `{shortest_edge}`.
enum Size {
    Exact([usize; 2]),
    Shorter(usize),
}

fn size(j: &Json, key: &str) -> Result<Option<Size>> {
    j.typed(key, "a size", |v| {
        if let Some(n) = as_count(v) {
            return Some(Size::Exact([n, n]));
        }
        let get = |k: &str| v.get(k).and_then(as_count);
        match (get("height"), get("width"), get("shortest_edge")) {
            (Some(h), Some(w), _) => Some(Size::Exact([h, w])),
            (_, _, Some(s)) => Some(Size::Shorter(s)),
            _ => None,
        }
    })
}

impl Sidecar {
    /// A configuration that a file at `path` holds itself.
    pub fn of(path: &Path, config: Value) -> Sidecar {
        let config = Json { path: path.to_owned(), value: config };
        Sidecar { config, preprocessor: Json::default() }
    }

    /// Reads what lies in `dir`.
    pub fn read(dir: &Path) -> Result<Sidecar> {
        Ok(Sidecar {
            config: Json::read(dir.join("config.json"))?,
            preprocessor: Json::read(dir.join("preprocessor_config.json"))?,
        })
    }

    /// Positions that a model of text was made for (Meta's word comes second); `None` where that is not told.
    pub fn context(&self) -> Option<usize> {
        ["max_position_embeddings", "n_positions", "max_seq_len"]
            .iter()
            .find_map(|k| self.config.count(k).ok().flatten())
    }

    /// What `config.json` calls itself, for messages.
    pub fn calls_itself(&self) -> Option<String> {
        ["model_type", "architecture"].iter().find_map(|k| self.config.field(k)?.as_str()).map(printable)
    }

    /// timm's name for the network.
    pub fn architecture(&self) -> Result<Option<&str>> {
        self.config.string("architecture")
    }

    /// What timm's model was built with beyond its name's defaults.
    fn model_args(&self) -> Option<Json> {
        self.config.inside("model_args")
    }

    pub fn heads(&self) -> Result<Option<usize>> {
        self.model_args().map_or_else(|| self.config.count("num_attention_heads"), |args| args.count("num_heads"))
    }

    /// Side of Swin v2's windows: its own field, or in timm's name for it (`window12to16` ends with 16).
    pub fn window(&self) -> Result<Option<usize>> {
        let given = self.model_args().as_ref().unwrap_or(&self.config).count("window_size")?;
        Ok(given.or(self.named_windows()?.and_then(|w| w.last().copied())))
    }

    /// Windows that Swin v2 was pretrained with, a stage each; the last stage of timm's has half of it.
    pub fn trained_windows(&self) -> Result<Option<Vec<usize>>> {
        let given = self.model_args().as_ref().unwrap_or(&self.config).counts("pretrained_window_sizes")?;
        if given.is_some() {
            return Ok(given);
        }
        Ok(match self.named_windows()?.as_deref() {
            Some(&[w, _]) => Some(vec![w, w, w, w / 2]),
            _ => None,
        })
    }

    /// The numbers of `window8` or `window12to16` in timm's name.
    fn named_windows(&self) -> Result<Option<Vec<usize>>> {
        let numbers = |name: &str| {
            let word = name.split('_').find_map(|w| w.strip_prefix("window"))?;
            word.split("to")
                .map(|n| n.parse().ok().filter(|n| (1..=1 << 10).contains(n)))
                .collect::<Option<Vec<usize>>>()
        };
        Ok(self.architecture()?.and_then(numbers))
    }

    /// Of layer norms, else of batch norms.
    pub fn eps(&self) -> Result<Option<f64>> {
        let c = &self.config;
        for key in ["layer_norm_eps", "batch_norm_eps"] {
            match c.number(key)? {
                Some(e) if !(0.0..=0.1).contains(&e) => return Err(c.bad(format!("`{key}` is out of range"))),
                Some(e) => return Ok(Some(e)),
                None => {}
            }
        }
        Ok(None)
    }

    pub fn activation(&self) -> Result<Option<Activation>> {
        self.activation_at("hidden_act")
    }

    /// The activation that `key` of the configuration names.
    pub fn activation_at(&self, key: &str) -> Result<Option<Activation>> {
        let c = &self.config;
        Ok(match c.string(key)? {
            None => None,
            Some("gelu" | "gelu_python") => Some(Activation::GeluErf),
            Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Some(Activation::GeluTanh),
            Some("relu") => Some(Activation::Relu),
            Some("relu6") => Some(Activation::Relu6),
            Some("silu" | "swish") => Some(Activation::Silu),
            Some(other) => {
                let hint = "gelu, gelu_new, gelu_pytorch_tanh, relu, relu6 and silu are supported";
                return Err(ModelError::unsupported(&c.path, format!("`{key}` is `{}`", printable(other)), hint));
            }
        })
    }

    /// Class names in index order, when there is one for each of `classes`.
    pub fn labels(&self, classes: usize) -> Option<Vec<String>> {
        let list = |v: &Value| match v {
            Value::Array(a) => a.iter().map(|s| s.as_str().map(printable)).collect::<Option<Vec<_>>>(),
            Value::Object(o) => (0..classes).map(|i| o.get(&i.to_string())?.as_str().map(printable)).collect(),
            _ => None,
        };
        ["id2label", "label_names"].iter().find_map(|k| list(self.config.field(k)?)).filter(|l| l.len() == classes)
    }

    /// The image side that the files name, for networks whose weights do not tell.
    pub fn image(&self) -> Result<Option<usize>> {
        let (c, p) = (&self.config, &self.preprocessor);
        for key in ["crop_size", "size"] {
            if let Some(Size::Exact([h, w])) = size(p, key)? {
                return if h == w { Ok(Some(h)) } else { Err(p.bad(format!("`{key}` is not square"))) };
            }
        }
        // ConvNeXt's processor crops by a share, so its size is the network's.
        if p.field("crop_pct").is_some()
            && let Some(Size::Shorter(s)) = size(p, "size")?
        {
            return Ok(Some(s));
        }
        let side = |v: &Value| v.get("input_size")?.as_array()?.last().and_then(as_count);
        Ok(c.field("pretrained_cfg").and_then(side).or(c.count("image_size").ok().flatten()))
    }

    /// Overrides `base` by what the files say, and says so in `origin`. The network's own input size stays.
    pub fn preprocess(&self, base: Preprocess) -> Result<Preprocess> {
        if self.preprocessor.is_there() {
            return from_preprocessor(&self.preprocessor, base);
        }
        match self.config.inside("pretrained_cfg") {
            Some(cfg) => from_timm(&cfg, base),
            None => Ok(base),
        }
    }
}

fn checked(j: &Json, p: Preprocess) -> Result<Preprocess> {
    if p.std.iter().any(|s| !s.is_finite() || *s <= 0.0) || p.mean.iter().any(|m| !m.is_finite()) {
        return Err(j.bad("its mean or standard deviation is out of range"));
    }
    Ok(p)
}

fn from_preprocessor(j: &Json, base: Preprocess) -> Result<Preprocess> {
    let mut p = Preprocess { origin: "preprocessor_config.json".into(), ..base };
    let normalize = j.bool("do_normalize")?.unwrap_or(true);
    if normalize {
        p.mean = j.triple("image_mean")?.unwrap_or(p.mean);
        p.std = j.triple("image_std")?.unwrap_or(p.std);
    } else {
        (p.mean, p.std) = ([0.0; 3], [1.0; 3]);
    }
    // Ours is (byte/255 - mean)/std; theirs (byte·factor - mean)/std.
    let factor = match j.bool("do_rescale")? {
        Some(false) => 1.0,
        _ => j.number("rescale_factor")?.unwrap_or(1.0 / 255.0),
    };
    let scale = (255.0 * factor) as f32;
    if (scale - 1.0).abs() > 1e-5 {
        p.mean = p.mean.map(|m| m / scale);
        p.std = p.std.map(|s| s / scale);
    }
    p.interpolation = match j.count("resample")? {
        None => p.interpolation,
        Some(number) => Interpolation::ALL.into_iter().find(|i| i.number() == number).ok_or_else(|| {
            j.bad(format!("`resample` {number} is not supported (1 Lanczos, 2 bilinear, 3 bicubic, 4 box, 5 Hamming)"))
        })?,
    };
    let crop = j.bool("do_center_crop")?.unwrap_or(j.field("crop_size").is_some());
    (p.resize_shorter, p.fit) = match size(j, "size")? {
        _ if j.bool("do_resize")? == Some(false) => (None, Fit::ShorterFloor),
        Some(Size::Shorter(s)) => match j.number("crop_pct")? {
            // ConvNeXt's processor: below 384 the shorter side is enlarged by `crop_pct` and cropped, else squashed.
            Some(pct) if s < 384 => (Some(enlarged(j, s, pct)?), Fit::ShorterFloor),
            Some(_) => (None, Fit::ShorterFloor),
            None => (Some(s), Fit::ShorterFloor),
        },
        Some(Size::Exact([h, w])) if crop && h == w => (Some(h), Fit::SquashFloor),
        Some(Size::Exact(_)) if crop => return Err(j.bad("`size` is not square, and a crop follows")),
        Some(Size::Exact(_)) | None => (None, Fit::ShorterFloor),
    };
    checked(j, p)
}

/// timm's hub configuration: mean, std, interpolation, crop_pct.
fn from_timm(j: &Json, base: Preprocess) -> Result<Preprocess> {
    let mut p = Preprocess { origin: "config.json".into(), ..base };
    p.mean = j.triple("mean")?.unwrap_or(p.mean);
    p.std = j.triple("std")?.unwrap_or(p.std);
    p.interpolation = match j.string("interpolation")? {
        None => p.interpolation,
        Some(name) => Interpolation::ALL
            .into_iter()
            .find(|i| i.label() == name)
            .ok_or_else(|| j.bad(format!("`interpolation` `{}` is not supported", printable(name))))?,
    };
    if let Some(pct) = j.number("crop_pct")? {
        p.resize_shorter = Some(enlarged(j, p.size[0].min(p.size[1]), pct)?);
    }
    match j.string("crop_mode")? {
        None | Some("center") => {}
        // Squashed straight to the input's size.
        Some("squash") if p.resize_shorter.is_none_or(|s| p.size == [s, s]) => p.resize_shorter = None,
        Some(other) => return Err(j.bad(format!("`crop_mode` `{}` is not supported", printable(other)))),
    }
    checked(j, p)
}

/// What the shorter side becomes so that `side` is `pct` of it.
fn enlarged(j: &Json, side: usize, pct: f64) -> Result<usize> {
    if !(0.1..=1.0).contains(&pct) {
        return Err(j.bad("`crop_pct` is out of range"));
    }
    Ok((side as f64 / pct).floor() as usize)
}
