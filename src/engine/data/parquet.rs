//! Parquet files with encoded images, as the Hugging Face hub holds data sets: a group `image` (or `img`) of `bytes` and
//! `path`, and a whole-number `label`; or with a column of strings.
//!
//! Opening reads footers and labels. A batch reads the pages that its rows lie in and no others, so memory is bounded by
//! the batch and one page. Sources: the Parquet format (`parquet.thrift`), Hugging Face `datasets` (`Features` in the
//! footer's `huggingface` entry).

use super::decode::MAX_ENCODED;
use super::guard::guarded;
use super::{DataCard, DataError, Dataset, Encoded, Source, clean_long, clean_name, file_name, names};
use bytes::Bytes;
use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::reader::{ChunkReader, Length, SerializedPageReader};
use parquet::schema::types::ColumnDescPtr;
use rayon::prelude::*;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// More rows than any set of labelled images has.
const MAX_ROWS: usize = 1 << 26;
/// The largest inflated page: some images of many megabytes each. Writers cut pages at about one.
const MAX_PAGE: u64 = 256 << 20;
/// Rows of strings read together.
const AT_ONCE: usize = 256;
/// The largest footer.
const MAX_FOOTER: u64 = 256 << 20;

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    meta: ParquetMetaData,
    image: usize,
    /// Rows of the whole set before each row group.
    starts: Vec<usize>,
}

#[derive(Debug)]
struct Rows {
    shards: Vec<Shard>,
    labels: Vec<u32>,
}

/// What the footer's `huggingface` entry says of the columns.
#[derive(Debug, Default)]
struct Features {
    images: Vec<String>,
    /// Class columns with their names.
    classes: Vec<(String, Vec<String>)>,
}

/// Whether a file begins like Parquet.
pub(super) fn looks_like(head: &[u8]) -> bool {
    head.starts_with(b"PAR1")
}

/// Opens files as one set, in the given order.
pub(super) fn open(paths: &[PathBuf], spec: &str) -> Result<Dataset, DataError> {
    let (mut shards, mut labels) = (Vec::new(), Vec::<u32>::new());
    let mut class_names: Option<Vec<String>> = None;
    for path in paths {
        let (shard, names) = walled(path, || read_shard(path, &mut labels))?;
        shards.push(shard);
        if class_names.get_or_insert_with(|| names.clone()) != &names {
            return Err(DataError::Mixed { reason: format!("`{}` has other class names", path.display()) });
        }
    }
    let class_names = class_names.unwrap_or_default();
    let Some(&most) = labels.iter().max() else {
        return Err(DataError::empty(spec, "the files have no rows"));
    };
    let known = class_names.len() > most as usize;
    let class_names = if known { class_names } else { names::numbers(most as usize + 1) };
    let first = paths.first().map(|p| file_name(p)).unwrap_or_default();
    let card = DataCard::of(clean_name(first.trim_end_matches(".parquet")), spec, labels.len(), class_names);
    Ok(Dataset::new(card, Source::Encoded(Box::new(Rows { shards, labels })), known))
}

impl Rows {
    /// Shard, row group and row in it.
    fn place(&self, k: usize) -> Option<(usize, usize, usize)> {
        let shard = self.shards.partition_point(|s| s.starts.first().is_none_or(|&f| f <= k)).checked_sub(1)?;
        let starts = &self.shards.get(shard)?.starts;
        let group = starts.partition_point(|&s| s <= k).checked_sub(1)?;
        Some((shard, group, k - starts.get(group)?))
    }
}

impl Encoded for Rows {
    fn label(&self, k: usize) -> Option<u32> {
        self.labels.get(k).copied()
    }

    fn name(&self, k: usize) -> String {
        let place = self.place(k).and_then(|(shard, group, row)| Some((self.shards.get(shard)?, group, row)));
        place.map_or_else(String::new, |(s, group, row)| format!("{}, row group {group}, row {row}", s.path.display()))
    }

