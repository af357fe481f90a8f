//! TensorBoard's event files: records of an `Event` message each, framed as TFRecords are.
//!
//! After tensorflow/core/lib/io/record_writer.h (length, masked CRC-32C of the length, data, masked CRC-32C of the data, little-endian),
//! tensorflow/core/util/event.proto and tensorflow/core/framework/{summary,tensor}.proto. Not here: what is written (`tensorboard`). Scalars and
//! histograms are in the fields that every TensorBoard since 1.0 reads, text as the text plugin's tensors.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
struct Event {
    /// Seconds since the Unix epoch.
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(oneof = "What", tags = "3, 5")]
    what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
}

#[derive(Clone, PartialEq, Message)]
struct Summary {
    #[prost(message, repeated, tag = "1")]
    value: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
struct Value {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(message, optional, tag = "9")]
    metadata: Option<Metadata>,
    #[prost(oneof = "Figure", tags = "2, 5, 8")]
    figure: Option<Figure>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Figure {
    #[prost(float, tag = "2")]
    Scalar(f32),
    #[prost(message, tag = "5")]
    Histogram(Histogram),
    #[prost(message, tag = "8")]
    Tensor(Tensor),
}

/// Values by how large they are; buckets that nothing lies in are left out.
#[derive(Clone, PartialEq, Message)]
pub struct Histogram {
    #[prost(double, tag = "1")]
    pub min: f64,
    #[prost(double, tag = "2")]
    pub max: f64,
    #[prost(double, tag = "3")]
    pub num: f64,
    #[prost(double, tag = "4")]
    pub sum: f64,
    #[prost(double, tag = "5")]
    pub sum_squares: f64,
    /// Upper ends, ascending; a bucket begins where the one before ends.
    #[prost(double, repeated, tag = "6")]
    pub bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    pub bucket: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Metadata {
    #[prost(message, optional, tag = "1")]
    plugin: Option<Plugin>,
}

#[derive(Clone, PartialEq, Message)]
struct Plugin {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Tensor {
    #[prost(int32, tag = "1")]
    dtype: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    strings: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "2")]
    dim: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
struct Dim {
    #[prost(int64, tag = "1")]
    size: i64,
}

/// `DT_STRING`.
const STRING: i32 = 7;

/// A file of events in the making.
#[derive(Debug)]
pub struct Events {
    bytes: Vec<u8>,
    wall_time: f64,
    /// Scalars of the step that is being told.
    step: (i64, Vec<Value>),
}

impl Events {
    /// Of a moment, seconds since the Unix epoch.
    pub fn at(wall_time: f64) -> Events {
        let mut events = Events { bytes: Vec::new(), wall_time, step: (0, Vec::new()) };
        events.push(0, What::FileVersion("brain.Event:2".to_owned()));
        events
    }

    /// A figure at a step. It has no words of its own: readers take a value with metadata for one of a plugin's.
    pub fn scalar(&mut self, tag: &str, step: i64, value: f64) {
        self.value(tag, step, None, Figure::Scalar(value as f32));
    }

    pub fn histogram(&mut self, tag: &str, step: i64, h: Histogram) {
        self.value(tag, step, None, Figure::Histogram(h));
    }

    /// Markdown.
    pub fn text(&mut self, tag: &str, text: &str) {
        let shape = Shape { dim: vec![Dim { size: 1 }] };
        let tensor = Tensor { dtype: STRING, shape: Some(shape), strings: vec![text.as_bytes().to_vec()] };
        self.value(tag, 0, Some(Plugin { name: "text".to_owned() }), Figure::Tensor(tensor));
    }

    fn value(&mut self, tag: &str, step: i64, plugin: Option<Plugin>, figure: Figure) {
        if self.step.0 != step {
            self.end_step();
            self.step.0 = step;
        }
        let metadata = plugin.map(|plugin| Metadata { plugin: Some(plugin) });
        self.step.1.push(Value { tag: tag.to_owned(), metadata, figure: Some(figure) });
    }

    fn end_step(&mut self) {
        let value = std::mem::take(&mut self.step.1);
        if !value.is_empty() {
            self.push(self.step.0, What::Summary(Summary { value }));
        }
    }

    fn push(&mut self, step: i64, what: What) {
        let data = Event { wall_time: self.wall_time, step, what: Some(what) }.encode_to_vec();
        let length = (data.len() as u64).to_le_bytes();
        self.bytes.extend_from_slice(&length);
        self.bytes.extend_from_slice(&masked(&length).to_le_bytes());
        self.bytes.extend_from_slice(&data);
        self.bytes.extend_from_slice(&masked(&data).to_le_bytes());
    }

