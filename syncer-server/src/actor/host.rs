//! The server's implementation of the core's `Host`: carries out outputs with queues, merge jobs, status and logs.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_core::diloco::syncer::{Event, Host, LeaderRequest, RollbackJob, Syncer};
use archipelago_core::diloco::{ConnId, Entry, MergeFailure, MergeJob, MergeOutcome, Millis};
use archipelago_core::wire::{Bye, Message};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::handle::Mailbox;
use super::measuring::LossCheckCapture;
use super::record::{DeferredOutput, Record};
use crate::outbox::{Encoder, Outbox};
use crate::status::{LogEvent, StatusTracker};

/// The result of a merge or of a rollback.
pub(super) struct Done {
    pub(super) result: Result<MergeOutcome, Box<MergeFailure>>,
    /// The rolled-back state of the fragment, to be written to the tape before the row that refers to it.
    pub(super) kept: Option<Vec<u8>>,
}

/// The parts of the actor that the core's outputs need.
pub(super) struct HostAdapter<'a> {
    pub(super) now: Millis,
    pub(super) board: &'a mut StatusTracker,
    pub(super) mailbox: &'a Mailbox,
    pub(super) encoder: &'a mut Encoder,
    pub(super) outboxes: &'a mut BTreeMap<ConnId, Outbox>,
    pub(super) merges: &'a mut JoinSet<Done>,
    pub(super) rollbacks: &'a mut Vec<RollbackJob>,
    /// The channel to the leaders of the rounds, if other processes lead them.
    pub(super) leader_requests: Option<&'a mpsc::UnboundedSender<LeaderRequest>>,
    pub(super) record: &'a mut Record,
    pub(super) loss_checks: &'a mut LossCheckCapture,
    /// Connections whose queue is full.
    pub(super) slow: Vec<ConnId>,
    pub(super) is_finished: bool,
}

impl Host for HostAdapter<'_> {
    fn send(&mut self, conns: &[ConnId], message: Message) {
        let output = DeferredOutput::Send(conns.to_vec(), self.encoder.encode(&message));
        if let Some(output) = self.record.gate.pass_message(conns, &message, output) {
            self.emit(output);
        }
    }

    fn close(&mut self, conn: ConnId, bye: Bye) {
        if let Some(output) = self.record.gate.pass(DeferredOutput::Close(conn, bye)) {
            self.emit(output);
        }
    }

    fn record(&mut self, entry: Entry) {
        let what = match &entry {
            Entry::Finishing => Some(LogEvent::Finishing),
            Entry::Finished => Some(LogEvent::Finished),
            _ => None,
        };
        self.loss_checks.note(&entry);
        self.record.keep(self.now, entry);
        if let Some(what) = what {
            self.record.log(self.board, self.now, what);
        }
    }

    fn merge(&mut self, job: MergeJob) {
        self.record.keep_bodies(&job);
        self.loss_checks.keep(&job);
        self.merges.spawn_blocking(move || Done { result: job.run(), kept: None });
    }

    fn rollback(&mut self, job: RollbackJob) -> Option<RollbackJob> {
        self.rollbacks.push(job);
        None
    }

    fn leader_request(&mut self, request: LeaderRequest) {
        if let Some(leader_requests) = self.leader_requests {
            // Fails only if the receiver is gone, and then the actor is about to end.
            let _ = leader_requests.send(request);
        }
    }

    fn probe(&mut self, conn: ConnId, number: u64) {
        if let Some(outbox) = self.outboxes.get(&conn) {
            outbox.probe(number);
        }
    }

    fn note(&mut self, syncer: &Syncer, event: Event) {
        if let Some(what) = LogEvent::of(syncer, &event) {
            self.record.log(self.board, self.now, what);
        }
        match event {
            Event::MergeFailed { .. } => tracing::error!(?event),
            Event::Blamed { .. } | Event::Doubted { .. } | Event::RolledBack { .. } => tracing::warn!(?event),
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
        // Watchers must not see an event that a crash could undo.
        if let Some(output) = self.record.gate.pass(DeferredOutput::Event(self.now, Box::new(event))) {
            self.emit(output);
        }
    }

    fn finished(&mut self) {
        self.is_finished = true;
    }
}

impl HostAdapter<'_> {
    /// Sends the messages whose decisions are now on disk.
    pub(super) fn release(&mut self) {
        while let Some(output) = self.record.gate.release() {
            self.emit(output);
        }
    }

    fn emit(&mut self, output: DeferredOutput) {
        match output {
            DeferredOutput::Send(conns, outgoing) => {
                for conn in conns {
                    let outbox = self.outboxes.get(&conn);
                    if outbox.is_some_and(|outbox| outbox.send(outgoing.clone()).is_err()) {
                        self.slow.push(conn);
                    }
                }
            }
            DeferredOutput::Close(conn, bye) => {
                if let Some(outbox) = self.outboxes.remove(&conn) {
                    outbox.close(bye);
                }
            }
            DeferredOutput::Event(at, event) => {
                self.board.note(at, &event);
                if self.mailbox.events.receiver_count() > 0 {
                    // Fails only if the last subscriber has left.
                    let _ = self.mailbox.events.send(json(&self.board.redacted(*event)));
                }
            }
        }
    }
}

pub(super) fn json(value: &impl Serialize) -> Arc<str> {
    serde_json::to_string(value).expect("plain data").into()
}
