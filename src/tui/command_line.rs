//! The command line behind `:`: its table, completion and parsing. What a line means is data; `update.rs` acts on it.

use super::complete::{Known, offers};
use super::history::History;
use crate::config::{Act, ColorLevel, suggestion};
use crate::graph::MacConvention;
use crate::model::formats::FORMATS;
use crate::plan::{Limit, Wish};
use crate::prune::{Rank, Sparsity};
use crate::quant::Precision;
use crate::session::{Answers, Command, Looks, MOST_LOOKS, MOST_TURNS, Proposer, Role, USUAL_TURNS};
use ratatui::style::Style;
use tui_textarea::TextArea;

/// One command of the palette.
#[derive(Debug, Clone, Copy)]
pub struct Spec {
    pub name: &'static str,
    pub args: &'static str,
    pub about: &'static str,
    /// The key that does the same.
    act: Option<Act>,
}

const fn spec(name: &'static str, args: &'static str, about: &'static str) -> Spec {
    Spec { name, args, about, act: None }
}

const fn does(act: Act, name: &'static str, about: &'static str) -> Spec {
    Spec { name, args: "", about, act: Some(act) }
}

/// Every command, in palette order.
pub const COMMANDS: &[Spec] = &[
    does(Act::Accept, "accept", "accept the evaluated round"),
    spec(
        "at-least",
        "RATIO [ROW] [REASON]",
        "remove at least this part of this row's group, or of those named (`layer1.*`)",
    ),
    spec("ask", "ROLE [NOTE]", "one role of the agents alone (profiling, pruning …), with a note to all of them"),
    spec("bind", "[off]", "make the rules that agents read in your note your own, or let them go"),
    does(Act::Bisect, "bisect", "find the decision that costs most, by trying the plan without halves of it"),
    spec(
        "budget",
        "latency=0.6,drop=0.5",
        "set targets: latency, macs, memory, params as factors; drop in points; kl in nats",
    ),
    spec("colors", "truecolor|256|16|none", "use fewer colours"),
    spec(
        "column",
        "NAME = EXPRESSION",
        "a column of your own: arithmetic on the figures of a row; NAME = off lets it go",
    ),
    spec("columns", "costs|parameters|speed | NAMES", "what the layer list has columns of"),
    spec(
        "control",
        "[TARGET|off]",
        "levels of this language model, and who chooses one for so much of its time a token; then both at work",
    ),
    spec("constraints", "FILE", "bind what a TOML file of [[rule]] match, do, ratio, wish, reason names"),
    does(Act::Detach, "detach", "leave; the session keeps running"),
    spec("export", "[safetensors|onnx|pytorch] [PATH]", "write the compressed model and its manifest"),
    spec("errors", "[off]", "look up how far weights of the rows shown are off when they are rounded"),
    spec("evaluate-all", "", "evaluate the round that waits on all of the data, where that ended when it was clear"),
    spec("explain", "[WORD]", "what the figures of this row and the words on this screen mean, or one word"),
    spec("factors", "64|25%|off", "two low-rank factors in the place of this row's weights"),
    spec("filter", "[WORDS]", "show only layers with these words; empty shows all"),
    spec("fork", "NAME", "keep the plan that is shown under a name, to hold others against it"),
    spec(
        "freeze",
        "[ROW] [REASON]",
        "the group of this row, or of those named (`layer1.*`), stays as it is: no new cut of it",
    ),
    spec("heal", "LENGTH [distill|labels|both] | off", "runs train what they made for so long, before it is judged"),
    does(Act::Help, "help", "keys and commands"),
    does(Act::Interrupt, "interrupt", "interrupt the agents or the running job"),
    spec("keep-f32", "[ROW] [REASON]", "this row, or those named (`layer1.*`), must stay f32"),
    spec(
        "layout",
        "usual|list|agents|card | side|card|plot PERCENT",
        "how the review's panes share the screen; kept for later sessions",
    ),
    spec("level", "auto|N", "what the running controller computes tokens at"),
    spec(
        "limits",
        "tokens=20000,seconds=300,cost=0.05,in=0.15,out=0.6 | off",
        "what one proposal of the agents may take; a cost in dollars, by prices a million tokens",
    ),
    spec("lift", "[PATTERN]", "lift the constraints on this row, or on all that are called so"),
    spec(
        "llm",
        "URL MODEL | ROLE MODEL [URL] | ROLE planner | off",
        "set the OpenAI-compatible endpoint that the agents use, or of one role another model or the planner",
    ),
    spec(
        "looks",
        "CALLS [REHEARSALS [MEASUREMENTS]] | off",
        "how much agents may look up in a turn, plans they may have tried, what they may have measured",
    ),
    spec(
        "mode",
        "propose | iterate [TURNS]",
        "agents propose once, or rehearse and propose again until they have a question",
    ),
    spec("mac-convention", "conv_linear|attention|norms", "what MACs count"),
    spec(
        "max-ratio",
        "RATIO [ROW] [REASON]",
        "remove at most this part of this row's group, or of those named (`layer1.*`)",
    ),
    does(Act::Measure, "measure", "measure this row again"),
    spec("note", "TEXT", "a note to the agents"),
    does(Act::TakePen, "pen", "take the pen"),
    spec("pin", "[now|ROUND|off]", "hold the rows' p50 against what is shown now, or against a round's"),
    spec("precision", "NAME", "this layer at f32, int8, int8-static, w8, w4, w4g128, w4g64, w4g32, f16 or bf16"),
    spec(
        "prefer",
        "cut|spare|PRECISION [ROW] [REASON]",
        "a wish for this row, or those named: it binds nothing, the planner weighs it and agents are told",
    ),
    does(Act::Profile, "profile", "measure every layer again, and the original"),
    spec("propose", "[planner|agents]", "ask for proposals"),
    does(Act::Redo, "redo", "redo the newest undone review action"),
    spec(
        "report",
        "[PATH]",
        "write the report: Markdown, or one page of HTML where it ends in .html; both without a path",
    ),
    spec("rollback", "[REASON]", "go back to the last accepted round"),
    spec("search", "", "build other plans for the same budget and try them on held-back images"),
    spec("rehearse", "", "build the approved plan, else what is shown, and try it on held-back images"),
    does(Act::Run, "run", "compress with all approved decisions, then evaluate"),
    spec("select", "PATTERN | none", "pick the layers that are called so (`layer1.*`) to decide about them together"),
    does(Act::Sense, "sense", "measure sensitivities"),
    spec("sort", "COLUMN", "sort the layers"),
    spec("sparsify", "2:4|50%|off", "zeros among this row's weights, by magnitude"),
    spec("stop", "", "end the session's host; everything decided is kept"),
    spec("theme", "NAME", "change the theme"),
    spec(
        "together",
        "PATTERN [REASON]",
        "what is called so is decided alike: groups by their cuts, layers by their precisions",
    ),
    does(Act::Undo, "undo", "undo the newest review action"),
    spec("until-clear", "on|off", "evaluate rounds only until it is clear whether the budget's drop is kept"),
    does(Act::Detach, "q", "detach"),
];

