//! Which nodes make up the experts of a mixture: what lies between an [`Op::Dispatch`] and the [`Op::Combine`] that sums it up.
//!
//! Invariant: a node has a place only if what it makes of a row of zeros is a row of zeros, and nobody but its expert and the sum
//! reads it. Rows of tokens that are not sent to the expert then need not be computed.

use super::macs::Macs;
use super::{Activation, Graph, Node, NodeId, Op, op};

/// A node's place in a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The [`Op::Route`] whose weights say which tokens are sent here, and the [`Op::Combine`] that reads the expert.
    pub route: NodeId,
    pub combine: NodeId,
    pub expert: usize,
    /// A token is sent to so many of so many.
    pub top: usize,
    pub experts: usize,
}

impl Place {
    /// What of `n` falls on the tokens that come here, where every expert gets as many.
    pub fn share(&self, n: u64) -> u64 {
        (u128::from(n) * self.top as u128 / self.experts.max(1) as u128).try_into().unwrap_or(u64::MAX)
    }

    pub(super) fn share_of(&self, m: Macs) -> Macs {
        let Macs { conv_linear, attention, norms } = m;
        Macs { conv_linear: self.share(conv_linear), attention: self.share(attention), norms: self.share(norms) }
    }
}

/// Per node: its place in a mixture of experts, where it has one.
pub fn places(graph: &Graph) -> Vec<Option<Place>> {
    let mut places: Vec<Option<Place>> = vec![None; graph.nodes.len()];
    if !graph.nodes.iter().any(|n| matches!(n.op, Op::Combine(_))) {
        return places;
    }
    let consumers = graph.consumers();
    // Backwards: what an expert's sum reads, and what is read by nothing else.
    for (id, node) in graph.iter().rev() {
        if id == graph.output || !zero_to_zero(node) {
            continue;
        }
        let mut at = consumers[id.index()].iter().map(|&reader| match &graph.node(reader).op {
            Op::Combine(_) => read_by(graph, reader, id),
            Op::Dispatch(_) => None,
            _ => places[reader.index()],
        });
        let first = at.next().flatten();
        places[id.index()] = first.filter(|p| at.all(|other| other == Some(*p)));
    }
    // Forwards: what does not come from the expert's dispatch is not of it.
    for (id, node) in graph.iter() {
        let Some(place) = places[id.index()] else { continue };
        let mine = match &node.op {
            Op::Dispatch(d) => d.expert == place.expert && node.inputs.get(1) == Some(&place.route),
            _ => !node.inputs.is_empty() && node.inputs.iter().all(|i| places[i.index()] == Some(place)),
        };
        if !mine {
            places[id.index()] = None;
        }
    }
    // Backwards once more: whoever is read by what has no place any more has none.
    for (id, _) in graph.iter().rev() {
        let kept = |r: &NodeId| matches!(graph.node(*r).op, Op::Combine(_)) || places[r.index()].is_some();
        if !consumers[id.index()].iter().all(kept) {
            places[id.index()] = None;
        }
    }
    places
}

/// One mixture of experts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mixture {
    /// The layer that makes the router's logits, the [`Op::Route`] that chooses by them, and the [`Op::Combine`] that sums up.
    pub router: NodeId,
    pub route: NodeId,
    pub combine: NodeId,
    /// The linear layers of each expert, in the network's order: the last is what it gives.
    pub layers: Vec<Vec<NodeId>>,
}

/// All mixtures of `graph` that are alive, in its order.
pub fn mixtures(graph: &Graph) -> Vec<Mixture> {
    let places = places(graph);
    let of = |(combine, node): (NodeId, &Node)| {
        let (Op::Combine(sum), [route, ..]) = (&node.op, &node.inputs[..]) else { return None };
        let router = *graph.node(*route).inputs.first()?;
        let mut layers = vec![Vec::new(); sum.experts];
        for (id, _) in graph.iter().filter(|(_, n)| matches!(n.op, Op::Linear(_))) {
            if let Some(place) = places[id.index()].filter(|p| p.combine == combine) {
                layers.get_mut(place.expert)?.push(id);
            }
        }
        Some(Mixture { router, route: *route, combine, layers })
    };
    graph.live().filter_map(of).collect()
}

/// The place of what `combine` reads as an expert, once.
fn read_by(graph: &Graph, combine: NodeId, id: NodeId) -> Option<Place> {
    let node = graph.node(combine);
    let (&route, made) = node.inputs.split_first()?;
    let Op::Route(op::Route { experts, top, .. }) = graph.node(route).op else { return None };
    let mut at = made.iter().enumerate().filter(|(_, m)| **m == id).map(|(i, _)| i);
    match (at.next(), at.next()) {
        (Some(expert), None) => Some(Place { route, combine, expert, top, experts }),
        _ => None,
    }
}

