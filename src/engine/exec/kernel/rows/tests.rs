//! Every function against its definition in f64, on every kind of lanes, over every length of tail.

use super::*;
use crate::exec::kernel::lanes::Plain;
use crate::exec::kernel::noise;
use std::f64::consts::PI;

/// The complementary error function in f64 (Numerical Recipes' `erfc_Chebyshev`, without its table): a continued fraction
/// far out, a Taylor series near zero.
fn erfc(x: f64) -> f64 {
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - 2.0 / PI.sqrt() * sum;
    }
    let fraction = (1..300).rev().fold(0.0, |f, n| f64::from(n) / 2.0 / (x + f));
    (-x * x).exp() / PI.sqrt() / (x + fraction)
}

fn truth(act: Activation, x: f64) -> f64 {
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    match act {
        Activation::Relu => x.max(0.0),
        Activation::Relu6 => x.clamp(0.0, 6.0),
        Activation::GeluErf => 0.5 * x * erfc(-x / 2f64.sqrt()),
        Activation::GeluTanh => x * sigmoid(2.0 * (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)),
        Activation::Silu => x * sigmoid(x),
        Activation::Sigmoid => sigmoid(x),
        Activation::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Activation::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Activation::Tanh => x.tanh(),
    }
}

#[test]
fn the_error_function_of_these_tests_is_right() {
    for (x, want) in [(0.5, 0.479_500_122_186_953_5), (2.0, 0.004_677_734_981_047_266), (4.0, 1.541_725_790_028_002e-8)]
    {
        assert!((erfc(x) / want - 1.0).abs() < 1e-10, "{x}: {}", erfc(x));
    }
}

/// Over all magnitudes, both signs: no further off than a millionth, or four parts in ten million of what is larger than one.
#[test]
fn activations_match_their_definitions_everywhere() {
    let step = 6211;
    let x: Vec<f32> = (0..f32::MAX.to_bits())
        .step_by(step)
        .map(f32::from_bits)
        .take_while(|v| *v < 1e4)
        .flat_map(|v| [v, -v])
        .collect();
    for act in Activation::ALL {
        let mut y = vec![0.0; x.len()];
        activate_into(&x, act, &mut y);
        for (&x, &y) in x.iter().zip(&y) {
            let want = truth(act, f64::from(x));
            let error = (f64::from(y) - want).abs();
            assert!(error <= (4e-7 * want.abs()).max(1e-6), "{act:?} at {x}: {y}, not {want}");
        }
    }
}

#[test]
fn activations_pass_infinity_and_not_a_number_on() {
    for act in Activation::ALL {
        let mut x = [f32::INFINITY, f32::NAN, 1e30, 3e38];
        activate(&mut x, act);
        let bounded = truth(act, 100.0) <= 6.0;
        assert!(x[1].is_nan(), "{act:?}: {}", x[1]);
        let high = |x: f32| if bounded { truth(act, 100.0) as f32 } else { x };
        assert!((bounded || x[0] == f32::INFINITY) && x[3].is_finite(), "{act:?}: {x:?}");
        assert!((x[2] - high(1e30)).abs() <= 1e-7 * x[2], "{act:?}: {x:?}");
        let mut x = [f32::NEG_INFINITY, -3e38, -1e30, -1e10];
        activate(&mut x, act);
        let low = truth(act, -100.0) as f32;
        assert!(x.iter().all(|v| (v - low).abs() <= 1e-6), "{act:?}: {x:?}");
    }
}

#[test]
fn exponentials_are_right_in_every_magnitude() {
    #[derive(Clone, Copy)]
    struct Exp;
    impl Map for Exp {
        #[inline(always)]
        fn of<V: Lanes>(self, x: V) -> V {
            exp(x)
        }
    }
    let mut x: Vec<f32> = (-8700..8800).map(|i| i as f32 / 100.0).collect();
    let want = x.clone();
    let (n, p) = (x.len(), x.as_mut_ptr());
    dispatch(Each { x: p, out: p, n, f: Exp });
    for (y, x) in x.iter().zip(want) {
        let want = f64::from(x).exp();
        assert!((f64::from(*y) / want - 1.0).abs() < 2.5e-7, "{x}: {y}, not {want}");
    }
    let mut x = [-87.1, -1e9, f32::NEG_INFINITY, f32::INFINITY, f32::NAN];
    let p = x.as_mut_ptr();
    dispatch(Each { x: p, out: p, n: 5, f: Exp });
    assert!(x[..3] == [0.0; 3] && x[3] > 1e38 && x[4].is_nan(), "{x:?}");
}