    /// The files, in order.
    fn stored(&self, _picks: &[usize]) -> Vec<(String, u64)> {
        let paths = self.shards.iter().map(|s| &s.path);
        paths.map(|p| (file_name(p), std::fs::metadata(p).map_or(0, |m| m.len()))).collect()
    }

    fn read(&self, k: usize) -> Result<Bytes, DataError> {
        self.together(&[k])?.pop().ok_or(DataError::Index { index: k, len: self.labels.len() })
    }

    /// Rows of one page are read together.
    ///
    /// # Errors
    /// A damaged file, a row without image bytes, a row past the end.
    fn together(&self, picks: &[usize]) -> Result<Vec<Bytes>, DataError> {
        let len = self.labels.len();
        let place = |(slot, &k): (usize, &usize)| {
            let (shard, group, row) = self.place(k).ok_or(DataError::Index { index: k, len })?;
            Ok((shard, group, row, slot))
        };
        let mut wanted = picks.iter().enumerate().map(place).collect::<Result<Vec<_>, DataError>>()?;
        wanted.sort_unstable();
        let groups: Vec<&[Wanted]> = wanted.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).collect();
        let read = |rows: &&[Wanted]| -> Result<Vec<(usize, Bytes)>, DataError> {
            let Some(&(shard, group, ..)) = rows.first() else { return Ok(Vec::new()) };
            let shard = self.shards.get(shard).ok_or(DataError::Index { index: shard, len })?;
            walled(&shard.path, || shard.images(group, rows))
        };
        let mut out = vec![Bytes::new(); picks.len()];
        for (slot, bytes) in groups.par_iter().map(read).collect::<Result<Vec<_>, _>>()?.into_iter().flatten() {
            if let Some(out) = out.get_mut(slot) {
                *out = bytes;
            }
        }
        Ok(out)
    }
}

/// An image that was asked for: shard, row group, row, and its place in what is handed back.
type Wanted = (usize, usize, usize, usize);

impl Shard {
    /// Images of ascending rows of a row group (perhaps repeated), with the slots they are for.
    fn images(&self, group: usize, wanted: &[Wanted]) -> Result<Vec<(usize, Bytes)>, DataError> {
        let damaged = |reason: String| broken(&self.path, &reason);
        let no_image = |row: usize| damaged(format!("row {row} of row group {group} has no image bytes"));
        let mut column: ColumnReaderImpl<ByteArrayType> = column(&self.path, &self.meta, group, self.image)?;
        let mut at = 0;
        let mut out = Vec::new();
        for same in wanted.chunk_by(|a, b| a.2 == b.2) {
            let Some(&(_, _, row, _)) = same.first() else { continue };
            let skipped = column.skip_records(row - at).map_err(|e| damaged(e.to_string()))?;
            let (mut levels, mut values) = (Vec::<i16>::new(), Vec::<ByteArray>::new());
            let read = column.read_records(1, Some(&mut levels), None, &mut values);
            let (records, ..) = read.map_err(|e| damaged(e.to_string()))?;
            if skipped != row - at || records != 1 {
                return Err(damaged(format!("row group {group} ends before row {row}")));
            }
            at = row + 1;
            let image = values.pop().filter(|v| *v != ByteArray::default()).ok_or_else(|| no_image(row))?;
            if image.len() as u64 > MAX_ENCODED {
                return Err(damaged(format!("the image of row {row} of row group {group} is far too large")));
            }
            // A copy: a slice would keep its whole page alive.
            let image = Bytes::copy_from_slice(image.data());
            out.extend(same.iter().map(|w| (w.3, image.clone())));
        }
        Ok(out)
    }
}

fn broken(path: &Path, reason: &str) -> DataError {
    DataError::Parquet { path: path.to_owned(), reason: clean_long(reason) }
}

/// The `parquet` crate asserts in places where a file is damaged.
fn walled<T>(path: &Path, f: impl FnOnce() -> Result<T, DataError>) -> Result<T, DataError> {
    guarded(f).unwrap_or_else(|| Err(broken(path, "it is damaged where the reader did not expect it")))
}

