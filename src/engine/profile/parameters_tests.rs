//! Weights whose figures are known in closed form.

use super::*;
use crate::model::families::{CifarResnetSpec, FamilySpec};
use crate::model::random;
use rand::Rng;

fn weight(shape: &[usize], values: Vec<f32>) -> LayerParameters {
    of_weight("w", &Param::owned(shape.to_vec(), values).expect("a tensor"), WHOLE, 0).expect("figures")
}

fn near(a: f32, b: f64, within: f64) -> bool {
    (f64::from(a) - b).abs() <= within * b.abs().max(1e-12)
}

#[test]
fn norms_zeros_range_and_units_are_counted() {
    let w = weight(&[3, 4], vec![3.0, 0.0, -4.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, -1.0, 1.0, 0.5]);
    assert!(near(w.l2, (9.0f64 + 16.0 + 3.0 + 0.25).sqrt(), 1e-6), "{w:?}");
    assert!(near(w.rms(), (28.25f64 / 12.0).sqrt(), 1e-6));
    assert!(near(w.zeros, 0.5, 1e-6));
    assert_eq!((w.min, w.max, w.values, w.units, w.dead), (-4.0, 3.0, 12, 3, 1));
    assert_eq!((w.scales, w.sampled), (None, None));
    // From -4 to 4 in steps of a half: -4 first, zeros in the ninth.
    assert_eq!((w.histogram[0], w.histogram[8], w.histogram[14]), (1, 6, 1));
    assert_eq!(w.histogram.iter().sum::<u32>(), 12);
}

#[test]
fn effective_ranks_are_those_of_the_definition() {
    let rank = |shape: &[usize], v: Vec<f32>| weight(shape, v).rank.expect("a spectrum");
    // Directions alike: all of them. Signs and order are no matter.
    let eye =
        |n: usize, at: fn(usize) -> f32| (0..n * n).map(|k| if k / n == k % n { at(k / n) } else { 0.0 }).collect();
    let all = rank(&[6, 6], eye(6, |i| if i % 2 == 0 { 2.0 } else { -2.0 }));
    assert!(near(all.effective, 6.0, 1e-5) && all.full == 6, "{all:?}");
    // An outer product: one, whichever side is longer.
    for (rows, columns) in [(5, 40), (40, 5)] {
        let outer = (0..rows * columns).map(|k| (1 + k / columns) as f32 * (k % columns) as f32).collect();
        let one = rank(&[rows, columns], outer);
        assert!(near(one.effective, 1.0, 1e-5) && one.full == 5, "{one:?}");
    }
    // Singular values 1, 2, 5: the exponential of the entropy of 1/8, 2/8, 5/8.
    let p = [0.125f64, 0.25, 0.625];
    let wanted = (-p.iter().map(|p| p * p.ln()).sum::<f64>()).exp();
    let three = rank(&[3, 3], eye(3, |i| [1.0, 2.0, 5.0][i]));
    assert!(near(three.effective, wanted, 1e-5), "{three:?}, not {wanted}");
    // A convolution's kernel counts as a matrix of its output units.
    let conv = rank(&[2, 1, 1, 2], vec![1.0, 0.0, 0.0, 1.0]);
    assert!(near(conv.effective, 2.0, 1e-5) && conv.full == 2);
    assert_eq!(rank(&[2, 2], vec![0.0; 4]).effective, 0.0);
}

#[test]
fn scales_of_norms_tell_channels_that_are_multiplied_away() {
    let w = weight(&[5], vec![1.0, -0.5, 0.0, 1e-4, 0.5]);
    let scales = w.scales.expect("scales");
    assert!(near(scales.mean, 2.0001 / 5.0, 1e-6) && scales.least == 0.0, "{scales:?}");
    assert_eq!((w.units, w.dead, w.rank), (5, 2, None));
}

#[test]
fn samples_of_large_tensors_hold_what_they_say_of_their_error() {
    let (rows, columns) = (3000, 40);
    let (mut missed, draws) = (0, 60);
    for draw in 0..draws {
        let mut rng = ChaCha8Rng::seed_from_u64(1000 + draw);
        // Rows of unlike size, a third of the values zero.
        let values: Vec<f32> = (0..rows)
            .flat_map(|_| {
                let size: f32 = rng.random_range(0.1..2.0);
                (0..columns)
                    .map(|_| if rng.random_bool(1.0 / 3.0) { 0.0 } else { size * rng.random_range(-1.0..1.0) })
                    .collect::<Vec<_>>()
            })
            .collect();
        let param = Param::owned(vec![rows, columns], values).expect("a tensor");
        let whole = of_weight("w", &param, usize::MAX, 0).expect("figures");
        let some = of_weight("w", &param, rows * columns / 10, draw).expect("figures");
        let drawn = some.sampled.expect("sampled");
        assert_eq!((drawn.values, some.values, some.rank), (12_000, 120_000, None));
        assert!(drawn.l2 > 0.0 && drawn.l2 < 0.1 && drawn.zeros > 0.0 && drawn.zeros < 0.03, "{drawn:?}");
        missed += u32::from((some.l2 / whole.l2 - 1.0).abs() > drawn.l2);
        missed += u32::from((some.zeros - whole.zeros).abs() > drawn.zeros);
    }
    // Of 120 ranges of 95 % six miss; more than sixteen do once in ten thousand times.
    assert!(missed <= 16, "{missed} of {}", 2 * draws);
}

#[test]
fn every_layer_with_a_weight_has_a_row_and_cancelling_stops_it() {
    let model =
        random(&FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 10, image: 32 }), 3);
    let mut told = Vec::new();
    let found = parameters(&model, &Cancel::default(), &mut |_, done, all| told.push((done, all))).expect("figures");
    let wanted = model.graph.live().filter(|(_, n)| n.param(ParamRole::Weight).is_some()).count();
    assert_eq!((found.len(), told.last()), (wanted, Some(&(wanted, wanted))));
    let (norm, conv) = (found.iter().find(|l| l.name == "bn1"), found.iter().find(|l| l.name == "conv1"));
    assert!(norm.is_some_and(|l| l.scales.is_some() && l.units == 4));
    assert!(conv.is_some_and(|l| l.rank.is_some_and(|r| r.full == 4 && r.effective > 1.0 && r.effective <= 4.0)));
    let cancel = Cancel::default();
    cancel.cancel();
    assert!(parameters(&model, &cancel, &mut |_, _, _| ()).is_err());
}
