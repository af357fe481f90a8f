//! `paring bench-agents`: the planner and language models on the same sessions and budgets, without a human, side by side in a table.
//!
//! Each run is a `paring run` of its own, in a process of its own and a folder of its own, so that nobody learns from another; what a
//! run was measured to be is its `report.json`, what was said in it its journal. Not here: how a run goes (`run`). Invariant: a run that
//! failed is a row that says so, never one left out.

use super::out::{self, say, tell};
use super::{Cancelled, Exit, cancel_on_signals, print_json};
use crate::args::BenchAgents;
use crate::exec::Cancel;
use crate::plan::Author;
use crate::session::{Journal, Prices, Spent, State};
use crate::task::Estimate;
use crate::words::counted;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Who proposes.
#[derive(Debug, Clone, PartialEq)]
struct Contender {
    name: String,
    /// Model and address; the planner has none.
    agents: Option<(String, String)>,
    /// Calls a role, where they are not the usual ones.
    calls: Option<usize>,
    /// The planner proposes what they leave missing.
    helped: bool,
    /// Of a million tokens of prompts, and of answers.
    price: Option<(f64, f64)>,
}

impl Contender {
    fn planner() -> Contender {
        Contender { name: "planner".to_owned(), agents: None, calls: None, helped: false, price: None }
    }
}

/// `MODEL@URL`, with options behind it: `,calls=N`, `,helped`, `,price=IN/OUT` (of a million tokens of prompts and of answers).
fn contender(words: &str) -> Result<Contender> {
    // Models may have an @ in their names, addresses begin with their scheme.
    let split = words.find("@http://").or_else(|| words.find("@https://"));
    let Some((model, rest)) = split.map(|i| (&words[..i], &words[i + 1..])).filter(|(model, _)| !model.is_empty())
    else {
        bail!("`{words}` names no model and server; hint: --agents qwen3:14b@http://localhost:11434/v1");
    };
    let mut options = rest.split(',');
    let url = options.next().unwrap_or_default();
    let mut c = Contender { agents: Some((model.to_owned(), url.to_owned())), ..Contender::planner() };
    for option in options {
        match option.split_once('=') {
            None if option == "helped" => c.helped = true,
            Some(("calls", n)) => {
                let n = n.parse();
                c.calls = Some(n.with_context(|| format!("`{words}`: {option} is no number; hint: calls=0 for none"))?);
            }
            Some(("price", both)) => {
                let price = |n: &str| n.parse::<f64>().ok().filter(|p| p.is_finite() && *p >= 0.0);
                c.price = both.split_once('/').and_then(|(asked, said)| Some((price(asked)?, price(said)?)));
                if c.price.is_none() {
                    bail!("`{words}`: {option} is no price; hint: price=0.4/1.6, of a million tokens in and out");
                }
            }
            _ => bail!("`{words}`: `{option}` is no option; hint: calls=N, helped, price=IN/OUT"),
        }
    }
    c.name = c.calls.map_or(model.to_owned(), |n| format!("{model}, {}", counted(n, "call")));
    if c.helped {
        c.name += ", the planner helps";
    }
    Ok(c)
}

/// What came of one run.
#[derive(Debug, Clone, Default, Serialize)]
struct Row {
    contender: String,
    seed: u64,
    /// Why there is nothing else to tell.
    failed: Option<String>,
    met: bool,
    /// As the metric is filed.
    score: Option<f64>,
    factors: Value,
    rounds: usize,
    /// Decisions that were built, by who proposed them.
    by_agents: usize,
    by_planner: usize,
    /// Calls that were answered.
    looked: usize,
    /// Entries of proposals that were refused, those that a correction put right among them.
    refused: u64,
    /// Questions that were asked again with their errors.
    corrected: usize,
    /// Of prompts, where the server told; and of answers.
    asked: u64,
    tokens: u64,
    /// At the contender's price.
    money: Option<f64>,
    /// Of the models' answers, and of the whole run.
    model_seconds: f64,
    seconds: f64,
}

