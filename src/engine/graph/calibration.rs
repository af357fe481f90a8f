//! How the range that static int8 activations are coded over is chosen, and such ranges.

use serde::{Deserialize, Serialize};

/// How a static range is chosen from what was seen on calibration data.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Calibration {
    /// Everything that was seen.
    MinMax,
    /// This many percent of what was seen; the rest is cut off, half of it on either side.
    Percentile(f64),
    /// The cut that changes the distribution least, by Kullback-Leibler divergence (Migacz, "8-bit Inference with
    /// TensorRT", GTC 2017).
    Entropy,
    /// The range with the smallest expected squared error, of rounding within it and of cutting off beyond it (Banner et
    /// al., "Post training 4-bit quantization", NeurIPS 2019, for any distribution).
    Mse,
}

/// What `percentile` means when no number is given.
const PERCENT: f64 = 99.99;

impl Calibration {
    pub const ALL: [Calibration; 4] =
        [Calibration::MinMax, Calibration::Percentile(PERCENT), Calibration::Entropy, Calibration::Mse];

    pub fn label(self) -> String {
        match self {
            Calibration::MinMax => "minmax".into(),
            Calibration::Percentile(p) => format!("percentile:{p}"),
            Calibration::Entropy => "entropy".into(),
            Calibration::Mse => "mse".into(),
        }
    }
}

impl std::str::FromStr for Calibration {
    type Err = String;

    fn from_str(text: &str) -> Result<Calibration, String> {
        let (name, number) = text.trim().split_once(':').map_or((text.trim(), None), |(a, b)| (a, Some(b)));
        match (name, number) {
            ("minmax" | "min-max", None) => Ok(Calibration::MinMax),
            ("entropy", None) => Ok(Calibration::Entropy),
            ("mse", None) => Ok(Calibration::Mse),
            ("percentile", None) => Ok(Calibration::Percentile(PERCENT)),
            ("percentile", Some(n)) => match n.parse::<f64>() {
                Ok(p) if p > 50.0 && p <= 100.0 => Ok(Calibration::Percentile(p)),
                _ => Err(format!("`{n}` is no percentile; hint: above 50 and at most 100, such as {PERCENT}")),
            },
            _ => Err(format!("unknown calibration `{text}`; hint: minmax, percentile:{PERCENT}, entropy or mse")),
        }
    }
}

/// Values from `lo` to `hi`, zero among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Range {
    pub lo: f32,
    pub hi: f32,
}

impl Range {
    /// From `lo` to `hi`, widened to hold zero; an end that is no number counts as zero.
    pub fn covering(lo: f32, hi: f32) -> Range {
        Range { lo: lo.min(0.0), hi: hi.max(0.0) }
    }

    /// The range of the finite ones of `values`.
    pub fn of(values: &[f32]) -> Range {
        let finite = values.iter().filter(|v| v.is_finite());
        finite.fold(Range::default(), |r, &v| Range { lo: r.lo.min(v), hi: r.hi.max(v) })
    }

    /// Both.
    pub fn join(self, other: Range) -> Range {
        Range { lo: self.lo.min(other.lo), hi: self.hi.max(other.hi) }
    }

    /// What lies within `outer` as well.
    pub fn within(self, outer: Range) -> Range {
        Range { lo: self.lo.max(outer.lo), hi: self.hi.min(outer.hi) }
    }

    /// Finite ends with zero between them.
    pub fn is_sound(self) -> bool {
        self.lo.is_finite() && self.hi.is_finite() && self.lo <= 0.0 && self.hi >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibrations_by_name() {
        for m in Calibration::ALL {
            assert_eq!(m.label().parse(), Ok(m));
        }
        assert_eq!("percentile:99.9".parse(), Ok(Calibration::Percentile(99.9)));
        for bad in ["percentile:20", "percentile:x", "max", "mse:3"] {
            assert!(bad.parse::<Calibration>().is_err_and(|e| e.contains("hint")), "{bad}");
        }
    }

    #[test]
    fn ranges_hold_zero_and_survive_json() {
        assert_eq!(Range::covering(1.0, 2.0), Range { lo: 0.0, hi: 2.0 });
        assert_eq!(Range::covering(f32::NAN, f32::NAN), Range::default());
        assert_eq!(Range::of(&[3.0, f32::INFINITY, -1.0, f32::NAN]), Range { lo: -1.0, hi: 3.0 });
        for i in 1..500u32 {
            let r = Range { lo: -1.0 / i as f32, hi: (i as f32).sqrt() };
            assert_eq!(serde_json::from_str::<Range>(&serde_json::to_string(&r).unwrap()).unwrap(), r);
        }
    }
}
