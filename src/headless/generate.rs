//! `paring generate`: what a language model says, token by token, and how long each token takes.

use super::out::{self, say, tell};
use super::{Cancelled, Exit, cancel_on_signals, print_json, setup};
use crate::args::Generate;
use crate::eval::{self, EvalError, Sampling, Written};
use crate::exec::{CompileOptions, DecodeOptions, Decoder, KvFormat, Plan};
use crate::files;
use crate::host::compute::takes_text;
use crate::model::{Model, Tokenizer};
use crate::profile::{LatencyStats, bandwidth};
use crate::words::counted;
use anyhow::{Context, Error, Result, bail};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::path::Path;

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
    let kv: KvFormat = args.kv.parse().map_err(|e: String| Error::msg(format!("--kv: {e}")))?;
    let model = setup::model(&args.model, &args.on, args.precision.as_deref())?;
    if !takes_text(&model) {
        bail!("`{}` is no language model; hint: `paring eval` classifies images", args.model);
    }
    let spec = args.tokenizer.as_ref().unwrap_or(&args.model);
    let tokenizer = Tokenizer::of(Path::new(spec))?
        .with_context(|| format!("`{spec}` comes without a vocabulary; hint: --tokenizer with the original model"))?;
    let prompt = prompt(args, &tokenizer)?;
    let tokens = args.tokens;
    let context = prompt.len() + tokens;
    let opened = setup::device(&args.on)?;
    let plan = Plan::of(&model, &CompileOptions::on(&opened).as_stored())?;
    out::notes(&model.info.notes);
    out::notes(beyond(&model, context).as_slice());
    let mut decoder = plan.decoder(&DecodeOptions { sequences: 1, context, kv })?;
    let how =
        Sampling { temperature: args.temperature, top_k: args.top_k, top_p: args.top_p, seed: args.seed.unwrap_or(0) };
    let ends = if args.ignore_end { &[][..] } else { tokenizer.ends() };
    let cancel = cancel_on_signals()?;
    let mut voice = Voice { tokenizer: &tokenizer, ids: Vec::new(), from: 0, said: 0, live: !args.json };
    let mut failed = None;
    let mut said = |id| {
        if let (Err(e), None) = (voice.say(id), &failed) {
            failed = Some(e);
        }
        // Nobody listens any more.
        if failed.is_some() || out::closed() {
            cancel.cancel();
        }
    };
    let written = eval::generate(&mut decoder, &prompt, (tokens, ends), how, &cancel, &mut said);
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
    let bandwidth = bandwidth(plan.device(), plan.threads())?;
    let figures = Figures { prompt: prompt.len(), written: &written, decoder: &decoder, bandwidth };
    if args.json {
        let text = tokenizer.decode(&written.ids)?;
        let mut told = figures.json(kv);
        told["model"] = json!(model.info.name);
        told["device"] = json!(opened.words);
        told["prompt_ids"] = json!(prompt);
        told["ids"] = json!(written.ids);
        told["text"] = json!(text);
        told["ended"] = json!(written.ended);
        print_json(&told)?;
        return Ok(Exit::Done);
    }
    say!("{}", voice.rest()?)?;
    figures.tell(kv, &opened.words);
    Ok(Exit::Done)
}

/// The prompt's ids: from `--prompt` or `--prompt-file`, after the id that the model's prompts begin with, where they do.
fn prompt(args: &Generate, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
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
    // What some editors put before a text is none of it.
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    let begin = tokenizer.first().filter(|_| !args.no_begin);
    let ids: Vec<u32> = begin.into_iter().chain(tokenizer.encode(text)?).collect();
    if ids.is_empty() {
        bail!("there is nothing to begin with; hint: --prompt with a text");
    }
    Ok(ids)
}

/// What is to be known where a text becomes longer than the model was made for.
fn beyond(model: &Model, context: usize) -> Option<String> {
    let most = model.info.context.filter(|most| context > *most)?;
    Some(format!("{context} tokens are more than the {most} that the model was made for"))
}

