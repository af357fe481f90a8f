//! What can be wrong with a data set, in words that name the file and say what to do.

use std::path::PathBuf;

/// Why a data set could not be opened or a batch could not be made.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error(
        "no data at `{path}`; hint: give a CIFAR `.bin` file or directory, a folder with one sub-folder per class, or `synthetic`"
    )]
    NotFound { path: PathBuf },
    #[error("cannot read `{path}`: {source}; hint: check that the file exists and may be read")]
    Io { path: PathBuf, source: std::io::Error },
    #[error("`{what}` holds no images; hint: {hint}")]
    Empty { what: String, hint: String },
    #[error(
        "`{path}` has {bytes} bytes, which is no whole number of CIFAR records (3073 or 3074 bytes each); hint: the file is \
         truncated or of another format: download it again"
    )]
    Truncated { path: PathBuf, bytes: u64 },
    #[error("`{path}` has {bytes} bytes, more than a CIFAR-format file may have ({limit}); hint: use an image folder")]
    TooLarge { path: PathBuf, bytes: u64, limit: u64 },
    #[error("record {index} of `{path}` has label `{label}`, but there are {classes} classes; hint: {hint}")]
    Label { path: PathBuf, index: usize, label: u64, classes: usize, hint: String },
    #[error("line {line} of `{path}` cannot be used: {reason}; hint: each line is `file,class_index[,class name]`")]
    Labels { path: PathBuf, line: usize, reason: String },
    #[error("cannot decode the image `{path}`: {reason}; hint: remove or re-encode it (png and jpeg are read)")]
    Image { path: PathBuf, reason: String },
    #[error(
        "`{path}` is not a data set: {seen}; hint: expected `test_batch.bin`, `data_batch_*.bin`, `test.bin`, `train.bin`, or one sub-folder of png/jpeg images per class"
    )]
    Unknown { path: PathBuf, seen: String },
    #[error("the files of one data set disagree: {reason}; hint: open them one at a time")]
    Mixed { reason: String },
    #[error(
        "data set `{data}` has {data_classes} classes, model `{model}` has {model_classes}; hint: evaluate a model on the data it was trained for"
    )]
    Classes { data: String, data_classes: usize, model: String, model_classes: usize },
    #[error("`{spec}` names no split; hint: {hint}")]
    Split { spec: String, hint: String },
    #[error("image `{index}` asked of a set of {len}; hint: use a smaller index or limit")]
    Index { index: usize, len: usize },
    #[error("preprocessing cannot be used: {reason}; hint: check `preprocessor_config.json` or the flags")]
    Preprocess { reason: String },
    #[error("cannot make the batch tensor: {0}; hint: use a smaller batch")]
    Tensor(#[from] candle_core::Error),
}
