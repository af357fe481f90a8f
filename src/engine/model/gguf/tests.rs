//! The container against the `gguf` package's files, and against damage.

use super::read;
use crate::model::checkpoint::{Checkpoint, RawTensor};
use crate::model::ggml::Block;
use crate::model::{Blob, LoadOptions, Param, load_bytes};
use proptest::prelude::*;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/language").join(name)
}

fn open(bytes: Vec<u8>) -> Result<Checkpoint, String> {
    read(&Blob::Owned(bytes.into()), Path::new("test.gguf")).map_err(|e| e.to_string())
}

/// Every format that is only read, random bits: the bits of values that the `gguf` package decodes.
#[test]
fn formats_that_are_only_read_decode_to_the_bits_of_the_package() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/blocks/coded.gguf");
    let found = read(&Blob::open(&path).unwrap(), &path).unwrap();
    let tensor = |name: &str| match &found.tensors[name] {
        RawTensor::Float(p) => p.clone(),
        other => panic!("{name}: {other:?}"),
    };
    for code in crate::model::ggml::Coded::ALL {
        let (own, want) = (tensor(code.label()), tensor(&format!("{}.values", code.label())));
        assert_eq!(own.shape(), [2, 512]);
        assert_eq!(own.stored_bytes(), 1024 / code.values() as u64 * code.size() as u64);
        let bits = |p: &Param| p.values().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        let (a, b) = (bits(&own), bits(&want));
        // A zero has either sign.
        let same = |(a, b): (&u32, &u32)| a == b || (a | b) & 0x7fff_ffff == 0;
        assert!(a.iter().zip(&b).all(same), "{}", code.label());
        assert!(b.iter().filter(|v| **v & 0x7fff_ffff != 0).count() > 400, "{}", code.label());
        // A row is a view of its own blocks.
        assert_eq!(bits(&own.rows(1..2).unwrap()), a[512..], "{}", code.label());
    }
}

#[test]
fn every_block_format_decodes_to_the_packages_bits() {
    let blob = Blob::open(&fixture("blocks.gguf")).unwrap();
    let found = read(&blob, Path::new("blocks.gguf")).unwrap();
    let values = |name: &str| match &found.tensors[name] {
        RawTensor::Float(p) => (p.shape().to_vec(), p.values().iter().map(|v| v.to_bits()).collect::<Vec<u32>>()),
        other => panic!("{name}: {other:?}"),
    };
    let formats: Vec<&String> = found.tensors.keys().filter(|n| !n.ends_with(".f32")).collect();
    assert_eq!(formats.len(), 14);
    for name in formats {
        let ((shape, ours), theirs) = (values(name), values(&format!("{name}.f32")));
        assert!(ours.len() >= 64 && ours.iter().any(|v| *v != ours[0]), "{name}");
        assert_eq!((shape, ours), theirs, "{name}");
    }
}

#[test]
fn rows_of_blocks_stay_in_the_file_where_they_begin_with_one() {
    let blob = Blob::open(&fixture("blocks.gguf")).unwrap();
    let found = read(&blob, Path::new("blocks.gguf")).unwrap();
    for name in ["Q4_0", "Q4_K", "Q6_K", "BF16"] {
        let RawTensor::Float(p) = &found.tensors[name] else { panic!("{name}") };
        let (half, second) = (p.numel() / 2, p.rows(1..2).unwrap());
        assert_eq!(second.values()[..], p.values()[half..], "{name}");
        assert_eq!(2 * second.stored_bytes(), p.stored_bytes(), "{name}");
        let narrow = p.reshaped(vec![p.numel() / 16, 16]).unwrap();
        assert_eq!(narrow.rows(1..3).is_some(), name == "BF16", "{name}");
    }
}

