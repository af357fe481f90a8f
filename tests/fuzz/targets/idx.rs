//! IDX images and labels: the first byte says where the labels begin.
#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&cut, rest)) = data.split_first() else { return };
    let (images, labels) = rest.split_at(rest.len().saturating_sub(usize::from(cut)));
    common::put("idx/a-labels-idx1-ubyte", labels);
    common::read(&common::put("idx/a-images-idx3-ubyte", images), 1);
});
