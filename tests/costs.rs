//! Parameters and MACs of well-known networks, against published figures, in every counting convention.

use paring::graph::{Activation, Graph, MacConvention, Macs, macs, node_params};
use paring::model::FamilySpec;
use paring::model::families::{CifarResnetSpec, Names, ResnetSpec, Source, SwinSpec, SwinStage, VitDims, VitSpec};

/// Parameters, and G MACs by linear/conv, + attention, + norms.
fn figures(spec: &FamilySpec) -> (u64, [f64; 3]) {
    let graph: Graph = spec.build().unwrap();
    let total: Macs = macs(&graph).unwrap().into_iter().sum();
    let params = graph.nodes.iter().map(|n| node_params(&n.op)).sum();
    let g = |c| total.get(c) as f64 / 1e9;
    (params, [g(MacConvention::ConvLinear), g(MacConvention::Attention), g(MacConvention::Norms)])
}

fn timm(dims: VitDims) -> FamilySpec {
    FamilySpec::Vit(VitSpec::timm(dims))
}

fn hf(dims: VitDims) -> FamilySpec {
    FamilySpec::Vit(VitSpec::hugging_face(dims))
}

/// A Swin at 224 px whose widths and heads double from stage to stage.
fn swin(width: usize, depths: [usize; 4], heads: usize) -> FamilySpec {
    static OWN: Names = Names { source: Source::Timm, prefix: "", rules: &[], unused: &[] };
    let stage = |(i, depth): (usize, usize)| {
        let dim = width << i;
        SwinStage { dim, depth, heads: heads << i, mlp: 4 * dim }
    };
    FamilySpec::Swin(SwinSpec {
        names: &OWN,
        v2: None,
        patch: 4,
        stages: depths.into_iter().enumerate().map(stage).collect(),
        window: 7,
        fused: true,
        qkv_bias: true,
        act: Activation::GeluErf,
        eps: 1e-5,
        classes: 1000,
        image: 224,
    })
}

#[test]
fn published_figures_come_out() {
    let resnet = |d| FamilySpec::Resnet(ResnetSpec::depth(d, 1000).unwrap());
    // Parameters in M, then G MACs: linear/conv only (3 decimals), torchvision (3), timm/fvcore (2).
    for (name, spec, params, want) in [
        ("resnet18", resnet(18), 11_689_512, [1.814, 1.814, 1.82]),
        ("resnet50", resnet(50), 25_557_032, [4.089, 4.089, 4.11]),
        ("resnet101", resnet(101), 44_549_160, [7.801, 7.801, 7.83]),
        ("vit_b_16", timm(VitDims::base16()), 86_567_656, [16.849, 17.564, 17.58]),
        ("vit_b_16 hf", hf(VitDims::base16()), 86_567_656, [16.849, 17.564, 17.58]),
        (
            "deit_s",
            timm(VitDims { dim: 384, heads: 6, mlp: 1536, ..VitDims::base16() }),
            22_050_664,
            [4.241, 4.599, 4.61],
        ),
        ("swin_t", swin(96, [2, 2, 6, 2], 3), 28_288_354, [4.350, 4.491, 4.51]),
        ("swin_b", swin(128, [2, 2, 18, 2], 4), 87_768_224, [15.126, 15.431, 15.47]),
    ] {
        let (p, g) = figures(&spec);
        assert_eq!(p, params, "{name}");
        for (i, digits) in [(0, 3), (1, 3), (2, 2)] {
            assert_eq!(format!("{:.digits$}", g[i]), format!("{:.digits$}", want[i]), "{name} convention {i}");
        }
    }
}

#[test]
fn cifar_networks_have_the_published_sizes() {
    for (depth, params) in [(20, 269_722), (56, 853_018), (110, 1_727_962)] {
        let spec = FamilySpec::CifarResnet(CifarResnetSpec::depth(depth, 10));
        assert_eq!(figures(&spec).0, params, "resnet{depth}");
    }
    let dims = VitDims { image: 32, patch: 4, dim: 128, depth: 6, heads: 8, mlp: 256, classes: 10 };
    let spec = FamilySpec::TorchVit(VitSpec::torch(dims));
    // 811,146 elements: every tensor in the published file is a parameter.
    assert_eq!(figures(&spec).0, 811_146);
}