/// The share of the whole network's time a token that a controller is made for unless something else is said.
const TARGET: f64 = 0.8;

/// What a line asks for.
#[derive(Debug, Clone, PartialEq)]
pub enum Line {
    Empty,
    /// What a key does.
    Do(Act),
    Send(Command),
    /// Sent after the edit in progress.
    Commit(Command),
    Colors(ColorLevel),
    /// A column of the user's own, as it was typed.
    Column(String),
    /// A set, or names of columns.
    Columns(String),
    /// Looks rounding errors up, or stops that.
    Errors {
        off: bool,
    },
    /// How panes share the screen.
    Layout(String),
    /// What rows are held against.
    Pin(String),
    /// What this word means.
    Explain(String),
    Factors(Option<Rank>),
    Filter(String),
    /// Binds this row, for a reason.
    Constrain(Limit, String),
    /// Binds what the rules of this file name.
    Rules(String),
    /// Lifts what binds this row, or everything that the pattern matches.
    Lift(String),
    /// Runs a controller for that share of the time a token, or stops it.
    Control(Option<f64>),
    Llm(Option<(String, Option<String>)>),
    MacConvention(MacConvention),
    Precision(Precision),
    Report(String),
    /// Picks the rows that the pattern names; `none` lets all go.
    Select(String),
    Sort(String),
    Sparsify(Option<Sparsity>),
    Stop,
    Theme(String),
}

