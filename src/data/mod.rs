//! Data sets and preprocessing, and the synthetic demo set.

mod card;

pub use card::DataCard;

use std::path::{Path, PathBuf};

/// The folder of real weights and data that tests and benches use when it is there: `$PARING_REAL`, or `shared/real`
/// beside this checkout or beside one of its ancestors.
#[doc(hidden)]
pub fn real_dir() -> Option<PathBuf> {
    if let Some(dir) = std::env::var_os("PARING_REAL") {
        return Some(PathBuf::from(dir)).filter(|d| d.is_dir());
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().map(|a| a.join("shared/real")).find(|d| d.is_dir())
}
