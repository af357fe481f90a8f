//! A session on the small network with agents behind a scripted server, its host in this process, as the tests of agents in sessions drive it.

use super::fake_llm::FakeLlm;
use super::small;
use paring::host::client::{Client, Messages};
use paring::host::{Host, OpenSpec, lifecycle};
use paring::session::{Command, Event, Feed, HostMsg, Phase, Place, Proposer, State};
use std::time::Duration;

/// A session on the small network, agents behind a scripted server, its host in this process.
pub struct Session {
    _home: tempfile::TempDir,
    host: Host,
    pub client: Client,
    messages: Messages,
    pub state: State,
    /// Lines for people.
    pub said: Vec<String>,
}

impl Session {
    /// On the small network, with held-back images to rehearse on.
    pub async fn open(fake: &FakeLlm, change: impl FnOnce(OpenSpec) -> OpenSpec) -> Session {
        let home = tempfile::tempdir().expect("temp dir");
        let model = home.path().join("model.safetensors");
        small::model(&model, 3);
        let place = Place::at(&home.path().join("session"));
        std::fs::create_dir_all(&place.dir).expect("made");
        let spec = OpenSpec {
            calib_limit: 160,
            llm_url: Some(fake.url.clone()),
            llm_model: Some("usual".into()),
            ..small::spec(&model)
        };
        let host = lifecycle::start(&place, Some(change(spec))).expect("starts");
        let (client, messages) = host.connect("test", false).await.expect("connects");
        let (state, said) = (State::default(), Vec::new());
        let mut s = Session { _home: home, host, client, messages, state, said };
        s.until("open", |s| s.state.card.is_some()).await;
        s
    }

    pub async fn until(&mut self, what: &str, wanted: impl Fn(&Session) -> bool) {
        while !wanted(self) {
            let message = tokio::time::timeout(Duration::from_secs(300), self.messages.recv()).await;
            match message.unwrap_or_else(|_| panic!("{what}: {:?}", self.said)).expect("the host lives") {
                HostMsg::Welcome { state, .. } => self.state = *state,
                HostMsg::Event { record } => {
                    self.state.apply(&record);
                    if let Event::Failed { what, message } = record.event {
                        panic!("{what}: {message}");
                    }
                }
                HostMsg::Feed { feed: Feed::Log { text, .. } } => self.said.push(text),
                _ => {}
            }
        }
    }

    pub async fn ask(&self, command: Command) {
        self.client.command(command.clone()).await.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    }

    pub async fn propose(&mut self) {
        self.ask(Command::Propose { by: Proposer::Agents }).await;
        self.until("asked", |s| s.state.phase == Phase::Reason).await;
    }

    pub async fn proposed(&mut self) {
        self.until("proposed", |s| s.state.phase == Phase::Review).await;
    }

    pub async fn stop(self) {
        self.host.stop("enough").await;
        self.host.ended().await;
    }
}
