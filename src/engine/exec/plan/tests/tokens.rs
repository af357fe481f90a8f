//! Plans of graphs that leave the number of tokens free, against plans of the same graph with that number fixed.

use super::*;
use crate::exec::{Every, Kernels, rows};
use crate::graph::op::{self, Dim, Input, InputType};
use crate::graph::{Builder, Range, Windows};
use crate::model::{ParamStore, random_params};

const VOCAB: usize = 37;
const WIDTH: usize = 20;

/// A block of a language model in small, with everything that counts tokens: ids or floats → attention → gate → mean.
/// With `tokens` their number is fixed.
fn graph(ids: bool, tokens: Option<usize>) -> Graph {
    let free = if ids { Input::ids(VOCAB) } else { Input::tokens(WIDTH) };
    let bound = |d: &Dim| tokens.filter(|_| *d == Dim::Tokens).map_or(*d, Dim::Fixed);
    let mut b = Builder::default();
    let x = b.input_of(Input { dims: free.dims.iter().map(bound).collect(), ..free });
    let x = if ids { b.embedding("embed", x, VOCAB, WIDTH) } else { x };
    let up = b.linear("up", x, WIDTH, WIDTH, true);
    let norm = b.layer_norm("norm", up, WIDTH, 1e-5);
    let qkv = b.linear("qkv", norm, WIDTH, 3 * WIDTH, true);
    let core = b.node("core", Op::attention(2, WIDTH / 2, WIDTH / 2, true, 0.3), &[qkv]);
    let x = b.add("add", core, up);
    let map = (0..WIDTH as u32).map(|i| (i % 3 > 0).then_some(i / 2)).collect();
    let x = b.node("map", Op::ChannelPad(op::ChannelPad { stride: 1, in_ch: WIDTH, map }), &[x]);
    let x = b.node("token", Op::PrependTokens(op::PrependTokens { count: 1, dim: WIDTH, at: 0 }), &[x]);
    let gate = b.node("select", Op::SelectToken(op::SelectToken { index: 2 }), &[x]);
    let x = b.node("gate", Op::Mul, &[x, gate]);
    let x = b.act("act", x, crate::graph::Activation::GeluErf);
    let both = b.node("both", Op::Concat(op::Concat { inputs: 2 }), &[x, x]);
    let x = b.node("mean", Op::MeanTokens(op::MeanTokens { skip: 1 }), &[both]);
    let x = b.linear("head", x, 2 * WIDTH, 5, true);
    b.finish(x).unwrap()
}

fn batch(ids: bool, n: usize, t: usize) -> Tensor {
    if ids {
        let ids: Vec<u32> = (0..n * t).map(|i| (i * 11 % VOCAB) as u32).collect();
        return Tensor::from_vec(ids, (n, t), &Device::Cpu).unwrap();
    }
    Tensor::from_vec(crate::exec::kernel::noise(n * t * WIDTH, t as u64), (n, t, WIDTH), &Device::Cpu).unwrap()
}

fn precision(graph: &Graph, p: Precision) -> Precisions {
    let mut plan = everywhere(graph, p);
    if p == Precision::Int8Static {
        plan.inputs = plan.nodes.keys().map(|n| (n.clone(), Range { lo: -2.3, hi: 2.9 })).collect();
    }
    plan
}

#[test]
fn one_plan_runs_every_length_as_a_plan_of_that_length_does() {
    for ids in [true, false] {
        let free = graph(ids, None);
        let params = random_params(&free, 3);
        for p in [Precision::F32, Precision::Int8, Precision::Int8Static] {
            let precision = precision(&free, p);
            let all: Vec<&str> = free.nodes.iter().map(|n| n.name.as_str()).collect();
            for (threads, keep) in [(1, false), (3, false), (2, true)] {
                let options = if keep { options(threads).keeping(all.iter().copied()) } else { options(threads) };
                let compile = |g: &Graph| Plan::compile(g, &params, &precision, &options).unwrap();
                let plan = compile(&free);
                let mut session = plan.session();
                // There and back, so that kept sizes and arenas are used again.
                for t in [3, 7, 12, 7, 3, 40] {
                    let fixed = compile(&graph(ids, Some(t)));
                    let kernels = |p: &Plan| p.steps().iter().map(|s| s.kernel.clone()).collect::<Vec<_>>();
                    assert_eq!(kernels(&plan), kernels(&fixed));
                    for n in [1, 2, 9] {
                        let x = batch(ids, n, t);
                        let (got, want) = (session.run(&x).unwrap(), fixed.run(&x).unwrap());
                        assert_eq!(flat(&got), flat(&want), "{p:?}, {n} of {t} tokens, {threads} threads");
                        if keep {
                            let (_, got) = session.capture(&x, &all).unwrap();
                            let (_, want) = fixed.session().capture(&x, &all).unwrap();
                            for name in &all {
                                assert_eq!(got[*name].dims(), want[*name].dims(), "{name}");
                                assert_eq!(flat(&got[*name]), flat(&want[*name]), "{name}");
                            }
                        }
                    }
                    let memory = plan.memory_at(crate::graph::Binding::tokens(t)).unwrap();
                    assert_eq!(memory, fixed.memory());
                }
            }
        }
    }
}

