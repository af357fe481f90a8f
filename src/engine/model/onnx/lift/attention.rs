//! Attention from its parts: q·kᵀ, scale, position bias, window mask, softmax, ·v. Heads and windows are read off the
//! views of q, k and v, so it does not matter by which reshapes an exporter got there.

use super::super::expr::Known;
use super::super::view::size;
use super::{Atom, Attrs, Constant, KEYS, Lift, Lifter, NodeProto, Op, Rc, Scores, Value, View, Weight, fold, op};
use crate::graph::window::{MASKED, PositionBias, Windows};

/// What a mask must at least subtract to count as one; the networks here add -100.
const MASKS_FROM: f32 = -99.0;

/// More tokens than any network here attends over.
const MAX_TOKENS: usize = 1 << 16;

/// How one of q, k, v lies: heads, width of a head, where it begins in its base.
#[derive(Debug, Clone, PartialEq)]
struct Part {
    heads: usize,
    width: usize,
    offset: usize,
    /// Batch atoms but for the heads: the batch, then windows.
    outer: Vec<Atom>,
    tokens: Vec<Atom>,
}

impl Lifter<'_> {
    pub(super) fn matmul(&mut self) -> Lift<Value> {
        match (self.input(0)?.clone(), self.input(1)?.clone()) {
            (_, Value::Const(w)) => self.matmul_linear(&w),
            (Value::Scores(s), v) if s.soft => self.attend(*s, v).map(Value::View),
            (q, k) => self.scores(q, k),
        }
    }

    /// A factor of q or k: what multiplies it, and whether it is a unit vector.
    fn factored(&mut self, value: Value, last: usize) -> Lift<(View, f64, bool)> {
        match value {
            Value::View(v) => Ok((v, 1.0, false)),
            Value::Expr { x, e, axis } => match e.known() {
                Some(Known::Affine { mul, add: 0.0 }) => Ok((x, mul, false)),
                Some(Known::Unit) if axis == Some(last) => Ok((x, 1.0, true)),
                _ => Ok((self.settled(Value::Expr { x, e, axis })?, 1.0, false)),
            },
            _ => Err("multiplies what are no plain tensors".into()),
        }
    }

    fn scores(&mut self, q: Value, k: Value) -> Lift<Value> {
        let rank = self.value_shape(&q)?.len();
        if rank < 3 || self.value_shape(&k)?.len() != rank {
            return Err("multiplies two tensors of different ranks".into());
        }
        let (q, mq, uq) = self.factored(q, rank - 1)?;
        let (k, mk, uk) = self.factored(k, rank - 2)?;
        if uq != uk {
            return Err("multiplies a unit vector by another".into());
        }
        let (qs, ks) = (q.shape(), k.shape());
        if qs[rank - 1] != ks[rank - 2] || qs[..rank - 2] != ks[..rank - 2] {
            return Err(format!("multiplies {qs:?} by {ks:?}"));
        }
        let mut axes = q.axes[..rank - 1].to_vec();
        axes.push(k.axes[rank - 1].iter().map(|a| Atom { axis: a.axis + KEYS, ..*a }).collect());
        let s = Scores {
            q,
            k,
            unit: uq,
            mul: mq * mk,
            head_mul: None,
            bias: None,
            bias_name: None,
            mask: None,
            soft: false,
            axes,
        };
        Ok(Value::Scores(Box::new(s)))
    }

    /// Scores times or plus a constant.
    pub(super) fn scores_with(&mut self, mut s: Scores, c: &Constant, op: &str, right: bool) -> Lift<Value> {
        if s.soft {
            return Err("changes attention after its softmax".into());
        }
        let late = s.bias.is_some() || s.mask.is_some();
        let factor = match (op, right, c.scalar()) {
            ("Mul", _, Some(v)) => Some(v),
            ("Div", true, Some(v)) => Some(1.0 / v),
            _ => None,
        };
        if let Some(v) = factor.filter(|_| !late) {
            s.mul *= v;
            return Ok(Value::Scores(Box::new(s)));
        }
        let (heads, _) = self.layout(&s)?;
        if op == "Mul" && !late && s.head_mul.is_none() && c.numel() == heads {
            // One factor a head: its axis is where the scores have their heads.
            let skip = s.axes.len().checked_sub(c.shape.len()).ok_or("has too many axes")?;
            let at = c.shape.iter().position(|&d| d != 1).map(|i| i + skip);
            if at.is_some_and(|i| size(&s.axes[i]) == heads && s.axes[i].iter().all(|a| a.axis == s.q.channel_axis())) {
                s.head_mul = Some(c.to_f32());
                return Ok(Value::Scores(Box::new(s)));
            }
        }
        if op != "Add" {
            return Err(format!("computes {op} on attention scores with a constant of shape {:?}", c.shape));
        }
        self.add_to_scores(s, c)
    }

    /// Heads and tokens of the scores.
    fn layout(&self, s: &Scores) -> Lift<(usize, usize)> {
        let channel = s.q.channel_axis();
        let queries = s.q.axes.get(s.q.axes.len().wrapping_sub(2)).ok_or("has scores of one axis")?;
        let outer = s.q.axes[..s.q.axes.len() - 2].iter().flatten();
        let heads = outer.filter(|a| a.axis == channel).map(|a| a.len).product();
        Ok((heads, size(queries)))
    }

    /// A position bias (per head and pair) or a window mask (per window and pair).
    fn add_to_scores(&mut self, mut s: Scores, c: &Constant) -> Lift<Value> {
        let (heads, t) = self.layout(&s)?;
        let n = s.axes.len();
        let skip = n.checked_sub(c.shape.len()).ok_or("adds a constant with too many axes to attention scores")?;
        let refused = || format!("adds a constant of shape {:?} to attention scores", c.shape);
        let channel = s.q.channel_axis();
        let pairs = n >= 2 && size(&s.axes[n - 1]) == t && size(&s.axes[n - 2]) == t;
        let ends_in_pairs = c.shape.len() >= 2 && c.shape[c.shape.len() - 2..] == [t, t];
        let per_image = c.batched && c.shape.len() != n;
        if !pairs || !ends_in_pairs || per_image || t.saturating_mul(t).saturating_mul(heads) > 1 << 24 {
            return Err(refused());
        }
        let (mut by_head, mut by_window) = (1usize, 1usize);
        for (i, &d) in c.shape[..c.shape.len() - 2].iter().enumerate().filter(|(_, d)| **d != 1) {
            let axis: Vec<Atom> = match c.batched && i == 0 {
                true => s.axes[0].iter().filter(|a| a.axis != 0).copied().collect(),
                false => s.axes[skip + i].clone(),
            };
            if d != size(&axis) {
                return Err(refused());
            }
            if axis.iter().all(|a| a.axis == channel) {
                by_head *= d;
            } else if axis.iter().all(|a| a.axis == 1) {
                by_window *= d;
            } else {
                return Err(refused());
            }
        }
        let values = c.to_f32();
        // A mask that masks nothing, as transformers' ViTs are exported with.
        if c.name.is_none() && values.iter().all(|&v| v == 0.0) {
            return Ok(Value::Scores(Box::new(s)));
        }
        match (by_head, by_window) {
            (_, 1) if by_head == heads || by_head == 1 => {
                let spread: Vec<f32> = (0..heads)
                    .flat_map(|h| {
                        let from = if by_head == heads { h * t * t } else { 0 };
                        values.get(from..from + t * t).unwrap_or(&[]).to_vec()
                    })
                    .collect();
                s.bias_name = match s.bias {
                    None if by_head == heads => c.name.as_deref().map(Rc::from),
                    _ => None,
                };
                s.bias = Some(sum(s.bias, spread));
            }
            // Some code adds its mask twice, which masks no more and no less.
            (1, _) => {
                if s.mask.as_ref().is_some_and(|m| m.len() != values.len()) {
                    return Err(refused());
                }
                s.mask = Some(sum(s.mask, values));
            }
            // Both in one constant, windows first.
            _ if by_head == heads && s.mask.is_none() => {
                let (bias, mask) = parted(&values, by_window, heads, t * t).ok_or_else(refused)?;
                s.bias = Some(sum(s.bias, bias));
                s.bias_name = None;
                s.mask = Some(mask);
            }
            _ => return Err(refused()),
        }
        Ok(Value::Scores(Box::new(s)))
    }

    pub(super) fn softmax(&mut self, a: &Attrs) -> Lift<Value> {
        let value = self.input(0)?.clone();
        let shape = self.value_shape(&value)?;
        let rank = shape.len();
        let axis = fold::axis(a.int("axis").unwrap_or(if self.opset < 13 { 1 } else { -1 }), rank)?;
        // Before opset 13 everything from `axis` on was one row.
        let last = if self.opset < 13 { shape[axis..].iter().filter(|&&d| d != 1).count() <= 1 } else { false };
        if axis + 1 != rank && !last {
            return Err(format!("normalises over axis {axis} of {shape:?}"));
        }
        if let Value::Scores(s) = value {
            return Ok(Value::Scores(Box::new(Scores { soft: true, ..*s })));
        }
        let v = self.settled_input(0)?;
        let v = self.rows(&v, false)?;
        self.over(Op::Softmax, v, vec![]).map(Value::View)
    }

    /// `Where(IsNaN(p), 0, p)`: a guard against rows that are masked altogether, of which there are none here.
    pub(super) fn choose(&mut self, proto: &NodeProto) -> Lift<Value> {
        if let (Value::IsNan(of), Some(kept)) = (self.input(0)?, proto.input.get(2))
            && of == kept
            && matches!(self.input(1)?, Value::Const(_))
        {
            return Ok(self.input(2)?.clone());
        }
        Err("chooses between tensors by a condition".into())
    }

    /// How `v` lies; `token_axis` and `channel_axis` are where its tokens and the head's width are.
    fn part(v: &View, token_axis: usize, width_axis: usize) -> Lift<Part> {
        let channel = v.channel_axis();
        let odd = || format!("attends over {:?}, whose heads and tokens are not told apart", v.shape());
        let width = match v.axes[width_axis][..] {
            [] => 1,
            [Atom { axis, stride: 1, len }] if axis == channel => len,
            _ => return Err(odd()),
        };
        let tokens = v.axes[token_axis].clone();
        let outer: Vec<Atom> = (0..v.axes.len())
            .filter(|i| ![token_axis, width_axis].contains(i))
            .flat_map(|i| v.axes[i].clone())
            .collect();
        let mut heads = outer.iter().filter(|a| a.axis == channel);
        let count = match (heads.next(), heads.next()) {
            (None, _) => 1,
            (Some(a), None) if a.stride == width => a.len,
            _ => return Err(odd()),
        };
        if v.dims.len() != 3 || tokens.iter().any(|a| a.axis != 1) || v.offset[1] != 0 {
            return Err(odd());
        }
        let outer = outer.into_iter().filter(|a| a.axis != channel).collect();
        Ok(Part { heads: count, width, offset: v.offset[channel], outer, tokens })
    }

    /// Softmax(scores)·v as a node.
    fn attend(&mut self, s: Scores, v: Value) -> Lift<View> {
        let rank = s.q.axes.len();
        let (v, mul, _) = self.factored(v, rank)?;
        if mul != 1.0 || v.axes.len() != rank {
            return Err("multiplies attention by something else than v".into());
        }
        // Attention over an image's pixels reads them as tokens.
        let placed = |l: &mut Self, v: &View| if v.dims.len() == 4 { l.tokens_of(v) } else { Ok(v.clone()) };
        let (q, k, v) = (placed(self, &s.q)?, placed(self, &s.k)?, placed(self, &v)?);
        let pq = Self::part(&q, rank - 2, rank - 1)?;
        let pk = Self::part(&k, rank - 1, rank - 2)?;
        let pv = Self::part(&v, rank - 2, rank - 1)?;
        let alike = |p: &Part| p.heads == pq.heads && p.outer == pq.outer && p.tokens == pq.tokens;
        if !alike(&pk) || !alike(&pv) || pk.width != pq.width || q.rolls != k.rolls || q.rolls != v.rolls {
            return Err("attends over queries, keys and values that lie differently".into());
        }
        let scores: Vec<Atom> = s.axes.concat();
        let own: Vec<Atom> = s.q.axes[..rank - 1].concat();
        if scores.len() < own.len() || scores[..own.len()] != own[..] {
            return Err("rearranges attention scores".into());
        }
        let windows = self.windows(&q, &pq)?;
        self.check_mask(&s, windows.as_ref())?;
        let (heads, qk, vd, t) = (pq.heads, pq.width, pv.width, size(&pq.tokens));
        let whole = |x: &View, p: &Part| p.offset == 0 && x.dims[2] == heads * p.width;
        let together = q.base == k.base && q.base == v.base;
        let fused = together
            && (pq.offset, pk.offset, pv.offset) == (0, heads * qk, 2 * heads * qk)
            && q.dims[2] == heads * (2 * qk + vd);
        let inputs = if fused {
            vec![q.base]
        } else {
            let mut own = |(x, p): (&View, &Part)| {
                let map = (p.offset..p.offset + heads * p.width).map(|c| Some(c as u32)).collect();
                let op = Op::ChannelPad(op::ChannelPad { stride: 1, in_ch: x.dims[2], map });
                if whole(x, p) { Ok(x.base) } else { self.moved(op, x.base) }
            };
            vec![own((&q, &pq))?, own((&k, &pk))?, own((&v, &pv))?]
        };
        let mut params = Vec::new();
        let mut scale = s.mul;
        if s.unit {
            let factors = s.head_mul.clone().unwrap_or_else(|| vec![s.mul as f32; heads]);
            if s.head_mul.is_none() {
                scale = 1.0;
            }
            if factors.iter().any(|f| *f <= 0.0 || *f > 100.001) {
                return Err("scales cosine attention by more than 100".into());
            }
            let logs = factors.iter().map(|f| f64::from(*f).ln().min(100f64.ln()) as f32).collect();
            params.push(Weight::made(vec![heads, 1, 1], logs)?);
        } else if s.head_mul.is_some() {
            return Err("scales heads differently".into());
        }
        let bias = match s.bias {
            None => PositionBias::None,
            Some(values) => {
                let name = s.bias_name.as_deref().map(str::to_owned);
                params.push(Weight { name, ..Weight::made(vec![heads, t, t], values)? });
                PositionBias::Full { tokens: t }
            }
        };
        let op = Op::Attention(op::Attention {
            cosine: s.unit,
            windows,
            bias,
            ..op::Attention::plain(heads, qk, vd, fused, scale)
        });
        // Beside its projections, when those have names of a checkpoint.
        let beside = self.nodes[inputs[0].index()].name.rsplit_once('.');
        let hint = beside.map(|(parent, _)| format!("{parent}.attention_core"));
        let base = self.emit_named(op, &inputs, params, hint)?;
        // The output lies as the queries did, with its own width of a head.
        let place = |a: &Atom| if a.axis == 2 { Atom { axis: 2, stride: vd, len: heads } } else { *a };
        let mut axes: Vec<Vec<Atom>> = q.axes[..rank - 1].iter().map(|x| x.iter().map(place).collect()).collect();
        axes.push(v.axes[rank - 1].iter().map(|_| Atom { axis: 2, stride: 1, len: vd }).collect());
        let view = View { rolls: q.rolls, ..self.arranged(base, axes) };
        view.merged().ok_or_else(|| "writes its heads in an odd order".into())
    }

    /// The windows that a part attends within; `None`: all tokens.
    fn windows(&self, v: &View, p: &Part) -> Lift<Option<Windows>> {
        let t = v.dims[1];
        if t > MAX_TOKENS {
            return Err(format!("attends over {t} tokens"));
        }
        let inner: Vec<Atom> = p.outer.iter().filter(|a| a.axis == 1).copied().collect();
        if inner.is_empty() {
            if p.tokens == v.full(1) && v.rolls.is_empty() {
                return Ok(None);
            }
            return Err("attends over tokens in an odd order".into());
        }
        let odd = || "attends within windows that are no grid of rows and columns".to_owned();
        // Rows of windows, columns of windows; then rows and columns within one. Sides of length 1 leave no atom.
        for w in (1..=t).filter(|w| t.is_multiple_of(*w)) {
            let h = t / w;
            for ws in (1..=w).filter(|s| w.is_multiple_of(*s)) {
                let sum: usize = size(&p.tokens);
                if !sum.is_multiple_of(ws) || !h.is_multiple_of(sum / ws) {
                    continue;
                }
                let hs = sum / ws;
                let atom = |stride, len| Atom { axis: 1, stride, len };
                let plain = View {
                    base: v.base,
                    dims: vec![],
                    offset: vec![],
                    axes: vec![vec![atom(hs * w, h / hs), atom(ws, w / ws)], vec![atom(w, hs), atom(1, ws)]],
                    rolls: vec![],
                };
                let have = View { axes: vec![inner.clone(), p.tokens.clone()], ..plain.clone() };
                if plain.merged() != have.merged() {
                    continue;
                }
                let shift_of = |stride: usize, len: usize| {
                    v.rolls.iter().find(|r| (r.axis, r.stride, r.len) == (1, stride, len)).map_or(0, |r| r.shift)
                };
                let shift = [shift_of(w, h), shift_of(1, w)];
                let told =
                    v.rolls.iter().filter(|r| (r.stride, r.len) == (w, h) || (r.stride, r.len) == (1, w)).count();
                if told == v.rolls.len() {
                    return Ok(Some(Windows { grid: [h, w], size: [hs, ws], shift }));
                }
            }
        }
        Err(odd())
    }

    /// The mask must be the one that follows from the windows: pairs that only the roll made neighbours.
    fn check_mask(&self, s: &Scores, windows: Option<&Windows>) -> Lift<()> {
        let shifted = windows.filter(|w| w.shift != [0, 0]);
        let (w, mask) = match (shifted, &s.mask) {
            (None, None) => return Ok(()),
            (None, Some(mask)) if mask.iter().all(|m| *m == 0.0) => return Ok(()),
            (Some(w), Some(mask)) => (w, mask),
            (None, Some(_)) => return Err("masks windows that are not shifted".into()),
            (Some(_), None) => return Err("shifts windows without a mask".into()),
        };
        let (parts, t) = (w.parts(), w.tokens());
        if mask.len() != w.count() * t * t {
            return Err("masks another number of windows than there are".into());
        }
        let right = parts.chunks_exact(t).zip(mask.chunks_exact(t * t)).all(|(parts, mask)| {
            mask.chunks_exact(t)
                .zip(parts)
                .all(|(row, p)| row.iter().zip(parts).all(|(m, q)| if p == q { *m == 0.0 } else { *m <= MASKS_FROM }))
        });
        if right { Ok(()) } else { Err("masks windows in another way than shifting them asks for".into()) }
    }
}

