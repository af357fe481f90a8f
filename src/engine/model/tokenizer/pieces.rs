//! SentencePiece's vocabularies as files have them: a `tokenizer.model`, and a `tokenizer.json` whose byte pairs were made of one.
//!
//! Byte pairs are such a vocabulary where they join what SentencePiece would join, in its order (transformers' `SentencePieceExtractor` makes them
//! so): every pair of pieces whose union is a piece is a merge, and all merges of a piece stand together. Then the place of a piece among them
//! is its score. Not here: cutting text (`spm`), GGUF's words (`origin/vocabulary`).

use super::Vocabulary;
use super::spm::{SPACE, Spm};
use crate::files;
use crate::model::hf::Json;
use crate::model::{ModelError, printable};
use prost::Message;
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};
use std::path::Path;

/// Types of tokens, by llama.cpp's and SentencePiece's numbers.
pub(in crate::model) const NORMAL: i32 = 1;
pub(in crate::model) const UNKNOWN: i32 = 2;
pub(in crate::model) const CONTROL: i32 = 3;
pub(in crate::model) const USERS: i32 = 4;
pub(in crate::model) const UNUSED: i32 = 5;
pub(in crate::model) const BYTE: i32 = 6;

/// Gemma's, the largest, has 4 MB.
const MAX_BYTES: u64 = 32 << 20;

/// No vocabulary has more tokens.
const MOST: usize = 1 << 22;

/// A vocabulary, by ids.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::model) struct Pieces {
    /// Blanks are written `▁`, but in tokens of users, which stand for themselves.
    pub tokens: Vec<String>,
    pub scores: Vec<f32>,
    pub types: Vec<i32>,
    /// Text begins with a blank whether it does or not.
    pub prefix: bool,
    /// What begins and ends a text, where the file says so.
    pub begin: Option<u32>,
    pub end: Option<u32>,
}

/// `sentencepiece_model.proto`, as far as it is needed.
#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<PieceProto>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<TrainerProto>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<NormalizerProto>,
}

