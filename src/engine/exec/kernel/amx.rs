//! int8 products on Intel's matrix unit (AMX): 16 rows by 16 columns by up to 64 values an instruction, u8 · i8 → i32,
//! exact. The panels are those of the VNNI tiles, padded so that a run is a whole number of steps.
//!
//! There are no stable intrinsics, so the few instructions are written out. Tile registers are no compiler's business:
//! nothing else here uses them, and they keep their contents between the blocks below.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (LDTILECFG, TILELOADD, TDPBUSD).

use super::avx512::{Ahead, Line, Panel, Scales, scaled_rows};
use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, __m512i};
use std::sync::OnceLock;

/// Can AMX run here? Asks the processor for the instructions and the kernel for the permission to use the tiles, which
/// it gives a process once.
pub(crate) fn available() -> bool {
    static HAVE: OnceLock<bool> = OnceLock::new();
    *HAVE.get_or_init(|| super::avx512::dots() && instructions() && permission())
}

/// CPUID leaf 7: AMX-TILE (bit 24) and AMX-INT8 (bit 25) in EDX.
fn instructions() -> bool {
    #[allow(unused_unsafe, reason = "safe in newer standard libraries")]
    // SAFETY: the leaf exists on every processor with AVX-512.
    let edx = unsafe { __cpuid_count(7, 0) }.edx;
    edx >> 24 & 3 == 3
}

#[cfg(target_os = "linux")]
fn permission() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: a request; a kernel that does not know it answers with an error.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permission() -> bool {
    false
}

/// Steps of a run of `len` values and bytes of a step: as few steps as possible, of equal length, a multiple of four.
pub(crate) fn steps(len: usize) -> (usize, usize) {
    let n = len.div_ceil(64).max(1);
    (n, len.div_ceil(n).next_multiple_of(4))
}

/// Rows of a tile for lines of `rows` rows: equal parts, at most 16.
pub(crate) fn tile_rows(rows: usize) -> usize {
    rows.div_ceil(rows.div_ceil(16).max(1)).max(1)
}

#[repr(C, align(64))]
struct Palette([u8; 64]);

/// The tile unit set up on this thread for one shape; gives it back when dropped, since used tiles make every thread
/// switch dearer.
pub(crate) struct Tiles {
    rows: usize,
    step: usize,
}

