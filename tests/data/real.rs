//! The real files where this machine has them.

use crate::files::*;

#[test]
fn mnist_is_read_whole() {
    let Some(dir) = paring::data::real_dir() else { return println!("skipped: no real data") };
    let set = open(&dir.join("mnist")).expect("opens");
    assert_eq!((set.len(), set.classes()), (10_000, 10));
    // The first labels of the official test part, and how often each digit comes in it.
    assert_eq!(labels(&set)[..8], [7, 2, 1, 0, 4, 1, 4, 9]);
    let counts = labels(&set).iter().fold([0; 10], |mut c, &l| {
        c[l as usize] += 1;
        c
    });
    assert_eq!(counts, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]);
    let (x, _) = set.batch(0..10_000, &plain(28, 1)).expect("a batch");
    assert_eq!(x.dims(), [10_000, 1, 28, 28]);
    let mean = x.mean_all().and_then(|m| m.to_scalar::<f32>()).expect("a number");
    // The known mean of the test part.
    assert!((mean - 0.1325).abs() < 1e-3, "{mean}");
}