#[test]
fn sums_and_affine_rows_take_an_activation() {
    for n in [1, 15, 16, 17, 33, 64] {
        let (a, b, t) = (noise(3 * n, 1), noise(3 * n, 2), noise(n, 3));
        for act in [None, Some(Activation::Relu), Some(Activation::Silu)] {
            let f = |v: f32| act.map_or(f64::from(v), |a| truth(a, f64::from(v)));
            let mut out = vec![f32::NAN; 3 * n];
            add(&a, &b, act, &mut out);
            let mut same = a.clone();
            add_assign(&mut same, &b, act);
            assert_eq!(out, same);
            for (i, v) in out.iter().enumerate() {
                assert!((f64::from(*v) - f(a[i] + b[i])).abs() < 1e-6);
            }
            affine(&a, &b[..n], &t, act, &mut out);
            for (i, v) in out.iter().enumerate() {
                assert!((f64::from(*v) - f(a[i].mul_add(b[i % n], t[i % n]))).abs() < 2e-6);
            }
        }
    }
}

#[test]
fn norms_match_f64() {
    for n in [1, 7, 16, 65, 100, 200, 768] {
        let (x, w, b) = (noise(3 * n, 1), noise(n, 2), noise(n, 3));
        let (mut layer, mut rms) = (vec![f32::NAN; 3 * n], vec![f32::NAN; 3 * n]);
        layer_norm(&x, &w, &b, 1e-5, &mut layer);
        rms_norm(&x, &w, 1e-5, &mut rms);
        for (r, x) in x.chunks_exact(n).enumerate() {
            let x: Vec<f64> = x.iter().map(|&v| f64::from(v)).collect();
            let mean = x.iter().sum::<f64>() / n as f64;
            let var = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
            let square = x.iter().map(|v| v * v).sum::<f64>() / n as f64;
            for i in 0..n {
                let want = (x[i] - mean) / (var + 1e-5).sqrt() * f64::from(w[i]) + f64::from(b[i]);
                assert!((f64::from(layer[r * n + i]) - want).abs() < 1e-5);
                let want = x[i] / (square + 1e-5).sqrt() * f64::from(w[i]);
                assert!((f64::from(rms[r * n + i]) - want).abs() < 1e-5);
            }
        }
    }
}

#[test]
fn softmax_matches_f64_and_is_the_same_in_place() {
    for n in [1, 2, 16, 31, 64, 65, 130, 197] {
        let mut x = noise(4 * n, 7);
        x.iter_mut().take(n).for_each(|v| *v *= 30.0);
        x[n] = f32::NEG_INFINITY;
        if n > 1 {
            x[2 * n] = 3e38;
        } else {
            x[n] = 0.0;
        }
        let mut out = vec![f32::NAN; 4 * n];
        softmax_into(&x, n, &mut out);
        for (x, y) in x.chunks_exact(n).zip(out.chunks_exact(n)) {
            let top = x.iter().fold(f64::NEG_INFINITY, |m, &v| m.max(f64::from(v)));
            let e: Vec<f64> = x.iter().map(|&v| (f64::from(v) - top).exp()).collect();
            let sum: f64 = e.iter().sum();
            y.iter().zip(e).for_each(|(y, e)| assert!((f64::from(*y) - e / sum).abs() < 4e-7, "{y} {}", e / sum));
        }
        softmax(&mut x, n);
        assert_eq!(x, out);
    }
}

/// What `dispatch` chose here against plain arrays.
#[test]
fn every_kind_of_lanes_gives_the_same_bits() {
    for n in [5, 16, 197, 768] {
        let (x, w, b) = (noise(2 * n, 1), noise(n, 2), noise(n, 3));
        let both = |f: &dyn Fn(bool, &mut [f32])| {
            let (mut fast, mut plain) = (vec![f32::NAN; 2 * n], vec![f32::NAN; 2 * n]);
            f(true, &mut fast);
            f(false, &mut plain);
            let bits = |v: &[f32]| v.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&fast), bits(&plain), "{n}");
        };
        let p = x.as_ptr();
        for act in Activation::ALL {
            both(&|fast, out| {
                let out = out.as_mut_ptr();
                with_map!(Some(act), f => {
                    let job = Each { x: p, out, n: 2 * n, f };
                    if fast { dispatch(job) } else { job.run::<Plain>() }
                });
            });
        }
        both(&|fast, out| {
            let job = Norm::<true> { x: &x, w: &w, b: &b, eps: 1e-6, out };
            if fast { dispatch(job) } else { job.run::<Plain>() }
        });
        both(&|fast, out| {
            let job = Softmax { x: p, out: out.as_mut_ptr(), rows: 2, n };
            if fast { dispatch(job) } else { job.run::<Plain>() }
        });
    }
}