impl Tiles {
    /// Inputs of `rows` rows by `step` bytes.
    ///
    /// # Safety
    /// [`available`] holds.
    pub unsafe fn set(rows: usize, step: usize) -> Tiles {
        assert!((1..=16).contains(&rows) && (4..=64).contains(&step) && step.is_multiple_of(4));
        let mut p = Palette([0; 64]);
        p.0[0] = 1;
        // Registers 0 to 3 accumulate, 4 and 5 hold inputs, 6 and 7 weights. Bytes a row from 16 on (u16), rows from 48.
        for (t, bytes, rows) in [(0, 64, rows), (4, step, rows), (6, 64, step / 4)] {
            for t in t..t + if t == 0 { 4 } else { 2 } {
                p.0[16 + 2 * t] = bytes as u8;
                p.0[48 + t] = rows as u8;
            }
        }
        // SAFETY: a valid palette.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &p, options(nostack, readonly)) };
        Tiles { rows, step }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the unit is there, or `set` had failed.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

/// Four accumulators as they leave the tiles.
#[repr(C, align(64))]
struct Sums([[i32; 256]; 4]);

impl Tiles {
    /// One panel's columns of all lines; `line.steps` is the number of steps of a run.
    ///
    /// # Safety
    /// As `avx512::line_u8`, and runs are readable up to whole steps. These are the tiles set last on this thread, for
    /// at most `line.rows` rows.
    pub unsafe fn lines(&self, b: *const __m512i, panel: &Panel, line: Line<'_, u8>, scales: Scales) {
        let per_line = line.rows.div_ceil(self.rows);
        let units = line.lines * per_line;
        // A unit's first input and first output row; the last of a line overlaps its neighbour rather than end early.
        let unit = |u: usize| {
            let (y, first) = (u / per_line, (u % per_line * self.rows).min(line.rows - self.rows));
            (line.a.wrapping_add(y * line.line_stride + first * line.stride), y * line.rows + first)
        };
        let mut sums = Sums([[0; 256]; 4]);
        // SAFETY: as the caller vouches.
        unsafe {
            let b = b.add(panel.at).cast::<u8>();
            for u in (0..units).step_by(2) {
                let ahead = Ahead::part(line.ahead, u / 2, units.div_ceil(2));
                let pair = u + 1 < units;
                let (first, second) = (unit(u), unit(u + usize::from(pair)));
                let blocks = panel.vecs.div_ceil(2);
                for v in (0..panel.vecs).step_by(2) {
                    let line = Line { ahead: Ahead::part(ahead, v / 2, blocks), ..line };
                    let b = b.add(64 * v);
                    let two = v + 1 < panel.vecs;
                    let a = [first.0, second.0];
                    match (pair, two) {
                        (true, true) => self.block::<true, true>(&line, a, b, panel.vecs, &mut sums),
                        (true, false) => self.block::<true, false>(&line, a, b, panel.vecs, &mut sums),
                        (false, true) => self.block::<false, true>(&line, a, b, panel.vecs, &mut sums),
                        (false, false) => self.block::<false, false>(&line, a, b, panel.vecs, &mut sums),
                    }
                    for (i, row) in [first.1, second.1].into_iter().enumerate().take(1 + usize::from(pair)) {
                        for j in 0..1 + usize::from(two) {
                            scaled_rows(&sums.0[2 * i + j], self.rows, row, v + j, panel.cols, &line, &scales);
                        }
                    }
                }
            }
        }
    }

    /// Up to 2 by 2 tiles over all runs, into `sums`.
    #[inline]
    unsafe fn block<const ROWS2: bool, const COLS2: bool>(
        &self,
        line: &Line<'_, u8>,
        a: [*const u8; 2],
        b: *const u8,
        vecs: usize,
        sums: &mut Sums,
    ) {
        let (mut b, b_stride) = (b, 64 * vecs);
        let b_step = self.step / 4 * b_stride;
        let mut ahead = Ahead::over(line.ahead, line.taps.len() * line.steps);
        // SAFETY: as the caller vouches; `sums` has room for four tiles.
        unsafe {
            asm!("tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
            for &tap in line.taps {
                let (mut lo, mut hi) = (a[0].add(tap), a[1].add(tap));
                for _ in 0..line.steps {
                    ahead.turn();
                    asm!("tileloadd tmm4, [{a} + {s}*1]", "tileloadd tmm6, [{b} + {t}*1]", "tdpbusd tmm0, tmm4, tmm6",
                        a = in(reg) lo, s = in(reg) line.stride, b = in(reg) b, t = in(reg) b_stride,
                        options(nostack, readonly));
                    if COLS2 {
                        asm!("tileloadd tmm7, [{b} + {t}*1 + 64]", "tdpbusd tmm1, tmm4, tmm7",
                            b = in(reg) b, t = in(reg) b_stride, options(nostack, readonly));
                    }
                    if ROWS2 {
                        asm!("tileloadd tmm5, [{a} + {s}*1]", "tdpbusd tmm2, tmm5, tmm6",
                            a = in(reg) hi, s = in(reg) line.stride, options(nostack, readonly));
                    }
                    if ROWS2 && COLS2 {
                        asm!("tdpbusd tmm3, tmm5, tmm7", options(nostack, nomem));
                    }
                    (lo, hi, b) = (lo.add(self.step), hi.add(self.step), b.add(b_step));
                }
            }
            asm!("tilestored [{o} + {s}*1], tmm0", "tilestored [{o} + {s}*1 + 1024], tmm1",
                "tilestored [{o} + {s}*1 + 2048], tmm2", "tilestored [{o} + {s}*1 + 3072], tmm3",
                o = in(reg) sums.0.as_mut_ptr(), s = in(reg) 64usize, options(nostack));
        }
    }
}

/// `n` rounds of 2 by 2 tiles from the first-level cache, for measuring.
///
/// # Safety
/// [`available`] holds.
pub(crate) unsafe fn burst(n: usize) {
    let data = Sums([[0; 256]; 4]);
    // SAFETY: full tiles of 1,024 bytes, read from `data`.
    unsafe {
        let _tiles = Tiles::set(16, 64);
        for _ in 0..n {
            asm!("tileloadd tmm4, [{a} + {s}*1]", "tileloadd tmm5, [{a} + {s}*1 + 1024]",
                "tileloadd tmm6, [{a} + {s}*1 + 2048]", "tileloadd tmm7, [{a} + {s}*1 + 3072]",
                "tdpbusd tmm0, tmm4, tmm6", "tdpbusd tmm1, tmm4, tmm7",
                "tdpbusd tmm2, tmm5, tmm6", "tdpbusd tmm3, tmm5, tmm7",
                a = in(reg) data.0.as_ptr(), s = in(reg) 64usize, options(nostack, readonly));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_cover_a_run_with_less_than_a_group_a_step_to_spare() {
        for len in 1..2000 {
            let (n, step) = steps(len);
            assert!(step <= 64 && step.is_multiple_of(4) && n * step >= len, "{len}: {n} of {step}");
            assert!(n * step < len + 4 * n, "{len}: {n} of {step}");
        }
    }

    #[test]
    fn tiles_are_near_equal_parts() {
        assert_eq!([1, 7, 14, 16, 17, 28, 49, 56].map(tile_rows), [1, 7, 14, 16, 9, 14, 13, 14]);
    }
}
