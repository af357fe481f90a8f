//! A directory's vocabulary in GGUF's words: byte pairs from `tokenizer.json`, SentencePiece's kind from `tokenizer.model`, from a `tokenizer.json`
//! that was made of one, and from llama2.c's `tok*.bin`.
//!
//! How text is cut goes by a name in GGUF (`tokenizer.ggml.pre`); where a tokenizer cuts in a way that has none here, nothing is
//! written for it, and the reason is kept.

use crate::files;
use crate::model::gguf::{Fields, Metadata};
use crate::model::hf::{Json, MAX_BYTES};
use crate::model::tokenizer::{BYTE, CONTROL, NORMAL, Pieces, Tokenizer, UNKNOWN, UNUSED, USERS, cut_name};
use crate::model::{ModelError, Result, printable};
use serde_json::Value;
use std::path::Path;

/// No vocabulary comes near this many bytes.
const MAX_VOCABULARY: u64 = 256 << 20;

/// Adds the vocabulary in `dir`, of `rows` tokens at most, to `f`; the inner error is why it has none, in words.
///
/// # Errors
/// Files that cannot be read.
pub(super) fn of(
    f: &mut Fields,
    source: &Path,
    dir: &Path,
    config: &Json,
    rows: usize,
) -> Result<std::result::Result<(), String>> {
    let (path, model) = (dir.join("tokenizer.json"), dir.join("tokenizer.model"));
    if path.exists() {
        let text = files::read(&path, MAX_VOCABULARY).map_err(ModelError::read(&path))?;
        let json: Value = serde_json::from_slice(&text)
            .map_err(|e| ModelError::Config { path: path.clone(), why: printable(&e.to_string()) })?;
        let written = match json["model"]["byte_fallback"] == true {
            // SentencePiece's own file has its very scores.
            true => match Pieces::read(&model).ok().filter(|_| model.exists()) {
                Some(mut own) => {
                    own.add(&json["added_tokens"]);
                    sentence_pieces(f, &own, rows)
                }
                None => Pieces::hub(&json).and_then(|p| sentence_pieces(f, &p, rows)),
            },
            false => byte_pairs(f, &json, rows),
        };
        return match written {
            Ok(()) => special(f, &json, dir, config).map(|()| begins(f, source)),
            Err(why) => Ok(Err(format!("{why} (`{}`)", printable(&path.to_string_lossy())))),
        };
    }
    if model.exists() {
        let own = Pieces::read(&model)?;
        let ids = own.tokens.iter().enumerate().map(|(id, t)| (t.clone(), Value::from(id)));
        let json = serde_json::json!({ "model": { "vocab": ids.collect::<serde_json::Map<_, _>>() } });
        return match sentence_pieces(f, &own, rows) {
            Ok(()) => {
                for (word, id) in [("bos", own.begin), ("eos", own.end)] {
                    if let Some(id) = id {
                        f.u32(&format!("tokenizer.ggml.{word}_token_id"), id as usize);
                    }
                }
                special(f, &json, dir, config).map(|()| begins(f, source))
            }
            Err(why) => Ok(Err(format!("{why} (`{}`)", printable(&model.to_string_lossy())))),
        };
    }
    let found = Tokenizer::of(source)?;
    let Some((tokens, scores)) = found.as_ref().and_then(Tokenizer::pieces) else {
        return Ok(Err("no tokenizer lies beside the weights".to_owned()));
    };
    if tokens.len() > rows {
        return Ok(Err(format!("its vocabulary has {} tokens, the network {rows}", tokens.len())));
    }
    pieces(f, tokens, scores);
    Ok(Ok(()))
}

/// Says whether a text begins with a token, as its own tokenizer has it: what goes without saying is another matter for every way to cut. The error is why
/// its own cannot be used, in words.
fn begins(f: &mut Fields, source: &Path) -> std::result::Result<(), String> {
    let own = Tokenizer::of(source).map_err(|e| format!("its vocabulary cannot be used: {}", without_hint(&e)))?;
    f.bool("tokenizer.ggml.add_bos_token", own.is_some_and(|t| t.first().is_some()));
    Ok(())
}

/// What an error says without its way out, which another one has.
fn without_hint(e: &ModelError) -> String {
    let text = e.to_string();
    text.split_once("; hint: ").map_or(text.clone(), |(what, _)| what.to_owned())
}