/// Understands a line.
///
/// # Errors
/// In words with a hint, naming the nearest command when the name is unknown.
pub fn parse(line: &str) -> Result<Line, String> {
    let line = line.trim().trim_start_matches(':').trim_start();
    let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let rest = rest.trim();
    if let Some(act) = COMMANDS.iter().find(|c| c.name == name).and_then(|c| c.act) {
        return Ok(Line::Do(act));
    }
    let text = || rest.to_owned();
    let needs = |what: &str| Err(format!("`:{name}` needs {what}; hint: `:{name} {}`", usage(name)));
    Ok(match name {
        "" => Line::Empty,
        "budget" if rest.is_empty() => return needs("targets"),
        "budget" => {
            let budget = rest.parse().map_err(|e: crate::plan::BudgetError| e.to_string())?;
            Line::Send(Command::SetBudget { budget })
        }
        "ask" => {
            let (role, note) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            let role = Role::called(role)?.name.to_owned();
            Line::Commit(Command::AskRole { role, note: note.trim().to_owned() })
        }
        "colors" => match ColorLevel::parse(rest) {
            Some(level) => Line::Colors(level),
            None => return needs("truecolor, 256, 16 or none"),
        },
        "column" if rest.is_empty() => return needs("a name and an expression"),
        "column" => Line::Column(text()),
        "columns" if rest.is_empty() => return needs("a set or names"),
        "columns" => Line::Columns(text()),
        "errors" => match rest {
            "" => Line::Errors { off: false },
            "off" => Line::Errors { off: true },
            _ => return needs("nothing, or off"),
        },
        "layout" if rest.is_empty() => return needs("a preset, or a pane and its part"),
        "layout" => Line::Layout(text()),
        "pin" => Line::Pin(text()),
        "control" => match (rest, rest.trim_end_matches('%').parse::<f64>()) {
            ("", _) => Line::Control(Some(TARGET)),
            ("off", _) => Line::Control(None),
            (share, Ok(v)) if share.ends_with('%') => Line::Control(Some(v / 100.0)),
            (_, Ok(v)) => Line::Control(Some(v)),
            _ => return needs("a share of the whole network's time a token such as 0.8, or off"),
        },
        "level" => match rest.parse() {
            Ok(asked) => Line::Send(Command::Level { asked }),
            Err(_) => return needs("auto or a level's number"),
        },
        "explain" if rest.is_empty() => Line::Do(Act::Explain),
        "explain" => Line::Explain(text()),
        "quit" => Line::Do(Act::Detach),
        "export" => Line::Send(match rest.split_once(char::is_whitespace).unwrap_or((rest, "")) {
            (format, path) if FORMATS.contains(&format) => {
                Command::Export { path: path.trim().to_owned(), format: format.to_owned() }
            }
            // What the path ends in says which, as in `paring export`.
            _ => Command::Export { path: text(), format: String::new() },
        }),
        "filter" => Line::Filter(text()),
        "fork" if rest.is_empty() => return needs("a name"),
        "fork" => Line::Commit(Command::Fork { name: text() }),
        "freeze" => Line::Constrain(Limit::Freeze, text()),
        "keep-f32" => Line::Constrain(Limit::KeepF32, text()),
        "lift" => Line::Lift(text()),
        "limits" if rest.is_empty() => return needs("tokens, seconds or a cost, or off"),
        "limits" => Line::Send(Command::SetLimits { limits: rest.parse()? }),
        "heal" if rest.is_empty() => return needs("a length such as 10m, 3 epochs or 500 steps, or off"),
        "heal" if rest == "off" => Line::Send(Command::Heal { heal: None }),
        "heal" => Line::Send(Command::Heal { heal: Some(rest.parse()?) }),
        "llm" => match rest.split_whitespace().collect::<Vec<_>>().as_slice() {
            ["off"] => Line::Llm(None),
            [role, rest @ ..] if Role::called(role).is_ok() && !rest.is_empty() => {
                let by = match rest {
                    ["off"] => None,
                    ["planner"] => Some(Answers::Planner),
                    [model] => Some(Answers::Model { model: (*model).to_owned(), base_url: None }),
                    [model, url] => {
                        Some(Answers::Model { model: (*model).to_owned(), base_url: Some((*url).to_owned()) })
                    }
                    _ => return needs("a role's model and perhaps a URL, planner, or off"),
                };
                Line::Send(Command::SetRole { role: (*role).to_owned(), by })
            }
            [url, model @ ..] if url.starts_with("http://") || url.starts_with("https://") => {
                Line::Llm(Some(((*url).to_owned(), model.first().map(|m| (*m).to_owned()))))
            }
            _ => return needs("a URL such as http://localhost:11434/v1 and a model name, or `off`"),
        },
        "looks" => match looks(rest) {
            Some(looks) => Line::Send(Command::SetLooks { looks }),
            None => {
                return needs(
                    "how many calls a role may make, how many rehearsals and measurements (200 at most), or `off`",
                );
            }
        },
        "mode" => match mode(rest) {
            Some(turns) => Line::Send(Command::SetTurns { turns }),
            None => return needs(&format!("propose, or iterate and perhaps how many turns ({MOST_TURNS} at most)")),
        },
        "mac-convention" => match crate::config::mac_convention(rest) {
            Some(c) => Line::MacConvention(c),
            None => return needs("conv_linear, attention or norms"),
        },
        "bind" => match rest {
            "" | "on" => Line::Send(Command::Confirm { take: true }),
            "off" => Line::Send(Command::Confirm { take: false }),
            _ => return needs("nothing, or off"),
        },
        "constraints" if rest.is_empty() => return needs("a file of rules"),
        "constraints" => Line::Rules(text()),
        "together" => match rest.split_whitespace().next() {
            Some(pattern) if pattern.contains('*') => {
                Line::Constrain(Limit::Together { set: pattern.to_owned() }, text())
            }
            _ => return needs("a pattern such as layer1.*"),
        },
        "prefer" => {
            let (word, reason) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            match Wish::parse(word) {
                Some(wish) => Line::Constrain(Limit::Prefer { wish }, reason.trim().to_owned()),
                None => return needs("cut, spare or a precision"),
            }
        }
        "max-ratio" | "at-least" => {
            let (ratio, reason) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            let ratio: f64 = match ratio.trim_end_matches('%').parse::<f64>() {
                Ok(v) if ratio.ends_with('%') => v / 100.0,
                Ok(v) => v,
                Err(_) => return needs("a ratio such as 0.25"),
            };
            if !(0.0..1.0).contains(&ratio) {
                return needs("a ratio from 0 to below 1");
            }
            let limit = if name == "at-least" { Limit::MinRatio { ratio } } else { Limit::MaxRatio { ratio } };
            Line::Constrain(limit, reason.trim().to_owned())
        }
        "note" if rest.is_empty() => return needs("a text"),
        "note" => Line::Send(Command::Note { text: text() }),
        "precision" => match Precision::parse(rest) {
            Some(precision) => Line::Precision(precision),
            None => {
                return needs(&format!(
                    "one of {}",
                    Precision::menu(true).iter().map(|p| p.label()).collect::<Vec<_>>().join(", ")
                ));
            }
        },
        "propose" => match rest {
            "" => Line::Do(Act::Propose),
            "planner" => Line::Commit(Command::Propose { by: Proposer::Planner }),
            "agents" => Line::Commit(Command::Propose { by: Proposer::Agents }),
            _ => return needs("planner or agents"),
        },
        "evaluate-all" => Line::Send(Command::EvaluateAll),
        "until-clear" => match rest {
            "" | "on" => Line::Send(Command::UntilClear { on: true }),
            "off" => Line::Send(Command::UntilClear { on: false }),
            _ => return needs("on or off"),
        },
        "factors" if rest.is_empty() => return needs("a rank such as 64 or 25%, or off"),
        "factors" if rest == "off" => Line::Factors(None),
        "factors" => Line::Factors(Some(rest.parse()?)),
        "report" => Line::Report(text()),
        "rollback" => Line::Send(Command::RollBack { reason: text() }),
        "rehearse" => Line::Commit(Command::Rehearse),
        "search" => Line::Commit(Command::Search),
        "select" if rest.is_empty() => return needs("a pattern such as layer1.*, or none"),
        "select" => Line::Select(text()),
        "sort" if rest.is_empty() => return needs("a column, or order"),
        "sort" => Line::Sort(text()),
        "sparsify" if rest.is_empty() => return needs("a pattern such as 2:4 or 50%, or off"),
        "sparsify" if rest == "off" => Line::Sparsify(None),
        "sparsify" => Line::Sparsify(Some(rest.parse()?)),
        "stop" => Line::Stop,
        "theme" if rest.is_empty() => return needs("a name"),
        "theme" => Line::Theme(text()),
        _ => {
            let hint = suggestion(name, COMMANDS.iter().map(|c| c.name));
            return Err(format!("no command `:{name}`; hint: {hint}"));
        }
    })
}

