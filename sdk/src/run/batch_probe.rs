//! The engine of a run, with a batch that fits its device.
//!
//! The learner chooses its batch between `Build` and `Built`, before it fetches parameters and before `Ready` tells the
//! syncer. It builds an engine for the run's batch and rehearses a step. If the step takes longer than
//! `STEP_US_MAX`, or memory is too small, it builds the engine for half of the batch, and so on. Halves
//! that would still take too long are skipped, so a slow phone rehearses at most a few steps. An engine that cannot
//! rehearse, such as one around a `Trainer` of your own, takes the run's batch.

use std::num::NonZeroU32;

use super::Basis;
use super::batch::Halving;
use super::event::Event;
use super::optimizer_backup::take_moments;
use super::session::{Part, Session};
use archipelago_core::wire::{RunSpec, Welcome};
use archipelago_runtime::engine::{Engine, EngineError, OptimiserState, batch_like_any};

impl<E, B, O> Session<'_, E, B, O>
where
    E: Engine,
    B: AsyncFnMut(&RunSpec, Basis) -> Result<E, EngineError>,
    O: FnMut(&Event),
{
    /// Builds the engine of the run of `welcome`. The previous engine must be gone; only its moments may remain.
    pub(super) async fn open(&mut self, welcome: &Welcome) -> Result<Part<E>, EngineError> {
        let (run, spec) = (welcome.run, welcome.spec.clone());
        let mut moments = take_moments(&mut self.salvaged, run, &spec);
        let frozen = self.frozen_weights(&spec);
        if let Some(batch) = self.config.batch.windows() {
            let engine = (self.build)(&with(&spec, batch), Basis { moments, frozen }).await?;
            return Ok(Part { run, spec, batch, engine });
        }
        // A batch that was too large for one engine of a run would be too large for the next.
        let before = self.fitted.filter(|(fitted, _)| *fitted == run).map(|(_, batch)| batch.get());
        let most = match before {
            Some(batch) => batch,
            None => self.most(&spec, &mut moments).await?,
        };
        let mut halving = Halving::from(most, self.step_us_max);
        loop {
            let batch = halving.batch();
            let own = with(&spec, batch);
            let basis = Basis { moments: moments.take(), frozen: frozen.clone() };
            let mut engine = match (self.build)(&own, basis).await {
                Err(error) if error.is_of_memory() && halving.is_too_large() => continue,
                built => built?,
            };
            let step_us = match self.is_ending() {
                true => None,
                false => self.rehearse(&mut engine, &batch_like_any(&own)).await?,
            };
            if !step_us.is_some_and(|step_us| halving.is_too_slow(step_us)) {
                self.fitted = Some((run, batch));
                return Ok(Part { run, spec, batch, engine });
            }
            // Rehearsals leave the moments unchanged.
            moments = engine.salvage();
        }
    }

    /// Returns the largest batch worth trying, in windows: at most the run's batch. For a very large batch, a step with
    /// fewer windows is timed first. A full step could take minutes, in which the learner ignores its owner.
    async fn most(
        &mut self,
        spec: &RunSpec,
        moments: &mut Option<OptimiserState>,
    ) -> Result<u32, EngineError> {
        let most = spec.inner.batch;
        if most <= PROBED_MIN || self.is_ending() {
            return Ok(most);
        }
        let own = with(spec, PROBE);
        let basis = Basis { moments: moments.take(), frozen: self.frozen_weights(spec) };
        let mut engine = match (self.build)(&own, basis).await {
            Err(error) if error.is_of_memory() => return Ok(PROBE.get()),
            built => built?,
        };
        let step_us = self.rehearse(&mut engine, &batch_like_any(&own)).await?;
        *moments = engine.salvage();
        // An estimate up to twice the limit is accepted, since larger steps are more efficient. The search decides.
        let is_long = |windows: u32| {
            let step_us = step_us.unwrap_or(0).saturating_mul(u64::from(windows / PROBE.get()));
            step_us > 2 * self.step_us_max
        };
        let halves = std::iter::successors(Some(most), |windows| Some(windows / 2));
        Ok(halves
            .take_while(|&windows| windows > PROBE.get())
            .find(|&windows| !is_long(windows))
            .unwrap_or(PROBE.get()))
    }

    /// Returns the step time of `engine` in microseconds, or `None` if it cannot rehearse. The first step takes longer
    /// than later ones, because kernels are compiled and helpers load. If it is too long, a second one counts.
    async fn rehearse(&self, engine: &mut E, tokens: &[u32]) -> Result<Option<u64>, EngineError> {
        let mut step_us = u64::MAX;
        for _ in 0..2 {
            let begun_us = self.clock.now_us();
            if !engine.rehearse(tokens).await? {
                return Ok(None);
            }
            step_us = step_us.min(self.clock.now_us() - begun_us);
            if step_us <= self.step_us_max {
                break;
            }
        }
        Ok(Some(step_us))
    }
}

/// Windows in the timed step.
const PROBE: NonZeroU32 = NonZeroU32::new(64).expect("it is not 0");
/// Batches with more windows than this are timed with a smaller step first.
const PROBED_MIN: u32 = 256;

/// Returns the run's description with the learner's own batch.
fn with(spec: &RunSpec, batch: NonZeroU32) -> RunSpec {
    let mut own = spec.clone();
    own.inner.batch = batch.get();
    own
}
