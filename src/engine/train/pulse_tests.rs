//! Gradients whose statistics are known.

use super::*;
use crate::model::families::{CifarResnetSpec, FamilySpec};
use crate::model::random;
use crate::train::Healing;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeSet;

type Grads = HashMap<String, Vec<f32>>;

const TENSOR: &str = "layer1.0.conv1.weight";

fn rig() -> (Pulse, Pupil) {
    let spec = FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 10, image: 32 });
    let model = random(&spec, 5);
    let pupil = Pupil::of(&model, &Healing::usual(10, true, 0), &BTreeSet::new()).expect("a pupil");
    (Pulse::of(&model, &pupil), pupil)
}

/// What is told of the layer after one step whose parts' mean gradients are `means`, of `size` images and the last of the rest of `n`.
fn stepped(pulse: &mut Pulse, pupil: &Pupil, means: &[Vec<f32>], (size, n): (usize, usize)) -> LayerPulse {
    let part = |(k, mean): (usize, &Vec<f32>)| {
        let share = size.min(n - k * size) as f32 / n as f32;
        Grads::from([(TENSOR.to_owned(), mean.iter().map(|v| v * share).collect())])
    };
    let parts: Vec<Grads> = means.iter().enumerate().map(part).collect();
    let sum = (0..means[0].len()).map(|i| parts.iter().map(|p| p[TENSOR][i]).sum()).collect();
    pulse.parts(pupil, &parts.iter().collect::<Vec<_>>(), (size, n));
    pulse.step(pupil, &Grads::from([(TENSOR.to_owned(), sum)]), n);
    let told = pulse.now().expect("a step was seen");
    // No gradient came to the others.
    assert_eq!(told.len(), 1);
    told[0].clone()
}

fn near(a: f32, b: f64) {
    assert!((f64::from(a) - b).abs() <= 1e-4 * b.abs(), "{a}, not {b}");
}

fn norm(v: &[f32]) -> f64 {
    v.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn norms_importances_and_ways_are_their_sums() {
    let (mut pulse, mut pupil) = rig();
    assert!(pulse.now().is_none(), "nothing was measured");
    let at = pupil.slots.iter().position(|s| s.name == TENSOR).expect("a tensor");
    let start = pupil.slots[at].value.clone();
    let g: Vec<f32> = (0..start.len()).map(|i| (i as f32 * 0.7).sin()).collect();
    let told = stepped(&mut pulse, &pupil, std::slice::from_ref(&g), (32, 32));
    assert_eq!((told.name.as_str(), told.values, told.moved), ("layer1.0.conv1", start.len() as u64, 0.0));
    near(told.gradient, norm(&g));
    near(told.weight, norm(&start));
    near(told.importance, start.iter().zip(&g).map(|(w, g)| f64::from(w * g).abs()).sum());
    // One part says nothing of noise.
    assert_eq!((told.spread, told.noise(), told.fisher()), (None, None, None));
    pupil.slots[at].value.iter_mut().for_each(|v| *v *= 1.25);
    let none = vec![0.0; g.len()];
    let told = stepped(&mut pulse, &pupil, &[none], (32, 32));
    near(told.weight, 1.25 * norm(&start));
    near(told.moved, 0.25);
    // Weighed as exponential averages that begin at the first step: of `g` and nothing, 0.95 and 1 to 1.95.
    near(told.gradient, norm(&g) * (0.95f64 / 1.95).sqrt());
}

#[test]
fn noise_is_told_from_signal_by_how_parts_differ() {
    let (mut pulse, pupil) = rig();
    let n = pupil.slots.iter().find(|s| s.name == TENSOR).expect("a tensor").value.len();
    let (g, e) = (vec![0.5f32; n], (0..n).map(|i| if i % 2 == 0 { 0.1 } else { -0.1 }).collect::<Vec<f32>>());
    let apart = |sign: f32| g.iter().zip(&e).map(|(g, e)| g + sign * e).collect::<Vec<f32>>();
    let told = stepped(&mut pulse, &pupil, &[apart(1.0), apart(-1.0)], (32, 64));
    // Means of 32 are off by e, so images by 32 e² together over what two parts tell of a mean of theirs: 64 e².
    let (signal, noise) = (norm(&g).powi(2) - norm(&e).powi(2), 64.0 * norm(&e).powi(2));
    let spread = told.spread.expect("two parts");
    near(spread.signal, signal);
    near(spread.variance, noise);
    near(told.noise().expect("known") as f32, noise / signal);
    near(told.fisher().expect("known") as f32, (signal + noise) / n as f64);
    // Noise alone: there is no scale of it.
    let (mut pulse, pupil) = rig();
    let only = |sign: f32| e.iter().map(|e| sign * e).collect::<Vec<f32>>();
    let told = stepped(&mut pulse, &pupil, &[only(1.0), only(-1.0)], (32, 64));
    assert!(told.noise().is_none() && told.spread.is_some_and(|s| s.signal < 0.0));
}

/// Over many steps with parts of unlike size the estimates are right on average.
#[test]
fn estimates_are_unbiased_whatever_the_parts() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let (start, pupil) = rig();
    let n = pupil.slots.iter().find(|s| s.name == TENSOR).expect("a tensor").value.len();
    let (size, images) = (8usize, 20usize);
    // An image's gradient is 0.3 everywhere, off by ±1.
    let mut one = |m: usize| -> Vec<f32> {
        (0..n)
            .map(|_| 0.3 + (0..m).map(|_| if rng.random_bool(0.5) { 1.0 } else { -1.0 }).sum::<f32>() / m as f32)
            .collect()
    };
    let (mut signal, mut variance, steps) = (0.0, 0.0, 400);
    for _ in 0..steps {
        let parts = [one(8), one(8), one(4)];
        let told = stepped(&mut start.clone(), &pupil, &parts, (size, images)).spread.expect("three parts");
        signal += f64::from(told.signal) / f64::from(steps) / n as f64;
        variance += f64::from(told.variance) / f64::from(steps) / n as f64;
    }
    assert!((signal - 0.09).abs() < 0.004, "{signal}, not 0.09");
    assert!((variance - 1.0).abs() < 0.04, "{variance}, not 1");
}

#[test]
fn what_is_no_number_is_not_told() {
    let (mut pulse, pupil) = rig();
    let n = pupil.slots.iter().find(|s| s.name == TENSOR).expect("a tensor").value.len();
    let huge = Grads::from([(TENSOR.to_owned(), vec![f32::MAX; n])]);
    pulse.parts(&pupil, &[&huge], (32, 32));
    pulse.step(&pupil, &huge, 32);
    assert!(pulse.now().is_some_and(|told| told.is_empty()));
}
