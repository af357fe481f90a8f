//! A ladder and a policy as they are kept in a model's file: one JSON document that travels as a tensor of bytes, [`CONTROL`], and after its line a
//! line with the hash of all else and the bytes of what was re-fitted for levels.
//!
//! What a level keeps is told by numbers of neurons; all other weights are the file's own. Not here: the file (`model::export`). Invariant: what is
//! read fits the model that it came with, or is refused in words.

use super::error::{ControlError, Result};
use super::fits::{Fits, Told};
use super::ladder::{Ladder, level_models};
use super::learn::Learner;
use super::policy::Policy;
use crate::exec::{CompileOptions, Plan};
use crate::model::Model;
use crate::model::export::{self, Extra, Manifest};
use crate::prune;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The tensor of our own files that holds it.
pub const CONTROL: &str = "paring_control.json";

/// A document with a higher number is refused. Those of before there were re-fitted weights have the first.
const FORMAT: u32 = 2;
const WITHOUT_FITS: u32 = 1;

/// How a controller came about, for people.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    pub learner: Learner,
    pub seed: u64,
    /// The mean time a token that it was made for, as a share of the whole network's.
    pub target: f64,
    /// The text that it was made with.
    pub text: String,
    /// What levels were timed on.
    pub device: String,
}

/// A ladder and who chooses on it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Control {
    format: u32,
    /// The weights that it is for ([`crate::model::ModelInfo::hash`]).
    weights: String,
    pub ladder: Ladder,
    pub policy: Policy,
    pub origin: Origin,
    /// What the bytes after the line are.
    #[serde(default)]
    told: Vec<Told>,
    #[serde(skip)]
    pub fits: Fits,
}

impl Control {
    pub fn new(model: &Model, (ladder, fits): (Ladder, Fits), policy: Policy, origin: Origin) -> Control {
        Control { format: FORMAT, weights: model.info.hash.clone(), ladder, policy, origin, told: fits.told().0, fits }
    }

    /// As [`parse`] reads it.
    ///
    /// # Errors
    /// Numbers that JSON has not.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let line = serde_json::to_vec(self).map_err(|e| ControlError::Bad(format!("no JSON: {e}")))?;
        let weights = self.fits.told().1;
        let hash = hash_of(&line, &weights);
        Ok([&line, &b"\n"[..], hash.as_bytes(), b"\n", &weights].concat())
    }

    /// The levels' plans, the whole network's first.
    ///
    /// # Errors
    /// What cutting and compiling report.
    pub fn plans(&self, model: &Model, options: &CompileOptions) -> Result<Vec<Plan>> {
        let groups = prune::groups(&model.graph);
        level_models(model, &groups, &self.ladder, &self.fits).map(|level| Ok(Plan::of(&level?, options)?)).collect()
    }
}

/// Writes `model` with its controller to `path`. Returns the BLAKE3 (hex) of the whole file.
///
/// # Errors
/// As [`export::safetensors`].
pub fn write(path: &Path, model: &Model, manifest: &Manifest, control: &Control) -> Result<String> {
    let stored = export::hash(model)?;
    let control = Control { weights: stored, ..control.clone() };
    let bytes = control.to_bytes()?;
    Ok(export::safetensors_with(path, model, manifest, &[Extra { name: CONTROL, bytes: &bytes }])?)
}

/// What stands on the second line: BLAKE3 (hex) of the first and of the bytes after the second.
fn hash_of(line: &[u8], weights: &[u8]) -> String {
    blake3::Hasher::new().update(line).update(weights).finalize().to_hex().to_string()
}

/// `bytes` up to the first end of a line, and after it.
fn line_of(bytes: &[u8]) -> (&[u8], &[u8]) {
    let end = bytes.iter().position(|b| *b == b'\n').unwrap_or(bytes.len());
    (&bytes[..end], bytes.get(end + 1..).unwrap_or_default())
}

/// The controller of `model`, where its file has one.
///
/// # Errors
/// As [`parse`], and what reading the file reports.
pub fn read(model: &Model) -> Result<Option<Control>> {
    let path = &model.info.source;
    let Some(bytes) = export::carried(path, CONTROL)? else { return Ok(None) };
    parse(&bytes, model, &path.display().to_string()).map(Some)
}

/// A controller of `model` as it was kept in `file`.
///
/// # Errors
/// One that is damaged, of a newer version, or for other weights; by name.
pub fn parse(bytes: &[u8], model: &Model, file: &str) -> Result<Control> {
    let file = crate::model::printable(file);
    let damaged = |why: String| ControlError::Damaged { file: file.clone(), why: crate::model::printable(&why) };
    #[derive(Deserialize)]
    struct Version {
        format: u32,
    }
    let no_json = |e: serde_json::Error| damaged(e.to_string());
    let (bytes, rest) = line_of(bytes);
    let (hash, weights) = line_of(rest);
    let Version { format } = serde_json::from_slice(bytes).map_err(no_json)?;
    if format > FORMAT {
        return Err(ControlError::Newer { file, format, known: FORMAT });
    }
    if format > WITHOUT_FITS && hash != hash_of(bytes, weights).as_bytes() {
        return Err(damaged("its bytes are not those that were written".to_owned()));
    }
    let mut control: Control = serde_json::from_slice(bytes).map_err(no_json)?;
    if control.weights != model.info.hash {
        return Err(ControlError::Foreign { file });
    }
    let groups = prune::groups(&model.graph);
    control.ladder.check(model, &groups).map_err(damaged)?;
    control.fits = Fits::read((&control.told, weights), (model, &groups), &control.ladder).map_err(damaged)?;
    let vocabulary = model.graph.vocabulary().unwrap_or(0);
    control.policy.check(control.ladder.levels.len(), vocabulary).map_err(damaged)?;
    Ok(control)
}
