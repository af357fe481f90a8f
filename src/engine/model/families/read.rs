//! Reading a network's dimensions off a checkpoint, by a builder's own names through a [`Names`] table.
//!
//! Shapes beat configuration where both speak; what neither tells is taken from options, then defaults, and noted.

use super::Names;
use crate::model::{Checkpoint, Family, LoadOptions, ModelError, Result, Sidecar, printable};
use std::cell::RefCell;
use std::path::Path;

/// A checkpoint seen through one family's and origin's names.
pub(in crate::model) struct Reader<'a> {
    pub c: &'a Checkpoint,
    /// Where it was read from.
    pub path: &'a Path,
    pub family: Family,
    pub names: &'static Names,
    pub sidecar: &'a Sidecar,
    pub options: &'a LoadOptions,
    /// What had to be assumed.
    pub notes: RefCell<Vec<String>>,
}

impl Reader<'_> {
    /// This is no network of the family, because…
    pub fn not(&self, why: impl Into<String>) -> ModelError {
        let (path, family) = (self.path.to_owned(), self.family);
        ModelError::NotFamily { path, family, why: why.into(), asked: self.options.arch.is_some() }
    }

    /// What the configuration tells under the first of `keys` that it has is what the weights have, `found` in the tensor `own`. Another
    /// number means that it is another network's, and that nothing else it tells can be believed.
    pub fn agrees(&self, keys: &[&str], found: usize, own: &str) -> Result<()> {
        let c = &self.sidecar.config;
        let told = keys.iter().find_map(|k| Some((*k, c.field(k)?.as_u64()?)));
        match told.filter(|(_, n)| usize::try_from(*n).ok() != Some(found)) {
            None => Ok(()),
            Some((key, n)) => {
                let name = self.names.of(own);
                let why = "it is the configuration of another network";
                Err(self.not(format!("`{key}` tells of {n}, and `{name}` has {found}: {why}")))
            }
        }
    }

    pub fn note(&self, what: impl Into<String>) {
        self.notes.borrow_mut().push(what.into());
    }

    pub fn has(&self, own: &str) -> bool {
        self.c.has(&self.names.of(own))
    }

    /// Number of axes of `own`; 0 when it is not there.
    pub fn rank(&self, own: &str) -> usize {
        self.c.shape(&self.names.of(own)).map_or(0, <[usize]>::len)
    }

    /// The shape of `own`, which must have `N` axes, none of them empty.
    pub fn shape<const N: usize>(&self, own: &str) -> Result<[usize; N]> {
        let name = self.names.of(own);
        let found = self.c.shape(&name).ok_or_else(|| self.not(format!("tensor `{name}` is missing")))?;
        match <[usize; N]>::try_from(found) {
            Ok(s) if !s.contains(&0) => Ok(s),
            _ => Err(self.not(format!("tensor `{name}` has shape {found:?}, which does not have {N} non-empty axes"))),
        }
    }

    /// Length of the first axis of `own`: output channels, features or classes.
    pub fn out(&self, own: &str) -> Result<usize> {
        let name = self.names.of(own);
        let found = self.c.shape(&name).ok_or_else(|| self.not(format!("tensor `{name}` is missing")))?;
        match found.first() {
            Some(&n) if n > 0 => Ok(n),
            _ => Err(self.not(format!("tensor `{name}` is empty"))),
        }
    }

    /// How many consecutive indices `i` from 0 have a tensor `own(i)`; at least one.
    pub fn count(&self, own: impl Fn(usize) -> String) -> Result<usize> {
        let n = (0..).take_while(|&i| self.has(&own(i))).count();
        if n == 0 { Err(self.not(format!("tensor `{}` is missing", self.names.of(&own(0))))) } else { Ok(n) }
    }

    /// Image side: option, files beside the weights, else `default` with a note.
    pub fn image(&self, default: usize) -> Result<usize> {
        if let Some(image) = self.options.image.map_or_else(|| self.sidecar.image(), |i| Ok(Some(i)))? {
            return Ok(image);
        }
        self.note(format!("image size assumed to be {default} (weights do not tell; `--image-size` overrides)"));
        Ok(default)
    }

    /// Head count: option, configuration, else `default` with a note.
    pub fn heads(&self, default: usize) -> Result<usize> {
        if let Some(h) = self.options.heads.map_or_else(|| self.sidecar.heads(), |h| Ok(Some(h)))? {
            return Ok(h);
        }
        self.note(format!("{default} attention heads assumed (weights do not tell; `--heads` overrides)"));
        Ok(default)
    }

    /// timm has relatives of a family that share its names and shapes but not, say, its activations. Where timm's
    /// name lies beside the weights it must be one of `stems`, a number, one of `variants` that differ in numbers alone, and
    /// nothing more but `_…`.
    pub fn called(&self, stems: &[&str], variants: &[&str]) -> Result<()> {
        let Some(name) = self.sidecar.architecture()? else { return Ok(()) };
        let ends = |rest: &str| rest.is_empty() || rest.starts_with('_');
        let known = |stem: &&str| {
            let rest = name.strip_prefix(*stem).map(|rest| rest.trim_start_matches(|c: char| c.is_ascii_digit()));
            let variant = |v: &&str| rest.and_then(|rest| rest.strip_prefix(*v)).is_some_and(ends);
            rest.is_some_and(ends) || variants.iter().any(variant)
        };
        if stems.iter().any(known) {
            return Ok(());
        }
        Err(self.relative(name))
    }

    pub fn relative(&self, name: &str) -> ModelError {
        self.not(format!("timm's `{}` is a relative that is not supported", printable(name)))
    }
}
