//! Network families: a graph from a small spec, with the checkpoint's own node and parameter names.
//!
//! A family is a spec, a table of [`Names`] per origin, a function that reads the spec off a checkpoint and one that
//! builds the graph out of shared [`blocks`]; then an entry in [`FamilySpec`] and in [`candidates`].
//! Not here: reading files (`model::load`) and choosing among the candidates (`model::recognise`).

mod bert;
mod blocks;
mod convnext;
mod decoder;
mod decoder_experts;
mod decoder_names;
mod decoder_read;
mod decoder_rope;
mod gemma;
mod gpt2;
mod llama;
mod mobile;
mod mobile_names;
mod modernbert;
mod names;
mod read;
mod resnet;
mod swin;
mod text_classifier;
mod vgg;
mod vit;
mod vit_names;
mod vit_read;

pub use bert::BertSpec;
pub use convnext::{ConvNextSpec, ConvNextStage};
pub use decoder::{DecoderSpec, LlamaDims, Norms, QkNorms, Stored};
pub use decoder_experts::Experts;
pub(super) use decoder_names::stack_of;
pub use gpt2::Gpt2Spec;
pub use mobile::{MobileBlock, MobileSpec, Padding};
pub use modernbert::{Biases, ModernBertSpec};
pub use names::{Names, Source};
pub(super) use read::Reader;
pub use resnet::{CifarResnetSpec, ResnetBlock, ResnetSpec, ResnetStage};
pub use swin::{SwinSpec, SwinStage, SwinV2};
pub use vgg::VggSpec;
pub use vit::{Head, Mlp, Qkv, VitDims, VitSpec};

use super::{Checkpoint, Family, Interpolation, Preprocess, Result};
use crate::graph::{Graph, GraphError};
use std::collections::{HashMap, HashSet};

/// A family with its dimensions: everything a graph is built from.
#[derive(Debug, Clone, PartialEq)]
pub enum FamilySpec {
    CifarResnet(CifarResnetSpec),
    Resnet(ResnetSpec),
    Vgg(VggSpec),
    /// MobileNet v2, v3 and EfficientNet.
    Mobile(MobileSpec),
    ConvNext(ConvNextSpec),
    TorchVit(VitSpec),
    Vit(VitSpec),
    Swin(SwinSpec),
    SwinV2(SwinSpec),
    /// Language models.
    Llama(DecoderSpec),
    Gemma(DecoderSpec),
    Gpt2(Gpt2Spec),
    /// Classifiers of text: BERT and DistilBERT.
    Bert(BertSpec),
    ModernBert(ModernBertSpec),
}

/// How a checkpoint of a family from one origin is recognised and read.
pub(super) struct Candidate {
    pub family: Family,
    pub names: &'static Names,
    /// Tensors that it has, by the builder's names.
    pub marks: &'static [&'static str],
    /// Of these it has at least one, if there are any.
    pub either: &'static [&'static str],
    pub read: fn(&Reader) -> Result<FamilySpec>,
}

/// Every family from every origin, in the order in which they are tried.
pub(super) fn candidates() -> impl Iterator<Item = Candidate> {
    let of = |family,
              names: &'static [Names],
              marks: &'static [&'static str],
              either: &'static [&'static str],
              read: fn(&Reader) -> Result<FamilySpec>| {
        names.iter().map(move |names| Candidate { family, names, marks, either, read })
    };
    of(Family::Vit, &vit_names::NAMES, vit_names::MARKS, vit_names::EITHER, vit_read::read)
        .chain(of(Family::TorchVit, &vit_names::TORCH, vit_names::MARKS, &[], vit_read::read_torch))
        .chain(of(Family::SwinV2, &swin::NAMES, swin::MARKS, swin::V2_MARK, swin::read))
        .chain(of(Family::Swin, &swin::NAMES, swin::MARKS, swin::V1_MARK, swin::read))
        .chain(of(Family::ConvNext, &convnext::NAMES, convnext::MARKS, &[], convnext::read))
        .chain(of(Family::MobileNetV3, &mobile_names::V3, mobile_names::V3_MARKS, &[], mobile::read))
        .chain(of(
            Family::EfficientNet,
            &mobile_names::EFFICIENTNET,
            mobile_names::EFFICIENTNET_MARKS,
            &[],
            mobile::read,
        ))
        .chain(of(Family::MobileNetV2, &mobile_names::V2, mobile_names::V2_MARKS, &[], mobile::read))
        .chain(of(Family::Vgg, &vgg::NAMES, vgg::MARKS, &[], vgg::read))
        .chain(of(Family::Resnet, &resnet::NAMES, resnet::MARKS, &[], resnet::read))
        .chain(of(Family::Gpt2, &gpt2::NAMES, gpt2::MARKS, &[], gpt2::read))
        .chain(of(Family::Gemma, &decoder_names::GEMMAS, decoder_names::AROUND_MARKS, &[], gemma::read))
        .chain(of(Family::Llama, &decoder_names::OLMO, decoder_names::AFTER_MARKS, &[], llama::read_after))
        .chain(of(Family::Llama, &decoder_names::LLAMA, decoder_names::LLAMA_MARKS, &[], llama::read))
        .chain(of(Family::Llama, &decoder_names::MIXTRALS, decoder_names::EXPERT_MARKS, &[], llama::read))
        .chain(of(Family::Llama, &decoder_names::LLAMA, decoder_names::EXPERT_MARKS, &[], llama::read))
        .chain(of(Family::Llama, &decoder_names::LLAMA, decoder_names::FUSED_MARKS, &[], llama::read_fused))
        .chain(of(Family::Bert, &bert::NAMES, bert::MARKS, &[], bert::read))
        .chain(of(Family::ModernBert, &modernbert::NAMES, modernbert::MARKS, &[], modernbert::read))
        .chain(of(Family::CifarResnet, &resnet::CIFAR_NAMES, resnet::CIFAR_MARKS, &[], resnet::read_cifar))
}

