//! SentencePiece's vocabularies from directories: every form that they are published in gives the ids that SentencePiece gives, and so does what is
//! written of them for llama.cpp and for transformers.

use super::{folder, ids_of, open, to_gguf};
use paring::model::export::Manifest;
use paring::model::{Tokenizer, formats};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The ids of every text: SentencePiece's (`pieces`), or those of the library with the file of that name.
fn expected(whose: &str) -> Vec<(String, Vec<u32>)> {
    let text = std::fs::read_to_string(folder().join("pieces/expected.json")).unwrap();
    let all: Vec<Value> = serde_json::from_str(&text).unwrap();
    all.iter().map(|v| (v["text"].as_str().unwrap().to_owned(), ids_of(&v[whose]))).collect()
}

/// A network of as many tokens, with the files `from` beside its weights.
fn network(dir: &Path, from: &[&str]) -> PathBuf {
    std::fs::create_dir(dir).unwrap();
    let llama = folder().join("llama");
    let bytes = std::fs::read(llama.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let vocabulary = ["model.embed_tokens.weight", "lm_head.weight"];
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = (file.tensors().into_iter())
        .map(|(name, t)| match vocabulary.contains(&name.as_str()) {
            false => (name, t.shape().to_vec(), t.data().to_vec()),
            true => {
                let row = t.data().len() / t.shape()[0];
                (name, vec![424, t.shape()[1]], t.data().iter().copied().cycle().take(424 * row).collect())
            }
        })
        .collect();
    let dtype = file.tensors()[0].1.dtype();
    let views = tensors
        .iter()
        .map(|(name, shape, data)| (name, safetensors::tensor::TensorView::new(dtype, shape.clone(), data).unwrap()));
    std::fs::write(dir.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let config: Value = serde_json::from_str(&std::fs::read_to_string(llama.join("config.json")).unwrap()).unwrap();
    let mut config = config.as_object().unwrap().clone();
    config.insert("vocab_size".into(), 424.into());
    std::fs::write(dir.join("config.json"), Value::Object(config).to_string()).unwrap();
    std::fs::write(dir.join("tokenizer_config.json"), r#"{ "bos_token": "<s>", "eos_token": { "content": "</s>" } }"#)
        .unwrap();
    for name in from {
        let to = Path::new(name).file_name().unwrap();
        std::fs::copy(folder().join("pieces").join(name), dir.join(to)).unwrap();
    }
    dir.to_owned()
}

fn check(path: &Path, want: &[(String, Vec<u32>)], but: &[&str]) {
    let tokenizer = Tokenizer::of(path).unwrap().expect("a vocabulary");
    for (text, ids) in want.iter().filter(|(text, _)| !but.contains(&text.as_str())) {
        assert_eq!(&tokenizer.encode(text).unwrap(), ids, "{}: {text:?}", path.display());
    }
}

#[test]
fn every_form_of_a_vocabulary_gives_sentencepieces_ids_wherever_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    // SentencePiece takes what reads as a control token for text; all others recognise it.
    let control = "x<s>y</s>";
    for (name, files, whose) in [
        ("model", &["tokenizer.model"][..], "pieces"),
        ("json", &["tokenizer.json"], "tokenizer.json"),
        ("both", &["tokenizer.model", "tokenizer.json"], "tokenizer.json"),
        ("prefixless", &["prefixless/tokenizer.json"], "prefixless/tokenizer.json"),
    ] {
        let from = network(&at(name), files);
        let want = expected(whose);
        check(&from, &want, &[control]);
        let gguf = at(&format!("{name}.gguf"));
        assert_eq!(to_gguf(&open(&from), &gguf), Ok(vec![]), "{name}");
        check(&gguf, &want, &[control]);
        // And on, as a directory.
        let hub = at(&format!("{name}-hub"));
        let written = formats::write(&hub, &open(&gguf), &Manifest::default(), "hf").unwrap();
        assert_eq!(written.notes, Vec::<String>::new(), "{name}");
        check(&hub, &want, &[control]);
        let [a, b, c] = [&from, &gguf, &hub].map(|p| Tokenizer::of(p).unwrap().unwrap());
        assert_eq!((a.first(), b.first(), c.first()), (Some(1), Some(1), Some(1)), "{name}");
        assert_eq!(a.encode(control).unwrap(), b.encode(control).unwrap(), "{name}");
        let ids = a.encode("naïve café 1984").unwrap();
        assert_eq!(b.decode(&ids).unwrap().trim_start(), "naïve café 1984");
    }
}

#[test]
fn byte_pairs_that_sentencepiece_would_join_otherwise_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let from = network(&dir.path().join("net"), &["tokenizer.json"]);
    let (path, out) = (from.join("tokenizer.json"), dir.path().join("out.gguf"));
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let refused = |change: &dyn Fn(&mut Value), words: &str| {
        let mut other = json.clone();
        change(&mut other);
        std::fs::write(&path, other.to_string()).unwrap();
        let error = to_gguf(&open(&from), &out).unwrap_err();
        assert!(error.contains(words) && error.contains("hint: "), "{words}: {error}");
    };
    refused(&|j| _ = j["model"]["merges"].as_array_mut().unwrap().pop(), "which SentencePiece would");
    refused(
        &|j| {
            let merges = j["model"]["merges"].as_array_mut().unwrap();
            let twice = merges.iter().position(|m| merges.iter().filter(|n| whole(n) == whole(m)).count() > 1).unwrap();
            let one = merges.remove(twice);
            merges.push(one);
        },
        "stand apart",
    );
    refused(&|j| j["normalizer"] = serde_json::json!({ "type": "NFKC" }), "cut or changed in a way");
    refused(&|j| j["model"]["byte_fallback"] = false.into(), "how this tokenizer cuts text");
    let model = from.join("tokenizer.model");
    std::fs::remove_file(&path).unwrap();
    let bytes = std::fs::read(folder().join("pieces/tokenizer.model")).unwrap();
    for n in [0, 1, 7, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&model, &bytes[..n]).unwrap();
        let told = to_gguf(&open(&from), &out);
        assert!(told.is_ok() || told.unwrap_err().contains("tokenizer.model"), "{n}");
    }
}

