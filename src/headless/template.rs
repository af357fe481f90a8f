//! A chat template at work in a process of its own: it is a program from a model's file, and of its time and memory a process has an end.
//!
//! Here: both sides, the process (the hidden command `template`) and whoever starts it. Not here: what a template computes
//! (`model::chat`). Invariant: nothing that a template does ends, stops or fills the process that asks for it.

use super::{Exit, print_json};
use crate::model::{ChatError, ChatMessage, ChatTemplate};
use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};

/// Seconds of a processor, and bytes of memory: a stack of which little is used is a third of them.
const SECONDS: libc::rlim_t = 5;
const BYTES: libc::rlim_t = 3 << 29;

/// Bytes that go in or come out at most; JSON may write six for one.
const MOST: u64 = 128 << 20;

#[derive(Serialize, Deserialize)]
struct Asked {
    template: ChatTemplate,
    messages: Vec<ChatMessage>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answered {
    Text(String),
    Refused(String),
    Failed(String),
}

/// The process: a question on standard input, the answer on standard output.
///
/// # Errors
/// What is no question.
pub fn process() -> Result<Exit> {
    let mut text = Vec::new();
    std::io::stdin().lock().take(MOST).read_to_end(&mut text)?;
    let asked: Asked = serde_json::from_slice(&text)?;
    print_json(&match asked.template.render(&asked.messages, true) {
        Ok(text) => Answered::Text(text),
        Err(ChatError::Refused { why }) => Answered::Refused(why),
        Err(ChatError::Failed { why }) => Answered::Failed(why),
        Err(other) => Answered::Failed(other.to_string()),
    })?;
    Ok(Exit::Done)
}

/// What `template` writes before an answer to `messages`.
///
/// # Errors
/// What it refuses; a template that fails, or takes more time or memory than one may.
pub fn render(template: &ChatTemplate, messages: &[ChatMessage]) -> Result<String, ChatError> {
    let failed = |why: String| ChatError::Failed { why };
    let asked = Asked { template: template.clone(), messages: messages.to_vec() };
    let asked = serde_json::to_vec(&asked).map_err(|e| failed(e.to_string()))?;
    if asked.len() as u64 > MOST {
        return Err(ChatError::TooLarge { what: "a conversation", bytes: asked.len(), most: MOST as usize });
    }
    let none = |e: std::io::Error| failed(format!("there is no process for it: {e}"));
    let mut command = Command::new(std::env::current_exe().map_err(none)?);
    command.arg("template").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    // SAFETY: setrlimit is async-signal-safe.
    unsafe { command.pre_exec(bound) };
    let mut child = command.spawn().map_err(none)?;
    // One that ends before it has read all says why otherwise.
    if let Some(mut stdin) = child.stdin.take() {
        drop(stdin.write_all(&asked));
    }
    let mut text = Vec::new();
    let read = child.stdout.take().map(|out| out.take(MOST + 1).read_to_end(&mut text));
    if text.len() as u64 > MOST {
        drop(child.kill());
    }
    let status = child.wait().map_err(none)?;
    if let Some(Err(e)) = read {
        return Err(none(e));
    }
    match serde_json::from_slice(&text) {
        Ok(Answered::Text(text)) => Ok(text),
        Ok(Answered::Refused(why)) => Err(ChatError::Refused { why }),
        Ok(Answered::Failed(why)) => Err(failed(why)),
        Err(_) if [Some(libc::SIGXCPU), Some(libc::SIGKILL)].contains(&status.signal()) => {
            Err(failed(format!("it takes more than {SECONDS} s")))
        }
        Err(_) if status.signal().is_some() => Err(failed("it takes more memory than one may".into())),
        Err(_) => Err(failed("it gave no answer".into())),
    }
}

/// Gives the process that is to be one its bounds; lower ones that it has stay.
fn bound() -> std::io::Result<()> {
    for (what, most) in [(libc::RLIMIT_CPU, SECONDS), (libc::RLIMIT_DATA, BYTES), (libc::RLIMIT_CORE, 0)] {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: pointers to a value of that type.
        let set = unsafe {
            libc::getrlimit(what, &mut limit) == 0 && {
                limit.rlim_max = limit.rlim_max.min(most);
                limit.rlim_cur = limit.rlim_cur.min(most);
                libc::setrlimit(what, &limit) == 0
            }
        };
        if !set {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}
