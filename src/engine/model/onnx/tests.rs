//! The importer on files written here message by message: errors name everything, encodings of tensors are all read,
//! external data stays inside the folder, old and new spellings of operators mean the same.

use super::proto::*;
use crate::graph::{Activation, Op, op};
use crate::model::{LoadOptions, Model, Result, load, load_bytes};
use prost::Message;

fn node(op: &str, name: &str, ins: &[&str], out: &str, attribute: Vec<AttributeProto>) -> NodeProto {
    NodeProto {
        op_type: Some(op.into()),
        name: Some(name.into()),
        input: ins.iter().map(|s| (*s).to_owned()).collect(),
        output: vec![out.to_owned()],
        attribute,
        ..Default::default()
    }
}

fn ints(name: &str, v: &[i64]) -> AttributeProto {
    AttributeProto { name: Some(name.into()), ints: v.to_vec(), ..Default::default() }
}

fn weights(name: &str, dims: &[i64]) -> TensorProto {
    let n: i64 = dims.iter().product();
    TensorProto {
        name: Some(name.into()),
        dims: dims.to_vec(),
        data_type: Some(data_type::FLOAT),
        float_data: (0..n).map(|i| i as f32 * 0.25 - 1.0).collect(),
        ..Default::default()
    }
}

fn int64s(name: &str, v: &[i64]) -> TensorProto {
    TensorProto {
        name: Some(name.into()),
        dims: vec![v.len() as i64],
        data_type: Some(data_type::INT64),
        int64_data: v.to_vec(),
        ..Default::default()
    }
}

