//! SIGKILL of the host or of the screen at random moments of a session that is driven by keys in a pseudo-terminal: what
//! the screen showed as settled stays settled, and what it shows as applied is on disk.

#[path = "common/pty.rs"]
mod pty;
#[path = "common/small.rs"]
mod small;

use paring::plan::Status;
use paring::session::{Journal, Phase, Place, Standing, State, is_locked, lock_holder};
use pty::{Home, LONG, Term, review};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Duration;

/// `round 2` in the header.
fn round(screen: &str) -> Option<u32> {
    let rest = screen.lines().take(3).find_map(|l| l.split(" round ").nth(1))?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

/// Decisions of this state that the engineer has settled, as the header counts them.
fn settled(state: &State) -> usize {
    let settled = |s: Standing| match s {
        Standing::Free | Standing::Proposed | Standing::Edited | Standing::RolledBack => false,
        Standing::Approved | Standing::InForce { .. } | Standing::Leaving { .. } | Standing::Vetoed => true,
    };
    state.plan().iter().filter(|(_, p)| settled(p.standing())).count()
}

fn read(place: &Place) -> State {
    State::fold(&Journal::read(&place.dir).expect("the journal is readable after any kill"))
}

/// Everything that is applied was compressed, evaluated and stored.
fn check_applied(state: &State, place: &Place) {
    for d in state.decisions.iter().filter(|d| d.status == Status::Applied) {
        let round = state.rounds.iter().find(|r| r.ids.contains(&d.id)).expect("applied by a round");
        let artifact = round.artifact.as_deref().expect("what is applied exists");
        assert!(place.artifacts().join(artifact).is_file(), "{artifact} is on disk");
    }
}

#[test]
fn kills_of_host_and_screen_lose_nothing() {
    let home = Home::new(&[]);
    let model = home.path("model.safetensors");
    small::model(&model, 3);
    let model = model.display().to_string();
    let args = ["open", &model, "--data", "synthetic:eval", "--calib", "synthetic:calib", "--name", "k"];
    let rest = ["--limit", "64", "--threads", "1", "--seed", "1", "--budget", "macs=0.7,drop=100"];
    let args: Vec<&str> = args.into_iter().chain(rest).collect();
    let place = Place::at(&home.path("home").join("sessions").join("k"));

    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let (mut hosts, mut screens, mut promised) = (0, 0, 0);
    for kill in 0..20 {
        let mut t = Term::start(&home, if kill == 0 { &args } else { &["attach", "k"] }, 120, 40);
        t.wait_for("the session", LONG, |s| review(s).is_some_and(|(_, all)| all > 0));
        if kill > 0 {
            let now = read(&place);
            check_applied(&now, &place);
        }
        // The newest promise that the screen made: the round, and how many decisions it showed as settled.
        let mut shown = (0, 0);
        for _ in 0..rng.random_range(1..8) {
            let key = ["a", "j", "a", "j", "A", "]\r", "Y", "R", "R", "C"][rng.random_range(0..10)];
            t.press(key);
            std::thread::sleep(Duration::from_millis(rng.random_range(0..250)));
            let text = t.text();
            if let (Some(round), Some((done, _))) = (round(&text), review(&text)) {
                // A settled decision that is edited is open again: the newest count is the promise.
                shown = (round, done);
            }
        }
        // No key is on its way any more, so what the screen shows now is the least that must come back.
        std::thread::sleep(Duration::from_millis(300));
        let text = t.text();
        if let (Some(round), Some((done, _))) = (round(&text), review(&text)) {
            shown = (round, done);
        }
        if kill % 2 == 0 {
            hosts += 1;
            let pid = lock_holder(&place.dir).expect("a host runs");
            // SAFETY: a plain system call on a process that this test started.
            unsafe { libc::kill(pid, libc::SIGKILL) };
            // The screen says that its host is gone and leaves the terminal by itself.
            assert_eq!(t.end(), 1, "{}", t.text());
            assert!(!is_locked(&place.dir));
        } else {
            screens += 1;
            t.kill();
            assert!(is_locked(&place.dir), "the host outlives its screen");
        }
        let now = read(&place);
        if now.round == shown.0 && now.phase == Phase::Review {
            assert!(settled(&now) >= shown.1, "kill {kill}: {} settled, {} were shown", settled(&now), shown.1);
            promised += shown.1;
        }
        check_applied(&now, &place);
    }
    assert!(promised >= 10, "{hosts} hosts, {screens} screens, {promised} promised");
    println!("{hosts} hosts and {screens} screens killed, {promised} settled decisions were shown and came back");
    // The last word: what comes back is what the journal holds.
    let mut t = Term::start(&home, &["attach", "k"], 120, 40);
    // A notice may stand where the job's line would: the key that interrupts is offered in the footer for as long as anything runs.
    t.wait_for("silence", LONG, |s| {
        review(s).is_some()
            && !s.contains("i interrupt")
            && !matches!(read(&place).phase, Phase::Compress | Phase::Evaluate)
    });
    let (now, text) = (read(&place), t.text());
    assert!(
        !now.rounds.iter().any(|r| r.verdict.is_none()
            && r.ids.iter().any(|id| { now.decision(*id).is_some_and(|d| d.status == Status::Applied) })),
        "applied and never evaluated:\n{text}"
    );
    if now.phase == Phase::Review {
        assert_eq!(review(&text).expect("shown").0, settled(&now), "{text}");
    }
    t.stop();
}
