//! The journal: the session's events in SQLite, durable one transaction at a time.
//!
//! Invariants: one writer (a lock on the session's folder); `append` returns only after the events are on disk (WAL,
//! `synchronous=FULL`) and writes all of them or none; every record carries a chained hash, so that what is read is a
//! prefix of what was written. A damaged file is never repaired in place: the readable prefix goes to a new generation
//! (`journal-2.db`), the damaged one stays beside it.

use super::place::{ARTIFACTS, BASELINE};
use super::{Event, Record, Seq, private, wal};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use std::fs::File;
use std::io::{Read as _, Write};
use std::path::{Path, PathBuf};

/// Version of the tables and of the events' JSON; see [`migrate`].
pub const SCHEMA: i64 = 2;

/// The file whose lock says that a host owns the session.
const LOCK: &str = "lock";

/// Why the journal could not be opened or written. Nothing that was appended before is lost by any of these.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("session folder `{dir}` is in use by another host; hint: `paring attach {name}`")]
    Locked { dir: String, name: String },
    #[error(
        "journal `{path}` has schema {found}, this paring knows {SCHEMA}; hint: it was written by a newer version, update paring"
    )]
    Newer { path: String, found: i64 },
    #[error("cannot write in `{path}`: {message}; hint: check its permissions, or set PARING_HOME to another folder")]
    ReadOnly { path: String, message: String },
    #[error("`{path}` is not used: {message}")]
    NotOurs { path: String, message: String },
    #[error(
        "no space left for `{path}`; hint: free some and repeat the last command, everything before it is safe on disk"
    )]
    Full { path: String },
    #[error(
        "journal `{path}` is damaged at its start: {message}; hint: the file was left as it is, restore a copy of it"
    )]
    Damaged { path: String, message: String },
    #[error("event {seq} of `{path}` is not understood: {message}; hint: it was written by another version of paring")]
    Unknown { path: String, seq: Seq, message: String },
    #[error(
        "the result holds a value that cannot be stored ({message}); hint: are there NaN or infinite values in the model?"
    )]
    Unstorable { message: String },
    #[error("journal `{path}`: {message}; hint: see the session's log file")]
    Other { path: String, message: String },
}

/// The open journal of one session; holds the session's lock.
#[derive(Debug)]
pub struct Journal {
    conn: Connection,
    path: PathBuf,
    next: Seq,
    chain: [u8; 32],
    _lock: File,
}

/// What opening found.
#[derive(Debug)]
pub struct Opened {
    pub journal: Journal,
    pub records: Vec<Record>,
    /// The journal was damaged; what was done about it, in words.
    pub recovered: Option<String>,
}

impl Journal {
    /// Opens the journal in `dir`, making both if there are none, and reads every record.
    pub fn open(dir: &Path) -> Result<Opened, JournalError> {
        private::make_dir(dir).map_err(|e| write_error(dir, &e))?;
        private::mend(dir).map_err(|e| write_error(dir, &e))?;
        let lock = lock(dir)?;
        sweep(dir);
        let generation = newest(dir).unwrap_or(1);
        let path = file(dir, generation);
        for p in [path.clone(), beside(&path, "-wal"), beside(&path, "-shm")] {
            private::check(&p).map_err(|e| not_ours(&p, &e))?;
        }
        if let Some(left) = emptied(dir, &path) {
            let message = format!("it is empty or gone, and `{left}` of the same session is there");
            return Err(JournalError::Damaged { path: show(&path), message });
        }
        // SQLite drops what follows a damaged place of the log without a word, and with the next write for good.
        let first = match wal::lost(&beside(&path, "-wal")) {
            Some(lost) => Loaded::Damaged(lost.to_string()),
            None => load(&path)?,
        };
        let (conn, read, path, damage) = match first {
            Loaded::Whole(conn, read) => (conn, read, path, None),
            Loaded::Damaged(message) => {
                let whole = salvage(&path)?;
                let fresh = file(dir, generation + 1);
                rewrite(&fresh, &whole)?;
                let note = format!(
                    "`{}` is damaged ({message}); its first {} events were kept in `{}`",
                    path.display(),
                    whole.records.len(),
                    fresh.display()
                );
                match load(&fresh)? {
                    Loaded::Whole(conn, read) => (conn, read, fresh, Some(note)),
                    Loaded::Damaged(message) => return Err(JournalError::Damaged { path: show(&fresh), message }),
                }
            }
        };
        let (records, chain) = (read.records, read.chain);
        let next = records.last().map_or(1, |r| r.seq + 1);
        let journal = Journal { conn, path, next, chain, _lock: lock };
        Ok(Opened { journal, records, recovered: damage })
    }

