//! What waits to be sent to one client: events and replies in order, the feed coalesced.
//!
//! Invariants: pushing never blocks and never fails; memory is bounded. Feed messages merge (latest progress and live
//! rows win, token deltas join) and are dropped when there are too many. When events pile up, the outbox forgets them and
//! asks for a resync: the client then gets a fresh `Welcome`, whose state contains what was forgotten.

use crate::session::{Feed, HostMsg};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Bounds of one outbox.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub events: usize,
    pub feeds: usize,
    /// A merged token delta grows to at most this many bytes.
    pub token_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { events: 1024, feeds: 256, token_bytes: 64 << 10 }
    }
}

#[derive(Debug, Default)]
struct Queue {
    messages: VecDeque<HostMsg>,
    feeds: usize,
    resync: bool,
    closed: bool,
}

/// The queue of one client.
#[derive(Debug, Default)]
pub struct Outbox {
    queue: Mutex<Queue>,
    changed: Notify,
    limits: Limits,
}

/// What the writer gets next.
#[derive(Debug)]
pub enum Next {
    Message(HostMsg),
    /// Ask the host for a fresh `Welcome` and go on.
    Resync,
    Closed,
}

impl Next {
    pub fn message(self) -> Option<HostMsg> {
        if let Next::Message(message) = self { Some(message) } else { None }
    }
}