/// Says words as soon as they are whole: a character may take several tokens.
struct Voice<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    /// The first id of what is decoded anew each time, and bytes of that which were said.
    from: usize,
    said: usize,
    live: bool,
}

impl Voice<'_> {
    /// Ids that are decoded together at most, for a word's blanks and a character's bytes.
    const AT_ONCE: usize = 16;

    fn say(&mut self, id: u32) -> Result<()> {
        self.ids.push(id);
        if !self.live {
            return Ok(());
        }
        let text = self.tokenizer.decode(&self.ids[self.from..])?;
        if text.len() > self.said && !text.ends_with('\u{fffd}') {
            out::data(format_args!("{}", text.get(self.said..).unwrap_or_default()))?;
            std::io::stdout().flush().ok();
            self.said = text.len();
            if self.ids.len() - self.from > Voice::AT_ONCE {
                // The last one stays, so that what follows is decoded as a continuation.
                self.from = self.ids.len() - 1;
                self.said = self.tokenizer.decode(&self.ids[self.from..])?.len();
            }
        }
        Ok(())
    }

    /// What was held back.
    fn rest(&self) -> Result<String> {
        let text = self.tokenizer.decode(&self.ids[self.from..])?;
        Ok(text.get(self.said..).unwrap_or_default().to_owned())
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.3} MB", bytes as f64 / 1e6)
}

/// What was measured.
struct Figures<'a> {
    prompt: usize,
    written: &'a Written,
    decoder: &'a Decoder,
    /// GB/s that memory gives; 0 where that is not known.
    bandwidth: f64,
}

impl Figures<'_> {
    /// Milliseconds of tokens that follow the first.
    fn tokens(&self) -> LatencyStats {
        let ms: Vec<f64> = self.written.tokens.iter().map(|t| t.as_secs_f64() * 1e3).collect();
        LatencyStats::of(&ms)
    }

    /// Bytes of the cache that the text took.
    fn cache(&self) -> u64 {
        self.decoder.token_bytes() * self.decoder.tokens(0) as u64
    }

    /// Bytes that a token reads at the middle of the text: all weights, and the keys and values so far.
    fn read(&self) -> u64 {
        let middle = (self.prompt + self.decoder.tokens(0)) as u64 / 2;
        self.decoder.plan().bytes_per_token() + self.decoder.token_bytes() * middle
    }

    /// Bytes a nanosecond that the median token reads.
    fn rate(&self) -> Option<f64> {
        let t = self.tokens();
        (t.n > 0 && t.p50 > 0.0).then(|| self.read() as f64 / (t.p50 * 1e6))
    }

    fn json(&self, kv: KvFormat) -> Value {
        let (t, prompt) = (self.tokens(), self.written.prompt.as_secs_f64());
        json!({
            "prompt_tokens": self.prompt,
            "time_to_first_token_ms": prompt * 1e3,
            "prompt_tokens_per_s": self.prompt as f64 / prompt.max(1e-9),
            "tokens_per_s": (t.n > 0 && t.mean > 0.0).then(|| 1e3 / t.mean),
            "token_ms": (t.n > 0).then(|| json!({ "n": t.n, "p50": t.p50, "p95": t.p95, "p99": t.p99() })),
            "kv": kv.label(),
            "kv_bytes": self.cache(),
            "bytes_per_token": self.read(),
            "gb_per_s": self.rate(),
            "bandwidth_gb_per_s": (self.bandwidth > 0.0).then_some(self.bandwidth),
        })
    }

    fn tell(&self, kv: KvFormat, device: &str) {
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
        let held = counted(self.decoder.tokens(0), "token");
        tell!("cache    {} in {}, {held}", megabytes(self.cache()), kv.label());
        if let Some(rate) = self.rate() {
            let (read, ceiling) = (megabytes(self.read()), self.bandwidth);
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
