//! Finding groups: one disjoint-set pass over the axis links of every op ([`crate::graph::links`]).
//!
//! Every element of every linked axis is a vertex; a link unites what one of its units owns on both sides. The classes
//! are the units that must go together, the connected axes are the groups. What an op does not link, or what a class
//! has in no regular place, is protected, with a reason.

use super::group::{Group, GroupKind, Member, MemberRole};
use crate::graph::op::EXPERTS;
use crate::graph::{
    AxisRef, Graph, Node, NodeId, NodeLinks, Op, ParamRole, Site, Span, least, links, param_shapes, shapes_at,
};
use std::collections::{BTreeMap, HashMap};

/// One axis: of a node's output (`role` none) or of one of its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Axis {
    node: usize,
    role: Option<ParamRole>,
    axis: usize,
}

/// Disjoint sets by path halving; the smaller root wins, so that a root is its class's first element.
#[derive(Default)]
struct Sets(Vec<u32>);

impl Sets {
    fn grow(&mut self, n: usize) -> usize {
        let base = self.0.len();
        self.0.extend(base as u32..(base + n) as u32);
        base
    }

    fn root(&mut self, mut x: usize) -> usize {
        while self.0[x] as usize != x {
            self.0[x] = self.0[self.0[x] as usize];
            x = self.0[x] as usize;
        }
        x
    }

    fn unite(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        let (low, high) = (a.min(b), a.max(b));
        self.0[high] = low as u32;
    }
}

/// All groups of `graph`, protected ones included, in the order of their first producer; empty for a graph whose
/// shapes do not fit. Ids are unique.
pub fn groups(graph: &Graph) -> Vec<Group> {
    let sized = least(graph).and_then(|binding| shapes_at(graph, binding));
    let (Ok(links), Ok(shapes)) = (links(graph), sized) else { return Vec::new() };
    let mut axes = Axes {
        graph,
        ids: HashMap::new(),
        list: Vec::new(),
        len: Vec::new(),
        base: Vec::new(),
        elements: Sets::default(),
        of_axes: Sets::default(),
        why: BTreeMap::new(),
        free: BTreeMap::new(),
    };
    for (i, facts) in links.iter().enumerate() {
        axes.add_node(&shapes, i, facts);
    }
    axes.mark_unlinked(&links);
    axes.components().into_iter().filter_map(|c| axes.group(&c)).collect()
}

struct Axes<'a> {
    graph: &'a Graph,
    ids: HashMap<Axis, usize>,
    list: Vec<Axis>,
    len: Vec<usize>,
    base: Vec<usize>,
    elements: Sets,
    of_axes: Sets,
    /// Why an axis must stay whole.
    why: BTreeMap<usize, String>,
    /// Sides of channel pads: `(pad node, side: 0 output, 1 input)` by axis.
    free: BTreeMap<usize, Vec<(usize, usize)>>,
}

impl<'a> Axes<'a> {
    /// Values are known by the node that writes them.
    fn canonical(&self, node: usize, r: AxisRef) -> Option<Axis> {
        match r.site {
            Site::Input(i) => {
                let writer = self.graph.nodes[node].inputs.get(i)?;
                Some(Axis { node: writer.index(), role: None, axis: r.axis })
            }
            Site::Output => Some(Axis { node, role: None, axis: r.axis }),
            Site::Param(role) => Some(Axis { node, role: Some(role), axis: r.axis }),
        }
    }

    fn id(&mut self, shapes: &[Vec<usize>], axis: Axis) -> Option<usize> {
        if let Some(&id) = self.ids.get(&axis) {
            return Some(id);
        }
        let len = match axis.role {
            None => *shapes.get(axis.node)?.get(axis.axis)?,
            Some(role) => {
                let all = param_shapes(&self.graph.nodes[axis.node].op);
                *all.iter().find(|(r, _)| *r == role)?.1.get(axis.axis)?
            }
        };
        let id = self.list.len();
        self.ids.insert(axis, id);
        self.list.push(axis);
        self.len.push(len);
        self.base.push(self.elements.grow(len));
        self.of_axes.grow(1);
        Some(id)
    }

