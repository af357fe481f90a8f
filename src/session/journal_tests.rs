//! The journal under hostile conditions: cut at any byte, full disk, two hosts, newer version.

use super::*;
use crate::session::State;
use proptest::prelude::*;
use std::sync::OnceLock;

fn note(i: usize) -> Event {
    // Long texts fill overflow pages, which a cut may hit apart from the rows that point to them.
    Event::Noted { round: 1, text: format!("{i} ").repeat(1 + (i * 37) % 900) }
}

fn fresh() -> (tempfile::TempDir, Journal) {
    let dir = tempfile::tempdir().expect("temp dir");
    let journal = Journal::open(dir.path()).expect("opens").journal;
    (dir, journal)
}

fn records(dir: &Path) -> Vec<Record> {
    Journal::open(dir).expect("opens").records
}

/// A journal with a checkpointed part and a write-ahead log, its files' bytes, and its history.
struct Sample {
    db: Vec<u8>,
    wal: Vec<u8>,
    history: Vec<Record>,
}

fn sample() -> &'static Sample {
    static SAMPLE: OnceLock<Sample> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let (_dir, mut j) = fresh();
        let mut history = Vec::new();
        for i in 0..120 {
            if i == 60 {
                j.conn.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).expect("checkpoint");
            }
            history.extend(j.append(vec![note(i), note(i + 1000)], i as i64).expect("appended"));
        }
        let db = std::fs::read(&j.path).expect("db");
        let wal = std::fs::read(format!("{}-wal", j.path.display())).expect("wal");
        assert!(db.len() > 50_000 && wal.len() > 50_000, "both parts are there");
        Sample { db, wal, history }
    })
}

/// A session's folder with these files.
fn folder(db: &[u8], wal: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temp dir");
    let path = file(dir.path(), 1);
    std::fs::write(&path, db).expect("written");
    std::fs::write(beside(&path, "-wal"), wal).expect("written");
    dir
}

/// What a host finds after the files were cut; a `Damaged` error stands for nothing found.
fn after_cut(db: &[u8], wal: &[u8]) -> Result<Vec<Record>, JournalError> {
    let dir = folder(db, wal);
    let mut opened = Journal::open(dir.path())?;
    let mut found = opened.records;
    // Life goes on from there, and the next start sees the same.
    let more = opened.journal.append(vec![note(5)], 9).expect("still writable");
    drop(opened.journal);
    let again = records(dir.path());
    assert_eq!(again.len(), found.len() + 1);
    assert_eq!(again.last(), more.first());
    assert_eq!(again[..found.len()], found[..]);
    found.shrink_to_fit();
    Ok(found)
}

fn is_prefix(found: &[Record]) -> bool {
    sample().history.get(..found.len()) == Some(found)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_cut_log_leaves_whole_transactions(cut in 0usize..1_000_000) {
        let s = sample();
        let cut = cut % (s.wal.len() + 1);
        let found = after_cut(&s.db, &s.wal[..cut]).expect("a cut log is no damage");
        prop_assert!(is_prefix(&found));
        prop_assert!(found.len() >= 120 && found.len().is_multiple_of(2), "{} events", found.len());
        prop_assert_eq!(State::fold(&found).seq, found.len() as u64);
    }

    #[test]
    fn a_cut_database_leaves_a_prefix_or_says_so(cut in 0usize..1_000_000, keep_log: bool) {
        let s = sample();
        let cut = cut % (s.db.len() + 1);
        let wal: &[u8] = if keep_log { &s.wal } else { &[] };
        match after_cut(&s.db[..cut], wal) {
            Ok(found) => prop_assert!(is_prefix(&found)),
            Err(JournalError::Damaged { .. }) => prop_assert!(cut < s.db.len()),
            Err(e) => prop_assert!(false, "{e}"),
        }
    }

    #[test]
    fn a_flipped_byte_never_changes_history(at in 0usize..1_000_000, bit in 0u8..8) {
        let s = sample();
        let mut db = s.db.clone();
        let at = at % db.len();
        db[at] ^= 1 << bit;
        match after_cut(&db, &[]) {
            Ok(found) => prop_assert!(is_prefix(&found)),
            Err(JournalError::Damaged { .. } | JournalError::Newer { .. } | JournalError::Other { .. }) => {}
            Err(e) => prop_assert!(false, "{e}"),
        }
    }
}

