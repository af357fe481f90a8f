//! The words and marks of the screen, each with what it says: how it is measured, over what, in which unit.
//!
//! One table, from which the dialog (`explain`), its command and its completion are made. Not here: what a key does (`config/keymap`). Invariants: every
//! heading that the screen has is a word here (the tests below enumerate them); a precision is told in its own words.

use crate::quant::Precision;

/// A word with what it means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    pub term: &'static str,
    /// How it stands on the screen, `#` for any digit; empty: as the term itself.
    seen: &'static [&'static str],
    pub says: &'static str,
}

const fn word(term: &'static str, says: &'static str) -> Word {
    Word { term, seen: &[], says }
}

const fn sign(term: &'static str, seen: &'static [&'static str], says: &'static str) -> Word {
    Word { term, seen, says }
}

/// All but the names of precisions.
const WORDS: &[Word] = &[
    // Marks on figures.
    sign(
        "~",
        &["~#", "~−", "~-", "~+"],
        "expected, not measured: a forecast. Of weights: an estimate, since a large tensor was looked at in part.",
    ),
    sign(
        "?",
        &["#?", "? #", "? noisy"],
        "a figure that is not to be decided on: too few runs while the machine was quiet, samples that scatter or drift, a row unlike its twins, a clock that fell. It stays until the row, or all, is measured again.",
    ),
    sign(
        "~?",
        &["~?", "unmeasured"],
        "something in the plan was never measured, so that nothing is said of what it loses.",
    ),
    sign("†", &["†", "#'"], "measured on the model of an earlier round than the newest."),
    sign(
        "±",
        &["±", "+-"],
        "how far a median is known: half of its 95 % interval by order statistics, at least what two measurements of the same differ by.",
    ),
    sign(
        "95 %",
        &["95 %"],
        "intervals hold the true value with this probability; of accuracy over items, of latency over pairs of runs.",
    ),
    sign("x", &["#x"], "a factor of the original: 0.60x is six tenths of it."),
    sign("—", &["—"], "not known, or not measured yet."),
    // Where a decision stands.
    sign("○", &["○"], "free: nothing is proposed here; the original runs."),
    sign("●", &["●"], "proposed, and open: it waits for an approval."),
    sign("✎", &["✎"], "edited by a person, and open; in the header: who has the pen."),
    sign("✔", &["✔"], "approved: the next run builds it."),
    sign("✘", &["✘"], "vetoed: no later proposal may make it again."),
    sign("◆", &["◆"], "in force: the newest model that was made has it."),
    sign("◇", &["◇"], "in force and vetoed: the next run goes back to the original here."),
    sign("↺", &["↺"], "rolled back to the original."),
    sign("▌", &["▌"], "a row that is selected."),
    sign("»", &["»"], "a row that the running job works on; the status line says at what, and what was last measured."),
    // Weights.
    word("rms", "root mean square: the root of the mean of squared weights."),
    word(
        "effective rank",
        "how many directions a weight matrix really has: the exponential of the entropy of its singular values over their sum (Roy and Vetterli 2007).",
    ),
    sign(
        "weights off",
        &["weights off", "off %", "int8 %", "w4 %"],
        "how far a layer's weights are off in a precision, rounded to nearest: the root of the squared error over the root of the weights' squares. In `off %` in the precision that is planned; a column is filled by `:errors`, a row by view 8. Repairs may find better codes.",
    ),
    word(
        "output off",
        "how far a layer's outputs are off where it alone is in a precision: the root of the squared error over the root of the outputs' squares, run on calibration items by the kernels of this device; weights rounded to nearest.",
    ),
    word(
        "inputs",
        "what flows into a layer of the original on calibration items: from the least to the largest value, the part of exact zeros, and their histogram in bars of equal width.",
    ),
    // What a round changed.
    word(
        "lost",
        "items that the original gets right and the round's model does not; of tasks without right and wrong, that it scores lower.",
    ),
    word(
        "gained",
        "items that the round's model gets right and the original does not; of tasks without right and wrong, that it scores higher.",
    ),
    word(
        "calibration error",
        "how far confidence and accuracy are apart: over bins of confidence of equal width, the mean of their difference, weighted by the items in each (expected calibration error, Guo et al. 2017).",
    ),
    word("confidence", "the softmax of the class that a model answers: how likely it holds it."),
    word(
        "widest gap",
        "accuracy less confidence in the bin where the two are furthest apart (maximum calibration error), in points; negative where a model is surer than it is right. Of few items it says little.",
    ),
    word(
        "nats worse",
        "change of one token's loss: -ln of its chance by the round's model less that by the original's; the mean over a text is the change of its score.",
    ),
    word("lead", "by how much the right class's logit is above the best other one's; negative where it is behind."),
    // Latency.
    word(
        "p50 ms",
        "milliseconds a batch: the median of the row's runs as an observer saw them, scaled so that all rows add up to the whole model's median without observers. No decision saves more than its rows take.",
    ),
    word("p50", "the median: half of the samples are below it."),
    sign(
        "p95",
        &["p95", "p95 ms"],
        "the 95th percentile: one sample in twenty is above it; of a row scaled as its p50 is. Blocks have none: percentiles do not add up.",
    ),
    word(
        "vs pin",
        "the change of the row's p50 against what `:pin` pinned, per cent, negative for faster; faint where the ranges around both medians meet. Rows that were not measured then have none.",
    ),
    word(
        "act MB",
        "megabytes that the row writes for the whole batch, four bytes an element; of a block their sum, not what is alive at once.",
    ),
    word("p99", "the 99th percentile: one sample in a hundred is above it; told where there are 100 samples at least."),
    word("p95/p50", "the 95th percentile in medians of the same row: how long the slow runs take."),
    word(
        "n",
        "how many samples a figure rests on: runs that count, without those during which threads waited for a processor.",
    ),
    sign(
        "spread",
        &["spread", "scatter", "scatters"],
        "how far samples of the same lie apart; what is kept of them are the least, the median, the 95th and the 99th percentile.",
    ),
    word(
        "latency",
        "the median time of a whole run of one batch, warm, without observers, on the session's device; as a factor: the median of new/original over pairs of runs in one minute.",
    ),
    word("ms", "milliseconds; of a whole run of one batch where no row is named."),
    word(
        "whole",
        "the whole model's latency a batch, measured without observers, in turns with the runs that rows come from.",
    ),
    word("whole ms", "what the change is expected to take off the whole model's latency, milliseconds a batch."),
    word("this row ms", "of this row by its ladder: measured alone at that width or precision, milliseconds a batch."),
    word(
        "share",
        "part of all rows: of the sum of their medians as observed; of held memory, of what lives at that step.",
    ),
    word("of orig.", "the latency as a factor of the original's, the median over pairs of runs in one minute."),
    word("base", "the original; as a column the row's p50 ms in it."),
    sign(
        "r1",
        &["r#"],
        "a round by its number: as a column the row's p50 ms in its model; after a decision, the round that it is in force since.",
    ),
    sign(
        "live",
        &["live"],
        "figures of a measurement that goes on: medians so far, in italics, not to be decided on yet.",
    ),
    word(
        "order held",
        "figures have changed since the rows were sorted; they are sorted again when measuring ends, or by the sort key.",
    ),
    word(
        "replayed",
        "each sample is one launch of a captured CUDA graph, so that launching its kernels is no part of it.",
    ),
    word(
        "batch",
        "so many items go through the network at once; latency and activations are of a batch, MACs of one item.",
    ),
    word(
        "a token",
        "of a language model: one token after a context, with its keys and values kept, where the other figures are of a whole window.",
    ),
    word(
        "ladder",
        "how long a layer takes at other widths and precisions on this device, each rung measured: MACs do not predict it, and odd widths cost.",
    ),
    word(
        "knee",
        "the width from which on a cut costs much more, or saves much less, than up to it: where a ladder or a sensitivity bends. Of units by importance the one whose place on their falling curve lies farthest from the chord between the first and the last (Kneedle, Satopää et al. 2011); units that are all alike have none.",
    ),
    // What rows cost.
    sign(
        "MACs M",
        &["MACs M"],
        "millions of multiply-accumulate operations for one item (an image, a window of text; or one token, where rows show that); `:mac-convention` says what counts.",
    ),
    word(
        "MACs",
        "multiply-accumulate operations for one item (an image, a window of text): convolutions and linear layers, attention's products and norms where `:mac-convention` says so.",
    ),
    word("mem MB", "megabytes of the row's weights, as stored at the precision that runs."),
    sign(
        "memory",
        &["memory", "mem"],
        "as a goal: bytes of all weights as stored, as a factor of the original's. As what binds a row: its bytes move slower than its arithmetic is done. As a page: activations that live at each step.",
    ),
    word("MB", "megabytes, of weights as stored: 1 MB is 1,000,000 bytes."),
    word("kB", "kilobytes, of weights as stored: 1 kB is 1,000 bytes."),
    word("params", "numbers among the weights, whatever they are stored in."),
    sign(
        "activations",
        &["activations", "activation"],
        "what layers hand to each other: bytes for the whole batch, four an element.",
    ),
    sign(
        "peak",
        &["peak"],
        "the most bytes of activations alive at once, the input included: in this order of steps no arena can be smaller, and one may have gaps besides.",
    ),
    sign(
        "alive",
        &["alive", "held"],
        "a value is held from the step that writes it to the last that reads it; what a step reads and writes is alive together.",
    ),
    // The roofline.
    sign(
        "FLOP/B",
        &["FLOP/B", "FLOP a byte"],
        "operations (two a MAC) for each byte moved: weights, inputs and outputs. Low: memory binds; high: arithmetic does.",
    ),
    sign(
        "GFLOP/s",
        &["GFLOP/s", "FLOP a second"],
        "billions of operations a second that a row reached, at its median.",
    ),
    word("of it", "the part of the ceiling over it that a row reached."),
    sign(
        "ceiling",
        &["ceiling", "ceilings"],
        "what this device was measured to reach: f32 and int8 arithmetic, bytes a second from memory. A row above it finds its bytes in a cache, or the machine was busier when the ceiling was measured.",
    ),
    sign(
        "bound",
        &["bound"],
        "which ceiling a row is under, memory or compute; in view 8: what binds decisions on the row.",
    ),
    sign(
        "compute",
        &["compute", "compute-bound"],
        "arithmetic is what this row waits for: fewer MACs or cheaper ones make it faster.",
    ),
    sign(
        "memory-bound",
        &["memory-bound"],
        "moving bytes is what this row waits for: fewer bytes make it faster, fewer MACs alone do not.",
    ),
    word(
        "roofline",
        "rows by operations a second against operations a byte, under the ceilings of this device (Williams et al. 2009).",
    ),
    word("icicle", "rows within what their names have in common, each as wide as its part of the time."),
    // Sensitivity and quality.
    sign(
        "sens",
        &["sens", "sensitivity"],
        "how far the output moves as more of the group is cut, after a local re-fit, on calibration data: a bar a ratio, roots of the KL in nats; sorted by the one at half width.",
    ),
    word(
        "KL",
        "Kullback-Leibler divergence of the changed outputs from the original's, in nats: 0 is the same answer.",
    ),
    word(
        "KL alone",
        "measured of this change alone on calibration data, nats; both outputs softened where the original is over-sure.",
    ),
    sign("nats", &["nats", "nat"], "units of information by natural logarithms: 1 nat is 1.44 bits."),
    sign(
        "top-1",
        &["top-1", "top-1 %"],
        "the part of items whose right class is the network's first choice, per cent; changes in points, negative for worse.",
    ),
    sign(
        "top-5",
        &["top-5", "top-5 %"],
        "the part of items whose right class is among the network's first five, per cent.",
    ),
    sign(
        "nats/token",
        &["nats/token"],
        "mean surprise at the next token, nats: less is better; its exponential is the perplexity.",
    ),
    sign(
        "perplexity",
        &["perplexity"],
        "the exponential of the mean surprise a token: as unsure as among so many equally likely tokens.",
    ),
    sign(
        "next-token accuracy",
        &["next-token accuracy", "next-token accuracy %"],
        "the part of tokens that the network gave the highest probability, per cent.",
    ),
    sign(
        "accuracy",
        &["accuracy"],
        "the part of items that are answered right, over all of the data or the part that is told.",
    ),
    sign("points", &["points", "point"], "differences of percentages: from 92.0 to 91.5 is half a point."),
    word("change", "from the original to this round, in points or the metric's unit, negative for worse."),
    word(
        "paired",
        "the interval of that change, from both models' answers to the same items: narrower than the difference of two separate intervals.",
    ),
    sign(
        "class",
        &["class", "a class"],
        "what the class that loses most may lose, in points; measured, and nothing foretells it.",
    ),
    sign(
        "drop",
        &["drop"],
        "of a budget: what quality may lose at most, in points or the metric's unit. Of a plan: the block goes.",
    ),
    word("quality", "the task's own metric, and what a plan is expected to change of it."),
    sign("floor", &["floor"], "the least that quality may fall to: the original's less the budget's drop."),
    sign(
        "straddles",
        &["straddles", "holds the floor"],
        "an interval that has the target inside: more items, or pairs of runs, would tell.",
    ),
    sign(
        "rehearsed",
        &["rehearsed", "rehearsal", "rehearse"],
        "the plan was built and tried on items of the calibration set that are held back for that.",
    ),
    sign(
        "scanned",
        &["scanned", "scans", "by scans"],
        "each decision's own measured effect, added up as in plans that were tried.",
    ),
    sign(
        "calibration",
        &["calibration", "calib"],
        "data that sensitivities, re-fits and trials use; a round is judged on the evaluation data.",
    ),
    // Weights and gradients.
    word("|w|", "root of the sum of squares of the row's weights (Frobenius norm)."),
    word("zeros%", "the part of the weights that are exactly zero, per cent."),
    word(
        "rank %",
        "the effective rank (exponential of the entropy of singular values, Roy and Vetterli 2007), per cent of what it could be: low, and factors lose little.",
    ),
    word("|g|", "norm of the gradient of the loss that is trained on, about the last twenty steps of a healing."),
    word(
        "|gw|",
        "sum of |gradient x weight|: by how much the loss would change, to first order, with the weights removed one by one (Molchanov et al. 2019).",
    ),
    word(
        "noise",
        "the simple noise scale: images that a batch needs before its gradient is more than noise (McCandlish et al. 2018).",
    ),
    // Decisions.
    word("plan", "what would run on this row, with where the decision stands."),
    sign(
        "block's plan",
        &["● #/#", "✎ #/#", "✔ #/#", "✘ #/#", "◆ #/#", "◇ #/#", "#/# −", "#/# -"],
        "of a block's decisions how many are settled, of how many; then what of the stored bytes of its rows' weights goes if all of them are approved, against the original. It follows exactly from shapes and formats; + is what they grow by.",
    ),
    sign(
        "group",
        &["group", "groups"],
        "units of several layers that can only be cut together, since what one makes the others read.",
    ),
    sign(
        "step",
        &["step", "steps"],
        "units are cut in multiples of this: of heads, of channel groups, of what kernels like. On the memory page: a row as it runs.",
    ),
    sign("keep", &["keep", "kept"], "units of a group that stay."),
    sign("┊", &["┊", ": −", ": -"], "moves with its group, whose row decides."),
    sign("open", &["open"], "nothing is decided here, or what is proposed waits for you."),
    word("proposed", "an agent or the planner suggests it; nothing runs before you approve."),
    word("edited", "you changed what was proposed; it waits for your approval."),
    word("approved", "the next run builds it."),
    sign(
        "vetoed",
        &["vetoed", "veto"],
        "refused, with a reason that binds later proposals; what is in force goes with the next run.",
    ),
    sign("in force", &["in force"], "part of the newest model, since the round that is told."),
    sign(
        "vetoed, leaves",
        &["vetoed, leaves", "leaves"],
        "still in the newest model, vetoed since: the next run builds without it.",
    ),
    sign("rolled back", &["rolled back"], "its round was given up; the original runs here."),
    sign(
        "2:4",
        &["2:4", "4:8"],
        "zeros in a pattern: two of every four weights in a row are zero (or four of eight), which some kernels can skip.",
    ),
    sign(
        "rank",
        &["rank #", "rank"],
        "two low-rank factors in the place of a layer's weights: of a decision, how many directions they keep.",
    ),
    sign(
        "planner",
        &["planner"],
        "what proposes without a language model: it weighs what decisions save by the ladders against what scans say they lose.",
    ),
    sign("ledger", &["ledger", "so far:"], "what came of an agent's earlier expectations, over sessions."),
    // The header.
    sign(
        "budget",
        &["budget", "goal"],
        "what the compressed model must keep to: factors of the original's costs, and what quality may lose.",
    ),
    sign("round", &["round", "rounds"], "from what was measured to a verdict once; round 0 is the original."),
    sign(
        "profile",
        &["profile"],
        "the phase in which layers are measured; what that gave; view 9, which shows it a page at a time.",
    ),
    sign("reason", &["reason"], "the phase in which agents or the planner propose."),
    sign("review", &["review"], "the phase in which you decide; nothing else decides."),
    sign("compress", &["compress"], "the phase in which the approved plan is built: cut, repaired, packed."),
    sign(
        "evaluate",
        &["evaluate"],
        "the phase in which what was built runs on the evaluation data, beside the original.",
    ),
    sign(
        "verdict",
        &["verdict"],
        "the measured round against the budget: it waits until you accept it or roll it back.",
    ),
    word("within budget", "every measured figure keeps to its target, over its whole interval where it has one."),
    word("over budget", "a measured figure misses its target over its whole interval."),
    word("undecided", "an interval has the target inside: neither kept nor missed for certain."),
    sign("pen", &["pen"], "the right to decide: one terminal has it, others watch, and any may take it."),
    sign("watching", &["watching"], "another terminal has the pen, which this one may take."),
    sign("heal", &["heal", "healing"], "training what a run made for a while before it is judged."),
    sign(
        "until clear",
        &["until clear"],
        "rounds are evaluated only until it is clear whether the budget's drop is kept.",
    ),
    sign("if all approved", &["if all approved", "~all"], "forecasts count every open proposal as approved."),
    sign(
        "level",
        &["level", "levels"],
        "of a language model: a part of it that a controller may compute a token with.",
    ),
    // The machine.
    sign("cpu", &["cpu"], "how busy the processors were since the reading before, per cent."),
    sign(
        "others",
        &["others"],
        "what other programs took of all processors together, per cent; from 10 on they are in the way of measurements.",
    ),
    sign(
        "ram",
        &["ram"],
        "memory in use and in all: of the container, where one is bounded more tightly than its machine.",
    ),
    sign(
        "clock",
        &["clock", "GHz", "MHz"],
        "the fastest processor's clock; one that falls makes later figures slower.",
    ),
    sign("gpu", &["gpu"], "what the GPU that the session computes on says of itself."),
    word("kernel", "the code that ran a row, with the instructions that it uses."),
    sign(
        "observer",
        &["observer", "observers"],
        "what takes the time of each row during a run; it costs a little, so that the whole is measured without.",
    ),
];

/// Every word, in the order in which they are told.
pub fn words() -> impl Iterator<Item = Word> + Clone {
    let precisions = Precision::menu(true).iter().map(|p| word(p.label(), p.describe()));
    WORDS.iter().copied().chain(precisions)
}

impl Word {
    fn patterns(&self) -> &[&'static str] {
        if self.seen.is_empty() { std::slice::from_ref(&self.term) } else { self.seen }
    }

    /// Whether `text` is this word and nothing else, in any case.
    pub fn is(&self, text: &str) -> bool {
        let (text, lower) = (text.trim(), text.trim().to_lowercase());
        let whole = |p: &&str| matches(&lower, 0, &p.to_lowercase()) == Some(lower.len());
        text == self.term || lower == self.term.to_lowercase() || self.patterns().iter().any(whole)
    }

    /// Whether it stands somewhere in `text`, with nothing that would make it part of a longer word.
    pub fn stands_in(&self, text: &str) -> bool {
        self.patterns().iter().any(|p| stands(text, p))
    }
}

/// Where `pattern` ends if it begins at byte `at` of `text`.
fn matches(text: &str, at: usize, pattern: &str) -> Option<usize> {
    let mut rest = text.get(at..)?.chars();
    let mut end = at;
    for p in pattern.chars() {
        let c = rest.next()?;
        if c != p && !(p == '#' && c.is_ascii_digit()) {
            return None;
        }
        end += c.len_utf8();
    }
    Some(end)
}

fn stands(text: &str, pattern: &str) -> bool {
    let lettered = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let (first, last) = (pattern.chars().next(), pattern.chars().last());
    text.char_indices().any(|(at, _)| {
        let Some(end) = matches(text, at, pattern) else { return false };
        let before = lettered(first) && lettered(text[..at].chars().last());
        let after = lettered(last) && lettered(text[end..].chars().next());
        !before && !after
    })
}

/// The word that `text` names.
pub fn find(text: &str) -> Option<Word> {
    words().find(|w| w.term == text.trim()).or_else(|| words().find(|w| w.is(text)))
}

/// Places in [`words`] of those that stand on a screen of these lines.
pub fn on(lines: &[String]) -> Vec<usize> {
    let stands = |w: &Word| lines.iter().any(|l| w.stands_in(l));
    words().enumerate().filter(|(_, w)| stands(w)).map(|(i, _)| i).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Budget, Outcome};
    use crate::session::Phase;
    use crate::task::{Metric, NEXT_TOKEN, PERPLEXITY};
    use crate::tui::draw::{evaluate, layers};
    use crate::tui::outlook::goals;
    use crate::tui::palette::STANDINGS;
    use crate::tui::profile::Page;
    use crate::tui::standing;
    use std::collections::HashSet;

    fn told(text: &str) {
        assert!(find(text).is_some(), "`{text}` stands on the screen and has no word in the glossary");
    }

    #[test]
    fn every_heading_has_a_word() {
        layers::headings().iter().chain(&evaluate::headings()).filter(|h| !h.is_empty()).for_each(|h| told(h));
        let budget: Budget = "latency=0.5,macs=0.5,memory=0.5,params=0.5,drop=1,class=2,kl=0.05".parse().unwrap();
        let metric = Metric::top1(10);
        for goal in goals(&budget, &metric) {
            told(goal.name);
            told(goal.label(&metric));
        }
        // What tasks call their metrics, and the short form in the header.
        ["mem", "top-1 %", "top-5 %", "nats/token", PERPLEXITY, NEXT_TOKEN].into_iter().for_each(told);
        [Phase::Profile, Phase::Reason, Phase::Review, Phase::Compress, Phase::Evaluate, Phase::Verdict]
            .iter()
            .for_each(|p| told(p.label()));
        [Outcome::Accept, Outcome::Reject, Outcome::Undecided].iter().for_each(|o| told(o.label()));
        STANDINGS.iter().for_each(|s| told(standing::word(*s).split(" r").next().unwrap_or_default()));
        Page::ALL.iter().filter(|p| **p != Page::Machine).for_each(|p| told(p.name()));
        Precision::menu(true).iter().for_each(|p| told(p.label()));
        ["pen", "watching", "goal", "this row ms", "KL alone", "whole ms", "FLOP/B", "GFLOP/s", "of it", "bound"]
            .into_iter()
            .for_each(told);
        for asked in "ladder KL sens share ceiling floor straddles pen w4g128 p50 p95 p99 MACs ~ ? knee 2:4".split(' ')
        {
            told(asked);
        }
    }

    #[test]
    fn words_are_told_once_in_sentences() {
        let mut seen = HashSet::new();
        for w in words() {
            assert!(seen.insert(w.term), "`{}` twice", w.term);
            assert!(w.says.len() > 8 && !w.says.starts_with(char::is_uppercase) || w.term == "KL", "{w:?}");
        }
    }

    #[test]
    fn what_stands_on_a_screen_is_found_and_parts_of_other_words_are_not() {
        let on = |text: &str| -> Vec<&str> { words().filter(|w| w.stands_in(text)).map(|w| w.term).collect() };
        assert_eq!(on("12.3? ms"), ["?", "ms"]);
        assert!(on(" ? help").is_empty(), "a key");
        assert_eq!(on("items sensing"), Vec::<&str>::new());
        assert!(on("r2").contains(&"r1") && !on("bar2").contains(&"r1"));
        assert!(on("~0.61x").contains(&"~") && on("~0.61x").contains(&"x") && !on("box").contains(&"x"));
        assert!(on("W4G128").is_empty() && on("to w4g128,").contains(&"w4g128"));
        assert_eq!(find("W4G128").map(|w| w.term), Some("w4g128"));
        assert_eq!(find("kl").map(|w| w.term), Some("KL"));
        assert!(find("nonsense").is_none() && find("").is_none());
    }
}
