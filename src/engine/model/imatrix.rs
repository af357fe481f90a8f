//! Importance matrices: how much each input column of a layer counts when its weight is rounded, which is the mean of squared
//! activations over calibration text. As llama.cpp's `llama-imatrix` writes them (`imatrix.cpp`): sums and counts in a GGUF file, or
//! means in the older `.dat`. Tensors go by llama.cpp's names where the family has such, else by their own.
//!
//! Invariant: sums and counts are finite and not negative. Not here: running models for them (`recover`), and what blocks make of
//! them (`ggml`).

use super::families::{Source, called, stack_of};
use super::ggml::Block;
use super::gguf::{self, Fields};
use super::{Blob, Model, ModelError, Param, RawTensor, Result, printable, written};
use crate::graph::{Graph, ParamRole, Precision};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

/// What the names of tensors in such files end in.
const SUMS: &str = ".in_sum2";
const COUNTS: &str = ".counts";

/// Sums of squared inputs of a tensor, or of the matrices that are stacked in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Squares {
    /// `[matrices, columns]`, row-major.
    sums: Vec<f32>,
    /// Rows of activations that went into each matrix's sums.
    counts: Vec<f32>,
}

impl Squares {
    /// Of `sums` over `counts.len()` matrices; `None` unless they are whole, finite and not negative.
    pub fn new(sums: Vec<f32>, counts: Vec<f32>) -> Option<Squares> {
        let sound = |v: &[f32]| !v.is_empty() && v.iter().all(|v| v.is_finite() && *v >= 0.0);
        let whole = sums.len().checked_rem(counts.len()) == Some(0);
        (whole && sound(&sums) && sound(&counts)).then_some(Squares { sums, counts })
    }

    /// Columns of a matrix.
    pub fn columns(&self) -> usize {
        self.sums.len() / self.counts.len()
    }

    /// The mean squares of each column, matrix after matrix; ones for a matrix that saw nothing.
    pub fn means(&self) -> Vec<f32> {
        let each = self.sums.chunks_exact(self.columns()).zip(&self.counts);
        each.flat_map(|(sums, n)| sums.iter().map(move |s| if *n > 0.0 { s / n } else { 1.0 })).collect()
    }
}

/// How much the columns of weights count, by the weight's name.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imatrix {
    /// What they were collected on, in words.
    pub datasets: Vec<String>,
    /// Windows of text that were looked at, and tokens a window.
    pub chunks: usize,
    pub chunk_size: usize,
    pub tensors: BTreeMap<String, Squares>,
}

/// Which importances a model was rounded with: a part of what it is a function of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImatrixMark {
    pub file: String,
    pub datasets: Vec<String>,
    pub chunks: usize,
    /// Tensors in the file.
    pub entries: usize,
    /// Weights that were rounded with it.
    pub used: usize,
    /// BLAKE3 (hex) over names and means.
    pub hash: String,
}

/// What [`Imatrix::round`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rounded {
    /// Weights that were rounded by importance.
    pub used: usize,
    /// Weights in a format that takes importance, of which the matrix knows nothing.
    pub unknown: Vec<String>,
}

impl Imatrix {
    /// Reads a file of either format, told by content.
    ///
    /// # Errors
    /// What cannot be read, is damaged or holds no importances.
    pub fn open(path: &Path) -> Result<Imatrix> {
        let blob = Blob::open(path).map_err(ModelError::read(path))?;
        let found = if blob.starts_with(gguf::MAGIC) { of_gguf(&blob, path)? } else { legacy(&blob, path)? };
        match found.tensors.is_empty() {
            false => Ok(found),
            true => Err(nothing(path, "it holds no importances")),
        }
    }

    /// Writes it as `llama-imatrix` does. Returns the BLAKE3 (hex) of the file.
    ///
    /// # Errors
    /// [`ModelError::Write`].
    pub fn write(&self, path: &Path) -> Result<String> {
        let mut fields = Fields::default();
        fields.string("general.type", "imatrix");
        fields.strings("imatrix.datasets", &self.datasets);
        fields.u32("imatrix.chunk_count", self.chunks);
        fields.u32("imatrix.chunk_size", self.chunk_size);
        let bytes = |v: &[f32]| v.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let (mut infos, mut bodies) = (Vec::new(), Vec::new());
        for (name, s) in &self.tensors {
            let matrices = s.counts.len();
            for (ending, columns, values) in [(SUMS, s.columns(), &s.sums), (COUNTS, 1, &s.counts)] {
                let body = bytes(values);
                let name = format!("{name}{ending}");
                infos.push(gguf::Info { name, shape: vec![matrices, columns], kind: 0, bytes: body.len() });
                bodies.push(body);
            }
        }
        written::replace(path, |out| gguf::write(out, &fields, &infos, |i| Ok(Cow::Borrowed(&bodies[i]))))
            .map_err(ModelError::write(path))
    }