/// transformers' names for a kind that calls some otherwise than its family's first.
fn own_names(kind: &str) -> Option<&'static Names> {
    match kind {
        "mixtral" => Some(&decoder_names::MIXTRALS[0]),
        "olmo2" => Some(&decoder_names::OLMO[0]),
        _ => None,
    }
}

/// What transformers calls the nodes of `graph`, a network of the kind `kind` (`model_type`); see [`called`].
pub(super) fn called_there(graph: &Graph, kind: &str) -> Option<HashMap<String, String>> {
    named(graph, Source::HuggingFace, own_names(kind))
}

/// What checkpoints from `source` call the nodes of `graph`, by their names; `None` where it is of no family that is published there.
pub(super) fn called(graph: &Graph, source: Source) -> Option<HashMap<String, String>> {
    named(graph, source, None)
}

/// As [`called`], by the table `own` where that is given.
fn named(graph: &Graph, source: Source, own: Option<&'static Names>) -> Option<HashMap<String, String>> {
    let tensors: HashSet<&str> = graph.nodes.iter().flat_map(|n| &n.params).map(|p| p.name.as_str()).collect();
    // What a file has as one tensor, the graph has as several.
    let parted = |own: &str| own.replace(".qkv.", ".q.").replace(".gate_up.", ".gate.");
    let fits = |c: &Candidate| {
        let mut marks = c.marks.iter().map(|own| [c.names.of(own), c.names.of(&parted(own))]);
        marks.all(|names| names.iter().any(|name| tensors.contains(name.as_str())))
    };
    // One layer a block, or fewer. Experts keep their numbers where others are gone, so that there are names for all up to the largest number.
    let inside = crate::graph::experts::places(graph);
    let experts =
        graph.nodes.iter().zip(inside).filter(|(_, place)| place.is_some()).flat_map(|(n, _)| n.name.split('.'));
    let most = experts.filter_map(|part| part.parse::<usize>().ok()).max();
    let counts = [graph.blocks.len(), most.map_or(0, |n| n.saturating_add(1).min(graph.nodes.len()))];
    let tables = candidates().filter(fits).filter_map(|ours| {
        let usual = || candidates().find(|c| c.family == ours.family && c.names.source == source).map(|c| c.names);
        Some(ours.names.each(own.or_else(usual)?, counts))
    });
    // Kinds of one family share most names and call some otherwise: the one that knows most of the layers, the first of equals.
    let known = |table: &HashMap<String, String>| {
        graph.nodes.iter().filter(|n| !n.params.is_empty() && table.contains_key(&n.name)).count()
    };
    let table = tables.fold(None, |best: Option<(usize, HashMap<String, String>)>, table| {
        let n = known(&table);
        if best.as_ref().is_some_and(|(most, _)| *most >= n) { best } else { Some((n, table)) }
    });
    let (_, table) = table?;
    let of = |name: &str| {
        let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
        let (at, to) = ends.filter_map(|at| Some((at, table.get(&name[..at])?))).next_back()?;
        Some(format!("{to}{}", &name[at..]))
    };
    Some(graph.nodes.iter().filter_map(|n| Some((n.name.clone(), of(&n.name)?))).collect())
}

impl FamilySpec {
    pub fn family(&self) -> Family {
        self.facts().0
    }

    pub fn classes(&self) -> usize {
        self.facts().1
    }

