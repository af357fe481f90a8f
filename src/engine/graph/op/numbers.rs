//! How numbers of ops are written in JSON.

use serde::Deserialize;

/// Floats as decimal text. `serde_json` reads numbers to within an ulp only, and a graph that comes back from a file
/// must be the very same graph.
pub(super) mod exact {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(v: &f64, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{v:e}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().ok().filter(|v: &f64| v.is_finite()).ok_or_else(|| D::Error::custom("expected a number as text"))
    }
}

/// The same of a number that may be missing.
pub(super) mod exact_or_none {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    struct Exact(#[serde(with = "super::exact")] f64);

    pub fn serialize<S: Serializer>(v: &Option<f64>, s: S) -> Result<S::Ok, S::Error> {
        match v {
            Some(v) => super::exact::serialize(v, s),
            None => s.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Option<f64>, D::Error> {
        Ok(Option::<Exact>::deserialize(d)?.map(|v| v.0))
    }
}

/// The same of a list of numbers.
pub(super) mod exact_list {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    struct Exact(#[serde(with = "super::exact")] f64);

    pub fn serialize<S: Serializer>(v: &[f64], s: S) -> Result<S::Ok, S::Error> {
        s.collect_seq(v.iter().map(|v| Exact(*v)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<f64>, D::Error> {
        Ok(Vec::<Exact>::deserialize(d)?.into_iter().map(|v| v.0).collect())
    }
}

/// Padding as `[top, left, bottom, right]`; two numbers mean the same on both sides.
pub(super) fn sides<'de, D: serde::Deserializer<'de>>(d: D) -> Result<[usize; 4], D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Sides {
        Four([usize; 4]),
        Two([usize; 2]),
    }
    Ok(match Sides::deserialize(d)? {
        Sides::Four(p) => p,
        Sides::Two([y, x]) => [y, x, y, x],
    })
}
