//! What a learner trained, done again: with the engine that it trained with, to the bit.

use std::sync::Arc;

use archipelago_core::audit::{AuditJob, Facts, Fault, Op, Span, Tally, Verdict, inputs_hash, state_hash};
use archipelago_core::bytes::copy_f32s;
use archipelago_core::diloco::learning_rate;

use super::cpu::CpuTrainer;
use super::{Engine, EngineError, HostEngine, OptimiserState, Trainer};
use crate::model::{FrozenWeights, ModelSpec};
use crate::wire::{BATCH_MAX, LeaseGrant, RunSpec};

/// Windows of all steps of a span that is done again, at most.
const WINDOWS_MAX: u64 = 1 << 15;

/// Gives the tokens of a window of a lease, `[context + 1]`; `None` if it has none of that.
pub type Windows<'a> = dyn FnMut(&LeaseGrant, u32) -> Option<Vec<u32>> + 'a;

/// Checks what a learner of the run `spec` shows, and does it again. It takes as long as the steps took.
///
/// It ends with [`Verdict::Undecided`] if the span rests on what the syncer does not keep any more, or `windows` has
/// not what was leased, or this machine cannot build the engine.
#[must_use]
pub fn redo(job: &AuditJob, spec: &RunSpec, windows: &mut Windows) -> Verdict {
    redo_on(None, job, spec, windows)
}

/// As [`redo`], on the weights `frozen` where the run trains adapters; without them it ends with
/// [`Verdict::Undecided`].
#[must_use]
pub fn redo_on(
    frozen: Option<Arc<FrozenWeights>>,
    job: &AuditJob,
    spec: &RunSpec,
    windows: &mut Windows,
) -> Verdict {
    match Redo::begin(frozen, job, spec).and_then(|redo| redo.run(windows)) {
        Ok(()) => Verdict::Passed,
        Err(verdict) => verdict,
    }
}

struct Redo<'a> {
    job: &'a AuditJob,
    spec: RunSpec,
    span: Span,
    tally: Tally,
    engine: HostEngine<CpuTrainer>,
}

impl<'a> Redo<'a> {
    fn begin(frozen: Option<Arc<FrozenWeights>>, job: &'a AuditJob, spec: &RunSpec) -> Result<Self, Verdict> {
        let span = Span::from_bytes(&job.evidence)?;
        let commitment = &job.commitment;
        let is_fresh = span.state.is_empty();
        if is_fresh && span.tally != Tally::new(spec.exchange.fragments)
            || span.opening() != commitment.opening
        {
            return Err(Fault::Opening.into());
        }
        if inputs_hash(&span.ops) != commitment.inputs {
            return Err(Fault::Inputs.into());
        }
        if span.steps() != commitment.steps {
            return Err(Fault::Steps.into());
        }
        let (batch, windows) = batch(&span.ops);
        if batch.is_some_and(|batch| !(1..=BATCH_MAX).contains(&batch)) {
            return Err(Fault::Steps.into());
        }
        if windows > WINDOWS_MAX {
            return Err(Verdict::Undecided);
        }
        let mut spec = spec.clone();
        spec.inner.batch = batch.unwrap_or(spec.inner.batch);
        let model = ModelSpec::of(&spec.model).map_err(|_| Verdict::Undecided)?;
        let trainer = CpuTrainer::fixed_on(frozen, &model, &spec.inner).map_err(|_| Verdict::Undecided)?;
        let mut engine = HostEngine::new(&spec, trainer).map_err(|_| Verdict::Undecided)?;
        if !is_fresh && !engine.restore(&span.state) {
            return Err(Fault::Malformed.into());
        }
        Ok(Self { job, spec, tally: span.tally.clone(), span, engine })
    }

    fn run(mut self, windows: &mut Windows) -> Result<(), Verdict> {
        let AuditJob { facts, claim, commitment, .. } = self.job;
        let mut body = None;
        for op in std::mem::take(&mut self.span.ops) {
            facts.check(&self.tally, &op, claim)?;
            body = self.take(&op, facts, windows)?;
            self.tally.take(&op, self.spec.model.context.into(), self.spec.exchange.apply);
        }
        let state = self.engine.state().ok_or(Verdict::Undecided)?;
        if state_hash(&state, &self.tally) != commitment.closing {
            return Err(Fault::Closing.into());
        }
        if body.as_ref() == Some(&*claim.body) { Ok(()) } else { Err(Fault::Codes.into()) }
    }

    /// Does one thing again; the code, if that is what it leads to and it is of the update that is audited.
    fn take(&mut self, op: &Op, facts: &Facts, windows: &mut Windows) -> Result<Option<Vec<u8>>, Verdict> {
        let engine = &mut self.engine;
        let done = match op {
            Op::Step { base, own, windows: taken } => {
                let mut tokens = Vec::new();
                for &(lease, first, count) in taken {
                    let grant = facts.grant(lease).ok_or(Fault::Window)?;
                    for index in first..first + count {
                        tokens.extend(windows(grant, index).ok_or(Verdict::Undecided)?);
                    }
                }
                let rate = learning_rate(&self.spec.inner, base.saturating_add(*own));
                engine.trainer_mut().step(&tokens, rate).map(drop)
            }
            Op::Include { fragment } => engine.include(*fragment),
            Op::Take { fragment, version, keep } => {
                engine.load(*fragment, facts.hat(*fragment, *version)?, *keep)
            }
            Op::Encode { serial, fragment } => {
                engine.encode(*serial, *fragment).map_err(|_| Fault::Training)?;
                let coded = engine.encoded().ok().flatten().map(|encoded| encoded.body);
                return Ok(coded.filter(|_| *serial == self.job.claim.serial));
            }
        };
        done.map(|()| None).map_err(|_: EngineError| Fault::Training.into())
    }
}

impl HostEngine<CpuTrainer> {
    /// Goes on from a [`Engine::state`] of the same run; false if it is none.
    fn restore(&mut self, state: &[u8]) -> bool {
        let len = self.trainer_mut().params().len();
        let Some((steps, rest)) = state.split_first_chunk::<8>() else { return false };
        let Some((values, replica)) = rest.split_at_checked(12 * len) else { return false };
        let mut vectors = [vec![0.0; len], vec![0.0; len], vec![0.0; len]];
        for (vector, bytes) in vectors.iter_mut().zip(values.chunks_exact(4 * len)) {
            copy_f32s(bytes, vector);
        }
        let [params, m, v] = vectors;
        let moments = OptimiserState::of_adamw(u64::from_le_bytes(*steps), m, v);
        if self.trainer_mut().resume(&moments).is_err() || !self.read_replica(replica) {
            return false;
        }
        self.trainer_mut().params_mut().copy_from_slice(&params);
        true
    }
}

/// Windows of the first step, if there is one, and of all steps together.
fn batch(ops: &[Op]) -> (Option<u32>, u64) {
    let steps = ops.iter().filter_map(|op| match op {
        Op::Step { windows, .. } => {
            Some(windows.iter().map(|&(.., count)| count).fold(0, u32::saturating_add))
        }
        _ => None,
    });
    let steps: Vec<u32> = steps.collect();
    (steps.first().copied(), steps.iter().map(|&windows| u64::from(windows)).sum())
}

#[cfg(test)]
mod peer;
#[cfg(test)]
mod rig;
#[cfg(test)]
mod tests;
