//! A few hundred seeded mutations of a whole file of each kind: opening it and reading some images ends in a set or in an
//! error with a hint, soon, and without filling the memory. `tests/fuzz/` looks further.

use crate::checkpoints::{Pickle, legacy, plain_safetensors, tensors_of, torch_zip};
use crate::files::*;
use paring::model::families::CifarResnetSpec;
use paring::model::{FamilySpec, export};
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// `PARING_MUTATIONS` asks for more of them, from other seeds.
const EACH: usize = 400;
/// What one case may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);
/// What all cases together may add to the process's memory: a limit of the readers is 1 GiB, reached by none of these.
const MEMORY: u64 = 700 << 20;

/// A file to change, other files beside it, and what to open.
struct Seed {
    file: PathBuf,
    bytes: Vec<u8>,
    opened: PathBuf,
}

fn seeds(dir: &Path) -> Vec<Seed> {
    let mut all = Vec::new();
    let mut add = |folder: &str, file: &str, bytes: Vec<u8>, beside: &[(&str, Vec<u8>)], whole: bool| {
        let at = dir.join(folder);
        let file = at.join(file);
        fs::create_dir_all(file.parent().expect("a folder")).expect("folder");
        for (name, bytes) in beside {
            fs::write(at.join(name), bytes).expect("written");
        }
        fs::write(&file, &bytes).expect("written");
        let opened = if whole { at } else { file.clone() };
        all.push(Seed { file, bytes, opened });
    };
    let idx_bytes = idx(&[3, 4, 4], &[77; 48]);
    let idx_labels = idx(&[3], &[1, 2, 3]);
    add("idx", "a-images-idx3-ubyte", idx_bytes.clone(), &[("a-labels-idx1-ubyte", idx_labels.clone())], false);
    add("idxl", "a-labels-idx1-ubyte", idx_labels.clone(), &[("a-images-idx3-ubyte", idx_bytes.clone())], true);
    add("gz", "a-images-idx3-ubyte.gz", gzip(&idx_bytes), &[("a-labels-idx1-ubyte", idx_labels)], false);
    add("bin", "test.bin", cifar(2), &[], false);
    let pixels: Vec<u8> = (0..2 * 3072).map(|i| (i % 250) as u8).collect();
    add("pickle", "test_batch", cifar_pickle(&[1, 2], &pixels, false), &[], true);
    let (one, two) = (png([1, 2, 3]), encoded([9, 200, 3], 8, image::ImageFormat::Jpeg));
    let shard = tar(&[("1.png", &one), ("1.cls", b"1"), ("2.jpg", &two), ("2.json", br#"{"label": 0}"#)]);
    add("tar", "x.tar", shard, &[], false);
    for (name, codec) in [("snappy", Compression::SNAPPY), ("zstd", Compression::ZSTD(Default::default()))] {
        let rows = [(Some(one.clone()), 1), (Some(two.clone()), 0), (Some(png([7; 3])), 1)];
        let props = WriterProperties::builder().set_compression(codec).build();
        add(name, "x.parquet", parquet(&rows, 2, props, &["a", "b"]), &[], false);
    }
    let csv = b"file,class_index,name\n\"a.png\",1,x\nb.png,0,y\n".to_vec();
    add("csv", "labels.csv", csv, &[("a.png", one.clone()), ("b.png", one.clone())], true);
    add("list", "classes.txt", b"one\ntwo\n".to_vec(), &[], true);
    fs::create_dir_all(dir.join("list/one")).expect("folder");
    fs::write(dir.join("list/one/a.png"), &one).expect("written");
    for (name, format) in [("png", image::ImageFormat::Png), ("jpg", image::ImageFormat::Jpeg)] {
        add(name, &format!("one/a.{name}"), encoded([9, 8, 7], 8, format), &[], true);
    }
    add("webp", "one/a.webp", encoded([9, 8, 7], 8, image::ImageFormat::WebP), &[], true);
    all
}

/// Flipped bits, cut ends, repeated or dropped spans, and numbers that mean trouble.
fn mutate(bytes: &[u8], rng: &mut ChaCha8Rng) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for _ in 0..rng.random_range(1..5) {
        if out.is_empty() {
            break;
        }
        let n = out.len();
        // Headers and footers more than the middle.
        let at = match rng.random_range(0..3) {
            0 => rng.random_range(0..n.min(200)),
            1 => n - 1 - rng.random_range(0..n.min(300)),
            _ => rng.random_range(0..n),
        };
        match rng.random_range(0..7) {
            0 => out[at] ^= 1 << rng.random_range(0..8),
            1 => out[at] = rng.random(),
            2 => out.truncate(at),
            3 => drop(out.drain(at..(at + rng.random_range(1..9)).min(n))),
            4 => {
                let span = out[at..(at + rng.random_range(1..64)).min(n)].to_vec();
                out.splice(at..at, span);
            }
            5 => {
                let numbers: [&[u8]; 5] = [&[0xff; 4], &[0x7f, 0xff, 0xff, 0xff], &[0xff; 8], &[0x80; 9], &[0; 4]];
                let number = numbers[rng.random_range(0..5)];
                let end = (at + number.len()).min(n);
                out[at..end].copy_from_slice(&number[..end - at]);
            }
            _ => out[at] = [0, 1, 0x7f, 0x80, 0xff, b'\n', b',', b'"'][rng.random_range(0..8)],
        }
    }
    out
}

fn peak() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|l| l.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

/// A pipe would wait for a writer for ever, wherever a file is expected.
#[cfg(unix)]
#[test]
fn pipes_are_no_data() {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let dir = tempfile::tempdir().expect("temp dir");
        let at = |name: &str| dir.path().join(name);
        let pipe = |path: &Path| {
            assert!(std::process::Command::new("mkfifo").arg(path).status().expect("mkfifo").success());
        };
        // Named themselves, as a list of labels, and as an image.
        pipe(&at("set.parquet"));
        refused(open(&at("set.parquet")));
        for folder in ["labels", "images"] {
            std::fs::create_dir(at(folder)).expect("made");
            std::fs::write(at(folder).join("a.png"), png([1, 2, 3])).expect("written");
        }
        pipe(&at("labels/labels.csv"));
        refused(open(&at("labels")));
        pipe(&at("images/b.png"));
        std::fs::write(at("images/labels.csv"), "a.png,0\nb.png,1\n").expect("written");
        if let Ok(set) = open(&at("images")) {
            let error = set.batch(0..2, &plain(8, 3)).expect_err("refused").to_string();
            assert!(error.contains("b.png"), "{error}");
        }
        done.send(()).expect("heard");
    });
    wait.recv_timeout(std::time::Duration::from_secs(60)).expect("refused, and at once");
}

