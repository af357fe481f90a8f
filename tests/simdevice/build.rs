//! Compiles the kernels as C++ for the CPU, into the shared objects that `kernels/README.md` describes.
//!
//! Here: where the sources are, the rewriting of what C++ has no word for, and the compiler's calls. What stands for the CUDA
//! language is in `kernels/shim`, what runs it in `kernels/run`.

use std::collections::hash_map::DefaultHasher;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs};

/// The sources of candle's that are compiled, the longest to compile first.
const CANDLE: [&str; 11] =
    ["quantized", "indexing", "unary", "reduce", "binary", "cast", "conv", "ternary", "affine", "sort", "fill"];
const RUN: [&str; 5] = ["launch", "fiber", "shared", "watch", "table"];
const JOBS: usize = 2;

/// How an object is built. The run itself is never instrumented.
struct Variant {
    name: &'static str,
    run: &'static [&'static str],
    kernels: &'static [&'static str],
    kernels_clang: &'static [&'static str],
    link: &'static [&'static str],
    link_clang: &'static [&'static str],
}

const VARIANTS: [Variant; 3] = [
    Variant { name: "plain", run: &[], kernels: &["-O2"], kernels_clang: &["-O2"], link: &[], link_clang: &[] },
    Variant {
        name: "checked",
        run: &["-DSIM_CHECKED"],
        kernels: &["-O2", "-fsanitize=thread", "--param=tsan-instrument-func-entry-exit=0"],
        kernels_clang: &[
            "-O2",
            "-fsanitize=thread",
            "-mllvm",
            "-tsan-instrument-func-entry-exit=0",
            "-mllvm",
            "-tsan-instrument-read-before-write=1",
        ],
        link: &[],
        // Copies and fills of structs are calls there, which its instrumentation leaves to the C library's.
        link_clang: &["-Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset"],
    },
    Variant {
        name: "sanitized",
        run: &["-DSIM_SANITIZED"],
        kernels: &["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=all"],
        kernels_clang: &[
            "-O1",
            "-g1",
            "-fsanitize=address,undefined",
            "-fno-sanitize=vptr",
            "-fno-sanitize-recover=all",
        ],
        link: &["-fsanitize=address,undefined"],
        link_clang: &["-fsanitize=address,undefined", "-shared-libasan"],
    },
];

/// candle computes a null pointer plus a number before it looks whether the pointer is null.
const CANDLE_SANITIZED: [&str; 1] = ["-fno-sanitize=pointer-overflow"];
/// clang takes a quarter of an hour for `quantized` with this sanitizer.
const CLANG_QUANTIZED_SANITIZED: [&str; 1] = ["-fno-sanitize=undefined"];

struct Source {
    module: &'static str,
    path: PathBuf,
    candle: bool,
}

struct Compiler {
    name: String,
    version: String,
    clang: bool,
}