#[derive(Clone, PartialEq, Message)]
struct PieceProto {
    #[prost(string, optional, tag = "1")]
    piece: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct TrainerProto {
    /// 1: unigrams, 2: byte pairs.
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
    #[prost(int32, optional, tag = "41")]
    bos: Option<i32>,
    #[prost(int32, optional, tag = "42")]
    eos: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct NormalizerProto {
    #[prost(bytes = "vec", optional, tag = "2")]
    map: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    squeezes: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    escapes: Option<bool>,
}

impl Pieces {
    /// The `tokenizer.model` at `path`, with the tokens that lie beside it in `added_tokens.json` and `tokenizer_config.json`.
    ///
    /// # Errors
    /// As the system says; damage, and kinds that no decoder here has.
    pub fn read(path: &Path) -> Result<Pieces, ModelError> {
        let bytes = files::read(path, MAX_BYTES).map_err(ModelError::read(path))?;
        let unfit = |why: String| ModelError::Config { path: path.to_owned(), why: printable(&why) };
        let mut pieces = Pieces::model(&bytes).map_err(unfit)?;
        let beside = |name: &str| Json::read(path.with_file_name(name));
        let list = |added: Vec<Value>| Value::Array(added);
        let named = beside("added_tokens.json")?;
        pieces.add(&list(named.fields().map(|(t, id)| json!({ "id": id, "content": t, "special": false })).collect()));
        if let Some(all) = beside("tokenizer_config.json")?.field("added_tokens_decoder").and_then(Value::as_object) {
            let of = |(id, t): (&String, &Value)| {
                let id = id.parse::<u64>().ok()?;
                Some(json!({ "id": id, "content": t["content"], "special": t["special"] }))
            };
            pieces.add(&list(all.iter().filter_map(of).collect()));
        }
        Ok(pieces)
    }

    /// The id of a token as it is written.
    pub fn id(&self, token: &str) -> Option<u32> {
        self.tokens.iter().position(|t| t == token).and_then(|n| u32::try_from(n).ok())
    }

    /// A `tokenizer.model`.
    ///
    /// # Errors
    /// In words: damage, and kinds that no decoder here has.
    pub fn model(bytes: &[u8]) -> Result<Pieces, String> {
        let proto = ModelProto::decode(bytes).map_err(|e| format!("it is no SentencePiece model ({e})"))?;
        let (trainer, normal) = (proto.trainer.unwrap_or_default(), proto.normalizer.unwrap_or_default());
        if trainer.model_type.unwrap_or(1) != 2 {
            return Err("its pieces are no byte pairs; those of unigrams are not read".into());
        }
        if normal.map.is_some_and(|m| !m.is_empty()) || normal.squeezes.unwrap_or(true) {
            return Err("it changes text before it is cut (a table of characters, or blanks that are squeezed)".into());
        }
        if normal.escapes == Some(false) || proto.pieces.is_empty() || proto.pieces.len() > MOST {
            return Err("its pieces are none that a decoder here has".into());
        }
        let id = |told: Option<i32>, usual: u32| told.map_or(Some(usual), |n| u32::try_from(n).ok());
        let (begin, end) = (id(trainer.bos, 1), id(trainer.eos, 2));
        let mut out = Pieces {
            tokens: Vec::new(),
            scores: Vec::new(),
            types: Vec::new(),
            prefix: normal.prefix.unwrap_or(true),
            begin,
            end,
        };
        for p in proto.pieces {
            let (kind, token) = (p.kind.unwrap_or(NORMAL), p.piece.unwrap_or_default());
            out.tokens.push(if kind == USERS { token.replace(SPACE, " ") } else { token });
            out.scores.push(p.score.unwrap_or(0.0));
            out.types.push(kind);
        }
        Ok(out)
    }

    /// A `tokenizer.json`; `added_tokens` are among its tokens.
    ///
    /// # Errors
    /// In words: what SentencePiece would cut otherwise.
    pub fn hub(json: &Value) -> Result<Pieces, String> {
        let model = &json["model"];
        let vocab = model["vocab"].as_object().filter(|_| model["type"] == "BPE" && model["byte_fallback"] == true);
        let vocab = vocab.ok_or("it has no byte pairs that fall back to bytes")?;
        let prefix = prefix(json).ok_or("its text is cut or changed in a way that SentencePiece does not")?;
        let id = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n < MOST);
        let mut tokens: Vec<String> = Vec::new();
        for (token, at) in vocab {
            let at = id(at).ok_or("it has ids that are none")?;
            if tokens.len() <= at {
                tokens.resize(at + 1, String::new());
            }
            tokens[at].clone_from(token);
        }
        let ranks = ranks(model)?;
        let known = |piece: &str| vocab.contains_key(piece);
        let unknown = model["unk_token"].as_str();
        let mut out = Pieces { tokens, scores: Vec::new(), types: Vec::new(), prefix, begin: None, end: None };
        for (at, token) in out.tokens.iter().enumerate() {
            let kind = match token.as_str() {
                "" => UNUSED,
                t if Some(t) == unknown => UNKNOWN,
                t if byte(t).is_some() => BYTE,
                _ => NORMAL,
            };
            out.types.push(kind);
            let rank = ranks.of.get(token.as_str());
            // What nothing is joined to comes after all that is.
            out.scores.push(-(rank.copied().unwrap_or(ranks.of.len() + at) as f32));
            let mut ends = token.char_indices().map(|(i, _)| i).skip(1).filter(|_| kind == NORMAL);
            if let Some(i) = ends.find(|i| {
                let (a, b) = token.split_at(*i);
                known(a) && known(b) && !ranks.pairs.contains(&(a, b))
            }) {
                let (a, b) = token.split_at(i);
                return Err(format!("it does not join `{a}` and `{b}`, which SentencePiece would"));
            }
        }
        out.add(&json["added_tokens"]);
        if let Some(b) = (0..=255u8).find(|b| !known(&format!("<0x{b:02X}>")) && !known(&char::from(*b).to_string())) {
            return Err(format!("it has no token for the byte {b}"));
        }
        Ok(out)
    }

    /// With tokens that stand as they are, as a `tokenizer.json` lists them under `added_tokens`.
    pub fn add(&mut self, added: &Value) {
        for token in added.as_array().into_iter().flatten() {
            let Some(at) = token["id"].as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n < MOST) else {
                continue;
            };
            if self.tokens.len() <= at {
                self.tokens.resize(at + 1, String::new());
                self.scores.resize(at + 1, 0.0);
                self.types.resize(at + 1, UNUSED);
            }
            let (content, special) = (token["content"].as_str().unwrap_or_default(), token["special"] == true);
            if self.types[at] == UNKNOWN {
                continue;
            }
            self.types[at] = if special { CONTROL } else { USERS };
            self.tokens[at] = if special { content.to_owned() } else { content.replace(SPACE, " ") };
        }
    }

    /// What cuts text by it.
    pub(super) fn spm(&self) -> Spm {
        let types = self.types.iter().map(|t| f64::from(*t)).collect();
        let scores: Vec<f64> = self.scores.iter().map(|s| f64::from(*s)).collect();
        Spm::gguf(&Vocabulary { tokens: self.tokens.iter().map(String::as_str).collect(), types }, &scores, self.prefix)
    }
}