/// What is added to scores already, and `more`.
fn sum(there: Option<Vec<f32>>, more: Vec<f32>) -> Vec<f32> {
    there.map_or_else(|| more.clone(), |t| t.iter().zip(&more).map(|(a, b)| a + b).collect())
}

/// `[windows, heads, pairs]` as a bias `[heads, pairs]` and a mask `[windows, pairs]` of 0 and −100 that sum to it.
fn parted(values: &[f32], windows: usize, heads: usize, pairs: usize) -> Option<(Vec<f32>, Vec<f32>)> {
    let at = |w: usize, h: usize, p: usize| values.get((w * heads + h) * pairs + p).copied();
    let mut bias = vec![f32::MIN; heads * pairs];
    // What no window masks is the largest of all windows.
    for (h, row) in bias.chunks_exact_mut(pairs.max(1)).enumerate() {
        for (p, b) in row.iter_mut().enumerate() {
            for w in 0..windows {
                *b = b.max(at(w, h, p)?);
            }
        }
    }
    let mut mask = vec![0.0; windows * pairs];
    for w in 0..windows {
        for p in 0..pairs {
            let masked = at(w, 0, p)? < bias[p] + 0.5 * MASKED;
            let by = if masked { MASKED } else { 0.0 };
            // Adding −100 rounds off the bias' last bits.
            let fits = |h: usize| {
                at(w, h, p).is_some_and(|v| (v - by - bias[h * pairs + p]).abs() <= if masked { 1e-3 } else { 0.0 })
            };
            if !(0..heads).all(fits) {
                return None;
            }
            mask[w * pairs + p] = by;
        }
    }
    Some((bias, mask))
}
