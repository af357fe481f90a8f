//! How likely a language model holds each choice of a question to be, after the question.
//!
//! A choice is cut into tokens together with what stands before it, and its likelihood is the sum of its own tokens' log-probabilities, as
//! lm-evaluation-harness has it (`loglikelihood` requests). Not here: how questions are put (`data::questions`).

use super::error::{EvalError, Result};
use crate::data::Question;
use crate::exec::{Cancel, Plan};
use crate::model::Tokenizer;
use crate::task::surprise;
use candle_core::{Device, Tensor};

/// Bytes of logits that a batch of choices makes at most, unless one makes more.
const LOGITS: usize = 64 << 20;

/// What a model makes of one question.
#[derive(Debug, Clone, PartialEq)]
pub struct Weighed {
    /// Of each choice: the sum of its tokens' log-probabilities, in nats.
    pub nats: Vec<f64>,
    /// Of each choice: its characters, without the space before it.
    pub lengths: Vec<usize>,
    /// Some of the question's beginning was left out, being more than the model was made for.
    pub cut: bool,
}

impl Weighed {
    /// The likeliest choice, the first of equals: the harness's `acc`.
    pub fn likeliest(&self) -> usize {
        first_largest(self.nats.iter().copied())
    }

    /// The choice that is likeliest a character: its `acc_norm`.
    pub fn likeliest_by_length(&self) -> usize {
        first_largest(self.nats.iter().zip(&self.lengths).map(|(nats, n)| nats / *n as f64))
    }
}

fn first_largest(values: impl Iterator<Item = f64>) -> usize {
    values.enumerate().fold((0, f64::NEG_INFINITY), |best, (i, v)| if v > best.1 { (i, v) } else { best }).0
}

/// What is run for a choice, and how many of the tokens that follow its inputs are the choice's own.
#[derive(Debug, PartialEq)]
struct Run {
    inputs: Vec<u32>,
    /// The choice's tokens, the last of which is no input.
    own: Vec<u32>,
}

/// Weighs the choices of all `questions`; prompts begin with the token that the model's texts begin with, where they do, and keep their
/// end where they are longer than `context` tokens. `progress` gets questions done and in total.
///
/// # Errors
/// A choice that comes to no token of its own, or to more than the context; a failing model; cancellation (checked before each batch).
pub fn choices(
    plan: &Plan,
    tokenizer: &Tokenizer,
    questions: &[Question],
    context: Option<usize>,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Vec<Weighed>> {
    let mut session = plan.session();
    let mut all = Vec::with_capacity(questions.len());
    progress(0, questions.len());
    for (n, question) in questions.iter().enumerate() {
        let (runs, cut) = runs(question, n + 1, tokenizer, context)?;
        let mut nats = vec![0.0; runs.len()];
        for batch in batches(&runs, plan) {
            cancel.check()?;
            let ids: Vec<u32> = batch.iter().flat_map(|one| runs[one[0]].inputs.iter().copied()).collect();
            let tokens = ids.len() / batch.len();
            let logits = session.run(&Tensor::from_vec(ids, (batch.len(), tokens), &Device::Cpu)?)?;
            for (row, &i) in batch.iter().enumerate().flat_map(|(row, same)| same.iter().map(move |i| (row, i))) {
                let own = &runs[i].own;
                let rows = logits.get(row)?.narrow(0, tokens - own.len(), own.len())?;
                let rows = rows.to_dtype(candle_core::DType::F32)?.to_device(&Device::Cpu)?.to_vec2::<f32>()?;
                for (at, (row, id)) in rows.iter().zip(own).enumerate() {
                    let (lost, _) = surprise(row, *id).ok_or(EvalError::NotFinite { at })?;
                    nats[i] -= lost;
                }
            }
        }
        let lengths = question.choices.iter().map(|c| c.chars().count()).collect();
        all.push(Weighed { nats, lengths, cut });
        progress(n + 1, questions.len());
    }
    Ok(all)
}

/// Runs of equal length, so that nothing is padded, each with all those of equal inputs: what differs in its last token alone is run once.
fn batches(runs: &[Run], plan: &Plan) -> Vec<Vec<Vec<usize>>> {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    order.sort_by(|a, b| (runs[*a].inputs.len(), &runs[*a].inputs).cmp(&(runs[*b].inputs.len(), &runs[*b].inputs)));
    let same: Vec<Vec<usize>> =
        order.chunk_by(|a, b| runs[*a].inputs == runs[*b].inputs).map(<[usize]>::to_vec).collect();
    let vocabulary = plan.graph().vocabulary().unwrap_or(1);
    let alike = same.chunk_by(|a, b| runs[a[0]].inputs.len() == runs[b[0]].inputs.len());
    alike
        .flat_map(|alike| {
            let bytes = 4 * vocabulary * runs[alike[0][0]].inputs.len();
            alike.chunks((LOGITS / bytes.max(1)).max(1)).map(<[Vec<usize>]>::to_vec)
        })
        .collect()
}

/// The runs of question number `n`, and whether its beginning was left out of any.
fn runs(question: &Question, n: usize, tokenizer: &Tokenizer, context: Option<usize>) -> Result<(Vec<Run>, bool)> {
    let unfit = |reason: String| EvalError::Question { n, reason };
    let encode = |text: &str| tokenizer.encode(text).map_err(|e| unfit(e.to_string()));
    // Spaces at its end go with the choice, whose first token they are part of.
    let prompt = question.prompt.trim_end();
    let begin = tokenizer.first();
    let head = encode(prompt)?;
    let mut cut = false;
    let run = |choice: &String| {
        let whole = encode(&format!("{} {choice}", question.prompt))?;
        let own = whole.get(head.len()..).filter(|own| !own.is_empty());
        let own = own
            .ok_or_else(|| unfit(format!("its choice `{}` has no token of its own", crate::plain::line(choice))))?
            .to_vec();
        let inputs: Vec<u32> = begin.into_iter().chain(whole[..whole.len() - 1].iter().copied()).collect();
        if inputs.len() < own.len() {
            return Err(unfit("nothing stands before its choices".into()));
        }
        let most = context.unwrap_or(usize::MAX);
        if own.len() > most {
            return Err(unfit(format!("a choice has {} tokens, and the model was made for {most}", own.len())));
        }
        let past = inputs.len().saturating_sub(most);
        cut |= past > 0;
        Ok(Run { inputs: inputs[past..].to_vec(), own })
    };
    let all = question.choices.iter().map(run).collect::<Result<Vec<Run>>>()?;
    Ok((all, cut))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_the_likeliest_is_taken_as_it_is_and_by_length() {
        let w = Weighed { nats: vec![-6.0, -4.0, -4.0, -9.0], lengths: vec![3, 1, 2, 9], cut: false };
        assert_eq!((w.likeliest(), w.likeliest_by_length()), (1, 3));
        let w = Weighed { nats: vec![-3.0, -3.0], lengths: vec![1, 1], cut: false };
        assert_eq!((w.likeliest(), w.likeliest_by_length()), (0, 0));
    }
}
