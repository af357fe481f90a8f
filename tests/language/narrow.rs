//! Networks whose files store matrices in two bytes a value: what is counted, what is written, and what a cut leaves of them. Tables of
//! embeddings above all, for which nobody decides a precision.

use super::{apart, compile, cut, flat, folder, ids, open};
use paring::exec::{CompileOptions, Kernels, Plan};
use paring::model::export::{self, Manifest};
use paring::model::{Model, Param};
use paring::prune::{self, GroupKind};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The network of `from` with its matrices in `dtype`, as a directory at `to`.
fn narrowed(from: &str, dtype: &str, to: &Path) -> Model {
    let from = folder().join(from);
    std::fs::create_dir(to).unwrap();
    std::fs::copy(from.join("config.json"), to.join("config.json")).unwrap();
    let bits = |v: &f32| match dtype {
        "F16" => half::f16::from_f32(*v).to_le_bytes(),
        _ => half::bf16::from_f32(*v).to_le_bytes(),
    };
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, param) in open(&from).params.iter() {
        let at = data.len();
        let matrix = param.shape().len() > 1;
        match matrix {
            true => data.extend(param.values().iter().flat_map(bits)),
            false => data.extend(param.values().iter().flat_map(|v| v.to_le_bytes())),
        }
        let dtype = if matrix { dtype } else { "F32" };
        let entry = json!({ "dtype": dtype, "shape": param.shape(), "data_offsets": [at, data.len()] });
        header.insert(name.to_owned(), entry);
    }
    let header = Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    std::fs::write(to.join("model.safetensors"), file).unwrap();
    open(to)
}

/// The bytes of each type of tensor in a safetensors file.
fn bytes_of(file: &Path) -> BTreeMap<String, u64> {
    let all = std::fs::read(file).unwrap();
    let len = u64::from_le_bytes(all[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&all[8..8 + len]).unwrap();
    let mut found = BTreeMap::new();
    for (_, entry) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let [from, to] = [0, 1].map(|i| entry["data_offsets"][i].as_u64().unwrap());
        *found.entry(entry["dtype"].as_str().unwrap().to_owned()).or_default() += to - from;
    }
    found
}

/// What is counted of `model` by every way of computing it, and what its file has, is `want` bytes of each type.
fn counts(model: &Model, want: [(&str, u64); 2]) {
    let all: u64 = want.iter().map(|(_, bytes)| bytes).sum();
    for kernels in [Kernels::Device, Kernels::Tensors] {
        for as_stored in [false, true] {
            let options = CompileOptions { kernels, as_stored, ..CompileOptions::default() };
            assert_eq!(Plan::of(model, &options).unwrap().weight_bytes(), all, "{kernels:?} {as_stored}");
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("out.safetensors");
    export::safetensors(&file, model, &Manifest::default()).unwrap();
    let mut found = bytes_of(&file);
    // What the original said travels with it.
    found.remove("U8");
    assert_eq!(found, want.map(|(dtype, bytes)| (dtype.to_owned(), bytes)).into());
    let again = open(&file);
    assert_eq!(flat(&compile(&again).run(&ids()).unwrap()), flat(&compile(model).run(&ids()).unwrap()));
    assert_eq!(compile(&again).weight_bytes(), all);
}

/// Values of matrices and of vectors.
fn values(model: &Model) -> [u64; 2] {
    let of = |matrix: bool| model.params.iter().filter(move |(_, p)| (p.shape().len() > 1) == matrix);
    [true, false].map(|m| of(m).map(|(_, p)| p.values().len() as u64).sum())
}

#[test]
fn tables_are_counted_and_written_as_their_file_has_them() {
    let dir = tempfile::tempdir().unwrap();
    for dtype in ["F16", "BF16"] {
        for from in ["llama_untied", "llama"] {
            let model = narrowed(from, dtype, &dir.path().join(format!("{from}-{dtype}")));
            let [matrices, vectors] = values(&model);
            counts(&model, [(dtype, 2 * matrices), ("F32", 4 * vectors)]);
            // What is read of a table as it lies is what its unpacked values are. (The tensor library multiplies halves in halves.)
            let stored = Plan::of(&model, &CompileOptions { as_stored: true, ..CompileOptions::default() }).unwrap();
            let wide = open(&folder().join(from));
            let mut unpacked = model.clone();
            unpacked.precision = wide.precision.clone();
            for (name, param) in model.params.iter() {
                unpacked
                    .params
                    .insert(name, Param::owned(param.shape().to_vec(), param.values().into_owned()).unwrap());
            }
            let plans = [compile(&model), stored, compile(&unpacked)];
            let [a, b, c] = plans.map(|plan| flat(&plan.run(&ids()).unwrap()));
            assert!(apart(&a, &b) < 1e-4 && apart(&a, &c) < 1e-5, "{from} {dtype}");
            let groups = prune::groups(&model.graph);
            let neurons = groups.iter().find(|g| g.kind == GroupKind::Neurons).unwrap();
            let small = cut(&model, &[(&neurons.id, neurons.size / 2)]);
            let [matrices, vectors] = values(&small);
            counts(&small, [(dtype, 2 * matrices), ("F32", 4 * vectors)]);
        }
    }
}
