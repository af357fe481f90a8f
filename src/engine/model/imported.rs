//! What every importer ends with: graph, parameters and words become a model in f32.

use super::{Family, Graph, Model, ModelInfo, Origin, ParamStore, Precisions, Preprocess, Sidecar, printable};
use std::path::Path;
use std::sync::Arc;

/// What an importer found, as a model in f32.
#[expect(clippy::too_many_arguments, reason = "each is a field of its own, from its own place")]
pub(super) fn model(
    graph: Graph,
    params: ParamStore,
    family: Family,
    classes: usize,
    mut preprocess: Preprocess,
    sidecar: &Sidecar,
    path: &Path,
    notes: Vec<String>,
) -> Model {
    preprocess.channels = graph.input_shape().ok().and_then(|s| s.first().copied()).unwrap_or(0);
    Model {
        info: ModelInfo {
            name: display_name(path),
            family,
            classes,
            class_names: sidecar.labels(classes),
            preprocess,
            source: path.to_owned(),
            hash: params.hash(),
            notes,
            context: sidecar.context(),
        },
        graph: Arc::new(graph),
        params,
        precision: Precisions::default(),
        origin: Origin::default(),
    }
}

/// The file's stem, or the folder's name.
fn display_name(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let stem = if path.is_dir() { absolute.file_name() } else { path.file_stem() };
    stem.map_or_else(|| "model".to_owned(), |s| printable(&s.to_string_lossy()))
}
