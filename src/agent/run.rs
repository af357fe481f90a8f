//! Drives a dialogue over a real endpoint: sockets, clocks and the planner's thread are here, and only here.

use super::dialogue::{Dialogue, Effect, Input};
use super::{AgentEvent, AgentInput, Chat, Endpoint, LlmError, Outcome, Piece, Timeouts};
use std::collections::VecDeque;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Runs the pipeline to its end and returns how it went. Never fails: what goes wrong is said in the events, and the
/// planner stands in (`endpoint: None` means at once). Cancelling closes the connection, keeps what had been said as an
/// interrupted utterance, and proposes nothing more. Must run on a tokio runtime with time and I/O enabled.
pub async fn run(
    input: AgentInput,
    endpoint: Option<Endpoint>,
    emit: &mut (dyn FnMut(AgentEvent) + Send),
    cancel: &CancellationToken,
) -> Outcome {
    run_with(input, endpoint, Timeouts::default(), emit, cancel).await
}

/// [`run`] with other timeouts.
pub async fn run_with(
    input: AgentInput,
    endpoint: Option<Endpoint>,
    timeouts: Timeouts,
    emit: &mut (dyn FnMut(AgentEvent) + Send),
    cancel: &CancellationToken,
) -> Outcome {
    let stand_in = input.stand_in.clone();
    let mut dialogue = Dialogue::new(input);
    let mut line = Line { endpoint, timeouts, chat: None, model: String::new() };
    let mut effects: VecDeque<Effect> = dialogue.handle(Input::Start).into();
    while let Some(effect) = effects.pop_front() {
        let began = Instant::now();
        let work = async {
            match effect {
                Effect::Emit(event) => {
                    emit(event);
                    None
                }
                Effect::Connect => Some(line.connect(&mut |p| forward(&mut dialogue, p, emit)).await),
                Effect::Ask(messages) => {
                    let mut on = |p: Piece| forward(&mut dialogue, p, emit);
                    let Line { chat, model, endpoint, .. } = &mut line;
                    let reply = match chat {
                        Some(chat) => chat.ask(model, &messages, &mut on).await,
                        None => Err(LlmError::NoModel { url: endpoint.as_ref().map_or("", |e| &e.base_url).into() }),
                    };
                    let seconds = began.elapsed().as_secs_f64();
                    Some(match reply {
                        Ok(r) => Input::Replied { tokens: r.tokens, cut: r.cut, seconds },
                        Err(error) => Input::Failed { error, seconds },
                    })
                }
                Effect::StandIn => {
                    let ask = stand_in.clone();
                    let answer = tokio::task::spawn_blocking(move || ask()).await;
                    Some(Input::StoodIn(answer.unwrap_or_else(|e| Err(format!("the planner broke off: {e}")))))
                }
                Effect::Done(outcome) => Some(Input::Cancelled { seconds: 0.0 }).filter(|_| outcome.cancelled && false),
            }
        };
        let input = tokio::select! {
            biased;
            _ = cancel.cancelled() => Some(Input::Cancelled { seconds: began.elapsed().as_secs_f64() }),
            input = work => input,
        };
        if let Some(input) = input {
            effects.extend(dialogue.handle(input));
        }
    }
    dialogue.outcome()
}
