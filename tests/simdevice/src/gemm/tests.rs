//! What bytes a product touches, its ends, and what it says of operands that overlap.

use super::*;
use crate::testing::{ends, noise, put, take, test_memory};

fn matrix(at: u64, kind: Kind, rows: usize, cols: usize, ld: usize) -> Matrix {
    Matrix { at, kind, rows, cols, ld, row_major: false, stride: 0 }
}

fn plain(a: Matrix, b: Matrix, d: Matrix) -> Product {
    Product {
        who: "test",
        compute: Compute::F32,
        shape: [a.rows, b.cols, a.cols],
        batch: 1,
        a,
        transposed_a: false,
        b,
        transposed_b: false,
        c: d,
        d,
        alpha: Scalar::Host(1.0),
        beta: Scalar::Host(0.0),
        scales: Scales::default(),
        epilogue: Epilogue::default(),
        workspace: Workspace::default(),
    }
}

#[test]
fn padding_between_lines_is_no_span() {
    let spans = |m: Matrix, batch| m.all_spans(batch).collect::<Vec<_>>();
    let m = matrix(1000, Kind::F32, 3, 2, 5);
    assert_eq!(spans(m, 1), [(1000, 12), (1020, 12)]);
    assert_eq!(spans(Matrix { ld: 3, ..m }, 1), [(1000, 24)]);
    assert_eq!(spans(Matrix { row_major: true, ..m }, 1), [(1000, 8), (1020, 8), (1040, 8)]);
    assert_eq!(spans(Matrix { stride: 100, ld: 3, ..m }, 2), [(1000, 24), (1400, 24)]);
    assert_eq!(spans(m, 7), [(1000, 12), (1020, 12)], "all of the batch are one");
    assert_eq!(spans(Matrix { ld: 0, ..m }, 1), [(1000, 12)], "a broadcast");
    assert_eq!(spans(Matrix { rows: 0, ..m }, 1), []);
}

#[test]
fn the_cost_counts_what_moves() {
    let product = plain(
        matrix(0, Kind::F16, 4, 8, 4),
        Matrix { stride: 16, ..matrix(0, Kind::F16, 8, 2, 8) },
        Matrix { stride: 8, ..matrix(0, Kind::F32, 4, 2, 4) },
    );
    let cost = Product { batch: 3, ..product.clone() }.cost();
    assert_eq!((cost.bytes, cost.flops, cost.peak), (64 + 3 * 32 + 3 * 32, 2 * 4 * 2 * 8 * 3, peak::F16));
    let cost = Product { beta: Scalar::Host(1.0), compute: Compute::Tf32, ..product }.cost();
    assert_eq!((cost.bytes, cost.peak), (64 + 32 + 2 * 32, peak::TF32));
}

#[test]
fn a_row_major_result_is_the_transpose() {
    let (a, b) = (noise(6, 1), noise(8, 2));
    let [da, db, dc, dt] = [put(&a), put(&b), test_memory(48), test_memory(48)];
    let product = plain(matrix(da, Kind::F32, 3, 2, 3), matrix(db, Kind::F32, 2, 4, 2), matrix(dc, Kind::F32, 3, 4, 3));
    let rows = Matrix { row_major: true, ld: 4, ..matrix(dt, Kind::F32, 3, 4, 4) };
    let turned = Product { c: rows, d: rows, ..product.clone() };
    assert_eq!((product.queue(0), turned.queue(0)), (0, 0));
    let (c, t) = (take::<f32>(dc, 12), take::<f32>(dt, 12));
    for i in 0..3 {
        for j in 0..4 {
            assert_eq!(c[i + 3 * j], t[4 * i + j]);
        }
    }
}

#[test]
fn halves_that_add_up_in_halves_lose_more() {
    // 4096 ones and one large number first: in f16, 2048 + 1 stays 2048, as long as ones come one block of 16 at a
    // time.
    let k = 4096;
    let a: Vec<half::f16> = (0..k).map(|i| half::f16::from_f32(if i == 0 { 32768.0 } else { 1.0 })).collect();
    let b = vec![half::f16::ONE; k];
    let [da, db, dd] = [put(&a), put(&b), test_memory(2)];
    let product = plain(matrix(da, Kind::F16, 1, k, 1), matrix(db, Kind::F16, k, 1, k), matrix(dd, Kind::F16, 1, 1, 1));
    product.clone().queue(0);
    assert_eq!(take::<half::f16>(dd, 1)[0].to_f32(), 36864.0);
    Product { compute: Compute::F16, ..product }.queue(0);
    assert_eq!(take::<half::f16>(dd, 1)[0].to_f32(), 32768.0, "steps of 16 are half of the last place: ties to even");
}

#[test]
fn gelu_is_the_usual_one() {
    for (x, y) in [(0.0, 0.0), (1.0, 0.841_192), (-1.0, -0.158_808), (3.0, 2.996_363)] {
        assert!((arithmetic::gelu(x) - y).abs() < 1e-5, "{x}");
    }
}

#[test]
fn a_result_over_its_operand_ends_the_run() {
    let said = ends("gemm::tests::a_result_over_its_operand_ends_the_run", || {
        let a = put(&[1f32; 64]);
        plain(matrix(a, Kind::F32, 4, 4, 4), matrix(a + 128, Kind::F32, 4, 4, 4), matrix(a + 60, Kind::F32, 4, 4, 4))
            .queue(0);
    });
    assert!(said.contains("test: D overlaps A"), "{said}");
}

#[test]
fn matrices_of_a_batch_that_overlap_end_the_run() {
    let said = ends("gemm::tests::matrices_of_a_batch_that_overlap_end_the_run", || {
        let a = put(&[1f32; 256]);
        let d = Matrix { stride: 15, ..matrix(a + 512, Kind::F32, 4, 4, 4) };
        let product = plain(matrix(a, Kind::F32, 4, 4, 4), matrix(a + 128, Kind::F32, 4, 4, 4), d);
        Product { batch: 2, ..product }.queue(0);
    });
    assert!(said.contains("test: matrices of D overlap"), "{said}");
}

#[test]
fn a_workspace_that_is_an_operand_ends_the_run() {
    let said = ends("gemm::tests::a_workspace_that_is_an_operand_ends_the_run", || {
        let a = put(&[1f32; 256]);
        let m = |at| matrix(at, Kind::F32, 4, 4, 4);
        let workspace = Workspace { at: a + 64, bytes: 256 };
        Product { workspace, ..plain(m(a), m(a + 128), m(a + 512)) }.queue(0);
    });
    assert!(said.contains("test: the workspace overlaps B"), "{said}");
}
