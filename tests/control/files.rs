//! One file with model, levels and policy: read as it was written, refused by name where it does not fit.

use crate::{by_hand, llama, plans};
use paring::control::{self, CONTROL, Control, Origin, Policy, SIGNALS, Table};
use paring::model::export::{self, Extra, Manifest};
use paring::model::{LoadOptions, Model, load};
use serde_json::{Value, json};
use std::path::Path;

/// Takes the last level after tokens below 48, else the whole network.
pub fn policy(levels: usize) -> Policy {
    let mut weights = vec![vec![0.0; SIGNALS]; levels];
    weights[levels - 1][6] = 1.0;
    weights[1][0] = 50.0;
    let often = (0..96u32).flat_map(|id| [id; 40]);
    let table = Table::of(often.map(|id| (id, 1.0, if id < 48 { 0.0 } else { 9.0 })));
    let times = (0..levels).map(|l| 1.0 - 0.2 * l as f32).collect();
    Policy { weights, price: 4.0, times, entries: Vec::new(), stay: 1.0, table }
}

fn control(model: &Model) -> Control {
    let origin = Origin { target: 0.8, text: "a text".into(), ..Origin::default() };
    let (groups, ladder) = by_hand(model);
    let fits = crate::fitted(model, &groups, &ladder);
    Control::new(model, (ladder, fits), policy(3), origin)
}

/// Writes the small model with levels and a policy.
pub fn written(path: &Path) -> Control {
    let model = llama();
    let control = control(&model);
    control::write(path, &model, &Manifest::default(), &control).unwrap();
    control
}

fn open(path: &Path) -> Model {
    load(path, &LoadOptions::default()).unwrap()
}

