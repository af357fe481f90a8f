//! int8 everywhere on the published networks: accuracy on the whole CIFAR-10 test set, and bytes held.

mod common;

use paring::data;
use paring::eval::score_with;
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::graph::Precision;
use paring::model::{LoadOptions, load};
use paring::quant;

#[test]
fn int8_everywhere_keeps_accuracy_at_a_quarter_of_the_bytes() {
    let Some(real) = common::real() else { return };
    let part = if common::full() { 0 } else { 2000 };
    let set = data::open(real.join("cifar10/test_batch.bin").to_str().unwrap(), part).unwrap();
    // name, least number of right answers of the first 2,000 and of all (f32: 1833, 1859, 1445; 9173, 9339, 7372), most
    // bytes relative to f32 (vit_cifar10's positions and norms stay f32)
    let bars =
        [("resnet20", [1828, 9150], 0.27), ("resnet56", [1855, 9320], 0.27), ("vit_cifar10", [1438, 7340], 0.28)];
    for (name, right, bytes) in bars {
        let right = right[usize::from(common::full())];
        let model = load(&real.join(format!("{name}/{name}.safetensors")), &LoadOptions::default()).unwrap();
        let precision = quant::everywhere(&model.graph, Precision::Int8);
        let options = CompileOptions::default();
        let f32 = Plan::of(&model, &options).unwrap();
        let int8 = Plan::compile(&model.graph, &model.params, &precision, &options).unwrap();
        let ratio = int8.weight_bytes() as f64 / f32.weight_bytes() as f64;
        let run =
            score_with(&set, &model.info.preprocess, 128, &Cancel::default(), |x| int8.run(x), &mut |_, _| {}).unwrap();
        let correct = run.correct().iter().filter(|c| **c).count();
        println!("{name}: {correct} of {} correct in int8, {:.1} % of the bytes", set.len(), 100.0 * ratio);
        assert!(int8.steps().iter().filter(|s| s.precision == Precision::Int8).all(|s| s.kernel.contains("u8i8")));
        assert!(correct >= right, "{name}: {correct}");
        assert!(ratio <= bytes, "{name}: {ratio}");
    }
}