#[test]
fn every_block_format_is_encoded_to_ggmls_bytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/blocks/encoded.gguf");
    let found = read(&Blob::open(&path).unwrap(), &path).unwrap();
    let tensor = |name: &str| match &found.tensors[name] {
        RawTensor::Float(p) => p,
        other => panic!("{name}: {other:?}"),
    };
    let (values, columns) = (tensor("values").values(), tensor("values").shape()[1]);
    let mut wrong = Vec::new();
    for block in Block::ALL {
        let (stored, theirs) = tensor(block.label()).as_blocks().unwrap();
        let ours = block.encode(&values);
        assert_eq!((stored, ours.len()), (block, theirs.len()));
        let row = columns / block.values() * block.size();
        let rows = ours.chunks(row).zip(theirs.chunks(row)).enumerate();
        wrong.extend(rows.filter(|(_, (a, b))| a != b).map(|(r, _)| format!("{} row {r}", block.label())));
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn every_block_format_is_encoded_by_importance_to_ggmls_bytes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/blocks/weighted.gguf");
    let found = read(&Blob::open(&path).unwrap(), &path).unwrap();
    let tensor = |name: &str| match &found.tensors[name] {
        RawTensor::Float(p) => p,
        other => panic!("{name}: {other:?}"),
    };
    let (values, importance) = (tensor("values").values(), tensor("importance"));
    let columns = importance.shape()[1];
    let mut wrong = Vec::new();
    for block in Block::ALL {
        let (stored, theirs) = tensor(block.label()).as_blocks().unwrap();
        let ours: Vec<u8> =
            importance.values().chunks(columns).flat_map(|row| block.encode_weighted(&values, row)).collect();
        assert_eq!((stored, ours.len()), (block, theirs.len()));
        assert!(block == Block::Q8_0 || ours[..block.encode(&values).len()] != block.encode(&values)[..], "{block:?}");
        let row = columns / block.values() * block.size();
        let rows = ours.chunks(row).zip(theirs.chunks(row)).enumerate();
        wrong.extend(rows.filter(|(_, (a, b))| a != b).map(|(r, _)| format!("{} row {r}", block.label())));
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Writes files by hand, whole or otherwise.
struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    fn new(version: u32, tensors: u64, entries: u64) -> Writer {
        let mut w = Writer { bytes: b"GGUF".to_vec() };
        w.u32(version).u64(tensors).u64(entries);
        w
    }

    fn u32(&mut self, n: u32) -> &mut Writer {
        self.bytes.extend(n.to_le_bytes());
        self
    }

    fn u64(&mut self, n: u64) -> &mut Writer {
        self.bytes.extend(n.to_le_bytes());
        self
    }

    fn text(&mut self, text: &[u8]) -> &mut Writer {
        self.u64(text.len() as u64).bytes.extend(text);
        self
    }

    fn tensor(&mut self, name: &str, dims: &[u64], kind: u32, offset: u64) -> &mut Writer {
        self.text(name.as_bytes()).u32(dims.len() as u32);
        dims.iter().for_each(|d| {
            self.u64(*d);
        });
        self.u32(kind).u64(offset)
    }

    fn data(&mut self, n: usize) -> Vec<u8> {
        let start = self.bytes.len().next_multiple_of(32);
        self.bytes.resize(start, 0);
        self.bytes.extend((0..n).map(|i| i as u8));
        std::mem::take(&mut self.bytes)
    }
}

/// Every type of metadata, two tensors.
fn small() -> Vec<u8> {
    let mut w = Writer::new(3, 2, 6);
    w.text(b"general.architecture").u32(8).text(b"some");
    w.text(b"some.count").u32(4).u32(7);
    w.text(b"some.rate").u32(6).u32(1.5f32.to_bits());
    w.text(b"some.flag").u32(7).bytes.push(1);
    w.text(b"some.words").u32(9).u32(8).u64(2).text(b"one").text("zw\u{f6}lf".as_bytes());
    w.text(b"some.list").u32(9).u32(5).u64(3).u32(1).u32(2).u32(u32::MAX);
    w.tensor("a", &[3, 2], 0, 0).tensor("b", &[32, 1], 2, 32);
    w.data(32 + 18)
}

#[test]
fn metadata_keeps_its_types_and_tensors_their_shapes() {
    let found = open(small()).unwrap();
    let m = found.gguf.as_ref().unwrap();
    assert_eq!((m.string("general.architecture"), m.count("some.count")), (Some("some"), Some(7)));
    assert_eq!((m.number("some.rate"), m.bool("some.flag"), m.bool("some.count")), (Some(1.5), Some(true), None));
    assert_eq!(m.strings("some.words"), Some(vec!["one", "zw\u{f6}lf"]));
    assert_eq!((m.numbers("some.list"), m.strings("some.list")), (Some(vec![1.0, 2.0, -1.0]), None));
    assert_eq!((m.count("some.rate"), m.string("nothing"), m.same("some.list")), (None, None, None));
    // The innermost dimension comes first in the file.
    assert_eq!((found.shape("a"), found.shape("b")), (Some(&[2, 3][..]), Some(&[1, 32][..])));
    // Version 2 is laid out the same.
    let mut two = small();
    two[4] = 2;
    assert_eq!(open(two).unwrap().tensors.len(), 2);
}

#[test]
fn a_file_cut_anywhere_is_refused_in_words() {
    let whole = small();
    for n in 0..whole.len() {
        let error = open(whole[..n].to_vec()).expect_err("cut");
        assert!(error.contains("hint: ") && !error.chars().any(char::is_control), "{n}: {error}");
        // The same through the door, which tells formats apart first.
        assert!(load_bytes("test", Vec::leak(whole[..n].to_vec()), &LoadOptions::default()).is_err());
    }
}

#[test]
fn lies_are_refused_before_anything_is_made_of_them() {
    let refused = |bytes: Vec<u8>, words: &str| {
        let error = open(bytes).expect_err(words);
        assert!(error.contains(words), "`{words}` is not in: {error}");
    };
    let huge = 1u64 << 60;
    refused(Writer::new(3, huge, 0).data(64), "list of tensors claims");
    refused(Writer::new(3, 0, u64::MAX).data(64), "metadata claims");
    refused(Writer::new(1, 0, 0).data(0), "version 1");
    refused(Writer::new(3u32.swap_bytes(), 0, 0).data(0), "big-endian");
    let entry = |f: &dyn Fn(&mut Writer)| {
        let mut w = Writer::new(3, 0, 1);
        f(&mut w);
        w.data(64)
    };
    refused(
        entry(&|w| {
            w.u64(huge);
        }),
        "claims",
    );
    refused(
        entry(&|w| {
            w.text(&[0xff]).u32(4).u32(0);
        }),
        "not UTF-8",
    );
    refused(
        entry(&|w| {
            w.text(b"k").u32(13);
        }),
        "unknown type 13",
    );
    refused(
        entry(&|w| {
            w.text(b"k").u32(8).u64(huge);
        }),
        "`k` claims",
    );
    refused(
        entry(&|w| {
            w.text(b"k").u32(8).text(&[0xc3]);
        }),
        "`k` is not UTF-8",
    );
    refused(
        entry(&|w| {
            w.text(b"k").u32(9).u32(10).u64(huge / 8);
        }),
        "`k` claims",
    );
    refused(
        entry(&|w| {
            w.text(b"k").u32(9).u32(8).u64(6).text(b"x");
        }),
        "`k`",
    );
    let nested = entry(&|w| {
        w.text(b"k").u32(9);
        (0..6).for_each(|_| {
            w.u32(9).u64(1);
        });
    });
    refused(nested, "lists of lists");
    refused(
        entry(&|w| {
            w.text(b"general.alignment").u32(4).u32(24);
        }),
        "alignment",
    );
    let mut twice = Writer::new(3, 0, 2);
    twice.text(b"k").u32(4).u32(0).text(b"k").u32(4).u32(0);
    refused(twice.data(64), "`k` is listed twice");

    let tensors = |list: &[(&str, &[u64], u32, u64)]| {
        let mut w = Writer::new(3, list.len() as u64, 0);
        list.iter().for_each(|(name, dims, kind, offset)| {
            w.tensor(name, dims, *kind, *offset);
        });
        w.data(256)
    };
    refused(tensors(&[("t", &[1, 1, 1, 1, 1], 0, 0)]), "5 dimensions");
    refused(tensors(&[("t", &[u64::MAX, 2], 0, 0)]), "impossibly large");
    refused(tensors(&[("t", &[1 << 40, 1 << 40], 0, 0)]), "impossibly large");
    refused(tensors(&[("t", &[1 << 20], 0, 0)]), "past the end");
    refused(tensors(&[("t", &[4], 0, u64::MAX - 31)]), "past the end");
    refused(tensors(&[("t", &[4], 0, 4)]), "multiple of 32");
    refused(tensors(&[("t", &[33], 2, 0)]), "no whole blocks of 32");
    refused(tensors(&[("t", &[256], 9, 0)]), "Q8_1");
    refused(tensors(&[("t", &[256], 40, 0)]), "NVFP4");
    refused(tensors(&[("t", &[4], 77, 0)]), "type 77");
    refused(tensors(&[("t", &[4], 0, 0), ("t", &[4], 0, 32)]), "listed twice");
    refused(tensors(&[("t", &[16], 0, 0), ("u", &[4], 0, 32)]), "overlap");
    // What is whole and fits is none of that.
    assert_eq!(open(tensors(&[("t", &[8], 0, 0), ("u", &[4], 0, 32)])).unwrap().tensors.len(), 2);
}

#[test]
fn a_part_of_a_model_is_refused() {
    let part = |n: u32| {
        let mut w = Writer::new(3, 0, 1);
        w.text(b"split.count").u32(4).u32(n);
        open(w.data(0))
    };
    let error = part(3).unwrap_err();
    assert!(error.contains("one of 3 parts") && error.contains("hint: "), "{error}");
    assert!(part(0).is_ok() && part(1).is_ok());
}

/// What the configuration of a Llama with one more number says.
fn told(key: &[u8], value: f32, of: &str) -> serde_json::Value {
    let mut w = Writer::new(3, 0, 2);
    w.text(b"general.architecture").u32(8).text(b"llama");
    w.text(key).u32(6).u32(value.to_bits());
    let found = open(w.data(0)).unwrap();
    super::config(&found.gguf.unwrap()).unwrap()[of].clone()
}

#[test]
fn a_factor_without_a_type_is_linear_scaling() {
    for key in [&b"llama.rope.scaling.factor"[..], b"llama.rope.scale_linear"] {
        assert_eq!(told(key, 4.0, "rope_scaling")["rope_type"], "linear");
        assert!(told(key, 1.0, "rope_scaling").is_null() && told(key, 0.0, "rope_scaling").is_null());
    }
}

#[test]
fn a_base_that_is_no_number_is_not_taken_for_an_absent_one() {
    assert_eq!(told(b"llama.rope.freq_base", 5e5, "rope_theta"), 5e5);
    for bad in [f32::INFINITY, f32::NAN] {
        assert_eq!(told(b"llama.rope.freq_base", bad, "rope_theta"), "not finite");
    }
}

proptest! {
    /// Any bytes changed anywhere: an error or a checkpoint, never a panic, and lists within the file.
    #[test]
    fn changed_bytes_never_panic(at in prop::collection::vec((0usize..1 << 10, any::<u8>()), 1..6)) {
        let mut bytes = small();
        for (i, b) in at {
            let n = bytes.len();
            bytes[i % n] = b;
        }
        if let Ok(found) = open(bytes) {
            let m = found.gguf.as_ref().unwrap();
            for key in ["some.words", "some.list", "some.count", "general.architecture"] {
                let _ = (m.strings(key), m.numbers(key), m.same(key), m.string(key), m.bool(key));
            }
            for tensor in found.tensors.values() {
                if let RawTensor::Float(p) = tensor {
                    prop_assert_eq!(p.values().len(), p.numel());
                }
            }
            let _ = super::config(m);
        }
    }
}