fn whole(merge: &Value) -> String {
    format!("{}{}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap())
}

/// A tokenizer of byte pairs that begins texts does so wherever it goes, and what llama.cpp would cut otherwise is told or refused.
#[test]
fn what_begins_a_text_and_where_it_is_cut_is_kept_or_told() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let small = crate::talker::with_tokenizer("llama", dir.path());
    let path = small.join("tokenizer.json");
    let json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let (token, id) = (json["added_tokens"][0]["content"].clone(), json["added_tokens"][0]["id"].clone());
    let word = token.as_str().unwrap();
    let config = serde_json::json!({ "bos_token": word, "add_bos_token": false });
    std::fs::write(small.join("tokenizer_config.json"), config.to_string()).unwrap();
    for begins in [true, false] {
        let mut own = json.clone();
        if begins {
            own["post_processor"] = serde_json::json!({
                "type": "TemplateProcessing",
                "single": [{ "SpecialToken": { "id": word, "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } }],
                "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 0 } }],
                "special_tokens": { word: { "id": word, "ids": [id], "tokens": [word] } },
            });
        }
        std::fs::write(&path, own.to_string()).unwrap();
        assert_eq!(to_gguf(&open(&small), &out), Ok(vec![]));
        let hub = dir.path().join(format!("hub-{begins}"));
        formats::write(&hub, &open(&out), &Manifest::default(), "hf").unwrap();
        for at in [&small, &out, &hub] {
            let first = Tokenizer::of(at).unwrap().unwrap().first().map(u64::from);
            assert_eq!(first, id.as_u64().filter(|_| begins), "{}", at.display());
        }
    }
    // Damage that only using it shows, and what has no place there.
    let refused = |change: &dyn Fn(&mut Value), words: &str| {
        let mut other = json.clone();
        change(&mut other);
        std::fs::write(&path, other.to_string()).unwrap();
        let error = to_gguf(&open(&small), &out).unwrap_err();
        assert!(error.contains(words) && error.matches("hint: ").count() == 1, "{words}: {error}");
        let hub = dir.path().join("hub-damaged");
        formats::write(&hub, &open(&small), &Manifest::default(), "hf").unwrap().notes
    };
    let notes = refused(&|j| j["model"]["merges"] = serde_json::json!([["a", "zzzz"]]), "vocabulary cannot be used");
    assert!(notes.iter().any(|n| n.contains("copied as it lies") && n.contains("zzzz")), "{notes:?}");
    refused(&|j| j["normalizer"] = serde_json::json!({ "type": "Lowercase" }), "how this tokenizer cuts text");
    // Blanks at an edge alone.
    let from = network(&dir.path().join("net"), &["tokenizer.json"]);
    let path = from.join("tokenizer.json");
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    json["normalizer"] = Value::Null;
    json["pre_tokenizer"] = serde_json::json!({ "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false });
    std::fs::write(&path, json.to_string()).unwrap();
    let notes = to_gguf(&open(&from), &out).unwrap();
    assert!(matches!(&notes[..], [n] if n.contains("begins with a blank or follows a special token")), "{notes:?}");
}
