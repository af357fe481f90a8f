//! Checkpoint containers written by hand: safetensors, PyTorch's zip and stream formats, and a small pickler, so that
//! readers are tested against bytes that this crate's own writers never make.

use paring::model::Model;

/// A tensor as a window over its own storage.
#[derive(Debug, Clone)]
pub struct Tensor {
    pub name: String,
    pub shape: Vec<usize>,
    pub stride: Vec<usize>,
    pub offset: usize,
    pub values: Vec<f32>,
}

/// All parameters of `model`, contiguous.
pub fn tensors_of(model: &Model) -> Vec<Tensor> {
    let contiguous = |shape: &[usize]| (0..shape.len()).map(|i| shape[i + 1..].iter().product()).collect();
    (model.params.iter())
        .map(|(name, p)| Tensor {
            name: name.to_owned(),
            shape: p.shape().to_vec(),
            stride: contiguous(p.shape()),
            offset: 0,
            values: p.values().into_owned(),
        })
        .collect()
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// A safetensors file with this header, whatever it says.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// A safetensors file as other programs write it.
pub fn plain_safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for t in tensors {
        let from = data.len();
        data.extend(bytes(&t.values));
        let entry = serde_json::json!({ "dtype": "F32", "shape": t.shape, "data_offsets": [from, data.len()] });
        header.insert(t.name.clone(), entry);
    }
    with_header(&serde_json::Value::Object(header).to_string(), &data)
}

/// Pickle protocol 2, opcode by opcode.
pub struct Pickle(pub Vec<u8>);

impl Pickle {
    pub fn new() -> Pickle {
        Pickle(vec![0x80, 2])
    }

    pub fn op(&mut self, op: u8) -> &mut Pickle {
        self.0.push(op);
        self
    }

    pub fn text(&mut self, s: &str) -> &mut Pickle {
        self.0.push(b'X');
        self.0.extend((s.len() as u32).to_le_bytes());
        self.0.extend(s.as_bytes());
        self
    }

    /// As LONG1, which takes any size.
    pub fn int(&mut self, v: usize) -> &mut Pickle {
        self.0.extend([0x8a, 8]);
        self.0.extend((v as i64).to_le_bytes());
        self
    }

    pub fn global(&mut self, module: &str, name: &str) -> &mut Pickle {
        self.0.push(b'c');
        self.0.extend(format!("{module}\n{name}\n").as_bytes());
        self
    }

    fn ints(&mut self, values: &[usize]) -> &mut Pickle {
        self.op(b'(');
        for &v in values {
            self.int(v);
        }
        self.op(b't')
    }

    /// An ordered dict of tensors, storage keys by position, optionally nested under `nest` beside an integer.
    pub fn state_dict(tensors: &[Tensor], prefix: &str, nest: Option<&str>) -> Vec<u8> {
        let mut p = Pickle::new();
        if let Some(key) = nest {
            p.op(b'}').op(b'(').text("epoch").int(7).text(key);
        }
        p.global("collections", "OrderedDict").op(b')').op(b'R').op(b'(');
        for (i, t) in tensors.iter().enumerate() {
            p.text(&format!("{prefix}{}", t.name)).global("torch._utils", "_rebuild_tensor_v2").op(b'(');
            p.op(b'(').text("storage").global("torch", "FloatStorage").text(&i.to_string()).text("cpu");
            p.int(t.values.len()).op(b't').op(b'Q');
            p.int(t.offset).ints(&t.shape).ints(&t.stride).op(0x89).op(b'N').op(b't').op(b'R');
        }
        p.op(b'u');
        // A state dict carries `_metadata` as an attribute.
        p.op(b'}').text("_metadata").op(b'N').op(b's').op(b'b');
        if nest.is_some() {
            p.op(b'u');
        }
        p.op(b'.');
        p.0
    }
}

/// PyTorch's zip container around `pickle`.
pub fn torch_zip(pickle: &[u8], tensors: &[Tensor]) -> Vec<u8> {
    torch_zip_named("net", pickle, tensors)
}

