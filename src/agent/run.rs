//! Drives a dialogue over a real endpoint: sockets, clocks and the planner's thread are here, and only here.

use super::dialogue::{Dialogue, DialogueInput, Effect};
use super::tools::{self, Tool};
use super::{AgentInput, Chat, Endpoint, Listener, LlmError, Outcome, StandIn, Timeouts};
use crate::session::Feed;
use std::collections::VecDeque;
use std::time::Instant;
use tokio_util::sync::CancellationToken;

/// Runs the pipeline to its end and returns how it went. Never fails: what goes wrong is said, and the
/// planner stands in (`endpoint: None` means at once). Cancelling closes the connection, keeps what had been said as an
/// interrupted utterance, and proposes nothing more. Must run on a tokio runtime with time and I/O enabled.
pub async fn run(
    input: AgentInput,
    endpoint: Option<Endpoint>,
    timeouts: Timeouts,
    to: &mut impl Listener,
    cancel: &CancellationToken,
) -> Outcome {
    let stand_in = input.stand_in.clone();
    let mut dialogue = Dialogue::new(input);
    let mut line = Line { endpoint, timeouts, chat: None, model: String::new() };
    let mut effects: VecDeque<Effect> = dialogue.handle(DialogueInput::Start).into();
    while let Some(effect) = effects.pop_front() {
        let began = Instant::now();
        let effect = match effect {
            Effect::Feed(feed) => {
                to.feed(feed).await;
                continue;
            }
            Effect::Event(event) => {
                to.event(event).await;
                continue;
            }
            Effect::Done(outcome) => return outcome,
            Effect::Call { tool, asked } => {
                let answer = match tools::find(tool) {
                    // A tool that rehearses looks at the token itself, so that nothing is left half built.
                    Some(tool) => to.call(tool, asked).await,
                    None => Err(format!("no tool `{tool}`")),
                };
                let seconds = began.elapsed().as_secs_f64();
                effects.extend(match cancel.is_cancelled() {
                    true => dialogue.handle(DialogueInput::Cancelled { seconds }),
                    false => dialogue.handle(DialogueInput::Called { answer, seconds }),
                });
                continue;
            }
            work @ (Effect::Connect | Effect::Ask { .. } | Effect::StandIn) => work,
        };
        let input = {
            let mut on = async |feed: Feed| {
                dialogue.hear(&feed);
                to.feed(feed).await;
            };
            let work = line.work(effect, &stand_in, began, &mut on);
            tokio::select! {
                biased;
                _ = cancel.cancelled() => DialogueInput::Cancelled { seconds: began.elapsed().as_secs_f64() },
                input = work => input,
            }
        };
        effects.extend(dialogue.handle(input));
    }
    // Every path of the dialogue ends in `Done`.
    Outcome::default()
}

/// The connection, once there is one.
struct Line {
    endpoint: Option<Endpoint>,
    timeouts: Timeouts,
    chat: Option<Chat>,
    model: String,
}

impl Line {
    async fn work(
        &mut self,
        effect: Effect,
        stand_in: &StandIn,
        began: Instant,
        on: &mut impl AsyncFnMut(Feed),
    ) -> DialogueInput {
        let failed = |error| DialogueInput::Failed { error, seconds: began.elapsed().as_secs_f64() };
        match effect {
            Effect::Connect => match &self.endpoint {
                None => DialogueInput::NoEndpoint,
                Some(endpoint) => match self.connect(&endpoint.clone(), on).await {
                    Ok(()) => DialogueInput::Connected { model: self.model.clone() },
                    Err(e) => failed(e),
                },
            },
            Effect::Ask { role, messages, tools } => {
                let Some(chat) = &mut self.chat else { return DialogueInput::NoEndpoint };
                let tools: Vec<&Tool> = tools.into_iter().filter_map(tools::find).collect();
                match chat.ask(role, &messages, &tools, on).await {
                    Ok(reply) => DialogueInput::Replied { reply, seconds: began.elapsed().as_secs_f64() },
                    Err(e) => failed(e),
                }
            }
            Effect::StandIn => {
                let ask = stand_in.clone();
                let answer = tokio::task::spawn_blocking(move || ask()).await;
                DialogueInput::StoodIn(answer.unwrap_or_else(|e| Err(format!("the planner broke off: {e}"))))
            }
            Effect::Feed(_) | Effect::Event(_) | Effect::Call { .. } | Effect::Done(_) => DialogueInput::Start,
        }
    }

    async fn connect(&mut self, endpoint: &Endpoint, on: &mut impl AsyncFnMut(Feed)) -> Result<(), LlmError> {
        let mut chat = Chat::open(endpoint, self.timeouts)?;
        self.model = chat.model(on).await?;
        self.chat = Some(chat);
        Ok(())
    }
}
