//! Content-addressed results on disk: small JSON files named by the hash of everything they depend on.
//!
//! Invariants: only their owner writes and reads them, since they are believed as measurements; a file appears whole or not
//! at all (`replace`); a file that cannot be read or parsed counts as absent; failing to write costs only the next
//! run's time, so it is logged and not an error.

use super::open::read;
use super::scratch::write_privately;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

/// Changes when what is measured changes, so that old files are not taken for new ones.
const VERSION: &str = "paring-2";

/// A result has some thousands of numbers.
const MAX_BYTES: u64 = 64 << 20;

/// A cache folder, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cache<'a>(pub Option<&'a Path>);

impl Cache<'_> {
    fn path(&self, kind: &str, key: &str) -> Option<PathBuf> {
        let hash = blake3::hash(format!("{VERSION}\n{kind}\n{key}").as_bytes()).to_hex();
        Some(self.0?.join(format!("{kind}-{}.json", &hash.as_str()[..32])))
    }

    pub fn get<T: DeserializeOwned>(&self, kind: &str, key: &str) -> Option<T> {
        let text = read(&self.path(kind, key)?, MAX_BYTES).ok()?;
        serde_json::from_slice(&text).ok()
    }

    pub fn put<T: Serialize>(&self, kind: &str, key: &str, value: &T) {
        let Some(path) = self.path(kind, key) else { return };
        if let Err(e) = write(&path, value) {
            tracing::warn!("could not keep `{}`: {e}", path.display());
        }
    }
}

/// Nine significant digits: what a measurement is worth, and few enough that JSON gives back the same number.
pub(crate) fn rounded(v: f64) -> f64 {
    format!("{v:.8e}").parse().unwrap_or(v)
}

fn write<T: Serialize>(path: &Path, value: &T) -> std::io::Result<()> {
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    write_privately(path, serde_json::to_vec(value)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounded_numbers_survive_json() {
        for v in [0.1 + 0.2, 1.0 / 3.0, 1e-12 / 7.0, -12345.678912345, 0.0, f64::MAX] {
            let r = rounded(v);
            assert!((r - v).abs() <= 1e-8 * v.abs());
            let back: f64 = serde_json::from_str(&serde_json::to_string(&r).expect("json")).expect("number");
            assert_eq!(back, r);
        }
    }

    #[test]
    fn keeps_by_content_and_shrugs_off_damage() {
        let dir = tempfile::tempdir().expect("temporary folder");
        let cache = Cache(Some(dir.path()));
        assert_eq!(cache.get::<Vec<f64>>("ladder", "a"), None);
        cache.put("ladder", "a", &vec![1.5, 2.5]);
        assert_eq!(cache.get::<Vec<f64>>("ladder", "a"), Some(vec![1.5, 2.5]));
        assert_eq!(cache.get::<Vec<f64>>("ladder", "b"), None);
        assert_eq!(cache.get::<Vec<f64>>("sense", "a"), None);
        let file = std::fs::read_dir(dir.path()).expect("dir").next().expect("one file").expect("entry").path();
        let mode = std::os::unix::fs::MetadataExt::mode(&file.metadata().expect("there"));
        assert_eq!(mode & 0o077, 0, "nobody else's business");
        std::fs::write(&file, b"[1.5, 2").expect("damage");
        assert_eq!(cache.get::<Vec<f64>>("ladder", "a"), None);
        Cache(None).put("ladder", "a", &1);
        Cache(Some(Path::new("/proc/no/such/place"))).put("ladder", "a", &1);
    }
}
