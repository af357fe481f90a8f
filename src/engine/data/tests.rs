//! Data sets through `open`, good and bad, and against the real files where this machine has them.

use super::*;
use proptest::prelude::*;
use std::fs;

const PIXELS: usize = 3072;

fn prep(size: usize, resize_shorter: Option<usize>) -> Preprocess {
    Preprocess { resize_shorter, mean: [0.0; 3], std: [1.0; 3], ..Preprocess::imagenet([size, size]) }
}

/// CIFAR records of the given classes, with what `head` puts before the pixels.
fn records<const N: usize>(labels: &[u8], head: fn(u8) -> [u8; N]) -> Vec<u8> {
    let pixels = |i: usize| (0..PIXELS).map(move |p| (p * 7 + i * 31) as u8);
    labels.iter().enumerate().flat_map(|(i, &l)| head(l).into_iter().chain(pixels(i))).collect()
}

fn records10(labels: &[u8]) -> Vec<u8> {
    records(labels, |l| [l])
}

fn records100(labels: &[u8]) -> Vec<u8> {
    records(labels, |l| [l / 5, l])
}

fn spec(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// An image of one colour, in the format that its name tells.
fn picture(path: &Path, rgb: [u8; 3], w: u32, h: u32) {
    image::RgbImage::from_pixel(w, h, image::Rgb(rgb)).save(path).unwrap();
}

fn message(result: Result<Dataset, DataError>) -> String {
    let text = result.expect_err("must be refused").to_string();
    assert!(text.contains("hint: "), "{text}");
    text
}

#[test]
fn cifar10_file_with_names_and_exact_pixels() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("test_batch.bin");
    fs::write(&file, records10(&[3, 0, 9])).unwrap();
    let bare = open(spec(&file), 0).unwrap();
    assert_eq!((bare.len(), bare.classes(), bare.class_names()[9].as_str()), (3, 10, "9"));
    fs::write(dir.path().join("batches.meta.txt"), "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\u{1b}[31m\n\n").unwrap();
    let d = open(spec(dir.path()), 0).unwrap();
    assert_eq!(d.class_names()[9], "j[31m");
    assert_eq!((d.label(0), d.label(2), d.label(3)), (Some(3), Some(9), None));
    let (x, labels) = d.batch([1usize, 0], &prep(32, None)).unwrap();
    assert_eq!((x.dims(), labels.classes().to_vec()), (&[2, 3, 32, 32][..], vec![0, 3]));
    let v = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let byte = |p: usize, i: usize| f32::from((p * 7 + i * 31) as u8) / 255.0;
    assert!((0..PIXELS).all(|p| v[p] == byte(p, 1) && v[PIXELS + p] == byte(p, 0)));
    assert!(matches!(d.batch(0..4, &prep(32, None)), Err(DataError::Index { index: 3, len: 3 })));
    // Resizing keeps channels apart and the mean about equal.
    let (big, _) = d.batch(0..1, &prep(48, None)).unwrap();
    assert_eq!(big.dims(), &[1, 3, 48, 48]);
}

#[test]
fn cifar100_takes_the_fine_label() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("test.bin"), records100(&[99, 7])).unwrap();
    fs::write(dir.path().join("train.bin"), records100(&[1, 2, 3])).unwrap();
    let names: String = (0..100).map(|i| format!("class{i}\n")).collect();
    fs::write(dir.path().join("fine_label_names.txt"), names).unwrap();
    let d = open(spec(dir.path()), 0).unwrap();
    assert_eq!((d.len(), d.classes(), d.label(0), d.class_names()[99].as_str()), (2, 100, Some(99), "class99"));
    assert_eq!(open(&format!("{}:train", dir.path().display()), 0).unwrap().len(), 3);
    assert!(d.check_classes("m", 10).unwrap_err().to_string().contains("100 classes"));
    d.check_classes("m", 100).unwrap();
}