fn io(name: &str, dims: &[i64]) -> ValueInfoProto {
    let dim = |&d: &i64| match d {
        0 => DimensionProto { dim_param: Some("N".into()), dim_value: None },
        d => DimensionProto { dim_value: Some(d), dim_param: None },
    };
    let shape = Some(TensorShapeProto { dim: dims.iter().map(dim).collect() });
    let tensor_type = Some(TensorTypeProto { elem_type: Some(data_type::FLOAT), shape });
    ValueInfoProto { name: Some(name.into()), r#type: Some(TypeProto { tensor_type }) }
}

/// A classifier of `[N, 2, 4, 4]` images: `nodes` lead from `x` to `y` `[N, 2]`.
fn model(opset: i64, nodes: Vec<NodeProto>, initializer: Vec<TensorProto>) -> ModelProto {
    ModelProto {
        ir_version: Some(8),
        producer_name: Some("test".into()),
        opset_import: vec![OperatorSetIdProto { domain: None, version: Some(opset) }],
        graph: Some(GraphProto {
            node: nodes,
            initializer,
            input: vec![io("x", &[0, 2, 4, 4])],
            output: vec![io("y", &[0, 2])],
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn open(m: &ModelProto) -> Result<Model> {
    load_bytes("test", Vec::leak(m.encode_to_vec()), &LoadOptions::default())
}

fn refused(m: &ModelProto, words: &[&str]) {
    let error = open(m).expect_err("must be refused").to_string();
    for word in words.iter().chain(&["hint: "]) {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
}

/// Global pooling of `from` and a linear layer to `y`.
fn head(from: &str) -> Vec<NodeProto> {
    vec![
        node("GlobalAveragePool", "pool", &[from], "p", vec![]),
        node("Flatten", "flat", &["p"], "f", vec![]),
        node("Gemm", "fc", &["f", "fc.weight"], "y", vec![]),
    ]
}

#[test]
fn every_unsupported_operator_is_told_with_its_nodes() {
    let mut nodes = vec![
        node("Elu", "a\u{1b}[2J", &["x"], "a", vec![]),
        node("Elu", "b", &["x"], "b", vec![]),
        node("DeformConv", "c", &["x"], "c", vec![]),
        NodeProto { domain: Some("com.acme".into()), ..node("Magic", "d", &["x"], "d", vec![]) },
        node("Sum", "s", &["a", "b", "c", "d"], "s", vec![]),
    ];
    nodes.extend(head("s"));
    let m = model(17, nodes, vec![weights("fc.weight", &[2, 2])]);
    refused(&m, &["`Elu` (at `a\\u{1b}[2J`, `b`)", "`DeformConv` (at `c`)", "`com.acme::Magic` (at `d`)"]);
    // What the output does not need does not matter.
    let mut nodes = vec![node("Elu", "unused", &["x"], "a", vec![])];
    nodes.extend(head("x"));
    assert!(open(&model(17, nodes, vec![weights("fc.weight", &[2, 2])])).is_ok());
}

#[test]
fn damage_is_named() {
    let fine = || model(17, head("x"), vec![weights("fc.weight", &[2, 2])]);
    assert!(open(&fine()).is_ok());
    type Damage = fn(&mut ModelProto, &mut GraphProto);
    let cases: [(Damage, &str); 9] = [
        (|m, _| m.opset_import.clear(), "no operator set"),
        (|m, _| m.opset_import[0].version = Some(99), "operator set is 99"),
        (|_, g| g.initializer[0].float_data.truncate(3), "holds 3 values where its shape [2, 2] needs 4"),
        (|_, g| g.initializer[0].dims = vec![i64::MAX, i64::MAX, 4], "has the shape"),
        (|_, g| g.initializer[0].data_type = Some(8), "data type 8"),
        (|_, g| g.initializer[0].float_data[1] = f32::NAN, "NaN"),
        (|_, g| g.node.reverse(), "not in order"),
        (|_, g| g.output[0].name = Some("nowhere".into()), "nothing writes its output `nowhere`"),
        (|_, g| g.input.push(io("second", &[1])), "more than one input"),
    ];
    for (damage, words) in cases {
        let mut m = fine();
        let mut g = m.graph.take().unwrap();
        damage(&mut m, &mut g);
        m.graph = Some(g);
        refused(&m, &[words]);
    }
}

#[test]
fn weights_are_read_in_every_encoding() {
    let want = vec![1.0f32, -0.5, 0.25, 2.0];
    let typed = |kind| TensorProto { float_data: vec![], data_type: Some(kind), ..weights("fc.weight", &[2, 2]) };
    let raw = |kind, bytes: Vec<u8>| TensorProto { raw_data: Some(bytes.into()), ..typed(kind) };
    let half = |v: &f32| half::f16::from_f32(*v);
    let bf = |v: &f32| half::bf16::from_f32(*v);
    let cases = vec![
        TensorProto { float_data: want.clone(), ..weights("fc.weight", &[2, 2]) },
        raw(data_type::FLOAT, want.iter().flat_map(|v| v.to_le_bytes()).collect()),
        raw(data_type::DOUBLE, want.iter().flat_map(|v| f64::from(*v).to_le_bytes()).collect()),
        raw(data_type::FLOAT16, want.iter().flat_map(|v| half(v).to_le_bytes()).collect()),
        raw(data_type::BFLOAT16, want.iter().flat_map(|v| bf(v).to_le_bytes()).collect()),
        TensorProto { double_data: want.iter().map(|v| f64::from(*v)).collect(), ..typed(data_type::DOUBLE) },
        TensorProto {
            int32_data: want.iter().map(|v| i32::from(half(v).to_bits())).collect(),
            ..typed(data_type::FLOAT16)
        },
    ];
    for tensor in cases {
        let m = open(&model(17, head("x"), vec![tensor])).unwrap();
        // Gemm without transB: our layout is its transpose.
        assert_eq!(*m.params.get("fc.weight").unwrap().values(), [want[0], want[2], want[1], want[3]]);
    }
}

#[test]
fn external_data_stays_inside_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let bytes: Vec<u8> = [9f32, 1.0, 2.0, 3.0, 4.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(inner.join("w.bin"), &bytes).unwrap();
    std::fs::write(dir.path().join("w.bin"), &bytes).unwrap();
    std::os::unix::fs::symlink(dir.path().join("w.bin"), inner.join("link.bin")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(inner.join("pipe.bin")).status().unwrap().success());
    let write = |entries: &[(&str, &str)]| {
        let entry = |(k, v): &(&str, &str)| StringStringEntryProto { key: Some((*k).into()), value: Some((*v).into()) };
        let tensor = TensorProto {
            float_data: vec![],
            data_location: Some(1),
            external_data: entries.iter().map(entry).collect(),
            ..weights("fc.weight", &[2, 2])
        };
        std::fs::write(inner.join("m.onnx"), model(17, head("x"), vec![tensor]).encode_to_vec()).unwrap();
        load(&inner.join("m.onnx"), &LoadOptions::default())
    };
    let m = write(&[("location", "w.bin"), ("offset", "4"), ("length", "16")]).unwrap();
    assert_eq!(*m.params.get("fc.weight").unwrap().values(), [1.0, 3.0, 2.0, 4.0]);
    for (entries, words) in [
        (&[("location", "../w.bin"), ("offset", "4")][..], "no path inside"),
        (&[("location", "link.bin"), ("offset", "4")], "no path inside"),
        (&[("location", "/etc/passwd")], "no path inside"),
        (&[("location", "")], "no path inside"),
        (&[("location", "gone.bin")], "`gone.bin`"),
        (&[("location", "pipe.bin")], "a pipe"),
        (&[("location", "w.bin"), ("offset", "8"), ("length", "16")], "past the end"),
        (&[("location", "w.bin"), ("offset", "18446744073709551615"), ("length", "16")], "past the end"),
        (&[("location", "w.bin"), ("offset", "-4")], "no number"),
    ] {
        let error = write(entries).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("hint: "), "{error}");
    }
}

/// `Clip` with attributes (opset 6) and inputs (11), `Squeeze`/`ReduceMean` with either, `Pad` before a convolution.
#[test]
fn old_and_new_spellings_mean_the_same() {
    let float = |name: &str, f: f32| AttributeProto { name: Some(name.into()), f: Some(f), ..Default::default() };
    let scalar = |name: &str, v: f32| TensorProto { dims: vec![], float_data: vec![v], ..weights(name, &[1]) };
    let conv = |from: &str| node("Conv", "c", &[from, "c.weight"], "c", vec![ints("strides", &[2, 2])]);
    let gemm = || node("Gemm", "fc", &["f", "fc.weight"], "y", vec![]);
    let parameters = || vec![weights("c.weight", &[2, 2, 3, 3]), weights("fc.weight", &[2, 2])];
    let old = vec![
        node("Pad", "pad", &["x"], "x0", vec![ints("pads", &[0, 0, 0, 0, 0, 0, 1, 1])]),
        conv("x0"),
        node("Clip", "clip", &["c"], "r", vec![float("min", 0.0), float("max", 6.0)]),
        node("ReduceMean", "mean", &["r"], "m", vec![ints("axes", &[2, 3])]),
        node("Squeeze", "squeeze", &["m"], "f", vec![ints("axes", &[2, 3])]),
        gemm(),
    ];
    let new = vec![
        node("Pad", "pad", &["x", "pads"], "x0", vec![]),
        conv("x0"),
        node("Clip", "clip", &["c", "zero", "six"], "r", vec![]),
        node("ReduceMean", "mean", &["r", "axes"], "m", vec![]),
        node("Squeeze", "squeeze", &["m", "axes"], "f", vec![]),
        gemm(),
    ];
    let more = [
        parameters(),
        vec![
            int64s("pads", &[0, 0, 0, 0, 0, 0, 1, 1]),
            int64s("axes", &[2, 3]),
            scalar("zero", 0.0),
            scalar("six", 6.0),
        ],
    ];
    let old = open(&model(9, old, parameters())).unwrap();
    let new = open(&model(18, new, more.concat())).unwrap();
    assert_eq!(old.graph, new.graph);
    assert_eq!(old.info.hash, new.info.hash);
    let ops: Vec<&Op> = old.graph.nodes.iter().map(|n| &n.op).collect();
    assert!(matches!(ops[1], Op::Conv2d(op::Conv2d { padding: [0, 0, 1, 1], stride: [2, 2], .. })), "{ops:?}");
    assert!(matches!(ops[2], Op::Activation { act: Activation::Relu6 }), "{ops:?}");
    assert!(matches!(ops[3], Op::GlobalAvgPool), "{ops:?}");
}

/// A file whose few bytes ask for a lot of work or memory is refused soon.
#[test]
fn small_files_cannot_ask_for_much() {
    // Constants that double forever.
    let mut nodes = Vec::new();
    let mut last = "c".to_owned();
    for i in 0..64 {
        let next = format!("c{i}");
        let axis = AttributeProto { name: Some("axis".into()), i: Some(0), ..Default::default() };
        nodes.push(node("Concat", &next, &[&last, &last], &next, vec![axis]));
        last = next;
    }
    nodes.push(node("Add", "add", &["x", &last], "s", vec![]));
    nodes.extend(head("s"));
    let m = model(17, nodes, vec![weights("c", &[4]), weights("fc.weight", &[2, 2])]);
    refused(&m, &["`Concat`"]);
    // A formula that doubles forever.
    let mut nodes = vec![node("Sigmoid", "s0", &["x"], "e0", vec![])];
    for i in 0..64 {
        nodes.push(node("Mul", "m", &[&format!("e{i}"), &format!("e{i}")], &format!("e{}", i + 1), vec![]));
    }
    nodes.extend(head("e64"));
    let m = open(&model(17, nodes, vec![weights("fc.weight", &[2, 2])])).unwrap();
    assert!(m.graph.nodes.len() < 80);
}

/// No operator has the number of tokens as a constant where it is free, and ids are whole numbers.
#[test]
fn free_tokens_stay_free_in_what_is_written() {
    use crate::graph::{Builder, least, shapes_at};
    let mut b = Builder::default();
    let x = b.input_of(op::Input::ids(50));
    let x = b.embedding("embed", x, 50, 8);
    let x = b.node("token", Op::PrependTokens(op::PrependTokens { count: 1, dim: 8, at: 1 }), &[x]);
    let x = b.linear("qkv", x, 8, 24, true);
    let x = b.node("core", Op::attention(2, 4, 4, true, 0.5), &[x]);
    let tokens = b.linear("out", x, 8, 6, true);
    let mean = b.node("mean", Op::MeanTokens(op::MeanTokens { skip: 2 }), &[tokens]);
    for (output, dims) in [(tokens, &["N", "tokens", "6"][..]), (mean, &["N", "6"])] {
        let mut graph = b.clone().finish(output).unwrap();
        graph.output = output;
        let params = crate::model::random_params(&graph, 1);
        let shapes = shapes_at(&graph, least(&graph).unwrap()).unwrap();
        let made = super::write::model(&graph, &shapes, &params, &Default::default(), &[]).unwrap().graph.unwrap();
        let words = |v: &ValueInfoProto| -> (i32, Vec<String>) {
            let t = v.r#type.clone().unwrap().tensor_type.unwrap();
            let dim = |d: DimensionProto| d.dim_param.unwrap_or_else(|| d.dim_value.unwrap().to_string());
            (t.elem_type.unwrap(), t.shape.unwrap().dim.into_iter().map(dim).collect())
        };
        assert_eq!(words(&made.input[0]), (data_type::INT64, vec!["N".to_owned(), "tokens".to_owned()]));
        assert_eq!(words(&made.output[0]).1, dims);
        let gather = made.node.iter().find(|n| n.output == ["/embed"]).unwrap();
        assert_eq!(gather.op_type.as_deref(), Some("Gather"));
        assert_eq!(gather.input, ["embed.weight", "input"]);
        for node in made.node.iter().filter(|n| n.op_type.as_deref() == Some("Reshape")) {
            let to = made.initializer.iter().find(|t| t.name.as_ref() == node.input.get(1)).unwrap();
            let to: Vec<i64> =
                to.raw_data.as_ref().unwrap().chunks(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).collect();
            assert_eq!(to[..2], [0, -1], "{node:?}");
        }
    }
}
