//! Asking the learner that the owner trusts for the held-out loss, and hearing its answer.

use archipelago_core::diloco::ConnId;
use archipelago_core::wire::RunId;

use super::Running;
use super::state::State;

impl Running {
    /// Asks whom the owner trusts for the held-out loss, if it is time to.
    pub(super) fn ask(&self, state: &mut State) {
        let State { measuring, outboxes, encoder, .. } = state;
        let question =
            measuring.question(self.clock.now(), &self.syncer, |conn| outboxes.contains_key(&conn));
        let Some((conn, message)) = question else { return };
        // One whose queue is full is sent away with the next message of the core's.
        if let Some(outbox) = outboxes.get(&conn) {
            let _ = outbox.send(encoder.encode(&message));
        }
    }

    /// Takes in the answer of `conn`; false if nobody asked.
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