    fn add_node(&mut self, shapes: &[Vec<usize>], node: usize, facts: &NodeLinks) {
        let find = |axes: &mut Axes<'a>, r: AxisRef| {
            let axis = axes.canonical(node, r)?;
            axes.id(shapes, axis)
        };
        for link in &facts.links {
            let (Some(a), Some(b)) = (find(self, link.a), find(self, link.b)) else { continue };
            self.of_axes.unite(a, b);
            for u in 0..link.units {
                let mut all = (link.a_span.indices(u).map(|i| (a, i))).chain(link.b_span.indices(u).map(|i| (b, i)));
                let Some(first) = all.next() else { continue };
                for other in all {
                    if first.1 < self.len[first.0] && other.1 < self.len[other.0] {
                        self.elements.unite(self.base[first.0] + first.1, self.base[other.0] + other.1);
                    } else {
                        self.why.insert(a, format!("`{}` links past its end", self.graph.nodes[node].name));
                    }
                }
            }
        }
        for p in &facts.protected {
            if let Some(id) = find(self, p.axis) {
                self.why.entry(id).or_insert_with(|| p.why.to_owned());
            }
        }
        for r in &facts.free {
            if let Some(id) = find(self, *r) {
                self.free.entry(id).or_default().push((node, usize::from(matches!(r.site, Site::Input(_)))));
            }
        }
    }

    /// Protects value axes that some reader does not speak of.
    fn mark_unlinked(&mut self, links: &[NodeLinks]) {
        let graph = self.graph;
        let consumers = graph.consumers();
        for id in 0..self.list.len() {
            let axis = self.list[id];
            if axis.role.is_some() {
                continue;
            }
            for reader in &consumers[axis.node] {
                let node = graph.node(*reader);
                let facts = &links[reader.index()];
                for slot in (0..node.inputs.len()).filter(|&s| node.inputs[s].index() == axis.node) {
                    let r = AxisRef { site: Site::Input(slot), axis: axis.axis };
                    let spoken = facts.links.iter().any(|l| l.a == r || l.b == r)
                        || facts.free.contains(&r)
                        || facts.protected.iter().any(|p| p.axis == r);
                    if !spoken {
                        self.why.entry(id).or_insert_with(|| format!("`{}` needs all of it", node.name));
                    }
                }
            }
        }
    }

    /// Connected axes, each component's axes in node order.
    fn components(&mut self) -> Vec<Vec<usize>> {
        let mut by_root: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for id in 0..self.list.len() {
            by_root.entry(self.of_axes.root(id)).or_default().push(id);
        }
        let mut all: Vec<Vec<usize>> = by_root.into_values().collect();
        for c in &mut all {
            c.sort_by_key(|&id| self.list[id]);
        }
        all.sort_by_key(|c| c.iter().map(|&id| self.rank(id)).min());
        all
    }

    fn op(&self, id: usize) -> &'a Op {
        &self.graph.nodes[self.list[id].node].op
    }

    /// Rows of a convolution or linear layer: they compute the units.
    fn produces(&self, id: usize) -> bool {
        let axis = self.list[id];
        axis.role == Some(ParamRole::Weight) && axis.axis == 0 && self.op(id).is_conv_or_linear()
    }

    /// Sorts components: by first producer, those without one last.
    fn rank(&self, id: usize) -> (bool, usize) {
        let node = self.list[id].node;
        (!(self.produces(id) || matches!(self.op(id), Op::Input(_))), node)
    }

    /// The group of one component; `None` when nothing computes its units (the inside of a norm).
    fn group(&mut self, component: &[usize]) -> Option<Group> {
        let lead = *component.iter().find(|&&id| !self.rank(id).0)?;
        let units = self.units(lead);
        let mut protected = component.iter().find_map(|id| self.why.get(id).cloned());
        let mut members: Vec<Member> = Vec::new();
        for &id in component {
            let Some(spans) = self.spans(id, &units) else {
                protected.get_or_insert_with(|| "its units are not laid out regularly".to_owned());
                continue;
            };
            for (node, roles, axis, role, span) in self.sites(id, &spans) {
                let node = self.graph.nodes[node].name.clone();
                let place = (&node, axis, role, span);
                match members.iter_mut().find(|m| (&m.node, m.axis, m.role, m.span) == place) {
                    Some(m) => m.roles.extend(roles),
                    None => members.push(Member { node, roles, axis, role, span }),
                }
            }
        }
        let kind = self.kind(component);
        if units.len() < 2 {
            protected.get_or_insert_with(|| "it has a single unit".to_owned());
        }
        let blocks: Vec<Option<&str>> = component
            .iter()
            .filter(|&&id| self.produces(id))
            .map(|&id| self.graph.block_of(NodeId(self.list[id].node as u32)).map(|b| b.name.as_str()))
            .collect();
        let block = blocks.first().copied().flatten().filter(|b| blocks.iter().all(|o| *o == Some(b)));
        Some(Group {
            id: self.graph.nodes[self.list[lead].node].name.clone(),
            kind,
            size: units.len(),
            granule: granule(kind, units.len()),
            members,
            protected,
            block: block.map(str::to_owned),
        })
    }

    fn kind(&self, component: &[usize]) -> GroupKind {
        let values = || component.iter().filter(|&&id| self.list[id].role.is_none());
        let normed = |id: usize| {
            let node = NodeId(self.list[id].node as u32);
            let norm = |op: &Op| matches!(op, Op::LayerNorm(_) | Op::RmsNorm(_));
            let reads = |n: &crate::graph::Node| norm(&n.op) && n.inputs.contains(&node);
            norm(self.op(id)) || self.graph.nodes.iter().any(reads)
        };
        let producers = || component.iter().filter(|&&id| self.produces(id));
        if values().any(|&id| matches!(self.op(id), Op::Route(_))) {
            GroupKind::Experts
        } else if values().any(|&id| matches!(self.op(id), Op::Attention(_))) {
            GroupKind::Heads
        } else if values().any(|&id| normed(id)) {
            GroupKind::Width
        } else if values().any(|&id| matches!(self.op(id), Op::Add)) {
            GroupKind::Residual
        } else if producers().count() > 0 && producers().all(|&id| matches!(self.op(id), Op::Linear(_))) {
            GroupKind::Neurons
        } else {
            GroupKind::Channels
        }
    }

    /// The classes of the leading axis, in the order of their first element there, as roots.
    fn units(&mut self, lead: usize) -> Vec<usize> {
        let mut seen = std::collections::HashSet::new();
        let mut units = Vec::new();
        for i in 0..self.len[lead] {
            let root = self.elements.root(self.base[lead] + i);
            if seen.insert(root) {
                units.push(root);
            }
        }
        units
    }

    /// The layout of the units on axis `id`: spans that together give every unit its indices; `None` if irregular.
    fn spans(&mut self, id: usize, units: &[usize]) -> Option<Vec<Span>> {
        let number: HashMap<usize, usize> = units.iter().enumerate().map(|(u, &root)| (root, u)).collect();
        let mut owned: Vec<Vec<usize>> = vec![Vec::new(); units.len()];
        for i in 0..self.len[id] {
            let root = self.elements.root(self.base[id] + i);
            match number.get(&root) {
                Some(&u) => owned[u].push(i),
                // An element that no unit of the leading axis owns.
                None => return None,
            }
        }
        let runs = runs(owned.first()?);
        let (&(offset, width), stride) = (runs.first()?, runs.get(1).map_or(0, |r| r.0 - runs[0].0));
        let whole = vec![Span { offset, width, blocks: runs.len(), stride }];
        let parts: Vec<Span> =
            runs.iter().map(|&(offset, width)| Span { offset, width, blocks: 1, stride: 0 }).collect();
        [whole, parts].into_iter().find(|spans| {
            owned.iter().enumerate().all(|(u, indices)| {
                let mut got: Vec<usize> = spans.iter().flat_map(|s| s.indices(u)).collect();
                got.sort_unstable();
                &got == indices
            })
        })
    }

    /// What is cut for axis `id`: parameter axes, and the ops that hold a width themselves.
    fn sites(&self, id: usize, spans: &[Span]) -> Vec<(usize, Vec<ParamRole>, usize, MemberRole, Span)> {
        let Axis { node, role, axis } = self.list[id];
        let mut out = Vec::new();
        for &span in spans {
            if let Some(r) = role {
                let side = match self.op(id) {
                    Op::Conv2d(_) | Op::Linear(_) if axis == 0 => MemberRole::Producer,
                    Op::Conv2d(_) | Op::Linear(_) => MemberRole::Consumer,
                    _ => MemberRole::Follower,
                };
                out.push((node, vec![r], axis, side, span));
                continue;
            }
            if matches!(self.op(id), Op::Attention(_)) {
                out.push((node, Vec::new(), 0, MemberRole::Follower, Span::EACH));
            }
            if matches!(self.op(id), Op::Route(_)) {
                let reads = |n: &&Node| matches!(n.op, Op::Dispatch(_) | Op::Combine(_));
                let readers = self.graph.iter().filter(|(_, n)| reads(n) && n.inputs.iter().any(|i| i.index() == node));
                let all = std::iter::once(node).chain(readers.map(|(id, _)| id.index()));
                out.extend(all.map(|n| (n, Vec::new(), EXPERTS, MemberRole::Follower, Span::EACH)));
            }
            for &(pad, side) in self.free.get(&id).into_iter().flatten() {
                let role = if side == 0 { MemberRole::Follower } else { MemberRole::Consumer };
                out.push((pad, Vec::new(), side, role, span));
            }
        }
        out
    }
}

/// Runs of consecutive indices as `(start, length)`.
fn runs(indices: &[usize]) -> Vec<(usize, usize)> {
    let mut out: Vec<(usize, usize)> = Vec::new();
    for &i in indices {
        match out.last_mut() {
            Some((start, len)) if *start + *len == i => *len += 1,
            _ => out.push((i, 1)),
        }
    }
    out
}

/// Widths that hardware likes: about a sixteenth, a power of two, at most 64; heads one by one.
fn granule(kind: GroupKind, size: usize) -> usize {
    match kind {
        GroupKind::Heads | GroupKind::Experts => 1,
        _ => {
            let want = (size / 16).clamp(1, 64);
            1 << want.ilog2()
        }
    }
}
