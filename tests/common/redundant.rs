//! A network and images on which looking helps: two blocks find the same classes, so either may go at no loss and both may not.
//!
//! What is measured of each alone says that both are nearly free; only who tries a plan sees what they are together. A third
//! block alone finds the last class. A quarter of each image has the class's colour, the rest the opposite one so faintly that the mean
//! is grey: what no block finds, nothing after it can tell.
#![allow(dead_code)]

use paring::model::families::CifarResnetSpec;
use paring::model::{FamilySpec, Model, Param, export};
use std::path::Path;

/// Channels of the stream: three colours with both signs, and a detector for each class.
const WIDTH: usize = 14;
const COLOURS: usize = 6;
const CLASSES: usize = 8;
/// The network has as many outputs as CIFAR-10 has classes; two of them never win.
const OUTPUTS: usize = 10;
const PIXELS: usize = 32 * 32;

fn bit(class: usize, colour: usize) -> bool {
    class >> colour & 1 == 1
}

/// Writes the network.
pub fn model(path: &Path) {
    let spec = CifarResnetSpec { blocks: 3, widths: [WIDTH; 3], classes: OUTPUTS, image: 32 };
    let mut model = paring::model::random(&FamilySpec::CifarResnet(spec), 0);
    let names: Vec<(String, Vec<usize>)> =
        model.params.iter().map(|(name, p)| (name.to_owned(), p.shape().to_vec())).collect();
    for (name, shape) in names {
        let value =
            if name.ends_with("running_var") || (shape.len() == 1 && name.ends_with("weight")) { 1.0 } else { 0.0 };
        let n = shape.iter().product();
        set(&mut model, &name, &shape, vec![value; n]);
    }
    // Both signs of every colour pass through all blocks.
    taps(&mut model, "conv1.weight", &(0..COLOURS).map(|c| (c, c / 2, sign(c % 2 == 0))).collect::<Vec<_>>());
    for (block, finds) in
        [("layer1.0", 0..CLASSES - 1), ("layer1.1", 0..CLASSES - 1), ("layer1.2", CLASSES - 1..CLASSES)]
    {
        let mut detect = Vec::new();
        let mut tell = Vec::new();
        let mut bias = vec![0.0; WIDTH];
        for class in finds {
            // Both blocks have the same weak classes: what is cheap in one is what is cheap in the other.
            let strength = 0.6 + 0.1 * class as f32;
            for colour in 0..3 {
                let s = sign(bit(class, colour)) * strength;
                detect.extend([(class, 2 * colour, s), (class, 2 * colour + 1, -s)]);
            }
            bias[class] = -2.2 * strength;
            tell.push((class, COLOURS + class, 1.0));
        }
        taps(&mut model, &format!("{block}.conv1.weight"), &detect);
        set(&mut model, &format!("{block}.bn1.bias"), &[WIDTH], bias);
        let told: Vec<_> = tell.iter().map(|&(from, to, w)| (to, from, w)).collect();
        taps(&mut model, &format!("{block}.conv2.weight"), &told);
    }
    let mut linear = vec![0.0; OUTPUTS * WIDTH];
    for class in 0..CLASSES {
        linear[class * WIDTH + COLOURS + class] = 14.0;
    }
    set(&mut model, "linear.weight", &[OUTPUTS, WIDTH], linear);
    set(&mut model, "linear.bias", &[OUTPUTS], (0..OUTPUTS).map(|c| if c < CLASSES { 0.0 } else { -8.0 }).collect());
    export::safetensors(path, &model, &export::Manifest::default()).expect("written");
}

fn sign(positive: bool) -> f32 {
    if positive { 1.0 } else { -1.0 }
}

fn set(model: &mut Model, name: &str, shape: &[usize], data: Vec<f32>) {
    model.params.insert(name, Param::owned(shape.to_vec(), data).expect("of its shape"));
}

/// A convolution with weights at its centre alone: `(to, from, weight)`.
fn taps(model: &mut Model, name: &str, at: &[(usize, usize, f32)]) {
    let shape = model.params.get(name).expect(name).shape().to_vec();
    let mut data = vec![0.0; shape.iter().product()];
    for &(to, from, weight) in at {
        data[(to * shape[1] + from) * 9 + 4] = weight;
    }
    set(model, name, &shape, data);
}

/// Writes `n` images in CIFAR-10's binary format.
pub fn images(path: &Path, n: usize, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f64 / f64::from(1u32 << 24)
    };
    let mut bytes = Vec::with_capacity(n * (1 + 3 * PIXELS));
    for i in 0..n {
        let class = i % CLASSES;
        bytes.push(class as u8);
        let contrast = 55.0 + 45.0 * random();
        let quarter = (random() * 4.0) as usize;
        for colour in 0..3 {
            let mut pixel = |at: usize| {
                let (right, low) = (at % 32 >= 16, at / 32 >= 16);
                let here = usize::from(right) + 2 * usize::from(low) == quarter;
                let part = if here { 1.0 } else { -1.0 / 3.0 };
                let middle = 122.0 + part * contrast * f64::from(sign(bit(class, colour)));
                (middle + 30.0 * (random() - 0.5)).clamp(0.0, 255.0) as u8
            };
            bytes.extend((0..PIXELS).map(&mut pixel));
        }
    }
    std::fs::write(path, bytes).expect("written");
}
