//! `paring robust`: how well a classifier of images holds beyond its accuracy, and beside another one on the same images.
//!
//! Here: what is asked, of whom, and how it is told. Not here: which figures there are and how they differ (`figures`), what they are reckoned
//! from (`eval::robust`).

mod figures;

use super::against::Original;
use super::out::{self, say};
use super::{Cancelled, Exit, UsageError, print_json, progress_line, setup};
use crate::args::Robust;
use crate::config::text::{clean, left};
use crate::data::{self, Dataset};
use crate::eval::EvalError;
use crate::eval::robust::{self, Asked, Attack, BINS, Corruption, Found, Subject};
use crate::exec::{CompileOptions, Plan};
use crate::host::compute::{classifies_text, takes_text};
use crate::model::Model;
use crate::quant::Calibration;
use crate::task::{FEWEST, RESAMPLES};
use crate::words::counted;
use anyhow::{Error, Result, bail};
use figures::Row;
use serde_json::json;

/// Images a batch unless told otherwise.
const BATCH: usize = 128;

/// The farthest that adversaries go, in levels of 255: from there on any image can be any other.
const FARTHEST: f64 = 255.0;

/// Runs the command; `how` static int8 layers find their ranges.
pub fn run(args: &Robust, how: Calibration) -> Result<Exit> {
    let asked = asked(args)?;
    let mut model = setup::model(&args.model, &args.on, args.precision.as_deref())?;
    if takes_text(&model) || classifies_text(&model) {
        bail!(
            "`{}` takes text: corruptions and adversaries are of images; hint: `paring eval` scores models of text",
            args.model
        );
    }
    let open = |spec: &str| Original::open(spec, (&args.model, &args.on), &model);
    let original = args.against.as_deref().map(open).transpose()?;
    let data = setup::data(args.data.as_deref(), &args.model, &model, args.limit)?;
    let outside = args.ood.as_deref().map(|spec| outside(spec, args, &data)).transpose()?;
    let opened = setup::device(&args.on)?;
    let ranges = setup::calibrate(&mut model, (&args.model, &args.model), args.calib.as_deref(), how)?;
    let compile = CompileOptions::on(&opened);
    let plan = Plan::of(&model, &compile)?;
    let base = original.as_ref().map(|o| Plan::of(&o.model, &compile)).transpose()?;
    out::notes(&model.info.notes);
    let cancel = super::cancel_on_signals()?;
    let batch = args.on.batch.unwrap_or(BATCH).max(1);
    let examined = |model: &Model, plan: &Plan| -> Result<Found> {
        let mut line = progress_line("");
        let mut part = String::new();
        let mut progress = |what: &str, done: usize, total: usize| {
            if part != what {
                line.clear();
                (line, part) = (progress_line(what), what.to_owned());
            }
            line.show(done as u64, total as u64);
        };
        let of = Subject { model, plan };
        let found = robust::examine(of, (&data, outside.as_ref()), &asked, batch, &cancel, &mut progress);
        line.clear();
        match found {
            Err(EvalError::Cancelled(_)) => Err(Cancelled.into()),
            other => Ok(other?),
        }
    };
    let found = examined(&model, &plan)?;
    let before = original.as_ref().zip(base.as_ref()).map(|(o, plan)| examined(&o.model, plan)).transpose()?;
    model.params.unchanged()?;
    if let Some(original) = &original {
        original.model.params.unchanged()?;
    }
    out::notes(found.notes.iter().chain(before.iter().flat_map(|f| &f.notes)));
    let rows = figures::rows(&found, before.as_ref(), &data);
    let told = Told {
        args,
        asked: &asked,
        model: &model,
        original: original.as_ref(),
        data: &data,
        outside: outside.as_ref(),
        device: &opened.words,
        ranges: ranges.as_deref(),
    };
    if args.json {
        told.json(&rows, &found)?
    } else {
        told.table(&rows)?
    }
    Ok(Exit::Done)
}

/// What is asked for, as the flags say.
fn asked(args: &Robust) -> Result<Asked> {
    let listed = |list: &str| -> Vec<String> { list.split(',').map(|w| w.trim().to_lowercase()).collect() };
    let corruptions = match &listed(&args.corruptions)[..] {
        [all] if all == "all" => Corruption::ALL.to_vec(),
        [none] if none == "none" => Vec::new(),
        some => {
            let parsed = some.iter().map(|w| w.parse::<Corruption>()).collect::<Result<Vec<_>, String>>();
            parsed.map_err(|e| UsageError::of("--corruptions", e))?
        }
    };
    let epsilons = listed(&args.epsilon).iter().map(|w| epsilon(w)).collect::<Result<Vec<f64>>>()?;
    let mut attacks = Vec::new();
    for name in listed(&args.attacks) {
        let known = ["fgsm", "pgd", "all", "none"];
        if !known.contains(&name.as_str()) {
            bail!(UsageError::of("--attacks", format!("unknown adversary `{name}`; hint: fgsm, pgd, all or none")));
        }
        for &e in &epsilons {
            if ["fgsm", "all"].contains(&name.as_str()) {
                attacks.push(Attack::fgsm(e));
            }
            if ["pgd", "all"].contains(&name.as_str()) {
                attacks.push(Attack { random_start: args.random_start, ..Attack::pgd(e, args.steps) });
            }
        }
    }
    Ok(Asked { corruptions, attacks, seed: args.seed })
}

fn epsilon(word: &str) -> Result<f64> {
    let found = word.parse::<f64>().ok().filter(|e| *e > 0.0 && *e <= FARTHEST);
    let why = || format!("`{word}` is no number of levels above 0 and up to 255; hint: for example 1 or 0.5,1,2");
    Ok(found.ok_or_else(|| UsageError::of("--epsilon", why()))?)
}

