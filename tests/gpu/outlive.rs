//! Sessions that outlive their GPU: whatever fails in the middle of a round is told on the screen, what was approved stays
//! approved, and the round is run by the next host that finds a device.

use crate::device::libraries;
use crate::pty::{Home, LONG, Term, review};
use crate::small;
use paring::session::{Journal, Phase, Place, Standing, State};

fn read(place: &Place) -> State {
    State::fold(&Journal::read(&place.dir).expect("the journal"))
}

fn approved(state: &State) -> usize {
    state.plan().iter().filter(|(_, p)| p.standing() == Standing::Approved).count()
}

/// A fault, and a word of what the screen says of it.
const FAULTS: [(&str, &str); 5] = [
    ("illegal@300", "illegal memory access"),
    ("launch@300", "launch failure"),
    ("ecc@300", "ECC"),
    ("lost@300", "the GPU is lost"),
    ("oom-from@20", "memory"),
];

#[test]
fn what_was_approved_outlives_every_fault() {
    let mut home = Home::new(&[]);
    let misuse = home.path("misuse");
    home.set("LD_LIBRARY_PATH", libraries().to_str().unwrap());
    home.set("SIMDEVICE_KERNELS", "plain");
    home.set("SIMDEVICE_LOG", misuse.to_str().unwrap());
    let model = home.path("model.safetensors");
    small::model(&model, 3);
    let model = model.display().to_string();
    let args = ["open", &model, "--data", "synthetic:eval", "--calib", "synthetic:calib", "--name", "k"];
    let rest =
        ["--limit", "32", "--calib-limit", "16", "--seed", "1", "--budget", "macs=0.7,drop=100", "--device", "cuda:0"];
    let args: Vec<&str> = args.into_iter().chain(rest).collect();
    let place = Place::at(&home.path("home").join("sessions").join("k"));

    let mut t = Term::start(&home, &args, 120, 40);
    t.wait_for("proposals", LONG, |s| review(s).is_some_and(|(_, all)| all > 0) && !s.contains("interrupts"));
    t.press("Y");
    t.wait_for("approval", LONG, |s| review(s).is_some_and(|(done, all)| done == all));
    t.stop();
    let promised = approved(&read(&place));
    assert!(promised > 0);

    for (fault, words) in FAULTS {
        home.set("SIMDEVICE_FAULT", fault);
        let mut t = Term::start(&home, &["attach", "k"], 120, 40);
        t.wait_for("the session", LONG, |s| review(s).is_some());
        t.press("R");
        let told = t.wait_for(fault, LONG, |s| s.contains("failed"));
        let whole = told.split_whitespace().collect::<Vec<_>>().join(" ");
        let event = home.events_of("k", "failed").pop().unwrap_or_default().to_string();
        assert!(event.contains(words) && event.contains("hint"), "{fault}: {event}\n{whole}");
        // It goes on: a word of the engineer's is taken and durable.
        t.press("m");
        t.press(fault);
        t.press("\r");
        t.wait_for("the note", LONG, |_| read(&place).notes.iter().any(|(_, text)| text.contains(fault)));
        t.stop();
        let now = read(&place);
        assert_eq!((now.phase, approved(&now)), (Phase::Review, promised), "{fault}");
    }

    // A machine without a device says so and touches nothing.
    home.set("SIMDEVICE_FAULT", "no-device");
    let mut t = Term::start(&home, &["attach", "k"], 120, 40);
    let code = t.end();
    let said = t.wait_for("the reason", LONG, |s| s.contains("hint:"));
    assert!(code != 0 && said.contains("no CUDA-capable device"), "{code}: {said}");
    assert_eq!(approved(&read(&place)), promised);

    home.set("SIMDEVICE_FAULT", "");
    let mut t = Term::start(&home, &["attach", "k"], 120, 40);
    t.wait_for("the session", LONG, |s| review(s).is_some());
    t.press("R");
    t.wait_for("the verdict", LONG, |s| s.contains("verdict") && s.contains("accepts"));
    t.stop();
    assert!(!misuse.exists(), "{}", std::fs::read_to_string(&misuse).unwrap_or_default());
}
