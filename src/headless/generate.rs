//! `paring generate`: what a language model says, token by token, and how long each token takes.

use super::out::{self, say, tell};
use super::{Cancelled, Exit, cancel_on_signals, print_json, setup, template};
use crate::args::Generate;
use crate::control::Controller;
use crate::eval::{self, At, EvalError, Levels, Sampling, Written};
use crate::exec::{CompileOptions, DecodeOptions, Decoder, KvFormat, Plan};
use crate::files;
use crate::model::{ChatMessage, Speaker, Speaks, Tokenizer, Voice};
use crate::profile::{LatencyStats, bandwidth};
use crate::words::counted;
use anyhow::{Context, Error, Result, bail};
use serde_json::{Value, json};
use std::io::{Read, Write};

/// No text is longer.
const MOST: usize = 1 << 24;

/// A prompt is a text that somebody wrote, not a library.
const MAX_PROMPT: u64 = 16 << 20;

/// Runs the command.
pub fn run(args: &Generate) -> Result<Exit> {
    if !(args.temperature >= 0.0 && args.temperature.is_finite()) {
        bail!("--temperature: {} is no finite number of 0 or more", args.temperature);
    }
    if !(args.top_p > 0.0 && args.top_p <= 1.0) {
        bail!("--top-p: {} is not above 0 and at most 1", args.top_p);
    }
    if args.tokens > MOST {
        bail!("--tokens: {} are too many; hint: {MOST} at most", args.tokens);
    }
    let kv = setup::kv_format(args.kv.as_deref())?;
    let (mut model, tokenizer, spec) =
        setup::language(&args.model, args.tokenizer.as_deref(), &args.on, args.precision.as_deref())?;
    if kv.is_some() {
        KvFormat::undecide(&mut model);
    }
    let (prompt, ends) = prompt(args, spec, &tokenizer)?;
    // No other text is cut: of the vocabulary only what speaks is kept beside the weights.
    let speaker = Speaker::from(tokenizer);
    setup::give_back();
    let tokens = args.tokens;
    let context = prompt.len() + tokens;
    let opened = setup::device(&args.on)?;
    let options = CompileOptions::on(&opened).as_stored();
    let levelled =
        setup::levelled((&model, &args.model), args.at.level.as_deref(), args.precision.as_deref(), &options)?;
    let (plans, control) = (levelled.plans, levelled.control);
    out::notes(&model.info.notes);
    out::notes(setup::beyond(&model, context).as_slice());
    let mut decoder = setup::decoder(&plans, &DecodeOptions { sequences: 1, context, kv: kv.unwrap_or_default() })?;
    let kept = decoder.kept_in();
    // What opens and packs a model has been run, and is not needed again.
    setup::give_back();
    let mut controller = control.as_ref().map(|(c, asked)| Controller::new(&c.policy, *asked));
    let how =
        Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed.unwrap_or(0) };
    let ends = if args.ignore_end { &[][..] } else { &ends };
    let cancel = cancel_on_signals()?;
    let mut voice = Voice::default();
    // Of an answer, what ends it is no part.
    let silent = |id| args.json || (args.chat && speaker.is_special(id));
    let mut failed: Option<Error> = None;
    let mut heard = 0;
    let mut said = |id| {
        heard += 1;
        if heard == 2 {
            // What reads a prompt and computes a first token has been run, and is not needed again.
            setup::give_back();
        }
        if failed.is_none() && !silent(id) {
            failed = voice.say(&speaker, id).map_err(Error::from).and_then(|text| Ok(shown(&text)?)).err();
        }
        // Nobody listens any more.
        if failed.is_some() || out::closed() {
            cancel.cancel();
        }
    };
    let mut whole = At::default();
    let levels: &mut dyn Levels = match &mut controller {
        Some(controller) => controller,
        None => &mut whole,
    };
    let levels = &mut Lean { levels, read: false };
    let written = eval::generate_at(&mut decoder, &prompt, (tokens, ends), how, levels, &cancel, &mut said);
    if let Some(e) = failed {
        return Err(e);
    }
    if out::closed() {
        return Ok(Exit::Done);
    }
    let written = match written {
        Err(EvalError::Cancelled(_)) => return Err(Cancelled.into()),
        other => other?,
    };
    model.params.unchanged()?;
    let made = controller.map_or_else(|| vec![written.tokens.len()], |c| c.made);
    let mut figures = Figures::of(prompt.len(), &written, (&decoder, &plans), made);
    // What memory gives is measured with arrays of its own: not beside the weights.
    let (name, on, threads) = (model.info.name.clone(), plans[0].device().clone(), plans[0].threads());
    drop((decoder, plans, model));
    setup::give_back();
    figures.bandwidth = bandwidth(&on, threads)?;
    if args.json {
        let said: Vec<u32> = written.ids.iter().copied().filter(|id| !args.chat || !speaker.is_special(*id)).collect();
        let text = speaker.decode(&said)?;
        let mut told = figures.json(&kept);
        told["model"] = json!(name);
        told["device"] = json!(opened.words);
        told["prompt_ids"] = json!(prompt);
        told["ids"] = json!(written.ids);
        told["text"] = json!(text);
        told["ended"] = json!(written.ended);
        print_json(&told)?;
        return Ok(Exit::Done);
    }
    say!("{}", voice.rest(&speaker)?)?;
    figures.tell(&kept, &opened.words);
    Ok(Exit::Done)
}