    /// Family, classes, and where its authors publish one its evaluation transform.
    fn facts(&self) -> (Family, usize, Option<Crop>) {
        match self {
            FamilySpec::CifarResnet(s) => (Family::CifarResnet, s.classes, None),
            FamilySpec::Resnet(s) => (Family::Resnet, s.classes, Some(s.crop())),
            FamilySpec::Vgg(s) => (Family::Vgg, s.classes, Some(s.crop())),
            FamilySpec::Mobile(s) => (s.family, s.classes, Some(s.crop())),
            FamilySpec::ConvNext(s) => (Family::ConvNext, s.classes, Some(s.crop())),
            FamilySpec::TorchVit(s) => (Family::TorchVit, s.dims.classes, Some(s.crop())),
            FamilySpec::Vit(s) => (Family::Vit, s.dims.classes, Some(s.crop())),
            FamilySpec::Swin(s) => (Family::Swin, s.classes, Some(s.crop())),
            FamilySpec::SwinV2(s) => (Family::SwinV2, s.classes, Some(s.crop())),
            FamilySpec::Llama(s) => (Family::Llama, s.vocab, None),
            FamilySpec::Gemma(s) => (Family::Gemma, s.vocab, None),
            FamilySpec::Gpt2(s) => (Family::Gpt2, s.vocab, None),
            FamilySpec::Bert(s) => (Family::Bert, s.classes, None),
            FamilySpec::ModernBert(s) => (Family::ModernBert, s.classes, None),
        }
    }

    /// Parts of tensor names that the output does not depend on.
    pub(super) fn unused(&self) -> &'static [&'static str] {
        match self {
            FamilySpec::Vit(s) => s.names.unused,
            FamilySpec::Swin(s) | FamilySpec::SwinV2(s) => s.names.unused,
            FamilySpec::Llama(s) | FamilySpec::Gemma(s) => s.names.unused,
            FamilySpec::Gpt2(s) => s.names.unused,
            _ => &[],
        }
    }

    /// The checked graph.
    ///
    /// # Errors
    /// [`GraphError`] when the dimensions do not fit together.
    pub fn build(&self) -> Result<Graph, GraphError> {
        match self {
            FamilySpec::CifarResnet(s) => resnet::cifar_resnet(s),
            FamilySpec::Resnet(s) => resnet::resnet(s),
            FamilySpec::Vgg(s) => vgg::build(s),
            FamilySpec::Mobile(s) => mobile::build(s),
            FamilySpec::ConvNext(s) => convnext::build(s),
            FamilySpec::TorchVit(s) | FamilySpec::Vit(s) => vit::build(s),
            FamilySpec::Swin(s) | FamilySpec::SwinV2(s) => swin::build(s),
            FamilySpec::Llama(s) | FamilySpec::Gemma(s) => decoder::build(s),
            FamilySpec::Gpt2(s) => gpt2::build(s),
            FamilySpec::Bert(s) => bert::build(s),
            FamilySpec::ModernBert(s) => modernbert::build(s),
        }
    }

    /// Turns tensors that this origin stores otherwise into those that the graph names.
    pub(super) fn adapt(&self, c: &mut Checkpoint) {
        match self {
            FamilySpec::Swin(s) | FamilySpec::SwinV2(s) => swin::adapt(s, c),
            FamilySpec::Llama(s) | FamilySpec::Gemma(s) => decoder::adapt(s, c),
            FamilySpec::Gpt2(s) => gpt2::adapt(s, c),
            FamilySpec::Bert(s) => bert::adapt(s, c),
            FamilySpec::ModernBert(s) => modernbert::adapt(s, c),
            _ => {}
        }
    }

    /// What published weights expect for images of `size` (nothing, for what takes none), where no file beside them tells.
    pub fn preprocess(&self, size: [usize; 2]) -> Preprocess {
        let decodes = matches!(self, FamilySpec::Llama(_) | FamilySpec::Gemma(_) | FamilySpec::Gpt2(_));
        if decodes || matches!(self, FamilySpec::Bert(_) | FamilySpec::ModernBert(_)) {
            return Preprocess::none();
        }
        let imagenet = Preprocess::imagenet(size);
        if matches!(self, FamilySpec::TorchVit(_)) && size == [32, 32] {
            return Preprocess { mean: [0.4914, 0.4822, 0.4465], std: [0.2023, 0.1994, 0.2010], ..imagenet };
        }
        let Some(crop) = self.facts().2 else { return imagenet };
        let (mean, std) = if crop.half { ([0.5; 3], [0.5; 3]) } else { (imagenet.mean, imagenet.std) };
        // Networks for small images see them whole.
        let resize_shorter = crop.resize.filter(|_| size[0].max(size[1]) > 64);
        Preprocess { mean, std, resize_shorter, interpolation: crop.interpolation, ..imagenet }
    }
}

/// A family's evaluation transform, as its authors publish it.
struct Crop {
    /// Shorter side before the centre crop; `None`: straight to the input's size.
    resize: Option<usize>,
    interpolation: Interpolation,
    /// Mean and standard deviation 0.5 instead of ImageNet's.
    half: bool,
}

impl Crop {
    fn bilinear(resize: usize) -> Crop {
        Crop { resize: Some(resize), interpolation: Interpolation::Bilinear, half: false }
    }

    fn bicubic(resize: usize) -> Crop {
        Crop { interpolation: Interpolation::Bicubic, ..Crop::bilinear(resize) }
    }
}