#[test]
fn candle_runs_every_length_too() {
    for ids in [true, false] {
        let free = graph(ids, None);
        let params = random_params(&free, 3);
        let compile = |o: &CompileOptions| Plan::compile(&free, &params, &Precisions::default(), o).unwrap();
        let cpu = compile(&options(2));
        let tensors = compile(&CompileOptions { kernels: Kernels::Tensors, ..options(2) });
        let map = candle::tensors(&params, &Device::Cpu).unwrap();
        for t in [3, 7, 12] {
            let x = batch(ids, 2, t);
            let want = candle::forward(&free, &map, &x, Mode::Eval, &mut Capture::none()).unwrap();
            assert!(apart(&cpu.run(&x).unwrap(), &want) < 2e-5);
            assert!(apart(&tensors.run(&x).unwrap(), &want) < 2e-5);
        }
    }
}

#[test]
fn cuts_and_observers_go_by_the_batch_at_hand() {
    let free = graph(true, None);
    let params = random_params(&free, 3);
    let compile = |g: &Graph| Plan::compile(g, &params, &Precisions::default(), &options(1)).unwrap();
    let plan = compile(&free);
    let mut session = plan.session();
    for t in [5, 9] {
        let (x, fixed) = (batch(true, 2, t), compile(&graph(true, Some(t))));
        let want = flat(&session.run(&x).unwrap());
        for node in ["embed", "qkv", "gate", "head"] {
            let live = session.run_to(&x, &plan.cut_before(node).unwrap()).unwrap();
            assert_eq!(flat(&session.run_from(&live).unwrap()), want, "{node}");
        }
        let (mut got, mut wanted) = (Seen::default(), Seen::default());
        session.run_observed(&x, &mut got).unwrap();
        fixed.session().run_observed(&x, &mut wanted).unwrap();
        assert_eq!(got.steps, wanted.steps);
    }
    assert!(plan.memory().activations.is_none());
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let free = graph(true, None);
    let params = random_params(&free, 3);
    let compile = |g: &Graph, params: &ParamStore, o: &CompileOptions| {
        Plan::compile(g, params, &Precisions::default(), o).unwrap()
    };
    let plan = compile(&free, &params, &options(1));
    let ids = |v: Vec<i64>| Tensor::from_vec(v, (2, 3), &Device::Cpu).unwrap();
    let good = plan.run(&ids(vec![0, 1, 2, 3, 4, 36])).unwrap();
    assert_eq!(good.dims(), [2, 5]);
    for (bad, words) in [
        (ids(vec![0, 1, 2, 3, 4, 37]), "the token id 37 (token 2 of sequence 1), but its vocabulary has 37"),
        (ids(vec![0, -1, 2, 3, 4, 5]), "the token id -1 (token 1 of sequence 0)"),
        (batch(false, 2, 3), "expected [N, tokens]"),
        (
            Tensor::zeros((2, 3), candle_core::DType::F32, &Device::Cpu).unwrap(),
            "takes token ids, not values of type f32",
        ),
        // `select` needs three tokens after one was put before them.
        (batch(true, 2, 1), "`select`"),
        (batch(true, 2, 0), "would be empty"),
    ] {
        let error = plan.run(&bad).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        let map = candle::tensors(&params, &Device::Cpu).unwrap();
        assert!(candle::forward(&free, &map, &bad, Mode::Eval, &mut Capture::none()).is_err(), "{words}");
    }
    let unbound = graph_error(plan.memory_at(Default::default()).unwrap_err());
    assert!(unbound.contains("`input` takes any number of tokens"), "{unbound}");

    // Windows fix the number of tokens: every backend says so.
    let mut b = Builder::default();
    let x = b.input_of(Input::tokens(8));
    let windows = Some(Windows { grid: [2, 4], size: [2, 2], shift: [0, 1] });
    let core = op::Attention { windows, ..op::Attention::plain(2, 4, 4, false, 0.5) };
    let x = b.node("windows", Op::Attention(core), &[x, x, x]);
    let x = b.node("mean", Op::MeanTokens(op::MeanTokens { skip: 0 }), &[x]);
    let g = b.finish(x).unwrap();
    for kernels in [Kernels::Device, Kernels::Tensors] {
        let plan = compile(&g, &ParamStore::default(), &CompileOptions { kernels, ..options(1) });
        let x = |t: usize| Tensor::zeros((2, t, 8), candle_core::DType::F32, &Device::Cpu).unwrap();
        assert_eq!(plan.run(&x(8)).unwrap().dims(), [2, 8]);
        let error = plan.run(&x(16)).unwrap_err().to_string();
        assert!(error.contains("`windows`") && error.contains("does not have 16 tokens"), "{error}");
    }
}

