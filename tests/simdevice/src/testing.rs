//! What the libraries' unit tests share: memory of the device, waiting, and runs that must end.
//!
//! This is the one place that knows where a test's memory comes from. Not here: figures of any library.

/// `bytes` of device memory, aligned as allocations of the driver are, never freed. Nothing was written to it.
pub fn test_memory(bytes: usize) -> u64 {
    // Every test's thread gets memory before it queues work.
    crate::stream::set_current(Some(0));
    crate::memory::allocate(0, bytes.max(1)).expect("the device has memory for tests")
}

/// Waits for all work of all streams.
pub fn finish() {
    crate::stream::set_current(Some(0));
    assert_eq!(crate::stream::synchronize_device(), 0);
}

/// A copy of `values` on the device.
pub fn put<T: Copy>(values: &[T]) -> u64 {
    let at = test_memory(size_of_val(values));
    crate::memory::check_write(at, size_of_val(values), "put");
    // SAFETY: `at` has room for them.
    unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), at as *mut T, values.len()) };
    at
}

/// `n` values on the device, when all work is done.
pub fn take<T: Copy>(at: u64, n: usize) -> Vec<T> {
    finish();
    // SAFETY: tests ask for what they put.
    unsafe { std::slice::from_raw_parts(at as *const T, n).to_vec() }
}

/// Runs `f` in a process of its own, which must end by `misuse!`; what it said. `test` is the calling test's full name.
pub fn ends(test: &str, f: impl FnOnce()) -> String {
    const CHILD: &str = "SIMDEVICE_TEST_ENDS";
    if std::env::var(CHILD).is_ok_and(|t| t == test) {
        f();
        finish();
        std::process::exit(0)
    }
    let me = std::env::current_exe().expect("a test has a file");
    let run = std::process::Command::new(me).args(["--exact", "--nocapture", test]).env(CHILD, test).output();
    let run = run.expect("the test's own file runs");
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert_eq!(run.status.code(), Some(86), "{said}");
    said
}

/// Numbers in `[-1, 1)` that are the same in every run.
pub fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}