#[test]
fn mutated_files_end_in_a_set_or_an_error() {
    let shm = Path::new("/dev/shm");
    let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() }.expect("folder");
    let before = peak();
    let more = std::env::var("PARING_MUTATIONS").ok().and_then(|n| n.parse::<usize>().ok());
    let each = more.unwrap_or(EACH);
    let mut rng = ChaCha8Rng::seed_from_u64(more.map_or(5, |n| n as u64));
    for seed in seeds(dir.path()) {
        let whole = open(&seed.opened).unwrap_or_else(|e| panic!("{}: {e}", seed.file.display()));
        whole.batch(0..whole.len(), &plain(8, 3)).expect("whole images");
        let (mut sets, mut images) = (0, 0);
        for round in 0..each {
            fs::write(&seed.file, mutate(&seed.bytes, &mut rng)).expect("written");
            let start = Instant::now();
            match open(&seed.opened) {
                Ok(set) => {
                    sets += 1;
                    assert!((0..set.len()).all(|i| set.label(i).is_some_and(|l| (l as usize) < set.classes())));
                    match set.batch(0..set.len().min(4), &plain(8, 3)) {
                        Ok(_) => images += 1,
                        Err(e) => assert!(e.to_string().contains("hint: "), "{e}"),
                    }
                }
                Err(e) => drop(refused(Err(e))),
            }
            let took = start.elapsed();
            assert!(took < PATIENCE, "{} round {round}: {took:?}", seed.file.display());
        }
        println!("{}: {sets} sets, {images} batches of {each}", seed.file.display());
        fs::write(&seed.file, &seed.bytes).expect("written");
    }
    if let (Some(before), Some(after)) = (before, peak()) {
        let grown = after.saturating_sub(before);
        assert!(grown < MEMORY, "{} MiB", grown >> 20);
    }
}

