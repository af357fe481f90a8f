//! What a written answer is worth beside those that count as right: exact match and F1 of words as SQuAD counts them (Rajpurkar et al. 2016, its
//! `evaluate-v1.1.py`), ROUGE-1, -2 and -L (Lin 2004, as Google's `rouge_score` without stemming), and BLEU of all answers together (Papineni et
//! al. 2002, as sacreBLEU's default: Post 2018, `13a` tokens, exponential smoothing).
//!
//! Shares are 0 to 1, BLEU 0 to 100. Not here: where answers come from (`eval::answers`).

use regex_lite::Regex;
use std::collections::HashMap;
use std::sync::LazyLock;

/// One answer.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Worth {
    /// 1 where it is one of those that are right, but for case, punctuation and articles.
    pub exact: f64,
    /// Harmonic mean of the shares of words that are right, and that are said; of the best of the right ones.
    pub f1: f64,
    /// F-measures, of the best of the right ones each.
    pub rouge1: f64,
    pub rouge2: f64,
    pub rouge_l: f64,
}

impl Worth {
    /// `said` beside `right`, one at least.
    pub fn of(said: &str, right: &[String]) -> Worth {
        let best = |f: &dyn Fn(&str) -> f64| right.iter().map(|r| f(r)).fold(0.0, f64::max);
        let (words, bare) = (squad(said), plain(said));
        let exact = right.iter().any(|r| squad(r).join(" ") == words.join(" "));
        Worth {
            exact: f64::from(u8::from(exact)),
            f1: best(&|r| overlap(&words, &squad(r), 1)),
            rouge1: best(&|r| overlap(&bare, &plain(r), 1)),
            rouge2: best(&|r| overlap(&bare, &plain(r), 2)),
            rouge_l: best(&|r| longest(&bare, &plain(r))),
        }
    }
}

static ARTICLES: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\b(a|an|the)\b").expect("a sound pattern"));

/// Words without case, punctuation and articles.
fn squad(text: &str) -> Vec<String> {
    let lower: String = text.to_lowercase().chars().filter(|c| !c.is_ascii_punctuation()).collect();
    ARTICLES.replace_all(&lower, " ").split_whitespace().map(str::to_owned).collect()
}

/// Runs of letters and digits of ASCII, lower case.
fn plain(text: &str) -> Vec<String> {
    let lower = text.to_lowercase();
    lower
        .split(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit())
        .filter(|w| !w.is_empty())
        .map(str::to_owned)
        .collect()
}

fn grams(words: &[String], n: usize) -> HashMap<&[String], usize> {
    let mut out = HashMap::new();
    words.windows(n).for_each(|w| *out.entry(w).or_insert(0) += 1);
    out
}

/// Harmonic mean of the shares that both have of their runs of `n` words; 0 where either has none.
fn overlap(a: &[String], b: &[String], n: usize) -> f64 {
    let (count, of) = (grams(a, n), grams(b, n));
    let same: usize = count.iter().map(|(w, k)| (*k).min(of.get(w).copied().unwrap_or(0))).sum();
    harmonic(same, (a.len() + 1).saturating_sub(n), (b.len() + 1).saturating_sub(n))
}

/// As [`overlap`], of the longest common subsequence.
fn longest(a: &[String], b: &[String]) -> f64 {
    let mut row = vec![0usize; b.len() + 1];
    for x in a {
        let mut before = 0;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if x == y { before + 1 } else { above.max(row[j]) };
            before = above;
        }
    }
    harmonic(row[b.len()], a.len(), b.len())
}

fn harmonic(same: usize, a: usize, b: usize) -> f64 {
    if same == 0 || a == 0 || b == 0 { 0.0 } else { 2.0 * same as f64 / (a + b) as f64 }
}

/// What an answer adds to BLEU: by the length of runs of words, how many it has and how many of those are right; its words, and those of the right
/// answer nearest in length.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counts {
    pub right: [usize; 4],
    pub said: [usize; 4],
    pub words: usize,
    pub nearest: usize,
}

