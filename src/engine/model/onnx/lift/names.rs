//! Names of nodes and parameters: those of the network that was exported, as far as the file still tells them.

use super::{Lifter, suffix};
use crate::graph::{Op, ParamRole};
use crate::plain::hostile;

/// Longest name kept.
const MAX_NAME: usize = 200;
/// What parameters' names have behind those of their nodes.
const ENDS: [&str; 9] =
    [".weight", ".bias", ".running_mean", ".running_var", ".gamma", ".beta", ".lambda1", "_weight", "_bias"];

impl Lifter<'_> {
    /// A unique name for a node with `op`: after its parameter `hint` (`layer1.0.conv1.weight`), after the scope that
    /// the exporter noted, or after the ONNX node.
    pub(super) fn node_name(&mut self, op: &Op, hint: Option<&str>) -> String {
        let from_param =
            hint.filter(|h| !anonymous(h)).map(|h| ENDS.iter().find_map(|e| h.strip_suffix(e)).unwrap_or(h).to_owned());
        let name = from_param.filter(|n| !n.is_empty()).unwrap_or_else(|| self.scoped(op));
        self.unique(&name)
    }

    /// `name` made printable, and with a number if another node or parameter has it.
    fn unique(&mut self, name: &str) -> String {
        let clean: String = name.chars().filter(|c| !hostile(*c)).take(MAX_NAME).collect();
        let clean = if clean.trim().is_empty() { "node".to_owned() } else { clean };
        let mut out = clean.clone();
        while !self.taken.insert(out.clone()) {
            out = self.numbered(&clean);
        }
        out
    }

    /// The name that a node's `role` parameter is stored under: its initializer's, or made from the node's.
    pub(super) fn param_name(&mut self, node: &str, role: ParamRole, own: Option<&str>) -> String {
        let fits = |n: &&str| !anonymous(n) && n.chars().count() <= MAX_NAME && !n.chars().any(hostile);
        let wanted = own.filter(fits).map_or_else(|| format!("{node}.{}", suffix(role)), str::to_owned);
        let mut out = wanted.clone();
        while self.params.contains(&out) {
            out = self.numbered(&wanted);
        }
        out
    }

    /// `name` with the next number; each is given once, so that many equal names take no longer than others.
    fn numbered(&mut self, name: &str) -> String {
        let n = self.numbered.entry(name.to_owned()).or_insert(1);
        *n += 1;
        format!("{name}_{n}")
    }

    /// Module path and the layer's kind.
    fn scoped(&self, op: &Op) -> String {
        let proto = &self.protos[self.at];
        let raw = proto.called().unwrap_or("node");
        let word = op.traits().word;
        let noted = proto.metadata_props.iter().find(|p| p.key.as_deref() == Some("pkg.torch.onnx.name_scopes"));
        let path = match noted.and_then(|p| p.value.as_deref()) {
            // ['', 'layer1', 'layer1.0', 'relu_3']: the last is the operation, the one before it its module.
            Some(list) => {
                let parts: Vec<&str> = list.split('\'').skip(1).step_by(2).collect();
                parts.len().checked_sub(2).and_then(|i| parts.get(i)).map_or(String::new(), |s| (*s).to_owned())
            }
            None if raw.starts_with('/') => module_path(raw),
            // What only moves data is written while another node is read, whose own layer has the name.
            None if op.traits().moves => return format!("{raw}.{word}"),
            None => return raw.to_owned(),
        };
        match path.as_str() {
            "" => word.to_owned(),
            p if p.rsplit('.').next().is_some_and(|l| l.starts_with(word)) => path,
            _ => format!("{path}.{word}"),
        }
    }
}

/// `/layer1/layer1.0/relu/Relu_1` → `layer1.0.relu`: each part is a module's name, a full one replaces its parent's.
fn module_path(raw: &str) -> String {
    let mut parts: Vec<&str> = raw.split('/').filter(|p| !p.is_empty()).collect();
    parts.pop();
    let mut out: Vec<&str> = Vec::new();
    for p in parts {
        if let Some(last) = out.last()
            && p.starts_with(last)
            && p[last.len()..].starts_with('.')
        {
            out.pop();
        }
        out.push(p);
    }
    out.join(".")
}

/// Names that an exporter invents: `onnx::MatMul_318`, `val_4`, numbers.
fn anonymous(name: &str) -> bool {
    let tail = name.strip_prefix("val_").unwrap_or(name);
    name.is_empty()
        || name.contains("::")
        || name.starts_with('/')
        || name.starts_with("_val_")
        || name.starts_with("Constant_")
        || tail.chars().all(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_paths_are_those_of_the_exported_network() {
        assert_eq!(module_path("/layer1/layer1.0/relu/Relu_1"), "layer1.0.relu");
        assert_eq!(module_path("/1/1.0/1.0.0/fn/fn.1/query/MatMul"), "1.0.0.fn.1.query");
        assert_eq!(module_path("/Flatten"), "");
        assert!(anonymous("onnx::MatMul_318") && anonymous("val_4") && anonymous("17"));
        assert!(!anonymous("cls_token") && !anonymous("layer1.0.conv1.weight"));
    }
}