/// A vocabulary of GGUF's with scores as the `tokenizer.json` that transformers makes of SentencePiece's; `begin`: the token that it puts before a
/// text.
pub(super) fn json(v: &Vocabulary<'_>, scores: &[f64], prefix: bool, begin: Option<u32>) -> Value {
    let ids: HashMap<&str, usize> = v.tokens.iter().enumerate().rev().map(|(id, t)| (*t, id)).collect();
    let kind = |id: usize| v.types.get(id).copied().unwrap_or(1.0);
    // Merges of a piece by the ids of its halves, pieces by their scores.
    let mut merges: Vec<(usize, usize, usize)> = Vec::new();
    for (id, token) in v.tokens.iter().enumerate().filter(|(id, _)| kind(*id) == 1.0) {
        for (i, _) in token.char_indices().skip(1) {
            let (a, b) = token.split_at(i);
            if let (Some(a), Some(b)) = (ids.get(a), ids.get(b)) {
                merges.push((id, *a, *b));
            }
        }
    }
    let score = |id: usize| scores.get(id).copied().unwrap_or(0.0);
    merges.sort_by(|x, y| score(y.0).total_cmp(&score(x.0)).then((x.0, x.1, x.2).cmp(&(y.0, y.1, y.2))));
    let merges: Vec<Value> = merges.iter().map(|(_, a, b)| json!([v.tokens[*a], v.tokens[*b]])).collect();
    let unknown = (0..v.tokens.len()).find(|id| kind(*id) == 2.0);
    let added: Vec<Value> = v
        .whole()
        .map(|(id, token, special)| {
            json!({ "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": special })
        })
        .collect();
    let vocab: Map<String, Value> = (v.tokens.iter().enumerate())
        .filter(|(id, _)| kind(*id) != 5.0)
        .map(|(id, t)| ((*t).to_owned(), json!(id)))
        .collect();
    let replaced = json!({ "type": "Replace", "pattern": { "String": " " }, "content": SPACE });
    let mut normal = vec![json!({ "type": "Prepend", "prepend": SPACE }), replaced];
    let mut decoders = vec![
        json!({ "type": "Replace", "pattern": { "String": SPACE }, "content": " " }),
        json!({ "type": "ByteFallback" }),
        json!({ "type": "Fuse" }),
    ];
    match prefix {
        true => decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 })),
        false => _ = normal.remove(0),
    }
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": { "type": "Sequence", "normalizers": normal },
        "pre_tokenizer": null,
        "post_processor": template(v, begin),
        "decoder": { "type": "Sequence", "decoders": decoders },
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": unknown.map(|id| v.tokens[id]),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": true,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": merges,
        },
    })
}

/// The post-processor that puts `begin` before a text; null for none.
pub(super) fn template(v: &Vocabulary<'_>, begin: Option<u32>) -> Value {
    let begin = begin.and_then(|id| Some((id, *v.tokens.get(id as usize)?)));
    begin.map_or(Value::Null, |(id, token)| {
        let first = json!({ "SpecialToken": { "id": token, "type_id": 0 } });
        let text = |id: &str, kind: u8| json!({ "Sequence": { "id": id, "type_id": kind } });
        json!({ "type": "TemplateProcessing", "single": [first, text("A", 0)], "pair": [first, text("A", 0), text("B", 1)],
            "special_tokens": { token: { "id": token, "ids": [id], "tokens": [token] } } })
    })
}

/// The place of every piece that is joined, and the pairs that make one.
struct Ranks<'a> {
    of: HashMap<String, usize>,
    pairs: HashSet<(&'a str, &'a str)>,
}

fn ranks(model: &Value) -> Result<Ranks<'_>, String> {
    let merges = model["merges"].as_array().ok_or("it has no merges")?;
    let mut out = Ranks { of: HashMap::with_capacity(merges.len()), pairs: HashSet::with_capacity(merges.len()) };
    let mut last = String::new();
    for merge in merges {
        let pair = match merge {
            Value::String(pair) => pair.split_once(' '),
            other => other[0].as_str().zip(other[1].as_str()),
        };
        let (a, b) = pair.ok_or("it has merges that are no pairs")?;
        let whole = format!("{a}{b}");
        if whole != last {
            if out.of.contains_key(&whole) {
                return Err(format!("its merges of `{whole}` stand apart, which SentencePiece's do not"));
            }
            out.of.insert(whole.clone(), out.of.len());
            last = whole;
        }
        out.pairs.insert((a, b));
    }
    Ok(out)
}

/// Whether text begins with a blank whatever it begins with; `None` where it is cut or changed in another way than blanks becoming `▁`.
fn prefix(json: &Value) -> Option<bool> {
    let one = [&json["normalizer"]];
    let stages: Vec<&Value> = match &json["normalizer"] {
        Value::Null => Vec::new(),
        many if many["type"] == "Sequence" => many["normalizers"].as_array()?.iter().collect(),
        _ => one.to_vec(),
    };
    let replaces = |s: &Value| s["type"] == "Replace" && s["pattern"]["String"] == " " && s["content"] == SPACE;
    let prepends = |s: &Value| s["type"] == "Prepend" && s["prepend"] == SPACE;
    let pre = &json["pre_tokenizer"];
    // No blank is left to cut at.
    let whole = pre.is_null() || pre["type"] == "Split" && pre["pattern"]["String"] == " ";
    match stages[..] {
        [first, then] if prepends(first) && replaces(then) && whole => Some(true),
        [only] if replaces(only) && whole => Some(false),
        [] if pre["type"] == "Metaspace" && pre["replacement"] == SPACE && pre["split"] == false => {
            Some(match pre["prepend_scheme"].as_str() {
                Some(scheme) => scheme != "never",
                None => pre["add_prefix_space"] != false,
            })
        }
        _ => None,
    }
}

/// The byte that a token such as `<0x0A>` stands for.
fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}
