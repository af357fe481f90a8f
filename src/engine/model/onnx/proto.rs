//! ONNX's protobuf messages, as far as inference needs them (<https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>).
//!
//! Fields that are left out (documentation, inferred shapes, functions) are skipped when decoding, which also keeps a hostile file
//! from making us allocate for them. Subgraphs stay undecoded bytes: nothing here runs them. [`decode`] counts messages
//! before anything is allocated, because an empty message takes two bytes in a file and hundreds in memory.

use bytes::Bytes;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Nodes, attributes, tensors and values that one file may hold.
const MAX_MESSAGES: usize = 400_000;

/// Messages as `onnx.proto` lists them: a field a line, with its number and how it is encoded.
macro_rules! messages {
    ($($message:ident { $($(#[$about:meta])* $tag:literal ($($how:tt)+) $field:ident: $of:ty,)+ })+) => {
        $(
            #[derive(Clone, PartialEq, Message)]
            pub struct $message {
                $($(#[$about])* #[prost($($how)+, tag = $tag)] pub $field: $of,)+
            }
        )+
    };
}

messages! {
    ModelProto {
        1 (int64, optional) ir_version: Option<i64>,
        2 (string, optional) producer_name: Option<String>,
        3 (string, optional) producer_version: Option<String>,
        7 (message, optional) graph: Option<GraphProto>,
        8 (message, repeated) opset_import: Vec<OperatorSetIdProto>,
        14 (message, repeated) metadata_props: Vec<StringStringEntryProto>,
    }

    OperatorSetIdProto {
        1 (string, optional) domain: Option<String>,
        2 (int64, optional) version: Option<i64>,
    }

    StringStringEntryProto {
        1 (string, optional) key: Option<String>,
        2 (string, optional) value: Option<String>,
    }

    GraphProto {
        1 (message, repeated) node: Vec<NodeProto>,
        2 (string, optional) name: Option<String>,
        5 (message, repeated) initializer: Vec<TensorProto>,
        11 (message, repeated) input: Vec<ValueInfoProto>,
        12 (message, repeated) output: Vec<ValueInfoProto>,
        /// Only their presence matters: they are not read.
        15 (bytes = "bytes", repeated) sparse_initializer: Vec<Bytes>,
    }

    NodeProto {
        1 (string, repeated) input: Vec<String>,
        2 (string, repeated) output: Vec<String>,
        3 (string, optional) name: Option<String>,
        4 (string, optional) op_type: Option<String>,
        5 (message, repeated) attribute: Vec<AttributeProto>,
        7 (string, optional) domain: Option<String>,
        9 (message, repeated) metadata_props: Vec<StringStringEntryProto>,
    }

    AttributeProto {
        1 (string, optional) name: Option<String>,
        2 (float, optional) f: Option<f32>,
        3 (int64, optional) i: Option<i64>,
        4 (bytes = "bytes", optional) s: Option<Bytes>,
        5 (message, optional) t: Option<TensorProto>,
        /// A subgraph, undecoded.
        6 (bytes = "bytes", optional) g: Option<Bytes>,
        7 (float, repeated, packed = "false") floats: Vec<f32>,
        8 (int64, repeated, packed = "false") ints: Vec<i64>,
        20 (int32, optional) r#type: Option<i32>,
    }

    TensorProto {
        1 (int64, repeated, packed = "false") dims: Vec<i64>,
        2 (int32, optional) data_type: Option<i32>,
        4 (float, repeated) float_data: Vec<f32>,
        5 (int32, repeated) int32_data: Vec<i32>,
        7 (int64, repeated) int64_data: Vec<i64>,
        8 (string, optional) name: Option<String>,
        9 (bytes = "bytes", optional) raw_data: Option<Bytes>,
        10 (double, repeated) double_data: Vec<f64>,
        11 (uint64, repeated) uint64_data: Vec<u64>,
        13 (message, repeated) external_data: Vec<StringStringEntryProto>,
        /// 1: the data lies in another file, see `external_data`.
        14 (int32, optional) data_location: Option<i32>,
    }

    ValueInfoProto {
        1 (string, optional) name: Option<String>,
        2 (message, optional) r#type: Option<TypeProto>,
    }

    TypeProto {
        1 (message, optional) tensor_type: Option<TensorTypeProto>,
    }

    TensorTypeProto {
        1 (int32, optional) elem_type: Option<i32>,
        2 (message, optional) shape: Option<TensorShapeProto>,
    }

    TensorShapeProto {
        1 (message, repeated) dim: Vec<DimensionProto>,
    }

    DimensionProto {
        1 (int64, optional) dim_value: Option<i64>,
        2 (string, optional) dim_param: Option<String>,
    }
}

/// Whether operators of this domain are ONNX's own.
pub fn is_standard(domain: Option<&str>) -> bool {
    matches!(domain.unwrap_or(""), "" | "ai.onnx")
}

impl NodeProto {
    /// The node's name, or its first output's.
    pub fn called(&self) -> Option<&str> {
        self.name.as_deref().filter(|n| !n.is_empty()).or(self.output.first().map(String::as_str))
    }
}

/// `AttributeProto.AttributeType`, as far as it is written here.
pub mod attribute_type {
    pub const FLOAT: i32 = 1;
    pub const INT: i32 = 2;
    pub const INTS: i32 = 7;
}

/// `TensorProto.DataType`.
pub mod data_type {
    pub const FLOAT: i32 = 1;
    pub const UINT8: i32 = 2;
    pub const INT8: i32 = 3;
    pub const UINT16: i32 = 4;
    pub const INT16: i32 = 5;
    pub const INT32: i32 = 6;
    pub const INT64: i32 = 7;
    pub const BOOL: i32 = 9;
    pub const FLOAT16: i32 = 10;
    pub const DOUBLE: i32 = 11;
    pub const UINT32: i32 = 12;
    pub const UINT64: i32 = 13;
    pub const BFLOAT16: i32 = 16;
}

/// Decodes a model; tensors' raw bytes stay views into `bytes`.
///
/// # Errors
/// What is wrong with the file, in words.
pub fn decode(bytes: Bytes) -> Result<ModelProto, String> {
    let mut left = MAX_MESSAGES;
    count(&bytes, Level::Model, &mut left)?;
    ModelProto::decode(bytes).map_err(|e| format!("it is not a valid ONNX model: {e}"))
}

/// Where in a model [`count`] is.
#[derive(Clone, Copy)]
enum Level {
    Model,
    Graph,
    Node,
    Attribute,
    Tensor,
    Leaf,
}

impl Level {
    /// What the message in field `tag` is, if it is one that is decoded.
    fn inside(self, tag: u32) -> Option<Level> {
        Some(match (self, tag) {
            (Level::Model, 7) => Level::Graph,
            (Level::Model, 8 | 14) => Level::Leaf,
            (Level::Graph, 1) => Level::Node,
            (Level::Graph, 5) | (Level::Attribute, 5) => Level::Tensor,
            (Level::Graph, 11 | 12 | 15) => Level::Leaf,
            (Level::Node, 1 | 2 | 9) | (Level::Tensor, 13) => Level::Leaf,
            (Level::Node, 5) => Level::Attribute,
            _ => return None,
        })
    }
}

/// Counts the messages of `bytes` down from `left`. Value types are few and shallow, they count as one each.
fn count(mut bytes: &[u8], level: Level, left: &mut usize) -> Result<(), String> {
    let bad = |e: prost::DecodeError| format!("it is not a valid ONNX model: {e}");
    while !bytes.is_empty() {
        let (tag, wire) = decode_key(&mut bytes).map_err(bad)?;
        let Some(inner) = level.inside(tag).filter(|_| wire == WireType::LengthDelimited) else {
            skip_field(wire, tag, &mut bytes, DecodeContext::default()).map_err(bad)?;
            continue;
        };
        let length = usize::try_from(decode_varint(&mut bytes).map_err(bad)?).unwrap_or(usize::MAX);
        let Some((body, rest)) = bytes.split_at_checked(length) else {
            return Err("it ends in the middle of a message".into());
        };
        *left = left.checked_sub(1).ok_or_else(|| format!("it holds more than {MAX_MESSAGES} nodes and values"))?;
        if !matches!(inner, Level::Leaf) {
            count(body, inner, left)?;
        }
        bytes = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_data_is_not_copied() {
        let tensor = TensorProto { raw_data: Some(vec![7u8; 64].into()), ..Default::default() };
        let graph = GraphProto { initializer: vec![tensor], ..Default::default() };
        let bytes = Bytes::from(ModelProto { graph: Some(graph), ..Default::default() }.encode_to_vec());
        let range = bytes.as_ptr_range();
        let model = decode(bytes.clone()).unwrap();
        let raw = model.graph.unwrap().initializer[0].raw_data.clone().unwrap();
        assert!(range.contains(&raw.as_ptr()) && raw.len() == 64);
    }

    #[test]
    fn a_file_of_empty_nodes_is_refused_before_it_is_decoded() {
        let nodes = [0x0a, 0x00].repeat(MAX_MESSAGES + 1);
        let mut bytes = vec![0x3a];
        prost::encoding::encode_varint(nodes.len() as u64, &mut bytes);
        bytes.extend(nodes);
        assert!(decode(bytes.into()).unwrap_err().contains("more than 400000"));
        assert!(decode(Bytes::from_static(&[0x3a, 0x7f, 0x0a])).unwrap_err().contains("in the middle"));
    }
}