/// SQLite reads a log up to its first bad frame, and takes the rest for never written.
#[test]
fn a_tail_that_is_lost_behind_a_bad_place_of_the_log_is_told_of_and_kept() {
    let s = sample();
    let mut bytes = s.wal.clone();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    let dir = folder(&s.db, &bytes);
    let opened = Journal::open(dir.path()).expect("opens");
    assert!(is_prefix(&opened.records) && opened.records.len() < s.history.len());
    let told = opened.recovered.expect("told of");
    assert!(told.contains("log") && told.contains(&format!("first {} events", opened.records.len())), "{told}");
    drop(opened.journal);
    assert_eq!(
        std::fs::read(beside(&file(dir.path(), 1), "-wal")).expect("left"),
        bytes,
        "what was damaged stays beside it"
    );
    // Told of once; an undamaged log, whole or cut, is nothing to tell.
    assert_eq!(Journal::open(dir.path()).expect("opens").recovered, None);
    for cut in [s.wal.len(), s.wal.len() / 2, 40, 0] {
        let dir = folder(&s.db, &s.wal[..cut]);
        assert_eq!(Journal::open(dir.path()).expect("opens").recovered, None, "cut at {cut}");
    }
    // A log whose head is damaged is not read at all.
    let mut bytes = s.wal.clone();
    bytes[20] ^= 1;
    let dir = folder(&s.db, &bytes);
    assert!(Journal::open(dir.path()).expect("opens").recovered.is_some());
}

/// Frames of an earlier log lie behind those of the present one, and a transaction that did not end behind the last.
#[test]
fn what_is_left_of_older_logs_is_no_damage() {
    let (dir, mut j) = fresh();
    for i in 0..40 {
        j.append(vec![note(900 + i)], 0).expect("appended");
    }
    j.conn.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(())).expect("checkpoint");
    j.append(vec![note(1)], 0).expect("appended");
    j.limit_pages(40);
    let big = Event::Noted { round: 1, text: "x".repeat(3_000_000) };
    assert!(matches!(j.append(vec![big], 0), Err(JournalError::Full { .. })));
    j.limit_pages(1_000_000);
    j.append(vec![note(2)], 0).expect("appended");
    let copy = tempfile::tempdir().expect("temp dir");
    for name in ["journal-1.db", "journal-1.db-wal"] {
        std::fs::copy(dir.path().join(name), copy.path().join(name)).expect("as a kill leaves it");
    }
    let opened = Journal::open(copy.path()).expect("opens");
    assert_eq!((opened.recovered, opened.records.len()), (None, 42));
}

#[test]
fn links_and_pipes_in_the_folder_are_neither_followed_nor_waited_for() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().expect("temp dir");
    let mine = dir.path().join("mine");
    std::fs::write(&mine, "mine").expect("written");
    let pipe = |path: &Path| {
        let name = std::ffi::CString::new(path.to_str().expect("utf-8")).expect("plain");
        // SAFETY: a plain system call with a terminated string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    };
    let lock = |path: &Path| path.join("lock");
    let make: [&dyn Fn(&Path); 6] = [
        &|d| pipe(&lock(d)),
        &|d| symlink(&mine, lock(d)).expect("linked"),
        &|d| std::fs::hard_link(&mine, lock(d)).expect("linked"),
        &|d| pipe(&file(d, 1)),
        &|d| symlink(&mine, file(d, 1)).expect("linked"),
        &|d| symlink(&mine, beside(&file(d, 1), "-wal")).expect("linked"),
    ];
    for (i, make) in make.iter().enumerate() {
        let session = dir.path().join(format!("session{i}"));
        std::fs::create_dir(&session).expect("made");
        make(&session);
        let error = Journal::open(&session).expect_err("not ours").to_string();
        assert!(error.contains(&format!("session{i}")) && error.contains("hint:"), "{i}: {error}");
        // Whoever only looks does not hang either.
        assert!(!is_locked(&session), "{i}");
        let _ = lock_holder(&session);
        drop(Journal::read(&session));
        assert_eq!(std::fs::read(&mine).expect("there"), b"mine", "{i}");
    }
}

