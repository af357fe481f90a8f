//! The real binary in a folder that somebody else filled: `./paring.toml`, and names of every kind that try to steer the
//! terminal, through every command's output and the host's log.

#[path = "common/fake_llm.rs"]
mod fake_llm;
#[path = "common/pty.rs"]
mod pty;
#[path = "common/small.rs"]
mod small;

use fake_llm::{Answer, FakeLlm};
use paring::data;
use portable_pty::{CommandBuilder, PtySize, native_pty_system};
use pty::Home;
use serde_json::Value;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Output;

const CLASSES: usize = data::synthetic::CLASSES.len();

/// A name that clears the screen, recolours, reorders and hides, as a file name may.
const EVIL: &str = "e\x1b[2J\u{9b}31m\x7f\r\u{202e}\u{2066}\u{61c}\u{200e}\u{200b}\u{feff}\u{e0041}x";
/// What of it may be shown.
const MARK: &str = "[2J";

/// The judgement of this test alone: what the crate itself calls hostile is not asked.
fn steers(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
        || ('\u{e0000}'..='\u{e007f}').contains(&c)
}

fn assert_plain(what: &str, bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let found: Vec<char> = text.chars().filter(|c| steers(*c)).collect();
    assert!(found.is_empty(), "{what} lets {found:?} through: {text:?}");
    text.contains(MARK)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("utf-8")
}

