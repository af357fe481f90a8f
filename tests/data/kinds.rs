//! Each kind opened by path alone: labels, class names, pixels, parts of a directory, and what is said of bad ones.

use crate::files::*;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use std::fs;
use std::path::Path;

/// The first byte of each channel of image `i`.
fn corner(set: &paring::data::Dataset, i: usize, side: usize) -> Vec<u8> {
    let (x, _) = set.batch([i], &plain(side, 3)).expect("a batch");
    let v = x.flatten_all().and_then(|x| x.to_vec1::<f32>()).expect("values");
    (0..3).map(|c| (v[c * side * side] * 255.0).round() as u8).collect()
}

#[test]
fn idx_files_plain_and_gzipped() {
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n);
    let pixels: Vec<u8> = (0..3 * 4 * 5).collect();
    fs::write(at("t10k-images-idx3-ubyte.gz"), gzip(&idx(&[3, 4, 5], &pixels))).unwrap();
    fs::write(at("t10k-labels-idx1-ubyte"), idx(&[3], &[7, 2, 1])).unwrap();
    fs::write(at("train-images-idx3-ubyte"), idx(&[1, 2, 2], &[9; 4])).unwrap();
    fs::write(at("train-labels-idx1-ubyte.gz"), gzip(&idx(&[1], &[3]))).unwrap();
    let set = open(dir.path()).unwrap();
    assert_eq!((labels(&set), set.classes()), (vec![7, 2, 1], 8));
    // A grey network takes the plane as it is, a colour network three times.
    let mut p = plain(4, 1);
    p.size = [4, 5];
    let (x, _) = set.batch([1usize], &p).unwrap();
    assert_eq!(x.dims(), [1, 1, 4, 5]);
    let v = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!((0..20).all(|i| v[i] == (20 + i) as f32 / 255.0));
    p.channels = 3;
    let (x, _) = set.batch([1usize], &p).unwrap();
    let v3 = x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert!((0..60).all(|i| v3[i] == v[i % 20]));
    // Digits may be fewer than the network's classes, never more.
    set.check_classes("m", 10).unwrap();
    assert!(set.check_classes("m", 7).is_err());
    let train = paring::data::open(&format!("{}:train", dir.path().display()), 0).unwrap();
    assert_eq!(labels(&train), [3]);
    assert_eq!(labels(&open(&at("train-images-idx3-ubyte")).unwrap()), [3]);
    // As torchvision unpacks it.
    let outer = tempfile::tempdir().unwrap();
    fs::create_dir_all(outer.path().join("MNIST/raw")).unwrap();
    for f in ["t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte"] {
        fs::copy(at(f), outer.path().join("MNIST/raw").join(f)).unwrap();
    }
    assert_eq!(open(outer.path()).unwrap().len(), 3);
}

#[test]
fn bad_idx_files_say_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let (images, labels) = (dir.path().join("a-images-idx3-ubyte"), dir.path().join("a-labels-idx1-ubyte"));
    let case = |i: &[u8], l: Option<&[u8]>| {
        fs::write(&images, i).unwrap();
        let _ = fs::remove_file(&labels);
        if let Some(l) = l {
            fs::write(&labels, l).unwrap();
        }
        refused(open(&images))
    };
    let whole = idx(&[2, 2, 2], &[0; 8]);
    assert!(case(&whole, None).contains("`a-labels-idx1-ubyte` or `a-labels-idx1-ubyte.gz`"));
    assert!(case(&whole, Some(&idx(&[3], &[0; 3]))).contains("3 labels for 2 images"));
    assert!(case(&whole, Some(&idx(&[3], &[0; 2]))).contains("cut off"));
    assert!(case(&whole[..20], Some(&idx(&[2], &[0; 2]))).contains("2 images of 2x2 do not fit its 4 bytes"));
    assert!(case(&idx(&[0, 2, 2], &[]), Some(&idx(&[0], &[]))).contains("holds no images"));
    let claims = idx(&[u32::MAX, 4000, 4000], &[0; 8]);
    assert!(case(&claims, Some(&idx(&[2], &[0; 2]))).contains("cut off"));
    assert!(case(&idx(&[1], &[3]), None).contains("it holds labels"));
    let mut cut = gzip(&whole);
    cut.truncate(cut.len() - 9);
    assert!(case(&cut, None).contains("cannot read"));
}