    pub fn into_bytes(mut self) -> Vec<u8> {
        self.end_step();
        self.bytes
    }
}

/// CRC-32C (Castagnoli), turned and shifted so that a checksum of checksums is none of trouble.
fn masked(bytes: &[u8]) -> u32 {
    let crc = !bytes.iter().fold(!0u32, |crc, b| {
        (0..8).fold(crc ^ u32::from(*b), |c, _| (c >> 1) ^ (0x82f6_3b78 & (c & 1).wrapping_neg()))
    });
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fields of a message: number, wire type, and bytes (a fixed one's own, a varint's as eight).
    fn fields(mut b: &[u8]) -> Vec<(u64, u64, Vec<u8>)> {
        fn varint(b: &mut &[u8]) -> u64 {
            let mut v = 0;
            for shift in (0..).step_by(7) {
                let (first, rest) = b.split_first().expect("a varint's end");
                *b = rest;
                v |= u64::from(first & 0x7f) << shift;
                if first & 0x80 == 0 {
                    break;
                }
            }
            v
        }
        let mut out = Vec::new();
        while !b.is_empty() {
            let key = varint(&mut b);
            let taken = match key & 7 {
                0 => varint(&mut b).to_le_bytes().to_vec(),
                wire => {
                    let n = match wire {
                        1 => 8,
                        5 => 4,
                        2 => varint(&mut b) as usize,
                        other => panic!("wire type {other}"),
                    };
                    let (taken, rest) = b.split_at(n);
                    b = rest;
                    taken.to_vec()
                }
            };
            out.push((key >> 3, key & 7, taken));
        }
        out
    }

    fn one(all: &[(u64, u64, Vec<u8>)], number: u64) -> &[u8] {
        let mut of = all.iter().filter(|(n, ..)| *n == number);
        let found = of.next().unwrap_or_else(|| panic!("no field {number} in {all:?}"));
        assert!(of.next().is_none(), "field {number} twice");
        &found.2
    }

    fn double(b: &[u8]) -> f64 {
        f64::from_le_bytes(b.try_into().expect("eight bytes"))
    }

    /// Events by the format's description, each frame's checksums looked at.
    fn records(mut b: &[u8]) -> Vec<Vec<(u64, u64, Vec<u8>)>> {
        let mut out = Vec::new();
        while !b.is_empty() {
            let length = u64::from_le_bytes(b[..8].try_into().expect("a length")) as usize;
            let crc = |at: usize| u32::from_le_bytes(b[at..at + 4].try_into().expect("a checksum"));
            assert_eq!((crc(8), crc(12 + length)), (masked(&b[..8]), masked(&b[12..12 + length])));
            out.push(fields(&b[12..12 + length]));
            b = &b[16 + length..];
        }
        out
    }

    #[test]
    fn checksums_are_those_of_the_standard() {
        // RFC 3720, B.4: 32 bytes of zeros, of ones, and ascending ones.
        let plain = |bytes: &[u8]| masked(bytes).wrapping_sub(0xa282_ead8).rotate_left(15);
        assert_eq!(plain(&[0; 32]), 0x8a91_36aa);
        assert_eq!(plain(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(plain(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(plain(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn what_was_written_reads_back_by_the_formats_description() {
        let mut e = Events::at(1.5e9);
        e.scalar("layers/p50_ms", 0, 2.5);
        e.scalar("layers/share", 0, 0.25);
        e.scalar("layers/p50_ms", 1, -1.0);
        let h = Histogram {
            num: 3.0,
            bucket_limit: vec![0.5, 1.0],
            bucket: vec![1.0, 2.0],
            min: -1.0,
            ..Histogram::default()
        };
        e.histogram("weights/fc", 0, h);
        e.text("conditions", "**cpu**");
        let all = records(&e.into_bytes());
        // The version, step 0, step 1, and step 0 again: what comes later keeps its order.
        assert_eq!(all.len(), 4);
        assert!(all.iter().all(|r| double(one(r, 1)) == 1.5e9));
        assert_eq!(one(&all[0], 3), b"brain.Event:2");
        let values = |r: usize| fields(one(&all[r], 5)).iter().map(|(n, _, v)| (*n, fields(v))).collect::<Vec<_>>();
        let first = values(1);
        assert_eq!(first.len(), 2);
        assert!(first.iter().all(|(n, _)| *n == 1));
        assert_eq!((one(&first[0].1, 1), one(&first[0].1, 2)), (&b"layers/p50_ms"[..], &2.5f32.to_le_bytes()[..]));
        assert!(first.iter().all(|(_, v)| v.iter().all(|(n, ..)| *n != 9)), "a plugin's are texts alone");
        assert_eq!(one(&all[2], 2), 1u64.to_le_bytes());
        assert_eq!(one(&values(2)[0].1, 2), (-1.0f32).to_le_bytes());
        let last = values(3);
        let histogram = fields(one(&last[0].1, 5));
        assert_eq!((double(one(&histogram, 1)), double(one(&histogram, 3))), (-1.0, 3.0));
        let doubles = |b: &[u8]| b.chunks(8).map(double).collect::<Vec<_>>();
        assert_eq!((doubles(one(&histogram, 6)), doubles(one(&histogram, 7))), (vec![0.5, 1.0], vec![1.0, 2.0]));
        let tensor = fields(one(&last[1].1, 8));
        assert_eq!((one(&tensor, 8), one(&tensor, 1)), (&b"**cpu**"[..], &7u64.to_le_bytes()[..]));
        assert_eq!(one(&fields(one(&fields(one(&last[1].1, 9)), 1)), 1), b"text");
    }
}
