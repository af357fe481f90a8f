//! Drives a dialogue over a real endpoint: sockets, clocks and the planner's thread are here, and only here.

use super::dialogue::{Dialogue, DialogueInput, Effect};
use super::tools::{self, Does, Tool};
use super::{AgentInput, Chat, Endpoint, Listener, LlmError, Outcome, Question, StandIn, Timeouts, notice};
use crate::session::Feed;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};
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
    let (stand_in, others) = (input.stand_in.clone(), input.others.clone());
    let mut dialogue = Dialogue::new(input);
    let mut line = Line { endpoint, others, timeouts, chat: None, chats: BTreeMap::new() };
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
                if tools::find(tool).is_some_and(|t| t.does == Does::Measures)
                    && let Some(state) = to.state().await
                {
                    dialogue.learn(state);
                }
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
    /// Where roles are asked that are not asked there.
    others: BTreeMap<&'static str, Endpoint>,
    timeouts: Timeouts,
    chat: Option<Chat>,
    chats: BTreeMap<&'static str, Chat>,
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
                    Ok((model, others)) => DialogueInput::Connected { model, others },
                    Err(e) => failed(e),
                },
            },
            Effect::Ask { role, messages, tools, form, within } => {
                let chat = self.chats.get_mut(role).or(self.chat.as_mut());
                let Some(chat) = chat else { return DialogueInput::NoEndpoint };
                let tools: Vec<&Tool> = tools.into_iter().filter_map(tools::find).collect();
                let question =
                    Question { role, messages: &messages, tools: &tools, form: form.as_ref(), most: within.tokens };
                let answer = match within.seconds {
                    None => chat.ask(question, on).await,
                    Some(most) => {
                        match tokio::time::timeout(Duration::from_secs_f64(most), chat.ask(question, on)).await {
                            Ok(answer) => answer,
                            Err(_) => Err(LlmError::Limit { what: "the seconds of a proposal".to_owned() }),
                        }
                    }
                };
                match answer {
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

    /// Models by role where they have their own, besides the usual one.
    async fn connect(
        &mut self,
        endpoint: &Endpoint,
        on: &mut impl AsyncFnMut(Feed),
    ) -> Result<(String, BTreeMap<&'static str, String>), LlmError> {
        let (chat, model) = open(endpoint, self.timeouts, on).await?;
        self.chat = Some(chat);
        let mut models = BTreeMap::new();
        for (role, own) in self.others.clone() {
            match open(&own, self.timeouts, on).await {
                Ok((chat, model)) => {
                    self.chats.insert(role, chat);
                    models.insert(role, model);
                }
                Err(e) => {
                    on(notice(role, &format!("its own model cannot be asked, {model} answers for it: {e}"))).await
                }
            }
        }
        Ok((model, models))
    }
}

async fn open(
    endpoint: &Endpoint,
    timeouts: Timeouts,
    on: &mut impl AsyncFnMut(Feed),
) -> Result<(Chat, String), LlmError> {
    let mut chat = Chat::open(endpoint, timeouts)?;
    let model = chat.model(on).await?;
    Ok((chat, model))
}
