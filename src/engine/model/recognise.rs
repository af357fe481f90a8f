//! Telling which network a checkpoint is, from tensor names, shapes and `config.json`.
//!
//! Not here: what each family looks like and how its dimensions are read (`families`), fetching parameters (`load`).

use super::families::{Candidate, FamilySpec, Reader, candidates};
use super::{Checkpoint, LoadOptions, ModelError, Result, Sidecar};
use std::path::Path;

/// Does `c` have what marks the candidate?
fn fits(c: &Checkpoint, candidate: &Candidate) -> bool {
    let has = |own: &&str| c.has(&candidate.names.of(own));
    candidate.marks.iter().all(has) && (candidate.either.is_empty() || candidate.either.iter().any(has))
}

/// The spec of the network in `c`; what had to be assumed goes to `notes`.
pub(super) fn spec(
    c: &Checkpoint,
    sidecar: &Sidecar,
    options: &LoadOptions,
    path: &Path,
    notes: &mut Vec<String>,
) -> Result<FamilySpec> {
    let wanted = |candidate: &Candidate| options.arch.is_none_or(|a| a == candidate.family);
    let found = candidates().filter(wanted).find(|candidate| fits(c, candidate));
    // A family that was asked for says itself what is missing.
    let found = found.or_else(|| options.arch.and_then(|_| candidates().find(wanted)));
    let Some(candidate) = found else {
        let calls = sidecar.calls_itself().map(|t| format!("; config.json says `{t}`")).unwrap_or_default();
        return Err(ModelError::UnknownFamily { path: path.to_owned(), seen: c.summary() + &calls });
    };
    let (family, names) = (candidate.family, candidate.names);
    let reader = Reader { c, path, family, names, sidecar, options, notes: Default::default() };
    let spec = (candidate.read)(&reader)?;
    notes.append(&mut reader.notes.into_inner());
    Ok(spec)
}
