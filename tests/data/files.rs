//! Small whole files of every kind, and opening them.

use paring::data::{self, DataError, Dataset};
use paring::model::{Fit, Interpolation, Preprocess};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Bytes / 255, straight to `side`.
pub fn plain(side: usize, channels: usize) -> Preprocess {
    Preprocess {
        size: [side, side],
        channels,
        resize_shorter: None,
        fit: Fit::default(),
        mean: [0.0; 3],
        std: [1.0; 3],
        interpolation: Interpolation::Bilinear,
        origin: "test".into(),
    }
}

pub fn open(path: &Path) -> Result<Dataset, DataError> {
    data::open(path.to_str().expect("text"), 0)
}

/// The error's words, which always hold a hint.
pub fn refused(result: Result<Dataset, DataError>) -> String {
    let text = result.expect_err("must be refused").to_string();
    assert!(text.contains("hint: ") && !text.chars().any(char::is_control), "{text:?}");
    text
}

pub fn labels(set: &Dataset) -> Vec<u32> {
    (0..set.len()).filter_map(|i| set.label(i)).collect()
}

/// One image of one colour, encoded.
pub fn encoded(rgb: [u8; 3], side: u32, format: image::ImageFormat) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image::RgbImage::from_pixel(side, side, image::Rgb(rgb)).write_to(&mut bytes, format).expect("encodes");
    bytes.into_inner()
}

pub fn png(rgb: [u8; 3]) -> Vec<u8> {
    encoded(rgb, 8, image::ImageFormat::Png)
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    out.write_all(bytes).expect("written");
    out.finish().expect("whole")
}

/// An IDX file of bytes.
pub fn idx(axes: &[u32], bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![0, 0, 8, axes.len() as u8];
    out.extend(axes.iter().flat_map(|a| a.to_be_bytes()));
    out.extend(bytes);
    out
}

/// `count` CIFAR-10 records with labels 0, 1, ..
pub fn cifar(count: usize) -> Vec<u8> {
    (0..count).flat_map(|i| [(i % 10) as u8].into_iter().chain((0..3072).map(move |p| (p * 7 + i) as u8))).collect()
}

/// A CIFAR batch as Python 2 pickled it: `{'labels': [..], 'data': uint8 array [N, 3072], ..}`, or CIFAR-100's.
pub fn cifar_pickle(labels: &[u8], pixels: &[u8], fine: bool) -> Vec<u8> {
    let mut out = vec![0x80, 2, b'}', b'q', 1, b'('];
    let text = |out: &mut Vec<u8>, t: &str| {
        out.extend([b'U', t.len() as u8]);
        out.extend(t.as_bytes());
    };
    text(&mut out, "batch_label");
    text(&mut out, "testing batch 1 of 1");
    if fine {
        text(&mut out, "coarse_labels");
        out.extend(b"](K\x01e");
    }
    text(&mut out, if fine { "fine_labels" } else { "labels" });
    out.extend(b"](");
    labels.iter().for_each(|l| out.extend([b'K', *l]));
    out.push(b'e');
    text(&mut out, "data");
    out.extend(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01");
    out.push(b'M');
    out.extend((labels.len() as u16).to_le_bytes());
    out.extend(b"M\x00\x0c\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89");
    out.push(b'T');
    out.extend((pixels.len() as u32).to_le_bytes());
    out.extend(pixels);
    out.extend(b"tbu.");
    out
}

/// Members of a tar.
pub fn tar(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *bytes).expect("appended");
    }
    builder.into_inner().expect("whole")
}

/// A hub-like Parquet file: `image.bytes`, `image.path`, `label`; a row group for every `group` rows.
pub fn parquet(rows: &[(Option<Vec<u8>>, i64)], group: usize, props: WriterProperties, names: &[&str]) -> Vec<u8> {
    let schema = "message hub { optional group image { optional binary bytes; optional binary path (UTF8); } \
                  optional int64 label; }";
    let schema = Arc::new(parquet::schema::parser::parse_message_type(schema).expect("a schema"));
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(props)).expect("a writer");
    for rows in rows.chunks(group.max(1)) {
        let mut out = writer.next_row_group().expect("a row group");
        let (images, levels): (Vec<_>, Vec<_>) =
            rows.iter().map(|(b, _)| (b.clone().map(ByteArray::from), if b.is_some() { 2i16 } else { 1 })).unzip();
        let images: Vec<ByteArray> = images.into_iter().flatten().collect();
        let mut column = out.next_column().expect("bytes").expect("bytes");
        column.typed::<ByteArrayType>().write_batch(&images, Some(&levels), None).expect("written");
        column.close().expect("closed");
        let mut column = out.next_column().expect("path").expect("path");
        column.typed::<ByteArrayType>().write_batch(&[], Some(&vec![1; rows.len()]), None).expect("written");
        column.close().expect("closed");
        let labels: Vec<i64> = rows.iter().map(|r| r.1).collect();
        let mut column = out.next_column().expect("label").expect("label");
        column.typed::<Int64Type>().write_batch(&labels, Some(&vec![1; rows.len()]), None).expect("written");
        column.close().expect("closed");
        out.close().expect("closed");
    }
    if !names.is_empty() {
        let features = serde_json::json!({ "info": { "features": {
            "image": { "_type": "Image" },
            "label": { "names": names, "_type": "ClassLabel" },
        } } });
        writer.append_key_value_metadata(KeyValue::new("huggingface".to_owned(), features.to_string()));
    }
    writer.into_inner().expect("whole")
}
