//! What configurations and GGUF files say of rotary positions, as one [`op::Rope`]: the base, how many values turn, and every scaling
//! that transformers knows (`modeling_rope_utils`), reduced to divisors of frequencies.

use super::{Reader, Result};
use crate::graph::op::{self, Beyond, Longer, Scaling};
use crate::graph::rotary::Pairs;
use crate::model::hf::Json;
use crate::model::{RawTensor, printable};
use std::f64::consts::PI;

/// Tensors of GGUF files with divisors: for all sequences, for short and for long ones.
pub(super) const TENSORS: [&str; 3] = ["rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"];

/// Heads of one width and the kind of network (`model_type`).
#[derive(Clone, Copy)]
pub(super) struct Heads<'a> {
    pub kind: &'a str,
    pub dim: usize,
    pub pairs: Pairs,
}

/// The object of the configuration that tells of rotary positions, with its name: in transformers an older one goes before a newer.
pub(super) fn written(r: &Reader) -> Result<Option<(&'static str, Json)>> {
    let c = &r.sidecar.config;
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(object) = c.inside(key) else { continue };
        if !object.is_object() {
            return Err(c.bad(format!("`{key}` is no JSON object")));
        }
        if !object.is_empty() {
            return Ok(Some((key, object)));
        }
    }
    Ok(None)
}

/// The positions of `heads`, by the object that [`written`] found.
pub(super) fn rope(r: &Reader, heads: Heads<'_>) -> Result<op::Rope> {
    let found = written(r)?;
    if let Some((key, _)) = found.as_ref().filter(|(_, object)| object.holds_objects()) {
        return Err(r.not(format!("rotary positions that differ between layers (`{key}`) are not supported")));
    }
    one(r, heads, found.as_ref().map(|(key, object)| (*key, object)), "rope_theta", 10_000.0)
}

/// The positions of `heads` by one object, or by what stands beside it alone. The base is `theta` where neither has one, in the object
/// or beside it under `key`.
pub(super) fn one(
    r: &Reader,
    heads: Heads<'_>,
    object: Option<(&str, &Json)>,
    key: &str,
    theta: f64,
) -> Result<op::Rope> {
    let c = &r.sidecar.config;
    let inside = |name: &str| object.map_or(Ok(None), |(_, o)| o.number(name));
    let theta = match inside("rope_theta")? {
        Some(theta) => theta,
        None => c.number(key)?.unwrap_or(theta),
    };
    if theta <= 0.0 {
        return Err(c.bad(format!("`{key}` is not positive")));
    }
    let share = inside("partial_rotary_factor")?.map_or_else(|| c.number("partial_rotary_factor"), |s| Ok(Some(s)))?;
    let turned = match (c.count("rotary_dim")?, share) {
        (Some(n), _) => n,
        (None, Some(share)) if (0.0..=1.0).contains(&share) => (heads.dim as f64 * share) as usize,
        (None, Some(_)) => return Err(c.bad("`partial_rotary_factor` is out of range")),
        (None, None) => heads.dim,
    };
    let plain = op::Rope::plain(heads.dim, turned, theta, heads.pairs);
    let scaling = Read { r, object, plain: &plain, kind: heads.kind }.scaling()?;
    Ok(op::Rope { scaling: scaling.map(Box::new), ..plain })
}

/// One object under way.
struct Read<'a> {
    r: &'a Reader<'a>,
    object: Option<(&'a str, &'a Json)>,
    plain: &'a op::Rope,
    kind: &'a str,
}

