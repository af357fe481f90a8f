//! Pixels against Pillow, torchvision, timm and transformers, as `tests/conformance/pixels.py` wrote them down: resizing
//! and cropping to the last bit, PNG to the last bit, JPEG to within a few grey levels.

use paring::data::{self, Dataset};
use paring::model::{Fit, Interpolation, Preprocess};
use std::path::{Path, PathBuf};

/// The script's image: noise over a gradient.
fn image(width: u32, height: u32) -> image::RgbImage {
    let mut state = 1u64;
    let mut next = |i: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let w = u64::from(width);
        ((i / 3 % w * 160 / w + (state >> 56)) % 256) as u8
    };
    let bytes = (0..u64::from(width) * u64::from(height) * 3).map(&mut next).collect();
    image::RgbImage::from_raw(width, height, bytes).expect("whole")
}

fn fnv(bytes: &[u8]) -> String {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    format!("{hash:016x}")
}

fn prep(size: [usize; 2], resize_shorter: Option<usize>, fit: Fit, interpolation: Interpolation) -> Preprocess {
    Preprocess {
        size,
        channels: 3,
        resize_shorter,
        fit,
        mean: [0.0; 3],
        std: [1.0; 3],
        interpolation,
        origin: "test".into(),
    }
}

/// RGB bytes of image `i`, pixel by pixel.
fn bytes(set: &Dataset, i: usize, prep: &Preprocess) -> Vec<u8> {
    let (x, _) = set.batch([i], prep).expect("a batch");
    let planes = x.flatten_all().and_then(|x| x.to_vec1::<f32>()).expect("values");
    let area = planes.len() / 3;
    let byte = |v: f32| (v * 255.0).round() as u8;
    (0..area).flat_map(|p| [0, 1, 2].map(|c| byte(planes[c * area + p]))).collect()
}

/// One PNG of the script's image as a data set.
fn set(dir: &Path, width: u32, height: u32) -> Dataset {
    let folder = dir.join(format!("{width}x{height}"));
    std::fs::create_dir_all(folder.join("one")).expect("folder");
    image(width, height).save(folder.join("one/a.png")).expect("png");
    data::open(folder.to_str().expect("text"), 0).expect("opens")
}

#[test]
fn resizing_and_cropping_are_the_libraries_to_the_bit() {
    let dir = tempfile::tempdir().expect("folder");
    let mut checked = [0; 5];
    for line in include_str!("conformance/pixels.txt").lines() {
        let f: Vec<&str> = line.split(' ').collect();
        let [library, filter, width, height, a, b, hash] = f[..] else { panic!("{line}") };
        let filter = Interpolation::ALL.into_iter().find(|i| i.label() == filter).expect("a filter");
        let number = |t: &str| t.parse::<usize>().expect("a number");
        let square = |t: &str| [number(t); 2];
        let p = match library {
            "pillow" => prep([number(b), number(a)], None, Fit::Shorter, filter),
            "torchvision" => prep(square(b), Some(number(a)), Fit::Shorter, filter),
            "timm" => {
                let pct: f64 = a.parse().expect("a share");
                prep(square(b), Some((number(b) as f64 / pct).floor() as usize), Fit::Shorter, filter)
            }
            "hf" => prep(square(b), Some(number(a)), Fit::ShorterFloor, filter),
            "hf-squash" => prep(square(b), Some(number(a)), Fit::SquashFloor, filter),
            other => panic!("{other}"),
        };
        let set = set(dir.path(), number(width) as u32, number(height) as u32);
        assert_eq!(fnv(&bytes(&set, 0, &p)), hash, "{line}");
        checked[["pillow", "torchvision", "timm", "hf", "hf-squash"]
            .iter()
            .position(|l| *l == library)
            .expect("known")] += 1;
    }
    assert_eq!(checked, [180, 48, 48, 36, 36]);
}

/// `PARING_JPEGS` names a folder of more pairs; the figures are printed.
#[test]
fn jpeg_is_within_a_few_grey_levels_of_pillow() {
    let here = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/conformance"));
    let folder = std::env::var_os("PARING_JPEGS").map_or(here, PathBuf::from);
    let mut stems: Vec<PathBuf> = std::fs::read_dir(&folder)
        .expect("folder")
        .map(|e| e.expect("entry").path())
        .filter(|p| p.extension().is_some_and(|e| e == "jpg"))
        .collect();
    stems.sort();
    let dir = tempfile::tempdir().expect("folder");
    let (mut most, mut apart, mut above, mut total) = (0u8, 0u64, 0u64, 0u64);
    for jpg in stems {
        for (kind, from) in [("jpg", jpg.clone()), ("png", jpg.with_extension("png"))] {
            std::fs::create_dir_all(dir.path().join(kind)).expect("folder");
            std::fs::copy(from, dir.path().join(kind).join(format!("a.{kind}"))).expect("copied");
        }
        let set = data::open(dir.path().to_str().expect("text"), 0).expect("opens");
        let (w, h) = image::image_dimensions(dir.path().join("png/a.png")).expect("a size");
        let p = prep([h as usize, w as usize], None, Fit::Shorter, Interpolation::Bilinear);
        let (ours, theirs) = (bytes(&set, 0, &p), bytes(&set, 1, &p));
        let far: Vec<u8> = ours.iter().zip(&theirs).map(|(a, b)| a.abs_diff(*b)).collect();
        let here = far.iter().copied().max().unwrap_or(0);
        println!("{}: at most {here}", jpg.display());
        most = most.max(here);
        apart += far.iter().filter(|d| **d > 0).count() as u64;
        above += far.iter().filter(|d| **d > 1).count() as u64;
        total += far.len() as u64;
    }
    let share = |n: u64| 100.0 * n as f64 / total as f64;
    println!("{:.2} % of bytes differ, {:.3} % by more than one, at most by {most}", share(apart), share(above));
    assert!(total > 0 && most <= 8);
}