fn main() {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap());
    let root = here.join("../..").canonicalize().expect("the repository's root");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap());
    let compiler = compiler();
    let candle = candle_sources(&root);
    let ours = root.join("src/engine/exec/cuda/kernels");

    for watched in ["CARGO_HOME", "CXX"] {
        println!("cargo:rerun-if-env-changed={watched}");
    }
    for watched in [&here.join("build.rs"), &here.join("kernels"), &ours, &candle, &root.join("Cargo.lock")] {
        println!("cargo:rerun-if-changed={}", watched.display());
    }

    let kernels = here.join("kernels");
    let source = |module| Source { module, path: candle.join(format!("{module}.cu")), candle: true };
    let mut sources: Vec<Source> = CANDLE.into_iter().map(source).collect();
    // One behind the other, as the program has them compiled.
    let parts = ["base", "floats", "rows", "eight_bits", "packed"].map(|p| ours.join(p).with_extension("cu"));
    let whole: String = parts.iter().map(|p| fs::read_to_string(p).expect("the program's kernels")).collect();
    let paring = out.join("paring.cu");
    write_if_changed(&paring, &whole);
    sources.push(Source { module: "paring", path: paring, candle: false });
    sources.push(Source { module: "planted", path: kernels.join("planted.cu"), candle: false });

    // The kernels' text is the same in every variant: preprocessed and rewritten once.
    let texts: Vec<(String, String)> = in_parallel(sources.iter().collect(), |s: &Source| {
        let flags = [format!("-I{}", kernels.join("shim").display())];
        let device = kernels.join("shim/device.h");
        let whole = format!("#include \"{}\"\nnamespace {{\n#include \"{}\"\n}}\n", device.display(), s.path.display());
        let begin = out.join(format!("{}.cpp", s.module));
        write_if_changed(&begin, &whole);
        let (text, kernels) = rewritten(&preprocessed(&compiler, &begin, &flags), &s.path);
        (s.module.to_string(), text + &table(s.module, &kernels))
    });
    let run: Vec<(String, String)> = VARIANTS
        .iter()
        .flat_map(|v| RUN.map(|part| (v, part)))
        .map(|(v, part)| {
            let flags: Vec<String> = v.run.iter().map(ToString::to_string).collect();
            (
                format!("{}/run-{part}", v.name),
                preprocessed(&compiler, &kernels.join(format!("run/{part}.cpp")), &flags),
            )
        })
        .collect();

    let mut work: Vec<(PathBuf, &str, Vec<&str>)> = Vec::new();
    for v in &VARIANTS {
        let dir = out.join(v.name);
        fs::create_dir_all(&dir).expect("a directory for the objects");
        let flags = if compiler.clang { v.kernels_clang } else { v.kernels };
        for (s, (module, text)) in sources.iter().zip(&texts) {
            let mut flags = flags.to_vec();
            if s.candle && v.name == "sanitized" {
                flags.extend(CANDLE_SANITIZED);
                if compiler.clang && s.module == "quantized" {
                    flags.extend(CLANG_QUANTIZED_SANITIZED);
                }
            }
            work.push((dir.join(module), text, flags));
        }
        for (name, text) in run.iter().filter(|(name, _)| name.starts_with(&format!("{}/", v.name))) {
            work.push((out.join(name), text, vec!["-O2"]));
        }
    }
    in_parallel(work.iter().collect(), |(at, text, flags)| object(&compiler, at, text, flags));

    for v in &VARIANTS {
        let objects: Vec<PathBuf> = work
            .iter()
            .filter(|(at, ..)| at.parent() == Some(&out.join(v.name)))
            .map(|(at, ..)| at.with_extension("o"))
            .collect();
        link(&compiler, &out, v, &objects);
    }
    check(&compiler, &kernels, &out);

    println!("cargo:rustc-env=SIM_KERNELS_DIR={}", out.display());
    println!("cargo:rustc-env=SIM_PARING_SOURCE={}", out.join("paring.cu").display());
    println!("cargo:rustc-env=SIM_SANITIZER={}", sanitizer(&compiler));
}

fn compiler() -> Compiler {
    let name = env::var("CXX").unwrap_or_else(|_| "c++".into());
    let version = said(Command::new(&name).arg("--version"), "a C++ compiler (g++ 12 or later, or clang)");
    Compiler { clang: version.contains("clang"), name, version }
}

/// What must be preloaded before the sanitized object is loaded.
fn sanitizer(compiler: &Compiler) -> String {
    let library =
        if compiler.clang { format!("libclang_rt.asan-{}.so", env::consts::ARCH) } else { "libasan.so".into() };
    said(Command::new(&compiler.name).arg(format!("-print-file-name={library}")), "the sanitizer's library")
        .trim()
        .into()
}

