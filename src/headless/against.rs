//! `paring eval --against`: a model beside its original, as those who compress networks judge it. How far the outputs moved, how
//! often both say the same, what the change costs.
//!
//! Here: which two may be compared, and how it is told. Not here: the arithmetic (`task::divergence`), the pass (`eval::against`).

use super::early::Stopped;
use super::out::say;
use super::setup;
use crate::args::On;
use crate::config::text::left;
use crate::eval::{Against, Divergence, Estimate, Paired, paired, wilson};
use crate::exec::Plan;
use crate::host::compute::takes_text;
use crate::model::{Model, Preprocess};
use crate::task::{FEWEST, NEXT_TOKEN, PERPLEXITY, RESAMPLES};
use crate::words::counted;
use anyhow::{Result, bail};
use serde_json::{Value, json};

/// What the model is compared with: as its file has it, whatever is asked of the model.
pub struct Original {
    pub model: Model,
    spec: String,
}

impl Original {
    /// Opens the model at `spec`, beside which `model` is to be put, which was opened from `a`.
    ///
    /// # Errors
    /// What cannot be opened; a model of another kind, with another vocabulary or other classes, or that sees images otherwise.
    pub fn open(spec: &str, (a, on): (&str, &On), model: &Model) -> Result<Original> {
        let original = setup::model(spec, on, None)?;
        let b = spec;
        let kind = |m: &Model| if takes_text(m) { "a language model" } else { "a classifier" };
        if takes_text(model) != takes_text(&original) {
            bail!(
                "`{a}` is {} and `{b}` {}; hint: --against with the model it was made from",
                kind(model),
                kind(&original)
            );
        }
        let (found, wanted) = (model.info.classes, original.info.classes);
        if takes_text(model) && found != wanted || model.graph.vocabulary() != original.graph.vocabulary() {
            let [found, wanted] = [model, &original].map(|m| m.graph.vocabulary().unwrap_or(m.info.classes));
            bail!(
                "`{a}` has a vocabulary of {found} tokens and `{b}` one of {wanted}: their logits are of unlike tokens"
            );
        }
        if found != wanted {
            bail!(
                "`{a}` has {} and `{b}` {wanted}; hint: --against with the model it was made from",
                counted(found, "class")
            );
        }
        let prepared = |m: &Model| Preprocess { origin: String::new(), ..m.info.preprocess.clone() };
        if !takes_text(model) && prepared(model) != prepared(&original) {
            bail!("`{a}` and `{b}` do not see images prepared in one way; hint: --mean and --std hold for both");
        }
        Ok(Original { model: original, spec: spec.to_owned() })
    }

    /// Where it was opened.
    pub fn spec(&self) -> &str {
        &self.spec
    }
}

/// A model and its original after a pass.
pub struct Beside<'a> {
    pub found: Against,
    pub original: &'a Original,
    /// The original's.
    pub plan: &'a Plan,
    /// Where the pass went on only until its verdict was clear.
    pub stopped: Option<Stopped>,
}

