//! The host's log file: bounded, and never in the way of the session that it tells about.
//!
//! Not here: what is logged, and the lines that a screen shows (`Feed::Log`). Invariants: the newest lines are in the log,
//! older ones in one file beside it, and neither grows past its bound; a line is cut rather than let in whole at any
//! length; writing neither fails nor panics, and what finds no room on the disk is counted and told when there is.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Bytes of the log before it is set aside: some ten thousand lines, and quickly searched.
const MAX_LOG: u64 = 4 << 20;
/// Bytes of one line; what says more is not read by anybody.
const MAX_LINE: usize = 8 << 10;

/// Where a host's log lines go.
pub struct Log {
    file: File,
    /// The file's name where it is one of ours: only then is it set aside.
    path: Option<PathBuf>,
    /// Standard error goes where the log goes.
    stdio: bool,
    most: u64,
    /// Lines that could not be written.
    lost: u64,
}

impl Log {
    /// The log of a host whose standard error is the file at `path`; where it is another (a terminal), just that.
    pub fn of_stderr(path: &Path) -> io::Result<Log> {
        let file = File::from(io::stderr().as_fd().try_clone_to_owned()?);
        let same = |a: std::fs::Metadata, b: std::fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        let ours = path.metadata().and_then(|p| Ok(same(p, file.metadata()?))).unwrap_or(false);
        Ok(Log { file, path: ours.then(|| path.to_owned()), stdio: ours, most: MAX_LOG, lost: 0 })
    }

    /// Makes room for `more` bytes.
    fn make_room(&mut self, more: u64) -> io::Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        if self.file.metadata()?.len() + more <= self.most {
            return Ok(());
        }
        match set_aside(path) {
            Ok(fresh) => {
                if self.stdio {
                    // What a panic or a library prints, too.
                    // SAFETY: plain system call on a descriptor that is open; a failure leaves the old one.
                    unsafe { libc::dup2(fresh.as_raw_fd(), libc::STDERR_FILENO) };
                }
                self.file = fresh;
                Ok(())
            }
            // Bounded before complete.
            Err(_) => self.file.set_len(0),
        }
    }

    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        self.make_room(line.len() as u64)?;
        if self.lost > 0 {
            writeln!(self.file, "({} lines are missing here: they could not be written)", self.lost)?;
            self.lost = 0;
        }
        self.file.write_all(line)
    }
}

/// Renames the log, over the one that was set aside before, and begins another.
fn set_aside(path: &Path) -> io::Result<File> {
    let mut older = path.as_os_str().to_owned();
    older.push(".1");
    std::fs::rename(path, older)?;
    File::options().create(true).append(true).mode(0o600).open(path)
}

impl Write for Log {
    /// Takes a whole line, as the subscriber hands it over.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = match line.len() > MAX_LINE {
            true => self.line(&[&line[..MAX_LINE], "…\n".as_bytes()].concat()),
            false => self.line(line),
        };
        if written.is_err() {
            self.lost += 1;
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(path: &Path, most: u64) -> Log {
        let file = File::options().create(true).append(true).open(path).unwrap();
        Log { file, path: Some(path.to_owned()), stdio: false, most, lost: 0 }
    }

    #[test]
    fn a_flood_of_lines_leaves_the_newest_in_two_bounded_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.log");
        let mut log = log(&path, 10_000);
        for i in 0..5_000 {
            log.write_all(format!("line {i}\n").as_bytes()).unwrap();
        }
        log.write_all("long ".repeat(100_000).as_bytes()).unwrap();
        log.write_all(b"last\n").unwrap();
        let newest = std::fs::read_to_string(&path).unwrap();
        let older = std::fs::read_to_string(dir.path().join("host.log.1")).unwrap();
        assert!(newest.len() <= 10_000 && older.len() <= 10_000, "{} {}", newest.len(), older.len());
        assert!(newest.ends_with("…\nlast\n") && format!("{older}{newest}").contains("line 4999\n"));
        assert_eq!(dir.path().read_dir().unwrap().count(), 2);
    }

    #[test]
    fn what_cannot_be_written_is_counted_and_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("host.log");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut log = Log { path: None, file: full, ..log(&path, 10_000) };
        log.write_all(b"a\n").unwrap();
        log.write_all(b"b\n").unwrap();
        log.file = File::create(&path).unwrap();
        log.write_all(b"c\n").unwrap();
        let told = std::fs::read_to_string(&path).unwrap();
        assert_eq!(told, "(2 lines are missing here: they could not be written)\nc\n");
    }
}