    /// Reads the records in `dir` without the lock, while a host may be writing.
    pub fn read(dir: &Path) -> Result<Vec<Record>, JournalError> {
        let Some(generation) = newest(dir) else {
            return Ok(Vec::new());
        };
        let path = file(dir, generation);
        private::check(&path).map_err(|e| not_ours(&path, &e))?;
        // After a crash the log must be recovered before it can be read, which a read-only connection cannot do; only
        // from a read-only medium, where no host can have written, is the file taken as it is.
        let conn = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE)
            .and_then(|c| {
                c.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
                c.busy_timeout(std::time::Duration::from_secs(5))?;
                c.execute_batch("PRAGMA query_only=ON")?;
                c.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(()))?;
                Ok(c)
            })
            .or_else(|e| match e.sqlite_error_code() {
                Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
                    let uri = format!("file:{}?immutable=1", percent(&path));
                    Connection::open_with_flags(uri, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI)
                }
                _ => Err(e),
            })
            .map_err(|e| sql(&path, &e))?;
        check_version(&conn, &path)?;
        let read = rows(&conn, &path)?;
        match read.stop {
            Some(message) if read.records.is_empty() => Err(JournalError::Damaged { path: show(&path), message }),
            _ => Ok(read.records),
        }
    }

    /// Makes `events` durable, all or none, and returns their records.
    pub fn append(&mut self, events: Vec<Event>, at_ms: i64) -> Result<Vec<Record>, JournalError> {
        let mut bodies = Vec::with_capacity(events.len());
        let mut records = Vec::with_capacity(events.len());
        for (event, seq) in events.iter().zip(self.next..) {
            let body = encode(event)?;
            // JSON has no NaN: what would not come back must not go in. And what is applied now is what a replay will
            // read, to the last bit of every number.
            let event = serde_json::from_str::<Event>(&body)
                .map_err(|e| JournalError::Unstorable { message: e.to_string() })?;
            records.push(Record { seq, at_ms, event });
            bodies.push(body);
        }
        let before = self.chain;
        let write = |conn: &mut Connection| -> rusqlite::Result<[u8; 32]> {
            let tx = conn.transaction()?;
            let chain = insert(&tx, &records, &bodies, before)?;
            tx.commit()?;
            Ok(chain)
        };
        self.chain = write(&mut self.conn).map_err(|e| sql(&self.path, &e))?;
        self.next += records.len() as u64;
        Ok(records)
    }

    /// The database file in use.
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[cfg(test)]
    pub(crate) fn limit_pages(&self, pages: u32) {
        let set = self.conn.query_row(&format!("PRAGMA max_page_count={pages}"), [], |r| r.get::<_, i64>(0));
        assert!(set.is_ok());
    }
}

enum Loaded {
    Whole(Connection, Read),
    Damaged(String),
}

/// Records as they were read, in order, up to the first that cannot be read or does not continue the chain.
struct Read {
    records: Vec<Record>,
    /// The very text of each, which re-encoding need not give: a number's last bit may differ.
    bodies: Vec<String>,
    /// After the last record.
    chain: [u8; 32],
    /// Why it stopped before the end.
    stop: Option<String>,
}

/// Opens one generation for writing.
fn load(path: &Path) -> Result<Loaded, JournalError> {
    // SQLite would make it readable to all; its log and index take over the mode that they find here.
    private::create(path).map_err(|e| write_error(path, &e))?;
    let attempt = || -> rusqlite::Result<Connection> {
        let conn = Connection::open(path)?;
        conn.busy_timeout(std::time::Duration::from_secs(5))?;
        conn.query_row("PRAGMA journal_mode=WAL", [], |_| Ok(()))?;
        conn.execute_batch("PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=1000;")?;
        Ok(conn)
    };
    let damaged = |e| match e {
        JournalError::Damaged { message, .. } => Ok(Loaded::Damaged(message)),
        other => Err(other),
    };
    let conn = match attempt() {
        Ok(conn) => conn,
        Err(e) => return damaged(sql(path, &e)),
    };
    match check_version(&conn, path) {
        Ok(SCHEMA) => {}
        Ok(found) => migrate(&conn, found).map_err(|e| sql(path, &e))?,
        Err(e) => return damaged(e),
    }
    match rows(&conn, path) {
        Ok(Read { stop: Some(message), .. }) => Ok(Loaded::Damaged(message)),
        Ok(read) => Ok(Loaded::Whole(conn, read)),
        Err(e) => damaged(e),
    }
}