    /// The mean squares of the columns of the weight called `name`, or of all experts that are stacked with it.
    fn means(&self, name: &str) -> Option<Vec<f32>> {
        let found = self.tensors.get(name).or_else(|| self.tensors.get(&stack_of(name)?.0))?;
        Some(found.means())
    }

    /// The mean squares of the `columns` columns of the weight called `name`; `None` where nothing is known of it, or of others.
    pub fn columns(&self, name: &str, columns: usize) -> Option<Vec<f32>> {
        let found = own_part(name, self.means(name)?, columns);
        (found.len() == columns).then_some(found)
    }

    /// Rounds each weight of `model` whose precision is one of GGML's formats by the importance of its columns. Weights that are stored
    /// in that format already stay; those of which nothing is known are rounded later as without importances, and told.
    ///
    /// # Errors
    /// Importances of other columns than a weight has, by name; a parameter that is missing.
    pub fn round(&self, model: &mut Model, path: &Path) -> Result<Rounded> {
        let names = names(&model.graph);
        let mut done = Rounded::default();
        let graph = model.graph.clone();
        for (_, node) in graph.live().filter(|(_, n)| n.op.is_conv_or_linear()) {
            let Precision::Block(block) = model.precision.get(&node.name) else { continue };
            let Some(own) = node.param(ParamRole::Weight) else { continue };
            let param = model.params.get(own)?;
            let takes = block != Block::Q8_0 && model.precision.get(&node.name).unfit(&node.op).is_none();
            if !takes || param.is_in(model.precision.get(&node.name).weights()) {
                continue;
            }
            let name = names.get(own).map_or(own, String::as_str);
            let Some((means, columns)) = self.means(name).map(|m| (m, param.shape().iter().skip(1).product::<usize>()))
            else {
                done.unknown.push(name.to_owned());
                continue;
            };
            let means = own_part(name, means, columns);
            if means.len() != columns {
                let why = format!("`{}` has {columns} columns and {} importances", printable(name), means.len());
                return Err(ModelError::unsupported(path, why, "take the matrix of this very model"));
            }
            let blocks = block.encode_weighted(&param.values(), &means);
            if let Some(rounded) = Param::of_blocks(param.shape().to_vec(), blocks, block) {
                model.params.insert(own, rounded);
                done.used += 1;
            }
        }
        Ok(done)
    }

    /// Experts of a layer as one tensor, where all of them are there: as llama.cpp has them.
    pub fn stack_experts(&mut self) {
        let mut stacks: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
        for name in self.tensors.keys() {
            if let Some((stack, place)) = stack_of(name) {
                stacks.entry(stack).or_default().insert(place, name.clone());
            }
        }
        for (stack, names) in stacks {
            let parts: Vec<&Squares> = names.values().filter_map(|n| self.tensors.get(n)).collect();
            let whole =
                names.keys().copied().eq(0..parts.len()) && parts.iter().all(|p| p.columns() == parts[0].columns());
            let joined = |of: fn(&Squares) -> &[f32]| parts.iter().flat_map(|p| of(p)).copied().collect();
            let Some(all) = Squares::new(joined(|p| &p.sums), joined(|p| &p.counts)).filter(|_| whole) else {
                continue;
            };
            self.tensors.insert(stack, all);
            names.values().for_each(|n| _ = self.tensors.remove(n));
        }
    }

    /// What tells it from another, after `used` weights were rounded with it.
    pub fn mark(&self, path: &Path, used: usize) -> ImatrixMark {
        let mut hash = blake3::Hasher::new();
        for (name, squares) in &self.tensors {
            let means = squares.means();
            hash.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
            hash.update(&(means.len() as u64).to_le_bytes());
            means.iter().for_each(|v| {
                hash.update(&v.to_le_bytes());
            });
        }
        ImatrixMark {
            file: path.file_name().map(|f| printable(&f.to_string_lossy())).unwrap_or_default(),
            datasets: self.datasets.iter().map(|d| printable(d)).collect(),
            chunks: self.chunks,
            entries: self.tensors.len(),
            used,
            hash: hash.finalize().to_hex().to_string(),
        }
    }
}

/// Of an expert's means those of its place among all of its layer.
fn own_part(name: &str, means: Vec<f32>, columns: usize) -> Vec<f32> {
    let place = stack_of(name).map(|(_, place)| place).filter(|_| means.len() != columns);
    let own = place.and_then(|i| means.get(i.checked_mul(columns)?..)?.get(..columns).map(<[f32]>::to_vec));
    own.unwrap_or(means)
}

