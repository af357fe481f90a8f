//! Numbers that look random and are the same everywhere: what the fixtures' logits were computed for.

/// The `n` numbers from the `from`-th on, in -2..2: a 32-bit mix of each one's index.
pub fn mixed(n: usize, from: usize) -> Vec<f32> {
    let mix = |i: u32| {
        let mut x = i.wrapping_add(1).wrapping_mul(2_654_435_761);
        x ^= x >> 15;
        x = x.wrapping_mul(2_246_822_519);
        x ^= x >> 13;
        (f64::from(x >> 8) / f64::from(1 << 24) * 4.0 - 2.0) as f32
    };
    (from as u32..(from + n) as u32).map(mix).collect()
}