#[test]
fn several_files_are_one_set() {
    let dir = tempfile::tempdir().unwrap();
    for (i, labels) in [&[1u8, 2][..], &[3], &[4, 5, 6]].iter().enumerate() {
        fs::write(dir.path().join(format!("data_batch_{}.bin", i + 1)), records10(labels)).unwrap();
    }
    let d = open(spec(dir.path()), 0).unwrap();
    assert_eq!((0..6).map(|i| d.label(i).unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    let two = format!("{0}/data_batch_3.bin,{0}/data_batch_1.bin", dir.path().display());
    let d = open(&two, 4).unwrap();
    assert_eq!((0..5).map(|i| d.label(i)).collect::<Vec<_>>(), [Some(4), Some(5), Some(6), Some(1), None]);
    assert_eq!((d.card().limit, d.card().images), (4, 4));
}

#[test]
fn bad_record_files_say_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.bin");
    let bytes = records10(&[1, 2]);
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    assert!(message(open(spec(&file), 0)).contains("6145 bytes"));
    fs::write(&file, []).unwrap();
    assert!(message(open(spec(&file), 0)).contains("holds no images"));
    fs::write(&file, records10(&[1, 10])).unwrap();
    assert!(message(open(spec(&file), 0)).contains("record 1 of"));
    assert!(message(open("/no/such/place", 0)).contains("no data at"));
    assert!(message(open("/dev/zero", 0)).contains("neither a file nor a directory"));
    assert!(message(open("synthetic:other", 0)).contains("synthetic:calib"));
    fs::write(dir.path().join("y.bin"), records100(&[1])).unwrap();
    fs::write(&file, records10(&[1])).unwrap();
    let both = format!("{0}/x.bin,{0}/y.bin", dir.path().display());
    assert!(message(open(&both, 0)).contains("other CIFAR format"));
    assert!(message(open(spec(dir.path()), 0)).contains("is not a data set"));
}

#[test]
fn a_size_that_fits_both_formats_is_told_by_its_labels() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("train.bin");
    // 3073 records of CIFAR-100 are as long as 3074 of CIFAR-10; pixels of 200 are no label of the latter.
    let mut bytes = Vec::new();
    for i in 0..3073usize {
        bytes.extend([(i % 20) as u8, (i % 100) as u8]);
        bytes.extend(std::iter::repeat_n(200u8, PIXELS));
    }
    fs::write(&file, bytes).unwrap();
    let d = open(spec(&file), 0).unwrap();
    assert_eq!((d.len(), d.classes(), d.label(99)), (3073, 100, Some(99)));
}

#[test]
fn image_folder_sorts_classes_and_resizes() {
    let dir = tempfile::tempdir().unwrap();
    for (class, rgb) in [("zebra", [255, 0, 0]), ("ant", [0, 255, 0]), (".hidden", [1, 1, 1])] {
        fs::create_dir(dir.path().join(class)).unwrap();
        for i in 0..4 {
            picture(&dir.path().join(class).join(format!("{i}.png")), rgb, 40 + i, 20);
        }
    }
    fs::write(dir.path().join("ant/readme.txt"), "no image").unwrap();
    picture(&dir.path().join("stray.png"), [255, 0, 0], 9, 9);
    picture(&dir.path().join("zebra/4.JPG"), [255, 0, 0], 9, 9);
    let d = open(spec(dir.path()), 0).unwrap();
    assert_eq!(d.class_names(), ["ant", "zebra"]);
    assert_eq!((0..9).map(|i| d.label(i).unwrap()).collect::<Vec<_>>(), [0, 0, 0, 0, 1, 1, 1, 1, 1]);
    for p in [prep(16, Some(18)), prep(16, None)] {
        let (x, labels) = d.batch(0..9, &p).unwrap();
        assert_eq!(x.dims(), &[9, 3, 16, 16]);
        let means = x.mean((2, 3)).unwrap().to_vec2::<f32>().unwrap();
        for (m, l) in means.iter().zip(labels.classes().iter().copied()) {
            let want = if l == 0 { [0.0, 1.0, 0.0] } else { [1.0, 0.0, 0.0] };
            assert!(m.iter().zip(want).all(|(a, b): (&f32, f32)| (a - b).abs() < 0.02), "{m:?}");
        }
    }
    // A limited folder still has all classes.
    let few = d.take(4);
    assert_eq!((0..4).map(|i| few.label(i).unwrap()).collect::<Vec<_>>(), [0, 0, 1, 1]);
    assert_eq!(few.overlaps(&d), 4);
}

