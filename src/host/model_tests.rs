//! Random sessions: whatever is commanded, by whomever, in whatever order, the plan folded from the journal, the one whose
//! forecast the screen shows and the one that a run builds are the same. Pure: commands are judged, events folded and the
//! fake engine asked, on one thread.

use super::commands::{Then, admit, judge, restore};
use super::engine::Engine;
use super::fake::Fake;
use super::jobs::JobKind;
use crate::config::Settings;
use crate::plan::testing::verdict;
use crate::plan::{Action, Author, Constraint, Decision, DecisionId, Limit, Outcome, Status, Target};
use crate::session::{Command, Event, HostMsg, Offer, PROTOCOL, Phase, Record, Standing, State};
use crate::tui::App;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

const SEQUENCES: u64 = 10_000;
/// Commands a sequence, at most.
const COMMANDS: usize = 40;
const GROUPS: [&str; 3] = ["a", "b", "c"];

type Actions = BTreeMap<Target, Action>;
/// What an undo brings back.
type View = (Vec<Decision>, Vec<Constraint>, crate::plan::Budget);

/// Actions that do something, by target.
fn set(actions: impl IntoIterator<Item = (Target, Action)>) -> Actions {
    actions.into_iter().filter(|(_, a)| *a != Action::Keep).collect()
}

fn of<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> Actions {
    set(decisions.into_iter().map(|d| (d.target.clone(), d.action.clone())))
}

fn view(s: &State) -> View {
    (s.decisions.clone(), s.constraints.clone(), s.budget)
}

/// As if it were journalled next.
fn push(state: &mut State, event: Event) {
    state.apply(&Record { seq: state.seq + 1, at_ms: 0, event });
}

/// A session with everything that can be compared: the host's state, its journal, a fold of that, and a screen.
struct World {
    rng: ChaCha8Rng,
    fake: Fake,
    state: State,
    journal: Vec<String>,
    folded: State,
    screen: App,
    /// What the screen said that a run would build, while one is under way.
    running: Option<Actions>,
    /// What was built, by round.
    made: BTreeMap<u32, Actions>,
    done: Vec<String>,
}

/// Tells what led to a failure.
impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}\n{:#?}", self.done.join("\n"), self.state.decisions);
        }
    }
}

impl World {
    fn new(seed: u64) -> World {
        let fake = Fake { ranked: true.into(), ..Fake::default() };
        let mut screen = App::new(Settings::default(), (80, 24));
        screen.host(HostMsg::Welcome { protocol: PROTOCOL, state: Box::default(), you: 1, pen: Some(1) });
        let mut w = World {
            rng: ChaCha8Rng::seed_from_u64(seed),
            state: State::default(),
            journal: Vec::new(),
            folded: State::default(),
            screen,
            running: None,
            made: BTreeMap::new(),
            done: vec![format!("seed {seed}")],
            fake,
        };
        let card = Box::new(w.fake.card());
        w.commit(vec![
            Event::Opened { card, budget: Default::default() },
            Event::PhaseEntered { round: 1, phase: Phase::Review },
        ]);
        w
    }

    /// Journals, folds, and tells the screen.
    fn commit(&mut self, events: Vec<Event>) {
        for event in events {
            let record = Record { seq: self.state.seq + 1, at_ms: 0, event };
            let line = serde_json::to_string(&record).expect("serializes");
            self.folded.apply(&serde_json::from_str(&line).expect("reads back"));
            self.journal.push(line);
            self.state.apply(&record);
            self.screen.host(HostMsg::Event { record: Box::new(record) });
        }
    }

    fn judged(&self, state: &State, command: Command) -> Result<Vec<Event>, String> {
        let running = self.running.as_ref().map(|_| JobKind::Run.label());
        judge(state, &self.fake, running, command).map(|e| e.events)
    }