fn usage(name: &str) -> &'static str {
    COMMANDS.iter().find(|c| c.name == name).map_or("", |c| c.args)
}

/// A one-line text area with `text` and the cursor behind it.
pub fn line(text: &str) -> TextArea<'static> {
    let mut area = TextArea::new(vec![text.to_owned()]);
    area.set_cursor_line_style(Style::new());
    area.move_cursor(tui_textarea::CursorMove::End);
    area
}

/// The line being typed, with what could follow and where it is among earlier ones.
#[derive(Debug, Clone)]
pub struct CommandLine {
    pub area: TextArea<'static>,
    /// Whole-line completions with their explanation.
    pub offers: Vec<(String, String)>,
    pub chosen: Option<usize>,
    /// How many lines back it is from, while it is as it was entered then; 0: it is new, and nothing is typed yet.
    back: Option<usize>,
    /// The words that earlier lines are searched for.
    pub sought: Option<String>,
}

impl CommandLine {
    pub fn new(text: &str, known: &Known) -> CommandLine {
        let mut c = CommandLine { area: line(text), offers: Vec::new(), chosen: None, back: Some(0), sought: None };
        c.offers = offers(text, known);
        c
    }

    pub fn text(&self) -> String {
        self.area.lines().join(" ")
    }

    /// Something was typed: refreshes the offers.
    pub fn typed(&mut self, known: &Known) {
        let text = self.text();
        (self.chosen, self.sought) = (None, None);
        self.back = text.is_empty().then_some(0);
        self.offers = offers(&text, known);
    }

