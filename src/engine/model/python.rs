//! A folder that PyTorch opens without us: weights under the checkpoint's own names and a generated `model.py` that
//! rebuilds the network in the shapes that are left, alone or within torchvision, timm or transformers.

use super::export::{self, Manifest};
use super::{Model, ModelError, Origin, Result, hf};
use crate::files;
use crate::graph::rotary::Pairs;
use crate::graph::{Activation, Graph, Node, NodeId, Op, ParamRole, PositionBias, Precision, Windows, op};
use std::ffi::OsStr;
use std::fmt::Write;
use std::io::{self, Read};
use std::path::Path;

/// What every generated file begins with.
const PRELUDE: &str = include_str!("../../../assets/torch_prelude.py");
/// The file that we re-open.
const MODEL: &str = "model.safetensors";
/// What its weights stand for in f32, where kernels would run quantized ones.
const FLOATS: &str = "weights.safetensors";
/// What the ecosystem's own loader wants to see beside the weights.
const BESIDE: [&str; 2] = ["config.json", "preprocessor_config.json"];

/// Does the folder hold an earlier export and nothing else?
pub(super) fn is_export(dir: &Path) -> bool {
    let Ok(Ok(entries)) = std::fs::read_dir(dir).map(|all| all.collect::<Result<Vec<_>, _>>()) else { return false };
    let known = |name: &OsStr| [MODEL, FLOATS, "model.py", "model.json"].iter().chain(&BESIDE).any(|k| name == *k);
    let first = PRELUDE.lines().next().unwrap_or_default();
    let mut begins = vec![0; first.len()];
    let ours = files::open(&dir.join("model.py")).and_then(|mut f| f.read_exact(&mut begins));
    ours.is_ok() && begins == first.as_bytes() && entries.iter().all(|e| known(&e.file_name()))
}

/// Writes `model.safetensors` (ours to open again), `model.py`, `model.json` and, where kernels would run quantized
/// weights or that file holds more than floats, `weights.safetensors` with what the weights stand for in f32. The folder appears whole or not at all, in the
/// place of an earlier export if there is one. Returns the hash of `model.safetensors`.
///
/// # Errors
/// As [`export::safetensors`], and when `dir` holds anything else.
pub fn folder(dir: &Path, model: &Model, manifest: &Manifest) -> Result<String> {
    // What `fill` says itself passes through as the inside of an I/O error.
    let failed = |e: io::Error| e.downcast().unwrap_or_else(ModelError::write(dir));
    files::replace_folder(dir, is_export, |new| fill(new, model, manifest).map_err(io::Error::other)).map_err(failed)
}

fn fill(dir: &Path, model: &Model, manifest: &Manifest) -> Result<String> {
    let hash = export::safetensors(&dir.join(MODEL), model, manifest)?;
    let plain = model.graph.nodes.iter().all(|n| model.precision.get(&n.name) == Precision::F32);
    // Neither blocks nor what the original said are tensors for PyTorch.
    let blocks = export::stored(model)?.iter().any(|(_, p)| p.as_blocks().is_some());
    let float = plain && !blocks && matches!(model.origin, Origin::None);
    let weights = if float { MODEL } else { FLOATS };
    if !float {
        export::floats(&dir.join(weights), model)?;
    }
    let put = |name: &str, text: &str| {
        let path = dir.join(name);
        files::write(&path, text).map_err(ModelError::write(&path))
    };
    put("model.py", &source(&model.graph, weights))?;
    let about = serde_json::json!({
        "name": model.info.name,
        "family": model.info.family.label(),
        "classes": model.info.classes,
        "class_names": model.info.class_names,
        "preprocess": model.info.preprocess,
    });
    put("model.json", &format!("{about:#}\n"))?;
    for name in BESIDE {
        let beside = model.info.source.parent().unwrap_or(Path::new(".")).join(name);
        let inside = model.info.source.join(name);
        if let Some(text) = [inside, beside].iter().find_map(|p| files::read_text(p, hf::MAX_BYTES).ok()) {
            put(name, &text)?;
        }
    }
    Ok(hash)
}

/// A Python string literal.
fn quote(s: &str) -> String {
    serde_json::to_string(s).unwrap_or_default()
}

fn tuple(v: &[usize]) -> String {
    let all: Vec<String> = v.iter().map(usize::to_string).collect();
    format!("({},)", all.join(", "))
}