/// What importances call the weights of `graph`, by the parameters' own names: as in the file that llama.cpp would load, where an
/// embedding that is a layer's weight comes first. Layers keep their numbers when others are removed.
pub fn names(graph: &Graph) -> HashMap<String, String> {
    let theirs = called(graph, Source::Gguf).unwrap_or_default();
    let mut out = HashMap::new();
    for (_, node) in graph.live() {
        let Some(own) = node.param(ParamRole::Weight) else { continue };
        let ending = own.rsplit_once('.').map_or(own, |(_, ending)| ending);
        let name = theirs.get(&node.name).map_or_else(|| own.to_owned(), |n| format!("{n}.{ending}"));
        out.entry(own.to_owned()).or_insert(name);
    }
    out
}

fn nothing(path: &Path, why: &str) -> ModelError {
    ModelError::unsupported(path, why, "`paring imatrix` or llama.cpp's `llama-imatrix` writes such a file")
}

fn of_gguf(blob: &Blob, path: &Path) -> Result<Imatrix> {
    let found = gguf::read(blob, path)?;
    let damaged = |name: &str, why: &str| ModelError::damaged(path, format!("`{}` {why}", printable(name)));
    let values = |name: &str| match found.tensors.get(name) {
        Some(RawTensor::Float(p)) => Some(p.values().into_owned()),
        _ => None,
    };
    let mut out = Imatrix::default();
    for name in found.tensors.keys().filter_map(|n| n.strip_suffix(SUMS)) {
        let sums = values(&format!("{name}{SUMS}"));
        let (Some(sums), Some(counts)) = (sums, values(&format!("{name}{COUNTS}"))) else {
            return Err(damaged(name, "has sums or counts alone, or not as floats"));
        };
        let squares = Squares::new(sums, counts)
            .ok_or_else(|| damaged(name, "has sums or counts that are negative, no numbers, or do not fit together"))?;
        out.tensors.insert(name.to_owned(), squares);
    }
    if let Some(m) = &found.gguf {
        let count = |key: &str| m.count(key).unwrap_or(0);
        (out.chunks, out.chunk_size) = (count("imatrix.chunk_count"), count("imatrix.chunk_size"));
        out.datasets = m.strings("imatrix.datasets").unwrap_or_default().into_iter().map(str::to_owned).collect();
    }
    Ok(out)
}

/// What is left of a file of the older format.
struct Left<'a>(&'a [u8]);

impl<'a> Left<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(head)
    }

    /// A whole number that is not negative.
    fn count(&mut self) -> Option<usize> {
        let b = self.take(4)?;
        usize::try_from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])).ok()
    }

    fn text(&mut self) -> Option<&'a str> {
        let n = self.count()?;
        std::str::from_utf8(self.take(n)?).ok()
    }
}

