//! The CPU kernel of each op, packed for the shapes that it meets.
//!
//! Not here: parameters and what is folded into them (`layer`). Invariant: the name that a kernel gets is that of what runs.

use super::layer::Builder;
use super::step::{Call, Kernel};
use crate::exec::cache::Past;
use crate::exec::error::{ExecError, Result};
use crate::exec::kernel::attention::{Attention, Part};
use crate::exec::kernel::cached::KvFormat;
use crate::exec::kernel::dense::{Dense, Source};
use crate::exec::kernel::geometry::{Codes, Epilogue, Geometry};
use crate::exec::kernel::inputs::{self, Minima, Rounding};
use crate::exec::kernel::simple::{self, PoolGeometry};
use crate::exec::kernel::window::Windowing;
use crate::exec::kernel::{Par, experts, rope, rows, split, vector};
use crate::exec::unfold::Window;
use crate::graph::{NodeId, Op, ParamRole, Precision, Runs, channel_axis, op};
use crate::model::fp8;

/// A kernel, its name and its parameter bytes, stored and in memory.
pub(super) type NamedKernel = (Kernel, String, [u64; 2]);

fn kernel(f: impl Fn(&Call<'_, '_>, &mut [f32]) + Send + Sync + 'static) -> Kernel {
    Box::new(f)
}

/// Rows of `width` values on their own.
fn by_rows(width: usize, f: impl Fn(&[f32], &mut [f32]) + Send + Sync + 'static) -> Kernel {
    kernel(move |call, out| call.by_rows(width, out, &f))
}

/// Attention of tokens that come after others, whose keys and values it adds to theirs; `node` is the core's.
fn after(core: &Attention, node: NodeId, past: Past<'_>, parts: [Part<'_>; 3], out: &mut [f32], par: Par<'_>) {
    let (tokens, width) = (core.tokens, core.heads * core.v);
    let [q, k, v] = parts;
    for (image, out) in out.chunks_exact_mut((tokens * width).max(1)).enumerate() {
        let (first, before) = (image * tokens, past.tokens(image));
        let Some(mut store) = past.store(node, image) else { continue };
        store.write(before, k, v, first, tokens);
        if before == 0 && tokens > 1 {
            // A prompt sees itself alone.
            let [q, k, v] = parts.map(|p| p.rows(first, tokens));
            core.run(q, k, v, None, out, par);
        } else {
            store.attend(core, q, first, before, out, par);
        }
    }
}

