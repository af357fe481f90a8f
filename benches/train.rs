//! A training step: `cargo bench --bench train -- MODEL [BATCH]`, or with `--serve` one request a line for `peers/train.py`.
//!
//! Labels, SGD with momentum, images as they are. Prints the median over steps, multiply-adds a second, and the limit: three times the
//! forward pass's multiply-adds (forward, gradient of inputs, gradient of weights) at the rate that the processor's units reach on registers.
//! Not here: what a healing gains (`heal.sh`).

use paring_engine::data;
use paring_engine::exec::{Cancel, peak, threads};
use paring_engine::graph::macs;
use paring_engine::model::{LoadOptions, Model, load};
use paring_engine::train::{self, Healing, Objective, Optimiser, Patient};
use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::Path;

/// Milliseconds of `n` steps on `batch` images.
fn steps(model: &Model, batch: usize, n: usize) -> Vec<f64> {
    let images = data::open("synthetic:calib", 2 * batch).expect("drawn images");
    let (fit, held_back): (Vec<usize>, Vec<usize>) = ((0..2 * batch - 1).collect(), vec![2 * batch - 1]);
    let masked = BTreeSet::new();
    let of = Patient {
        student: model,
        teacher: model,
        masked: &masked,
        images: &images,
        fit: &fit,
        judges: &images,
        held_back: &held_back,
    };
    let how = Healing {
        objective: Objective::Labels,
        batch,
        augment: false,
        mixup: false,
        ..Healing::usual(1, true, 0).with(Optimiser::Sgd)
    };
    let took = train::paced(of, &how, n + 1, &Cancel::default()).expect("steps");
    took[1..].iter().map(|s| s * 1e3).collect()
}

fn open(path: &str) -> Model {
    load(Path::new(path), &LoadOptions::default()).expect("a model")
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    if args.iter().any(|a| a == "--serve") {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let asked: serde_json::Value = serde_json::from_str(&line).expect("a request");
            let model = open(asked["model"].as_str().expect("a path"));
            let of = |key: &str| asked[key].as_u64().expect("a number") as usize;
            println!("{}", serde_json::json!({ "ms": steps(&model, of("batch"), of("steps")) }));
        }
        return;
    }
    let Some(path) = args.first() else { return };
    let batch = args.get(1).and_then(|b| b.parse().ok()).unwrap_or(128);
    let model = open(path);
    let forward: u64 = macs(&model.graph).expect("counted").iter().map(|m| m.conv_linear + m.attention).sum();
    let ms = median(steps(&model, batch, 9));
    let rate = 3.0 * forward as f64 * batch as f64 / ms / 1e6;
    let Some(most) = peak(threads()).map(|p| p.f32_gmacs) else {
        return println!("{path}  batch {batch}: {ms:.1} ms, {rate:.0} GMAC/s");
    };
    println!(
        "{path}  batch {batch}: {ms:.1} ms, {:.0} images/s, {rate:.0} GMAC/s of {most:.0}: {:.2}x the counted limit",
        1e3 * batch as f64 / ms,
        most / rate
    );
}