/// Runs all contenders over all seeds and prints what came of them.
///
/// # Errors
/// A contender that is none, a folder that cannot be written, a signal; runs that fail are rows.
pub fn run(args: &BenchAgents) -> Result<Exit> {
    let cancel = cancel_on_signals()?;
    let agents = args.agents.iter().map(|a| contender(a)).collect::<Result<Vec<_>>>()?;
    let mut contenders: Vec<Contender> = std::iter::once(Contender::planner()).chain(agents).collect();
    for i in 1..contenders.len() {
        // Rows are told apart by their names.
        let same =
            contenders[..i].iter().filter(|c| c.name.split(" #").next() == Some(contenders[i].name.as_str())).count();
        if same > 0 {
            contenders[i].name += &format!(" #{}", same + 1);
        }
    }
    if let Some(given) = args
        .run
        .iter()
        .find(|a| ["--out", "--seed", "--llm-url", "--llm-model", "--complete", "--json"].contains(&a.as_str()))
    {
        bail!("`{given}` is set for each run; hint: --out, --seeds and --agents before the `--`");
    }
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot make `{}`", args.out.display()))?;
    let mut rows = Vec::new();
    for seed in 0..args.seeds.max(1) {
        for (i, c) in contenders.iter().enumerate() {
            tell!("{}, seed {seed}", c.name);
            let dir = args.out.join(format!("{i}-{seed}"));
            rows.push(one(c, seed, &dir, &args.run, &cancel)?);
            // After each, so that hours are not lost.
            let told = json!({ "run": args.run, "rows": rows, "table": summary(&contenders, &rows) });
            let path = args.out.join("bench.json");
            crate::files::write(&path, serde_json::to_vec_pretty(&told)?)
                .with_context(|| format!("cannot write `{}`", path.display()))?;
        }
    }
    let table = summary(&contenders, &rows);
    match args.json {
        true => print_json(&json!({ "run": args.run, "rows": rows, "table": table }))?,
        false => out::data(format_args!("{}", table.join("\n") + "\n"))?,
    }
    for row in rows.iter().filter_map(|r| r.failed.as_ref().map(|why| (r, why))) {
        say!("{}, seed {}: {}", row.0.contender, row.0.seed, row.1)?;
    }
    Ok(if rows.iter().all(|r| r.failed.is_some()) { Exit::Failed } else { Exit::Done })
}

fn one(c: &Contender, seed: u64, dir: &Path, run: &[String], cancel: &Cancel) -> Result<Row> {
    let program = std::env::current_exe().context("this program's own file is not known")?;
    let mut command = Command::new(program);
    command.arg("run").args(run).args(["--seed", &seed.to_string()]).arg("--out").arg(dir);
    match &c.agents {
        Some((model, url)) => drop(command.args(["--llm-url", url, "--llm-model", model])),
        // What the environment names is no planner.
        None => drop(command.env_remove("OPENAI_BASE_URL").env_remove("PARING_LLM_MODEL")),
    }
    if c.helped {
        command.arg("--complete");
    }
    if let Some(calls) = c.calls {
        command.env("PARING_LLM_CALLS", calls.to_string());
    }
    // Nobody is asked about by what another run showed.
    command.env("PARING_LEDGER", "off");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    // What an earlier bench left there is not this run's.
    drop(std::fs::remove_file(dir.join("report.json")));
    let log = dir.with_extension("log");
    let file = std::fs::File::create(&log).with_context(|| format!("cannot write `{}`", log.display()))?;
    command.stderr(file);
    let mut child = command.spawn().context("cannot start a run")?;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if cancel.is_cancelled() => {
                // It may be in the middle of anything; its session is kept.
                drop(child.kill());
                drop(child.wait());
                return Err(Cancelled.into());
            }
            None => std::thread::sleep(Duration::from_millis(200)),
        }
    };
    let mut row = Row { contender: c.name.clone(), seed, ..Row::default() };
    let last = || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let lines = || text.lines().filter(|l| !l.trim().is_empty());
        let said = |l: &&str| ["error:", "paring: "].iter().any(|begin| l.starts_with(begin));
        lines().find(said).or(lines().next_back()).unwrap_or("it said nothing").to_owned()
    };
    match std::fs::read(dir.join("report.json")).ok().and_then(|b| serde_json::from_slice::<Value>(&b).ok()) {
        // A budget that was missed has its report too.
        Some(report) => {
            let state = Journal::read(&dir.join("session")).map(|r| State::fold(&r)).unwrap_or_default();
            read(&mut row, &report, &state);
            let spent = Spent { tokens: row.tokens, asked: row.asked, ..Spent::default() };
            let price = c.price.map(|(input, output)| Prices { input, output }.of(&spent));
            // What nobody counted has no price.
            row.money = price.filter(|_| row.asked > 0 || row.tokens == 0);
            // What the planner did in its place is no figure of a model's.
            if c.agents.is_some() && row.tokens == 0 && row.by_agents == 0 {
                row.failed =
                    Some("the model never answered, and the planner's plan was run; see the log beside it".to_owned());
            }
        }
        None => row.failed = Some(format!("{status}: {}", crate::agent::clean::line(&last(), 300))),
    }
    Ok(row)
}

