//! The real binary where the world around it fails: no room for its log or its journal, a terminal that goes away, many who
//! open at once, a checkpoint that is gone, folders that were never a session.

#[path = "common/pty.rs"]
mod pty;
#[path = "common/small.rs"]
mod small;

use paring::host::client::{Client, CommandError, Messages};
use paring::model::LoadOptions;
use paring::plan::{Action, DecisionId, Target};
use paring::session::{Command, HostMsg, Journal, Phase, Place, State, is_locked, lock_holder};
use pty::Home;
use small::model;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A session's place in `home` that measures nothing by itself, not opened yet.
fn place(home: &Home, name: &str) -> Place {
    let path = home.path("model.safetensors");
    model(&path, 3);
    let place = Place::at(&home.path("home").join("sessions").join(name));
    std::fs::create_dir_all(&place.dir).expect("made");
    small::spec(&path).save(&place).expect("saved");
    place
}

fn host(home: &Home, place: &Place, stderr: Stdio) -> Child {
    home.command(&["host", place.dir.to_str().expect("utf-8")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .expect("the host starts")
}

/// The session's socket, which lies in the home's own runtime folder.
fn socket(home: &Home, place: &Place) -> PathBuf {
    let name = place.socket().expect("socket");
    home.path("run").join("paring").join(name.file_name().expect("named"))
}

async fn connect(home: &Home, place: &Place, child: &mut Child) -> (Client, Messages) {
    let began = Instant::now();
    loop {
        match Client::connect(&socket(home, place), "test", false).await {
            Ok(connected) => return connected,
            Err(e) => {
                assert!(child.try_wait().expect("alive").is_none(), "the host ended: {e}");
                assert!(began.elapsed() < pty::LONG, "{e}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Reads messages into `state` until it is as wanted.
async fn until(messages: &mut Messages, state: &mut State, wanted: impl Fn(&State) -> bool) {
    while !wanted(state) {
        let message = tokio::time::timeout(pty::LONG, messages.recv()).await.expect("in time");
        match message.expect("the host lives") {
            HostMsg::Welcome { state: s, .. } => *state = *s,
            HostMsg::Event { record } => state.apply(&record),
            _ => {}
        }
    }
}

/// How large a file of that process may grow: a disk that is full to whoever writes, and has room again.
fn limit(child: &Child, bytes: libc::rlim_t) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: a plain system call on our own child with a valid limit.
    let rc = unsafe { libc::prlimit(child.id() as i32, libc::RLIMIT_FSIZE, &limit, std::ptr::null_mut()) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime")
}

fn approve_a_cut(state: &State) -> [Command; 2] {
    let groups = &state.card.as_ref().expect("open").groups;
    let id = &groups.iter().find(|g| g.protected.is_none()).expect("a free group").id;
    let action = Action::Prune { ratio: 0.5, kept: Vec::new() };
    let decide = Command::Decide { target: Target::Group(id.clone()), action };
    [decide, Command::Approve { ids: vec![DecisionId(state.next_decision)] }]
}

#[test]
fn a_host_outlives_a_log_and_a_journal_without_room() {
    let home = Home::new(&[("PARING_LOG", "debug")]);
    let place = place(&home, "full");
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let mut child = host(&home, &place, full.into());
    runtime().block_on(async {
        let (client, mut messages) = connect(&home, &place, &mut child).await;
        let mut state = State::default();
        until(&mut messages, &mut state, |s| s.card.is_some()).await;
        let note = |text: &str| Command::Note { text: text.to_owned() };
        client.command(note("first")).await.expect("a log that is lost stops nothing");
        limit(&child, 1);
        let Err(CommandError::Refused(words)) = client.command(note("lost")).await else { panic!("not written") };
        assert!(words.contains("no space left") && words.contains("hint:"), "{words}");
        assert!(words.contains("journal-1.db"), "{words}");
        limit(&child, libc::RLIM_INFINITY);
        client.command(note("again")).await.expect("there is room again");
        until(&mut messages, &mut state, |s| s.notes.len() == 2).await;
        client.command(Command::Stop).await.expect("stops");
    });
    assert!(child.wait().expect("ends").success());
    let state = State::fold(&Journal::read(&place.dir).expect("readable"));
    assert_eq!(state.notes, [(1, "first".to_owned()), (1, "again".to_owned())]);
}

#[test]
fn a_session_that_finds_no_room_to_open_says_so() {
    let home = Home::new(&[]);
    let place = place(&home, "no-room");
    // Opened before, and killed: its log has to be read anew.
    let mut child = host(&home, &place, Stdio::null());
    runtime().block_on(async { drop(connect(&home, &place, &mut child).await) });
    child.kill().expect("killed");
    child.wait().expect("reaped");
    let mut command =
        home.command(&["open", &home.path("model.safetensors").display().to_string(), "--name", "no-room"]);
    command.args(["--data", "synthetic:eval", "--calib", "synthetic:calib", "--detach"]);
    // SAFETY: setrlimit is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 1, rlim_max: libc::RLIM_INFINITY };
            if libc::setrlimit(libc::RLIMIT_FSIZE, &limit) == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    let out = command.output().expect("runs");
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{words}");
    assert!(words.contains("no-room") && words.contains("hint:") && !words.contains("101"), "{words}");
    assert!(!is_locked(&place.dir));
}

#[test]
fn five_who_open_at_once_get_one_session() {
    let home = Home::new(&[]);
    let path = home.path("model.safetensors");
    model(&path, 3);
    let path = path.display().to_string();
    for name in ["one", "two"] {
        let args =
            ["open", &path, "--data", "synthetic:eval", "--calib", "synthetic:calib", "--name", name, "--detach"];
        let mut command: Vec<_> = (0..5)
            .map(|_| {
                let mut c = home.command(&args);
                c.args(["--limit", "16", "--threads", "1"]).stdout(Stdio::piped()).stderr(Stdio::piped());
                c.spawn().expect("starts")
            })
            .collect();
        let place = Place::at(&home.path("home").join("sessions").join(name));
        for child in command.drain(..) {
            let out = child.wait_with_output().expect("ends");
            let words = String::from_utf8_lossy(&out.stderr).into_owned();
            assert!(out.status.success(), "{words}");
            assert_eq!(String::from_utf8_lossy(&out.stdout).trim(), name);
        }
        assert!(is_locked(&place.dir) && socket(&home, &place).exists(), "one host, and it listens");
        assert!(home.run(&["stop", name]).status.success());
    }
}

/// Between an approval and its run, and after it: what was measured is what is compressed; what was made is exported with
/// nothing but the session's folder.
#[test]
fn an_accepted_round_is_exported_without_its_checkpoint() {
    let home = Home::new(&[]);
    let place = place(&home, "gone");
    let checkpoint = home.path("model.safetensors");
    let mut child = host(&home, &place, Stdio::null());
    let made = runtime().block_on(async {
        let (client, mut messages) = connect(&home, &place, &mut child).await;
        let mut state = State::default();
        until(&mut messages, &mut state, |s| s.card.is_some()).await;
        for command in approve_a_cut(&state) {
            client.command(command).await.expect("decided");
        }
        // Other weights of the same size, into the same file.
        let other = home.path("other.safetensors");
        model(&other, 4);
        let bytes = std::fs::read(&other).expect("read");
        assert_eq!(bytes.len() as u64, std::fs::metadata(&checkpoint).expect("there").len());
        std::fs::write(&checkpoint, bytes).expect("in place");
        client.command(Command::Run).await.expect("runs");
        until(&mut messages, &mut state, |s| s.phase == Phase::Verdict).await;
        client.command(Command::Accept).await.expect("accepted");
        until(&mut messages, &mut state, |s| s.base_round() == 1).await;
        client.command(Command::Stop).await.expect("stops");
        state.rounds[1].model_hash.clone().expect("made")
    });
    assert!(child.wait().expect("ends").success());

    // What a session whose checkpoint was left alone makes of the same decision.
    let untouched = Home::new(&[]);
    let beside = self::place(&untouched, "gone");
    let mut child = host(&untouched, &beside, Stdio::null());
    let expected = runtime().block_on(async {
        let (client, mut messages) = connect(&untouched, &beside, &mut child).await;
        let mut state = State::default();
        until(&mut messages, &mut state, |s| s.card.is_some()).await;
        for command in approve_a_cut(&state) {
            client.command(command).await.expect("decided");
        }
        client.command(Command::Run).await.expect("runs");
        until(&mut messages, &mut state, |s| s.phase == Phase::Verdict).await;
        client.command(Command::Stop).await.expect("stops");
        state.rounds[1].model_hash.clone().expect("made")
    });
    assert!(child.wait().expect("ends").success());
    assert_eq!(made, expected, "the weights that were measured, not those that lie there now");

    std::fs::remove_file(&checkpoint).expect("removed");
    let out = home.path("out.safetensors");
    let export = home.run(&["export", "gone", "--out", &out.display().to_string()]);
    let words = String::from_utf8_lossy(&export.stderr).into_owned();
    assert!(export.status.success(), "{words}");
    assert_eq!(paring::model::load(&out, &LoadOptions::default()).expect("opens").info.hash, made);
    assert!(!is_locked(&place.dir));
    let refused = home.run(&["open", &checkpoint.display().to_string(), "--data", "synthetic:eval", "--name", "gone"]);
    assert_eq!(refused.status.code(), Some(1), "an attach needs it still");
}

#[test]
fn what_was_never_a_session_is_said_to_be_that() {
    let home = Home::new(&[]);
    let sessions = home.path("home").join("sessions");
    for (name, make) in [("empty", false), ("journal", true)] {
        std::fs::create_dir_all(sessions.join(name)).expect("made");
        if make {
            drop(Journal::open(&sessions.join(name)).expect("opens"));
        }
        let out = home.run(&["log", name]);
        let words = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{words}");
        assert!(words.contains("was never opened") && !words.contains("did you mean"), "{words}");
    }
    let out = home.run(&["log", "journa"]);
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(words.contains("no session `journa`") && !words.contains("did you mean"), "nobody means those: {words}");
}

/// The session's folder comes from somebody else.
#[test]
fn a_pipe_in_place_of_a_lock_hangs_nobody() {
    let home = Home::new(&[]);
    let place = place(&home, "pipe");
    let name = std::ffi::CString::new(place.dir.join("lock").to_str().expect("utf-8")).expect("plain");
    // SAFETY: a plain system call with a terminated string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert!(home.run(&["ls"]).status.success());
    let model = home.path("model.safetensors").display().to_string();
    let out = home.run(&["open", &model, "--data", "synthetic:eval", "--name", "pipe", "--detach"]);
    let words = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{words}");
    assert!(words.contains("lock") && words.contains("no regular file"), "{words}");
}

/// A screen whose terminal closes ends without a word to anybody, and above all without a panic: standard error was that
/// terminal.
#[test]
fn a_terminal_that_goes_away_is_the_end_of_its_screen_alone() {
    let home = Home::new(&[]);
    let place = place(&home, "tty");
    let mut host = host(&home, &place, Stdio::null());
    runtime().block_on(async { drop(connect(&home, &place, &mut host).await) });
    // More than once: what hears of it, and what it does just then, is a race.
    for deaf in [false, true].repeat(4) {
        let (near, far) = terminal();
        let mut command = home.command(&["attach", "tty"]);
        let copy = || Stdio::from(far.try_clone().expect("copied"));
        command.stdin(copy()).stdout(copy()).stderr(copy());
        // SAFETY: all three are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                if deaf {
                    // As under nohup: no signal tells it.
                    libc::signal(libc::SIGHUP, libc::SIG_IGN);
                }
                Ok(())
            });
        }
        let mut screen = command.spawn().expect("starts");
        drop((command, far));
        // Something is drawn: the cursor is hidden by now.
        let mut near = File::from(near);
        let mut seen = Vec::new();
        while !seen.windows(6).any(|w| w == b"\x1b[?25l") || seen.len() < 2000 {
            let mut some = [0; 4096];
            let n = std::io::Read::read(&mut near, &mut some).expect("drawn");
            seen.extend_from_slice(&some[..n]);
        }
        drop(near);
        let began = Instant::now();
        let status = loop {
            match screen.try_wait().expect("a child") {
                Some(status) => break status,
                None => assert!(began.elapsed() < pty::LONG, "the screen does not end"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(status.code(), Some(0), "deaf: {deaf}");
        assert!(host.try_wait().expect("a child").is_none(), "the session goes on");
    }
    assert_eq!(lock_holder(&place.dir), Some(host.id() as i32));
    assert!(home.run(&["stop", "tty"]).status.success());
    assert!(host.wait().expect("ends").success());
}

/// Both ends of a new terminal of 80 by 24.
fn terminal() -> (OwnedFd, OwnedFd) {
    let (mut near, mut far) = (-1, -1);
    let size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: fills in two descriptors, which nobody else owns.
    let (near, far) = unsafe {
        assert_eq!(libc::openpty(&mut near, &mut far, std::ptr::null_mut(), std::ptr::null(), &size), 0);
        (OwnedFd::from_raw_fd(near), OwnedFd::from_raw_fd(far))
    };
    for fd in [&near, &far] {
        // SAFETY: marks our own descriptor: no child must keep the terminal open by it.
        assert_eq!(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) }, 0);
    }
    (near, far)
}