/// Lets go of what was needed only once, after the first part of a prompt.
struct Lean<'a> {
    levels: &'a mut dyn Levels,
    read: bool,
}

impl Levels for Lean<'_> {
    fn next(&mut self, tokens: usize, logits: &[f32], id: u32) -> usize {
        self.levels.next(tokens, logits, id)
    }

    fn said(&mut self, logits: &[f32], level: usize) {
        self.levels.said(logits, level)
    }

    fn read(&mut self) {
        if !std::mem::replace(&mut self.read, true) {
            setup::give_back();
        }
    }
}

/// Text as the model writes it.
fn shown(text: &str) -> Result<(), out::Unwritten> {
    if !text.is_empty() {
        out::data(format_args!("{text}"))?;
        std::io::stdout().flush().ok();
    }
    Ok(())
}

/// The prompt's ids, from `--prompt` or `--prompt-file`, and those that end what follows. A question is what the model's template makes of it, other
/// text follows the id that the model's prompts begin with, where they do.
fn prompt(args: &Generate, spec: &str, tokenizer: &Tokenizer) -> Result<(Vec<u32>, Vec<u32>)> {
    let text = words(args)?;
    // What some editors put before a text is none of it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let (ids, ends) = if args.chat {
        let chat = setup::chat(spec)?.with_context(|| {
            format!("`{spec}` comes without a chat template; hint: --tokenizer with the original model, or no --chat")
        })?;
        let said = |role: &str, content: &str| ChatMessage { role: role.into(), content: content.into() };
        let system = args.system.as_deref().map(|s| said("system", s));
        let messages: Vec<ChatMessage> = system.into_iter().chain([said("user", text)]).collect();
        (chat.prompt(tokenizer, &messages, |m| template::render(&chat, m))?, chat.ends(tokenizer))
    } else {
        let begin = tokenizer.first().filter(|_| !args.no_begin);
        (begin.into_iter().chain(tokenizer.encode(text)?).collect(), tokenizer.ends().to_vec())
    };
    if ids.is_empty() {
        bail!("there is nothing to begin with; hint: --prompt with a text");
    }
    Ok((ids, ends))
}

/// What was typed, or stands in a file.
fn words(args: &Generate) -> Result<String> {
    let text = match (&args.prompt, &args.prompt_file) {
        (Some(text), None) => text.clone(),
        (None, Some(path)) if path.as_os_str() == "-" => {
            let mut text = String::new();
            let read = std::io::stdin().lock().take(MAX_PROMPT).read_to_string(&mut text);
            read.context("standard input is no UTF-8 text")?;
            text
        }
        (None, Some(path)) => {
            let bytes = files::read(path, MAX_PROMPT).with_context(|| format!("cannot read `{}`", path.display()))?;
            String::from_utf8(bytes).with_context(|| format!("`{}` is no UTF-8 text", path.display()))?
        }
        (None, None) => String::new(),
        (Some(_), Some(_)) => bail!("--prompt and --prompt-file are two prompts; hint: leave one out"),
    };
    Ok(text)
}

fn megabytes(bytes: u64) -> String {
    format!("{:.3} MB", bytes as f64 / 1e6)
}