    /// Takes the next (or previous) offer into the line.
    pub fn cycle(&mut self, forward: bool) {
        let n = self.offers.len();
        if n == 0 {
            return;
        }
        let i = match (self.chosen, forward) {
            (None, true) => 0,
            (Some(i), true) => (i + 1) % n,
            (chosen, false) => (chosen.unwrap_or(0) + n - 1) % n,
        };
        (self.chosen, self.back, self.sought) = (Some(i), None, None);
        self.area = line(&self.offers[i].0);
    }

    /// An earlier line, or a later one again; of a line that something was typed into, the offers.
    pub fn walk(&mut self, earlier: bool, history: &History, known: &Known) {
        let Some(back) = self.back.filter(|back| earlier || *back > 0) else { return self.cycle(!earlier) };
        let to = if earlier { back + 1 } else { back - 1 };
        match history.back(to) {
            Some(text) => self.recall(to, text, known),
            None if !earlier => self.recall(0, "", known),
            // There are none.
            None if back == 0 => self.cycle(false),
            None => {}
        }
    }

    /// The next earlier line that has what is typed; whether there is one.
    pub fn search(&mut self, history: &History, known: &Known) -> bool {
        let from = self.sought.as_ref().and(self.back).unwrap_or(0);
        let words = self.sought.clone().unwrap_or_else(|| self.text());
        let found = history.find(&words, from);
        if let Some(back) = found {
            self.recall(back, history.back(back).unwrap_or_default(), known);
            self.sought = Some(words);
        }
        found.is_some()
    }

