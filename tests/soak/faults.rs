//! Faults of the world at random moments of a session: disk, descriptors, memory, clock, stops, files that change under the
//! program, folders that go, a journal that is cut. After each the world is put right, and everything must be there.

use crate::kills::{How, work};
use crate::rig::{Line, MEMORY, OPENS, PROMPT, Rig, deadline, rng, runtime, setting};
use crate::small::model;
use crate::world::{Clock, Disk, Group, address_space, descriptors, limit};
use paring::host::OpenSpec;
use paring::plan::{Action, Budget, Target};
use paring::session::{Command, Journal, Phase, Proposer, State, is_locked};
use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    FileSize,
    DiskFull,
    Descriptors,
    AddressSpace,
    ControlGroup,
    Clock,
    Stopped,
    Checkpoint,
    Images,
    Dates,
    RuntimeFolder,
    ReadOnly,
    JournalCut,
}

const ALL: [Fault; 13] = [
    Fault::FileSize,
    Fault::DiskFull,
    Fault::Descriptors,
    Fault::AddressSpace,
    Fault::ControlGroup,
    Fault::Clock,
    Fault::Stopped,
    Fault::Checkpoint,
    Fault::Images,
    Fault::Dates,
    Fault::RuntimeFolder,
    Fault::ReadOnly,
    Fault::JournalCut,
];

impl Fault {
    /// Without memory a process may end; with anything else it goes on.
    fn may_end_it(self) -> bool {
        matches!(self, Fault::AddressSpace | Fault::ControlGroup)
    }
}

fn idle(state: &State) -> bool {
    matches!(state.phase, Phase::Review | Phase::Verdict)
}

/// `n` images of noise in CIFAR's binary format.
fn noise(path: &Path, n: usize, rng: &mut ChaCha8Rng) {
    let image = |i: usize| -> Vec<u8> { [(i % 10) as u8].into_iter().chain((0..3072).map(|_| rng.random())).collect() };
    std::fs::write(path, (0..n).flat_map(image).collect::<Vec<u8>>()).expect("written");
}

struct World {
    /// Unmounted before the folder that it lies in is removed.
    disk: Option<Disk>,
    rig: Rig,
    group: Option<Group>,
    clock: Option<Clock>,
    /// Files that the session reads, and what is in them when nothing is wrong.
    images: [PathBuf; 2],
    right: BTreeMap<PathBuf, Vec<u8>>,
    rng: ChaCha8Rng,
    step: usize,
    /// Work that was under way when a fault came, and hosts that ended of one that may end them.
    busy: usize,
    ended: usize,
}

impl World {
    fn new() -> World {
        let mut rng = rng(5);
        let (mut disk, mut images) = (None, Default::default());
        let rig = Rig::new(&[], |home, spec| {
            disk = Disk::mount(&home.path("home").join("sessions").join("soak"));
            images = [home.path("eval.bin"), home.path("calib.bin")];
            images.iter().for_each(|path| noise(path, 48, &mut rng));
            let [data, calib] = images.each_ref().map(|p| p.display().to_string());
            let budget = Budget { macs: Some(0.9), ..Budget::default() };
            OpenSpec { data, calib: Some(calib), budget, ..spec }
        });
        std::fs::create_dir(rig.home.path("out")).expect("made");
        let files = images.iter().chain([&rig.checkpoint]);
        let right = files.map(|p| (p.clone(), std::fs::read(p).expect("read"))).collect();
        let (group, clock) = (Group::make(), Clock::within(rig.home.dir.path()));
        World { rig, disk, group, clock, images, right, rng, step: 0, busy: 0, ended: 0 }
    }

    /// Which faults this machine allows.
    fn possible(&self) -> Vec<Fault> {
        let fit = |f: &Fault| match f {
            Fault::DiskFull | Fault::ReadOnly => self.disk.is_some(),
            Fault::ControlGroup => self.group.is_some(),
            Fault::Clock => self.clock.is_some(),
            _ => true,
        };
        ALL.into_iter().filter(fit).collect()
    }

