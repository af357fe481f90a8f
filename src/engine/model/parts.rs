//! A tensor's values part by part, for what looks at all of them: nothing large is unpacked at once, and all processors look.

use super::Dtype;
use super::params::{Packed, Param, decode};
use rayon::prelude::*;

/// Values that one thread takes at a time: whole blocks of every format.
const PART: usize = 1 << 16;

/// Parts that are held at a time: four for every thread, 256 KiB of f32 each.
fn many() -> usize {
    4 * rayon::current_num_threads()
}

impl Packed {
    fn values_of(self, bytes: &[u8]) -> Vec<f32> {
        match self {
            Packed::F16 => decode(bytes, Dtype::F16).into_owned(),
            Packed::Bf16 => decode(bytes, Dtype::Bf16).into_owned(),
            Packed::Block(block) => block.decode(bytes),
        }
    }

    /// Bytes of a part.
    fn part(self) -> usize {
        PART / self.values() * self.size()
    }
}

impl Param {
    /// Are all values numbers?
    pub(crate) fn is_finite(&self) -> bool {
        let finite = |v: &[f32]| v.iter().all(|v| v.is_finite());
        let Some((packed, bytes)) = self.packed() else {
            return self.values().par_chunks(PART).all(finite);
        };
        bytes.par_chunks(packed.part()).all(|part| match packed {
            Packed::Block(_) => finite(&packed.values_of(part)),
            Packed::F16 | Packed::Bf16 => part.chunks_exact(2).all(|b| {
                let bits = u16::from_le_bytes([b[0], b[1]]);
                // All ones in the exponent are no number.
                let exponent = if packed == Packed::F16 { 0x7c00 } else { 0x7f80 };
                bits & exponent != exponent
            }),
        })
    }

    /// All values in their order as little-endian bytes of `f32`, some megabytes at a time.
    pub(super) fn float_parts(&self, mut take: impl FnMut(&[u8])) {
        let mut out = Vec::new();
        let mut hand_on = |parts: &[&[f32]]| {
            out.resize(4 * parts.iter().map(|p| p.len()).sum::<usize>(), 0);
            out.par_chunks_mut(4 * PART).zip(parts).for_each(|(to, values)| {
                to.chunks_exact_mut(4).zip(*values).for_each(|(b, v)| b.copy_from_slice(&v.to_le_bytes()));
            });
            take(&out);
        };
        let Some((packed, bytes)) = self.packed() else {
            let values = self.values();
            let parts: Vec<&[f32]> = values.chunks(PART).collect();
            return parts.chunks(many()).for_each(hand_on);
        };
        for some in bytes.chunks(many() * packed.part()) {
            let decoded: Vec<Vec<f32>> = some.par_chunks(packed.part()).map(|b| packed.values_of(b)).collect();
            hand_on(&decoded.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ggml::Block;

    /// More than one part, the last one short.
    #[test]
    fn parts_are_all_values_in_their_order() {
        let values: Vec<f32> = (0..(many() + 1) * PART + 512).map(|i| (i % 251) as f32).collect();
        let shape = vec![values.len() / 512, 512];
        let halves: Vec<u8> = values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        let owned = Param::owned(shape.clone(), values.clone()).unwrap();
        let packed = Param::packed_in(shape.clone(), halves, Packed::Bf16).unwrap();
        let blocks = Param::packed_in(shape, Block::Q8_0.encode(&values), Packed::Block(Block::Q8_0)).unwrap();
        for p in [owned, packed, blocks] {
            let (mut got, mut largest) = (Vec::new(), 0);
            p.float_parts(|bytes| {
                largest = largest.max(bytes.len());
                got.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
            });
            assert_eq!((got, largest), (p.values().into_owned(), 4 * many() * PART));
            assert!(p.is_finite());
        }
        let mut broken = values;
        *broken.last_mut().unwrap() = f32::NAN;
        assert!(!Param::owned(vec![broken.len()], broken).unwrap().is_finite());
    }
}