fn graph_error(e: ExecError) -> String {
    assert!(matches!(e, ExecError::Graph(_)), "{e}");
    e.to_string()
}

/// What is fixed stays as it was: one binding, and inputs that say nothing of tokens.
#[test]
fn ids_of_a_fixed_number_need_no_binding() {
    let g = graph(true, Some(6));
    assert_eq!(g.input_shape(), Ok(vec![6]));
    assert_eq!(g.input().map(|(_, i)| i.dtype), Some(InputType::Ids { vocab: VOCAB }));
    let plan = Plan::compile(&g, &random_params(&g, 3), &Precisions::default(), &options(1)).unwrap();
    assert!(plan.memory().activations.is_some());
    let error = plan.run(&batch(true, 1, 7)).unwrap_err().to_string();
    assert!(error.contains("expected [N, 6]"), "{error}");
}

#[test]
fn some_tokens_rows_are_those_of_all() {
    let dims = LlamaDims { vocab: 50, dim: 16, layers: 2, heads: 4, kv_heads: 2, head_dim: 4, hidden: 24 };
    let model = random(&FamilySpec::Llama(DecoderSpec::llama(dims)), 3);
    let x = Tensor::from_vec((0..2 * 11u32).map(|i| i * i % 50).collect(), (2, 11), &Device::Cpu).unwrap();
    for kernels in [Kernels::Device, Kernels::Tensors] {
        let plan = Plan::of(&model, &CompileOptions { kernels, ..options(2) }).unwrap();
        let mut session = plan.session();
        let whole = session.run(&x).unwrap();
        for node in &model.graph.nodes {
            let live = session.run_to(&x, &plan.cut_before(&node.name).unwrap()).unwrap();
            for every in [1, 4, 11] {
                let after = (every == 4).then(|| model.graph.by_name(&node.name)).flatten();
                let some = session.run_from_every(&live, Every { every, after }).unwrap();
                assert_eq!(some.dims(), [2, 11 / every, 50]);
                let off = apart(&some, &rows(&whole, every).unwrap());
                assert!(off < 1e-6, "{kernels:?} `{}` {every}: {off}", node.name);
            }
            assert!(
                session.run_from_every(&live, Every { every: 12, after: None }).is_err(),
                "more tokens than there are"
            );
        }
    }
    // Of one length and no other, nothing can be left out.
    let mut bound = model.clone();
    bound.graph = std::sync::Arc::new(Graph::clone(&model.graph).bound(11));
    let plan = Plan::of(&bound, &options(1)).unwrap();
    let live =
        plan.session().run_to(&x, &plan.cut_before(&bound.graph.node(bound.graph.output).name).unwrap()).unwrap();
    let said = plan.session().run_from_every(&live, Every { every: 4, after: None }).unwrap_err().to_string();
    assert!(said.contains("fixed length"), "{said}");
}