    /// The host's way of a command.
    fn command(&mut self, command: Command) {
        self.done.push(format!("{command:?}"));
        let running = self.running.as_ref().map(|_| JobKind::Run.label());
        let before = view(&self.state);
        let effect = match judge(&self.state, &self.fake, running, command.clone()) {
            Ok(effect) => effect,
            Err(words) => {
                assert!(words.contains("hint:"), "{words}");
                self.done.push(format!("  refused: {words}"));
                return;
            }
        };
        let settled = |s: &State| (set(s.recipe_actions()), s.constraints.clone(), s.rounds.clone(), s.budget);
        let stands = (!command.needs_pen()).then(|| settled(&self.state));
        let shown = of(&self.screen.plan(&[]));
        let from = self.state.seq;
        self.commit(effect.events);
        if !matches!(command, Command::Undo | Command::Redo) {
            self.takes_back(from, &before);
        }
        if let Some(stands) = stands {
            assert_eq!(stands, settled(&self.state), "what comes from outside changes nothing that runs");
        }
        if let Command::Veto { ids, .. } = &command {
            assert!(self.state.recipe().iter().all(|d| !ids.contains(&d.id)), "a vetoed decision would run");
        }
        if let Command::VetoAll { targets, .. } = &command {
            assert!(targets.iter().all(|t| self.state.planned(t).frozen.is_some()), "a veto that does not bind");
        }
        match effect.then {
            Then::Start(JobKind::Run) => {
                if self.state.open().is_empty() {
                    assert_eq!(of(self.state.recipe_of(self.state.round)), shown, "R builds what was shown");
                }
                self.running = Some(shown);
            }
            Then::NextRound => {
                let round = self.state.round;
                self.commit(vec![Event::PhaseEntered { round, phase: Phase::Reason }]);
                self.propose();
                self.commit(vec![Event::PhaseEntered { round, phase: Phase::Review }]);
            }
            Then::Restore(seq) => self.goes_back(seq),
            Then::Nothing | Then::Say { .. } => {}
            Then::Start(_)
            | Then::Cancel
            | Then::Llm { .. }
            | Then::Looks(_)
            | Then::Limits(_)
            | Then::Tell(_)
            | Then::Aside(_)
            | Then::Turns(_)
            | Then::Role { .. }
            | Then::Level(_)
            | Then::TakePen
            | Then::Stop => {
                panic!("not commanded here")
            }
        }
    }

    /// The host's way back to the decisions after event `seq`: of its journal.
    fn goes_back(&mut self, seq: u64) {
        let read = |line: &String| serde_json::from_str::<Record>(line).expect("reads back");
        let records: Vec<Record> = self.journal.iter().map(read).take_while(|r| r.seq <= seq).collect();
        let past = State::fold(&records);
        let effect = match restore(&self.state, &self.fake, &past) {
            Ok(effect) => effect,
            Err(words) => {
                assert!(words.contains("hint:"), "{words}");
                return self.done.push(format!("  refused: {words}"));
            }
        };
        let (from, before) = (self.state.seq, view(&self.state));
        self.commit(effect.events);
        self.takes_back(from, &before);
        let unbound = self.state.constraints.is_empty() && past.constraints.is_empty();
        if effect.then == Then::Nothing && unbound {
            assert_eq!(set(self.state.shown_actions()), set(past.shown_actions()), "as it was after {seq}");
            let approved = |s: &State| s.pending().into_iter().map(|d| d.target.clone()).collect::<Vec<_>>();
            let once = |t: &Target| past.planned(t).runs().is_some() || self.state.planned(t).in_force.is_some();
            assert!(approved(&self.state).iter().all(once), "nothing is approved that was not");
        }
    }

    /// Undoing every undoable event since `from` restores `before`.
    fn takes_back(&self, from: u64, before: &View) {
        let acts = self.state.undo.iter().filter(|p| p.seq > from).count();
        if acts == 0 {
            return;
        }
        let mut state = self.state.clone();
        (0..acts).for_each(|_| push(&mut state, Event::Undone));
        assert_eq!(&view(&state), before, "undone exactly");
        (0..acts).for_each(|_| push(&mut state, Event::Redone));
        assert_eq!(view(&state), view(&self.state), "redone exactly");
    }