impl Read<'_> {
    fn scaling(&self) -> Result<Option<Scaling>> {
        let key = self.object.map_or("rope_parameters", |(key, _)| key);
        let told = |name: &str| self.object.map_or(Ok(None), |(_, object)| object.string(name));
        let name = match told("rope_type")? {
            Some(name) => Some(name),
            None => told("type")?,
        };
        // Phi-3's GGUF files have the tensors and no word for it.
        let name = name.or_else(|| self.tensor(TENSORS[2]).is_ok_and(|t| t.is_some()).then_some("longrope"));
        // Published before they had their name.
        let name = name.map(|n| if self.kind == "phi3" && ["su", "yarn"].contains(&n) { "longrope" } else { n });
        let plain = Scaling { divisors: Vec::new(), factor: 1.0, beyond: None };
        let scaling = match name {
            None if self.number("factor")?.is_some() => {
                return Err(self.r.not(format!("scaled rotary positions without a type (`{key}` has a factor)")));
            }
            None | Some("default" | "none") => None,
            Some("linear") => Some(Scaling { divisors: vec![self.factor()?; self.pairs()], ..plain }),
            Some("dynamic") => {
                let (tokens, how) = (self.context()?, Longer::Stretched(self.factor()?));
                Some(Scaling { beyond: Some(Beyond { tokens, how }), ..plain })
            }
            Some("llama3") => Some(Scaling { divisors: self.llama3()?, ..plain }),
            Some("yarn") => Some(self.yarn()?),
            Some("longrope" | "su") => Some(self.longrope()?),
            Some(other) => {
                let known = "linear, dynamic, llama3, yarn and longrope are supported";
                return Err(self.r.not(format!("scaled rotary positions (`{}`): {known}", printable(other))));
            }
        };
        self.of_file(scaling)
    }

    fn pairs(&self) -> usize {
        self.plain.turned / 2
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        self.object.map_or(Ok(None), |(_, object)| object.number(name))
    }

    /// A number that must be told and positive.
    fn positive(&self, name: &str) -> Result<f64> {
        let (key, config) = (self.object.map_or("", |o| o.0), &self.r.sidecar.config);
        match self.number(name)? {
            Some(n) if n > 0.0 => Ok(n),
            Some(_) => Err(config.bad(format!("`{name}` of `{key}` is not positive"))),
            None => Err(config.bad(format!("`{key}` tells no `{name}`"))),
        }
    }

    fn factor(&self) -> Result<f64> {
        match self.positive("factor")? {
            f if f >= 1.0 => Ok(f),
            _ => Err(self.r.sidecar.config.bad("the factor of rotary positions is less than 1")),
        }
    }

    /// Tokens that the network was made for.
    fn context(&self) -> Result<usize> {
        let c = &self.r.sidecar.config;
        c.count("max_position_embeddings")?
            .ok_or_else(|| c.bad("scaled rotary positions need `max_position_embeddings`"))
    }

    /// Tokens that it was trained with before its positions were scaled.
    fn original(&self) -> Result<usize> {
        let (name, c) = ("original_max_position_embeddings", &self.r.sidecar.config);
        let inside = self.object.map_or(Ok(None), |(_, object)| object.count(name));
        match (c.count(name)?, inside?) {
            (Some(n), _) | (None, Some(n)) => Ok(n),
            // The default of its class.
            (None, None) if self.kind == "phi3" => Ok(4096),
            (None, None) => self.context(),
        }
    }

    /// Long waves are stretched, short ones not, those between them in part.
    fn llama3(&self) -> Result<Vec<f64>> {
        let (factor, original) = (self.factor()?, self.original()? as f64);
        let (low, high) = (self.positive("low_freq_factor")?, self.positive("high_freq_factor")?);
        if high <= low {
            return Err(self.r.sidecar.config.bad("`high_freq_factor` is not above `low_freq_factor`"));
        }
        Ok(Scaling::llama3(self.plain, original, factor, [low, high]))
    }

    /// Peng et al. 2023, section 3.2; bounds as transformers has them.
    fn yarn(&self) -> Result<Scaling> {
        let (c, original) = (&self.r.sidecar.config, self.original()? as f64);
        let factor = match self.number("factor")? {
            Some(_) => self.factor()?,
            None => (self.context()? as f64 / original).max(1.0),
        };
        if self.number("extrapolation_factor")?.is_some_and(|n| n != 1.0) {
            return Err(self.r.not("its rotary positions have an extrapolation factor other than 1"));
        }
        let mscale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
        let told = |n: Option<f64>| n.filter(|n| *n != 0.0);
        let attention = match (self.number("attention_factor")?, told(self.number("mscale")?)) {
            (Some(a), _) => a,
            (None, Some(m)) if told(self.number("mscale_all_dim")?).is_some() => {
                mscale(m) / mscale(self.positive("mscale_all_dim")?)
            }
            (None, _) => mscale(1.0),
        };
        let beta = |name: &str, default: f64| -> Result<f64> { Ok(told(self.number(name)?).unwrap_or(default)) };
        let (fast, slow) = (beta("beta_fast", 32.0)?, beta("beta_slow", 1.0)?);
        if fast <= 0.0 || slow <= 0.0 || self.plain.theta <= 1.0 {
            return Err(c.bad("`beta_fast`, `beta_slow` and the base of rotary positions do not make a range"));
        }
        let (turned, theta) = (self.plain.turned as f64, self.plain.theta);
        let place = |turns: f64| turned * (original / (turns * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (place(fast), place(slow));
        if self.object.map_or(Ok(None), |(_, o)| o.bool("truncate"))?.unwrap_or(true) {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, mut high) = (low.max(0.0), high.min(turned - 1.0));
        if low == high {
            high += 0.001;
        }
        let shares = (0..self.pairs()).map(|i| 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0));
        Ok(Scaling { divisors: Scaling::mixed(factor, shares), factor: attention, beyond: None })
    }

    /// Ding et al. 2024: divisors of their own for each pair, others in sequences longer than those of training.
    fn longrope(&self) -> Result<Scaling> {
        let (tokens, c) = (self.original()?, &self.r.sidecar.config);
        let list = |name: &str, tensor: &str| {
            let told = self.object.map_or(Ok(None), |(_, object)| object.numbers(name))?;
            let found = told.map_or_else(|| self.tensor(tensor), |l| Ok(Some(l)))?;
            found.ok_or_else(|| c.bad(format!("rotary positions need a list `{name}`")))
        };
        let (short, long) = (list("short_factor", TENSORS[1])?, list("long_factor", TENSORS[2])?);
        let factor = match (self.number("attention_factor")?, self.number("factor")?) {
            (Some(a), _) => a,
            // A GGUF file tells it beside; see `of_file`.
            (None, _) if self.r.c.gguf.is_some() => 1.0,
            (None, told) => {
                let factor = told.map_or_else(|| self.context().map(|n| n as f64 / tokens as f64), Ok)?;
                Scaling::longrope_factor(factor, tokens as f64)
            }
        };
        Ok(Scaling { divisors: short, factor, beyond: Some(Beyond { tokens, how: Longer::Divided(long) }) })
    }

    /// The values of a tensor of a GGUF file.
    fn tensor(&self, name: &str) -> Result<Option<Vec<f64>>> {
        match self.r.c.tensors.get(name).filter(|_| self.r.c.gguf.is_some()) {
            None => Ok(None),
            Some(RawTensor::Float(p)) => Ok(Some(p.values().iter().map(|v| f64::from(*v)).collect())),
            Some(_) => Err(self.r.not(format!("tensor `{name}` holds no floats"))),
        }
    }

    /// `scaling` with what a GGUF file tells besides: in tensors (llama.cpp's converter reduces Llama 3's to one), and one more factor.
    fn of_file(&self, scaling: Option<Scaling>) -> Result<Option<Scaling>> {
        let more = self.tensor(TENSORS[0])?;
        let told = self.number("attn_factor")?.filter(|n| *n != 1.0);
        if more.is_none() && told.is_none() {
            return Ok(scaling);
        }
        let mut s = scaling.unwrap_or(Scaling { divisors: Vec::new(), factor: 1.0, beyond: None });
        s.factor *= told.unwrap_or(1.0);
        if let Some(more) = more {
            if s.beyond.is_some() || more.len() != self.pairs() {
                return Err(self.r.not(format!("tensor `{}` does not fit its rotary positions", TENSORS[0])));
            }
            s.divisors.resize(more.len(), 1.0);
            s.divisors.iter_mut().zip(more).for_each(|(d, m)| *d *= m);
        }
        Ok(Some(s))
    }
}