/// Fills in what a run's report and session say.
fn read(row: &mut Row, report: &Value, state: &State) {
    row.met = report["met"] == true;
    row.score = report["final"]["score"].as_f64();
    row.factors = report["final"]["factors"].clone();
    row.seconds = report["seconds"].as_f64().unwrap_or_default();
    row.rounds = report["rounds"].as_array().map_or(0, Vec::len);
    let built = state.rounds.iter().filter(|r| r.evaluation.is_some()).flat_map(|r| &r.ids);
    for d in built.filter_map(|id| state.decision(*id)) {
        match &d.author {
            Author::Agent { .. } => row.by_agents += 1,
            Author::Planner => row.by_planner += 1,
            Author::Human | Author::Rule { .. } => {}
        }
    }
    let said = || state.utterances.iter().filter(|u| u.model != "built-in" && !u.role.is_empty());
    row.tokens = said().map(|u| u.tokens).sum();
    row.asked = said().map(|u| u.asked).sum();
    row.refused = said().map(|u| u.refused).sum();
    row.model_seconds = said().map(|u| u.seconds).sum::<f64>() + 0.0; // the sum of none is -0
    row.looked = said().flat_map(|u| u.reasoning.lines()).filter(|l| l.starts_with("→ ")).count();
    // A second answer of a role in a row is its correction.
    let roles: Vec<(u32, &str)> = said().map(|u| (u.round, u.role.as_str())).collect();
    row.corrected = roles.windows(2).filter(|w| w[0] == w[1]).count();
}

/// The mean with the least and the most, in words.
fn spread(values: &[f64], digits: usize) -> String {
    if values.is_empty() {
        return "-".to_owned();
    }
    // Nothing is not less than nothing.
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), &v| (a.min(v), b.max(v)));
    let [mean, low, high] = [mean, low, high].map(|v| format!("{:.digits$}", v + 0.0));
    match low == high {
        true => mean,
        false => format!("{mean} [{low}, {high}]"),
    }
}

/// The mean with its 95 % interval (Student's over few seeds), in words.
fn interval(values: &[f64], digits: usize) -> String {
    let e = Estimate::of(values);
    match e.range {
        _ if values.is_empty() => "-".to_owned(),
        Some((low, high)) => format!("{:.digits$} ({low:.digits$} to {high:.digits$})", e.value + 0.0),
        None => format!("{:.digits$}", e.value + 0.0),
    }
}