    fn action(&mut self) -> Action {
        match self.rng.random_range(0..6) {
            0 => Action::Keep,
            n => Action::Prune { ratio: f64::from(n) / 8.0, kept: Vec::new() },
        }
    }

    fn target(&mut self) -> Target {
        Target::Group((*GROUPS.choose(&mut self.rng).expect("some")).to_owned())
    }

    /// An agent's or the planner's proposals arrive, whatever goes on.
    fn propose(&mut self) {
        let n = self.rng.random_range(1..=3);
        let author = match self.rng.random_bool(0.5) {
            true => Author::Planner,
            false => Author::Agent { role: "pruning".into(), model: "m".into() },
        };
        let decisions: Vec<Decision> = (0..n)
            .map(|_| Decision::new(self.target(), self.action(), author.clone()))
            .map(|d| Decision { status: Status::Approved, ..d })
            .collect();
        self.done.push(format!("proposed: {:?}", decisions.iter().map(|d| (&d.target, &d.action)).collect::<Vec<_>>()));
        let settled: Vec<Decision> = self.state.plan().iter().filter_map(|(_, p)| p.settled()).cloned().collect();
        let recipe = of(self.state.recipe());
        let events = admit(&self.state, &self.fake, decisions);
        self.commit(events);
        for d in settled {
            assert_eq!(self.state.decision(d.id), Some(&d), "what the engineer settled stands");
            assert_eq!(self.state.planned(&d.target).settled().map(|s| s.id), Some(d.id));
        }
        assert_eq!(of(self.state.recipe()), recipe, "a proposal changes nothing that runs");
    }

    /// The run goes on by a step, or ends badly.
    fn advance(&mut self) {
        let round = self.state.round;
        let ends_badly = self.rng.random_bool(0.3);
        if ends_badly {
            self.running = None;
            let event = match self.rng.random_bool(0.5) {
                true => Event::Cancelled { what: "run".into() },
                false => Event::Failed { what: "run".into(), message: "no; hint: none".into() },
            };
            self.done.push(format!("{event:?}"));
            self.commit(vec![event]);
            return;
        }
        if self.state.phase == Phase::Compress {
            let built = set(self.fake.build(&self.state, round));
            self.fake.built.lock().expect("built").clear();
            self.done.push(format!("built {built:?}"));
            let ids = self.state.round_at(round).expect("started").ids.clone();
            let (artifact, model_hash) = (format!("r{round}"), "h".to_owned());
            let applied = Event::Applied { round, ids, artifact, model_hash, used: Default::default() };
            self.commit(vec![applied]);
            self.made.insert(round, built);
        } else {
            let verdict = verdict(Outcome::Reject);
            self.done.push("evaluated".into());
            self.commit(vec![Event::VerdictGiven { round, verdict }]);
            self.running = None;
        }
    }

    /// The host dies and another one opens the journal.
    fn restart(&mut self) {
        self.done.push("restart".into());
        let records: Vec<Record> = self.journal.iter().map(|l| serde_json::from_str(l).expect("reads back")).collect();
        let state = State::fold(&records);
        assert_eq!(state, self.state, "the journal is the truth");
        let welcome = HostMsg::Welcome { protocol: PROTOCOL, state: Box::new(state), you: 1, pen: Some(1) };
        self.screen.host(welcome);
        self.running = None;
        if matches!(self.state.phase, Phase::Compress | Phase::Evaluate) {
            self.commit(vec![Event::Cancelled { what: "run (interrupted by a restart)".into() }]);
        }
    }

    fn ids(&mut self) -> Vec<DecisionId> {
        let all: Vec<DecisionId> = self.state.decisions.iter().map(|d| d.id).collect();
        let n = self.rng.random_range(1..=2);
        // The newest are the likeliest.
        let recent = &all[all.len().saturating_sub(5)..];
        let from = if self.rng.random_bool(0.7) { recent } else { &all[..] };
        (0..n).filter_map(|_| from.choose(&mut self.rng).copied()).collect()
    }