/// What the end of the file says of it.
fn footer_of(path: &Path) -> Result<ParquetMetaData, DataError> {
    let io = DataError::io(path);
    let pages = Pages::open(path).map_err(io)?;
    let footer = pages.footer().map_err(io)?;
    if footer > MAX_FOOTER.min(pages.len) {
        return Err(broken(path, "its footer is longer than the file, or far too long"));
    }
    ParquetMetaDataReader::new().parse_and_finish(&pages).map_err(|e| broken(path, &e.to_string()))
}

/// Hands the strings of the column `name` to `f`, in order and without the rows that have none, until it says `false`.
///
/// # Errors
/// [`DataError::Text`]: a damaged file, no such column of strings, bytes that are no UTF-8. What `f` says.
pub(super) fn texts(
    path: &Path,
    name: &str,
    f: &mut dyn FnMut(&str) -> Result<bool, DataError>,
) -> Result<(), DataError> {
    let read = walled(path, || {
        let meta = footer_of(path)?;
        let columns = meta.file_metadata().schema_descr().columns();
        let holds = |c: &ColumnDescPtr| {
            let bytes = c.physical_type() == parquet::basic::Type::BYTE_ARRAY && c.max_rep_level() == 0;
            bytes && c.path().parts() == [name]
        };
        let index = columns.iter().position(holds).ok_or_else(|| {
            let names: Vec<String> = columns.iter().take(12).map(|c| clean_name(&c.path().string())).collect();
            broken(path, &format!("it has no column `{name}` of strings: its columns are `{}`", names.join("`, `")))
        })?;
        for group in 0..meta.row_groups().len() {
            let mut column: ColumnReaderImpl<ByteArrayType> = column(path, &meta, group, index)?;
            loop {
                let (mut levels, mut values) = (Vec::<i16>::new(), Vec::<ByteArray>::new());
                let read = column.read_records(AT_ONCE, Some(&mut levels), None, &mut values);
                let (records, ..) = read.map_err(|e| broken(path, &e.to_string()))?;
                for value in &values {
                    let text = std::str::from_utf8(value.data())
                        .map_err(|_| broken(path, &format!("a row of row group {group} is not UTF-8")))?;
                    if !f(text)? {
                        return Ok(());
                    }
                }
                if records == 0 {
                    break;
                }
            }
        }
        Ok(())
    });
    read.map_err(|e| match e {
        DataError::Parquet { path, reason } => DataError::Text {
            path,
            reason: format!("as Parquet, {reason}"),
            hint: format!("a column `{name}` of strings, one document a row"),
        },
        other => other,
    })
}

/// One file's footer, and its labels behind those of the files before it.
fn read_shard(path: &Path, labels: &mut Vec<u32>) -> Result<(Shard, Vec<String>), DataError> {
    let bad = |e: &dyn std::fmt::Display| broken(path, &e.to_string());
    let meta = footer_of(path)?;
    let features = features(&meta);
    let schema = meta.file_metadata().schema_descr();
    let columns: Vec<ColumnDescPtr> = schema.columns().to_vec();
    let seen = || {
        let names: Vec<String> = columns.iter().take(12).map(|c| clean_name(&c.path().string())).collect();
        format!("its columns are `{}`", names.join("`, `"))
    };
    let image = image_column(&columns, &features)
        .ok_or_else(|| bad(&format!("no column holds images (`image.bytes` or `img.bytes`): {}", seen())))?;
    let (label, names) = label_column(&columns, &features)
        .ok_or_else(|| bad(&format!("no column holds whole-number labels (`label`): {}", seen())))?;
    let wide = columns.get(label).is_some_and(|c| c.physical_type() == parquet::basic::Type::INT64);
    let mut starts = Vec::new();
    for (g, group) in meta.row_groups().iter().enumerate() {
        starts.push(labels.len());
        let rows = usize::try_from(group.num_rows()).ok().filter(|r| *r <= MAX_ROWS - labels.len().min(MAX_ROWS));
        let rows = rows.ok_or_else(|| bad(&format!("row group {g} claims `{}` rows", group.num_rows())))?;
        let read = if wide {
            whole_column::<Int64Type>(path, &meta, g, label, rows)?
        } else {
            whole_column::<Int32Type>(path, &meta, g, label, rows)?.into_iter().map(i64::from).collect()
        };
        if read.len() != rows {
            return Err(bad(&format!("row group {g} has {} labels for {rows} rows", read.len())));
        }
        for (row, value) in read.into_iter().enumerate() {
            if !(0..names::MAX_CLASSES as i64).contains(&value) {
                return Err(DataError::Unlabelled { path: path.to_owned(), row: starts[g] + row, label: value });
            }
            labels.push(value as u32);
        }
    }
    Ok((Shard { path: path.to_owned(), meta, image, starts }, names))
}

