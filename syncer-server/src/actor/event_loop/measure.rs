//! Requests for the held-out loss to the trusted learner, and its answers.

use archipelago_core::diloco::ConnId;
use archipelago_core::wire::RunId;

use super::EventLoop;
use super::state::State;

impl EventLoop {
    /// Asks the trusted learner for the held-out loss, if a request is due.
    pub(super) fn ask(&self, state: &mut State) {
        let State { measuring, outboxes, encoder, .. } = state;
        let question =
            measuring.question(self.clock.now(), &self.syncer, |conn| outboxes.contains_key(&conn));
        let Some((conn, message)) = question else { return };
        // If its queue is full, the core's next message closes the connection.
        if let Some(outbox) = outboxes.get(&conn) {
            let _ = outbox.send(encoder.encode(&message));
        }
    }

    /// Handles the answer of `conn`; returns false if there was no such request.
    pub(super) fn answered(
        &mut self,
        state: &mut State,
        conn: ConnId,
        (run, number, loss): (RunId, u32, Option<f32>),
    ) -> bool {
        let now = self.clock.now();
        let is_ours = run == self.syncer.run();
        let Some(found) = is_ours.then(|| state.measuring.answer(now, conn, number, loss)).flatten() else {
            return false;
        };
        if let Some(evaluation) = found {
            self.evaluated(evaluation, None);
        }
        true
    }
}