/// Where cargo unpacked candle's kernels, of the version that the program uses.
fn candle_sources(root: &Path) -> PathBuf {
    let lock = fs::read_to_string(root.join("Cargo.lock")).expect("the program's Cargo.lock");
    let version = lock
        .split("[[package]]")
        .find(|p| p.contains("name = \"candle-kernels\""))
        .and_then(|p| p.split("version = \"").nth(1)?.split('"').next())
        .expect("Cargo.lock names candle-kernels");
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo"))).expect("CARGO_HOME or HOME");
    let registries = fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
    let mut found = registries.map(|r| r.path().join(format!("candle-kernels-{version}/src")));
    found.find(|p| p.join("affine.cu").exists()).unwrap_or_else(|| {
        panic!(
            "the source of candle-kernels {version} is not in {}: run `cargo fetch` in the repository",
            home.display()
        )
    })
}

/// Standard output of a command that must succeed.
fn said(command: &mut Command, what: &str) -> String {
    let done = command.output().unwrap_or_else(|e| panic!("{what}: {command:?}: {e}"));
    assert!(done.status.success(), "{what}: {command:?}:\n{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("UTF-8")
}

fn write_if_changed(path: &Path, text: &str) {
    if fs::read_to_string(path).ok().as_deref() != Some(text) {
        fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }
}

/// `JOBS` threads go through what there is to do; results in its order.
fn in_parallel<T: Send, R: Send>(what: Vec<T>, f: impl Fn(T) -> R + Sync) -> Vec<R> {
    let count = what.len();
    let queue = Mutex::new(what.into_iter().enumerate());
    let results = Mutex::new(Vec::with_capacity(count));
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            scope.spawn(|| {
                loop {
                    let next = queue.lock().unwrap().next();
                    let Some((i, one)) = next else { return };
                    let result = f(one);
                    results.lock().unwrap().push((i, result));
                }
            });
        }
    });
    let mut results = results.into_inner().unwrap();
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, r)| r).collect()
}

fn preprocessed(compiler: &Compiler, path: &Path, flags: &[String]) -> String {
    said(Command::new(&compiler.name).args(["-std=c++20", "-E", "-xc++"]).args(flags).arg(path), "preprocessing")
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || c == b'_'
}

/// The first `word` in `text` at `from` or later that is no part of a longer one.
fn find_word(text: &str, word: &str, mut from: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    while let Some(at) = text[from..].find(word).map(|i| from + i) {
        let end = at + word.len();
        if (at == 0 || !is_word(bytes[at - 1])) && bytes.get(end).is_none_or(|c| !is_word(*c)) {
            return Some(at);
        }
        from = end;
    }
    None
}

/// C++ instead of `__global__` and `__shared__`, and the names of the kernels. Lines stay where they are.
fn rewritten(text: &str, source: &Path) -> (String, Vec<String>) {
    let mut kernels = Vec::new();
    let mut out = String::with_capacity(text.len() + 4096);
    let mut rest = 0;
    // `extern "C" __global__ void name(`: the language's linkage would put every kernel of every source into one scope.
    while let Some(at) = find_word(text, "__global__", rest) {
        let before = text[rest..at].trim_end();
        let before = before.strip_suffix("extern \"C\"").unwrap_or_else(|| {
            panic!("{}: a kernel that is not extern \"C\": {}", source.display(), &text[at..(at + 80).min(text.len())])
        });
        out.push_str(before);
        out.extend(text[rest + before.len()..at].matches('\n'));
        rest = at + "__global__".len();
        let open = rest + text[rest..].find('(').expect("a kernel's parameters");
        let name = text[rest..open].split(|c: char| !c.is_alphanumeric() && c != '_').rfind(|w| !w.is_empty());
        kernels.push(name.expect("a kernel's name").to_string());
    }
    out.push_str(&text[rest..]);

    let text = std::mem::take(&mut out);
    rest = 0;
    let mut nth = 0;
    while let Some(at) = find_word(&text, "__shared__", rest) {
        let end = at + text[at..].find(';').expect("a declaration ends");
        let declaration = text[at + "__shared__".len()..end].trim();
        let name_end = declaration.find('[').unwrap_or(declaration.len());
        let name_at =
            declaration[..name_end].trim_end().rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |i| i + 1);
        let (ty, name) = (declaration[..name_at].trim(), declaration[name_at..name_end].trim());
        assert!(
            !declaration.contains([',', '=']) && !ty.is_empty(),
            "{}: `{declaration}` is not understood",
            source.display()
        );
        let before = &text[rest..at];
        if let Some(before) = before.trim_end().strip_suffix("extern") {
            // As long as the launch says.
            out.push_str(before);
            write!(out, "{ty}* const {name} = ({ty}*)sim::dynamic_shared").unwrap();
        } else {
            // A member, so that the declaration needs no taking apart.
            out.push_str(before);
            write!(
                out,
                "struct sim_type_{nth} {{ {declaration}; }}; static sim::Shared sim_place_{nth} = {{\"{name}\"}}; auto& {name} = \
                 ((sim_type_{nth}*)sim::shared(&sim_place_{nth}, sizeof(sim_type_{nth}), alignof(sim_type_{nth})))->{name}"
            )
            .unwrap();
            nth += 1;
        }
        rest = end;
    }
    out.push_str(&text[rest..]);
    (out, kernels)
}