/// Images of another kind.
fn outside(spec: &str, args: &Robust, data: &Dataset) -> Result<Dataset> {
    let other = data::open(spec, args.limit).map_err(|e| Error::msg(format!("--ood: {e}")))?;
    let shared = other.overlaps(data);
    if shared > 0 {
        bail!(
            "--ood: {} of `{spec}` are evaluation images, too; hint: a data set of another kind",
            counted(shared, "image")
        );
    }
    Ok(other)
}

/// What was found of whom.
struct Told<'a> {
    args: &'a Robust,
    asked: &'a Asked,
    model: &'a Model,
    original: Option<&'a Original>,
    data: &'a Dataset,
    outside: Option<&'a Dataset>,
    device: &'a str,
    /// How static int8 layers found their ranges.
    ranges: Option<&'a str>,
}

impl Told<'_> {
    fn conventions(&self) -> Vec<String> {
        let mut said = vec![format!("calibration error over {BINS} bins of equal width (Guo et al. 2017)")];
        if let Some(first) = self.asked.corruptions.first() {
            let [h, w] = self.model.info.preprocess.size;
            let small = first.constant(1, h.max(w)) == first.constant(1, 32);
            let of = if small { "CIFAR-10-C" } else { "ImageNet-C" };
            said.push(format!("corruptions with the constants of {of}, seed {}", self.asked.seed));
        }
        if !self.asked.attacks.is_empty() {
            let start = if self.args.random_start { "a random point" } else { "the image" };
            said.push(format!(
                "adversaries in L∞, pgd from {start}; an image counts where every point on the way is answered rightly"
            ));
        }
        if self.original.is_some() {
            said.push(format!(
                "changes with 95 % intervals of pairs: Newcombe's for shares of right answers, else percentiles of {RESAMPLES} seeded \
                 bootstrap resamples (from {FEWEST} images on)"
            ));
        }
        said
    }

    fn json(&self, rows: &[Row], found: &Found) -> Result<()> {
        let (info, n) = (&self.model.info, found.clean.len());
        let attacks = self.asked.attacks.iter().map(|a| {
            json!({ "name": a.to_string(), "epsilon": a.epsilon / 255.0, "steps": a.steps, "step": a.step() / 255.0,
                "random_start": a.random_start })
        });
        let per_class =
            found.clean.per_class().into_iter().enumerate().map(
                |(c, (correct, n))| json!({ "class": self.data.class_names().get(c), "correct": correct, "n": n }),
            );
        print_json(&json!({
            "model": info.name,
            "family": info.family.label(),
            "original": self.original.map(|o| &o.model.info.name),
            "data": self.data.card().name,
            "n": n,
            "ood": self.outside.map(|o| json!({ "data": o.card().name, "n": o.len() })),
            "device": self.device,
            "ranges": self.ranges,
            "seed": self.asked.seed,
            "attacks": attacks.collect::<Vec<_>>(),
            "conventions": self.conventions(),
            "figures": rows.iter().map(Row::json).collect::<Vec<_>>(),
            "per_class": per_class.collect::<Vec<_>>(),
        }))
    }

    fn table(&self, rows: &[Row]) -> Result<()> {
        let info = &self.model.info;
        say!("model       {}  ({})", info.name, info.family.label())?;
        if let Some(o) = self.original {
            say!("against     {}  ({})", o.model.info.name, o.model.info.family.label())?;
        }
        say!("data        {}  {}", self.data.card().name, counted(self.data.len(), "image"))?;
        if let Some(o) = self.outside {
            say!("outside     {}  {}", o.card().name, counted(o.len(), "image"))?;
        }
        say!("device      {}", self.device)?;
        for (k, words) in self.conventions().iter().enumerate() {
            say!("{}  {words}", if k == 0 { "convention" } else { "          " })?;
        }
        say!()?;
        let title = |name: &str, of: &str| format!("{}  {of:>9}", left(name, figures::WIDTH));
        match self.original {
            None => say!("{}", title("", "model"))?,
            Some(_) => say!("{}  {:>9}       change", title("", "model"), "against")?,
        }
        for row in rows {
            say!("{}", clean(&row.line()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn of(flags: &[&str]) -> Result<Asked> {
        let line = [&["paring", "robust", "m"][..], flags].concat();
        match crate::args::Cli::try_parse_from(line).expect("parses").command {
            Some(crate::args::Cmd::Robust(args)) => asked(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_say_what_is_asked() {
        let all = of(&[]).unwrap();
        assert_eq!((all.corruptions.len(), all.passes()), (4, 23));
        assert_eq!(all.attacks, [Attack::fgsm(1.0), Attack::pgd(1.0, 20)]);
        let few =
            of(&["--corruptions", "jpeg, blur", "--attacks", "pgd", "--epsilon", "0.5,2", "--steps", "7"]).unwrap();
        assert_eq!(few.corruptions, [Corruption::Jpeg, Corruption::Blur]);
        assert_eq!(few.attacks, [Attack::pgd(0.5, 7), Attack::pgd(2.0, 7)]);
        let none = of(&["--corruptions", "none", "--attacks", "none"]).unwrap();
        assert_eq!(none.passes(), 1);
        for (flags, words) in [
            (["--corruptions", "fog"], "unknown corruption `fog`; hint: noise, blur, contrast, jpeg"),
            (["--attacks", "cw"], "unknown adversary `cw`; hint:"),
            (["--epsilon", "0"], "`0` is no number of levels"),
            (["--epsilon", "1,x"], "`x` is no number of levels"),
            (["--epsilon", "nan"], "`nan` is no number of levels"),
        ] {
            let said = of(&flags).unwrap_err().to_string();
            assert!(said.contains(words), "{said}");
        }
    }
}