/// The text of `model.py`.
pub(crate) fn source(graph: &Graph, weights: &str) -> String {
    let reachable = graph.reachable();
    let nodes = || graph.iter().filter(|(id, _)| reachable[id.index()]);
    let mut t = PRELUDE.to_owned();
    let removed: Vec<String> = graph
        .blocks
        .iter()
        .filter(|b| !b.residual.is_empty() && b.nodes.iter().all(|n| !reachable[n.index()]))
        .map(|b| quote(&b.name))
        .collect();
    let entries = |f: &dyn Fn(&Node) -> Option<String>| -> String {
        nodes().filter_map(|(_, n)| f(n).map(|v| format!("    {}: {v},\n", quote(&n.name)))).collect()
    };
    let groups = entries(&|n| match &n.op {
        Op::Conv2d(op::Conv2d { groups, .. }) if *groups > 1 => Some(groups.to_string()),
        _ => None,
    });
    let heads = entries(&|n| match &n.op {
        Op::Attention(op::Attention { heads, v_dim, .. }) => Some(format!("({heads}, {v_dim})")),
        _ => None,
    });
    let bases =
        graph.factored().into_iter().filter_map(|(first, _)| first.param(ParamRole::Weight)?.strip_suffix(".0.weight"));
    let factors: Vec<String> = bases.map(quote).collect();
    let _ = write!(
        t,
        "\nWEIGHTS = {}\nREMOVED = [{}]\nFACTORS = [{}]\nGROUPS = {{\n{groups}}}\nATTENTION = {{\n{heads}}}\n\n\n",
        quote(weights),
        removed.join(", "),
        factors.join(", ")
    );
    t.push_str("class Net(_Tensors):\n    def __init__(self, tensors):\n        super().__init__()\n");
    t.push_str("        for name, trained in (\n");
    for (_, node) in nodes() {
        for p in &node.params {
            let trained = !matches!(p.role, ParamRole::Mean | ParamRole::Var);
            let _ = writeln!(t, "            ({}, {}),", quote(&p.name), if trained { "True" } else { "False" });
        }
    }
    t.push_str("        ):\n            self.put(name, tensors[name].float(), trained)\n\n");
    t.push_str("    def forward(self, x):\n        p = self.p\n");
    for (id, node) in nodes() {
        // A comment is one line of printable characters.
        let comment = super::printable(&node.name).replace('\n', " ");
        let _ = writeln!(t, "        v{} = {}  # {comment}", id.0, expression(node));
    }
    let _ = writeln!(t, "        return v{}", graph.output.0);
    t
}

fn activation(act: Activation, x: &str) -> String {
    match act {
        Activation::Relu => format!("F.relu({x})"),
        Activation::Relu6 => format!("F.relu6({x})"),
        Activation::GeluErf => format!("F.gelu({x})"),
        Activation::GeluTanh => format!("F.gelu({x}, approximate=\"tanh\")"),
        Activation::Silu => format!("F.silu({x})"),
        Activation::Sigmoid => format!("torch.sigmoid({x})"),
        Activation::HardSigmoid => format!("F.hardsigmoid({x})"),
        Activation::HardSwish => format!("F.hardswish({x})"),
        Activation::Tanh => format!("torch.tanh({x})"),
    }
}

