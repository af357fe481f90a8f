//! What can be done to a process from outside: limits, a full or read-only disk, a control group's memory, another clock. What
//! this machine or this user does not allow is left out, and said.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What glibc's limits are called (`RLIMIT_…`).
pub type Resource = libc::__rlimit_resource_t;

/// Holds that process to `most` of `what`; its hard limit stays.
pub fn limit(pid: u32, what: Resource, most: Option<u64>) {
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain system calls on a process that this test started, with limits of the right type.
    unsafe {
        // One that is gone needs no limit.
        if libc::prlimit(pid as i32, what, std::ptr::null(), &mut now) != 0 {
            return;
        }
        now.rlim_cur = most.map_or(now.rlim_max, |m| m.min(now.rlim_max));
        libc::prlimit(pid as i32, what, &now, std::ptr::null_mut());
    }
}

/// Descriptors that it has open.
pub fn descriptors(pid: u32) -> u64 {
    std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |d| d.count() as u64)
}

/// Its address space, bytes.
pub fn address_space(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    statm.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 4096
}

fn does(program: &str, args: &[&str]) -> bool {
    Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
}

/// A file system of its own in memory; gone when dropped.
pub struct Disk(PathBuf);

impl Disk {
    /// Over the folder `at`; `None` where this user may not mount.
    pub fn mount(at: &Path) -> Option<Disk> {
        let path = at.to_str().expect("utf-8");
        does("mount", &["-t", "tmpfs", "-o", "size=512m,mode=0700", "none", path]).then(|| Disk(at.to_owned()))
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Fills it up to `left` bytes.
    pub fn fill(&self, left: u64) {
        let path = std::ffi::CString::new(self.0.to_str().expect("utf-8")).expect("plain");
        // SAFETY: an all-zero `statvfs` is one, and the call fills it in.
        let free = unsafe {
            let mut of: libc::statvfs = std::mem::zeroed();
            assert_eq!(libc::statvfs(path.as_ptr(), &mut of), 0);
            of.f_bavail * of.f_frsize
        };
        let file = File::create(self.filler()).expect("a filler");
        let most = free.saturating_sub(left) as libc::off_t;
        // SAFETY: a plain system call on our own descriptor. What a writer takes meanwhile is no harm.
        let _ = unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, most) };
    }

    pub fn empty(&self) {
        std::fs::remove_file(self.filler()).unwrap_or_default();
    }

    pub fn read_only(&self, on: bool) -> bool {
        let how = if on { "remount,ro" } else { "remount,rw" };
        does("mount", &["-o", how, self.0.to_str().expect("utf-8")])
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Lazily: what still has a file open there ends later.
        does("umount", &["-l", self.0.to_str().expect("utf-8")]);
    }
}

/// A control group with a limit on memory; gone when dropped.
pub struct Group {
    dir: PathBuf,
    file: &'static str,
}

impl Group {
    /// Under this process's own, of either version; `None` where that is not ours to make.
    pub fn make() -> Option<Group> {
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let name = format!("paring-soak-{}", std::process::id());
        let at = |root: &str, path: &str| Path::new(root).join(path.trim_start_matches('/')).join(&name);
        for line in own.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let (dir, file) = match controllers {
                "memory" => (at("/sys/fs/cgroup/memory", path), "memory.limit_in_bytes"),
                "" => (at("/sys/fs/cgroup", path), "memory.max"),
                _ => continue,
            };
            if std::fs::create_dir(&dir).is_ok() {
                if dir.join(file).exists() {
                    return Some(Group { dir, file });
                }
                std::fs::remove_dir(&dir).unwrap_or_default();
            }
        }
        None
    }

    /// Also while something runs in it; `false` when it holds more than that already.
    pub fn limit(&self, bytes: u64) -> bool {
        std::fs::write(self.dir.join(self.file), bytes.to_string()).is_ok()
    }

    /// Lets `command` start in it.
    pub fn hold(&self, command: &mut Command) {
        let mut procs = File::options().write(true).open(self.dir.join("cgroup.procs")).expect("the group's list");
        // SAFETY: one write to a descriptor that is open already is async-signal-safe.
        unsafe { command.pre_exec(move || procs.write_all(b"0")) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..50 {
            if std::fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// A wall clock that is set from here, by way of libfaketime.
pub struct Clock {
    library: PathBuf,
    file: PathBuf,
}

impl Clock {
    /// `None` where the library is not installed (`SOAK_FAKETIME` says where it is otherwise).
    pub fn within(dir: &Path) -> Option<Clock> {
        let usual = ["x86_64-linux-gnu", "aarch64-linux-gnu"]
            .map(|a| PathBuf::from(format!("/usr/lib/{a}/faketime/libfaketimeMT.so.1")));
        let library =
            std::env::var_os("SOAK_FAKETIME").map(PathBuf::from).into_iter().chain(usual).find(|p| p.exists())?;
        let clock = Clock { library, file: dir.join("clock") };
        clock.set("+0");
        Some(clock)
    }

    /// As libfaketime takes it: `+3d`, `-10y`.
    pub fn set(&self, offset: &str) {
        let new = self.file.with_extension("new");
        std::fs::write(&new, offset).and_then(|()| std::fs::rename(&new, &self.file)).expect("set");
    }

    pub fn hold(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("FAKETIME_TIMESTAMP_FILE", &self.file);
        // What waits for a while waits for that while: only the time of day moves.
        command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
}