fn check_version(conn: &Connection, path: &Path) -> Result<i64, JournalError> {
    let found: i64 = conn.query_row("PRAGMA user_version", [], |r| r.get(0)).map_err(|e| sql(path, &e))?;
    if found > SCHEMA { Err(JournalError::Newer { path: show(path), found }) } else { Ok(found) }
}

/// Brings an older journal to [`SCHEMA`], one step per version, in one transaction. Version 0 is an empty file. Events of
/// version 1 speak of top-1 where later ones speak of the task's metric; they stay as they were written, as their chain
/// demands, and are understood when they are read ([`Event`]'s aliases). The number keeps older programs from later ones.
fn migrate(conn: &Connection, from: i64) -> rusqlite::Result<()> {
    const STEPS: [&str; SCHEMA as usize] = [
        "CREATE TABLE events (
        seq INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, body TEXT NOT NULL, chain BLOB NOT NULL) STRICT;",
        "",
    ];
    conn.execute_batch("BEGIN IMMEDIATE")?;
    for step in STEPS.iter().skip(usize::try_from(from).unwrap_or(0)) {
        conn.execute_batch(step)?;
    }
    conn.execute_batch(&format!("PRAGMA user_version={SCHEMA}; COMMIT"))
}

fn rows(conn: &Connection, path: &Path) -> Result<Read, JournalError> {
    let mut read = Read { records: Vec::new(), bodies: Vec::new(), chain: [0; 32], stop: None };
    let stopped = |mut read: Read, why: String| {
        read.stop = Some(why);
        Ok(read)
    };
    let mut statement = match conn.prepare("SELECT seq, at_ms, body, chain FROM events ORDER BY seq") {
        Ok(s) => s,
        // A version without its table is what a cut through the schema leaves.
        Err(e) if corrupt(&e) || e.to_string().contains("no such table") => return stopped(read, e.to_string()),
        Err(e) => return Err(sql(path, &e)),
    };
    let mut rows = statement.query([]).map_err(|e| sql(path, &e))?;
    loop {
        let row = rows.next().and_then(|row| {
            row.map(|r| Ok((r.get::<_, i64>(0)?, r.get::<_, i64>(1)?, r.get::<_, String>(2)?, r.get::<_, Vec<u8>>(3)?)))
                .transpose()
        });
        let (seq, at_ms, body, sum) = match row {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(read),
            Err(e) => return stopped(read, e.to_string()),
        };
        let seq = seq as u64;
        let chain = link(&read.chain, seq, at_ms, &body);
        if seq != read.records.len() as u64 + 1 || chain.as_slice() != sum.as_slice() {
            return stopped(read, format!("event {seq} does not continue the one before it"));
        }
        let event = serde_json::from_str(&body).map_err(|e| JournalError::Unknown {
            path: show(path),
            seq,
            message: e.to_string(),
        })?;
        read.records.push(Record { seq, at_ms, event });
        read.bodies.push(body);
        read.chain = chain;
    }
}

/// The readable prefix of a damaged journal, read from a copy so that the file itself stays as it is.
fn salvage(path: &Path) -> Result<Read, JournalError> {
    let damaged = |message: String| JournalError::Damaged { path: show(path), message };
    let copy = path.with_extension("salvage");
    let wal = |p: &Path| beside(p, "-wal");
    let io = |e: std::io::Error| write_error(path, &e);
    std::fs::copy(path, &copy).map_err(io)?;
    if wal(path).exists() {
        std::fs::copy(wal(path), wal(&copy)).map_err(io)?;
    }
    let read = || -> Result<Read, JournalError> {
        let conn = Connection::open(&copy).map_err(|e| damaged(e.to_string()))?;
        // Lets SQLite read a file that is shorter than its header says.
        conn.execute_batch("PRAGMA writable_schema=ON").map_err(|e| damaged(e.to_string()))?;
        check_version(&conn, path)?;
        let read = rows(&conn, path)?;
        if read.records.is_empty() {
            return Err(damaged(read.stop.unwrap_or_else(|| "it holds no events".to_owned())));
        }
        Ok(read)
    };
    let read = read();
    for p in [copy.clone(), wal(&copy), beside(&copy, "-shm")] {
        drop(std::fs::remove_file(p));
    }
    read
}

