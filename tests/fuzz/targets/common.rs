//! What the targets share: a folder in memory that the input is written to, opening it as a user would, reading images.

#![allow(dead_code)]

use paring::data;
use paring::model::{Fit, Interpolation, LoadOptions, Preprocess, load_bytes};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

static FOLDER: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let shm = Path::new("/dev/shm");
    let made = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
    made.expect("a folder")
});

/// Panics of libraries that the program catches and tells are no findings: the fuzzer's own hook would end the process at them.
static CAUGHT: LazyLock<()> = LazyLock::new(|| {
    let fuzzer = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| if !paring::words::hushed() { fuzzer(info) }));
});

/// Writes a file below the folder and gives its path.
pub fn put(name: &str, bytes: &[u8]) -> PathBuf {
    LazyLock::force(&CAUGHT);
    let path = FOLDER.path().join(name);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(&path, bytes).expect("written");
    path
}

/// Opens a path and reads at most four images: labels are below the class count, errors hold a hint and no control
/// characters.
pub fn read(path: &Path, channels: usize) {
    let prep = Preprocess {
        size: [8, 8],
        channels,
        resize_shorter: None,
        fit: Fit::default(),
        mean: [0.0; 3],
        std: [1.0; 3],
        interpolation: Interpolation::Bilinear,
        origin: String::new(),
    };
    let text = |e: data::DataError| {
        let text = e.to_string();
        assert!(text.contains("hint: ") && !text.chars().any(char::is_control), "{text:?}");
    };
    match data::open(path.to_str().expect("text"), 0) {
        Ok(set) => {
            assert!((0..set.len()).all(|i| set.label(i).is_some_and(|l| (l as usize) < set.classes())));
            assert_eq!(set.class_names().len(), set.classes());
            if let Err(e) = set.batch(0..set.len().min(4), &prep) {
                text(e);
            }
        }
        Err(e) => text(e),
    }
}

/// Loads a checkpoint from bytes.
pub fn model(bytes: &[u8]) {
    // Freed again below: the loader wants bytes that outlive the model.
    let held: *mut [u8] = Box::into_raw(bytes.to_vec().into_boxed_slice());
    // SAFETY: `held` is valid until it is freed, after the model that refers to it is gone.
    let lent: &'static [u8] = unsafe { &*held };
    match load_bytes("fuzz", lent, &LoadOptions::default()) {
        Ok(model) => drop(model),
        Err(e) => assert!(e.to_string().contains("hint: "), "{e}"),
    }
    // SAFETY: from `Box::into_raw` above, freed once.
    drop(unsafe { Box::from_raw(held) });
}
