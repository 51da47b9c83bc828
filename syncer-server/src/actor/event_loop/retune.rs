//! Changes of the owner's settings during the run.

use archipelago_core::diloco::syncer::{Input, SyncerConfig};
use tokio::sync::oneshot;

use super::super::host::json;
use super::{EventLoop, Obeyed, State};
use crate::status::LogEvent;

impl EventLoop {
    /// Returns the outcome of an order to stop at `tokens` merged tokens (0 is never), without carrying it out.
    pub(super) fn may_stop_at(&self, tokens: u64) -> Obeyed {
        let counted = self.syncer.ledger().schedule_tokens();
        match self.may_order(None) {
            Obeyed::Taken if (1..=counted).contains(&tokens) => Obeyed::PastStop(counted),
            other => other,
        }
    }

    /// Applies the round settings and limits of `config` from now on, and logs the `changes`. Each merge is recorded
    /// with its rule and its parts, so a replay does not need to know of the change.
    pub(super) fn retune(
        &mut self,
        state: &mut State,
        config: &SyncerConfig,
        changes: Vec<LogEvent>,
        reply: oneshot::Sender<Obeyed>,
    ) {
        let obeyed = if self.syncer.is_over() { Obeyed::RunOver } else { Obeyed::Taken };
        if obeyed == Obeyed::Taken {
            self.syncer.retune(config.quorum, config.merge);
            self.syncer.limit(config.learners_max, config.cohort_max, config.stop_tokens);
            for change in changes {
                self.log(&state.record, change);
            }
            self.handle(Input::Timeout);
            self.drain(state);
            self.mailbox.status.send_replace(json(&self.status(state)));
        }
        state.orders.push((state.record.gate.decided(), obeyed, reply));
    }
}
