//! Shutdown of the actor: pending requests are answered, and no decision is lost.

use std::time::Duration;

use archipelago_core::wire::Bye;

use super::{EventLoop, State};
use crate::errors::ServerError;
use crate::status::{LogEvent, ServerStatus};
use crate::store::Snapshot;

/// Time for the tape to write the last decisions.
const SETTLE_WITHIN: Duration = Duration::from_secs(5);

/// The final state of the actor.
pub struct Final {
    /// The snapshot to save.
    pub snapshot: Snapshot,
    /// The status to show.
    pub status: ServerStatus,
}

impl EventLoop {
    /// Sends `bye` to all peers, waits for merges and saves in flight, and returns the last state.
    pub(super) async fn wind_up(mut self, mut state: State, bye: &Bye) -> Result<Final, ServerError> {
        self.log(&state.record, LogEvent::Stopped);
        // Notices of completion and receipts go out before the goodbye.
        self.settle(&mut state).await?;
        self.answer(&mut state);
        for (_, outbox) in std::mem::take(&mut state.outboxes) {
            outbox.close(bye.clone());
        }
        // Rollbacks wait for the tape, and their results must be on it.
        loop {
            self.settle(&mut state).await?;
            let Some(merged) = state.merges.join_next().await else { break };
            self.merged(&state, merged)?;
            self.drain(&mut state);
        }
        state.saves.cancel();
        while let Some(written) = state.saves.next().await {
            self.saved(&mut state, written);
        }
        self.publish(&state);
        self.publish_rounds();
        let snapshot = self.snapshot(state.record.gate.decided());
        Ok(Final { snapshot, status: self.status(&state) })
    }

    /// Waits until all decisions are on the tape, and sends the messages that waited for them.
    async fn settle(&mut self, state: &mut State) -> Result<(), ServerError> {
        let deadline = tokio::time::Instant::now() + SETTLE_WITHIN;
        loop {
            self.taped(state)?;
            self.drain(state);
            if state.record.gate.is_all_safe() {
                return Ok(());
            }
            if tokio::time::timeout_at(deadline, state.record.state.changed()).await.is_err() {
                let fault = state.record.look().fault.unwrap_or_else(|| "the disk is too slow".into());
                let source = std::io::Error::other(fault.to_string());
                let path = self.store.tape_path();
                return Err(ServerError::Disk { what: "write", path, source });
            }
        }
    }

    fn snapshot(&self, seq: u64) -> Snapshot {
        let record = self.syncer.record_amid();
        let carried = self.board.carried(self.clock.now(), self.meters.read());
        Snapshot { seq, record, states: self.syncer.states().cloned().collect(), carried }
    }
}