#[test]
fn cifar_python_pickles() {
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| dir.path().join(n);
    let pixels: Vec<u8> = (0..2 * 3072).map(|p| (p % 251) as u8).collect();
    fs::write(at("test_batch"), cifar_pickle(&[3, 9], &pixels, false)).unwrap();
    fs::write(at("data_batch_1"), cifar_pickle(&[1], &pixels[..3072], false)).unwrap();
    fs::write(at("data_batch_2"), cifar_pickle(&[2], &pixels[3072..], false)).unwrap();
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
    let mut meta = b"\x80\x02}U\x0blabel_names](".to_vec();
    names.iter().for_each(|n| meta.extend([b'U', 1, n.as_bytes()[0]]));
    meta.extend(b"es.");
    fs::write(at("batches.meta"), meta).unwrap();
    let set = open(dir.path()).unwrap();
    assert_eq!((labels(&set), set.class_names()), (vec![3, 9], &names.map(str::to_owned)[..]));
    assert_eq!(corner(&set, 1, 32), [3072 % 251, 4096 % 251, 5120 % 251].map(|p| p as u8));
    let train = paring::data::open(&format!("{}:train", dir.path().display()), 0).unwrap();
    assert_eq!((labels(&train), train.overlaps(&set)), (vec![1, 2], 2));
    // The binary and the pickle of one batch are the same images.
    let bin: Vec<u8> = [&[3][..], &pixels[..3072], &[9], &pixels[3072..]].concat();
    fs::write(at("x.bin"), bin).unwrap();
    assert_eq!(open(&at("x.bin")).unwrap().overlaps(&set), 2);
    // The whole data set from above its directory, as the archive unpacks.
    let outer = tempfile::tempdir().unwrap();
    let hundred = outer.path().join("cifar-100-python");
    fs::create_dir(&hundred).unwrap();
    fs::write(hundred.join("test"), cifar_pickle(&[99], &pixels[..3072], true)).unwrap();
    let set = open(outer.path()).unwrap();
    assert_eq!((labels(&set), set.classes()), (vec![99], 100));
    for (bytes, why) in [
        (cifar_pickle(&[3], &pixels, false), "not [1, 3072] bytes"),
        (cifar_pickle(&[10, 1], &pixels, false), "label `10`"),
        (cifar_pickle(&[1, 1], &pixels, false)[..6000].to_vec(), "ends too early"),
        (b"\x80\x02}.".to_vec(), "neither `labels`"),
        (b"\x80\x02cos\nsystem\nU\x02ls\x85R.".to_vec(), "`os.system`"),
    ] {
        fs::write(at("bad"), bytes).unwrap();
        let text = refused(open(&at("bad")));
        assert!(text.contains(why), "{why}: {text}");
    }
}