/// Writes what was read as a new generation: complete under a temporary name, then renamed.
fn rewrite(path: &Path, read: &Read) -> Result<(), JournalError> {
    let tmp = path.with_extension("new");
    drop(std::fs::remove_file(&tmp));
    private::create(&tmp).map_err(|e| write_error(path, &e))?;
    let write = || -> rusqlite::Result<()> {
        let conn = Connection::open(&tmp)?;
        conn.execute_batch("PRAGMA synchronous=FULL")?;
        migrate(&conn, 0)?;
        conn.execute_batch("BEGIN")?;
        insert(&conn, &read.records, &read.bodies, [0; 32])?;
        conn.execute_batch("COMMIT")
    };
    write().map_err(|e| sql(path, &e))?;
    std::fs::rename(&tmp, path).map_err(|e| write_error(path, &e))?;
    if let Some(dir) = path.parent() {
        File::open(dir).and_then(|d| d.sync_all()).map_err(|e| write_error(path, &e))?;
    }
    Ok(())
}

/// Inserts records whose texts are `bodies`, linked to the `chain` of those before; returns it as it is after them.
fn insert(conn: &Connection, records: &[Record], bodies: &[String], mut chain: [u8; 32]) -> rusqlite::Result<[u8; 32]> {
    let mut insert = conn.prepare_cached("INSERT INTO events (seq, at_ms, body, chain) VALUES (?1, ?2, ?3, ?4)")?;
    for (r, body) in records.iter().zip(bodies) {
        chain = link(&chain, r.seq, r.at_ms, body);
        insert.execute(params![r.seq as i64, r.at_ms, body, chain.as_slice()])?;
    }
    Ok(chain)
}

fn encode(event: &Event) -> Result<String, JournalError> {
    serde_json::to_string(event).map_err(|e| JournalError::Unstorable { message: e.to_string() })
}

fn link(chain: &[u8; 32], seq: Seq, at_ms: i64, body: &str) -> [u8; 32] {
    let mut h = blake3::Hasher::new();
    h.update(chain).update(&seq.to_le_bytes()).update(&at_ms.to_le_bytes()).update(body.as_bytes());
    *h.finalize().as_bytes()
}

fn file(dir: &Path, generation: u32) -> PathBuf {
    dir.join(format!("journal-{generation}.db"))
}

/// A file that SQLite keeps beside the database.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn newest(dir: &Path) -> Option<u32> {
    let names = std::fs::read_dir(dir).ok()?.flatten().filter_map(|e| e.file_name().into_string().ok());
    names.filter_map(|n| n.strip_prefix("journal-")?.strip_suffix(".db")?.parse().ok()).max()
}

/// What of a session that was used is left where its journal at `path` is none: to begin another there would lose the
/// name of what can still be restored. SQLite's first write is a whole page, before there is a log, and the folder of
/// artifacts is made by a host that has its journal.
fn emptied(dir: &Path, path: &Path) -> Option<String> {
    let holds = |p: &Path| std::fs::symlink_metadata(p).is_ok_and(|m| m.len() > 0);
    if holds(path) {
        return None;
    }
    let (log, baseline, artifacts) = (beside(path, "-wal"), dir.join(BASELINE), dir.join(ARTIFACTS));
    let left = [&log, &baseline].into_iter().find(|p| holds(p));
    left.or((artifacts.is_dir()).then_some(&artifacts)).map(|p| show(p))
}

/// Removes what a host that died while salvaging left behind.
fn sweep(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("journal-") && (name.contains(".salvage") || name.contains(".new")) {
            drop(std::fs::remove_file(path));
        }
    }
}