    /// Starts a host where none runs, and connects.
    async fn open(&mut self, held: bool) -> Result<Line, String> {
        if self.rig.host.is_none() {
            let mut command = self.rig.command();
            if let Some(clock) = &self.clock {
                clock.hold(&mut command);
            }
            if let Some(group) = self.group.as_ref().filter(|_| held) {
                group.hold(&mut command);
            }
            self.rig.host = Some(command.spawn().expect("the host starts"));
        }
        self.rig.connect().await
    }

    /// Works for a while, until something is under way if that is to be had.
    async fn work(&mut self, line: &mut Line, most: u64) {
        let ends = Instant::now() + Duration::from_millis(self.rng.random_range(0..most));
        let how = How { rng: &mut self.rng, step: &mut self.step, calm: false };
        work(&mut self.rig, line, how, |_, _| Instant::now() > ends).await;
    }

    /// Sets something going: most often a run, at a random moment of which the fault comes.
    async fn begin(&mut self, line: &mut Line) {
        if self.rng.random_bool(0.3) {
            return self.work(line, 1_500).await;
        }
        // What is refused is not to be had at this moment.
        if line.state.phase == Phase::Verdict {
            let _ = self.rig.send(line, Command::Accept).await;
        }
        let Some(card) = &line.state.card else { return };
        let free: Vec<&str> = card.groups.iter().filter(|g| g.protected.is_none()).map(|g| g.id.as_str()).collect();
        let target = Target::Group(free[self.rng.random_range(0..free.len())].to_owned());
        let ratio = [0.25, 0.5][self.rng.random_range(0..2)];
        let _ =
            self.rig.send(line, Command::Decide { target, action: Action::Prune { ratio, kept: Vec::new() } }).await;
        self.rig.wait(line, Duration::from_millis(100)).await;
        let ids = line.state.open().iter().map(|d| d.id).collect();
        let _ = self.rig.send(line, Command::Approve { ids }).await;
        let command = match self.rng.random_range(0..6) {
            0 => Command::Rehearse,
            1 => Command::Propose { by: Proposer::Planner },
            2 => {
                let path = self.rig.home.path("out").join("model.onnx").display().to_string();
                Command::Export { path, format: "onnx".to_owned() }
            }
            _ => Command::Run,
        };
        let _ = self.rig.send(line, command).await;
        let moment = Duration::from_millis(self.rng.random_range(0..1_500));
        self.rig.until(line, moment, |_| false).await;
    }

    /// Another content, length, kind or place for a file that the session has open or will open.
    fn change(&mut self, path: &Path) {
        let right = &self.right[path];
        let n = right.len();
        match self.rng.random_range(0..7) {
            0 => {
                let file = std::fs::File::options().write(true).open(path).expect("there");
                file.set_len(self.rng.random_range(0..n as u64)).expect("shorter");
            }
            1 => {
                let mut other = right.clone();
                other[self.rng.random_range(n / 2..n)..].fill_with(|| self.rng.random());
                std::fs::write(path, other).expect("in place");
            }
            2 => {
                let new = path.with_extension("new");
                if path == self.rig.checkpoint {
                    model(&new, 4)
                } else {
                    noise(&new, 48, &mut self.rng)
                }
                std::fs::rename(&new, path).expect("replaced");
            }
            3 => std::fs::remove_file(path).expect("removed"),
            4 => {
                std::fs::remove_file(path).expect("removed");
                std::fs::create_dir(path).expect("a folder");
            }
            5 => {
                std::fs::remove_file(path).expect("removed");
                std::os::unix::fs::symlink("/dev/zero", path).expect("linked");
            }
            _ => {
                let longer: Vec<u8> = right.iter().chain(right).copied().collect();
                std::fs::write(path, longer).expect("longer");
            }
        }
    }

