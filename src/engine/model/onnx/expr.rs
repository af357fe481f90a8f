//! Elementwise arithmetic on one value, kept as a formula until something else reads it, then recognised by what it
//! computes: exporters write GELU, SiLU, hard swish and layer norm in many orders, with constants of many roundings,
//! but every spelling gives the same numbers at the same arguments.

use crate::graph::Activation;
use std::rc::Rc;

/// Formulas larger than this are not looked at.
const MAX_SIZE: usize = 64;

/// A formula in `X`, an element of the value; [`E::Mean`] and [`E::Norm`] look at all channels of its place.
#[derive(Debug, Clone)]
pub(super) enum E {
    X,
    C(f64),
    /// One of [`super::fold::unary`]'s functions.
    Unary(fn(f64) -> f64, Rc<E>),
    Binary(&'static str, fn(f64, f64) -> f64, Rc<E>, Rc<E>),
    Clip(f64, f64, Rc<E>),
    /// `clamp(a x + b, 0, 1)`.
    HardSigmoid(f64, f64, Rc<E>),
    Mean(Rc<E>),
    /// The Euclidean length.
    Norm(Rc<E>),
}

/// What a formula turned out to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Known {
    /// `x · mul + add`.
    Affine {
        mul: f64,
        add: f64,
    },
    Act(Activation),
    /// With its epsilon, as the next.
    LayerNorm(f64),
    RmsNorm(f64),
    /// `x / max(|x|, tiny)`.
    Unit,
}

impl E {
    /// The formulas that this one is made of.
    fn parts(&self) -> impl Iterator<Item = &E> {
        let (a, b) = match self {
            E::X | E::C(_) => (None, None),
            E::Unary(_, a) | E::Clip(_, _, a) | E::HardSigmoid(_, _, a) | E::Mean(a) | E::Norm(a) => (Some(a), None),
            E::Binary(_, _, a, b) => (Some(a), Some(b)),
        };
        a.into_iter().chain(b).map(Rc::as_ref)
    }

    fn size(&self) -> usize {
        1 + self.parts().map(E::size).sum::<usize>()
    }

    pub fn fits(&self) -> bool {
        self.size() <= MAX_SIZE
    }

    /// Whether it looks at other elements than its own.
    pub fn mixes(&self) -> bool {
        matches!(self, E::Mean(_) | E::Norm(_)) || self.parts().any(E::mixes)
    }

    /// Whether every channel has the same value, as a mean has.
    pub fn flat(&self) -> bool {
        match self {
            E::X => false,
            E::Mean(_) | E::Norm(_) => true,
            _ => self.parts().all(E::flat),
        }
    }

    fn at(&self, x: &[f64]) -> Vec<f64> {
        let each = |a: &E, f: &dyn Fn(f64) -> f64| a.at(x).into_iter().map(f).collect();
        match self {
            E::X => x.to_vec(),
            E::C(c) => vec![*c; x.len()],
            E::Unary(f, a) => each(a, &|v| f(v)),
            E::Clip(lo, hi, a) => each(a, &|v| v.max(*lo).min(*hi)),
            E::HardSigmoid(k, d, a) => each(a, &|v| (k * v + d).clamp(0.0, 1.0)),
            E::Binary(_, f, a, b) => a.at(x).into_iter().zip(b.at(x)).map(|(a, b)| f(a, b)).collect(),
            E::Mean(a) => {
                let v = a.at(x);
                vec![v.iter().sum::<f64>() / v.len().max(1) as f64; v.len()]
            }
            E::Norm(a) => {
                let v = a.at(x);
                vec![v.iter().map(|v| v * v).sum::<f64>().sqrt(); v.len()]
            }
        }
    }

    fn constants(&self, out: &mut Vec<f64>) {
        if let E::C(c) = self {
            out.push(*c);
        }
        self.parts().for_each(|p| p.constants(out));
    }

    /// What this computes, if it is anything that has a name here.
    pub fn known(&self) -> Option<Known> {
        if !self.fits() {
            return None;
        }
        let norms = self.mixes();
        let probe = |x: &[f64], truth: &dyn Fn(&[f64]) -> Vec<f64>| {
            self.at(x).iter().zip(truth(x)).all(|(a, b)| (a - b).abs() <= 2e-6 * (1.0 + b.abs()))
        };
        if !norms {
            // Reaches far out (saturation) and lies dense where activations bend.
            let xs: Vec<f64> = (-120..=120).map(|i| f64::from(i) * 0.1037).chain([-60.0, 45.0]).collect();
            let (zero, one) = (*self.at(&[0.0]).first()?, *self.at(&[1.0]).first()?);
            let (mul, add) = (one - zero, zero);
            if probe(&xs, &|x| x.iter().map(|x| mul * x + add).collect()) {
                return (mul.is_finite() && add.is_finite()).then_some(Known::Affine { mul, add });
            }
            let same = |act: &Activation| probe(&xs, &|x| x.iter().map(|&x| value(*act, x)).collect());
            return Activation::ALL.into_iter().find(same).map(Known::Act);
        }
        let samples: Vec<Vec<f64>> = [1.0, 1e-2, 30.0]
            .iter()
            .map(|scale| (0..16u32).map(|i| scale * (f64::from(i * 37 % 16) * 0.31 - 1.7)).collect())
            .collect();
        let all = |truth: &dyn Fn(&[f64]) -> Vec<f64>| samples.iter().all(|x| probe(x, truth));
        let mut eps = Vec::new();
        self.constants(&mut eps);
        eps.retain(|e| (0.0..=1e-2).contains(e));
        eps.push(0.0);
        let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len() as f64;
        let rms = |x: &[f64], eps: f64| (mean(&x.iter().map(|v| v * v).collect::<Vec<_>>()) + eps).sqrt();
        for &eps in &eps {
            let layer = |x: &[f64]| {
                let m = mean(x);
                let c: Vec<f64> = x.iter().map(|v| v - m).collect();
                let s = rms(&c, eps);
                c.into_iter().map(|v| v / s).collect()
            };
            if all(&layer) {
                return Some(Known::LayerNorm(eps));
            }
            if all(&|x| x.iter().map(|v| v / rms(x, eps)).collect()) {
                return Some(Known::RmsNorm(eps));
            }
        }
        let length = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>().sqrt();
        all(&|x| x.iter().map(|v| v / length(x)).collect()).then_some(Known::Unit)
    }
}