/// The older format: entries of a name, the number of calls, and means times that number; then the calls in all and the data set.
fn legacy(bytes: &[u8], path: &Path) -> Result<Imatrix> {
    let mut left = Left(bytes);
    let mut out = Imatrix::default();
    // An entry has twelve bytes and a value at least.
    let entries = left.count().filter(|n| (1..=bytes.len() / 16).contains(n));
    let Some(entries) = entries else { return Err(nothing(path, "it is no file of importances")) };
    for i in 0..entries {
        let entry = |left: &mut Left<'_>| {
            let name = left.text().filter(|n| !n.is_empty())?.to_owned();
            let (calls, values) = (left.count()?, left.count()?);
            let values = left.take(values.checked_mul(4)?)?.chunks_exact(4);
            let values = values.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            // Without a number the values are the means.
            Some((name, Squares::new(values, vec![calls.max(1) as f32])?))
        };
        match entry(&mut left) {
            Some((name, squares)) => out.tensors.insert(name, squares),
            // Any file may begin with a small number.
            None if i == 0 => return Err(nothing(path, "it is no file of importances")),
            None => return Err(ModelError::damaged(path, format!("entry {} of {entries} is cut or none", i + 1))),
        };
    }
    // The first files had no more.
    out.chunks = left.count().unwrap_or(0);
    out.datasets = left.text().map(str::to_owned).into_iter().collect();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::WeightFormat;
    use crate::model::{LoadOptions, load};
    use std::path::PathBuf;

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/blocks").join(name)
    }

    fn saved(bytes: &[u8]) -> Result<Imatrix> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        Imatrix::open(file.path())
    }

    #[test]
    fn both_formats_say_the_same() {
        for name in ["imatrix.gguf", "imatrix.dat"] {
            let m = Imatrix::open(&fixture(name)).unwrap();
            assert_eq!((m.datasets, m.chunks), (vec!["some.txt".to_owned()], 2), "{name}");
            let means = |tensor: &str| m.tensors[tensor].means();
            assert_eq!(means("blk.0.attn_q.weight"), [0.03125, 0.5, 0.125, 2.0], "{name}");
            // An expert that was never asked.
            assert_eq!(means("blk.0.ffn_up_exps.weight"), [1.0, 2.0, 1.0, 1.0], "{name}");
            assert_eq!(m.tensors.len(), 2);
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let was = Imatrix::open(&fixture("imatrix.gguf")).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let hash = was.write(file.path()).unwrap();
        let again = Imatrix::open(file.path()).unwrap();
        assert_eq!((&again, again.chunk_size, hash.len()), (&was, 8, 64));
        assert_eq!(again.mark(file.path(), 1).hash, was.mark(Path::new("x"), 1).hash);
    }

    #[test]
    fn files_that_are_cut_or_lie_are_refused_in_words() {
        for name in ["imatrix.gguf", "imatrix.dat"] {
            let whole = std::fs::read(fixture(name)).unwrap();
            // What follows the last entry of the older format may be missing.
            let needed = if name.ends_with("gguf") { whole.len() - 32 } else { whole.len() - 16 };
            for n in 0..needed {
                let error = saved(&whole[..n]).expect_err("cut").to_string();
                assert!(error.contains("hint: ") && !error.chars().any(char::is_control), "{name} {n}: {error}");
            }
        }
        let dat = |values: f32, count: i32, n: i32| {
            let mut b = 1i32.to_le_bytes().to_vec();
            b.extend([1i32.to_le_bytes(), [b'a'; 4], count.to_le_bytes(), n.to_le_bytes()].concat());
            b.drain(9..12);
            b.extend(values.to_le_bytes());
            b
        };
        assert_eq!(saved(&dat(3.0, 2, 1)).unwrap().tensors["a"].means(), [1.5]);
        assert_eq!(saved(&dat(3.0, 0, 1)).unwrap().tensors["a"].means(), [3.0]);
        for bad in [dat(-1.0, 1, 1), dat(f32::NAN, 1, 1), dat(1.0, 1, i32::MAX), dat(1.0, -1, 1), dat(1.0, 1, 0)] {
            assert!(saved(&bad).is_err());
        }
        assert!(saved(b"some text that is long enough").is_err() && saved(&[]).is_err());
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/blocks/encoded.gguf");
        assert!(Imatrix::open(&model).unwrap_err().to_string().contains("no importances"));
        assert!(Squares::new(vec![1.0; 4], vec![]).is_none() && Squares::new(vec![1.0; 4], vec![1.0; 3]).is_none());
    }

    #[test]
    fn weights_are_rounded_by_the_names_of_llama_cpp_and_others_are_told() {
        let mut model = load(&fixture("../language/llama"), &LoadOptions::default()).unwrap();
        let names = names(&model.graph);
        assert_eq!(names["layers.0.self_attn.q_proj.weight"], "blk.0.attn_q.weight");
        let (own, theirs) = ("layers.0.self_attn.q_proj", "blk.0.attn_q.weight");
        let columns = model.params.get("layers.0.self_attn.q_proj.weight").unwrap().shape()[1];
        let block = Block::Q4_0;
        for node in [own, "layers.0.self_attn.k_proj"] {
            model.precision.set(node, Precision::Block(block));
        }
        let sums: Vec<f32> = (0..columns).map(|i| if i % 5 == 0 { 900.0 } else { 1.0 }).collect();
        let mut matrix = Imatrix::default();
        matrix.tensors.insert(theirs.to_owned(), Squares::new(sums.clone(), vec![1.0]).unwrap());
        let before = model.params.get(&format!("{own}.weight")).unwrap().values().into_owned();
        let done = matrix.round(&mut model, Path::new("m")).unwrap();
        assert_eq!((done.used, &done.unknown[..]), (1, &["blk.0.attn_k.weight".to_owned()][..]));
        let rounded = model.params.get(&format!("{own}.weight")).unwrap();
        assert!(rounded.is_in(WeightFormat::Block(block)));
        assert_eq!(rounded.as_blocks().unwrap().1, block.encode_weighted(&before, &sums));
        // Once rounded it stays.
        assert_eq!(matrix.round(&mut model, Path::new("m")).unwrap().used, 0);
        matrix.tensors.insert("blk.0.attn_k.weight".to_owned(), Squares::new(vec![1.0; 3], vec![1.0]).unwrap());
        let error = matrix.round(&mut model, Path::new("m")).unwrap_err().to_string();
        assert!(error.contains("blk.0.attn_k.weight") && error.contains("3 importances"), "{error}");
    }
}