    fn put_right(&self, path: &Path) {
        let kind = std::fs::symlink_metadata(path).map(|m| m.file_type());
        match kind {
            Ok(k) if k.is_dir() => std::fs::remove_dir(path).expect("removed"),
            Ok(k) if k.is_symlink() => std::fs::remove_file(path).expect("removed"),
            _ => {}
        }
        std::fs::write(path, &self.right[path]).expect("as it was");
    }

    /// The fault, for a while of work, and the world put right.
    async fn suffer(&mut self, fault: Fault, line: &mut Line) {
        let pid = self.rig.pid();
        match fault {
            Fault::FileSize => {
                limit(pid, libc::RLIMIT_FSIZE, Some(self.rng.random_range(1..40_000)));
                self.work(line, 1_500).await;
                limit(pid, libc::RLIMIT_FSIZE, None);
            }
            Fault::DiskFull => {
                let left = [0, 4_096, 20_000, 60_000, 200_000][self.rng.random_range(0..5)];
                self.disk.as_ref().expect("a disk").fill(left);
                self.work(line, 1_500).await;
                self.disk.as_ref().expect("a disk").empty();
            }
            Fault::Descriptors => {
                limit(pid, libc::RLIMIT_NOFILE, Some(descriptors(pid) + self.rng.random_range(0..4)));
                self.work(line, 1_500).await;
                limit(pid, libc::RLIMIT_NOFILE, None);
            }
            Fault::AddressSpace => {
                limit(pid, libc::RLIMIT_AS, Some(address_space(pid) + self.rng.random_range(0..3_000_000)));
                self.work(line, 1_500).await;
                limit(pid, libc::RLIMIT_AS, None);
            }
            Fault::Clock => {
                let to = ["+400d", "-400d", "-20y", "+10y", "+1", "-3600"][self.rng.random_range(0..6)];
                self.clock.as_ref().expect("a clock").set(to);
                self.work(line, 1_000).await;
                // Sometimes it stays so.
                if self.rng.random_bool(0.5) {
                    self.clock.as_ref().expect("a clock").set("+0");
                }
            }
            Fault::Stopped => {
                // SAFETY: a plain system call on our own child, which is not reaped.
                let signal = |number| unsafe { libc::kill(pid as i32, number) };
                signal(libc::SIGSTOP);
                tokio::time::sleep(Duration::from_millis(self.rng.random_range(0..1_500))).await;
                signal(libc::SIGCONT);
                self.work(line, 500).await;
            }
            Fault::Checkpoint | Fault::Images => {
                let path = match fault {
                    Fault::Checkpoint => self.rig.checkpoint.clone(),
                    _ => self.images[self.rng.random_range(0..2)].clone(),
                };
                self.change(&path);
                self.work(line, 2_000).await;
                self.put_right(&path);
            }
            Fault::Dates => {
                let path = self.images[self.rng.random_range(0..2)].clone();
                for path in [&path, &self.rig.checkpoint, &self.rig.place.dir.join("open.json")] {
                    let file = std::fs::File::options().write(true).open(path).expect("there");
                    let hours = Duration::from_secs(3_600 * self.rng.random_range(0..200_000));
                    let now = std::time::SystemTime::now();
                    let to = if self.rng.random_bool(0.5) { now + hours } else { std::time::UNIX_EPOCH + hours / 2 };
                    file.set_modified(to).expect("dated");
                }
                self.work(line, 800).await;
            }
            Fault::RuntimeFolder => {
                std::fs::remove_dir_all(self.rig.home.path("run")).expect("removed");
                self.work(line, 800).await;
                std::fs::create_dir(self.rig.home.path("run")).expect("made");
            }
            Fault::ControlGroup | Fault::ReadOnly | Fault::JournalCut => unreachable!("between hosts"),
        }
    }