    fn recall(&mut self, back: usize, text: &str, known: &Known) {
        self.area = line(text);
        (self.back, self.chosen, self.sought) = (Some(back), None, None);
        self.offers = offers(text, known);
    }
}

/// `propose`, `iterate` or `iterate 6`: turns.
fn mode(words: &str) -> Option<usize> {
    match words.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["propose"] => Some(1),
        ["iterate"] => Some(USUAL_TURNS),
        ["iterate", turns] => turns.parse().ok().filter(|n| (2..=MOST_TURNS).contains(n)),
        _ => None,
    }
}

/// `12`, `12 2`, `12 2 4` or `off`.
fn looks(words: &str) -> Option<Looks> {
    let number = |w: &str| w.parse().ok().filter(|n| *n <= MOST_LOOKS);
    match words.split_whitespace().collect::<Vec<_>>().as_slice() {
        ["off"] => Some(Looks { calls: 0, rehearsals: 0, ..Looks::default() }),
        [calls] => Some(Looks { calls: number(calls)?, ..Looks::default() }),
        [calls, rehearsals] => {
            Some(Looks { calls: number(calls)?, rehearsals: number(rehearsals)?, ..Looks::default() })
        }
        [calls, rehearsals, measured] => Some(Looks {
            calls: number(calls)?,
            rehearsals: number(rehearsals)?,
            measurements: number(measured)?,
            ..Looks::default()
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_commands() {
        let budget = crate::plan::Budget { macs: Some(0.5), ..Default::default() };
        assert_eq!(parse(":budget macs=0.5"), Ok(Line::Send(Command::SetBudget { budget })));
        let llm = Line::Llm(Some(("http://h/v1".into(), Some("qwen3-32b".into()))));
        assert_eq!(parse("llm http://h/v1 qwen3-32b"), Ok(llm));
        assert_eq!(parse("llm off"), Ok(Line::Llm(None)));
        let role = |by| Ok(Line::Send(Command::SetRole { role: "pruning".into(), by }));
        let model = |url: Option<&str>| Answers::Model { model: "big".into(), base_url: url.map(str::to_owned) };
        assert_eq!(parse("llm pruning big"), role(Some(model(None))));
        assert_eq!(parse("llm pruning big http://h/v1"), role(Some(model(Some("http://h/v1")))));
        assert_eq!(
            (parse("llm pruning planner"), parse("llm pruning off")),
            (role(Some(Answers::Planner)), role(None))
        );
        assert!(parse("llm pruning").is_err() && parse("llm poet big").is_err());
        let looks = |calls, rehearsals| {
            Ok(Line::Send(Command::SetLooks { looks: Looks { calls, rehearsals, ..Looks::default() } }))
        };
        assert_eq!(parse("looks 20 3"), looks(20, 3));
        assert_eq!(parse("looks 5"), looks(5, 2));
        assert_eq!(parse("looks off"), looks(0, 0));
        let turns = |turns| Ok(Line::Send(Command::SetTurns { turns }));
        assert_eq!(
            (parse("mode propose"), parse("mode iterate"), parse("mode iterate 7")),
            (turns(1), turns(4), turns(7))
        );
        assert!(
            parse("mode iterate 1").is_err() && parse("mode iterate 99").is_err() && parse("mode approve").is_err()
        );
        assert!(parse("looks 900").is_err() && parse("looks many").is_err());
        let export =
            |format: &str, path: &str| Ok(Line::Send(Command::Export { path: path.into(), format: format.into() }));
        assert_eq!(parse("export  /tmp/a b"), export("", "/tmp/a b"));
        assert_eq!(parse("export pytorch /tmp/a b"), export("pytorch", "/tmp/a b"));
        assert_eq!(parse("mac-convention norms"), Ok(Line::MacConvention(MacConvention::Norms)));
        assert_eq!(
            parse("max-ratio 25% too deep"),
            Ok(Line::Constrain(Limit::MaxRatio { ratio: 0.25 }, "too deep".into()))
        );
        assert_eq!(parse("sparsify 2:4"), Ok(Line::Sparsify(Some(Sparsity::NofM { n: 2, m: 4 }))));
        assert_eq!(parse("precision W4"), Ok(Line::Precision(Precision::W4)));
        assert!(parse("precision w5").unwrap_err().contains("w4g128"));
        assert_eq!(parse("control"), Ok(Line::Control(Some(0.8))));
        assert_eq!(
            (parse("control 70%"), parse("control off")),
            (Ok(Line::Control(Some(0.7))), Ok(Line::Control(None)))
        );
        let asked = crate::control::Asked::Pinned(2);
        assert_eq!(parse("level 2"), Ok(Line::Send(Command::Level { asked })));
        assert_eq!(parse("q"), Ok(Line::Do(Act::Detach)));
        assert_eq!(parse("  "), Ok(Line::Empty));
    }

    #[test]
    fn mistakes_are_answered_with_a_hint() {
        for (line, wanted) in [
            ("budgte macs=1", "did you mean `budget`?"),
            ("budget macs=2", "hint: "),
            ("llm localhost", "hint: `:llm URL MODEL"),
            ("theme", "needs a name"),
            ("sort", "needs a column"),
            ("columns", "needs a set"),
            ("column", "needs a name"),
            ("errors all", "needs nothing"),
            ("layout", "needs a preset"),
            ("control fast", "needs a share"),
            ("level", "needs auto or"),
            ("max-ratio 1.5", "needs a ratio"),
        ] {
            let e = parse(line).unwrap_err();
            assert!(e.contains(wanted) && e.contains("hint: "), "{line}: {e}");
        }
    }

    #[test]
    fn every_command_of_the_palette_is_understood() {
        for c in COMMANDS {
            let e = parse(c.name).err().unwrap_or_default();
            assert!(!e.starts_with("no command"), "{}", c.name);
        }
    }

    #[test]
    fn completion_offers_and_cycles() {
        let known = Known::default();
        let mut c = CommandLine::new("th", &known);
        assert_eq!(c.offers.len(), 1);
        c.cycle(true);
        assert_eq!(c.text(), "theme ");
        c.typed(&known);
        assert!(c.offers.iter().any(|(t, _)| t == "theme cividis"), "{:?}", c.offers);
        c.cycle(false);
        assert!(c.text().starts_with("theme "));
    }

    #[test]
    fn earlier_lines_come_back_until_something_is_typed() {
        let (known, history) = (Known::default(), History::of("theme light\nfreeze layer1.*\nsort p50"));
        let mut c = CommandLine::new("", &known);
        let mut walk = |earlier| {
            c.walk(earlier, &history, &known);
            c.text()
        };
        let seen: Vec<String> = [true, true, true, true, false, false, false].map(&mut walk).to_vec();
        let wanted = ["sort p50", "freeze layer1.*", "theme light", "theme light", "freeze layer1.*", "sort p50", ""];
        assert_eq!(seen, wanted);
        // On a line that was typed the keys go through its offers.
        let mut c = CommandLine::new("", &known);
        c.area = line("theme ");
        c.typed(&known);
        c.walk(true, &history, &known);
        assert!(c.text().starts_with("theme ") && c.chosen.is_some(), "{}", c.text());
        // What is typed is looked for, further back each time.
        let mut c = CommandLine::new("e", &known);
        c.typed(&known);
        assert!(c.search(&history, &known) && c.text() == "freeze layer1.*");
        assert!(c.search(&history, &known) && c.text() == "theme light");
        assert!(!c.search(&history, &known) && c.text() == "theme light");
    }
}