/// Texts that every vocabulary is tried on, and such as differ at their edges alone.
const TRIED: [&str; 3] = [
    "The quick brown fox, 1984: \"naïve café\"!\nA new line\tand a tab.",
    "def f(x):\n    return x * 2  # 日本語 🙂",
    "It's the 3rd o'clock; we'll see?",
];
const EDGES: [&str; 2] = [" hello", "x{}y"];

/// What is otherwise about how the vocabulary that is written in `m` cuts text than how the original's does.
pub(super) enum Cut {
    Alike,
    /// Text at an edge, which a note says.
    Edges(String),
    /// All text, or it cannot be read.
    Otherwise(String),
}

/// Tries what is written in `m` on a few texts beside the original's vocabulary.
pub(super) fn compared(m: &Metadata, source: &Path) -> Cut {
    let (Ok(Some(own)), theirs) = (Tokenizer::of(source), Tokenizer::told(m, source)) else { return Cut::Alike };
    let theirs = match theirs {
        Ok(Some(theirs)) => theirs,
        Ok(None) => return Cut::Alike,
        Err(e) => {
            return Cut::Otherwise(format!("what is written of its vocabulary cannot be read: {}", without_hint(&e)));
        }
    };
    let alike = |text: &str| own.encode(text).ok() == theirs.encode(text).ok();
    if let Some(text) = TRIED.into_iter().find(|text| !alike(text)) {
        return Cut::Otherwise(format!(
            "its vocabulary cuts text otherwise than llama.cpp would, such as `{}`",
            printable(text)
        ));
    }
    let special = m.count("tokenizer.ggml.bos_token_id").or_else(|| m.count("tokenizer.ggml.eos_token_id"));
    let tokens = m.strings("tokenizer.ggml.tokens").unwrap_or_default();
    let special = special.and_then(|id| tokens.get(id)).copied().unwrap_or_default();
    match EDGES.iter().map(|text| text.replace("{}", special)).find(|text| !alike(text)) {
        Some(text) => Cut::Edges(format!(
            "llama.cpp cuts text that begins with a blank or follows a special token otherwise than its `tokenizer.json`, such as `{}`",
            printable(&text)
        )),
        None => Cut::Alike,
    }
}

/// Tokens with scores, as llama2.c has them: the unknown token, beginning and end come first.
fn pieces(f: &mut Fields, tokens: &[String], scores: &[f32]) {
    let kind = |(id, token): (usize, &String)| match id {
        0 => UNKNOWN,
        1 | 2 => CONTROL,
        _ if token.len() == 6 && token.starts_with("<0x") => BYTE,
        _ => NORMAL,
    };
    let words = tokens.iter().enumerate().map(|(id, token)| match id {
        0..3 => token.trim().to_owned(),
        _ => token.replace(' ', "\u{2581}"),
    });
    f.string("tokenizer.ggml.model", "llama");
    f.string("tokenizer.ggml.pre", "default");
    f.strings("tokenizer.ggml.tokens", &words.collect::<Vec<_>>());
    f.f32s("tokenizer.ggml.scores", scores);
    f.i32s("tokenizer.ggml.token_type", &tokens.iter().enumerate().map(kind).collect::<Vec<_>>());
    for (word, id) in [("unknown", 0), ("bos", 1), ("eos", 2)] {
        f.u32(&format!("tokenizer.ggml.{word}_token_id"), id);
    }
}

/// SentencePiece's, filled up to `rows` tokens as llama.cpp's converter does; an error says in words what does not fit.
fn sentence_pieces(f: &mut Fields, pieces: &Pieces, rows: usize) -> std::result::Result<(), String> {
    let n = pieces.tokens.len();
    if let Some(beyond) = (rows..n).find(|id| pieces.types[*id] != UNUSED) {
        return Err(format!("its vocabulary has ids beyond the network's {rows} ({beyond})"));
    }
    let (mut words, mut scores, mut types) = (Vec::new(), Vec::new(), Vec::new());
    for id in 0..rows {
        let token = pieces.tokens.get(id).filter(|t| !t.is_empty());
        words.push(token.map_or_else(|| format!("[PAD{id}]"), String::clone));
        scores.push(if token.is_some() { pieces.scores[id] } else { -10_000.0 });
        types.push(token.map_or(UNUSED, |_| pieces.types[id]));
    }
    f.string("tokenizer.ggml.model", "llama");
    f.string("tokenizer.ggml.pre", "default");
    f.strings("tokenizer.ggml.tokens", &words);
    f.f32s("tokenizer.ggml.scores", &scores);
    f.i32s("tokenizer.ggml.token_type", &types);
    f.bool("tokenizer.ggml.add_space_prefix", pieces.prefix);
    Ok(())
}

