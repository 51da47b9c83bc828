//! Orders of the owner.

use archipelago_core::diloco::LearnerId;
use archipelago_core::diloco::syncer::Input;
use tokio::sync::oneshot;

use super::super::handle::Obeyed;
use super::super::host::json;
use super::{EventLoop, State};

impl EventLoop {
    /// Returns the outcome that an order would have, for `learner` if it concerns one.
    pub(super) fn may_order(&self, learner: Option<LearnerId>) -> Obeyed {
        match learner {
            _ if self.syncer.is_over() => Obeyed::RunOver,
            Some(learner) if !self.syncer.knows(learner) => Obeyed::NoSuchLearner,
            _ => Obeyed::Taken,
        }
    }

    /// Carries out an order, for `learner` if it concerns one; `reply` gets the outcome once the order is on disk.
    pub(super) fn order(
        &mut self,
        state: &mut State,
        learner: Option<LearnerId>,
        input: Input,
        reply: oneshot::Sender<Obeyed>,
    ) {
        let obeyed = self.may_order(learner);
        if obeyed == Obeyed::Taken {
            self.handle(input);
            // Watchers see the change at once.
            self.drain(state);
            self.mailbox.status.send_replace(json(&self.status(state)));
        }
        // A crash must not undo a confirmed order, so it is on the tape before it is confirmed.
        state.orders.push((state.record.gate.decided(), obeyed, reply));
    }
}