    fn step(&mut self) {
        if self.running.is_some() && self.rng.random_bool(0.6) {
            return self.advance();
        }
        let reason = || "because".to_owned();
        if self.state.phase == Phase::Verdict && self.rng.random_bool(0.4) {
            let accept = self.rng.random_bool(0.7);
            return self.command(if accept { Command::Accept } else { Command::RollBack { reason: reason() } });
        }
        let command = match self.rng.random_range(0..100) {
            0..8 => return self.propose(),
            8..12 => self.outsider(),
            12..20 => Command::Decide { target: self.target(), action: self.action() },
            20..24 => {
                let n = self.rng.random_range(1..=3);
                Command::DecideAll { actions: (0..n).map(|_| (self.target(), self.action())).collect() }
            }
            24..32 => {
                let Some(&id) = self.ids().first() else { return };
                Command::Edit { id, action: self.action() }
            }
            32..40 => Command::Approve { ids: self.ids() },
            40..48 => Command::Approve { ids: self.state.open().iter().map(|d| d.id).collect() },
            48..52 => Command::Veto { ids: self.ids(), reason: reason() },
            52..55 => {
                let n = self.rng.random_range(1..=3);
                Command::VetoAll { targets: (0..n).map(|_| self.target()).collect(), reason: reason() }
            }
            55..60 => Command::Reopen { ids: self.ids() },
            60..65 => Command::Undo,
            65..67 => Command::Restore { seq: self.rng.random_range(0..=self.state.seq + 1) },
            67..71 => Command::Redo,
            71..75 => {
                let limit = match self.rng.random_range(0..3) {
                    0 => Limit::MaxRatio { ratio: 0.25 },
                    _ => Limit::Freeze,
                };
                Command::Constrain { constraint: Constraint { target: self.target(), limit, reason: reason() } }
            }
            75..78 => Command::Unconstrain { target: self.target() },
            78..90 => Command::Run,
            90..95 => Command::Accept,
            95..98 => Command::RollBack { reason: reason() },
            _ => return self.restart(),
        };
        self.command(command);
    }

    /// What a program outside may send.
    fn outsider(&mut self) -> Command {
        let mut one = || (self.target(), self.action());
        let by = String::new();
        match one() {
            (target, Action::Keep) => Command::Looked { at: target.to_string(), by },
            (target, action) => {
                let (other, and) = one();
                let decisions = vec![(target, action, "better so".to_owned()), (other, and, String::new())];
                Command::Offer { offer: Offer { decisions, summary: "mine".to_owned(), expects: Some(-0.5), by } }
            }
        }
    }

    /// What a run would build if it were started now, were `first` commanded before.
    fn would_build(&self, first: Option<Command>) -> Result<Actions, String> {
        let mut state = self.state.clone();
        if let Some(Ok(events)) = first.map(|c| self.judged(&state, c)) {
            events.into_iter().for_each(|e| push(&mut state, e));
        }
        let events = self.judged(&state, Command::Run)?;
        events.into_iter().for_each(|e| push(&mut state, e));
        Ok(set(state.actions_of(state.round)))
    }