#[test]
fn webdataset_tars() {
    let dir = tempfile::tempdir().unwrap();
    let (red, green, blue) = (png([255, 0, 0]), png([0, 255, 0]), png([0, 0, 255]));
    let first = tar(&[
        ("a/001.jpg", &encoded([255, 0, 0], 8, image::ImageFormat::Jpeg)),
        ("a/001.cls", b"3\n"),
        ("a/002.json", br#"{"label": 1, "name": "x"}"#),
        ("a/002.png", &green),
        ("a/notes.txt", b"no image"),
    ]);
    fs::write(dir.path().join("set-val-000.tar"), first).unwrap();
    fs::write(
        dir.path().join("set-val-001.tar"),
        tar(&[("003.mask.png", &red), ("003.png", &blue), ("003.cls", b"0")]),
    )
    .unwrap();
    fs::write(dir.path().join("set-train-000.tar"), tar(&[("9.png", &red), ("9.cls", b"7")])).unwrap();
    let set = open(dir.path()).unwrap();
    assert_eq!((labels(&set), set.classes()), (vec![3, 1, 0], 4));
    assert_eq!(corner(&set, 1, 8), [0, 255, 0]);
    assert_eq!(corner(&set, 2, 8), [0, 0, 255]);
    assert!(corner(&set, 0, 8)[0] > 250);
    let range = format!("{}/set-val-{{000..001}}.tar", dir.path().display());
    let by_range = paring::data::open(&range, 0).unwrap();
    assert_eq!((labels(&by_range), by_range.overlaps(&set)), (labels(&set), 3));
    fs::write(dir.path().join("classnames.txt"), "w\nx\ny\nz\n").unwrap();
    let set = open(dir.path()).unwrap();
    assert_eq!(set.class_names()[3], "z");
    assert!(set.check_classes("m", 5).is_err());
    let bad = dir.path().join("bad.tar");
    let whole = tar(&[("1.png", &red), ("1.cls", b"1")]);
    for (bytes, why) in [
        (tar(&[("1.png", &red), ("2.cls", b"1")]), "`1` has an image and no"),
        (tar(&[("1.png", &red), ("1.cls", b"cat")]), "`1.cls` holds no class number"),
        (tar(&[("1.png", &red), ("1.cls", b"4000000000")]), "no class number"),
        (tar(&[("1.txt", b"x")]), "no member ends in"),
        (whole[..520].to_vec(), "cut off"),
        // Between the image's label and the next member, where there is nothing to miss but the end.
        (whole[..whole.len() - 1024].to_vec(), "the mark of its end is missing"),
        (
            tar(&[
                ("1.png", &red),
                ("1.cls", b"1"),
                ("2.png", &red),
                ("2.cls", b"1"),
                ("1.png", &red),
                ("1.cls", b"0"),
            ]),
            "`1` is in it twice",
        ),
    ] {
        fs::write(&bad, bytes).unwrap();
        let text = refused(open(&bad));
        assert!(text.contains(why), "{why}: {text}");
    }
}

fn write(path: &Path, bytes: Vec<u8>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn hub_parquet_in_every_codec_and_page_size() {
    let dir = tempfile::tempdir().unwrap();
    let rows: Vec<_> = (0..23u8).map(|i| (Some(png([i * 10, 0, i])), i64::from(i % 4))).collect();
    for (codec, page, v2) in [
        (Compression::UNCOMPRESSED, 1, false),
        (Compression::SNAPPY, 300, false),
        (Compression::SNAPPY, 1 << 20, true),
        (Compression::ZSTD(Default::default()), 200, true),
        (Compression::GZIP(Default::default()), 500, false),
    ] {
        let version = match v2 {
            true => parquet::file::properties::WriterVersion::PARQUET_2_0,
            false => parquet::file::properties::WriterVersion::PARQUET_1_0,
        };
        for dictionary in [true, false] {
            let props = WriterProperties::builder()
                .set_compression(codec)
                .set_data_page_size_limit(page)
                .set_write_batch_size(1)
                .set_writer_version(version)
                .set_dictionary_enabled(dictionary);
            let path = dir.path().join("x.parquet");
            write(&path, parquet(&rows, 9, props.build(), &["a", "b", "c", "d", "e"]));
            let set = open(&path).unwrap();
            assert_eq!((set.len(), set.classes(), set.class_names()[4].as_str()), (23, 5, "e"));
            let picks = [22usize, 0, 8, 9, 9, 3];
            let (x, got) = set.batch(picks, &plain(8, 3)).unwrap();
            assert_eq!(got.classes(), picks.map(|i| (i % 4) as u32));
            let v = x.to_device(&candle_core::Device::Cpu).unwrap().get_on_dim(1, 0).unwrap();
            let red = v.flatten_from(1).unwrap().to_vec2::<f32>().unwrap();
            for (i, row) in picks.iter().zip(red) {
                assert!(row.iter().all(|r| *r == (i * 10) as f32 / 255.0), "{codec:?} {page} {i}");
            }
            assert_eq!(set.take(7).overlaps(&set), 7);
        }
    }
}

#[test]
fn hub_directories_have_parts() {
    let dir = tempfile::tempdir().unwrap();
    let file = |labels: &[i64]| {
        let rows: Vec<_> = labels.iter().map(|&l| (Some(png([l as u8; 3])), l)).collect();
        parquet(&rows, 100, WriterProperties::default(), &[])
    };
    let at = |n: &str| dir.path().join(n);
    write(&at("README.md"), b"---".to_vec());
    write(&at("data/train-00000-of-00002.parquet"), file(&[5, 4]));
    write(&at("data/train-00001-of-00002.parquet"), file(&[3]));
    write(&at("data/validation-00000-of-00001.parquet"), file(&[2, 0]));
    assert_eq!(labels(&open(dir.path()).unwrap()), [2, 0]);
    let train = paring::data::open(&format!("{}:train", dir.path().display()), 0).unwrap();
    assert_eq!((labels(&train), train.classes()), (vec![5, 4, 3], 6));
    // Withheld labels.
    write(&at("data/test-00000-of-00001.parquet"), file(&[-1]));
    let text = refused(open(dir.path()));
    assert!(text.contains("label `-1`") && text.contains("DIR:validation"), "{text}");
    assert_eq!(paring::data::open(&format!("{}:validation", dir.path().display()), 1).unwrap().len(), 1);
    // A row without bytes is named when it is asked for.
    write(&at("n.parquet"), parquet(&[(None, 1)], 9, WriterProperties::default(), &[]));
    let text = open(&at("n.parquet")).unwrap().batch(0..1, &plain(8, 3)).unwrap_err().to_string();
    assert!(text.contains("row 0 of row group 0 has no image bytes"), "{text}");
    // Two configurations side by side.
    let two = tempfile::tempdir().unwrap();
    write(&two.path().join("fine/test-0.parquet"), file(&[1]));
    write(&two.path().join("coarse/test-0.parquet"), file(&[1]));
    assert!(refused(open(two.path())).contains("two configurations"));
    assert_eq!(open(&two.path().join("fine")).unwrap().len(), 1);
}

fn folders(dir: &Path, names: &[&str]) {
    for name in names {
        write(&dir.join(name).join("a.png"), png([9; 3]));
    }
}

#[test]
fn class_folders_follow_a_list_or_imagenet() {
    let dir = tempfile::tempdir().unwrap();
    folders(dir.path(), &["n03028079", "n01440764", "n03888257"]);
    let set = open(dir.path()).unwrap();
    assert_eq!((labels(&set), set.classes()), (vec![0, 1, 2], 3));
    let text = set.check_classes("resnet50", 1000).unwrap_err().to_string();
    assert!(text.contains(":imagenet`"), "{text}");
    let set = paring::data::open(&format!("{}:imagenet", dir.path().display()), 0).unwrap();
    assert_eq!(labels(&set), [0, 497, 701]);
    set.check_classes("resnet50", 1000).unwrap();
    fs::write(dir.path().join("synset_words.txt"), "n03888257 parachute, chute\nn01440764 tench\nn03028079 church\n")
        .unwrap();
    let set = open(dir.path()).unwrap();
    assert_eq!((labels(&set), set.class_names()[0].as_str()), (vec![1, 2, 0], "n03888257 parachute, chute"));
    folders(dir.path(), &["zebra"]);
    assert!(refused(open(dir.path())).contains("folder `zebra`"));
    let not = paring::data::open(&format!("{}:imagenet", dir.path().display()), 0);
    assert!(refused(not).contains("ImageNet-1k's classes"));
}

#[test]
fn train_and_val_folders_are_parts_not_classes() {
    let dir = tempfile::tempdir().unwrap();
    folders(dir.path(), &["train/cat", "train/dog", "val/cat", "val/dog"]);
    fs::write(dir.path().join("train/cat/b.png"), png([1; 3])).unwrap();
    let set = open(dir.path()).unwrap();
    assert_eq!((set.len(), set.class_names()), (2, &["cat".to_owned(), "dog".to_owned()][..]));
    assert_eq!(paring::data::open(&format!("{}:train", dir.path().display()), 0).unwrap().len(), 3);
    let text = refused(paring::data::open(&format!("{}:test", dir.path().display()), 0));
    assert!(text.contains("it has `validation`, `train`"), "{text}");
    fs::write(dir.path().join("classes.txt"), "dog\ncat\n").unwrap();
    assert_eq!(labels(&open(dir.path()).unwrap()), [1, 0]);
}

#[test]
fn labels_csv_with_headers_quotes_names_and_folders() {
    let dir = tempfile::tempdir().unwrap();
    folders(dir.path(), &["in"]);
    write(&dir.path().join("b, c.png"), png([1; 3]));
    let csv = dir.path().join("labels.csv");
    let case = |text: &str| {
        fs::write(&csv, text).unwrap();
        open(dir.path())
    };
    let set = case("label,image,class_index\n\"big, cat\",in/a.png,1\r\ndog,\"b, c.png\",0\n").unwrap();
    assert_eq!((labels(&set), set.class_names()), (vec![1, 0], &["dog".to_owned(), "big, cat".to_owned()][..]));
    let set = case("\u{feff}filename,label\nin/a.png,zebra\n\"b, c.png\",ant\n").unwrap();
    assert_eq!((labels(&set), set.classes()), (vec![1, 0], 2));
    set.check_classes("m", 2).unwrap();
    assert!(refused(case("filename,label\nin/a.png,zebra\n\"b, c.png\",3\n")).contains("no class index"));
    assert!(refused(case("filename,label\n../x.png,3\n")).contains("no file name in this folder"));
    fs::write(dir.path().join("classes.txt"), "ant\nbee\nzebra\n").unwrap();
    let set = case("filename,label\nin/a.png,zebra\n").unwrap();
    assert_eq!((labels(&set), set.classes()), (vec![2], 3));
    assert!(refused(case("filename,label\nin/a.png,wolf\n")).contains("`wolf`"));
    assert_eq!(open(&csv).err().map(|e| e.to_string().contains("wolf")), Some(true));
}

#[test]
fn what_is_no_data_set_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x");
    for (bytes, why) in [
        (gzip(b"something"), "gzip archive: unpack it first"),
        (b"PK\x03\x04....".to_vec(), "zip archive"),
        (b"hello".to_vec(), "5 bytes, which is no whole number of CIFAR records"),
    ] {
        fs::write(&file, bytes).unwrap();
        let text = refused(open(&file));
        assert!(text.contains(why), "{text}");
    }
    let text = refused(open(dir.path()));
    assert!(text.contains("1 files (`x`), no sub-folder") && text.contains("Parquet"), "{text}");
    assert!(refused(paring::data::open("/no/such/place", 0)).contains("WebDataset"));
}
