//! The session's recipe as it stands when the engine is opened, and what became of its data since the journal wrote it down.

use crate::data::Dataset;
use crate::exec;
use crate::host::spec::OpenSpec;
use crate::model::Model;
use crate::recover::RepairOptions;
use crate::session::{Images, Opening, Recipe};

/// Bytes of images that are read to know a set by its content. Calibration sets are small and decide the weights; what
/// else is in an evaluation set is noticed when it is evaluated.
const CALIB_BYTES: u64 = 1 << 30;
const DATA_BYTES: u64 = 256 << 20;

/// Calibration images that importance looks at, where it looks at any.
const EVIDENCE_IMAGES: usize = 256;

/// The recipe now. Of an `old` one everything stays that was chosen; data is held against it.
///
/// # Errors
/// Data that is no longer what the old recipe says, named.
pub(super) fn now(
    spec: &OpenSpec,
    model: &Model,
    data: &Dataset,
    calib: &Dataset,
    batch: usize,
    old: Option<&Recipe>,
) -> Result<Recipe, String> {
    let images = |set: &Dataset, spec: &str, limit: usize, most: u64| -> Result<Images, String> {
        Ok(Images { spec: spec.to_owned(), limit, mark: set.mark(most).map_err(|e| e.to_string())? })
    };
    let repair = RepairOptions { seed: spec.seed, ranges: spec.calibration, ..RepairOptions::default() };
    let recipe = Recipe {
        how: Opening { batch, ..spec.how.clone() },
        preprocess: model.info.preprocess.clone(),
        data: images(data, &spec.data, spec.limit, DATA_BYTES)?,
        calib: images(calib, spec.calib.as_ref().unwrap_or(&spec.data), spec.calib_limit, CALIB_BYTES)?,
        calib_from_data: spec.calib.is_none(),
        evidence_images: old.map_or(EVIDENCE_IMAGES, |r| r.evidence_images),
        most_at_once: old.map_or(spec.how.batch, |r| r.most_at_once),
        held: old.map_or_else(|| calib.usually_held(), |r| r.held),
        repair: old.map_or(repair, |r| r.repair.clone()),
        kernels: exec::device::kernels(),
        program: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let Some(old) = old else { return Ok(recipe) };
    let sets = [("evaluation", &old.data, &recipe.data), ("calibration", &old.calib, &recipe.calib)];
    for (what, then, now) in sets {
        if let Some(how) = then.mark.difference(&now.mark) {
            return Err(format!(
                "{what} data `{}` changed since the session opened: {how}; hint: put the old data back, or open a new \
                 session with `--name`",
                now.spec
            ));
        }
    }
    Ok(recipe)
}