/// What a node computes, of `v<id>` of its inputs and `p(name)` of its parameters.
fn expression(node: &Node) -> String {
    let v = |id: &NodeId| format!("v{}", id.0);
    let x = node.inputs.first().map(v).unwrap_or_default();
    let y = node.inputs.get(1).map(v).unwrap_or_default();
    let p = |role: ParamRole| node.param(role).map_or_else(|| "None".to_owned(), |n| format!("p({})", quote(n)));
    let (w, b) = (p(ParamRole::Weight), p(ParamRole::Bias));
    match &node.op {
        Op::Input(_) => "x".to_owned(),
        Op::Embedding(_) => format!("F.embedding({x}, {w})"),
        Op::Conv2d(op::Conv2d { stride, padding: [top, left, bottom, right], groups, .. }) => {
            let (x, padding) = match top == bottom && left == right {
                true => (x, tuple(&[*top, *left])),
                false => (format!("F.pad({x}, ({left}, {right}, {top}, {bottom}))"), "0".to_owned()),
            };
            format!("F.conv2d({x}, {w}, {b}, {}, {padding}, 1, {groups})", tuple(stride))
        }
        Op::Linear(_) => format!("F.linear({x}, {w}, {b})"),
        Op::BatchNorm2d(op::BatchNorm2d { eps, .. }) => {
            let names: Vec<String> = [ParamRole::Weight, ParamRole::Bias, ParamRole::Mean, ParamRole::Var]
                .iter()
                .filter_map(|r| node.param(*r).map(quote))
                .collect();
            format!("_batch_norm({x}, p, {}, ({},), {eps:?}, self.training)", quote(&node.name), names.join(", "))
        }
        Op::LayerNorm(op::LayerNorm { dim, eps }) => {
            format!("_over_channels(lambda t: F.layer_norm(t, ({dim},), {w}, {b}, {eps:?}), {x})")
        }
        Op::RmsNorm(op::RmsNorm { dim, eps }) => {
            format!("_over_channels(lambda t: F.rms_norm(t, ({dim},), {w}, {eps:?}), {x})")
        }
        Op::Activation { act } => activation(*act, &x),
        Op::Softmax => format!("_over_channels(lambda t: t.softmax(-1), {x})"),
        Op::Add => format!("{x} + {y}"),
        Op::Mul => format!("_multiply({x}, {y})"),
        Op::Scale(_) => format!("{x} * _per_channel({w}, {x})"),
        Op::Scalar(op::Scalar { mul, add }) => format!("{x} * {mul:?} + {add:?}"),
        Op::MaxPool2d(op::MaxPool2d { kernel, stride, padding }) => {
            format!("_max_pool({x}, {}, {}, {})", tuple(kernel), tuple(stride), tuple(padding))
        }
        Op::AvgPool2d(op::AvgPool2d { kernel, stride, padding, count_padding }) => {
            let counted = if *count_padding { "True" } else { "False" };
            format!("_avg_pool({x}, {}, {}, {}, {counted})", tuple(kernel), tuple(stride), tuple(padding))
        }
        Op::AdaptiveAvgPool2d(op::AdaptiveAvgPool2d { out }) => format!("F.adaptive_avg_pool2d({x}, {})", tuple(out)),
        Op::GlobalAvgPool => format!("{x}.mean((2, 3))"),
        Op::ChannelPad(op::ChannelPad { stride, map, .. }) => {
            let index: Vec<String> = map.iter().map(|m| m.map_or(-1, i64::from).to_string()).collect();
            format!("_channel_map({x}, {stride}, [{}])", index.join(", "))
        }
        Op::Concat(_) => {
            let all: Vec<String> = node.inputs.iter().map(v).collect();
            format!("torch.cat([{}], 1 if {x}.dim() == 4 else -1)", all.join(", "))
        }
        Op::Flatten => format!("{x}.flatten(1)"),
        Op::ToTokens => format!("{x}.flatten(2).transpose(1, 2)"),
        Op::ToImage(op::ToImage { h, w }) => format!("{x}.transpose(1, 2).reshape({x}.shape[0], -1, {h}, {w})"),
        Op::PatchMerge(op::PatchMerge { grid: [h, w] }) => format!("_patch_merge({x}, {h}, {w})"),
        Op::PrependTokens(op::PrependTokens { at, .. }) => {
            let t = format!("{}.expand({x}.shape[0], -1, -1)", p(ParamRole::Embedding));
            format!("torch.cat([{x}[:, :{at}], {t}, {x}[:, {at}:]], 1)")
        }
        Op::AddPositions(op::AddPositions { shorter: true, .. }) => {
            format!("{x} + {}[:, :{x}.shape[1]]", p(ParamRole::Embedding))
        }
        Op::AddPositions(_) => format!("{x} + {}", p(ParamRole::Embedding)),
        Op::Attention(a) => {
            let op::Attention { heads, fused, scale, cosine, windows, bias, group, causal, most, reach, cap, .. } = a;
            let [q, k, w] = a.widths();
            let parts = match fused {
                true => format!("*{x}.split([{q}, {k}, {w}], -1)"),
                false => node.inputs.iter().map(v).collect::<Vec<_>>().join(", "),
            };
            let mut more = String::new();
            if let Some(bias) = position_bias(*bias, *windows, &p) {
                let _ = write!(more, ", bias={bias}");
            }
            if *cosine {
                let _ = write!(more, ", factors={}", p(ParamRole::LogitScale));
            }
            if let Some(Windows { grid, size, shift }) = windows {
                let _ = write!(more, ", windows=({}, {}, {})", tuple(grid), tuple(size), tuple(shift));
            }
            if *group > 1 {
                let _ = write!(more, ", group={group}");
            }
            if *causal {
                more.push_str(", causal=True");
            }
            if let Some(most) = most {
                let _ = write!(more, ", most={most}");
            }
            if let Some(reach) = reach {
                let _ = write!(more, ", reach={reach}");
            }
            if let Some(cap) = cap {
                let _ = write!(more, ", cap={cap:?}");
            }
            format!("_attention({parts}, {heads}, {scale:?}{more})")
        }
        Op::Rope(op::Rope { head_dim, turned, theta, pairs, scaling }) => {
            let halves = if *pairs == Pairs::Halves { "True" } else { "False" };
            let mut more = String::new();
            if let Some(op::Scaling { divisors, factor, beyond }) = scaling.as_deref() {
                let _ = write!(more, ", {divisors:?}, {factor:?}");
                let _ = match beyond {
                    None => Ok(()),
                    Some(op::Beyond { tokens, how: op::Longer::Divided(d) }) => {
                        write!(more, ", ({tokens}, {d:?}, None)")
                    }
                    Some(op::Beyond { tokens, how: op::Longer::Stretched(f) }) => {
                        write!(more, ", ({tokens}, None, {f:?})")
                    }
                };
            }
            format!("_rope({x}, {head_dim}, {turned}, {theta:?}, {halves}{more})")
        }
        Op::HeadNorm(op::HeadNorm { head_dim, eps }) => {
            format!("F.rms_norm({x}.unflatten(-1, (-1, {head_dim})), ({head_dim},), {w}, {eps:?}).flatten(-2)")
        }
        Op::Route(op::Route { top, normalised, .. }) => {
            format!("_route({x}, {top}, {})", if *normalised { "True" } else { "False" })
        }
        Op::Dispatch(op::Dispatch { expert, .. }) => format!("{x} * ({y}[..., {expert}:{}] != 0)", expert + 1),
        Op::Combine(_) => {
            let made: Vec<String> = node.inputs.iter().skip(1).map(v).collect();
            format!("sum({x}[..., i:i + 1] * y for i, y in enumerate([{}]))", made.join(", "))
        }
        Op::SelectToken(op::SelectToken { index }) => format!("{x}[:, {index}]"),
        Op::MeanTokens(op::MeanTokens { skip }) => format!("{x}[:, {skip}:].mean(1)"),
    }
}

