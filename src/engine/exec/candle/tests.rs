//! Definitions against the same written out as loops, their gradients against finite differences, and rounded weights
//! against weights that were rounded before.

use super::ops::{channel_pad, conv, max_pool, unfold_composed};
use super::*;
use crate::exec::error::ExecError;
use crate::exec::unfold::{Unfold, Window};
use crate::graph::{Activation, Builder, Conv, Graph, Op, op};
use crate::model::{Param, random_params};
use crate::quant::{Precision, Precisions, everywhere};
use candle_core::{Device, Tensor, Var};
use std::collections::HashMap;

fn noise(shape: impl Into<candle_core::Shape>, seed: u64) -> Tensor {
    use rand::{Rng, SeedableRng};
    let shape = shape.into();
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let v: Vec<f32> = (0..shape.elem_count()).map(|_| rng.random_range(-1.0..1.0)).collect();
    Tensor::from_vec(v, shape, &Device::Cpu).unwrap()
}

fn flat(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

fn close(a: &[f32], b: &[f32], tol: f32) {
    assert_eq!(a.len(), b.len());
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!((x - y).abs() <= tol, "element {i}: {x} against {y}");
    }
}

fn conv_loops(x: &Tensor, w: &Tensor, win: Window, groups: usize) -> Vec<f32> {
    let (n, c, h, wd) = x.dims4().unwrap();
    let (o, cg, kh, kw) = w.dims4().unwrap();
    let (oh, ow) = (win.out(0, h).unwrap(), win.out(1, wd).unwrap());
    let (xv, wv) = (flat(x), flat(w));
    let mut out = vec![0f32; n * o * oh * ow];
    for (i, v) in out.iter_mut().enumerate() {
        let (img, oc, y, xx) = (i / (o * oh * ow), i / (oh * ow) % o, i / ow % oh, i % ow);
        for ic in 0..cg {
            let cin = oc / (o / groups) * cg + ic;
            for ky in 0..kh {
                for kx in 0..kw {
                    let iy = (y * win.stride[0] + ky) as isize - win.padding[0] as isize;
                    let ix = (xx * win.stride[1] + kx) as isize - win.padding[1] as isize;
                    if (0..h as isize).contains(&iy) && (0..wd as isize).contains(&ix) {
                        *v += xv[((img * c + cin) * h + iy as usize) * wd + ix as usize]
                            * wv[((oc * cg + ic) * kh + ky) * kw + kx];
                    }
                }
            }
        }
    }
    out
}

#[test]
fn convolutions_match_loops_on_both_paths() {
    for (h, w, k, s, p, groups) in [
        (5, 7, [3, 3], [1, 1], [1, 1], 1),
        (8, 8, [3, 3], [2, 2], [1, 1], 1),
        (9, 6, [1, 1], [2, 2], [0, 0], 1),
        (7, 9, [7, 5], [2, 3], [3, 0], 1),
        (6, 6, [4, 4], [4, 4], [0, 0], 1),
        (6, 5, [3, 3], [1, 1], [1, 1], 2),
    ] {
        // Uneven on purpose where there is padding.
        let win = Window { kernel: k, stride: s, padding: [p[0], p[1], p[0] / 2, p[1]] };
        let (x, wt) = (noise((2, 4, h, w), 1), noise((6, 4 / groups, k[0], k[1]), 2));
        let want = conv_loops(&x, &wt, win, groups);
        close(&flat(&conv(&x, &wt, win, groups).unwrap()), &want, 1e-5);
        if groups == 1 {
            let (oh, ow) = (win.out(0, h).unwrap(), win.out(1, w).unwrap());
            let a = unfold_composed(&x, win, oh, ow).unwrap();
            let b = x.apply_op1(Unfold(win)).unwrap();
            close(&flat(&a), &flat(&b), 0.0);
        }
    }
}

/// Central differences of `loss` at a few coordinates of `var` against the backward pass.
fn check_gradient(var: &Var, loss: &dyn Fn() -> Tensor) {
    let grads = loss().backward().unwrap();
    let got = flat(grads.get(var).expect("a gradient"));
    let start = flat(var);
    for i in (0..start.len()).step_by(start.len().div_ceil(7)) {
        let at = |d: f32| {
            let mut v = start.clone();
            v[i] += d;
            var.set(&Tensor::from_vec(v, var.shape(), &Device::Cpu).unwrap()).unwrap();
            loss().to_scalar::<f32>().unwrap() as f64
        };
        let want = ((at(1e-2) - at(-1e-2)) / 2e-2) as f32;
        assert!((got[i] - want).abs() < 2e-2 * (1.0 + want.abs()), "coordinate {i}: {} against {want}", got[i]);
    }
    var.set(&Tensor::from_vec(start, var.shape(), &Device::Cpu).unwrap()).unwrap();
}