impl Builder<'_> {
    fn pool(&self, window: Window) -> Result<PoolGeometry> {
        let (channels, image) = self.image()?;
        match self.shapes[self.chain.lead.index()][..] {
            [_, h, w] => Ok(PoolGeometry { image, out_image: [h, w], channels, window }),
            ref other => Err(ExecError::shape(self.node, other, "[channels, height, width]")),
        }
    }

    pub fn kernel(&self) -> Result<NamedKernel> {
        let node = self.node;
        let plain = |k: Kernel, name: &str| Ok((k, name.to_owned(), [0; 2]));
        let held = |k: Kernel, name: &str, n: usize| Ok((k, name.to_owned(), [4 * n as u64; 2]));
        let affine = |scale: Vec<f32>, shift: Vec<f32>, n: usize| {
            let (width, act) = (scale.len(), self.act());
            held(by_rows(width, move |x, out| rows::affine(x, &scale, &shift, act, out)), "affine-f32", n)
        };
        let mean = |skip: usize, c: usize| {
            plain(
                kernel(move |call, out| simple::mean_rows(call.rows(c), skip, c, call.input(0), out, call.par)),
                "mean-f32",
            )
        };
        match node.op.clone() {
            Op::Conv2d(conv) => self.conv(&conv),
            Op::Embedding(op::Embedding { vocab, dim }) => {
                // The bytes of a layer's weight are that layer's; a table of its own is read as it lies, of which nobody decides.
                let own = self.graph.sharing(node).is_none();
                let shape = [vocab, dim];
                let table = if own { self.packed(&shape)? } else { self.stored(&shape)? };
                if let Some(table) = table {
                    let bytes = if own { table.stored_bytes() } else { 0 };
                    let gather = kernel(move |call, out| {
                        let (ids, len) = (call.input(0), call.band(dim, out.len()));
                        split(call.par, out, len, |i, out| {
                            let ids = &ids[i * len / dim..];
                            out.chunks_exact_mut(dim).zip(ids).for_each(|(out, id)| table.row(*id as usize, out));
                        });
                    });
                    return Ok((gather, "gather-stored".to_owned(), [bytes; 2]));
                }
                let table = self.values(node, ParamRole::Weight, &shape)?;
                let gather = kernel(move |call, out| {
                    let (ids, len) = (call.input(0), call.band(dim, out.len()));
                    split(call.par, out, len, |i, out| simple::gather(&table, dim, &ids[i * len / dim..], out));
                });
                let held = 4 * (vocab * dim) as u64;
                Ok((gather, "gather-f32".to_owned(), [if own { held } else { 0 }, held]))
            }
            Op::Linear(op::Linear { in_features, out_features, bias }) => {
                if self.input(0)?.len() > 2 {
                    return Err(ExecError::shape(node, self.input(0)?, "[tokens, features] or [features]"));
                }
                // Rows are on their own; an image of one holds for any number of them.
                let rows = if self.graph.is_open() || self.one_row { 1 } else { self.rows()?.0 };
                let geo = Geometry::linear(rows, in_features, out_features);
                self.dense(geo, &[out_features, in_features], bias)
            }
            Op::BatchNorm2d(op::BatchNorm2d { channels, eps }) => {
                let (scale, shift) = self.batch_norm(node, channels, eps)?;
                affine(scale, shift, 2 * channels)
            }
            Op::LayerNorm(op::LayerNorm { dim, eps }) => {
                self.rows()?;
                let w = self.values(node, ParamRole::Weight, &[dim])?;
                let b = self.values(node, ParamRole::Bias, &[dim])?;
                let norm = by_rows(dim, move |x, out| rows::layer_norm(x, &w, &b, eps as f32, out));
                held(norm, "layernorm-f32", 2 * dim)
            }
            Op::RmsNorm(op::RmsNorm { dim, eps }) => {
                let w = self.values(node, ParamRole::Weight, &[dim])?;
                held(by_rows(dim, move |x, out| rows::rms_norm(x, &w, eps as f32, out)), "rmsnorm-f32", dim)
            }
            Op::Activation { act } => {
                plain(by_rows(1, move |x, out| rows::activate_into(x, act, out)), "activation-f32")
            }
            Op::Softmax => {
                let (_, width) = self.rows()?;
                plain(by_rows(width, move |x, out| rows::softmax_into(x, width, out)), "softmax-f32")
            }
            Op::Mul => {
                let (_, c) = self.rows()?;
                let multiply = match self.input(0)?.len() == self.input(1)?.len() {
                    true => kernel(|call, out| call.by_values(out, vector::multiply)),
                    // The second input has one row of factors an image.
                    false => kernel(move |call, out| {
                        simple::scale_rows(call.rows(c), c, call.input(0), call.input(1), out, call.par);
                    }),
                };
                plain(multiply, "multiply-f32")
            }
            Op::Scale(op::Scale { channels }) => {
                affine(self.values(node, ParamRole::Weight, &[channels])?, vec![0.0; channels], channels)
            }
            Op::Scalar(op::Scalar { mul, add }) => {
                let (mul, add) = (mul as f32, add as f32);
                plain(by_rows(1, move |x, out| vector::scalar(x, mul, add, out)), "scalar-f32")
            }
            Op::Add => {
                let act = self.act();
                plain(kernel(move |call, out| call.by_values(out, |x, y, out| rows::add(x, y, act, out))), "add-f32")
            }
            Op::MaxPool2d(pool) => {
                let pool = self.pool((&pool).into())?;
                plain(kernel(move |call, out| simple::max_pool(&pool, call.input(0), out, call.par)), "maxpool-f32")
            }
            Op::AvgPool2d(op) => {
                let (pool, all) = (self.pool((&op).into())?, op.count_padding);
                plain(
                    kernel(move |call, out| simple::avg_pool(&pool, all, call.input(0), out, call.par)),
                    "avgpool-f32",
                )
            }
            Op::AdaptiveAvgPool2d(_) => {
                let pool = self.pool(Window { kernel: [1; 2], stride: [1; 2], padding: [0; 4] })?;
                let mean = kernel(move |call, out| simple::adaptive_avg_pool(&pool, call.input(0), out, call.par));
                plain(mean, "avgpool-f32")
            }
            Op::Concat(op::Concat { inputs }) => {
                let width = |i| Ok(self.input(i)?[channel_axis(self.input(i)?)]);
                let widths = (0..inputs).map(width).collect::<Result<Vec<_>>>()?;
                let concat = kernel(move |call, out| {
                    let parts: Vec<_> = widths.iter().enumerate().map(|(i, width)| (call.input(i), *width)).collect();
                    simple::concat(&parts, out, call.par);
                });
                plain(concat, "copy-f32")
            }
            Op::Flatten => {
                let (c, [h, w]) = self.image()?;
                plain(kernel(move |call, out| simple::to_channels_first(c, h * w, call.input(0), out)), "copy-f32")
            }
            Op::PatchMerge(op::PatchMerge { grid }) => {
                let (_, d) = self.rows()?;
                plain(kernel(move |call, out| simple::patch_merge(grid, d, call.input(0), out, call.par)), "copy-f32")
            }
            Op::GlobalAvgPool => mean(0, self.image()?.0),
            Op::ChannelPad(pad) => {
                let pool = self.padded(&pad)?;
                let take = kernel(move |call, out| simple::channel_pad(&pool, &pad.map, call.input(0), out, call.par));
                plain(take, "pad-f32")
            }
            Op::PrependTokens(op::PrependTokens { count, dim, at }) => {
                let tokens = self.values(node, ParamRole::Embedding, &[1, count, dim])?;
                let insert = kernel(move |call, out| {
                    let x = call.input(0);
                    simple::insert(&tokens, at * dim, x.len() / call.images, x, out, call.par);
                });
                held(insert, "copy-f32", count * dim)
            }
            Op::AddPositions(op::AddPositions { tokens, dim, .. }) => {
                let p = self.values(node, ParamRole::Embedding, &[1, tokens, dim])?;
                let add = kernel(move |call, out| {
                    // As many as there are tokens, of which some take fewer.
                    let (x, n, past) = (call.input(0), call.rows(dim) * dim, call.past);
                    split(call.par, out, n, |i, out| {
                        let first = dim * past.map_or(0, |p| p.tokens(i));
                        rows::add(&x[i * n..][..n], &p[first..][..n], None, out);
                    });
                });
                held(add, "add-f32", tokens * dim)
            }
            Op::Attention(attention) => self.attention(attention),
            Op::Rope(turn) => {
                let (_, width) = self.rows()?;
                let turn = kernel(move |call, out| {
                    let (x, len, tokens) = (call.input(0), call.band(width, out.len()), call.rows(width));
                    let before = call.past;
                    split(call.par, out, len, |i, out| {
                        let rows = i * len / width..(i * len + out.len()) / width;
                        let past = |image| before.map_or(0, |p| p.tokens(image));
                        rope::turn(&turn, width, (tokens, past), rows, &x[i * len..][..out.len()], out);
                    });
                });
                plain(turn, "rope-f32")
            }
            Op::HeadNorm(op::HeadNorm { head_dim, eps }) => {
                let w = self.values(node, ParamRole::Weight, &[head_dim])?;
                held(by_rows(head_dim, move |x, out| rows::rms_norm(x, &w, eps as f32, out)), "rmsnorm-f32", head_dim)
            }
            Op::SelectToken(op::SelectToken { index }) => {
                let (_, c) = self.rows()?;
                plain(kernel(move |call, out| simple::select(call.rows(c), index, c, call.input(0), out)), "copy-f32")
            }
            Op::MeanTokens(op::MeanTokens { skip }) => mean(skip, self.rows()?.1),
            Op::Route(route) => {
                plain(by_rows(route.experts, move |x, out| experts::route(&route, x, out)), "route-f32")
            }
            Op::Dispatch(op::Dispatch { experts, expert }) => {
                let (_, width) = self.rows()?;
                let send = kernel(move |call, out| {
                    let (x, weights, len) = (call.input(0), call.input(1), call.band(width, out.len()));
                    split(call.par, out, len, |i, out| {
                        let sent = &weights[i * len / width * experts..];
                        experts::dispatch(&x[i * len..][..out.len()], sent, [experts, expert, width], out);
                    });
                });
                plain(send, "copy-f32")
            }
            Op::Combine(op::Combine { experts }) => {
                let width = self.input(1)?.last().copied().unwrap_or(0);
                let sum = kernel(move |call, out| {
                    let (weights, len) = (call.input(0), call.band(width, out.len()));
                    let made: Vec<&[f32]> = (1..=experts).map(|i| call.input(i)).collect();
                    split(call.par, out, len, |i, out| {
                        let first = i * len / width.max(1);
                        experts::combine(&weights[first * experts..], &made, first, width, out);
                    });
                });
                plain(sum, "combine-f32")
            }
            Op::Input(_) | Op::ToTokens | Op::ToImage(_) => Err(ExecError::unsupported(node, "is not a step")),
        }
    }

    fn conv(&self, conv: &op::Conv2d) -> Result<NamedKernel> {
        let op::Conv2d { in_ch: channels, out_ch: out_channels, kernel, groups, bias, .. } = *conv;
        let (window, image, out_image) = self.window(conv)?;
        let geo = Geometry { image, channels, out_image, out_channels, window, groups, codes: Codes::Image };
        self.dense(geo, &[out_channels, channels / groups, kernel[0], kernel[1]], bias)
    }

    /// The positions that a channel padding keeps; every row of tokens.
    fn padded(&self, pad: &op::ChannelPad) -> Result<PoolGeometry> {
        let window = Window { kernel: [1, 1], stride: [pad.stride; 2], padding: [0; 4] };
        if self.input(0)?.len() == 3 {
            return self.pool(window);
        }
        // Rows of tokens are images of one pixel.
        let (_, channels) = self.rows()?;
        Ok(PoolGeometry { image: [1, 1], out_image: [1, 1], channels, window })
    }

    fn attention(&self, attention: op::Attention) -> Result<NamedKernel> {
        let [qw, kw, vw] = attention.widths();
        let op::Attention { heads, qk_dim: qk, v_dim: v, fused, scale, cosine, windows, bias, .. } = attention;
        let op::Attention { group, causal, most, reach, cap, .. } = attention;
        let (tokens, _) = self.rows()?;
        let tokens = windows.map_or(tokens, |w| w.tokens());
        let (scale, cap) = (scale as f32, cap.map(|c| c as f32));
        let core = Attention { tokens, heads, qk, v, scale, group, causal, most, reach, cap };
        let (factors, bias, held) = self.position(cosine, windows, bias)?;
        let plain = factors.is_none() && windows.is_none() && bias.is_none();
        let windowing = (!plain).then(|| Windowing::new(&core, windows, factors, bias));
        let lead = self.chain.lead;
        // As decoding would find them, also where all tokens are given at once.
        let decided = self.precision.nodes.get(&self.node.name).filter(|_| self.node.op.caches());
        let kept = decided.and_then(|p| KvFormat::of(*p)).filter(|f| *f != KvFormat::F32);
        let run = kernel(move |call, out| {
            let all = qw + kw + vw;
            let rounded = kept.map(|f| [f.kept(call.input(1), qk), f.kept(call.input(2), v)]);
            // Without windows over all tokens that there are.
            let tokens = if windows.is_some() { tokens } else { call.rows(if fused { all } else { qw }) };
            let core = Attention { tokens, ..core };
            let part = |i: usize, width: usize, at: usize| Part { data: call.input(i), width, at };
            let parts = match fused {
                true => [0, qw, qw + kw].map(|at| part(0, all, at)),
                false => match &rounded {
                    None => [part(0, qw, 0), part(1, kw, 0), part(2, vw, 0)],
                    Some([k, v]) => {
                        [part(0, qw, 0), Part { data: k, width: kw, at: 0 }, Part { data: v, width: vw, at: 0 }]
                    }
                },
            };
            match (&windowing, call.past) {
                (Some(windowing), _) => windowing.run(&core, parts, out, call.par),
                (None, None) => core.run(parts[0], parts[1], parts[2], None, out, call.par),
                (None, Some(past)) => after(&core, lead, past, parts, out, call.par),
            }
        });
        Ok((run, core.kernel(), [held; 2]))
    }

    /// A linear whose weight is multiplied as it is stored, if that is asked for and can be.
    fn as_stored(&self, geo: Geometry, shape: &[usize], has_bias: bool) -> Result<Option<NamedKernel>> {
        let (Some(weight), None) = (self.stored(shape)?, self.chain.bn) else { return Ok(None) };
        let folded = self.folded(geo.out_channels, has_bias)?;
        let epilogue = Epilogue { bias: folded.bias, act: self.act() };
        let Some(dense) = Dense::stored(geo, &weight, &epilogue) else { return Ok(None) };
        let (name, bytes) = (dense.kernel(), weight.stored_bytes() + folded.stored);
        let (rounds, width) = (self.rounds()?, geo.channels.max(1));
        let minima = Minima::of(&weight).filter(|_| rounds.is_some());
        let run = kernel(move |call, out| {
            let more = minima.as_ref().map(|m| m.beside(call.input(0), call.residual(), call.par));
            let x = inputs::rows(rounds, width, call.input(0), call.par);
            dense.run(&x, more.as_deref().or(call.residual()), out, call.par)
        });
        Ok(Some((run, name, [bytes; 2])))
    }

    /// What becomes of the rows that the leading node's weight is multiplied with: nothing, unless another program is imitated.
    ///
    /// # Errors
    /// A precision that llama.cpp has no format for.
    fn rounds(&self) -> Result<Option<Rounding>> {
        let weight = self.params.get(self.node.param(ParamRole::Weight).unwrap_or_default());
        let Some(weight) = weight.ok().filter(|_| self.as_llama_cpp) else { return Ok(None) };
        Rounding::of(self.wanted().weights(), weight).map_err(|label| {
            let why = format!(
                "is in {label}, which llama.cpp has no format for: evaluate the GGUF file that `paring convert` makes of it; hint: leave --as out"
            );
            ExecError::unsupported(self.node, why)
        })
    }

    fn dense(&self, geo: Geometry, shape: &[usize], has_bias: bool) -> Result<NamedKernel> {
        let precision = self.wanted();
        if let Some(stored) = self.as_stored(geo, shape, has_bias)? {
            return Ok(stored);
        }
        let geo = match precision {
            Precision::Int8Static => Geometry { codes: Codes::Fixed(self.calibrated()?), ..geo },
            _ => geo,
        };
        let weight = self.weight(shape, precision)?;
        let mut folded = self.folded(geo.out_channels, has_bias)?;
        let epilogue = Epilogue { bias: std::mem::take(&mut folded.bias), act: self.act() };
        let dense = match (precision.int8_products(), weight.as_int8()) {
            (true, Some((q, scales))) => Dense::new(geo, Source::Int8 { q, factors: &folded.times(scales) }, epilogue),
            _ => Dense::new(geo, Source::F32 { w: &weight.values(), factors: folded.factors.as_deref() }, epilogue),
        };
        let (mut name, stored) = (dense.kernel(), weight.stored_bytes());
        let held = match precision.runs() {
            Runs::Real if precision == Precision::Int8Static => {
                name += " (static)";
                stored
            }
            Runs::Real => stored,
            Runs::Simulated => {
                name = format!("{name} ({} unpacked)", precision.label());
                4 * weight.numel() as u64
            }
        };
        let (rounds, width) = (self.rounds()?, geo.channels.max(1));
        let run = kernel(move |call, out| {
            let x = &*inputs::rows(rounds, width, call.input(0), call.par);
            if precision == Precision::Fp8 {
                // Simulated in full: activations as they would be stored, too.
                let each = if geo.codes == Codes::Row { geo.channels } else { x.len() / call.images.max(1) };
                return dense.run(&fp8::stored(x, each), call.residual(), out, call.par);
            }
            dense.run(x, call.residual(), out, call.par)
        });
        Ok((run, name, [stored + folded.stored, held + folded.stored]))
    }
}
