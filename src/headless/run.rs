//! `paring run`: a whole session by policy, through the same commands that a screen sends.

use super::out::{self, say, tell};
use super::report::{report, summary};
use super::{Cancelled, Exit, ProgressLine, cancel_on_signals, print_json, progress_line};
use crate::config::Policy;
use crate::files;
use crate::graph::{Graph, Node};
use crate::host::client::{Client, CommandError, Messages};
use crate::host::{OpenSpec, lifecycle};
use crate::plan::{Action, Budget, BudgetLine, DecisionId, Outcome, Target, Verdict, planner};
use crate::prune::{self, Rank, Sparsity};
use crate::quant::{self, Precision};
use crate::session::{Command, Event, Feed, HostMsg, Journal, Phase, Place, Proposer, State, describe};
use crate::train::Heal;
use anyhow::{Context, Result, anyhow, bail};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// What a run is to do besides opening.
#[derive(Debug, Clone)]
pub struct Wanted {
    pub policy: Policy,
    /// Rounds at most.
    pub rounds: u32,
    /// Folder for `model.safetensors`, `report.json` and the session itself.
    pub out: PathBuf,
    /// Build and try the planner's other plans before one is approved.
    pub search: bool,
    /// Also run every convolution and linear layer in this precision.
    pub precision: Option<Precision>,
    /// Also zeros among the weights of every convolution and linear layer.
    pub sparsity: Option<Sparsity>,
    /// Low-rank factors for all layers where they are fewer weights.
    pub factors: Option<Rank>,
    /// Train what was made before it is judged.
    pub heal: Option<Heal>,
    /// Evaluate it only until it is clear whether the budget's `drop` is kept.
    pub until_clear: bool,
    /// Agents propose instead of the planner.
    pub agents: bool,
    /// The planner proposes what agents' decisions leave missing of the budget.
    pub complete: bool,
}

/// The client's side of a run: the state as folded from the host's events.
struct Driver {
    client: Client,
    messages: Messages,
    state: State,
    line: ProgressLine,
}

/// Plans that are rehearsed at most before one is approved.
const REPLANS: usize = 6;
/// A plan that costs this part of what may be lost goes far enough.
const NEAR: f64 = 0.8;

/// The file in the folder that a run fills.
const MODEL: &str = "model.safetensors";

