//! What SQLite does not say of its write-ahead log: that it stopped reading before the log's end.
//!
//! SQLite reads a log up to the first frame whose checksum fails and takes that for its end, as after a power cut it is.
//! If whole transactions of the same log follow, it is damage, and they are lost: that is looked for here, before SQLite
//! opens the file. Format: <https://sqlite.org/fileformat2.html#the_write_ahead_log>. Not for reading records; and what
//! was cut off a log's end leaves no trace to find.

use std::fmt;
use std::io::{BufReader, Read};
use std::path::Path;

const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
/// SQLite's own bounds on a page.
const PAGES: std::ops::RangeInclusive<usize> = 512..=65536;

/// Transactions that a damaged log holds and SQLite would not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// Whole frames before the damage.
    pub whole: u64,
    /// Transactions whose end lies in or behind it.
    pub transactions: u64,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = crate::words::counted(usize::try_from(self.transactions).unwrap_or(usize::MAX), "transaction");
        write!(f, "its log has a bad place after frame {}, and {lost} in or after it cannot be read", self.whole)
    }
}

/// What of the log at `path` is lost; `None` when it is whole, ends early, or is none.
pub fn lost(path: &Path) -> Option<Lost> {
    let file = super::private::open(path).ok()?;
    scan(&mut BufReader::new(file))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|b| u32::from_be_bytes(*b))
}

/// SQLite's running checksum over `bytes`, whose length is a multiple of 8.
fn checksum(big_endian: bool, sum: (u32, u32), bytes: &[u8]) -> (u32, u32) {
    let read = |b: &[u8]| {
        let b = [b[0], b[1], b[2], b[3]];
        if big_endian { u32::from_be_bytes(b) } else { u32::from_le_bytes(b) }
    };
    bytes.chunks_exact(8).fold(sum, |(a, b), pair| {
        let a = a.wrapping_add(read(&pair[..4])).wrapping_add(b);
        (a, b.wrapping_add(read(&pair[4..])).wrapping_add(a))
    })
}

fn scan(log: &mut impl Read) -> Option<Lost> {
    let mut header = [0; HEADER];
    log.read_exact(&mut header).ok()?;
    let magic = word(&header, 0)?;
    let big_endian = magic & 1 == 1;
    let page = word(&header, 8)? as usize;
    let mut sum = checksum(big_endian, (0, 0), &header[..24]);
    let sound = magic & !1 == 0x377f_0682
        && (Some(sum.0), Some(sum.1)) == (word(&header, 24), word(&header, 28))
        && page.is_power_of_two()
        && PAGES.contains(&page);
    // An empty log may have been given room and never a header.
    if !sound && header.iter().all(|b| *b == 0) {
        return None;
    }
    let mut found = Lost { whole: 0, transactions: 0 };
    if !sound {
        // Nothing of it is read; how much that is, only its size could tell.
        found.transactions = u64::from(std::io::copy(log, &mut std::io::sink()).ok()? > 0);
        return (found.transactions > 0).then_some(found);
    }
    let salt = header[16..24].to_vec();
    let mut frame = vec![0; FRAME_HEADER + page];
    let mut bad = false;
    while log.read_exact(&mut frame).is_ok() {
        if !bad {
            sum = checksum(big_endian, sum, &frame[..8]);
            sum = checksum(big_endian, sum, &frame[FRAME_HEADER..]);
        }
        // Frames of an earlier log, which this one has not come to yet, have another salt.
        let same = frame[8..16] == salt[..];
        bad = bad || !same || (Some(sum.0), Some(sum.1)) != (word(&frame, 16), word(&frame, 20));
        let commits = word(&frame, 4) != Some(0);
        match (bad, same && commits) {
            (false, _) => found.whole += 1,
            (true, true) => found.transactions += 1,
            (true, false) => {}
        }
    }
    (found.transactions > 0).then_some(found)
}
