//! Rollback of updates that raised the held-out loss.

use std::sync::Arc;

use archipelago_core::diloco::kept;
use archipelago_core::diloco::syncer::{HARMS_MAX, Input, Undo};

use super::super::eval_snapshot::Judgement;
use super::super::host::Done;
use super::{EventLoop, State};
use crate::status::LogEvent;
use crate::tape;

impl EventLoop {
    /// Handles the findings about a held-out loss.
    pub(super) fn judged(&mut self, state: &mut State, judgement: Judgement) {
        match judgement {
            Judgement::Well { seq } => state.record.need(seq),
            Judgement::Unexplained { losses, seq } => {
                state.record.need(seq);
                self.log(&state.record, LogEvent::LossUnexplained { losses });
            }
            Judgement::Harm { from, after, culprits, losses, without } => {
                self.handle(Input::Undo(Box::new(Undo { from, after, culprits: culprits.clone() })));
                for learner in culprits {
                    let Some(account) = self.syncer.ledger().account(learner) else { continue };
                    let (name, for_good) = (account.name.clone(), account.harms >= HARMS_MAX);
                    self.log(&state.record, LogEvent::Undone { learner, name, losses, without, for_good });
                }
            }
        }
    }

    /// Starts the rollback of fragments whose newest version is on disk.
    pub(super) fn remake(&self, state: &mut State) {
        let State { remakes, merges, record, .. } = state;
        for mut job in remakes.extract_if(.., |job| record.gate.is_version_safe(job.fragment())) {
            let (store, run) = (Arc::clone(&self.store), self.syncer.run());
            merges.spawn_blocking(move || {
                let followed = tape::remake(&store, run, std::slice::from_mut(&mut job.remake), job.after);
                if let Err(error) = followed {
                    tracing::error!(%error, "merged updates cannot be read from the tape, so they cannot be rolled \
                         back");
                }
                let result = job.run();
                let kept = result.as_ref().ok().map(|outcome| kept(&outcome.state));
                Done { result, kept }
            });
        }
    }
}
