//! What loading is told besides the path.

use super::Family;

/// What the caller knows better than the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// The family, instead of recognising it.
    pub arch: Option<Family>,
    /// Image side in pixels, for families whose weights do not tell (ResNets).
    pub image: Option<usize>,
    /// Attention heads, where neither weights nor `config.json` tell.
    pub heads: Option<usize>,
}