#[test]
fn bad_folders_say_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    assert!(message(open(spec(dir.path()), 0)).contains("directory is empty"));
    fs::create_dir(dir.path().join("a")).unwrap();
    assert!(message(open(spec(dir.path()), 0)).contains("sub-folders are empty"));
    fs::write(dir.path().join("a/x.bmp"), "x").unwrap();
    assert!(message(open(spec(dir.path()), 0)).contains("seen: `bmp`"));
    fs::write(dir.path().join("a/broken.png"), b"\x89PNG\r\n\x1a\n and then nothing").unwrap();
    let d = open(spec(dir.path()), 0).unwrap();
    let text = d.batch(0..1, &prep(8, None)).unwrap_err().to_string();
    assert!(text.contains("cannot decode") && text.contains("broken.png"), "{text}");
    d.check_classes("m", 1).unwrap();
    assert!(d.check_classes("m", 2).is_err());
}

#[test]
fn labels_csv_lists_files_of_its_own_folder_only() {
    let dir = tempfile::tempdir().unwrap();
    picture(&dir.path().join("a.png"), [9; 3], 4, 4);
    let csv = dir.path().join("labels.csv");
    fs::write(&csv, "file,class_index,name\na.png,7,n1 a, b\n").unwrap();
    let d = open(spec(dir.path()), 0).unwrap();
    assert_eq!((d.len(), d.label(0), d.class_names()[7].as_str()), (1, Some(7), "n1 a, b"));
    // The class count is only a lower bound: a 1000-class model may be evaluated on it, a 7-class one not.
    d.check_classes("m", 1000).unwrap();
    assert!(d.check_classes("m", 7).is_err());
    for (bad, why) in [
        ("../a.png,1", "no file name"),
        ("/etc/passwd,1", "no file name"),
        ("b.png,1", "there is no file"),
        ("a.png", "no comma"),
        ("a.png,1\na.png,x", "no class index"),
        ("a.png,4000000000", "far too large"),
        ("a.png,1\na.png,1", "line 1 already"),
        ("file,class_index\na.png,1\na.png,2", "line 2 already"),
    ] {
        fs::write(&csv, bad).unwrap();
        assert!(message(open(spec(dir.path()), 0)).contains(why), "{bad}");
    }
}

#[test]
fn overlap_is_seen_between_kinds_of_set() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.bin");
    fs::write(&file, records10(&[1, 2, 3])).unwrap();
    let bin = open(spec(&file), 0).unwrap();
    let folder = dir.path().join("images/one");
    fs::create_dir_all(&folder).unwrap();
    // The second record again, as a PNG.
    let px = |x: u32, y: u32, c: usize| ((c * 1024 + (y * 32 + x) as usize) * 7 + 31) as u8;
    image::RgbImage::from_fn(32, 32, |x, y| image::Rgb([px(x, y, 0), px(x, y, 1), px(x, y, 2)]))
        .save(folder.join("a.png"))
        .unwrap();
    picture(&folder.join("b.png"), [1, 2, 3], 32, 32);
    picture(&folder.join("c.png"), [1, 2, 3], 64, 64);
    fs::write(folder.join("d.png"), "broken").unwrap();
    let images = open(spec(&dir.path().join("images")), 0).unwrap();
    assert_eq!(
        (bin.overlaps(&images), images.overlaps(&bin), bin.overlaps(&bin), images.overlaps(&images)),
        (1, 1, 3, 4)
    );
}