/// What a command says on both streams.
fn said(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[test]
fn a_project_folder_gets_neither_the_key_nor_a_prompt() {
    let fake = FakeLlm::start(&["m"], vec![Answer::says("", "thank you")]);
    let home = Home::new(&[("OPENAI_API_KEY", "sk-not-to-be-sent")]);
    let checkpoint = home.path("m.safetensors");
    small::model(&checkpoint, 3);
    let asks = format!("[llm]\nbase_url = \"{}\"\nmodel = \"m\"\n", fake.url);
    std::fs::write(home.path("paring.toml"), asks).expect("written");
    let data = ["--data", "synthetic:eval", "--calib", "synthetic:calib", "--limit", "8"];
    let open: Vec<&str> = ["open", text(&checkpoint), "--name", "s", "--detach"].into_iter().chain(data).collect();
    let out = home.run(&open);
    assert!(out.status.success(), "{}", said(&out));
    let origin = fake.url.trim_end_matches("/v1");
    assert!(said(&out).contains(&format!("ignored: `{origin}`")), "{}", said(&out));
    let kept = std::fs::read(home.path("home/sessions/s/open.json")).expect("kept");
    let kept: Value = serde_json::from_slice(&kept).expect("JSON");
    assert_eq!((&kept["llm_url"], &kept["llm_model"]), (&Value::Null, &Value::Null));
    home.run(&["stop", "s"]);
    assert_eq!(*fake.keys.lock().expect("keys"), [] as [String; 0], "nobody called");

    // What the user trusts is granted.
    std::fs::create_dir_all(home.path("config/paring")).expect("made");
    std::fs::write(home.path("config/paring/config.toml"), format!("[llm]\ntrusted = [\"{origin}\"]\n"))
        .expect("written");
    let out = home.run(&["eval", text(&checkpoint), "--data", "synthetic:eval", "--limit", "1"]);
    assert!(out.status.success() && !said(&out).contains("ignored"), "{}", said(&out));
    // Plain http to elsewhere is not, whoever names it.
    let url = ["--llm-url", "http://gpu-box.example:8000/v1"];
    let open: Vec<&str> = open.iter().copied().map(|a| if a == "s" { "t" } else { a }).chain(url).collect();
    let out = home.run(&open);
    assert_eq!(out.status.code(), Some(2), "{}", said(&out));
    assert!(said(&out).contains("PARING_LLM_TRUSTED=http://gpu-box.example:8000"), "{}", said(&out));
}

#[test]
fn settings_that_are_no_file_neither_hang_nor_fill_memory() {
    let home = Home::new(&[]);
    let settings = home.path("paring.toml");
    let eval = ["eval", "demo:cnn", "--limit", "1"];
    for odd in ["pipe", "device", "folder"] {
        match odd {
            "pipe" => {
                let path = std::ffi::CString::new(text(&settings)).expect("a path");
                // SAFETY: a path that ends in a zero byte.
                assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
            }
            "device" => std::os::unix::fs::symlink("/dev/zero", &settings).expect("linked"),
            _ => std::fs::create_dir(&settings).expect("made"),
        }
        let out = home.run(&eval);
        assert_eq!(out.status.code(), Some(2), "{odd}: {}", said(&out));
        assert!(said(&out).contains("paring.toml: cannot be read: it is "), "{odd}: {}", said(&out));
        match odd {
            "folder" => std::fs::remove_dir(&settings).expect("removed"),
            _ => std::fs::remove_file(&settings).expect("removed"),
        }
    }
}

#[test]
fn every_command_that_computes_reads_the_settings() {
    let home = Home::new(&[]);
    let out = home.path("out.onnx");
    let commands: [&[&str]; 4] = [
        &["eval", "demo:cnn", "--limit", "1"],
        &["profile", "demo:cnn", "--runs", "1"],
        &["convert", "demo:cnn", "--out", text(&out)],
        &["selftest"],
    ];
    std::fs::write(home.path("paring.toml"), "[session]\nthreads = \"many\"\n").expect("written");
    for args in commands {
        let out = home.run(args);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", said(&out));
        assert!(said(&out).contains("`session.threads`"), "{args:?}: {}", said(&out));
    }
    std::fs::write(home.path("paring.toml"), "[session]\ndevice = \"cuda:77\"\n").expect("written");
    for args in [commands[0], commands[1], commands[3]] {
        let out = home.run(args);
        assert_eq!(out.status.code(), Some(1), "{args:?}: {}", said(&out));
        assert!(said(&out).contains("cuda:77"), "{args:?}: {}", said(&out));
    }
    std::fs::remove_file(home.path("paring.toml")).expect("removed");
    for args in commands {
        let out = home.run(&[args, &["--threads", "20000"]].concat());
        assert_eq!(out.status.code(), Some(2), "{args:?}: {}", said(&out));
        assert!(said(&out).contains("from 0 to 1024"), "{args:?}: {}", said(&out));
    }
}

#[test]
fn hostile_names_reach_no_output() {
    let home = Home::new(&[]);
    let checkpoint = home.path(&format!("{EVIL}.safetensors"));
    small::model(&checkpoint, 3);
    let images = |name: &str, shade: u8| -> PathBuf {
        let dir = home.path(&format!("{name}{EVIL}"));
        for class in 0..CLASSES {
            let folder = dir.join(format!("{EVIL}{class}"));
            std::fs::create_dir_all(&folder).expect("made");
            for i in 0..3 {
                let pixel = |x: u32, y: u32| image::Rgb([shade, (x * 8) as u8 ^ class as u8, (y * 8 + i) as u8]);
                let path = folder.join(format!("{i}{EVIL}.png"));
                image::RgbImage::from_fn(32, 32, pixel).save(path).expect("written");
            }
        }
        dir
    };
    let (eval, calib, broken) = (images("eval", 10), images("calib", 90), images("broken", 200));
    let first = std::fs::read_dir(&broken).expect("listed").next().expect("a class").expect("entry").path();
    let png = std::fs::read_dir(&first).expect("listed").next().expect("an image").expect("entry").path();
    std::fs::write(png, b"\x89PNG\r\n\x1a\n and then nothing").expect("written");
    let checkpoint = text(&checkpoint);
    let (eval, calib, broken) = (text(&eval), text(&calib), text(&broken));
    let at = |name: &str| home.path(name).display().to_string();
    let (none, onnx, out) = (at(&format!("none{EVIL}")), at(&format!("{EVIL}.onnx")), at(&format!("out{EVIL}")));
    let session = format!("{out}/session");

    let mut marked = 0;
    let mut walk = |args: &[&str]| {
        let out = home.run(args);
        let shown = args.join(" ").escape_debug().to_string();
        // Either stream may hold the name; neither may hold it raw.
        let marks = [assert_plain(&format!("{shown}: stdout"), &out.stdout), assert_plain(&shown, &out.stderr)];
        marked += usize::from(marks.contains(&true));
        if args.contains(&"--json") && out.status.success() {
            for value in serde_json::Deserializer::from_slice(&out.stdout).into_iter::<Value>() {
                value.unwrap_or_else(|e| panic!("{shown}: {e}"));
            }
        }
    };
    for args in [
        &["eval", checkpoint, "--data", eval][..],
        &["eval", checkpoint, "--data", eval, "--json"],
        &["eval", checkpoint, "--data", broken],
        &["eval", checkpoint, "--data", &none],
        &["eval", &none, "--data", eval],
        &["eval", "--precision", EVIL, "demo:cnn"],
        &["eval", "--calibration", EVIL, "demo:cnn"],
        &["eval", "--arch", EVIL, checkpoint],
        &["eval", "--device", EVIL, "demo:cnn"],
        &["profile", checkpoint, "--runs", "1", "--batch", "1"],
        &["profile", checkpoint, "--runs", "1", "--batch", "1", "--json"],
        &["convert", checkpoint, "--out", &onnx],
        &["convert", checkpoint, "--out", &onnx, "--json"],
        &["convert", checkpoint, "--out", &out, "--format", EVIL],
        &["attach", EVIL],
        &["log", EVIL],
        &["log", &session],
        &["stop", EVIL],
        &["export", EVIL],
        &["open", checkpoint, "--data", eval, "--calib", calib, "--name", EVIL, "--detach"],
        &["open", checkpoint, "--data", eval, "--calib", calib, "--name", "s", "--detach"],
        &["ls"],
        &["ls", "--json"],
        &["log", "s"],
        &["log", "s", "--json"],
        &["open", &none, "--data", eval, "--name", "s", "--detach"],
        &["stop", "s"],
        &["run", checkpoint, "--data", eval, "--policy", EVIL, "--out", &out],
        &["run", checkpoint, "--data", eval, "--calib", calib, "--precision", "int8", "--batch", "2", "--out", &out],
        &["log", &session],
        &["log", &session, "--json"],
        &["--theme", EVIL],
        &["--colors", EVIL],
        &[EVIL],
        &["eval", "demo:cnn", EVIL],
        &["eval", &format!("--{EVIL}")],
    ] {
        walk(args);
    }
    assert!(marked >= 20, "the names were there to be seen: {marked}");
    let log = std::fs::read(home.path("home/sessions/s/host.log")).expect("a log");
    assert_plain("host.log", &log);

    let escaped: String = EVIL.chars().map(|c| format!("\\U{:08x}", u32::from(c))).collect();
    let settings = format!(
        "\"{escaped}\" = 1\n[screen]\n\"{escaped}\" = 2\ntheme = \"{escaped}\"\nsort = \"{escaped}\"\n[\"{escaped}\"]\nx = 1\n\
         [keys]\n\"{escaped}\" = \"a\"\nrun = \"{escaped}\"\n[llm]\nbase_url = \"http://{escaped}/\"\nmodel = \"{escaped}\"\n"
    );
    for text in [settings.clone(), format!("{settings}{EVIL}"), format!("[keys]\nrun = \"{escaped}\"\n[{EVIL}")] {
        std::fs::write(home.path("paring.toml"), text).expect("written");
        let out = home.run(&["eval", "demo:cnn", "--limit", "1"]);
        assert_eq!(out.status.code(), Some(2), "{}", said(&out));
        assert_plain("settings", &out.stderr);
    }
}

#[test]
fn a_terminal_of_any_size_is_drawn_on() {
    let home = Home::new(&[]);
    let checkpoint = home.path("m.safetensors");
    small::model(&checkpoint, 3);
    let size = PtySize { rows: u16::MAX, cols: u16::MAX, pixel_width: 0, pixel_height: 0 };
    let pair = native_pty_system().openpty(size).expect("a pseudo-terminal");
    let mut c = CommandBuilder::new(env!("CARGO_BIN_EXE_paring"));
    c.args(["open", text(&checkpoint), "--data", "synthetic:eval", "--calib", "synthetic:calib", "--limit", "8"]);
    c.args(["--name", "s"]);
    c.cwd(home.dir.path());
    home.variables().for_each(|(k, v)| c.env(k, v));
    let mut child = pair.slave.spawn_command(c).expect("the binary starts");
    drop(pair.slave);
    let mut screen = pair.master.try_clone_reader().expect("reader");
    let mut keys = pair.master.take_writer().expect("writer");
    let (mut seen, mut buf, mut left) = (Vec::new(), [0; 8192], false);
    // An error means that the program has closed its side.
    while let Ok(n @ 1..) = screen.read(&mut buf) {
        seen.extend_from_slice(&buf[..n]);
        // A word of the footer: the screen is there, and keys are read.
        if !left && seen.windows(4).any(|w| w == b"help") {
            left = true;
            keys.write_all(b"q").and_then(|()| keys.flush()).expect("keys");
        }
    }
    let status = child.wait().expect("ended");
    assert!(
        left && status.success(),
        "{status:?}: {}",
        String::from_utf8_lossy(&seen[..seen.len().min(2000)]).escape_debug()
    );
}