/// A line a contender, of Markdown: means with the least and the most of the seeds, what they differ from the planner by with its interval.
fn summary(contenders: &[Contender], rows: &[Row]) -> Vec<String> {
    let mut lines = vec![
        "| who proposes | budget met | score | less the planner's | latency | macs | memory | rounds | decisions own / planner's | looked up | entries refused | asked again | tokens read | tokens said | money | s of answers | s in all |".to_owned(),
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |".to_owned(),
    ];
    let of = |c: &Contender| rows.iter().filter(|r| r.contender == c.name && r.failed.is_none()).collect::<Vec<_>>();
    let base = contenders.first().map(of).unwrap_or_default();
    for (i, c) in contenders.iter().enumerate() {
        let mine = of(c);
        let all = rows.iter().filter(|r| r.contender == c.name).count();
        if all == 0 {
            continue;
        }
        let column = |f: &dyn Fn(&Row) -> Option<f64>, digits| {
            spread(&mine.iter().filter_map(|r| f(r)).collect::<Vec<_>>(), digits)
        };
        // Of the same seed, so that what a seed does to both is in neither.
        let less = |r: &Row| Some(r.score? - base.iter().find(|b| b.seed == r.seed)?.score?);
        let factor = |name: &'static str| move |r: &Row| r.factors[name].as_f64();
        lines.push(format!(
            "| {} | {} of {} | {} | {} | {} | {} | {} | {} | {} / {} | {} | {} | {} | {} | {} | {} | {} | {} |",
            c.name,
            mine.iter().filter(|r| r.met).count(),
            all,
            column(&|r| r.score, 4),
            if i == 0 { "-".to_owned() } else { interval(&mine.iter().filter_map(|r| less(r)).collect::<Vec<_>>(), 4) },
            column(&factor("latency"), 3),
            column(&factor("macs"), 3),
            column(&factor("memory"), 3),
            column(&|r| Some(r.rounds as f64), 1),
            column(&|r| Some(r.by_agents as f64), 0),
            column(&|r| Some(r.by_planner as f64), 0),
            column(&|r| Some(r.looked as f64), 0),
            column(&|r| Some(r.refused as f64), 0),
            column(&|r| Some(r.corrected as f64), 0),
            column(&|r| Some(r.asked as f64).filter(|n| *n > 0.0), 0),
            column(&|r| Some(r.tokens as f64), 0),
            column(&|r| r.money, 4),
            column(&|r| Some(r.model_seconds), 0),
            column(&|r| Some(r.seconds), 0),
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contenders_are_a_model_at_an_address() {
        let c = contender("qwen3:14b@http://localhost:11434/v1").unwrap();
        assert_eq!(c.agents, Some(("qwen3:14b".into(), "http://localhost:11434/v1".into())));
        let c = contender("org/m@v2@https://h/v1,calls=0").unwrap();
        assert_eq!((c.agents, c.calls), (Some(("org/m@v2".into(), "https://h/v1".into())), Some(0)));
        assert_eq!(c.name, "org/m@v2, 0 calls");
        let c = contender("m@http://h/v1,calls=2,helped").unwrap();
        assert_eq!((c.calls, c.helped, c.name.as_str()), (Some(2), true, "m, 2 calls, the planner helps"));
        assert!(contender("m@http://h/v1,helped,calls=2").unwrap().helped);
        let c = contender("m@http://h/v1,price=0.5/2").unwrap();
        assert_eq!((c.price, c.name.as_str()), (Some((0.5, 2.0)), "m"));
        for bad in [
            "m@http://h/v1,price=1",
            "m@http://h/v1,price=-1/2",
            "m@http://h/v1,x",
            "qwen3",
            "@http://h/v1",
            "m@ftp://h",
            "m@http://h/v1,calls=x",
        ] {
            assert!(contender(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_table_compares_by_seed_and_counts_what_failed() {
        let c = |name: &str| Contender { name: name.into(), ..Contender::planner() };
        let row = |contender: &str, seed, score| Row {
            contender: contender.into(),
            seed,
            score: Some(score),
            met: true,
            ..Row::default()
        };
        let failed = Row { contender: "m".into(), seed: 2, failed: Some("gone".into()), ..Row::default() };
        let rows = [row("planner", 0, 0.9), row("planner", 1, 0.8), row("m", 0, 0.91), row("m", 1, 0.83), failed];
        let table = summary(&[c("planner"), c("m"), c("never run")], &rows);
        assert_eq!(table.len(), 4, "{table:?}");
        assert!(table[2].starts_with("| planner | 2 of 2 | 0.8500 [0.8000, 0.9000] | - |"), "{}", table[2]);
        assert!(
            table[3].starts_with("| m | 2 of 3 | 0.8700 [0.8300, 0.9100] | 0.0200 (-0.1071 to 0.1471) |"),
            "{}",
            table[3]
        );
    }
}