#[test]
fn jpegs_that_are_cut_off_are_errors_and_what_follows_their_end_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("photos/a");
    fs::create_dir_all(&folder).unwrap();
    let mut photo = image::RgbImage::new(64, 48);
    photo.enumerate_pixels_mut().for_each(|(x, y, p)| p.0 = [(x * 4) as u8, (y * 5) as u8, (x * y) as u8]);
    let path = folder.join("x.jpg");
    photo.save(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        open(spec(&dir.path().join("photos")), 0).unwrap().batch(0..1, &prep(8, None))
    };
    let (x, _) = read(&whole).unwrap();
    let trailing = read(&[&whole[..], b"\xff\x00 appended by a camera"].concat()).unwrap().0;
    assert_eq!(
        x.flatten_all().unwrap().to_vec1::<f32>().unwrap(),
        trailing.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    );
    for cut in [1, 2, 3, whole.len() / 4, whole.len() / 2, whole.len() * 9 / 10] {
        let text = read(&whole[..whole.len() - cut]).expect_err("cut off").to_string();
        assert!(text.contains("x.jpg") && text.contains("hint: "), "{cut}: {text}");
    }
}

#[test]
fn changed_images_are_noticed_at_opening_and_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("images");
    for (class, rgb) in [("a", [200, 0, 0]), ("b", [0, 200, 0])] {
        fs::create_dir_all(root.join(class)).unwrap();
        (0..3).for_each(|i| picture(&root.join(format!("{class}/{i}.png")), [rgb[0], rgb[1], i * 10], 9, 9));
    }
    let mark = |most| open(spec(&root), 0).unwrap().mark(most).unwrap();
    let (small, large) = (mark(1 << 20), mark(8));
    assert!(small.content.is_some() && large.content.is_none());
    assert_eq!((small.difference(&mark(1 << 20)), large.difference(&mark(8))), (None, None));
    // Moved as a whole: the same data.
    let moved = dir.path().join("moved");
    fs::rename(&root, &moved).unwrap();
    assert_eq!(small.difference(&open(spec(&moved), 0).unwrap().mark(1 << 20).unwrap()), None);
    fs::rename(&moved, &root).unwrap();

    let set = open(spec(&root), 0).unwrap();
    assert_eq!(set.seen(0..6), None, "nothing was read");
    let run = |set: &Dataset| set.batch(0..6, &prep(8, None)).map(|_| set.seen(0..6).unwrap());
    let then = run(&set).unwrap();
    assert_eq!(run(&open(spec(&root), 0).unwrap()).unwrap(), then);
    // Another image of the same size in bytes: only its content tells.
    let path = root.join("b/1.png");
    let old = fs::read(&path).unwrap();
    picture(&path, [0, 200, 11], 9, 9);
    assert_eq!(fs::metadata(&path).unwrap().len(), old.len() as u64, "the test's own condition");
    assert!(small.difference(&mark(1 << 20)).unwrap().contains("content"));
    assert_eq!(large.difference(&mark(8)), None, "not read at opening");
    assert_ne!(run(&open(spec(&root), 0).unwrap()).unwrap(), then, "but when it is used");
    // In a set that is open and has seen the old one (another geometry reads the files again).
    let text = set.batch(0..6, &prep(7, None)).expect_err("changed").to_string();
    assert!(text.contains("1.png") && text.contains("changed") && text.contains("hint: "), "{text}");
    fs::write(&path, &old).unwrap();
    assert!(set.batch(0..6, &prep(7, None)).is_ok());

    fs::rename(root.join("a/0.png"), root.join("a/9.png")).unwrap();
    assert!(small.difference(&mark(8)).unwrap().contains("names"));
    fs::rename(root.join("a/9.png"), root.join("b/9.png")).unwrap();
    assert!(small.difference(&mark(8)).unwrap().contains("labels"));
    fs::remove_file(root.join("b/9.png")).unwrap();
    assert!(small.difference(&mark(8)).unwrap().contains("5 images, it had 6"));
}

/// With `PARING_REAL_DATA=required` the tests that need real data fail where there is none; else they say that they skip.
#[test]
fn real_data_that_is_required_is_not_skipped() {
    let run = |required: bool| {
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["data::tests::real_cifar_and_photos", "--exact", "--nocapture"]).env("PARING_REAL", "/nowhere");
        match required {
            true => command.env("PARING_REAL_DATA", "required"),
            false => command.env_remove("PARING_REAL_DATA"),
        };
        let out = command.output().unwrap();
        (out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    };
    let (passed, words) = run(false);
    assert!(passed && words.contains("skipped: no real data"), "{words}");
    let (passed, words) = run(true);
    assert!(!passed && words.contains("PARING_REAL_DATA=required"), "{words}");
}

