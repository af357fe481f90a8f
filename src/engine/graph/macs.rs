//! Multiply-accumulates in every counting convention.

use serde::{Deserialize, Serialize};

/// Which counting convention MACs follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MacConvention {
    /// Convolutions and linears only.
    #[default]
    ConvLinear,
    /// Plus QKᵀ and AV.
    Attention,
    /// Plus norms as fvcore and timm count them: 2 an element for a batch norm, 5 for a layer norm.
    Norms,
}

/// MACs of one node for one image, split so that any [`MacConvention`] can be summed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Macs {
    pub conv_linear: u64,
    pub attention: u64,
    pub norms: u64,
}

impl Macs {
    /// The count under `convention`.
    pub fn get(&self, convention: MacConvention) -> u64 {
        match convention {
            MacConvention::ConvLinear => self.conv_linear,
            MacConvention::Attention => self.conv_linear.saturating_add(self.attention),
            MacConvention::Norms => self.conv_linear.saturating_add(self.attention).saturating_add(self.norms),
        }
    }
}

impl std::ops::Add for Macs {
    type Output = Macs;
    fn add(self, o: Macs) -> Macs {
        Macs {
            conv_linear: self.conv_linear.saturating_add(o.conv_linear),
            attention: self.attention.saturating_add(o.attention),
            norms: self.norms.saturating_add(o.norms),
        }
    }
}

impl std::iter::Sum for Macs {
    fn sum<I: Iterator<Item = Macs>>(iter: I) -> Macs {
        iter.fold(Macs::default(), |a, b| a + b)
    }
}
