//! The manifest that an exported safetensors file carries, read as any program would read it.

use paring::model::export::Manifest;
use std::path::Path;

pub fn manifest(path: &Path) -> Result<Manifest, String> {
    let bytes = std::fs::read(path).map_err(|e| e.to_string())?;
    let (length, rest) = bytes.split_first_chunk::<8>().ok_or("too short")?;
    let header = rest.get(..u64::from_le_bytes(*length) as usize).ok_or("too short")?;
    let header: serde_json::Value = serde_json::from_slice(header).map_err(|e| e.to_string())?;
    let text = header["__metadata__"]["paring"].as_str().ok_or("`paring` did not write it")?;
    serde_json::from_str(text).map_err(|e| e.to_string())
}
