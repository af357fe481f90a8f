//! Losses of a classifier's answers, with their gradients.

use super::healing::Healing;

/// What answers are to become.
pub(super) struct Aims<'a> {
    /// The original's answers to the same views, `[n, classes]`; empty where labels alone count.
    pub answers: &'a [f32],
    /// The class of each image; of what lies over it, and the first one's share.
    pub labels: &'a [u32],
    pub mixed: Option<(&'a [u32], f32)>,
}

/// Softmax of `x / t`, in f64.
fn softmax(x: &[f32], t: f64, out: &mut Vec<f64>) {
    out.clear();
    let top = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    out.extend(x.iter().map(|v| (f64::from(v - top) / t).exp()));
    let sum: f64 = out.iter().sum();
    out.iter_mut().for_each(|p| *p /= sum);
}

/// The sum over the images of their losses, each divided by `of`, and its gradient by the logits `y` `[n, classes]`.
///
/// Distillation: `T²·KL(softmax(a/T) ‖ softmax(y/T))` with the gradient `T·(softmax(y/T) - softmax(a/T))` (Hinton et al. 2015);
/// labels: cross-entropy with `softmax(y) - target`.
pub(super) fn of(y: &[f32], classes: usize, aims: &Aims, how: &Healing, of: usize) -> (f64, Vec<f32>) {
    let (distill, labels) = how.objective.shares();
    let (t, scale) = (how.temperature, 1.0 / of.max(1) as f64);
    let (mut loss, mut grad) = (0f64, vec![0f32; y.len()]);
    let (mut p, mut q) = (Vec::new(), Vec::new());
    for (i, (y, g)) in y.chunks_exact(classes).zip(grad.chunks_exact_mut(classes)).enumerate() {
        if distill > 0.0 {
            softmax(y, t, &mut p);
            softmax(&aims.answers[i * classes..][..classes], t, &mut q);
            let kl: f64 = q.iter().zip(&p).filter(|(q, _)| **q > 0.0).map(|(q, p)| q * (q / p.max(1e-300)).ln()).sum();
            loss += distill * t * t * kl * scale;
            g.iter_mut().zip(p.iter().zip(&q)).for_each(|(g, (p, q))| *g += (distill * t * (p - q) * scale) as f32);
        }
        if labels > 0.0 {
            softmax(y, 1.0, &mut p);
            let (other, share) = aims.mixed.map_or((aims.labels, 1.0), |(o, s)| (o, f64::from(s)));
            for (label, share) in [(aims.labels[i], share), (other[i], 1.0 - share)] {
                let at = label as usize;
                if share > 0.0 && at < classes {
                    loss -= labels * share * p[at].max(1e-300).ln() * scale;
                    g[at] -= (labels * share * scale) as f32;
                }
            }
            g.iter_mut().zip(&p).for_each(|(g, p)| *g += (labels * p * scale) as f32);
        }
    }
    (loss, grad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::Objective;

    #[test]
    fn gradients_are_differences_of_the_loss() {
        let y = [0.3f32, -1.2, 2.0, 0.1, 0.4, -0.7];
        let answers = [1.0f32, 0.0, -0.5, 0.2, 0.9, 0.3];
        let labels = [2, 0];
        for (objective, mixed) in [
            (Objective::Distill, None),
            (Objective::Labels, None),
            (Objective::Labels, Some((&[1u32, 0][..], 0.3f32))),
            (Objective::Both, Some((&[0, 2][..], 0.8))),
        ] {
            let how = Healing { objective, temperature: 3.0, ..Healing::usual(1, true, 0) };
            let aims = Aims { answers: &answers, labels: &labels, mixed };
            let (_, grad) = of(&y, 3, &aims, &how, 2);
            for k in 0..y.len() {
                let at = |by: f32| {
                    let mut y = y;
                    y[k] += by;
                    of(&y, 3, &aims, &how, 2).0
                };
                let slope = (at(1e-3) - at(-1e-3)) / 2e-3;
                assert!((slope - f64::from(grad[k])).abs() < 2e-4, "{objective:?} {k}: {slope} {}", grad[k]);
            }
        }
        let same = Aims { answers: &y, labels: &labels, mixed: None };
        assert!(of(&y, 3, &same, &Healing::usual(1, true, 0), 2).0.abs() < 1e-9);
    }
}
