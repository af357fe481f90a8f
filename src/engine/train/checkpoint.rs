//! What of a healing survives a kill: the whole state after a step, in a safetensors file that is replaced as a whole.
//!
//! Invariant: going on from a checkpoint gives the same weights, bit for bit, as never having stopped. A checkpoint of another network, other
//! images or another recipe is none: its key says so.

use super::error::TrainError;
use super::heal::Look;
use super::pupil::Pupil;
use crate::files;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::Path;

/// The state's name in the file.
const KEY: &str = "paring.healing";

/// Everything but the tensors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Told {
    /// What the state is of.
    pub key: String,
    pub step: u32,
    /// The looks so far, their numbers as bits, and which is the best.
    pub looks: Vec<[u64; 3]>,
    pub best: usize,
}

impl Told {
    pub fn of(key: &str, step: u32, looks: &[Look], best: usize) -> Told {
        let bits = |l: &Look| [l.step.into(), l.loss.to_bits(), l.agreement.to_bits()];
        Told { key: key.to_owned(), step, looks: looks.iter().map(bits).collect(), best }
    }

    pub fn looks(&self) -> Vec<Look> {
        let of = |b: &[u64; 3]| Look { step: b[0] as u32, loss: f64::from_bits(b[1]), agreement: f64::from_bits(b[2]) };
        self.looks.iter().map(of).collect()
    }
}

/// Tensors of a pupil, in its own order, each under a name of its own.
fn tensors(pupil: &mut Pupil) -> Vec<(String, &mut Vec<f32>)> {
    let mut out = Vec::new();
    for slot in &mut pupil.slots {
        let name = slot.name.clone();
        for (what, values) in [
            ("value", &mut slot.value),
            ("average", &mut slot.average),
            ("first", &mut slot.first),
            ("second", &mut slot.second),
        ] {
            out.push((format!("{what}:{name}"), values));
        }
    }
    for r in &mut pupil.running {
        for (what, values) in ["mean", "var", "mean_average", "var_average"].iter().zip(&mut r.values) {
            out.push((format!("{what}:{}", r.node), values));
        }
    }
    out
}

/// Writes the state after a step: the pupil, and the best so far.
///
/// # Errors
/// What cannot be written.
pub(super) fn save(path: &Path, told: &Told, pupil: &mut Pupil, best: &mut Pupil) -> Result<(), TrainError> {
    let failed = |why: String| TrainError::Checkpoint { path: path.to_owned(), why };
    let bytes = |v: &[f32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let mut data = Vec::new();
    for (whose, of) in [("now", pupil), ("best", best)] {
        data.extend(tensors(of).into_iter().map(|(name, v)| (format!("{whose}:{name}"), v.len(), bytes(v))));
    }
    let views = data.iter().map(|(name, n, b)| Ok((name.clone(), TensorView::new(Dtype::F32, vec![*n], b)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>().map_err(|e| failed(e.to_string()))?;
    let text = serde_json::to_string(told).map_err(|e| failed(e.to_string()))?;
    let whole = safetensors::serialize(views, Some(HashMap::from([(KEY.to_owned(), text)])))
        .map_err(|e| failed(e.to_string()))?;
    files::write(path, whole).map_err(|e| failed(e.to_string()))
}

/// Puts the state at `path` into `pupil` and `best`, where it is of `key`; `None`, and both as they were, where it is not or there is none that
/// can be read.
pub(super) fn load(path: &Path, key: &str, pupil: &mut Pupil, best: &mut Pupil) -> Option<Told> {
    let bytes = std::fs::read(path).ok()?;
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).ok()?;
    let told: Told = serde_json::from_str(header.metadata().as_ref()?.get(KEY)?).ok()?;
    if told.key != key || told.best >= told.looks.len() {
        return None;
    }
    let file = safetensors::SafeTensors::deserialize(&bytes).ok()?;
    let (mut now, mut then) = (pupil.clone(), best.clone());
    for (whose, of) in [("now", &mut now), ("best", &mut then)] {
        for (name, values) in tensors(of) {
            let view = file.tensor(&format!("{whose}:{name}")).ok()?;
            let read: Vec<f32> = view.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
            if view.dtype() != Dtype::F32 || read.len() != values.len() {
                return None;
            }
            *values = read;
        }
    }
    now.step = told.step;
    then.step = told.looks[told.best][0] as u32;
    (*pupil, *best) = (now, then);
    Some(told)
}