/// Whoever looks whether a session is locked holds its lock for that moment.
#[test]
fn looking_at_a_lock_keeps_nobody_from_taking_it() {
    let dir = tempfile::tempdir().expect("temp dir");
    drop(Journal::open(dir.path()).expect("opens"));
    let looks = File::open(dir.path().join("lock")).expect("opens");
    assert!(private::try_lock(&looks, libc::LOCK_SH));
    std::thread::scope(|s| {
        s.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(40));
            drop(looks);
        });
        assert!(Journal::open(dir.path()).is_ok());
    });
}

#[test]
fn what_was_appended_comes_back() {
    let (dir, mut j) = fresh();
    let mut all = j.append(vec![note(1), note(2)], 7).expect("appended");
    all.extend(j.append(vec![note(3)], 8).expect("appended"));
    assert_eq!(all.iter().map(|r| (r.seq, r.at_ms)).collect::<Vec<_>>(), [(1, 7), (2, 7), (3, 8)]);
    assert_eq!(Journal::read(dir.path()).expect("read beside the writer"), all);
    drop(j);
    assert_eq!(records(dir.path()), all);
}

#[test]
fn a_dead_hosts_log_is_read_to_its_end() {
    let s = sample();
    let dir = folder(&s.db, &s.wal);
    // The index that a killed host leaves is not to be trusted.
    std::fs::write(beside(&file(dir.path(), 1), "-shm"), vec![0; 32 << 10]).expect("written");
    assert_eq!(Journal::read(dir.path()).expect("readable").len(), s.history.len());
}

/// Parsing and printing a number need not be exact inverses; the chain must hold over any number of restarts.
#[test]
fn numbers_survive_restarts() {
    let dir = tempfile::tempdir().expect("temp dir");
    let mut x = 0.123_456_789_012_345_67_f64;
    let mut all = Vec::new();
    for restart in 0..5 {
        let mut opened = Journal::open(dir.path()).expect("opens");
        assert_eq!(opened.recovered, None, "restart {restart}");
        assert_eq!(opened.records, all);
        for _ in 0..200 {
            x = (x * 3.999).mul_add(-x, x * 3.999);
            let event = Event::Sensed { base_loss: x, base_score: x * 1e-7, curves: Vec::new() };
            all.extend(opened.journal.append(vec![event], 0).expect("appended"));
        }
    }
    assert_eq!(records(dir.path()), all);
}

#[test]
fn two_hosts_on_one_session_is_an_error() {
    let dir = tempfile::tempdir().expect("temp dir");
    let first = Journal::open(dir.path()).expect("opens");
    assert!(is_locked(dir.path()));
    assert!(matches!(Journal::open(dir.path()), Err(JournalError::Locked { .. })));
    drop(first);
    assert!(!is_locked(dir.path()));
    assert!(Journal::open(dir.path()).is_ok());
}

#[test]
fn a_newer_journal_is_left_alone() {
    let (dir, mut j) = fresh();
    j.append(vec![note(1)], 0).expect("appended");
    j.conn.execute_batch("PRAGMA user_version=99").expect("set");
    drop(j);
    let error = Journal::open(dir.path()).expect_err("newer").to_string();
    assert!(error.contains("schema 99") && error.contains("hint:"), "{error}");
    assert!(matches!(Journal::read(dir.path()), Err(JournalError::Newer { found: 99, .. })));
}

#[test]
fn a_full_disk_loses_nothing_and_can_be_overcome() {
    let (dir, mut j) = fresh();
    let mut all = j.append(vec![note(1)], 0).expect("appended");
    j.limit_pages(6);
    let big = Event::Noted { round: 1, text: "x".repeat(100_000) };
    let error = j.append(vec![note(2), big.clone()], 1).expect_err("full");
    assert!(matches!(error, JournalError::Full { .. }), "{error}");
    j.limit_pages(1_000_000);
    all.extend(j.append(vec![big], 2).expect("room again"));
    assert_eq!(all.iter().map(|r| r.seq).collect::<Vec<_>>(), [1, 2]);
    drop(j);
    assert_eq!(records(dir.path()), all);
}

