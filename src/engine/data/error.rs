//! What can be wrong with a data set, in words that name the file and say what to do.

use crate::words::TensorError;

use std::io;
use std::path::{Path, PathBuf};

/// What is read, in words.
pub(super) const KINDS: &str = "a folder with one sub-folder of images per class, images with a `labels.csv`, CIFAR \
                                 binaries or Python pickles, IDX files (MNIST), Parquet (`*.parquet`), WebDataset \
                                 (`*.tar`), or `synthetic:eval`";

/// The same of texts with classes, and of text to be foretold.
pub(super) const CLASSED: &str = "a file of JSON lines of `text` and a whole-number `label`, or a CSV file of these";
pub(super) const TEXTS: &str =
    "a file of plain text, of documents (JSONL, Parquet), or of token ids (`.u16`), or `synthetic:eval`";

/// Why a data set could not be opened or a batch could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("no data at `{path}`; hint: give {kinds}")]
    NotFound { path: PathBuf, kinds: &'static str },
    #[error("cannot read `{path}`: {source}; hint: check that the file is whole and may be read")]
    Io { path: PathBuf, source: io::Error },
    #[error("`{what}` holds no images; hint: {hint}")]
    Empty { what: String, hint: String },
    #[error(
        "`{path}` has {bytes} bytes, which is no whole number of CIFAR records (3073 or 3074 bytes each), and it begins like \
         no other kind that is read; hint: the file is truncated or of another format: download it again"
    )]
    Truncated { path: PathBuf, bytes: u64 },
    #[error("`{path}` has more than the {limit} bytes that a file of its kind may have; hint: use an image folder")]
    TooLarge { path: PathBuf, limit: u64 },
    #[error("record {index} of `{path}` has label `{label}`, but there are {classes} classes; hint: {hint}")]
    Label { path: PathBuf, index: usize, label: u64, classes: usize, hint: String },
    #[error("line {line} of `{path}` cannot be used: {reason}; hint: each line is `file,class_index[,class name]`")]
    Labels { path: PathBuf, line: usize, reason: String },
    #[error("`{path}` cannot be used as a class list: {reason}; hint: one class a line, in index order")]
    Names { path: PathBuf, reason: String },
    #[error("folder `{folder}` of `{path}` is not in {list}; hint: add it to the list, or move the folder away")]
    Folder { path: PathBuf, folder: String, list: String },
    #[error("cannot decode the image `{name}`: {reason}; hint: remove or re-encode it (png, jpeg and webp are read)")]
    Image { name: String, reason: String },
    #[error(
        "the image `{name}` changed while the data set was in use; hint: what was measured before is of the old one: put it \
         back, or open a new session"
    )]
    Changed { name: String },
    #[error("`{path}` is no readable IDX file: {reason}; hint: `*-images-idx3-ubyte[.gz]` with its labels beside it")]
    Idx { path: PathBuf, reason: String },
    #[error(
        "`{path}` is no CIFAR batch: {reason}; hint: `test_batch` or `test` of `cifar-10-batches-py` or `cifar-100-python`"
    )]
    Pickle { path: PathBuf, reason: String },
    #[error("`{path}` is no readable WebDataset shard: {reason}; hint: members are `KEY.jpg` and `KEY.cls`")]
    Tar { path: PathBuf, reason: String },
    #[error(
        "`{path}` cannot be read as Parquet: {reason}; hint: a column `image` of `bytes` and a whole-number `label`"
    )]
    Parquet { path: PathBuf, reason: String },
    #[error(
        "row {row} of `{path}` has label `{label}`, which is no class; hint: labels of test parts are often withheld (-1): \
         use the validation part (`DIR:validation`)"
    )]
    Unlabelled { path: PathBuf, row: usize, label: i64 },
    #[error("`{path}` cannot be used as text: {reason}; hint: {hint}")]
    Text { path: PathBuf, reason: String, hint: String },
    #[error("`{path}` is not a data set: {seen}; hint: expected {KINDS}")]
    Unknown { path: PathBuf, seen: String },
    #[error("the files of one data set disagree: {reason}; hint: open them one at a time")]
    Mixed { reason: String },
    #[error("data set `{data}` has {data_classes} classes, model `{model}` has {model_classes}; hint: {hint}")]
    Classes { data: String, data_classes: usize, model: String, model_classes: usize, hint: String },
    #[error("`{spec}` names no part; hint: {hint}")]
    Split { spec: String, hint: String },
    #[error("{count} items of unlike lengths asked for as one batch; hint: this is a mistake of the program")]
    Lengths { count: usize },
    #[error("image `{index}` asked of a set of {len}; hint: use a smaller index or limit")]
    Index { index: usize, len: usize },
    #[error("preprocessing cannot be used: {reason}; hint: check `preprocessor_config.json` or the flags")]
    Preprocess { reason: String },
    #[error("cannot make the batch tensor: {0}")]
    Tensor(TensorError),
}

impl From<candle_core::Error> for DataError {
    fn from(e: candle_core::Error) -> DataError {
        DataError::Tensor(e.into())
    }
}

impl DataError {
    /// Why `path` cannot be read.
    pub(super) fn io(path: &Path) -> impl Fn(io::Error) -> DataError + Copy + '_ {
        |source| DataError::Io { path: path.to_owned(), source }
    }

    /// The same of what the user named, which may not be there at all, where `kinds` are read.
    pub(super) fn opening<'a>(path: &'a Path, kinds: &'static str) -> impl Fn(io::Error) -> DataError + Copy + 'a {
        move |source| match source.kind() {
            io::ErrorKind::NotFound => DataError::NotFound { path: path.to_owned(), kinds },
            _ => DataError::Io { path: path.to_owned(), source },
        }
    }

    pub(super) fn empty(what: &str, hint: impl Into<String>) -> DataError {
        DataError::Empty { what: what.to_owned(), hint: hint.into() }
    }

    pub(super) fn unknown(path: &Path, seen: impl Into<String>) -> DataError {
        DataError::Unknown { path: path.to_owned(), seen: seen.into() }
    }
}
