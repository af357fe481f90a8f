//! A small random network, and how a session of it is opened that does nothing by itself: for tests of what happens around a
//! model.
#![allow(dead_code)]

use paring::host::OpenSpec;
use paring::model::{FamilySpec, export, families::CifarResnetSpec};
use paring::plan::Budget;
use paring::session::Opening;
use std::path::Path;

/// Writes the network with these weights as a checkpoint.
pub fn model(path: &Path, seed: u64) {
    let classes = paring::data::synthetic::CLASSES.len();
    let spec = FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [8, 16, 16], classes, image: 32 });
    export::safetensors(path, &paring::model::random(&spec, seed), &export::Manifest::default()).expect("written");
}

/// A session of that checkpoint.
pub fn spec(model: &Path) -> OpenSpec {
    let usual = OpenSpec::demo("cnn");
    OpenSpec {
        how: Opening { model: model.display().to_string(), batch: 1, threads: 1, ..usual.how },
        limit: 32,
        calib_limit: 32,
        patience: 0.1,
        budget: Budget { macs: Some(0.9), ..Budget::default() },
        auto: false,
        ..usual
    }
}