#[test]
fn values_that_json_cannot_hold_are_refused() {
    let (dir, mut j) = fresh();
    let bad = Event::Sensed { base_loss: f64::NAN, base_score: 0.0, curves: Vec::new() };
    assert!(matches!(j.append(vec![note(1), bad], 0), Err(JournalError::Unstorable { .. })));
    drop(j);
    assert_eq!(records(dir.path()), []);
}

#[test]
fn an_impossible_folder_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().expect("temp dir");
    let inside_file = dir.path().join("file");
    std::fs::write(&inside_file, "").expect("written");
    let error = Journal::open(&inside_file.join("session")).expect_err("not a folder").to_string();
    assert!(error.contains("file/session") && error.contains("hint:"), "{error}");
}

/// Modes of `path` for others than its owner.
fn open_to_others(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata(path).expect("there").mode() & 0o077
}

#[test]
fn a_session_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let root = tempfile::tempdir().expect("temp dir");
    let dir = root.path().join("sessions").join("s");
    let all = |dir: &Path| -> Vec<PathBuf> {
        std::fs::read_dir(dir).expect("listed").map(|e| e.expect("entry").path()).chain([dir.to_owned()]).collect()
    };
    // As a careless earlier version left it.
    std::fs::create_dir_all(&dir).expect("made");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).expect("set");
    for (name, text) in [("lock", "1"), ("open.json", "{}"), ("host.log", "")] {
        std::fs::write(dir.join(name), text).expect("written");
        std::fs::set_permissions(dir.join(name), std::fs::Permissions::from_mode(0o644)).expect("set");
    }
    let mut opened = Journal::open(&dir).expect("opens");
    opened.journal.append(vec![note(1)], 0).expect("appended");
    let paths = all(&dir);
    assert!(paths.iter().any(|p| p.to_string_lossy().ends_with("-wal")), "{paths:?}");
    for path in paths {
        assert_eq!(open_to_others(&path), 0, "{}", path.display());
    }
    drop(opened);

    // Of a damaged journal the new generation is as private.
    let db = dir.join("journal-1.db");
    let bytes = std::fs::read(&db).expect("readable");
    std::fs::write(&db, &bytes[..bytes.len() / 2]).expect("cut");
    drop(Journal::open(&dir));
    for path in all(&dir) {
        assert_eq!(open_to_others(&path), 0, "{}", path.display());
    }
}

/// An empty journal is that of a host that died at once, unless something beside it says otherwise.
#[test]
fn a_journal_that_was_emptied_is_no_new_session() {
    for (left, refused) in [(None, false), (Some("baseline.bits"), true), (Some("artifacts"), true)] {
        for gone in [false, true] {
            let dir = tempfile::tempdir().expect("temp dir");
            drop(Journal::open(dir.path()).expect("opens"));
            for end in ["-wal", "-shm"] {
                drop(std::fs::remove_file(beside(&file(dir.path(), 1), end)));
            }
            if gone {
                std::fs::remove_file(file(dir.path(), 1)).expect("removed");
            } else {
                std::fs::write(file(dir.path(), 1), "").expect("emptied");
            }
            match left {
                Some("artifacts") => std::fs::create_dir(dir.path().join("artifacts")).expect("made"),
                Some(file) => std::fs::write(dir.path().join(file), "x").expect("written"),
                None => {}
            }
            match Journal::open(dir.path()) {
                Ok(opened) => assert!(!refused && opened.records.is_empty(), "{left:?}"),
                Err(e) => assert!(refused && e.to_string().contains("restore a copy"), "{left:?}: {e}"),
            }
        }
    }
    let dir = tempfile::tempdir().expect("temp dir");
    let s = sample();
    std::fs::write(beside(&file(dir.path(), 1), "-wal"), &s.wal).expect("written");
    assert!(matches!(Journal::open(dir.path()), Err(JournalError::Damaged { .. })), "a log without its journal");
}