#[test]
fn gradients_match_finite_differences() {
    let mut b = Builder::default();
    let x = b.input([3, 6, 6]);
    let x = b.conv("conv", x, Conv { bias: true, ..Conv::same(3, 4, 3, 2) });
    let x = b.batch_norm("bn", x, 4);
    let x = b.act("act", x, Activation::GeluErf);
    let tokens = b.node("tok", Op::ToTokens, &[x]);
    let x = b.layer_norm("ln", tokens, 4, 1e-5);
    let x = b.linear("qkv", x, 4, 12, true);
    let x = b.node("attn", Op::attention(2, 2, 2, true, 0.7), &[x]);
    let x = b.add("add", x, tokens);
    let x = b.act("gelu", x, Activation::GeluTanh);
    let x = b.node("mean", Op::MeanTokens(op::MeanTokens { skip: 1 }), &[x]);
    let g = b.finish(x).unwrap();
    let vars: HashMap<String, Var> = [
        ("conv.weight", vec![4, 3, 3, 3]),
        ("conv.bias", vec![4]),
        ("bn.weight", vec![4]),
        ("bn.bias", vec![4]),
        ("ln.weight", vec![4]),
        ("ln.bias", vec![4]),
        ("qkv.weight", vec![12, 4]),
        ("qkv.bias", vec![12]),
    ]
    .into_iter()
    .enumerate()
    .map(|(i, (n, s))| (n.to_owned(), Var::from_tensor(&noise(s, 10 + i as u64)).unwrap()))
    .collect();
    let x = noise((2, 3, 6, 6), 3);
    let mix = noise((2, 4), 4);
    for mode in [Mode::Eval, Mode::Batch] {
        let loss = || {
            let mut params: TensorMap = vars.iter().map(|(k, v)| (k.clone(), v.as_tensor().clone())).collect();
            params.insert("bn.running_mean".into(), noise(4, 5));
            params.insert("bn.running_var".into(), (noise(4, 6).abs().unwrap() + 0.5).unwrap());
            let y = forward(&g, &params, &x, mode, &mut Capture::none()).unwrap();
            (y * &mix).unwrap().sum_all().unwrap()
        };
        for name in ["conv.weight", "bn.weight", "ln.weight", "qkv.weight", "qkv.bias"] {
            check_gradient(&vars[name], &loss);
        }
    }
}

#[test]
fn max_pool_and_channel_pad_match_loops() {
    let x = noise((1, 2, 5, 5), 7);
    let v = flat(&x);
    let pooled = max_pool(&x, Window { kernel: [3, 3], stride: [2, 2], padding: [1; 4] }).unwrap();
    assert_eq!(pooled.dims(), [1, 2, 3, 3]);
    let mut want = vec![f32::MIN; 18];
    for (i, m) in want.iter_mut().enumerate() {
        let (c, y, xx) = (i / 9, i / 3 % 3, i % 3);
        for iy in (2 * y).saturating_sub(1)..(2 * y + 2).min(5) {
            for ix in (2 * xx).saturating_sub(1)..(2 * xx + 2).min(5) {
                *m = m.max(v[(c * 5 + iy) * 5 + ix]);
            }
        }
    }
    close(&flat(&pooled), &want, 0.0);

    let padded = channel_pad(&x, 2, &[None, Some(1), Some(0), None]).unwrap();
    assert_eq!(padded.dims(), [1, 4, 3, 3]);
    let p = flat(&padded);
    for y in 0..3 {
        for xx in 0..3 {
            assert_eq!(p[y * 3 + xx], 0.0);
            assert_eq!(p[9 + y * 3 + xx], v[25 + 10 * y + 2 * xx]);
            assert_eq!(p[18 + y * 3 + xx], v[10 * y + 2 * xx]);
        }
    }
}

#[test]
fn batch_mode_reports_statistics_and_normalises() {
    let mut b = Builder::default();
    let x = b.input([2, 3, 3]);
    let x = b.batch_norm("bn", x, 2);
    let g = b.finish(x).unwrap();
    let ones = Tensor::ones(2, candle_core::DType::F32, &Device::Cpu).unwrap();
    let zeros = ones.zeros_like().unwrap();
    let params: TensorMap = [("bn.weight", &ones), ("bn.bias", &zeros)].map(|(k, v)| (k.to_owned(), v.clone())).into();
    let x = noise((4, 2, 3, 3), 8);
    let mut cap = Capture::of(["bn"]);
    forward(&g, &params, &x, Mode::Batch, &mut cap).unwrap();
    let channel: Vec<f32> = flat(&x.narrow(1, 1, 1).unwrap());
    let mean = channel.iter().sum::<f32>() / 36.0;
    let var = channel.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 35.0;
    let stats = &cap.stats["bn"];
    close(&[flat(&stats.mean)[1], flat(&stats.var)[1]], &[mean, var], 1e-5);
    let out: Vec<f32> = flat(&cap.values["bn"].narrow(1, 1, 1).unwrap());
    let squares = out.iter().map(|v| v * v).sum::<f32>() / 36.0;
    assert!((squares - 1.0).abs() < 1e-3);
}