/// With `PARING_SEEDS` naming a folder: the seeds as a corpus for each target of `tests/fuzz/`.
#[test]
fn seeds_for_the_fuzzers() {
    let Some(out) = std::env::var_os("PARING_SEEDS").map(PathBuf::from) else { return };
    let write = |target: &str, name: &str, bytes: &[u8]| {
        fs::create_dir_all(out.join(target)).expect("folder");
        fs::write(out.join(target).join(name), bytes).expect("written");
    };
    ecosystem_seeds(&write);
    let dir = tempfile::tempdir().expect("folder");
    for (n, seed) in seeds(dir.path()).into_iter().enumerate() {
        let folder = seed.file.strip_prefix(dir.path()).expect("inside").iter().next().expect("a folder");
        let (target, bytes) = match folder.to_str().expect("text") {
            "idx" | "gz" => {
                let labels = idx(&[3], &[1, 2, 3]);
                ("idx", [&[labels.len() as u8], &seed.bytes[..], &labels].concat())
            }
            "bin" => ("cifar", seed.bytes),
            "pickle" => ("cifar_pickle", seed.bytes),
            "snappy" | "zstd" => ("parquet", seed.bytes),
            "png" | "jpg" | "webp" => ("image", seed.bytes),
            "csv" => ("csv", [&seed.bytes[..], b"\0x\ny\nz\n"].concat()),
            "tar" => ("tar", seed.bytes),
            _ => continue,
        };
        write(target, &format!("seed{n}"), &bytes);
    }
    let spec = CifarResnetSpec { blocks: 1, widths: [2, 2, 2], classes: 2, image: 8 };
    let model = paring::model::random(&FamilySpec::CifarResnet(spec), 3);
    let path = dir.path().join("m.safetensors");
    export::safetensors(&path, &model, &export::Manifest::default()).expect("exported");
    let whole = fs::read(&path).expect("read");
    let header: serde_json::Value = {
        let n = u64::from_le_bytes(whole[..8].try_into().expect("eight")) as usize;
        serde_json::from_slice(&whole[8..8 + n]).expect("a header")
    };
    let tensors = tensors_of(&model);
    let pickle = Pickle::state_dict(&tensors, "", None);
    write("safetensors", "export", &whole);
    write("safetensors", "plain", &plain_safetensors(&tensors));
    write("pth", "zip", &torch_zip(&pickle, &tensors));
    write("pth", "legacy", &legacy(&pickle, &tensors));
    write("manifest", "own", header["__metadata__"]["paring"].as_str().expect("text").as_bytes());
}

/// Seeds of what the ecosystems wrote: names and shapes, configurations, ONNX files.
fn ecosystem_seeds(write: &dyn Fn(&str, &str, &[u8])) {
    let conformance = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let within = |folder: &str| {
        let entries = fs::read_dir(conformance.join(folder)).expect("fixtures");
        let mut all: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
        all.sort();
        all
    };
    let safetensors: Vec<PathBuf> =
        within("fixtures").into_iter().filter(|p| p.join("model.safetensors").is_file()).collect();
    for (at, folder) in safetensors.iter().enumerate() {
        let name = folder.file_name().and_then(|n| n.to_str()).expect("text");
        let file = fs::read(folder.join("model.safetensors")).expect("read");
        let tensors = safetensors::SafeTensors::deserialize(&file).expect("well formed");
        let lines: Vec<String> = tensors
            .iter()
            .map(|(name, t)| {
                let dims: Vec<String> = t.shape().iter().map(usize::to_string).collect();
                format!("{name} {}", dims.join(","))
            })
            .collect();
        write("families", name, lines.join("\n").as_bytes());
        if let Ok(config) = fs::read(folder.join("config.json")) {
            let preprocessor = fs::read(folder.join("preprocessor_config.json")).unwrap_or_else(|_| b"{}".to_vec());
            write("config", name, &[&[at as u8], &config[..], &[0], &preprocessor[..]].concat());
        }
    }
    for file in within("onnx").iter().filter(|p| p.extension().is_some_and(|e| e == "onnx")) {
        write("onnx", file.file_stem().and_then(|n| n.to_str()).expect("text"), &fs::read(file).expect("read"));
    }
}