#[test]
fn real_cifar_and_photos() {
    let Some(dir) = real_dir() else {
        println!("skipped: no real data");
        return;
    };
    let test = open(spec(&dir.join("cifar10")), 0).unwrap();
    assert_eq!((test.len(), test.classes(), test.class_names()[0].as_str()), (10_000, 10, "airplane"));
    // The first labels of the official test batch: cat, ship, ship, airplane, frog.
    assert_eq!((0..5).map(|i| test.label(i).unwrap()).collect::<Vec<_>>(), [3, 8, 8, 0, 6]);
    let counts = (0..10_000).fold([0; 10], |mut c, i| {
        c[test.label(i).unwrap() as usize] += 1;
        c
    });
    assert_eq!(counts, [1000; 10]);
    let calib = open(spec(&dir.join("cifar10/calib_5000.bin")), 0).unwrap();
    assert_eq!((calib.len(), calib.overlaps(&test), test.overlaps(&test)), (5000, 0, 10_000));
    let photos = open(spec(&dir.join("imagenet_sample")), 0).unwrap();
    assert_eq!(
        (photos.len(), photos.label(1), photos.class_names()[10].as_str()),
        (100, Some(10), "n01530575 brambling")
    );
    photos.check_classes("vit", 1000).unwrap();
    let (x, _) = photos.batch(0..2, &prep(224, Some(256))).unwrap();
    assert_eq!(x.dims(), &[2, 3, 224, 224]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Cut anywhere, a record file is either refused or holds exactly its whole records.
    #[test]
    fn truncated_records_are_refused(cut in 0usize..(3 * 3073 + 1), fine in any::<bool>()) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f.bin");
        let bytes = if fine { records100(&[1, 2, 3]) } else { records10(&[1, 2, 3]) };
        let record = bytes.len() / 3;
        fs::write(&file, &bytes[..cut]).unwrap();
        match open(spec(&file), 0) {
            Ok(d) => prop_assert!(cut > 0 && cut % record == 0 && d.len() == cut / record),
            Err(e) => {
                prop_assert!(e.to_string().contains("hint: "));
                prop_assert!(cut == 0 || cut % record != 0);
            }
        }
    }

    /// Arbitrary bytes as a record file, a class-name file, a label list and an image: an error or a usable set, never a panic.
    #[test]
    fn hostile_folders_never_panic(junk in proptest::collection::vec(any::<u8>(), 0..400), whole in 0usize..3, name in "[a-z./\\\\]{0,12}") {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = junk.clone();
        bytes.resize(whole * 3073, 5);
        fs::write(dir.path().join("test_batch.bin"), &bytes).unwrap();
        fs::write(dir.path().join("batches.meta.txt"), &junk).unwrap();
        if let Ok(d) = open(spec(dir.path()), 0) {
            let (_, labels) = d.batch(0..d.len(), &prep(32, None)).unwrap();
            prop_assert!(labels.classes().iter().all(|&l| (l as usize) < d.classes()));
        }
        let images = dir.path().join("images");
        fs::create_dir_all(images.join("a")).unwrap();
        fs::write(images.join("a/x.png"), [b"\x89PNG\r\n\x1a\n", &junk[..]].concat()).unwrap();
        fs::write(images.join("a/y.jpg"), [&[0xff, 0xd8, 0xff][..], &junk[..]].concat()).unwrap();
        let d = open(spec(&images), 0).unwrap();
        prop_assert!(d.batch(0..2, &prep(8, None)).is_err());
        fs::write(images.join("labels.csv"), [name.as_bytes(), b",3\n", &junk[..]].concat()).unwrap();
        if let Err(e) = open(spec(&images), 0) {
            prop_assert!(e.to_string().contains("hint: "));
        }
    }
}