    fn check(&self) {
        let s = &self.state;
        assert_eq!(&self.folded, s, "the journal's fold");
        assert_eq!(&self.screen.state, s, "the screen's fold");
        for name in GROUPS {
            let on = |fit: &dyn Fn(Status) -> bool| {
                s.decisions.iter().filter(|d| d.target.name() == name && fit(d.status)).count()
            };
            let open = on(&|s| matches!(s, Status::Proposed | Status::Edited));
            let approved = on(&|s| s == Status::Approved);
            assert!(open + approved <= 1, "{name}: {open} open, {approved} approved");
        }
        // What was built once stays what it was, and what stands is what was built.
        for (&round, built) in &self.made {
            if s.round_at(round).is_some_and(|r| r.artifact.is_some()) {
                assert_eq!(&set(s.actions_of(round)), built, "round {round} is history");
            }
        }
        let stands = match s.model_round() {
            0 => Actions::new(),
            n => self.made.get(&n).expect("made").clone(),
        };
        assert_eq!(of(s.in_force()), stands, "the model that stands is what its round built");
        for (target, p) in s.plan() {
            if let Some((d, since)) = p.in_force {
                let there = self.made.get(&since).and_then(|m| m.get(target));
                assert_eq!(there.unwrap_or(&Action::Keep), &d.action, "in force since round {since}");
            }
        }
        let new = s.round_at(s.round).filter(|_| s.phase == Phase::Compress);
        if let Some(running) = new {
            let frozen = |d: &&Decision| d.action != Action::Keep && d.status == Status::Vetoed;
            assert_eq!(s.recipe_of(running.number).iter().filter(|d| frozen(d)).count(), 0, "a vetoed cut runs");
        }
        if self.running.is_some() || !matches!(s.phase, Phase::Review | Phase::Reason | Phase::Profile) {
            return;
        }
        self.check_run(&stands);
    }

    /// The session waits for the engineer: whatever the screen says of the plan is what would run.
    fn check_run(&self, stands: &Actions) {
        let s = &self.state;
        let now = self.would_build(None);
        let recipe = match &now {
            Ok(built) => {
                for d in s.pending().iter().filter(|d| d.action != Action::Keep) {
                    assert!(s.frozen(&d.target).is_none(), "a frozen target gets something new");
                }
                built.clone()
            }
            Err(words) if words.contains("against your constraint") => {
                assert!(s.pending().iter().any(|d| s.forbids(d).is_some()), "{words}");
                return;
            }
            Err(words) => {
                assert!(words.contains("nothing is approved"), "{words}");
                stands.clone()
            }
        };
        assert_eq!(of(s.recipe()), recipe, "the fold's plan is what R builds");
        for name in GROUPS {
            let target = Target::Group(name.to_owned());
            let row = self.screen.shown(&target);
            let builds = recipe.get(&target).unwrap_or(&Action::Keep);
            match row.standing {
                Standing::Proposed | Standing::Edited => {}
                Standing::InForce { since } => {
                    assert_eq!((&row.action, stands.get(&target)), (builds, recipe.get(&target)), "in force");
                    assert!(s.round_at(since).is_some_and(|r| r.accepted));
                }
                Standing::Approved => assert_eq!(&row.action, builds, "approved"),
                Standing::Leaving { .. } => {
                    assert_eq!((&row.action, builds), (&Action::Keep, &Action::Keep), "leaving");
                }
                Standing::Free | Standing::Vetoed | Standing::RolledBack => {
                    assert_eq!((&row.action, builds, stands.get(&target)), (&Action::Keep, &Action::Keep, None));
                }
            }
        }
        let open: Vec<DecisionId> = s.open().iter().map(|d| d.id).collect();
        let shown = of(&self.screen.plan(&[]));
        match self.would_build((!open.is_empty()).then_some(Command::Approve { ids: open })) {
            Ok(built) => assert_eq!(built, shown, "what is shown is what runs once it is approved"),
            Err(words) => {
                assert!(words.contains("nothing is approved"), "{words}");
                assert_eq!(&shown, stands);
            }
        }
    }
}

#[test]
fn the_plan_that_is_shown_is_the_plan_that_runs() {
    let (mut runs, mut accepted, mut back) = (0, 0, 0);
    for seed in 0..SEQUENCES {
        let mut w = World::new(seed);
        let n = w.rng.random_range(COMMANDS / 2..=COMMANDS);
        for _ in 0..n {
            w.step();
            w.check();
        }
        w.restart();
        w.check();
        runs += w.made.len();
        accepted += w.state.rounds.iter().filter(|r| r.accepted).count();
        back += w.state.rounds.iter().filter(|r| r.rolled_back.is_some()).count();
    }
    // Sequences that never get anywhere would prove nothing.
    assert!(runs > 5_000 && accepted > 1_500 && back > 1_000, "{runs} runs, {accepted} accepted, {back} rolled back");
}