/// Whether rows of zeros become rows of zeros, each row for itself.
fn zero_to_zero(node: &Node) -> bool {
    use Activation::{GeluErf, GeluTanh, HardSigmoid, HardSwish, Relu, Relu6, Sigmoid, Silu, Tanh};
    match &node.op {
        Op::Dispatch(_) => true,
        // A second factor is of each row's own where it comes from the expert as well.
        Op::Mul => node.inputs.len() == 2,
        Op::Linear(l) => !l.bias,
        Op::Scalar(s) => s.add == 0.0,
        Op::Activation { act } => match act {
            Relu | Relu6 | GeluErf | GeluTanh | Silu | HardSwish | Tanh => true,
            Sigmoid | HardSigmoid => false,
        },
        _ => false,
    }
}

/// In words what MACs count of a graph with mixtures of experts; `None` without one.
pub fn counted(graph: &Graph) -> Option<String> {
    graph.live().find_map(|(_, n)| match &n.op {
        Op::Route(r) => Some(format!("MACs of experts are of {} of {}, which a token is sent to", r.top, r.experts)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Binding, Builder, macs_at};

    /// A mixture of three experts of which a token is sent to two; `change` gets the nodes of the second expert.
    fn mixture(bias: bool, leak: bool) -> Graph {
        let b = &mut Builder::default();
        let x = b.input_of(op::Input::tokens(8));
        let logits = b.linear("router", x, 8, 3, false);
        let route = b.node("route", Op::Route(op::Route { experts: 3, top: 2, normalised: true }), &[logits]);
        let mut made = vec![route];
        let mut inside = x;
        for e in 0..3 {
            let h = b.node(format!("{e}.in"), Op::Dispatch(op::Dispatch { experts: 3, expert: e }), &[x, route]);
            let h = b.linear(format!("{e}.up"), h, 8, 6, bias && e == 1);
            inside = b.act(format!("{e}.act"), h, Activation::Silu);
            made.push(b.linear(format!("{e}.down"), inside, 6, 8, false));
        }
        let mut y = b.node("sum", Op::Combine(op::Combine { experts: 3 }), &made);
        if leak {
            let other = b.linear("other", inside, 6, 8, false);
            y = b.add("add", y, other);
        }
        std::mem::take(b).finish(y).unwrap()
    }

    fn placed(graph: &Graph) -> Vec<(String, usize)> {
        let of = |(n, p): (&Node, Option<Place>)| Some((n.name.clone(), p?.expert));
        graph.nodes.iter().zip(places(graph)).filter_map(of).collect()
    }

    #[test]
    fn an_expert_is_what_lies_between_and_is_read_by_nobody_else() {
        for (bias, leak, experts) in [(false, false, &[0, 1, 2][..]), (true, false, &[0, 2]), (false, true, &[0, 1])] {
            let parts = |e: &usize| ["in", "up", "act", "down"].map(|p| (format!("{e}.{p}"), *e));
            let want: Vec<(String, usize)> = experts.iter().flat_map(parts).collect();
            assert_eq!(placed(&mixture(bias, leak)), want, "{bias} {leak}");
        }
    }

    #[test]
    fn macs_are_of_the_experts_that_a_token_is_sent_to() {
        let graph = mixture(false, false);
        let all = macs_at(&graph, Binding::tokens(3)).unwrap();
        let of = |name: &str| all[graph.by_name(name).unwrap().index()].conv_linear;
        assert_eq!((of("router"), of("0.up"), of("2.down")), (3 * 8 * 3, 3 * 8 * 6 * 2 / 3, 3 * 8 * 6 * 2 / 3));
        assert_eq!(counted(&graph).as_deref(), Some("MACs of experts are of 2 of 3, which a token is sent to"));
    }

    #[test]
    fn what_does_not_fit_is_refused_by_name() {
        let graph = |route: op::Route, expert: usize| {
            let b = &mut Builder::default();
            let x = b.input_of(op::Input::tokens(4));
            let r = b.linear("router", x, 4, 2, false);
            let r = b.node("route", Op::Route(route), &[r]);
            let h = b.node("in", Op::Dispatch(op::Dispatch { experts: 2, expert }), &[x, r]);
            let y = b.node("sum", Op::Combine(op::Combine { experts: 2 }), &[r, h, x]);
            std::mem::take(b).finish(y).map(|_| ()).map_err(|e| e.to_string())
        };
        let two = op::Route { experts: 2, top: 1, normalised: false };
        assert_eq!(graph(two.clone(), 1), Ok(()));
        for (route, expert, words) in [
            (op::Route { top: 3, ..two.clone() }, 0, "`route` (route 3 of 2) cannot take"),
            (op::Route { top: 0, ..two.clone() }, 0, "sent to 0 of 2 experts"),
            (op::Route { experts: 3, ..two.clone() }, 0, "number of experts is 2, expected 3"),
            (two, 2, "there is no expert 2 among 2"),
        ] {
            let error = graph(route, expert).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
