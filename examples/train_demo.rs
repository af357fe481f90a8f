use paring::data::{
    self,
    demo::{self, Kind},
};
use paring::exec::{
    Cancel,
    reference::{self, Capture, Mode},
};
fn main() {
    let kind = if std::env::args().nth(1).as_deref() == Some("vit") { Kind::Vit } else { Kind::Cnn };
    let t = std::time::Instant::now();
    let (mut l, mut a) = (0.0, 0.0);
    let model = {
        let mut r = kind.recipe();
        if let Some(n) = std::env::args().nth(2) {
            r.steps = n.parse().unwrap();
        }
        if let Some(n) = std::env::args().nth(3) {
            r.rate = n.parse().unwrap();
        }
        println!("{r:?}");
        r
    };
    let model = demo::train_with(kind, &model, demo::SEED, &Cancel::default(), &mut |p| {
        l += p.loss;
        a += p.top1;
        if p.step % 25 == 0 || p.step == p.steps {
            println!(
                "{}/{} {:.0}s loss {:.3} top1 {:.3}",
                p.step,
                p.steps,
                t.elapsed().as_secs_f64(),
                l / 25.0,
                a / 25.0
            );
            l = 0.0;
            a = 0.0;
        }
    })
    .unwrap();
    let eval = data::open("synthetic:eval", 0).unwrap();
    let tensors = reference::tensors(&model.params, &candle_core::Device::Cpu).unwrap();
    let run = paring::eval::score_with(
        &eval,
        &model.info.preprocess,
        100,
        &Cancel::default(),
        |x| reference::forward(&model.graph, &tensors, x, Mode::Eval, &mut Capture::none()),
        &mut |_, _| {},
    )
    .unwrap();
    println!("{:?}", run.metrics);
    let views: Vec<(String, Vec<usize>, Vec<u8>)> = model
        .params
        .iter()
        .map(|(n, p)| (n.to_owned(), p.shape().to_vec(), p.values().iter().flat_map(|v| v.to_le_bytes()).collect()))
        .collect();
    let tv: Vec<_> = views
        .iter()
        .map(|(n, s, b)| {
            (n.clone(), safetensors::tensor::TensorView::new(safetensors::Dtype::F32, s.clone(), b).unwrap())
        })
        .collect();
    std::fs::write(format!("/tmp/c/{}.safetensors", kind.name()), safetensors::serialize(tv, None).unwrap()).unwrap();
}