/// What was measured.
struct Figures<'a> {
    prompt: usize,
    written: &'a Written,
    /// Tokens that the cache holds, and the bytes that they take.
    held: usize,
    cache: u64,
    /// Bytes that a token reads at the middle of the text: all weights, and the keys and values so far.
    read: u64,
    /// GB/s that memory gives; 0 where that is not known.
    bandwidth: f64,
    /// Tokens after the first that each level made.
    made: Vec<usize>,
}

impl<'a> Figures<'a> {
    /// All but the bandwidth.
    fn of(prompt: usize, written: &'a Written, (decoder, plans): (&Decoder, &[Plan]), made: Vec<usize>) -> Figures<'a> {
        let (held, each) = (decoder.tokens(0), decoder.token_bytes());
        let middle = (prompt + held) as u64 / 2;
        // The mean token's, of whatever levels made them.
        let all: u64 = plans.iter().zip(&made).map(|(p, n)| p.bytes_per_token() * *n as u64).sum();
        let weights = all.checked_div(made.iter().sum::<usize>() as u64).unwrap_or_else(|| plans[0].bytes_per_token());
        let read = weights + each * middle;
        Figures { prompt, written, held, cache: each * held as u64, read, bandwidth: 0.0, made }
    }

    /// Milliseconds of tokens that follow the first.
    fn tokens(&self) -> LatencyStats {
        let ms: Vec<f64> = self.written.tokens.iter().map(|t| t.as_secs_f64() * 1e3).collect();
        LatencyStats::of(&ms)
    }

    /// Bytes a nanosecond that the median token reads.
    fn rate(&self) -> Option<f64> {
        let t = self.tokens();
        (t.n > 0 && t.p50 > 0.0).then(|| self.read as f64 / (t.p50 * 1e6))
    }

    fn json(&self, kv: &str) -> Value {
        let (t, prompt) = (self.tokens(), self.written.prompt.as_secs_f64());
        json!({
            "prompt_tokens": self.prompt,
            "time_to_first_token_ms": prompt * 1e3,
            "prompt_tokens_per_s": self.prompt as f64 / prompt.max(1e-9),
            "tokens_per_s": (t.n > 0 && t.mean > 0.0).then(|| 1e3 / t.mean),
            "token_ms": (t.n > 0).then(|| json!({ "n": t.n, "p50": t.p50, "p95": t.p95, "p99": t.p99() })),
            "kv": kv,
            "kv_bytes": self.cache,
            "bytes_per_token": self.read,
            "tokens_per_level": (self.made.len() > 1).then_some(&self.made),
            "gb_per_s": self.rate(),
            "bandwidth_gb_per_s": (self.bandwidth > 0.0).then_some(self.bandwidth),
        })
    }

    fn tell(&self, kv: &str, device: &str) {
        let (t, prompt) = (self.tokens(), self.written.prompt.as_secs_f64());
        tell!("");
        tell!("device   {device}");
        let rate = self.prompt as f64 / prompt.max(1e-9);
        tell!(
            "prompt   {}, the first token after {:.1} ms: {rate:.1} tokens/s",
            counted(self.prompt, "token"),
            prompt * 1e3
        );
        if t.n > 0 {
            let tail = t.p99().map_or_else(String::new, |p| format!(", {p:.2} p99"));
            tell!(
                "written  {} tokens, {:.1} tokens/s; {:.2} ms a token at the median, {:.2} p95{tail}",
                self.written.ids.len(),
                1e3 / t.mean.max(1e-9),
                t.p50,
                t.p95
            );
        }
        if self.made.len() > 1 {
            let each: Vec<String> = self.made.iter().map(usize::to_string).collect();
            tell!("levels   {} tokens after the first at levels 0 to {}", each.join(", "), self.made.len() - 1);
        }
        let held = counted(self.held, "token");
        tell!("cache    {} in {}, {held}", megabytes(self.cache), kv);
        if let Some(rate) = self.rate() {
            let (read, ceiling) = (megabytes(self.read), self.bandwidth);
            match 100.0 * rate / ceiling {
                _ if ceiling <= 0.0 => tell!("read     {read} a token: {rate:.1} GB/s"),
                part @ ..100.0 => {
                    tell!("read     {read} a token: {rate:.1} GB/s, {part:.0} % of the {ceiling:.1} that memory gives");
                }
                _ => tell!("read     {read} a token: {rate:.1} GB/s, from caches"),
            }
        }
    }
}
