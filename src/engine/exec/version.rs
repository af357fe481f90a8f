//! Which kernels this program has: a number that changes with their source, for measurements that outlive a program.

/// A hash of the source of everything that decides how long a compiled layer takes.
#[allow(long_running_const_eval)]
pub const KERNELS: u64 = {
    let mut hash = 0xcbf2_9ce4_8422_2325;
    let mut i = 0;
    while i < SOURCES.len() {
        hash = fnv(hash, SOURCES[i].1);
        i += 1;
    }
    hash
};

/// FNV-1a, 64 bit.
const fn fnv(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        i += 1;
    }
    hash
}

macro_rules! sources {
    ($($path:literal)*) => { &[$(($path, include_bytes!($path))),*] };
}

/// Read by the compiler alone: the bytes are not part of the program.
const SOURCES: &[(&str, &[u8])] = sources! {
    "kernel/amx.rs" "kernel/attention.rs" "kernel/avx512.rs" "kernel/batch.rs" "kernel/blocks.rs" "kernel/blocks/unpack.rs" "kernel/cached.rs" "kernel/dense.rs" "kernel/depthwise.rs" "kernel/experts.rs" "kernel/gemm.rs"
    "kernel/geometry.rs" "kernel/gradient.rs" "kernel/grouped.rs" "kernel/inputs.rs" "kernel/lanes.rs" "kernel/layout.rs" "kernel/mod.rs" "kernel/peak.rs"
    "kernel/rows.rs" "kernel/simple.rs" "kernel/slope.rs" "kernel/spread.rs" "kernel/team.rs" "kernel/tiles.rs" "kernel/vector.rs" "kernel/wide.rs" "kernel/window.rs"
    "kernel/rope.rs" "kernel/lanes/x86.rs" "candle/attention.rs" "candle/build.rs" "candle/cached.rs" "candle/clock.rs" "candle/definition.rs"
    "candle/dense.rs" "candle/dtypes.rs" "candle/experts.rs" "candle/fp8.rs" "candle/fused.rs" "candle/geometry.rs" "candle/heads.rs" "candle/int8.rs" "candle/kernels.rs"
    "candle/ops.rs" "candle/own.rs" "candle/packed.rs" "candle/pass.rs" "candle/program.rs" "candle/replay.rs" "candle/rounding.rs" "candle/site.rs"
    "candle/walk.rs" "lower/chain.rs" "lower/kernel.rs" "lower/layer.rs" "lower/routed.rs" "lower/step.rs"
    "cuda/graph.rs" "cuda/kernels/base.cu" "cuda/kernels/eight_bits.cu" "cuda/kernels/floats.cu" "cuda/kernels/packed.cu" "cuda/kernels/rows.cu" "cuda/lt.rs" "replay.rs" "lower.rs" "run.rs" "input.rs" "sizes.rs" "unfold.rs" "arena.rs" "backend.rs" "cpu.rs" "cuda.rs"
    "plan.rs" "session.rs" "cache.rs" "decode.rs"
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// A kernel in a new file would otherwise be taken for the old one.
    #[test]
    fn every_kernel_is_counted() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("exec");
        let mut missing = Vec::new();
        for dir in ["kernel", "kernel/blocks", "kernel/lanes", "candle", "lower", "cuda", "cuda/kernels"] {
            for file in std::fs::read_dir(here.join(dir)).expect("a folder of sources").flatten() {
                let name = file.file_name().to_string_lossy().into_owned();
                let path = format!("{dir}/{name}");
                let code = name.ends_with(".rs") || name.ends_with(".cu");
                if code && !name.contains("test") && !SOURCES.iter().any(|(p, _)| *p == path) {
                    missing.push(path);
                }
            }
        }
        assert!(missing.is_empty(), "not in SOURCES: {missing:?}");
        assert_ne!(fnv(1, b"a kernel"), fnv(1, b"a kernal"));
    }
}