    /// A start in a world that is not right; in words what was wrong with it.
    async fn start_into(&mut self, fault: Fault) -> Result<(), String> {
        let log = || std::fs::metadata(self.rig.place.log_file()).map_or(0, |m| m.len());
        match fault {
            Fault::ControlGroup => {
                let most = self.rng.random_range(4..24) * 1_000_000;
                self.group.as_ref().expect("a group").limit(most);
                if let Ok(mut line) = self.open(true).await {
                    self.begin(&mut line).await;
                    self.work(&mut line, 2_000).await;
                }
                // One that is stopped for memory is not to stay so.
                self.group.as_ref().expect("a group").limit(4_000_000_000);
                if self.rig.host.as_mut().is_some_and(|h| h.try_wait().expect("a child").is_some()) {
                    self.ended += 1;
                }
                self.rig.kill();
            }
            Fault::ReadOnly => {
                if !self.disk.as_ref().expect("a disk").read_only(true) {
                    return Err("the disk is in use".to_owned());
                }
                // Whoever cannot write says so and ends; whoever can open it is idle.
                let opened = self.open(false).await;
                self.disk.as_ref().expect("a disk").read_only(false);
                if opened.is_ok() {
                    return Err("opens what it cannot write".to_owned());
                }
                self.rig.ended(OPENS);
            }
            _ => {
                let before = Journal::read(&self.rig.place.dir).map_err(|e| e.to_string())?;
                let (spare, dir) = (self.rig.home.path("spare"), self.rig.place.dir.clone());
                std::fs::remove_dir_all(&spare).unwrap_or_default();
                std::fs::create_dir(&spare).expect("made");
                let names = std::fs::read_dir(&dir).expect("listed").flatten().map(|e| e.file_name());
                let files: Vec<_> = names.filter(|n| n.to_string_lossy().starts_with("journal-")).collect();
                let copy = |from: &Path, to: &Path| {
                    files.iter().for_each(|n| assert!(std::fs::copy(from.join(n), to.join(n)).is_ok(), "copied"));
                };
                copy(&dir, &spare);
                let name = &files[self.rng.random_range(0..files.len())];
                let file = std::fs::File::options().write(true).open(dir.join(name)).expect("there");
                let n = file.metadata().expect("there").len();
                file.set_len(self.rng.random_range(n * 3 / 4..n + 1)).expect("shorter");
                let from = log();
                if let Err(words) = self.open(false).await {
                    // It cannot be saved: that is said, nothing is made up, and the copy is there.
                    let said = std::fs::read(self.rig.place.log_file()).unwrap_or_default();
                    let said = String::from_utf8_lossy(&said[(from as usize).min(said.len())..]).into_owned();
                    if !said.contains("hint:") {
                        return Err(format!("after a cut of `{}` {words} without a hint: {said}", name.display()));
                    }
                    self.rig.ended(OPENS);
                    let names = std::fs::read_dir(&dir).expect("listed").flatten().map(|e| e.path());
                    let journal =
                        |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("journal-"));
                    names.filter(journal).for_each(|p| std::fs::remove_file(p).expect("removed"));
                    copy(&spare, &dir);
                    return Ok(());
                }
                let kept = Journal::read(&dir).map_err(|e| e.to_string())?;
                let same = before.iter().zip(&kept).take_while(|(a, b)| a == b).count();
                let news =
                    |r: &&paring::session::Record| !matches!(&r.event, paring::session::Event::PhaseEntered { .. });
                if kept[same..].iter().filter(news).count() > 2 {
                    return Err(format!(
                        "a cut of `{}` left {same} of {} and made up others",
                        name.display(),
                        before.len()
                    ));
                }
                self.rig.heard.forget_after(&before[..same]);
            }
        }
        Ok(())
    }

    async fn face(&mut self, fault: Fault) -> Result<(), String> {
        if matches!(fault, Fault::ControlGroup | Fault::ReadOnly | Fault::JournalCut) {
            if self.rig.host.is_some() {
                self.rig.kill();
            }
            self.start_into(fault).await?;
        } else {
            let mut line = self.open(false).await?;
            self.begin(&mut line).await;
            self.busy += usize::from(!idle(&line.state));
            self.suffer(fault, &mut line).await;
            let gone = self.rig.host.as_mut().expect("a host").try_wait().expect("a child");
            match gone {
                Some(_) if fault.may_end_it() => {
                    self.ended += 1;
                    self.rig.host = None;
                }
                Some(status) => return Err(format!("the host ended: {status}")),
                None => {
                    let began = Instant::now();
                    let note = |n| Command::Note { text: format!("after fault {n}") };
                    while let Err(e) = self.rig.send(&mut line, note(self.step)).await {
                        if began.elapsed() > PROMPT {
                            return Err(format!("does not recover: {e}"));
                        }
                        self.rig.wait(&mut line, Duration::from_millis(50)).await;
                    }
                    // What is under way may come to its end.
                    if self.rng.random_bool(0.6) {
                        self.rig.until(&mut line, Duration::from_secs(20), idle).await;
                    }
                    self.rig.weigh();
                }
            }
            // Nobody finds a host whose socket is gone: it is ended by its number, as its user would.
            if fault == Fault::RuntimeFolder || self.rng.random_bool(0.2) {
                if let Some(host) = &self.rig.host {
                    // SAFETY: a plain system call on our own child.
                    unsafe { libc::kill(host.id() as i32, libc::SIGTERM) };
                    self.rig.ended(Duration::from_secs(60));
                    assert!(!is_locked(&self.rig.place.dir));
                }
            }
        }
        self.rig.check().map(drop)
    }
}

