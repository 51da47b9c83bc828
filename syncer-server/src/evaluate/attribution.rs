//! Attribution of a raised held-out loss: merges are replayed from the tape without the updates of single learners,
//! and measured.

use std::collections::BTreeSet;
use std::sync::Arc;

use archipelago_core::diloco::syncer::{LossMonitor, Rollback};
use archipelago_core::diloco::trust::{Attribution, AttributionResult};
use archipelago_core::diloco::{FragmentState, LearnerId, RunId, Version};

use super::LossMeter;
use crate::actor::{EvalSnapshot, HarmVerdict};
use crate::errors::ServerError;
use crate::store::Store;
use crate::tape;

/// Maximum number of learners that attribution tries; more would take longer than the harm justifies.
const SUSPECTS_MAX: usize = 256;

/// Largest rise, as a fraction of the last normal loss, that is not logged if no learner explains it. Our own
/// constant.
const LOGGED_RISE_RATIO: f64 = 0.1;

/// Fragments at a measurement, and the number of the newest decision at that time.
#[derive(Clone, Debug)]
struct Moment {
    seq: u64,
    states: Vec<FragmentState>,
}

/// Checks held-out losses for harm, and attributes harm to learners.
pub struct HarmDetector {
    store: Arc<Store>,
    run: RunId,
    monitor: LossMonitor<Moment>,
}

impl HarmDetector {
    /// Creates a judge of the run in the folder of `store`. `losses` are the earlier held-out losses, oldest first.
    #[must_use]
    pub fn new(store: Arc<Store>, run: RunId, losses: impl IntoIterator<Item = f32>) -> Self {
        let monitor = LossMonitor::after(losses.into_iter().map(f64::from));
        Self { store, run, monitor }
    }

    /// Checks the `loss` of `subject` for harm. If it is above the normal range, `meter` measures the loss without the
    /// updates that learners sent since the last measurement with a normal loss.
    ///
    /// # Errors
    /// - `Disk`, `DirCorrupt`: the tape cannot be read; then no learner is blamed.
    /// - `Internal`: the parameters do not fit the model.
    pub fn judge(
        &mut self,
        loss: f32,
        subject: &EvalSnapshot,
        meter: &mut LossMeter,
    ) -> Result<HarmVerdict, ServerError> {
        let moment = Moment { seq: subject.seq, states: subject.states.clone() };
        let bad = f64::from(loss);
        let Some((good, from)) = self.monitor.observe(bad, moment.clone()) else {
            let seq = self.monitor.held().map_or(subject.seq, |held| held.seq);
            return Ok(HarmVerdict::Well { seq });
        };
        let from = from.clone();
        let found = self.search((good, bad), &from, subject, meter);
        let losses = (good as f32, loss);
        let found = found.inspect_err(|_| self.monitor.reset(bad, moment.clone()))?;
        Ok(match found {
            Some(AttributionResult { learners: culprits, loss }) => {
                let Moment { seq, states } = from;
                HarmVerdict::Harm { from: states, after: seq, culprits, losses, without: loss as f32 }
            }
            None => {
                self.monitor.reset(bad, moment);
                // The loss of small models varies by some percent without a cause.
                match bad <= good * (1.0 + LOGGED_RISE_RATIO) {
                    true => HarmVerdict::Well { seq: subject.seq },
                    false => HarmVerdict::Unexplained { losses, seq: subject.seq },
                }
            }
        })
    }

    fn search(
        &self,
        (good, bad): (f64, f64),
        from: &Moment,
        subject: &EvalSnapshot,
        meter: &mut LossMeter,
    ) -> Result<Option<AttributionResult>, ServerError> {
        let senders = tape::senders_between(&self.store, self.run, from.seq, subject.seq)?;
        if senders.len() > SUSPECTS_MAX {
            return Ok(None);
        }
        let mut attribution = Attribution::new(good, bad, senders);
        while let Some(without) = attribution.next() {
            let theta = self.without(&without, from, subject)?;
            attribution.measured(meter.loss(&theta)?.into());
        }
        Ok(attribution.verdict())
    }

    /// Returns Θ of `subject` as one flat vector, without the updates of the learners `without` since `from`.
    fn without(
        &self,
        without: &BTreeSet<LearnerId>,
        from: &Moment,
        subject: &EvalSnapshot,
    ) -> Result<Vec<f32>, ServerError> {
        let until: Vec<Version> = subject.states.iter().map(|state| state.version).collect();
        let mut rollbacks = Rollback::all(&subject.fragments, subject.codec, &from.states, without, &until);
        tape::rollback(&self.store, self.run, &mut rollbacks, from.seq)?;
        let mut flat = vec![0.0; subject.params()];
        for rollback in &rollbacks {
            let (fragment, theta) = rollback.theta();
            subject.fragments.scatter(fragment, theta, &mut flat);
        }
        Ok(flat)
    }
}