/// PyTorch's zip container as `torch.save` writes it to `{root}.pth`, byte for byte but for checksums: entries are stored,
/// padded in their local headers to start at multiples of 64, followed by their sizes; the directory is followed by the
/// records of large archives, however small this one is.
pub fn torch_zip_named(root: &str, pickle: &[u8], tensors: &[Tensor]) -> Vec<u8> {
    let mut entries: Vec<(String, Vec<u8>)> = vec![
        ("data.pkl".into(), pickle.to_vec()),
        (".format_version".into(), b"1".into()),
        (".storage_alignment".into(), b"64".into()),
        ("byteorder".into(), b"little".into()),
    ];
    entries.extend(tensors.iter().enumerate().map(|(i, t)| (format!("data/{i}"), bytes(&t.values))));
    entries.push(("version".into(), b"3\n".into()));
    entries.push((".data/serialization_id".into(), vec![b'7'; 40]));
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in &entries {
        let (name, at, size) = (format!("{root}/{name}"), out.len() as u32, data.len() as u32);
        let padding = 64 - (out.len() + 30 + name.len() + 4) % 64;
        let lengths = [(name.len() as u16).to_le_bytes(), (padding as u16 + 4).to_le_bytes()].concat();
        out.extend(b"PK\x03\x04\0\0\x08\x08\0\0\0\0\0\0");
        out.extend([[0; 12].as_slice(), &lengths, name.as_bytes(), b"FB", &(padding as u16).to_le_bytes()].concat());
        out.extend(vec![b'Z'; padding]);
        out.extend(data);
        let sizes = [[0; 4], size.to_le_bytes(), size.to_le_bytes()].concat();
        out.extend([b"PK\x07\x08".as_slice(), &sizes].concat());
        directory.extend(b"PK\x01\x02\0\0\0\0\x08\x08\0\0\0\0\0\0");
        directory.extend([&sizes, &lengths[..2], &[0; 12], &at.to_le_bytes(), name.as_bytes()].concat());
    }
    let (at, n, size) = (out.len(), entries.len(), directory.len());
    out.extend(directory);
    let large = out.len();
    out.extend([b"PK\x06\x06".as_slice(), &44u64.to_le_bytes(), &[0x1e, 3, 0x2d, 0], &[0; 8]].concat());
    out.extend([n, n, size, at].iter().flat_map(|v| (*v as u64).to_le_bytes()));
    out.extend([b"PK\x06\x07".as_slice(), &[0; 4], &(large as u64).to_le_bytes(), &1u32.to_le_bytes()].concat());
    out.extend(b"PK\x05\x06\0\0\0\0");
    out.extend([n, n].iter().flat_map(|v| (*v as u16).to_le_bytes()));
    out.extend([size, at].iter().flat_map(|v| (*v as u32).to_le_bytes()));
    out.extend([0, 0]);
    out
}

/// PyTorch's stream format around `pickle`, with views written as protocol 2 of old did.
pub fn legacy(pickle: &[u8], tensors: &[Tensor]) -> Vec<u8> {
    let mut out = vec![0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, b'.'];
    out.extend([0x80, 2, b'M', 0xe9, 0x03, b'.']);
    let mut facts = Pickle::new();
    facts.op(b'}').op(b'(').text("protocol_version").int(1001).text("little_endian").op(0x88).op(b'u').op(b'.');
    out.extend(facts.0);
    // Five fields in the persistent id are enough for the reader: the sixth, a view, may be absent.
    out.extend(pickle);
    let mut keys = Pickle::new();
    keys.op(b']').op(b'(');
    for i in 0..tensors.len() {
        keys.text(&i.to_string());
    }
    keys.op(b'e').op(b'.');
    out.extend(keys.0);
    for t in tensors {
        out.extend((t.values.len() as u64).to_le_bytes());
        out.extend(bytes(&t.values));
    }
    out
}
