//! What rounding a layer to GGML's formats costs, concluded from one of them that was scanned: small relative errors of a weight cost in proportion to
//! their squares (the linearity theorem, see `profile::rounding`), so that the measured divergence times the ratio of two formats' errors stands
//! for that of the other. A dozen formats take as long to scan as one.

use super::super::rounding;
use super::{BROKEN, Bench, Result, SensCurve, SensPoint, SensTarget};
use crate::files::rounded;
use crate::graph::Node;
use crate::graph::ggml::Block;
use crate::quant::Precision;

/// Formats that are scanned, the first that is not the layer's own: coarse enough to be heard, and all rows of blocks of 32 can be in them.
const PROBES: [Block; 2] = [Block::Q4_0, Block::IQ4_NL];

/// What of the formats is scanned at `node`, which is stored in `own`.
pub(super) fn probe(node: &Node, own: Precision) -> Option<Precision> {
    let fits = |p: &Precision| *p != own && p.unfit(&node.op).is_none();
    PROBES.into_iter().map(Precision::Block).find(fits)
}

/// The curves of the other `formats` that `scanned`, a layer's curve at its probe, says something of.
///
/// # Errors
/// A parameter that is missing, cancellation.
pub(super) fn concluded(bench: &Bench, formats: &[Block], scanned: &SensCurve) -> Result<Vec<SensCurve>> {
    let (SensTarget::Layer(name, Precision::Block(probe)), [point]) = (&scanned.target, &scanned.points[..]) else {
        return Ok(Vec::new());
    };
    let Some(id) = bench.model.graph.by_name(name) else { return Ok(Vec::new()) };
    let node = bench.model.graph.node(id);
    let mut asked = vec![*probe];
    asked.extend(formats.iter().filter(|f| *f != probe));
    let Some(found) = rounding::of_node(bench.model, node, &asked, None)? else { return Ok(Vec::new()) };
    let error = |block: Block| found.formats.iter().find(|f| f.format == Some(block)).map(|f| f.error);
    let Some(base) = error(*probe).filter(|e| *e > 0.0) else { return Ok(Vec::new()) };
    let curve = |block: &Block| {
        let part = error(*block)? / base;
        let scaled = |v: f64| rounded(v * part);
        let points = vec![SensPoint {
            ratio: 0.0,
            d_loss: scaled(point.d_loss),
            kl: scaled(point.kl).min(BROKEN),
            d_quality: scaled(point.d_quality),
        }];
        let target = SensTarget::Layer(name.clone(), Precision::Block(*block));
        // The layer's own format is no change.
        (part > 0.0).then_some(SensCurve { target, points, images: scanned.images })
    };
    Ok(asked.iter().skip(1).filter_map(curve).collect())
}
