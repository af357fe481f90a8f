//! ONNX's protobuf messages, as far as inference needs them (<https://github.com/onnx/onnx/blob/main/onnx/onnx.proto>).
//!
//! Fields that are left out (documentation, inferred shapes) are skipped when decoding, which also keeps a hostile file
//! from making us allocate for them. Subgraphs stay undecoded bytes: nothing here runs them. [`decode`] counts messages
//! before anything is allocated, because an empty message takes two bytes in a file and hundreds in memory.

use bytes::Bytes;
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Nodes, attributes, tensors and values that one file may hold.
const MAX_MESSAGES: usize = 400_000;

#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    #[prost(int64, optional, tag = "1")]
    pub ir_version: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub producer_name: Option<String>,
    #[prost(string, optional, tag = "3")]
    pub producer_version: Option<String>,
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
    #[prost(message, repeated, tag = "14")]
    pub metadata_props: Vec<StringStringEntryProto>,
    #[prost(message, repeated, tag = "25")]
    pub functions: Vec<FunctionProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    #[prost(string, optional, tag = "1")]
    pub domain: Option<String>,
    #[prost(int64, optional, tag = "2")]
    pub version: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    #[prost(string, optional, tag = "1")]
    pub key: Option<String>,
    #[prost(string, optional, tag = "2")]
    pub value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
    /// Only their presence matters: they are not read.
    #[prost(bytes = "bytes", repeated, tag = "15")]
    pub sparse_initializer: Vec<Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    #[prost(string, optional, tag = "3")]
    pub name: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub op_type: Option<String>,
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    #[prost(string, optional, tag = "7")]
    pub domain: Option<String>,
    #[prost(message, repeated, tag = "9")]
    pub metadata_props: Vec<StringStringEntryProto>,
}

/// `AttributeProto.AttributeType`, as far as it is written here.
pub mod attribute_type {
    pub const FLOAT: i32 = 1;
    pub const INT: i32 = 2;
    pub const INTS: i32 = 7;
}

#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "4")]
    pub s: Option<Bytes>,
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// A subgraph, undecoded.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub g: Option<Bytes>,
    #[prost(float, repeated, packed = "false", tag = "7")]
    pub floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "8")]
    pub ints: Vec<i64>,
    #[prost(int32, optional, tag = "20")]
    pub r#type: Option<i32>,
    /// Inside a function: the attribute of the calling node that stands here.
    #[prost(string, optional, tag = "21")]
    pub ref_attr_name: Option<String>,
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

#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    #[prost(int64, repeated, packed = "false", tag = "1")]
    pub dims: Vec<i64>,
    #[prost(int32, optional, tag = "2")]
    pub data_type: Option<i32>,
    #[prost(float, repeated, tag = "4")]
    pub float_data: Vec<f32>,
    #[prost(int32, repeated, tag = "5")]
    pub int32_data: Vec<i32>,
    #[prost(int64, repeated, tag = "7")]
    pub int64_data: Vec<i64>,
    #[prost(string, optional, tag = "8")]
    pub name: Option<String>,
    #[prost(bytes = "bytes", optional, tag = "9")]
    pub raw_data: Option<Bytes>,
    #[prost(double, repeated, tag = "10")]
    pub double_data: Vec<f64>,
    #[prost(uint64, repeated, tag = "11")]
    pub uint64_data: Vec<u64>,
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1: the data lies in another file, see `external_data`.
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    #[prost(int32, optional, tag = "1")]
    pub elem_type: Option<i32>,
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct FunctionProto {
    #[prost(string, optional, tag = "1")]
    pub name: Option<String>,
    #[prost(string, repeated, tag = "4")]
    pub input: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub output: Vec<String>,
    #[prost(message, repeated, tag = "7")]
    pub node: Vec<NodeProto>,
    #[prost(string, optional, tag = "10")]
    pub domain: Option<String>,
    /// Defaults of the function's attributes.
    #[prost(message, repeated, tag = "11")]
    pub attribute_proto: Vec<AttributeProto>,
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
    Function,
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
            (Level::Model, 25) => Level::Function,
            (Level::Model, 8 | 14) => Level::Leaf,
            (Level::Graph, 1) | (Level::Function, 7) => Level::Node,
            (Level::Graph, 5) | (Level::Attribute, 5) => Level::Tensor,
            (Level::Graph, 11 | 12 | 15) => Level::Leaf,
            (Level::Function, 4 | 5) | (Level::Node, 1 | 2 | 9) | (Level::Tensor, 13) => Level::Leaf,
            (Level::Node, 5) | (Level::Function, 11) => Level::Attribute,
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