fn whole_column<T: DataType>(
    path: &Path,
    meta: &ParquetMetaData,
    group: usize,
    index: usize,
    rows: usize,
) -> Result<Vec<T::T>, DataError> {
    let mut reader: ColumnReaderImpl<T> = column(path, meta, group, index)?;
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    reader.read_records(rows, Some(&mut levels), None, &mut values).map_err(|e| broken(path, &e.to_string()))?;
    Ok(values)
}

/// A reader of one column of one row group.
fn column<T: DataType>(
    path: &Path,
    meta: &ParquetMetaData,
    group: usize,
    index: usize,
) -> Result<ColumnReaderImpl<T>, DataError> {
    let pages = Pages::open(path).map_err(DataError::io(path))?;
    let damaged = || broken(path, "its footer names a part of the file that is not there");
    let group = meta.row_groups().get(group).ok_or_else(damaged)?;
    let chunk = group.columns().get(index).ok_or_else(damaged)?;
    let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    let ends = start.checked_add(chunk.compressed_size()).and_then(|e| u64::try_from(e).ok());
    let negative = [start, chunk.data_page_offset(), chunk.compressed_size()].iter().any(|v| *v < 0);
    if negative || ends.is_none_or(|e| e > pages.len) {
        return Err(damaged());
    }
    let rows = usize::try_from(group.num_rows()).map_err(|_| damaged())?;
    let reader = SerializedPageReader::new(Arc::new(Checked(pages)), chunk, rows, None);
    let reader = reader.map_err(|e| broken(path, &e.to_string()))?;
    Ok(ColumnReaderImpl::new(chunk.column_descr_ptr(), Box::new(reader)))
}

fn features(meta: &ParquetMetaData) -> Features {
    let mut out = Features::default();
    let text = meta.file_metadata().key_value_metadata().and_then(|all| all.iter().find(|kv| kv.key == "huggingface"));
    let json = text.and_then(|kv| serde_json::from_str::<serde_json::Value>(kv.value.as_deref()?).ok());
    let features = json.as_ref().and_then(|j| j.pointer("/info/features")).and_then(|f| f.as_object());
    for (name, feature) in features.into_iter().flatten() {
        match feature.get("_type").and_then(|t| t.as_str()) {
            Some("Image") => out.images.push(name.clone()),
            Some("ClassLabel") => {
                let names = feature.get("names").and_then(|n| n.as_array()).into_iter().flatten();
                let names = names.filter_map(|n| n.as_str().map(clean_name)).take(names::MAX_CLASSES).collect();
                out.classes.push((name.clone(), names));
            }
            _ => {}
        }
    }
    out
}

fn image_column(columns: &[ColumnDescPtr], features: &Features) -> Option<usize> {
    let holds = |c: &ColumnDescPtr, name: &str| {
        let path: Vec<&str> = c.path().parts().iter().map(String::as_str).collect();
        let bytes = c.physical_type() == parquet::basic::Type::BYTE_ARRAY && c.max_rep_level() == 0;
        bytes && (path == [name, "bytes"] || path == [name])
    };
    let usual = ["image", "img", "jpg", "jpeg", "png", "webp", "x"].map(str::to_owned);
    let named = features.images.iter().chain(&usual);
    named.filter_map(|name| columns.iter().position(|c| holds(c, name))).next()
}

