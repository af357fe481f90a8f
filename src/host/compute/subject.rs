//! What a session is about: a model and its data, opened by what a spec says. Images or texts for classifiers, text for language models.
//!
//! Invariant: a language model's graph is bound to the window that the session's text has, so that every size, count and time
//! is of one length, and a classifier of texts, which have many, is told one; what is exported takes any.
//!
//! Not here: what is measured on it (`measure`), and what another task brings (`open_subject` takes it as it is).

use crate::data::{self, ClassedOptions, DataError, Dataset, TextOptions};
use crate::graph::Graph;
use crate::host::spec::OpenSpec;
use crate::model::{self, ASSUMED, LoadOptions, Model, Tokenizer};
use crate::session::{Opening, WINDOW};
use crate::train::demo;
use std::path::Path;
use std::sync::Arc;

/// Loads a checkpoint, or a bundled demo model (`demo:vit` and others); `mean` and `std` correct its preprocessing.
pub fn load_model(
    name: &str,
    options: &LoadOptions,
    mean: Option<[f32; 3]>,
    std: Option<[f32; 3]>,
) -> Result<Model, String> {
    let mut model = match name.strip_prefix("demo:") {
        Some(word) => demo::load(demo::DemoModel::named(word)?).map_err(|e| e.to_string())?,
        None => model::load(Path::new(name), options).map_err(|e| e.to_string())?,
    };
    if let (Some(asked), Ok(&[_, h, w])) = (options.image, model.graph.input_shape().as_deref())
        && (h, w) != (asked, asked)
    {
        return Err(format!("`{name}` takes images of {h}x{w} pixels, not {asked}; hint: leave --image-size out"));
    }
    if std.is_some_and(|s| s.iter().any(|v| *v <= 0.0)) {
        return Err(
            "the standard deviation has a number that is not positive; hint: such as 0.229,0.224,0.225".to_owned()
        );
    }
    let prep = &mut model.info.preprocess;
    if mean.is_some() || std.is_some() {
        let (assumed, was) = (prep.assumed(), prep.clone());
        prep.mean = mean.unwrap_or(prep.mean);
        prep.std = std.unwrap_or(prep.std);
        prep.origin = "flags".to_owned();
        model.info.notes.retain(|n| n != ASSUMED);
        let other = match (mean, std) {
            (Some(_), None) => Some(format!("--mean is given, the deviation {:?} is", was.std)),
            (None, Some(_)) => Some(format!("--std is given, the mean {:?} is", was.mean)),
            _ => None,
        };
        if let Some(other) = other.filter(|_| assumed) {
            model.info.notes.push(format!("{other} ImageNet's and assumed"));
        }
    }
    Ok(model)
}

/// Whether inputs are small: images of 64x64 pixels, or as many values of another kind.
fn takes_little(model: &Model) -> bool {
    let places: usize = match model.graph.input_shape().as_deref() {
        Ok([_, image @ ..]) if image.len() == 2 => image.iter().product(),
        Ok(other) => other.iter().product(),
        // As long as a sequence is.
        Err(_) => return false,
    };
    places <= 64 * 64
}

/// Bytes of logits that a batch of windows makes at most, unless one window makes more.
const LOGITS: usize = 64 << 20;

/// Tokens of texts that a batch has at most, unless one text has more.
const TOKENS: usize = 4096;

/// Items a batch when the user named no number: latency of small networks is only steady over many; a language model reads
/// one prompt, a classifier one text.
pub fn usual_batch(model: &Model) -> usize {
    match model.graph.vocabulary() {
        Some(_) => 1,
        None if takes_little(model) => 64,
        None => 8,
    }
}

/// Items a batch for work whose latency does not count.
pub fn working_batch(model: &Model) -> usize {
    let tokens = || model.graph.input_shape().map_or(usize::MAX, |s| s.iter().product());
    match model.graph.vocabulary() {
        Some(_) if classifies_text(model) => (TOKENS / tokens().max(1)).clamp(1, 64),
        // One window of a large vocabulary makes a hundred megabytes.
        Some(vocab) => (LOGITS / 4 / vocab.saturating_mul(tokens()).max(1)).clamp(1, 16),
        None if takes_little(model) => 128,
        None => 16,
    }
}

/// Opens calibration data beside evaluation data, and says in words when the two may not be used together.
///
/// `open` opens at most so many items of a set (0: all).
pub fn open_data(
    spec: &OpenSpec,
    open: &dyn Fn(&str, usize) -> Result<Dataset, DataError>,
) -> Result<(Dataset, Dataset, bool), String> {
    let data = open(&spec.data, spec.limit).map_err(|e| e.to_string())?;
    let Some(calib) = &spec.calib else {
        if !spec.how.calib_is_eval {
            return Err(format!(
                "no calibration data; hint: give `--calib` data that is not in `{}`, or `--calib-is-eval` to use those",
                spec.data
            ));
        }
        let most = if spec.calib_limit == 0 { 5000 } else { spec.calib_limit };
        return Ok((data.clone(), data.take(most), true));
    };
    let calib = open(calib, spec.calib_limit).map_err(|e| e.to_string())?;
    let shared = calib.overlaps(&data);
    if shared > 0 && !spec.how.calib_is_eval {
        return Err(format!(
            "{shared} of {} calibration images of `{}` are also evaluation images of `{}`; hint: other images, or \
             `--calib-is-eval` if you mean it",
            calib.len(),
            calib.card().name,
            data.card().name
        ));
    }
    Ok((data, calib, shared > 0))
}