fn position_bias(bias: PositionBias, windows: Option<Windows>, p: &dyn Fn(ParamRole) -> String) -> Option<String> {
    let size = windows.map_or([1, 1], |w| w.size);
    let spread = |table: &str| format!("{table}[_relative_index({})].permute(2, 0, 1)", tuple(&size));
    match bias {
        PositionBias::None => None,
        PositionBias::Full { .. } => Some(p(ParamRole::PositionBias)),
        PositionBias::Table => Some(spread(&p(ParamRole::PositionBias))),
        PositionBias::Continuous { trained, .. } => {
            let at = format!("_log_coordinates({}, {}).to(x.device)", tuple(&size), tuple(&trained));
            let (w1, b1) = (p(ParamRole::PositionMlp1), p(ParamRole::PositionMlp1Bias));
            let net = format!("F.linear(F.relu(F.linear({at}, {w1}, {b1})), {})", p(ParamRole::PositionMlp2));
            Some(spread(&format!("(16 * torch.sigmoid({net}))")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Builder, Conv};

    #[test]
    fn a_sliding_window_is_told() {
        let generated = |most: Option<usize>| {
            let mut b = Builder::default();
            let ids = b.input_of(op::Input::ids(50));
            let x = b.embedding("embed", ids, 50, 24);
            let core = op::Attention { most, ..op::Attention::decoder(4, 1, 6) };
            let x = b.node("core", Op::Attention(core), &[x, x, x]);
            source(&b.finish(x).unwrap(), "model.safetensors").split("class Net").nth(1).unwrap().to_owned()
        };
        let text = generated(Some(5));
        assert!(text.contains(", causal=True, most=5)"), "{text}");
        assert!(!generated(None).contains("most="));
    }

    #[test]
    fn names_cannot_break_out_of_their_strings() {
        let mut b = Builder::default();
        let x = b.input([3, 8, 8]);
        let x = b.conv("a\"); import os #\n", x, Conv::same(3, 4, 3, 1));
        let x = b.node("pool", Op::GlobalAvgPool, &[x]);
        let graph = b.finish(x).unwrap();
        let text = source(&graph, "model.safetensors");
        let generated = text.split("class Net").nth(1).unwrap();
        assert!(generated.contains(r#"p("a\"); import os #\n.weight")"#), "{generated}");
        assert_eq!(generated.lines().filter(|l| l.contains("import os")).count(), 2, "the parameter and its use");
        assert!(generated.contains("v2 = v1.mean((2, 3))  # pool"));
    }
}