#[test]
#[ignore = "by hand: minutes, see the head of `main.rs`"]
fn faults() {
    let (mut world, ends, seed) = (World::new(), deadline(), setting("SOAK_SEED", 1));
    let runtime = runtime();
    runtime.block_on(async {
        let mut line = world.open(false).await.expect("connected");
        world.rig.send(&mut line, Command::Propose { by: Proposer::Planner }).await.expect("asked");
        let most = Duration::from_secs(240);
        assert!(world.rig.until(&mut line, most, |s| s.phase == Phase::Review && s.seq > 5).await);
    });
    let mut possible = world.possible();
    let left_out: Vec<Fault> = ALL.into_iter().filter(|f| !possible.contains(f)).collect();
    let mut counts: BTreeMap<Fault, usize> = BTreeMap::new();
    let mut n = 0;
    while n == 0 || Instant::now() < ends {
        possible.shuffle(&mut world.rng);
        for fault in possible.clone() {
            if let Err(words) = runtime.block_on(world.face(fault)) {
                let log = std::fs::read_to_string(world.rig.place.log_file()).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(12).collect();
                panic!("seed {seed}, fault {n} ({fault:?}): {words}\nlast in the log: {last:#?}");
            }
            *counts.entry(fault).or_default() += 1;
            n += 1;
        }
    }
    // At last everything is there, opens and works.
    let runs = runtime.block_on(async {
        let mut line = world.open(false).await.unwrap_or_else(|e| panic!("{e}"));
        world.rig.send(&mut line, Command::Stop).await.expect("stops");
        line.state.rounds.iter().filter(|r| r.verdict.is_some()).count()
    });
    world.rig.ended(PROMPT);
    world.rig.check().unwrap_or_else(|words| panic!("{words}"));
    world.rig.no_secret().unwrap_or_else(|words| panic!("{words}"));
    println!(
        "faults: {n} of {} kinds ({counts:?}; not possible here: {left_out:?}), {} while work was under way; {} hosts ended for want \
         of memory; {} events heard, {runs} rounds judged; longest answer {} ms; peak {} MB beyond the model of {} allowed; 0 \
         violations",
        counts.len(),
        world.busy,
        world.ended,
        world.rig.heard.len(),
        world.rig.slowest.as_millis(),
        world.rig.beyond / 1_000_000,
        MEMORY / 1_000_000,
    );
}