#[test]
fn complaints_name_the_node() {
    let mut b = Builder::default();
    let x = b.input_of(op::Input::fixed([4]));
    let x = b.linear("fc", x, 4, 2, false);
    let g = b.finish(x).unwrap();
    let x = noise((1, 4), 1);
    let run = |params: &TensorMap, x: &Tensor| forward(&g, params, x, Mode::Eval, &mut Capture::none());
    let missing = run(&TensorMap::new(), &x).unwrap_err().to_string();
    assert!(missing.contains("`fc`") && missing.contains("`fc.weight`"), "{missing}");
    let wrong: TensorMap = [("fc.weight".to_owned(), noise((2, 3), 1))].into();
    assert!(run(&wrong, &x).unwrap_err().to_string().contains("[2, 4]"));
    assert!(matches!(run(&wrong, &noise((1, 5), 1)), Err(ExecError::Input { .. })));
    let unknown = forward(&g, &wrong, &x, Mode::Eval, &mut Capture::of(["nope"])).unwrap_err();
    assert!(unknown.to_string().contains("`nope`"));
}

/// A convolution with a batch norm, and a linear, with their parameters.
fn two_layers() -> (Graph, TensorMap) {
    let mut b = Builder::default();
    let x = b.input([3, 5, 5]);
    let x = b.conv("conv", x, Conv::same(3, 4, 3, 1));
    let x = b.batch_norm("bn", x, 4);
    let x = b.relu("relu", x);
    let x = b.node("pool", Op::GlobalAvgPool, &[x]);
    let x = b.linear("fc", x, 4, 3, true);
    let graph = b.finish(x).unwrap();
    let params = tensors(&random_params(&graph, 3), &Device::Cpu).unwrap();
    (graph, params)
}

#[test]
fn rounded_weights_are_those_of_a_stored_model_and_gradients_pass_straight_through() {
    let (g, params) = two_layers();
    let x = noise((2, 3, 5, 5), 3);
    let layers = ["conv.weight", "fc.weight"];
    for precision in Precision::ALL.into_iter().filter(|p| *p != Precision::F32) {
        let plan = everywhere(&g, precision);
        let mut stored = params.clone();
        for name in layers {
            let p = Param::owned(params[name].dims().to_vec(), flat(&params[name])).unwrap();
            let rounded = p.stored_in(precision.weights()).values().into_owned();
            stored.insert(name.into(), Tensor::from_vec(rounded, p.shape(), &Device::Cpu).unwrap());
        }
        for mode in [Mode::Eval, Mode::Batch] {
            let run = |params: &TensorMap, pass: Pass| {
                let vars = layers.map(|n| Var::from_tensor(&params[n]).unwrap());
                let mut params = params.clone();
                layers.iter().zip(&vars).for_each(|(n, v)| drop(params.insert((*n).into(), v.as_tensor().clone())));
                let y = forward(&g, &params, &x, pass, &mut Capture::none()).unwrap();
                let grads = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
                (flat(&y), vars.map(|v| flat(grads.get(&v).unwrap())))
            };
            let (y, grads) = run(&params, Pass { mode, precision: Some(&plan), ..Pass::default() });
            assert_ne!(y, run(&params, mode.into()).0, "{precision:?}: nothing was rounded");
            assert!(grads.iter().all(|g| g.iter().any(|v| *v != 0.0)));
            assert_eq!((y, grads), run(&stored, mode.into()), "{precision:?} {mode:?}");
        }
    }
}

#[test]
fn a_plan_that_does_not_fit_is_refused_by_name() {
    let (g, mut params) = two_layers();
    let x = noise((1, 3, 5, 5), 3);
    let run = |params: &TensorMap, node: &str, precision| {
        let plan = Precisions::from_iter([(node, precision)]);
        let pass = Pass { precision: Some(&plan), ..Pass::default() };
        forward(&g, params, &x, pass, &mut Capture::none())
    };
    assert!(matches!(run(&params, "nope", Precision::W4), Err(ExecError::UnknownNode { .. })));
    assert!(run(&params, "bn", Precision::W4).unwrap_err().to_string().contains("`bn`"));
    let large = (&params["fc.weight"] * 1e6).unwrap();
    params.insert("fc.weight".into(), large);
    assert!(matches!(run(&params, "fc", Precision::F16), Err(ExecError::NonFinite { .. })));
    assert!(run(&params, "fc", Precision::Bf16).is_ok());
}