/// The activation at `x`, in double precision.
fn value(act: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let relu6 = |x: f64| x.clamp(0.0, 6.0);
    match act {
        Activation::Relu => x.max(0.0),
        Activation::Relu6 => relu6(x),
        Activation::GeluErf => 0.5 * x * (1.0 + candle_core::cpu::erf::erf_f64(x / std::f64::consts::SQRT_2)),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::Silu => x * sigmoid(x),
        Activation::Sigmoid => sigmoid(x),
        Activation::HardSigmoid => relu6(x + 3.0) / 6.0,
        Activation::HardSwish => x * relu6(x + 3.0) / 6.0,
        Activation::Tanh => x.tanh(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fold::{binary, unary};
    use super::*;

    fn u(op: &'static str, a: &Rc<E>) -> Rc<E> {
        Rc::new(E::Unary(unary(op).unwrap(), a.clone()))
    }

    fn b(op: &'static str, x: &Rc<E>, y: &Rc<E>) -> Rc<E> {
        Rc::new(E::Binary(op, binary(op).unwrap(), x.clone(), y.clone()))
    }

    fn c(v: f32) -> Rc<E> {
        Rc::new(E::C(f64::from(v)))
    }

    #[test]
    fn activations_are_known_in_any_spelling() {
        let x = &Rc::new(E::X);
        // As the TorchScript exporter writes it, and with the factors in another order.
        let erf = u("Erf", &b("Div", x, &c(std::f32::consts::SQRT_2)));
        let gelu = b("Mul", &b("Mul", x, &b("Add", &erf, &c(1.0))), &c(0.5));
        let other = b("Mul", &b("Add", &c(1.0), &u("Erf", &b("Mul", x, &c(0.70710677)))), &b("Mul", &c(0.5), x));
        assert_eq!(gelu.known(), Some(Known::Act(Activation::GeluErf)));
        assert_eq!(other.known(), Some(Known::Act(Activation::GeluErf)));
        let cube = b("Pow", x, &c(3.0));
        let inner = b("Mul", &b("Add", x, &b("Mul", &cube, &c(0.044715))), &c(0.797_884_6));
        let tanh = b("Mul", &b("Mul", &c(0.5), x), &b("Add", &u("Tanh", &inner), &c(1.0)));
        assert_eq!(tanh.known(), Some(Known::Act(Activation::GeluTanh)));
        assert_eq!(b("Mul", x, &u("Sigmoid", x)).known(), Some(Known::Act(Activation::Silu)));
        let hard = Rc::new(E::HardSigmoid(1.0 / 6.0, 0.5, x.clone()));
        assert_eq!(b("Mul", x, &hard).known(), Some(Known::Act(Activation::HardSwish)));
        let clip = Rc::new(E::Clip(0.0, 6.0, b("Add", x, &c(3.0))));
        assert_eq!(b("Div", &b("Mul", x, &clip), &c(6.0)).known(), Some(Known::Act(Activation::HardSwish)));
        // An approximation of GELU that nobody here computes is not taken for one of ours.
        assert_eq!(b("Mul", x, &u("Sigmoid", &b("Mul", x, &c(1.702)))).known(), None);
        assert_eq!(b("Sub", &b("Mul", x, &c(2.0)), &c(1.0)).known(), Some(Known::Affine { mul: 2.0, add: -1.0 }));
    }

    #[test]
    fn norms_are_known_with_their_epsilon() {
        let x = &Rc::new(E::X);
        let mean = Rc::new(E::Mean(x.clone()));
        let centred = b("Sub", x, &mean);
        let var = Rc::new(E::Mean(b("Pow", &centred, &c(2.0))));
        let norm = |eps: f32| b("Div", &centred, &u("Sqrt", &b("Add", &var, &c(eps))));
        for eps in [1e-5f32, 1e-6, 1e-12] {
            // What rounding cannot tell apart at the sizes tried is told by the constants in the formula.
            assert_eq!(norm(eps).known(), Some(Known::LayerNorm(f64::from(eps))), "{eps}");
        }
        let square = Rc::new(E::Mean(b("Mul", x, x)));
        let rms = b("Mul", x, &u("Reciprocal", &u("Sqrt", &b("Add", &square, &c(1e-6)))));
        assert_eq!(rms.known(), Some(Known::RmsNorm(f64::from(1e-6f32))));
        let unit = b("Div", x, &Rc::new(E::Clip(1e-12, f64::MAX, Rc::new(E::Norm(x.clone())))));
        assert_eq!(unit.known(), Some(Known::Unit));
        assert_eq!(b("Div", &centred, &u("Sqrt", &var)).known(), Some(Known::LayerNorm(0.0)));
    }
}
