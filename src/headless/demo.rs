//! `paring demo`: pictures and stories of the synthetic sets, and training of the bundled models.

use super::Exit;
use super::out::{say, tell};
use crate::data::stories;
use crate::data::synthetic::{self, Split};
use crate::exec::Cancel;
use crate::train::demo::{self, DemoModel};
use anyhow::{Context, Error, Result, bail};
use serde_json::json;
use std::path::Path;

/// Writes the first `count` images of a split as PNG files named by number and class.
pub fn images(split: &str, count: usize, out: &Path) -> Result<Exit> {
    let split = part(split)?;
    std::fs::create_dir_all(out).with_context(|| format!("cannot make `{}`", out.display()))?;
    const SIDE: usize = 32;
    let mut planes = vec![0u8; 3 * SIDE * SIDE];
    for i in 0..count {
        let label = synthetic::draw(split, i as u64, &mut planes);
        let class = synthetic::CLASSES.get(usize::from(label)).copied().unwrap_or("unknown");
        let at = |c: usize, p: usize| planes.get(c * SIDE * SIDE + p).copied().unwrap_or(0);
        let rgb: Vec<u8> = (0..SIDE * SIDE).flat_map(|p| [at(0, p), at(1, p), at(2, p)]).collect();
        let path = out.join(format!("{i:05}-{class}.png"));
        image::save_buffer(&path, &rgb, SIDE as u32, SIDE as u32, image::ColorType::Rgb8)
            .with_context(|| format!("cannot write `{}`", path.display()))?;
    }
    say!("{}", out.display())?;
    Ok(Exit::Done)
}

/// Writes the first `count` stories of a split as JSON lines, as language models take them.
pub fn stories(split: &str, count: usize, out: &Path) -> Result<Exit> {
    let split = part(split)?;
    let mut lines = String::new();
    for story in stories::first(split, count) {
        lines.push_str(&json!({ "text": story.text }).to_string());
        lines.push('\n');
    }
    std::fs::write(out, lines).with_context(|| format!("cannot write `{}`", out.display()))?;
    say!("{}", out.display())?;
    Ok(Exit::Done)
}

fn part(name: &str) -> Result<Split> {
    match name {
        "train" => Ok(Split::Train),
        "calib" => Ok(Split::Calib),
        "eval" => Ok(Split::Eval),
        other => bail!("no split `{other}`; hint: train, calib or eval"),
    }
}

/// Trains a demo model and writes it to `out`; progress on stderr, the outcome on stdout.
pub fn train(kind: &str, seed: u64, out: &Path) -> Result<Exit> {
    let kind = DemoModel::named(kind).map_err(Error::msg)?;
    let mut told = 0;
    let trained = demo::train(kind, seed, out, &Cancel::default(), &mut |p| {
        if p.step >= told + 25 || p.step == p.steps {
            told = p.step;
            tell!("step {} of {}: loss {:.3}, top-1 {:.1} %", p.step, p.steps, p.loss, 100.0 * p.right);
        }
    })?;
    say!("{}: {}, {}", out.display(), trained.quality, trained.hash)?;
    Ok(Exit::Done)
}