/// How long a lock is tried: whoever looks whether it is held ([`is_locked`]) holds it for that moment.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// Takes the session's lock; it goes with the process, however that ends.
fn lock(dir: &Path) -> Result<File, JournalError> {
    let path = dir.join(LOCK);
    let create = |path: &Path| {
        private::create(path).map_err(|e| match e.kind() {
            std::io::ErrorKind::InvalidInput => not_ours(path, &e),
            _ => write_error(dir, &e),
        })
    };
    let taken = |file: &File| {
        (0..LOCK_TRIES).any(|i| {
            if i > 0 {
                std::thread::sleep(LOCK_PAUSE);
            }
            private::try_lock(file, libc::LOCK_EX)
        })
    };
    let locked = || {
        let name = dir.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        JournalError::Locked { dir: show(dir), name }
    };
    // A round more than there can be changes of the file meanwhile: from a stranger's to ours.
    for _ in 0..3 {
        let mut file = create(&path)?;
        if !taken(&file) {
            if !private::held_by_strangers(&file) {
                return Err(locked());
            }
            file = match usurp(dir, &path)? {
                Some(fresh) => fresh,
                None => continue,
            };
        }
        // One that was put in its place meanwhile is the one that counts.
        if !private::is_at(&file, &path) {
            continue;
        }
        // Only for whoever wants to know which process it is; the lock is what counts.
        drop(file.set_len(0).and_then(|()| (&file).write_all(std::process::id().to_string().as_bytes())));
        return Ok(file);
    }
    Err(locked())
}

/// A lock file in place of one that another user holds, who opened it while the folder let them: the new one they cannot
/// open. Whoever makes it holds it before it has the name, one at a time; `None` when there is something new to look at.
fn usurp(dir: &Path, path: &Path) -> Result<Option<File>, JournalError> {
    let next = dir.join("lock.new");
    let fresh = private::create(&next).map_err(|e| write_error(dir, &e))?;
    if !private::try_lock(&fresh, libc::LOCK_EX) || !private::is_at(&fresh, &next) {
        return Ok(None);
    }
    let now = private::create(path).map_err(|e| write_error(dir, &e))?;
    if private::try_lock(&now, libc::LOCK_EX) || !private::held_by_strangers(&now) {
        return Ok(None);
    }
    std::fs::rename(&next, path).map_err(|e| write_error(dir, &e))?;
    Ok(Some(fresh))
}

/// The process that wrote itself into the session's lock file.
pub fn lock_holder(dir: &Path) -> Option<i32> {
    let mut text = String::new();
    private::open(&dir.join(LOCK)).ok()?.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok().filter(|&pid| pid > 1)
}

/// Whether a host holds the lock of the session in `dir`.
pub fn is_locked(dir: &Path) -> bool {
    let Ok(file) = private::open(&dir.join(LOCK)) else { return false };
    // A shared lock taken here is released at once with the descriptor.
    !private::try_lock(&file, libc::LOCK_SH) && !private::held_by_strangers(&file)
}

fn show(path: &Path) -> String {
    path.display().to_string()
}

fn percent(path: &Path) -> String {
    show(path).replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}

fn corrupt(e: &rusqlite::Error) -> bool {
    matches!(e.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
}

fn write_error(path: &Path, e: &std::io::Error) -> JournalError {
    match e.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG) => JournalError::Full { path: show(path) },
        _ => JournalError::ReadOnly { path: show(path), message: e.to_string() },
    }
}

fn not_ours(path: &Path, e: &std::io::Error) -> JournalError {
    JournalError::NotOurs { path: show(path), message: e.to_string() }
}

/// Errors of writing that SQLite reports apart from a full disk: no room for the log's index, or a limit on file sizes.
const NO_ROOM: [i32; 3] =
    [rusqlite::ffi::SQLITE_IOERR_SHMSIZE, rusqlite::ffi::SQLITE_IOERR_WRITE, rusqlite::ffi::SQLITE_IOERR_TRUNCATE];

fn sql(path: &Path, e: &rusqlite::Error) -> JournalError {
    let path = show(path);
    let extended = e.sqlite_error().map_or(0, |e| e.extended_code);
    match e.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => JournalError::Full { path },
        _ if NO_ROOM.contains(&extended) => JournalError::Full { path },
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            JournalError::ReadOnly { path, message: e.to_string() }
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            JournalError::Damaged { path, message: e.to_string() }
        }
        _ => JournalError::Other { path, message: e.to_string() },
    }
}

#[cfg(test)]
#[path = "journal_tests.rs"]
mod tests;