impl Beside<'_> {
    fn name(&self) -> &str {
        &self.original.model.info.name
    }

    fn family(&self) -> &'static str {
        self.original.model.info.family.label()
    }

    /// What is told of models of any kind.
    fn divergence(&self) -> Value {
        let d = &self.found.divergence;
        let (low, high) = ends(&d.kl);
        json!({ "mean": d.kl.value, "low": low, "high": high, "median": d.median, "p99": d.p99, "max": d.max })
    }

    /// A language model beside its original, for `--json`.
    pub fn language(&self) -> Value {
        let (m, d, worse) = (&self.found.original.metrics, &self.found.divergence, self.found.worse_by());
        json!({
            "original": self.name(),
            "family": self.family(),
            "nats_per_token": m.loss,
            "standard_error": m.standard_error,
            "perplexity": m.other(PERPLEXITY),
            "next_token_accuracy": m.other(NEXT_TOKEN),
            "weight_bytes": self.plan.weight_bytes(),
            "windows": d.items,
            "tokens": d.rows,
            "kl_divergence": self.divergence(),
            "top_token_agreement": value(&d.same_top),
            "nats_difference": value(&worse),
            "perplexity_ratio": value(&worse.map(f64::exp)),
            "interval": convention(d.items, "window"),
        })
    }

    /// The same of a classifier, whose answers are right or wrong.
    pub fn classes(&self, item: &str) -> Value {
        let (m, d, pair) = (&self.found.original.metrics, &self.found.divergence, self.pairs());
        let mut told = json!({
            "original": self.name(),
            "family": self.family(),
            "top1": m.score,
            "loss": m.loss,
            "weight_bytes": self.plan.weight_bytes(),
            "n": pair.n,
            "kl_divergence": self.divergence(),
            "prediction_agreement": value(&self.agreement()),
            "top1_change_points": { "value": pair.diff, "low": pair.low, "high": pair.high },
            "gained": pair.gained,
            "lost": pair.lost,
            "mcnemar_p": pair.p,
            "interval": self.items(d.items, item),
        });
        if let Some(stopped) = &self.stopped {
            told["until_clear"] = stopped.told();
        }
        told
    }

    /// Items that both take for the same class, as a share with Wilson's interval.
    fn agreement(&self) -> Estimate {
        let (n, value) = (self.found.divergence.items as f64, self.found.divergence.same_top.value);
        Estimate { value, range: (n > 0.0).then(|| wilson(value * n, n)) }
    }

    fn pairs(&self) -> Paired {
        paired(&self.found.original.correct(), &self.found.model.correct())
    }

    fn items(&self, n: usize, item: &str) -> String {
        format!("{}; Wilson's of the agreement, Newcombe's of the change", convention(n, item))
    }

    /// Says it of a language model.
    pub fn tell_language(&self) -> Result<()> {
        let (m, d, worse) = (&self.found.original.metrics, &self.found.divergence, self.found.worse_by());
        let (ratio, stored) = (worse.map(f64::exp), self.plan.weight_bytes() as f64 / 1e6);
        say!()?;
        say!("against     {}  ({})", self.name(), self.family())?;
        let perplexity = m.other(PERPLEXITY).map_or(String::new(), |p| format!(", perplexity {p:.4}"));
        say!("original    {:.5} nats/token{perplexity}, {stored:.3} MB in the plan", m.loss)?;
        say!("KL          {:.6} nats/token{}", d.kl.value, range(&d.kl, 6))?;
        say!("of tokens   {}", spread(d))?;
        say!("same top    {:.2} % of tokens{}", 100.0 * d.same_top.value, range(&percent(d.same_top), 2))?;
        say!("difference  {:+.5} nats/token{}", worse.value, range(&worse, 5))?;
        say!("perplexity  {:.5} of the original's{}", ratio.value, range(&ratio, 5))?;
        say!("intervals   {}", convention(d.items, "window"))?;
        Ok(())
    }

    /// Says it of a classifier.
    pub fn tell_classes(&self, item: &str) -> Result<()> {
        let (m, d, p) = (&self.found.original.metrics, &self.found.divergence, self.pairs());
        let (same, stored) = (self.agreement(), self.plan.weight_bytes() as f64 / 1e6);
        say!()?;
        say!("against   {}  ({})", self.name(), self.family())?;
        if let Some(stopped) = &self.stopped {
            stopped.tell(item)?;
        }
        say!("original  {:.2} %, loss {:.5}, {stored:.3} MB stored", 100.0 * m.score, m.loss)?;
        say!("KL        {:.6} nats{}", d.kl.value, range(&d.kl, 6))?;
        say!("of {} {}", left(&format!("{item}s"), 6), spread(d))?;
        say!("same top  {:.2} % of {item}s{}", 100.0 * same.value, range(&percent(same), 2))?;
        let change = Estimate { value: p.diff, range: Some((p.low, p.high)) };
        let pairs = format!("({} gained, {} lost, McNemar p {:.3})", p.gained, p.lost, p.p);
        say!("change    {:+.2} points{}  {pairs}", p.diff, range(&change, 2))?;
        say!("intervals {}", self.items(d.items, item))?;
        if let Some(stopped) = &self.stopped {
            stopped.tell_part(item)?;
        }
        Ok(())
    }
}

fn ends(e: &Estimate) -> (Option<f64>, Option<f64>) {
    (e.range.map(|r| r.0), e.range.map(|r| r.1))
}

fn value(e: &Estimate) -> Value {
    let (low, high) = ends(e);
    json!({ "value": e.value, "low": low, "high": high })
}

fn percent(share: Estimate) -> Estimate {
    share.map(|v| 100.0 * v)
}

/// `  [low, high]`, where there is an interval.
fn range(e: &Estimate, digits: usize) -> String {
    e.range.map_or(String::new(), |(low, high)| format!("  [{low:.digits$}, {high:.digits$}]"))
}

/// How the divergences of rows lie, in words.
fn spread(d: &Divergence) -> String {
    format!("median {:.6}, p99 {:.5}, max {:.4}", d.median, d.p99, d.max)
}

/// How intervals are made of so many items.
fn convention(n: usize, item: &str) -> String {
    match n {
        1 => format!("none: one {item} does not tell how far others are from it"),
        n if n < FEWEST => format!("95 %, Student's t of {n} {item}s, too few to be resampled"),
        _ => format!("95 %, percentiles of the means of {RESAMPLES} seeded bootstrap resamples of {n} {item}s"),
    }
}
