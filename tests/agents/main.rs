//! The agents from end to end, short of a host: validation, prompts, dialogue, and the wire against a scripted server.

#[path = "../common/fake_llm.rs"]
mod fake_llm;
#[path = "../common/session.rs"]
mod session;

mod bounds;
mod cases;
mod dialogue;
mod hostile;
mod ledger;
mod origins;
mod prompts;
mod secrets;
mod sequences;
mod validation;
mod wire;

use paring::session::{ROLES, Role};

fn role(name: &str) -> &'static Role {
    ROLES.iter().find(|r| r.name == name).expect("a role")
}
