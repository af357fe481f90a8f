//! What two networks make of an image before their last layer, and how far apart that is: a few hundred or thousand numbers an image, where answers are a
//! few. Of few images a network learns more by those (Wang et al. 2022, "Mimicking then Replacing", arXiv 2201.02620; Romero et al. 2015).
//!
//! Not here: what answers are held against (`loss`).

use crate::graph::{Graph, NodeId, Op, shapes};

/// A node of both networks whose values are compared.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Features {
    /// In the student's graph.
    pub own: NodeId,
    /// In the original's.
    pub theirs: String,
    /// Values of an image.
    pub size: usize,
    /// What a squared difference is divided by: the original's mean variance.
    pub variance: f64,
}

impl Features {
    /// What the last linear layer reads, before it is averaged over places; where both networks have it by one name and in one shape.
    pub fn of(student: &Graph, original: &Graph) -> Option<Features> {
        let mut at = student.output;
        while !matches!(student.node(at).op, Op::Linear(_)) {
            let &[before] = &student.node(at).inputs[..] else { return None };
            at = before;
        }
        at = *student.node(at).inputs.first()?;
        while let (Op::GlobalAvgPool | Op::Flatten, &[before]) = (&student.node(at).op, &student.node(at).inputs[..]) {
            at = before;
        }
        let theirs = student.node(at).name.clone();
        let shape = |graph: &Graph| shapes(graph).ok()?.get(graph.by_name(&theirs)?.index()).cloned();
        let own = shape(student)?;
        let size = own.iter().product();
        (size > 0 && shape(original)? == own).then_some(Features { own: at, theirs, size, variance: 1.0 })
    }

    /// Sets [`Features::variance`] by values of some images.
    pub fn measure(&mut self, values: &[f32]) {
        let n = values.len().max(1) as f64;
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let variance = values.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
        self.variance = if variance.is_finite() { variance.max(1e-12) } else { 1.0 };
    }

    /// The gradient by `own` of the sum over the images of `weight` times their mean squared difference in units of the variance, each divided by `of`.
    pub fn pull(&self, own: &[f32], theirs: &[f32], weight: f64, of: usize) -> Vec<f32> {
        let scale = 2.0 * weight / (self.variance * self.size.max(1) as f64 * of.max(1) as f64);
        own.iter().zip(theirs).map(|(a, b)| (f64::from(a - b) * scale) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_differences_of_the_loss() {
        let mut f = Features { own: NodeId(0), theirs: String::new(), size: 2, variance: 1.0 };
        let (own, theirs) = ([0.5f32, -1.0, 2.0, 0.0], [0.0f32, 1.0, 2.0, 3.0]);
        f.measure(&theirs);
        assert!((f.variance - 1.25).abs() < 1e-9);
        let grad = f.pull(&own, &theirs, 3.0, 2);
        for k in 0..own.len() {
            let at = |by: f32| {
                let mut own = own.map(f64::from);
                own[k] += f64::from(by);
                // Of two images of two values.
                let squares = own.iter().zip(&theirs).map(|(a, b)| (a - f64::from(*b)).powi(2)).sum::<f64>();
                3.0 * squares / 2.0 / 1.25 / 2.0
            };
            let slope = (at(1e-3) - at(-1e-3)) / 2e-3;
            assert!((slope - f64::from(grad[k])).abs() < 2e-3, "{k}: {slope} {}", grad[k]);
        }
    }
}