#[test]
fn a_file_holds_model_levels_and_policy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("with.safetensors");
    let given = written(&path);
    let model = open(&path);
    let found = control::read(&model).unwrap().unwrap();
    assert_eq!((&found.ladder, &found.policy, &found.origin), (&given.ladder, &given.policy, &given.origin));
    assert!(found.fits == given.fits && !found.fits.is_empty());
    let options = paring::exec::CompileOptions { threads: Some(1), ..Default::default() };
    let x = candle_core::Tensor::from_vec(crate::ids(9), (1, 9), &candle_core::Device::Cpu).unwrap();
    let before = given.plans(&llama(), &options).unwrap();
    for (a, b) in found.plans(&model, &options).unwrap().iter().zip(&before) {
        assert_eq!(crate::flat(&a.run(&x).unwrap()), crate::flat(&b.run(&x).unwrap()));
    }
    // The whole network is as it was; what is narrowed is not as without what was fitted.
    let plain = plans(&llama(), &by_hand(&llama()));
    let same = |l: usize| crate::flat(&before[l].run(&x).unwrap()) == crate::flat(&plain[l].run(&x).unwrap());
    assert_eq!([0, 1].map(same), [true, false]);
    // Written anew, the same bytes.
    let again = dir.path().join("again.safetensors");
    written(&again);
    assert!(std::fs::read(&path).unwrap() == std::fs::read(&again).unwrap());
    // A file without one, and what is no file of ours.
    let plain = dir.path().join("plain.safetensors");
    export::safetensors(&plain, &llama(), &Manifest::default()).unwrap();
    assert!(control::read(&open(&plain)).unwrap().is_none());
    assert!(control::read(&llama()).unwrap().is_none());
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.safetensors");
    let model = llama();
    let good = dir.path().join("good.safetensors");
    written(&good);
    let bytes = export::carried(&good, CONTROL).unwrap().unwrap();
    let end = bytes.iter().position(|b| *b == b'\n').unwrap();
    let good: Value = serde_json::from_slice(&bytes[..end]).unwrap();
    let weights = &bytes[end + 66..];
    // With the hash that belongs to it: what is refused then is refused for what it says.
    let framed = |line: &[u8], weights: &[u8]| {
        let hash = blake3::Hasher::new().update(line).update(weights).finalize().to_hex();
        [line, b"\n", hash.as_bytes(), b"\n", weights].concat()
    };
    assert!(framed(&bytes[..end], weights) == bytes);
    let refused = |bytes: &[u8], words: &str| {
        let extra = Extra { name: CONTROL, bytes };
        export::safetensors_with(&path, &model, &Manifest::default(), &[extra]).unwrap();
        let error = control::read(&open(&path)).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("bad.safetensors") && error.contains("hint: "), "{error}");
        assert!(!error.chars().any(|c| c.is_control()), "{error:?}");
    };
    refused(b"", "damaged");
    refused(b"{\"format\": 1", "damaged");
    refused(b"[1, 2]", "damaged");
    refused(b"{\"format\": 3}", "has format 3, this program knows 2");
    refused(b"{\"format\": 1, \"\x1b[2J\": 3}", "damaged");
    refused(&vec![b'['; 1 << 20], "damaged");
    let changed = |at: &str, value: Value| {
        let mut doc = good.clone();
        *doc.pointer_mut(at).unwrap_or_else(|| panic!("no {at}")) = value;
        framed(&serde_json::to_vec(&doc).unwrap(), weights)
    };
    refused(&changed("/weights", json!("0")), "for other weights");
    refused(&changed("/ladder/levels/1/kept/0", json!(4_000_000_000u32)), "level 1 keeps");
    refused(&changed("/ladder/levels/1/kept/0", json!(-1)), "damaged");
    refused(&changed("/ladder/branches/0/order/0", json!(0xffff_ffffu32)), "name every neuron once");
    refused(&changed("/ladder/branches/0/group", json!("\u{1b}]0;x\u{7}")), "an MLP that the model has not");
    refused(&changed("/policy/weights/0", json!([1.0])), "does not read");
    refused(&changed("/policy/weights", json!([])), "chooses among 0 levels of 3");
    refused(&changed("/policy/weights/0/0", json!(1e30)), "numbers that are none");
    refused(&changed("/policy/price", json!(-1.0)), "numbers that are none");
    refused(&changed("/policy/times/1", json!(0.0)), "numbers that are none");
    refused(&changed("/policy/table/rows", json!([[96, 0, 0]])), "tokens that the vocabulary has not");
    refused(&changed("/policy/table/rows", json!([[3, 0, 0], [2, 0, 0]])), "tokens that the vocabulary has not");
    refused(&changed("/policy/table/rows", json!([[3, 256, 0]])), "damaged");
    refused(&changed("/told/0/kept", json!(5)), "no level keeps 5 neurons");
    refused(&changed("/told/0/kept", json!(0)), "no level keeps 0 neurons");
    refused(&changed("/told/0/group", json!("\u{1b}[2Jx")), "no level keeps");
    refused(&changed("/told/0/param", json!("lm_head.weight")), "is not of what reads");
    refused(&changed("/told/0/shape", json!([1_u64 << 40, 1_u64 << 40])), "has the shape");
    refused(&changed("/told/0/format", json!({ "block": "q4_k" })), "whole blocks");
    refused(&changed("/told/0/format", json!("f16")), "down_proj.weight` has values that are no numbers");
    refused(&changed("/told/0/format", json!("i99")), "damaged");
    refused(&changed("/told", json!([])), "bytes are left over");
    let twice = json!([good["told"][0], good["told"][0]]);
    refused(&changed("/told", twice.clone()), "bytes end within");
    let mut doubled = good.clone();
    doubled["told"] = twice;
    refused(&framed(&serde_json::to_vec(&doubled).unwrap(), &[weights, weights].concat()), "twice");
    refused(&framed(&bytes[..end], &weights[1..]), "bytes end within");
    let mut none = weights.to_vec();
    none[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    refused(&framed(&bytes[..end], &none), "values that are no numbers");
    // A bit of anything is told.
    for at in [end - 9, end + 3, end + 70, bytes.len() - 1] {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        refused(&flipped, "damaged");
    }
    refused(&bytes[..bytes.len() - 1], "not those that were written");
    refused(&bytes[..end], "not those that were written");
    // One of before there were such weights.
    let mut old = good.clone();
    old.as_object_mut().unwrap().remove("told");
    old["format"] = json!(1);
    let extra = Extra { name: CONTROL, bytes: &serde_json::to_vec(&old).unwrap() };
    export::safetensors_with(&path, &model, &Manifest::default(), &[extra]).unwrap();
    assert!(control::read(&open(&path)).unwrap().unwrap().fits.is_empty());
    // As it was, it is taken.
    let extra = Extra { name: CONTROL, bytes: &bytes };
    export::safetensors_with(&path, &model, &Manifest::default(), &[extra]).unwrap();
    assert!(control::read(&open(&path)).unwrap().is_some());
}
