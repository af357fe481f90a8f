//! Words for every room that speaks to people: what follows a number, bytes, what a panic or the tensor library said.

use std::any::Any;
use std::cell::Cell;
use std::fmt::Display;

/// `1 turn`, `2 turns`: the number and its noun.
pub fn counted<N: Display + PartialEq + From<u8>>(n: N, one: &str) -> String {
    if n == N::from(1) { format!("1 {one}") } else { format!("{n} {one}s") }
}

/// As [`counted`], for nouns and phrases whose plural is not an `s` more: `1 entry is`, `2 entries are`.
pub fn counted_as<N: Display + PartialEq + From<u8>>(n: N, one: &str, many: &str) -> String {
    if n == N::from(1) { format!("1 {one}") } else { format!("{n} {many}") }
}

/// Bytes: `512 B`, `28.4 MB` (10^6).
pub fn bytes(v: u64) -> String {
    let v = v as f64;
    match v {
        v if v < 999.5 => format!("{v:.0} B"),
        v if v < 999_500.0 => format!("{:.1} kB", v / 1e3),
        v if v < 999_500_000.0 => format!("{:.1} MB", v / 1e6),
        v => format!("{:.2} GB", v / 1e9),
    }
}

/// What a panic said, where it said it in words.
pub fn of_panic(payload: &(dyn Any + Send)) -> Option<&str> {
    payload.downcast_ref::<String>().map(String::as_str).or_else(|| payload.downcast_ref::<&str>().copied())
}

thread_local! {
    /// Panics of this thread are told by whoever catches them.
    static HUSHED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread is caught and told elsewhere: what prints panics prints nothing then.
pub fn hushed() -> bool {
    HUSHED.get()
}

/// What `f` gives, or what it panicked with: for libraries that panic where they should report.
///
/// # Errors
/// The panic's words.
pub fn unwound<T>(f: impl FnOnce() -> T) -> Result<T, String> {
    let before = HUSHED.replace(true);
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f));
    HUSHED.set(before);
    done.map_err(|p| {
        let said = of_panic(&*p).unwrap_or("it panicked without a word");
        // What a library's own `unwrap` says around the driver's words.
        said.split_once("on an `Err` value: ").map_or(said, |(_, error)| error).to_owned()
    })
}

/// What the tensor library, or the driver below it, reports: in one line (it may append a backtrace), with the way out where a GPU has
/// failed. Whatever holds one shows its words and nothing beside them.
#[derive(Debug)]
pub struct TensorError(candle_core::Error);

impl TensorError {
    pub fn inner(&self) -> &candle_core::Error {
        &self.0
    }
}

impl From<candle_core::Error> for TensorError {
    fn from(e: candle_core::Error) -> TensorError {
        TensorError(e)
    }
}

/// Without a source: its words are these already.
impl std::error::Error for TensorError {}

impl Display for TensorError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = self.0.to_string();
        let line = text.lines().next().unwrap_or_default();
        write!(f, "{line}{}", way_out(line))
    }
}

/// After any of these every call of the process is answered alike (CUDA driver API, "CUresult").
const LOST: [&str; 9] = [
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_LAUNCH_TIMEOUT",
    "CUDA_ERROR_HARDWARE_STACK_ERROR",
    "CUDA_ERROR_ECC_UNCORRECTABLE",
    "CUDA_ERROR_UNKNOWN",
    "STATUS_EXECUTION_FAILED",
];

/// A hint where one is of use.
fn way_out(line: &str) -> &'static str {
    if LOST.iter().any(|l| line.contains(l)) {
        "; hint: the GPU is lost to this process, which must be started again (of a session `paring stop` and open it: what \
         was approved is kept); what is named is where it was noticed; `nvidia-smi` and `dmesg` tell more of the GPU"
    } else if line.contains("CUDA_ERROR_OUT_OF_MEMORY") || line.contains("STATUS_ALLOC_FAILED") {
        "; hint: `nvidia-smi` tells who else holds the GPU's memory; a smaller --batch needs less"
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_error_is_told_once_in_one_line() {
        let deep = candle_core::Error::Cuda("DriverError(CUDA_ERROR_ECC_UNCORRECTABLE, \"x\")".into()).bt();
        let e = TensorError::from(deep);
        let text = e.to_string();
        assert!(text.contains("ECC") && text.contains("; hint: the GPU is lost") && !text.contains('\n'), "{text}");
        assert!(std::error::Error::source(&e).is_none());
        let full = TensorError::from(candle_core::Error::Msg("CUDA_ERROR_OUT_OF_MEMORY".into())).to_string();
        assert_eq!(full.matches("hint").count(), 1, "{full}");
        assert_eq!(TensorError::from(candle_core::Error::Msg("odd shapes".into())).to_string(), "odd shapes");
    }

    #[test]
    fn what_panics_is_told_by_its_words() {
        assert_eq!(unwound(|| 3), Ok(3));
        let full: Result<u8, &str> = if hushed() { Ok(0) } else { Err("CUDA_ERROR_OUT_OF_MEMORY") };
        let told = unwound(|| {
            assert!(hushed());
            full.unwrap()
        });
        assert_eq!((told, hushed()), (Err("\"CUDA_ERROR_OUT_OF_MEMORY\"".to_owned()), false));
    }

    #[test]
    fn one_is_singular_and_nothing_else() {
        assert_eq!((counted(0usize, "turn"), counted(1u64, "turn"), counted(2u32, "turn")), {
            ("0 turns".to_owned(), "1 turn".to_owned(), "2 turns".to_owned())
        });
        assert_eq!(counted_as(1usize, "entry is", "entries are"), "1 entry is");
        assert_eq!(counted_as(3usize, "entry is", "entries are"), "3 entries are");
    }
}
