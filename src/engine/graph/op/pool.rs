//! Pooling over images.

use super::facts::{Facts, image, traits, window};
use super::numbers::sides;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaxPool2d {
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    /// `[top, left, bottom, right]`.
    #[serde(deserialize_with = "sides")]
    pub padding: [usize; 4],
}

/// Mean over windows; padding counts as zeros, or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AvgPool2d {
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    /// `[top, left, bottom, right]`.
    #[serde(deserialize_with = "sides")]
    pub padding: [usize; 4],
    pub count_padding: bool,
}

/// Mean over `out[0] x out[1]` nearly equal cells: cell `i` of `n` over a side of `len` is
/// `⌊i·len/n⌋ .. ⌈(i+1)·len/n⌉`, as PyTorch has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdaptiveAvgPool2d {
    pub out: [usize; 2],
}

/// `[c, h, w]` → `[c]`.
pub(super) struct GlobalAvgPool;

/// Every window must see at least one pixel.
fn pooled(ins: &[&[usize]], kernel: [usize; 2], stride: [usize; 2], padding: [usize; 4]) -> Result<Vec<usize>, String> {
    let [c, h, w] = image(ins)?;
    if (0..4).any(|i| padding[i] >= kernel[i % 2].max(1)) {
        return Err("padding is as large as the kernel".into());
    }
    let [h, w] = window([h, w], kernel, stride, padding)?;
    Ok(vec![c, h, w])
}

impl Facts for MaxPool2d {
    traits!("max pool", "maxpool", per_channel, half);

    fn describe(&self) -> Option<String> {
        Some(format!("maxpool {}x{}", self.kernel[0], self.kernel[1]))
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        pooled(ins, self.kernel, self.stride, self.padding)
    }
}

impl Facts for AvgPool2d {
    traits!("average pool", "avgpool", per_channel);

    fn describe(&self) -> Option<String> {
        Some(format!("avgpool {}x{}", self.kernel[0], self.kernel[1]))
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        pooled(ins, self.kernel, self.stride, self.padding)
    }
}

impl Facts for AdaptiveAvgPool2d {
    traits!("adaptive average pool", "avgpool", per_channel);

    fn describe(&self) -> Option<String> {
        Some(format!("avgpool to {}x{}", self.out[0], self.out[1]))
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        Ok(vec![image(ins)?[0], self.out[0], self.out[1]])
    }
}

impl Facts for GlobalAvgPool {
    // A vector comes of an image: not per channel in the sense of [`Traits::per_channel`].
    traits!("global average pool", "avgpool", kind: "avgpool");

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        Ok(vec![image(ins)?[0]])
    }
}