/// What registers the kernels, at the end of their own source.
fn table(module: &str, kernels: &[String]) -> String {
    let mut text = String::from("\n# 1 \"table\"\nnamespace {\nconstexpr SimKernel sim_list[] = {\n");
    for name in kernels {
        writeln!(text, "    sim::Entry<{name}>::of(\"{module}\", \"{name}\"),").unwrap();
    }
    write!(text, "}};\nconst sim::Added sim_added(sim_list, {});\n}}\n", kernels.len()).unwrap();
    text
}

/// Compiles a preprocessed text, unless that was done already with the same compiler and flags.
fn object(compiler: &Compiler, at: &Path, text: &str, flags: &[&str]) {
    let common = [
        "-std=c++20",
        "-fPIC",
        "-fvisibility=hidden",
        // Rounded as written; explicit fused products stay.
        "-ffp-contract=off",
        "-fno-math-errno",
        "-fno-strict-aliasing",
        "-w",
    ];
    let mut hash = DefaultHasher::new();
    (&compiler.name, &compiler.version, common, flags, text).hash(&mut hash);
    let key = format!("{:016x}", hash.finish());
    let (source, object, done) = (at.with_extension("ii"), at.with_extension("o"), at.with_extension("key"));
    if object.exists() && fs::read_to_string(&done).is_ok_and(|k| k == key) {
        return;
    }
    fs::write(&source, text).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
    said(
        Command::new(&compiler.name).args(common).args(flags).arg("-c").arg(&source).arg("-o").arg(&object),
        "compiling a kernel",
    );
    fs::write(&done, key).unwrap_or_else(|e| panic!("{}: {e}", done.display()));
}

fn link(compiler: &Compiler, out: &Path, v: &Variant, objects: &[PathBuf]) {
    let exports = out.join("exports");
    write_if_changed(&exports, "{ global: sim_*; local: *; };\n");
    let mut command = Command::new(&compiler.name);
    command.arg("-shared").arg("-o").arg(out.join(format!("libsimkernels-{}.so", v.name))).args(objects);
    command.args(if compiler.clang { v.link_clang } else { v.link });
    // clang leaves the sanitizer's functions to who loads the object.
    if !(compiler.clang && v.name == "sanitized") {
        command.arg("-Wl,-z,defs");
    }
    said(command.arg(format!("-Wl,--version-script={}", exports.display())), "linking the kernels");
}

/// The program that launches kernels of every source against plain loops; `tests/kernels.rs` runs it.
fn check(compiler: &Compiler, kernels: &Path, out: &Path) {
    let text = preprocessed(compiler, &kernels.join("check.cpp"), &[]);
    object(compiler, &out.join("check"), &text, &["-O1"]);
    said(
        Command::new(&compiler.name).arg(out.join("check.o")).arg("-o").arg(out.join("check")).arg("-ldl"),
        "linking the check",
    );
}