impl Counts {
    pub fn of(said: &str, right: &[String]) -> Counts {
        let words = thirteen(said);
        let references: Vec<Vec<String>> = right.iter().map(|r| thirteen(r)).collect();
        let mut out = Counts { words: words.len(), ..Counts::default() };
        let lengths = references.iter().map(Vec::len);
        out.nearest = lengths.min_by_key(|n| (n.abs_diff(words.len()), *n)).unwrap_or(0);
        for n in 1..=4 {
            let mut most: HashMap<&[String], usize> = HashMap::new();
            for reference in &references {
                for (gram, k) in grams(reference, n) {
                    let have = most.entry(gram).or_insert(0);
                    *have = (*have).max(k);
                }
            }
            let all = grams(&words, n);
            out.said[n - 1] = all.values().sum();
            out.right[n - 1] = all.iter().map(|(gram, k)| (*k).min(most.get(gram).copied().unwrap_or(0))).sum();
        }
        out
    }

    /// Both answers' together.
    #[must_use]
    pub fn plus(mut self, other: &Counts) -> Counts {
        (0..4).for_each(|n| {
            self.right[n] += other.right[n];
            self.said[n] += other.said[n];
        });
        (self.words, self.nearest) = (self.words + other.words, self.nearest + other.nearest);
        self
    }

    /// BLEU, 0 to 100.
    pub fn bleu(&self) -> f64 {
        if self.right.iter().all(|n| *n == 0) || self.said.contains(&0) {
            return 0.0;
        }
        let mut smooth = 1.0;
        let logs = self.right.iter().zip(&self.said).map(|(right, said)| {
            let part = match right {
                0 => {
                    smooth *= 2.0;
                    1.0 / smooth
                }
                n => *n as f64,
            };
            (part / *said as f64).ln()
        });
        let mean = logs.sum::<f64>() / 4.0;
        let short = if self.words < self.nearest { 1.0 - self.nearest as f64 / self.words as f64 } else { 0.0 };
        100.0 * (mean + short).exp()
    }
}

/// The replacements of the tokens that mteval-v13a cuts, one after the other.
static THIRTEEN: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
    let of = |pattern: &str| Regex::new(pattern).expect("a sound pattern");
    [
        (of(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), " $1 "),
        (of(r"([^0-9])([\.,])"), "$1 $2 "),
        (of(r"([\.,])([^0-9])"), " $1 $2"),
        (of(r"([0-9])(-)"), "$1 $2 "),
    ]
});

/// Words as mteval-v13a cuts them, as sacreBLEU has that.
fn thirteen(text: &str) -> Vec<String> {
    // Lines end with a space that is no word's.
    let text = text.trim_end();
    let mut line = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    if line.contains('&') {
        for (from, to) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
            line = line.replace(from, to);
        }
    }
    let mut line = format!(" {line} ");
    for (pattern, to) in THIRTEEN.iter() {
        line = pattern.replace_all(&line, *to).into_owned();
    }
    line.split_whitespace().map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Figures of SQuAD's script, `rouge_score` and sacreBLEU (`tests/conformance/make_answers.py`).
    #[test]
    fn figures_are_those_of_the_packages() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/conformance/language/answers.json");
        let told: Value = serde_json::from_str(&std::fs::read_to_string(path).expect("the fixture")).expect("JSON");
        let mut all = Counts::default();
        for case in told["cases"].as_array().expect("cases") {
            let said = case["said"].as_str().expect("text");
            let right: Vec<String> = serde_json::from_value(case["right"].clone()).expect("texts");
            let w = Worth::of(said, &right);
            for (name, ours) in
                [("exact", w.exact), ("f1", w.f1), ("rouge1", w.rouge1), ("rouge2", w.rouge2), ("rougeL", w.rouge_l)]
            {
                let theirs = case[name].as_f64().expect("a number");
                assert!((ours - theirs).abs() < 1e-9, "{said:?} {name}: {ours}, not {theirs}");
            }
            let own = Counts::of(said, &right);
            let theirs = case["bleu"].as_f64().expect("a number");
            assert!(
                (own.bleu() - theirs).abs() < 1e-9,
                "{said:?}: {}, not {theirs} ({:?})",
                own.bleu(),
                thirteen(said)
            );
            all = all.plus(&own);
        }
        let theirs = told["bleu"].as_f64().expect("a number");
        assert!((all.bleu() - theirs).abs() < 1e-9, "{} {theirs}", all.bleu());
    }

    #[test]
    fn nothing_said_is_worth_nothing() {
        let right = ["a word".to_owned()];
        assert_eq!(Worth::of("", &right), Worth::default());
        assert_eq!((Counts::of("", &right).bleu(), Counts::default().bleu()), (0.0, 0.0));
        assert_eq!(Worth::of("The Word!", &right).exact, 1.0);
    }
}