impl Outbox {
    pub fn new(limits: Limits) -> Outbox {
        Outbox { limits, ..Outbox::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues `message`.
    pub fn push(&self, message: HostMsg) {
        let mut q = self.lock();
        if q.closed {
            return;
        }
        match message {
            HostMsg::Feed { feed } => push_feed(&mut q, feed, &self.limits),
            HostMsg::Welcome { .. } => {
                q.resync = false;
                q.messages.retain(|m| matches!(m, HostMsg::Reply { .. }));
                q.feeds = 0;
                q.messages.push_front(message);
            }
            // Between here and the fresh `Welcome`, events are in its state already.
            HostMsg::Event { .. } if q.resync => {}
            other => q.messages.push_back(other),
        }
        if q.messages.len() - q.feeds > self.limits.events && !q.resync {
            q.messages.retain(|m| !matches!(m, HostMsg::Event { .. } | HostMsg::Feed { .. }));
            q.feeds = 0;
            q.resync = true;
        }
        if q.messages.len() > self.limits.events * 8 {
            // Nothing but unread replies can get here: a client that sends and never reads.
            q.messages.clear();
            q.closed = true;
        }
        drop(q);
        self.changed.notify_one();
    }

    /// No more messages; what is queued is still delivered.
    pub fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_one();
    }

    /// The next message, waiting for it. One waiter at a time.
    pub async fn next(&self) -> Next {
        loop {
            if let Some(next) = self.try_next() {
                return next;
            }
            self.changed.notified().await;
        }
    }

    /// The next message if there is one now.
    pub fn try_next(&self) -> Option<Next> {
        let mut q = self.lock();
        if let Some(message) = q.messages.pop_front() {
            if matches!(message, HostMsg::Feed { .. }) {
                q.feeds -= 1;
            }
            return Some(Next::Message(message));
        }
        if q.closed {
            return Some(Next::Closed);
        }
        // The host is asked once.
        std::mem::take(&mut q.resync).then_some(Next::Resync)
    }
}

fn push_feed(q: &mut Queue, mut feed: Feed, limits: &Limits) {
    if q.resync {
        return;
    }
    match &mut feed {
        Feed::Token { role, channel, text } => {
            if let Some(HostMsg::Feed { feed: Feed::Token { role: r, channel: c, text: t } }) = q.messages.back_mut()
                && r == role
                && c == channel
                && t.len() + text.len() <= limits.token_bytes
            {
                t.push_str(text);
                return;
            }
        }
        Feed::Progress(new) => drop(remove(q, |f| matches!(f, Feed::Progress(old) if old.job == new.job))),
        Feed::Live { rows, .. } => {
            if let Some(Feed::Live { rows: mut old, .. }) = remove(q, |f| matches!(f, Feed::Live { .. })) {
                old.retain(|row| !rows.iter().any(|r| r.name == row.name));
                rows.append(&mut old);
            }
        }
        Feed::Machine(_) => drop(remove(q, |f| matches!(f, Feed::Machine(_)))),
        Feed::Levels(_) => drop(remove(q, |f| matches!(f, Feed::Levels(_)))),
        Feed::Healing { .. } => drop(remove(q, |f| matches!(f, Feed::Healing { .. }))),
        Feed::Pulse { .. } => drop(remove(q, |f| matches!(f, Feed::Pulse { .. }))),
        // Pictures are large: the newest page is the one that is looked at.
        Feed::Changed(_) => drop(remove(q, |f| matches!(f, Feed::Changed(_)))),
        // Texts are long.
        Feed::Tokens(_) => drop(remove(q, |f| matches!(f, Feed::Tokens(_)))),
        Feed::Turn { .. }
        | Feed::TurnEnd { .. }
        | Feed::JobEnd { .. }
        | Feed::Agents { .. }
        | Feed::Units { .. }
        | Feed::Rounding { .. }
        | Feed::Activations { .. }
        | Feed::Log { .. } => {}
    }
    q.messages.push_back(HostMsg::Feed { feed });
    q.feeds += 1;
    if q.feeds > limits.feeds {
        // The oldest figure, line or token goes first; starts and ends of turns and jobs are kept as long as can be.
        let passing = |f: &Feed| {
            let figure = matches!(
                f,
                Feed::Progress(_)
                    | Feed::Live { .. }
                    | Feed::Machine(_)
                    | Feed::Levels(_)
                    | Feed::Healing { .. }
                    | Feed::Pulse { .. }
            );
            figure || matches!(f, Feed::Token { .. } | Feed::Log { .. })
        };
        if remove(q, passing).is_none() {
            remove(q, |_| true);
        }
    }
}

/// Takes out the oldest feed message that `which` picks.
fn remove(q: &mut Queue, which: impl Fn(&Feed) -> bool) -> Option<Feed> {
    let at = q.messages.iter().position(|m| matches!(m, HostMsg::Feed { feed } if which(feed)))?;
    let HostMsg::Feed { feed } = q.messages.remove(at)? else { return None };
    q.feeds -= 1;
    Some(feed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Channel, Event, LiveRow, Progress, Record, State};

    fn feed(feed: Feed) -> HostMsg {
        HostMsg::Feed { feed }
    }

    fn event(seq: u64) -> HostMsg {
        let event = Event::Noted { round: 1, text: String::new() };
        HostMsg::Event { record: Box::new(Record { seq, at_ms: 0, event }) }
    }

    fn drain(outbox: &Outbox) -> Vec<HostMsg> {
        std::iter::from_fn(|| outbox.try_next()?.message()).collect()
    }

    fn token(role: &str, text: &str) -> HostMsg {
        feed(Feed::Token { role: role.to_owned(), channel: Channel::Text, text: text.to_owned() })
    }

    fn progress(job: &str, done: u64) -> HostMsg {
        feed(Feed::Progress(Progress { job: job.to_owned(), done, ..Progress::default() }))
    }

    fn row(name: &str, n: u64) -> LiveRow {
        LiveRow { name: name.to_owned(), p50_ms: 0.0, p95_ms: 0.0, n }
    }

    #[test]
    fn tokens_join_and_latest_figures_win() {
        let o = Outbox::default();
        o.push(token("a", "one "));
        o.push(token("a", "two"));
        o.push(token("b", "three"));
        o.push(progress("profile", 1));
        o.push(feed(Feed::Live { runs: 1, rows: vec![row("x", 1), row("y", 1)] }));
        o.push(progress("profile", 2));
        o.push(feed(Feed::Live { runs: 2, rows: vec![row("y", 2)] }));
        let beat = |step| feed(Feed::Pulse { step, layers: [].into() });
        (1..=3).for_each(|step| o.push(beat(step)));
        o.push(feed(Feed::JobEnd { job: "profile".to_owned() }));
        assert_eq!(
            drain(&o),
            vec![
                token("a", "one two"),
                token("b", "three"),
                progress("profile", 2),
                feed(Feed::Live { runs: 2, rows: vec![row("y", 2), row("x", 1)] }),
                beat(3),
                feed(Feed::JobEnd { job: "profile".to_owned() }),
            ]
        );
    }

    #[test]
    fn a_slow_client_costs_bounded_memory_and_resyncs() {
        let limits = Limits { events: 10, feeds: 5, token_bytes: 100 };
        let o = Outbox::new(limits);
        for i in 0..100 {
            o.push(token(if i % 2 == 0 { "a" } else { "b" }, "t"));
        }
        assert_eq!(o.lock().messages.len(), 5);
        o.push(HostMsg::Reply { id: 7, result: Ok(()) });
        for seq in 1..=100 {
            o.push(event(seq));
            assert!(o.lock().messages.len() <= 16);
        }
        assert_eq!(drain(&o), vec![HostMsg::Reply { id: 7, result: Ok(()) }], "replies outlive a resync");
        assert_eq!(drain(&o), vec![]);
        let o = Outbox::new(limits);
        (1..=11).for_each(|seq| o.push(event(seq)));
        assert!(matches!(o.try_next(), Some(Next::Resync)));
        let state = Box::new(State { seq: 11, ..State::default() });
        o.push(HostMsg::Welcome { protocol: 1, state, you: 1, pen: None });
        o.push(event(12));
        let got = drain(&o);
        assert!(matches!(got[0], HostMsg::Welcome { .. }));
        assert_eq!(got[1], event(12));
    }

    #[test]
    fn events_never_merge_and_keep_their_order() {
        let o = Outbox::default();
        (1..=50).for_each(|seq| {
            o.push(event(seq));
            o.push(progress("p", seq));
        });
        let events: Vec<HostMsg> = drain(&o).into_iter().filter(|m| matches!(m, HostMsg::Event { .. })).collect();
        assert_eq!(events, (1..=50).map(event).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_closed_outbox_delivers_the_rest() {
        let o = Outbox::default();
        o.push(event(1));
        o.close();
        o.push(event(2));
        assert!(matches!(o.next().await, Next::Message(HostMsg::Event { .. })));
        assert!(matches!(o.next().await, Next::Closed));
    }
}
