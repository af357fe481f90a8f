//! Products with weights as they are stored, in all registers that this processor has.

use super::*;
use crate::exec::kernel::{noise, shared};
use crate::model::ggml::Block;

/// Where a block of `packed` has half-precision numbers.
fn halves(packed: Packed) -> &'static [usize] {
    match packed {
        Packed::F16 | Packed::Bf16 => &[0],
        Packed::Block(block) => match block {
            Block::Q4_0 | Block::Q5_0 | Block::Q8_0 | Block::IQ4_NL | Block::IQ4_XS => &[0],
            Block::Q4_1 | Block::Q5_1 | Block::Q4_K | Block::Q5_K => &[0, 2],
            Block::Q2_K => &[80, 82],
            Block::Q3_K => &[108],
            Block::Q6_K => &[208],
        },
    }
}

/// A matrix of so many rows in `packed`, of bytes all over but with scales near one.
pub(super) fn stored(packed: Packed, n: usize, k: usize) -> Param {
    let len = n * k / packed.values() * packed.size();
    let mut bytes: Vec<u8> = (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    // Halves between 0.5 and 2, where the format has them; elsewhere any bits are values.
    for &at in halves(packed) {
        for block in bytes.chunks_exact_mut(packed.size()) {
            block[at + 1] = 0x38 + (block[at + 1] & 7);
        }
    }
    Param::packed_in(vec![n, k], bytes, packed).expect("as many bytes as it takes")
}

#[test]
fn every_format_multiplies_what_it_decodes_to() {
    let all = Block::ALL.map(Packed::Block).into_iter().chain([Packed::F16, Packed::Bf16]);
    for packed in all {
        // Not a whole number of panels; more than a run of values.
        let (n, k) = (83, 1792);
        let weight = stored(packed, n, k);
        let w = weight.values();
        let e = Epilogue { bias: noise(n, 3), act: Some(Activation::Silu) };
        let mut few: Option<Vec<f32>> = None;
        let able = [With::Wide, With::Pair].into_iter().filter(|with| unpacks(*with));
        let able: Vec<Blocks> = able.filter_map(|with| Blocks::with(&weight, with)).collect();
        let cases = [(1, 1), (3, 2), (8, 1), (9, 1), (9, 3), (40, 2)];
        for (blocks, (m, threads)) in able.iter().flat_map(|blocks| cases.map(|case| (blocks, case))) {
            let (x, res) = (noise(40 * k, 1), noise(40 * n, 2));
            let (x, res) = (&x[..m * k], &res[..m * n]);
            let mut out = vec![f32::NAN; m * n];
            shared(threads, |par| blocks.run(&e, x, Some(res), &mut out, par));
            for (r, c) in [(0, 0), (m - 1, n - 1), (m / 2, 50), (0, 17)] {
                let row = &w[c * k..][..k];
                let (mut sum, mut size) = (0f64, 1f64);
                for (w, x) in row.iter().zip(&x[r * k..]) {
                    sum += f64::from(*w) * f64::from(*x);
                    size += (f64::from(*w) * f64::from(*x)).abs();
                }
                let y = sum + f64::from(e.bias[c]) + f64::from(res[r * n + c]);
                let (want, got) = (y / (1.0 + (-y).exp()), f64::from(out[r * n + c]));
                let off = (want - got).abs() / size;
                assert!(off < 2e-6, "{} {m} rows, {r} {c}: {got}, not {want}", blocks.kernel());
            }
            if m <= FEW {
                let first = few.get_or_insert_with(|| out[..n].to_vec());
                assert_eq!(first[..], out[..n], "{}", blocks.kernel());
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_left_to_others() {
    let odd = Param::packed_in(vec![4, 48], vec![0; 4 * 48 * 2], Packed::F16).unwrap();
    assert!(Blocks::of(&odd).is_none());
    assert!(Blocks::of(&Param::owned(vec![4, 64], vec![0.0; 256]).unwrap()).is_none());
}
