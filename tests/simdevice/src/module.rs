//! Modules: a PTX text is known by its kernels, and every kernel's parameters are held against those that were compiled.

use crate::kernels::{Kernel, Library, library};
use crate::nvrtc::MARK;
use crate::{launch, misuse};
use std::collections::HashMap;
use std::sync::Mutex;

/// A module that was loaded: the sources' name, and its functions as they were asked for.
pub struct Module {
    name: String,
    functions: Mutex<HashMap<String, usize>>,
}

/// A kernel of a module, as the driver's handles name it.
pub struct Function {
    pub kernel: &'static Kernel,
    /// Bytes of dynamic shared memory that a launch may ask for.
    pub shared: std::sync::atomic::AtomicU32,
}

/// An entry of PTX: its name and the sizes of its parameters.
fn entries(ptx: &str) -> Vec<(&str, Vec<u32>)> {
    let mut found = Vec::new();
    let mut rest = ptx;
    while let Some(at) = rest.find(".entry ") {
        rest = &rest[at + ".entry ".len()..];
        let Some(end) = rest.find(['(', '\n', '{']) else { break };
        let name = rest[..end].trim();
        let list = if rest[end..].starts_with('(') { rest[end + 1..].split(')').next().unwrap_or("") } else { "" };
        let sizes = list.split(',').filter(|p| p.contains(".param")).map(size_of_param).collect();
        found.push((name, sizes));
    }
    found
}

/// The bytes of `.param .u64 .ptr .align 1 x`, `.param .align 4 .b8 x[44]`.
fn size_of_param(declared: &str) -> u32 {
    let each = |word: &str| {
        let digits = word.strip_prefix('.').map(|w| w.trim_start_matches(|c: char| c.is_ascii_alphabetic()));
        let digits = digits.filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()));
        digits.and_then(|d| d.parse::<u32>().ok()).map(|bits| bits / 8)
    };
    let each = declared.split_whitespace().find_map(each).unwrap_or(0);
    let count = declared.rsplit_once('[').and_then(|(_, n)| n.split(']').next()?.parse().ok()).unwrap_or(1);
    each * count
}

/// The module whose PTX this is. `None` where it is no PTX.
pub fn load(ptx: &str) -> Option<Module> {
    let library = library();
    let entries = entries(ptx);
    let marked = ptx.lines().find_map(|l| l.strip_prefix(MARK)).map(|n| n.trim().to_owned());
    if entries.is_empty() && marked.is_none() {
        return None;
    }
    let name = marked.unwrap_or_else(|| of_entries(library, &entries));
    for (entry, sizes) in &entries {
        let Some(kernel) = library.get(&name, entry) else { continue };
        let compiled: Vec<u32> = kernel.params.iter().map(|p| p.size).collect();
        if compiled != *sizes {
            misuse!("`{entry}` has parameters of {sizes:?} bytes in PTX and of {compiled:?} as compiled here");
        }
    }
    Some(Module { name, functions: Mutex::default() })
}

/// The module that has every one of the entries.
fn of_entries(library: &'static Library, entries: &[(&str, Vec<u32>)]) -> String {
    let mut names: Vec<&str> = library.all().iter().map(|k| k.module).collect();
    names.dedup();
    let has = |module: &&&str| entries.iter().filter(|(e, _)| library.get(module, e).is_some()).count();
    let best = names.iter().max_by_key(has).filter(|m| has(m) > 0);
    match best {
        Some(m) => (*m).to_owned(),
        // A module of kernels that could not be compiled here may be loaded, and is of no use.
        None => format!("of `{}`", entries.first().map_or("?", |e| e.0)),
    }
}

impl Module {
    /// The function of this name, as a handle. `None` where the module has none.
    pub fn function(&self, name: &str) -> Option<usize> {
        let mut functions = self.functions.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(f) = functions.get(name) {
            return Some(*f);
        }
        let kernel = library().get(&self.name, name)?;
        let function = Function { kernel, shared: launch::SHARED.into() };
        let handle = Box::into_raw(Box::new(function)) as usize;
        functions.insert(name.to_owned(), handle);
        Some(handle)
    }
}
