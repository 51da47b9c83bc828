//! What the server does for the core: queues, merge jobs, the board and the logs.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago::diloco::syncer::{Event, Host, Syncer};
use archipelago::diloco::{ConnId, MergeFailure, MergeJob, MergeOutcome, Millis};
use archipelago::wire::{Bye, Message};
use serde::Serialize;
use tokio::task::JoinSet;

use super::handle::Mailbox;
use crate::outbox::{Encoder, Outbox};
use crate::status::Board;

/// How a merge job ended.
pub(super) type Merged = Box<Result<MergeOutcome, Box<MergeFailure>>>;

/// The parts of the actor that the core's wishes concern.
pub(super) struct Desk<'a> {
    pub(super) now: Millis,
    pub(super) board: &'a mut Board,
    pub(super) mailbox: &'a Mailbox,
    pub(super) encoder: &'a mut Encoder,
    pub(super) outboxes: &'a mut BTreeMap<ConnId, Outbox>,
    pub(super) merges: &'a mut JoinSet<Merged>,
    /// Connections whose queue is full.
    pub(super) slow: Vec<ConnId>,
    pub(super) is_finished: bool,
}

impl Host for Desk<'_> {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        let outgoing = self.encoder.encode(&message);
        for conn in conns {
            let full = self.outboxes.get(conn).is_some_and(|outbox| outbox.send(outgoing.clone()).is_err());
            if full {
                self.slow.push(*conn);
            }
        }
    }

    fn close(&mut self, conn: ConnId, bye: Bye) {
        if let Some(outbox) = self.outboxes.remove(&conn) {
            outbox.close(bye);
        }
    }

    fn merge(&mut self, job: MergeJob) {
        self.merges.spawn_blocking(move || Box::new(job.run()));
    }

    fn note(&mut self, _syncer: &Syncer, event: Event) {
        self.board.note(self.now, &event);
        match event {
            Event::MergeFailed { .. } => tracing::error!(?event),
            Event::Joined { .. }
            | Event::Live { .. }
            | Event::Left { .. }
            | Event::Held { .. }
            | Event::Paced { .. }
            | Event::Dropped { .. } => {
                tracing::info!(?event);
            }
            _ => tracing::debug!(?event),
        }
        if self.mailbox.events.receiver_count() > 0 {
            // Nobody listens any more if this fails.
            let _ = self.mailbox.events.send(json(&event));
        }
    }

    fn finished(&mut self) {
        self.is_finished = true;
    }
}

pub(super) fn json(value: &impl Serialize) -> Arc<str> {
    serde_json::to_string(value).expect("plain data").into()
}