/// Runs to the end, writes model and report, and prints what came out.
pub fn run(spec: OpenSpec, wanted: &Wanted, json: bool) -> Result<Exit> {
    let cancel = cancel_on_signals()?;
    // Before hours are spent on what could not be written.
    super::setup::keep_source(&spec.how.model, &wanted.out.join(MODEL))?;
    let place = fresh(&wanted.out)?;
    spec.save(&place).with_context(|| format!("cannot write in `{}`", place.dir.display()))?;
    let runtime = super::runtime(1)?;
    let began = Instant::now();
    tell!("opening {}", spec.how.model);
    let host = lifecycle::start(&place, Some(spec))?;
    let (state, model) = runtime.block_on(async {
        let (client, messages) = host.connect("paring run", false).await?;
        let mut driver = Driver { client, messages, state: State::default(), line: progress_line("run") };
        let work = driver.work(wanted);
        let cancelled = async {
            while !cancel.is_cancelled() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let result = tokio::select! {
            done = work => done,
            () = cancelled => Err(Cancelled.into()),
        };
        driver.line.clear();
        host.stop("the run is over").await;
        host.ended().await;
        result.map(|model| (driver.state, model))
    })?;
    let mut report = report(&state, &wanted.policy, model.as_ref(), began.elapsed().as_secs_f64());
    let nothing_to_do = model.is_none() && within_as_it_is(&state);
    if nothing_to_do {
        report["met"] = true.into();
    }
    let path = wanted.out.join("report.json");
    files::write(&path, serde_json::to_vec_pretty(&report)?)
        .with_context(|| format!("cannot write `{}`", path.display()))?;
    if json {
        print_json(&report)?;
    } else {
        out::data(format_args!("{}", summary(&state)))?;
        say!("written to {}", wanted.out.display())?;
    }
    let met = report["met"] == true;
    if nothing_to_do {
        tell!("paring: the original is within the budget as it is: nothing was written but the report");
    }
    if !met {
        tell!("paring: the budget was not met: {}", how_near(&state));
    }
    Ok(if met { Exit::Done } else { Exit::BudgetNotMet })
}

/// The run's own session in `out/session`; one that an earlier run left there is replaced, or where it came to a round kept beside it, as
/// `session.1` and so on: the files in the folder may be its own.
fn fresh(out: &std::path::Path) -> Result<Place> {
    let place = Place::at(&out.join("session"));
    if lifecycle::is_running(&place) {
        bail!("another run works in `{}`; hint: give this one another --out", out.display());
    }
    if place.spec_file().is_file() {
        let came_far = Journal::read(&place.dir).is_ok_and(|events| !State::fold(&events).rounds.is_empty());
        if came_far {
            let aside = (1..).map(|n| out.join(format!("session.{n}"))).find(|p| !p.exists()).unwrap_or_default();
            std::fs::rename(&place.dir, &aside)
                .with_context(|| format!("cannot move the earlier run in `{}` aside", place.dir.display()))?;
            out::complain(&format!("note: the earlier run's session is `{}` now", aside.display()));
        } else {
            std::fs::remove_dir_all(&place.dir)
                .with_context(|| format!("cannot replace the earlier run in `{}`", place.dir.display()))?;
        }
    }
    // The folder is the user's to share; the session in it is not.
    std::fs::create_dir_all(out)
        .and_then(|()| place.make())
        .with_context(|| format!("cannot make `{}`; hint: give --out a folder you can write", place.dir.display()))?;
    Ok(place)
}

/// Every factor that is asked for is the original's own.
fn within_as_it_is(state: &State) -> bool {
    state.budget.factors().next().is_some() && state.budget.factors().all(|f| f >= 1.0)
}

/// The verdict's failing lines, or why there is none.
fn how_near(state: &State) -> String {
    let verdict = state.rounds.iter().rev().find_map(|r| r.verdict.as_ref());
    let Some(verdict) = verdict else {
        return "nothing could be compressed under the constraints; hint: loosen the budget or the rules".to_owned();
    };
    let lines: Vec<String> = verdict
        .lines
        .iter()
        .filter(|l| l.outcome != Outcome::Accept)
        .map(|l| format!("{} reached {:.3} of {:.3}", l.name, l.measured, l.target))
        .collect();
    format!("{}; hint: loosen it, or allow more rounds", lines.join(", "))
}

impl Driver {
    async fn work(&mut self, wanted: &Wanted) -> Result<Option<(String, String)>> {
        self.until(|s| s.card.is_some()).await?;
        self.constrain(&wanted.policy).await?;
        if wanted.heal.is_some() {
            self.act(Command::Heal { heal: wanted.heal }).await?;
        }
        if wanted.until_clear {
            self.act(Command::UntilClear { on: true }).await?;
        }
        let budget = self.state.budget;
        let told = wanted.precision.is_some() || wanted.sparsity.is_some() || wanted.factors.is_some();
        let pruning = budget != Budget::default() || !told;
        for round in 1..=wanted.rounds {
            if let (1, Some(precision)) = (round, wanted.precision) {
                self.decide_all(Target::Layer, |_, _| Some(Action::Precision { precision })).await?;
            }
            if let (1, Some(sparsity)) = (round, wanted.sparsity) {
                self.decide_all(Target::Weights, |_, _| Some(Action::Sparsify { sparsity })).await?;
            }
            if let (1, Some(rank)) = (round, wanted.factors) {
                let of = |graph: &Graph, node: &Node| {
                    let rank = rank.of(&node.op).ok()?;
                    prune::factorable(graph, node, rank).ok().map(|()| Action::Factorise { rank })
                };
                self.decide_all(Target::Weights, of).await?;
            }
            // After what was told: that stands, and what is proposed besides is what it leaves missing.
            if pruning {
                // What nobody measured tells by itself what it costs, so that what is put beside it does.
                if round == 1 && told && !wanted.agents && planner::floor(&budget, &self.state.metric()).is_some() {
                    self.rehearse(&self.state.shown_actions()).await?;
                }
                let by = if wanted.agents { Proposer::Agents } else { Proposer::Planner };
                self.when_free(Command::Propose { by }).await?;
                self.catch_up().await?;
                self.until(|s| s.phase == Phase::Review).await?;
                if wanted.search && !wanted.agents && self.state.may_search() {
                    self.search().await?;
                }
                if !wanted.agents {
                    self.settle().await?;
                }
            }
            self.answer(&wanted.policy).await?;
            if pruning && wanted.agents && wanted.complete && self.misses() {
                self.when_free(Command::Propose { by: Proposer::Planner }).await?;
                self.catch_up().await?;
                self.until(|s| s.phase == Phase::Review).await?;
                self.answer(&wanted.policy).await?;
            }
            if self.state.pending().is_empty() {
                break;
            }
            self.run_round().await?;
            let lost =
                |v: &Verdict| v.lines.iter().any(|l| Budget::is_quality(&l.name) && l.outcome == Outcome::Reject);
            // Another round can bring cost further down; accuracy that is lost it cannot bring back, and what was seen
            // on the evaluation data must not choose.
            if self.accepted() || self.verdict().is_some_and(lost) || round == wanted.rounds {
                break;
            }
            self.act(Command::Accept).await?;
        }
        if self.state.phase != Phase::Verdict && self.state.base_round() == 0 {
            return Ok(None);
        }
        if self.state.phase == Phase::Verdict && self.accepted() {
            self.act(Command::Accept).await?;
        }
        let path = wanted.out.join(MODEL).display().to_string();
        self.export(path).await.map(Some)
    }

    /// Has the planner's plan rehearsed before anything of it is approved, and planned again with what that showed, as long as it lies below
    /// the floor or, where the floor alone says how far to go, well above.
    async fn settle(&mut self) -> Result<()> {
        let (budget, metric) = (self.state.budget, self.state.metric());
        let Some(floor) = planner::floor(&budget, &metric) else { return Ok(()) };
        let farther = budget.factors().next().is_none();
        for _ in 0..REPLANS {
            let shown = self.state.shown_actions();
            if shown.iter().all(|(_, a)| *a == Action::Keep) || !self.rehearse(&shown).await? {
                return Ok(());
            }
            let Some(forecaster) = self.state.forecaster() else { return Ok(()) };
            let quality = forecaster.actions(&shown).quality;
            let near = if farther { (NEAR * floor..=floor).contains(&-quality.value) } else { -quality.high <= floor };
            if near {
                return Ok(());
            }
            self.when_free(Command::Propose { by: Proposer::Planner }).await?;
            self.catch_up().await?;
            self.until(|s| s.phase == Phase::Review).await?;
            if planner::same_plan(&self.state.shown_actions(), &shown) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Has other plans for the budget tried, and the planner propose again with what that told.
    async fn search(&mut self) -> Result<()> {
        let answer = self.when_free(Command::Search).await;
        if !self.taken(answer)? {
            return self.catch_up().await;
        }
        let propose = Command::Propose { by: Proposer::Planner };
        loop {
            match self.client.command(propose.clone()).await {
                Err(CommandError::Refused(words)) if words.contains("is running") => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    self.catch_up().await?;
                }
                other => break other?,
            }
        }
        self.catch_up().await?;
        self.until(|s| s.phase == Phase::Review).await
    }

    /// Whether what is approved is forecast to miss a factor of the budget.
    fn misses(&self) -> bool {
        let Some(f) = self.state.forecaster().map(|f| f.actions(&self.state.recipe_actions())) else { return false };
        let over = |l: &BudgetLine| l.is_factor() && l.forecast.value > l.target + 1e-9;
        f.against(&self.state.budget).iter().any(over)
    }

    fn verdict(&self) -> Option<&Verdict> {
        self.state.round_at(self.state.round)?.verdict.as_ref()
    }

    fn accepted(&self) -> bool {
        self.verdict().is_some_and(|v| v.outcome == Outcome::Accept)
    }

    async fn constrain(&mut self, policy: &Policy) -> Result<()> {
        let card = self.state.card.as_ref().context("the session is not open")?;
        let (constraints, idle) = policy.constraints(card);
        for pattern in idle {
            self.line.say(&format!("note: the rule for `{pattern}` matches nothing in this model"));
        }
        for constraint in constraints {
            self.act(Command::Constrain { constraint }).await?;
        }
        Ok(())
    }

    /// Decides `action` on every convolution and linear layer that the constraints leave free.
    /// Decides on every layer that `action` has something for;
    async fn decide_all(
        &mut self,
        target: fn(String) -> Target,
        action: impl Fn(&Graph, &Node) -> Option<Action>,
    ) -> Result<()> {
        let card = self.state.card.as_ref().context("the session is not open")?;
        let layers = quant::choosable(&card.graph).into_iter();
        let layers: Vec<_> = layers.filter_map(|n| Some((n.name.clone(), action(&card.graph, n)?))).collect();
        if layers.is_empty() {
            bail!("nothing of that kind can be done to any layer; hint: a lower --factors makes them smaller");
        }
        for (name, action) in layers {
            let decide = Command::Decide { target: target(name), action };
            let answer = self.client.command(decide).await;
            self.taken(answer)?;
        }
        self.catch_up().await
    }

    /// Approves or vetoes every open decision as the policy says.
    async fn answer(&mut self, policy: &Policy) -> Result<()> {
        let mut approved: Vec<DecisionId> = Vec::new();
        let mut vetoed: Vec<(DecisionId, String)> = Vec::new();
        for d in self.state.open() {
            match policy.answer(d) {
                Ok(()) => approved.push(d.id),
                Err(reason) => vetoed.push((d.id, reason)),
            }
        }
        for (id, reason) in vetoed {
            self.act(Command::Veto { ids: vec![id], reason }).await?;
        }
        if !approved.is_empty() {
            self.act(Command::Approve { ids: approved }).await?;
        }
        Ok(())
    }

    /// Whether the host took a command; says why it refused one.
    fn taken(&mut self, answer: Result<(), CommandError>) -> Result<bool, CommandError> {
        match answer {
            Err(CommandError::Refused(words)) => {
                self.line.say(&format!("note: {words}"));
                Ok(false)
            }
            other => other.map(|()| true),
        }
    }

    /// Rehearses a plan that is approved or shown; whether there is something to rehearse it on.
    async fn rehearse(&mut self, actions: &[(Target, Action)]) -> Result<bool> {
        // What is approved goes first.
        for _ in 0..2 {
            if self.state.trials.of(actions).is_some() {
                break;
            }
            let last = |s: &State| s.trials.list.last().map(|t| t.key.clone());
            let before = last(&self.state);
            let answer = self.when_free(Command::Rehearse).await;
            if !self.taken(answer)? {
                self.catch_up().await?;
                return Ok(false);
            }
            self.until(|s| s.trials.of(actions).is_some() || last(s) != before).await?;
        }
        Ok(self.state.trials.of(actions).is_some())
    }

    async fn run_round(&mut self) -> Result<()> {
        // Its forecast stands before it runs; the run takes what was built.
        self.rehearse(&self.state.recipe_actions()).await?;
        // The job that rehearsed may be a moment from its end.
        self.when_free(Command::Run).await?;
        self.until(|s| s.phase == Phase::Verdict).await
    }

    /// Sends a command, again while the end of a job that is done still stands in its way.
    async fn when_free(&mut self, command: Command) -> Result<(), CommandError> {
        for _ in 0..600 {
            match self.client.command(command.clone()).await {
                Err(CommandError::Refused(words)) if words.contains("is running") => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                other => return other,
            }
        }
        self.client.command(command).await
    }

    async fn export(&mut self, path: String) -> Result<(String, String)> {
        // Comments on the verdict may still be coming.
        self.when_free(Command::Export { path, format: String::new() }).await?;
        loop {
            if let Some(Event::Exported { path, hash, notes, .. }) = self.message().await? {
                self.line.clear();
                out::notes(&notes);
                return Ok((path, hash));
            }
        }
    }

    /// Sends a command, waits until it is durable, and folds what it caused.
    async fn act(&mut self, command: Command) -> Result<()> {
        self.client.command(command).await.map_err(|e| anyhow!(e))?;
        self.catch_up().await
    }

    /// Folds everything that has arrived; events precede the reply that acknowledges them.
    async fn catch_up(&mut self) -> Result<()> {
        while let Some(message) = self.messages.try_recv() {
            self.take(message)?;
        }
        Ok(())
    }

    async fn until(&mut self, wanted: impl Fn(&State) -> bool) -> Result<()> {
        while !wanted(&self.state) {
            self.message().await?;
        }
        Ok(())
    }

    /// Takes the next message; the durable event in it, if it is one.
    async fn message(&mut self) -> Result<Option<Event>> {
        let message = self.messages.recv().await.context("the host ended early; hint: the session's log says why")?;
        self.take(message)
    }

    fn take(&mut self, message: HostMsg) -> Result<Option<Event>> {
        match message {
            HostMsg::Welcome { state, .. } => self.state = *state,
            HostMsg::Event { record } => {
                if let Some(text) = describe(&self.state, &record.event) {
                    self.line.say(&text);
                }
                self.state.apply(&record);
                if let Event::Failed { what, message } = &record.event {
                    bail!("{what}: {message}");
                }
                return Ok(Some(record.event));
            }
            HostMsg::Feed { feed: Feed::Progress(p) } => self.line.feed(&p),
            HostMsg::Feed { feed: Feed::Log { text, .. } } => self.line.say(&text),
            HostMsg::Bye { reason } | HostMsg::Refused { message: reason } => bail!("the host ended: {reason}"),
            HostMsg::Feed { .. } | HostMsg::Reply { .. } | HostMsg::Pen { .. } => {}
        }
        Ok(None)
    }
}