/// Byte pairs of bytes, as GPT-2 has them; an error says in words what is otherwise.
pub(super) fn byte_pairs(f: &mut Fields, json: &Value, rows: usize) -> std::result::Result<(), String> {
    let model = &json["model"];
    let kind = model["type"].as_str().unwrap_or("");
    let vocab = model["vocab"].as_object().filter(|_| kind == "BPE");
    let Some(vocab) = vocab else {
        return Err(format!("a tokenizer of the kind `{}` is not written; byte pairs are", printable(kind)));
    };
    let pre = cut_name(json).ok_or("llama.cpp has no name that is known here for how this tokenizer cuts text")?;
    let id = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n < rows);
    let beyond = || format!("its vocabulary has ids beyond the network's {rows}");
    // What no token has is filled up, as llama.cpp's converter does.
    let mut tokens: Vec<(String, i32)> = (0..rows).map(|i| (format!("[PAD{i}]"), UNUSED)).collect();
    for (token, at) in vocab {
        tokens[id(at).ok_or_else(beyond)?] = (token.clone(), NORMAL);
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let kind = if added["special"].as_bool() == Some(true) { CONTROL } else { USERS };
        let token = added["content"].as_str().unwrap_or_default();
        tokens[id(&added["id"]).ok_or_else(beyond)?] = (token.to_owned(), kind);
    }
    let merge = |m: &Value| match m {
        Value::String(pair) => Some(pair.clone()),
        Value::Array(pair) => Some(format!("{} {}", pair.first()?.as_str()?, pair.get(1)?.as_str()?)),
        _ => None,
    };
    let merges: Option<Vec<String>> = model["merges"].as_array().and_then(|all| all.iter().map(merge).collect());
    let merges = merges.ok_or("it has no merges")?;
    f.string("tokenizer.ggml.model", "gpt2");
    f.string("tokenizer.ggml.pre", pre);
    let (words, kinds): (Vec<String>, Vec<i32>) = tokens.into_iter().unzip();
    f.strings("tokenizer.ggml.tokens", &words);
    f.i32s("tokenizer.ggml.token_type", &kinds);
    f.strings("tokenizer.ggml.merges", &merges);
    Ok(())
}

/// Which tokens begin, end and fill up, and how a chat is written: from `tokenizer_config.json`, else from `config.json`.
fn special(f: &mut Fields, json: &Value, dir: &Path, config: &Json) -> Result<()> {
    let said = Json::read(dir.join("tokenizer_config.json"))?;
    let id_of = |token: &str| {
        let added = json["added_tokens"].as_array()?.iter().find(|a| a["content"].as_str() == Some(token));
        added.map_or_else(|| json["model"]["vocab"][token].as_u64(), |a| a["id"].as_u64())
    };
    for (theirs, ours) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")] {
        let named = said.field(&format!("{theirs}_token"));
        let token = named.and_then(|t| t.as_str().or_else(|| t["content"].as_str()));
        let told = config.field(&format!("{theirs}_token_id"));
        let told = told.and_then(|id| id.as_u64().or_else(|| id.as_array()?.first()?.as_u64()));
        if let Some(id) = token.and_then(id_of).or(told) {
            f.u32(&format!("tokenizer.ggml.{ours}_token_id"), usize::try_from(id).unwrap_or(usize::MAX));
        }
    }
    if let Some(yes) = said.field("add_eos_token").and_then(Value::as_bool) {
        f.bool("tokenizer.ggml.add_eos_token", yes);
    }
    let beside = dir.join("chat_template.jinja");
    let template = match said.field("chat_template").and_then(Value::as_str) {
        Some(text) => Some(text.to_owned()),
        None if beside.exists() => {
            let bytes = files::read(&beside, MAX_BYTES).map_err(ModelError::read(&beside))?;
            String::from_utf8(bytes).ok()
        }
        None => None,
    };
    if let Some(template) = template {
        f.string("tokenizer.chat_template", &template);
    }
    Ok(())
}