/// What a session is about: a model, what it is evaluated on, and what compressing it may look at. The data knows the task.
#[derive(Debug)]
pub struct Subject {
    pub model: Model,
    pub data: Dataset,
    pub calib: Dataset,
    /// Calibration items are also evaluation items.
    pub calib_is_eval: bool,
}

impl Subject {
    /// A classifier and images or texts, or a language model and text.
    ///
    /// # Errors
    /// What cannot be opened, by name.
    pub fn load(spec: &OpenSpec) -> Result<Subject, String> {
        let Opening { model: named, arch, image, heads, .. } = &spec.how;
        let options = LoadOptions { arch: *arch, image: *image, heads: *heads };
        let mut model = load_model(named, &options, spec.mean, spec.std)?;
        let (data, calib, calib_is_eval) = if takes_text(&model) {
            let options = spec.how.windows(model.info.context);
            let texts = [Some(spec.data.as_str()), spec.calib.as_deref()];
            let comes_with = spec.how.tokenizer.as_ref().unwrap_or(named);
            let tokenizer = vocabulary(comes_with, texts.into_iter().flatten())?;
            let open = |name: &str, limit| data::text(name, tokenizer.as_ref(), &TextOptions { limit, ..options });
            let opened = open_data(spec, &open)?;
            bind(&mut model, &options);
            opened
        } else if classifies_text(&model) {
            let comes_with = spec.how.tokenizer.as_ref().unwrap_or(named);
            let tokenizer = tokenizer_of(comes_with)?;
            let (most, names) = (longest(spec.how.window, model.info.context)?, model.info.class_names.clone());
            let notes = std::cell::RefCell::new(Vec::new());
            let open = |name: &str, limit| {
                let options = ClassedOptions { most, limit, names: names.as_deref().unwrap_or_default() };
                let (data, cut) = data::classed(name, tokenizer.as_ref(), &options)?;
                notes.borrow_mut().extend(cut);
                Ok(data)
            };
            let opened = open_data(spec, &open)?;
            model.info.notes.extend(notes.into_inner());
            tell(&mut model, spec.how.window.or(opened.0.usual_length()).unwrap_or(most));
            opened
        } else {
            open_data(spec, &data::open)?
        };
        Ok(Subject { model, data, calib, calib_is_eval })
    }
}

/// The tokenizer that comes with the model at `spec`, a path or a bundled model; there may be none.
///
/// # Errors
/// As [`Tokenizer::of`]; a bundled model that there is not.
pub fn tokenizer_of(spec: &str) -> Result<Option<Tokenizer>, String> {
    let found = match spec.strip_prefix("demo:") {
        Some(word) => demo::load(demo::DemoModel::named(word)?).and_then(|m| m.origin.tokenizer(Path::new(spec))),
        None => Tokenizer::of(Path::new(spec)),
    };
    found.map_err(|e| e.to_string())
}

/// The same where any of `texts` needs one; ids do not.
///
/// # Errors
/// As [`tokenizer_of`].
pub fn vocabulary<'a>(spec: &str, mut texts: impl Iterator<Item = &'a str>) -> Result<Option<Tokenizer>, String> {
    if texts.any(|t| !data::holds_ids(Path::new(t))) { tokenizer_of(spec) } else { Ok(None) }
}

/// Gives a language model's graph the length of such windows.
pub fn bind(model: &mut Model, options: &TextOptions) {
    model.graph = Arc::new(Graph::clone(&model.graph).bound(options.targets()));
}

/// Tells a classifier of texts that figures are of texts of so many tokens.
pub fn tell(model: &mut Model, tokens: usize) {
    model.graph = Arc::new(Graph::clone(&model.graph).told(tokens));
}

/// Tokens that a text may have: as many as somebody said, else as the model was made for.
///
/// # Errors
/// More than the model was made for, in words.
pub fn longest(asked: Option<usize>, context: Option<usize>) -> Result<usize, String> {
    match (asked, context) {
        // One that begins a text, and one that ends it.
        (Some(asked @ 0..=2), _) => {
            Err(format!("--window {asked} leaves nothing of a text between its first and last token; hint: 3 at least"))
        }
        (Some(asked), Some(most)) if asked > most => Err(format!(
            "--window {asked} is more than the {most} tokens that the model was made for; hint: a smaller one"
        )),
        (asked, context) => Ok(asked.or(context).unwrap_or(WINDOW)),
    }
}

/// Is it a language model?
pub fn takes_text(model: &Model) -> bool {
    model.graph.is_language_model()
}

/// Does it say which class a whole text is of?
pub fn classifies_text(model: &Model) -> bool {
    model.graph.vocabulary().is_some() && !model.graph.is_language_model()
}