/// The label column and its class names.
fn label_column(columns: &[ColumnDescPtr], features: &Features) -> Option<(usize, Vec<String>)> {
    let usual = ["label", "labels", "fine_label", "cls", "class", "class_id", "target", "y"];
    let find = |name: &str| {
        columns.iter().position(|c| {
            let whole = [parquet::basic::Type::INT32, parquet::basic::Type::INT64].contains(&c.physical_type());
            whole && c.max_rep_level() == 0 && c.path().parts() == [name]
        })
    };
    let names = |name: &str| features.classes.iter().find(|(n, _)| n == name).map(|(_, names)| names.clone());
    let of = |name: &str| Some((find(name)?, names(name).unwrap_or_default()));
    // Columns that are said to be classes first, the usual names before others.
    let classes = || features.classes.iter().map(|(n, _)| n.as_str());
    let first = usual.into_iter().filter(|u| classes().any(|c| c == *u)).chain(classes()).find_map(of);
    first.or_else(|| usual.into_iter().find_map(of))
}

/// A file that is read at places.
#[derive(Debug)]
struct Pages {
    file: File,
    len: u64,
}

impl Pages {
    fn open(path: &Path) -> std::io::Result<Pages> {
        let file = crate::files::open(path)?;
        let len = file.metadata()?.len();
        Ok(Pages { file, len })
    }

    fn at(&self, start: u64) -> std::io::Result<File> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(file)
    }

    /// The footer's length, by the file's last eight bytes.
    fn footer(&self) -> std::io::Result<u64> {
        let mut tail = [0u8; 4];
        self.at(self.len.saturating_sub(8))?.read_exact(&mut tail)?;
        Ok(u64::from(u32::from_le_bytes(tail)))
    }
}

impl Length for Pages {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for Pages {
    type T = BufReader<File>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(BufReader::new(self.at(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(ParquetError::EOF("a part reaches past the end of the file".into()));
        }
        let mut bytes = vec![0; length];
        self.at(start)?.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

/// [`Pages`] for reading pages alone: a page whose header claims to inflate beyond all measure is refused before room is
/// made for it. The page reader asks for a `Read` where a page begins, and reads from it only to read the page's header.
#[derive(Debug)]
struct Checked(Pages);

impl Length for Checked {
    fn len(&self) -> u64 {
        self.0.len
    }
}

impl ChunkReader for Checked {
    type T = Header;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        Ok(Header { bytes: self.0.get_read(start)?, checked: false })
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        self.0.get_bytes(start, length)
    }
}

/// A page header, checked before its first byte is handed out.
struct Header {
    bytes: BufReader<File>,
    checked: bool,
}

impl Read for Header {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if !std::mem::replace(&mut self.checked, true) {
            match inflated(self.bytes.fill_buf()?) {
                Some(size) if size <= MAX_PAGE => {}
                Some(size) => {
                    return Err(std::io::Error::other(format!(
                        "a page inflates to {size} bytes, more than {MAX_PAGE}"
                    )));
                }
                None => return Err(std::io::Error::other("a page header is damaged")),
            }
        }
        self.bytes.read(out)
    }
}

/// A page header's second field, the inflated size. Thrift's compact protocol: each field is a byte (id step in the high
/// half, type 5 = i32 in the low one) and a zigzag varint; writers put fields in the order of their ids.
fn inflated(head: &[u8]) -> Option<u64> {
    let mut rest = head.iter().copied();
    let mut number = || -> Option<u64> {
        (rest.next()? == 0x15).then_some(())?;
        let mut value = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = rest.next()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                // Zigzag: even numbers are not negative.
                return value.is_multiple_of(2).then_some(value / 2);
            }
        }
        None
    };
    number()?;
    number()
}
