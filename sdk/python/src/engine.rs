//! Engine without a model of its own: it queues operations on the program's tensors at the desk.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;

use archipelago::Engine;
use archipelago::engine::{Encoded, EngineError, Exchange, StepStats};
use archipelago::learner::{Codec, Replica, ReplicaError};
use archipelago::model::{ApplyPolicy, Fragments, Layout, RunSpec};
use archipelago::wire::{FragmentId, Serial};

use crate::desk::Desk;
use crate::fault::Fault;
use crate::tensors::Fit;

/// Codes fragments that the program copied out, and sends changes to it.
///
/// Each change of the exchange is `θ = kept · θ + values` on a fragment for any policy of the run. Thus only the
/// program needs θ: the values are the replica's result for a θ of 0.
pub struct DeskEngine {
    desk: Arc<Desk>,
    fit: Fit,
    fragments: Arc<Fragments>,
    replica: Replica,
    apply: ApplyPolicy,
    describe: String,
    /// Whether the program can measure a loss.
    measures: bool,
    /// Tokens of a window, including the last target.
    window: usize,
    /// Parameters for the replica, `[len]`; only one fragment at a time has valid contents.
    flat: Vec<f32>,
    /// Requested copies, and the work that waits for each of them.
    awaited: BTreeMap<FragmentId, Awaited>,
    loaded: BTreeSet<FragmentId>,
    encoded: VecDeque<Encoded>,
    steps_begun: u64,
}

/// A copy that the program has not returned yet.
struct Awaited {
    id: u64,
    serial: Serial,
    later: VecDeque<Work>,
}

/// Work on a fragment.
enum Work {
    Encode(Serial),
    Include,
    Apply(Vec<u8>),
    Load { values: Vec<f32>, keep: bool },
}

impl DeskEngine {
    /// Returns an engine for the run of `spec`, and clears the desk for it. `describe` names the program's device, and
    /// `measures` is true if the program can measure a loss.
    ///
    /// # Errors
    /// [`EngineError::Codec`] and [`EngineError::NoFragments`].
    pub fn new(
        spec: &RunSpec,
        fit: Fit,
        desk: Arc<Desk>,
        describe: String,
        measures: bool,
    ) -> Result<Self, EngineError> {
        let count = NonZeroU16::new(spec.exchange.fragments).ok_or(EngineError::NoFragments)?;
        let codec = Codec::new(&spec.exchange)?;
        let fragments = Arc::new(Fragments::plan(&fit.layout, count));
        let replica = Replica::new(Arc::clone(&fragments), codec, spec.exchange.apply);
        desk.clear();
        Ok(Self {
            flat: vec![0.0; fit.layout.len()],
            window: spec.model.context as usize + 1,
            apply: spec.exchange.apply,
            awaited: BTreeMap::new(),
            loaded: BTreeSet::new(),
            encoded: VecDeque::new(),
            steps_begun: 0,
            desk,
            fit,
            fragments,
            replica,
            describe,
            measures,
        })
    }

    /// Does `work` after all earlier work on `fragment`.
    fn order(&mut self, fragment: FragmentId, work: Work) -> Result<(), EngineError> {
        match self.awaited.get_mut(&fragment) {
            Some(awaited) => awaited.later.push_back(work),
            None => self.act(fragment, work)?,
        }
        Ok(())
    }

    fn act(&mut self, fragment: FragmentId, work: Work) -> Result<(), EngineError> {
        let places = self.fit.places(&self.fragments, fragment);
        if let Work::Encode(serial) = work {
            let id = self.desk.read(places);
            self.awaited.insert(fragment, Awaited { id, serial, later: VecDeque::new() });
            return Ok(());
        }
        let zeros = vec![0.0; self.fragments.len(fragment)];
        self.fragments.scatter(fragment, &zeros, &mut self.flat);
        let kept = match work {
            Work::Encode(_) | Work::Include => {
                self.replica.include(fragment, &mut self.flat)?;
                1.0
            }
            Work::Apply(body) => {
                self.replica.apply(fragment, &body, &mut self.flat)?;
                self.kept()
            }
            Work::Load { values, keep } => {
                self.replica.load(fragment, &values, keep, &mut self.flat)?;
                self.loaded.insert(fragment);
                if keep { self.kept() } else { 0.0 }
            }
        };
        self.desk.change(kept, self.fragments.gather(fragment, &self.flat), places);
        if self.loaded.len() == usize::from(self.fragments.count()) {
            self.desk.loaded();
        }
        Ok(())
    }

    /// Returns the share of unmerged progress that remains after a change.
    fn kept(&self) -> f32 {
        match self.apply {
            ApplyPolicy::Keep { .. } => 1.0,
            ApplyPolicy::Overwrite => 0.0,
            ApplyPolicy::Blend { alpha } => alpha,
        }
    }

    /// Codes the values that the program copied out.
    fn collect(&mut self) -> Result<(), EngineError> {
        while let Some(copied) = self.desk.take_copy()? {
            let found = self.awaited.iter().find(|(_, awaited)| awaited.id == copied.id);
            let Some(fragment) = found.map(|(fragment, _)| *fragment) else { continue };
            let Some(Awaited { serial, mut later, .. }) = self.awaited.remove(&fragment) else { continue };
            if copied.values.len() != self.fragments.len(fragment) {
                let (expected, actual) = (self.fragments.len(fragment), copied.values.len());
                return Err(ReplicaError::Length { expected, actual }.into());
            }
            self.fragments.scatter(fragment, &copied.values, &mut self.flat);
            let body = match self.replica.encode(fragment, &self.flat) {
                Ok(body) => body,
                Err(error) => return Err(self.tell(error)),
            };
            let digest = self.replica.digest(fragment);
            self.encoded.push_back(Encoded { serial, fragment, body, digest });
            // Up to the next copy of the fragment, for which the rest waits.
            while let Some(work) = later.pop_front() {
                self.act(fragment, work)?;
                if let Some(awaited) = self.awaited.get_mut(&fragment) {
                    awaited.later = std::mem::take(&mut later);
                }
            }
        }
        Ok(())
    }

    /// Reports the tensor with a non-finite value to the program.
    fn tell(&self, error: ReplicaError) -> EngineError {
        if let ReplicaError::NotFinite { fragment, index } = error {
            let name = self.fit.name(&self.fragments, fragment, index);
            self.desk.tell(Fault::NotFinite { what: format!("a value of tensor {name}") });
        }
        error.into()
    }
}

impl Exchange for DeskEngine {
    fn layout(&self) -> &Layout {
        &self.fit.layout
    }

    fn fragments(&self) -> &Arc<Fragments> {
        &self.fragments
    }

    fn encode(&mut self, serial: Serial, fragment: FragmentId) -> Result<(), EngineError> {
        self.order(fragment, Work::Encode(serial))
    }

    fn encoded(&mut self) -> Result<Option<Encoded>, EngineError> {
        self.collect()?;
        Ok(self.encoded.pop_front())
    }

    fn include(&mut self, fragment: FragmentId) -> Result<(), EngineError> {
        self.order(fragment, Work::Include)
    }

    fn apply(&mut self, fragment: FragmentId, body: &[u8]) -> Result<(), EngineError> {
        self.order(fragment, Work::Apply(body.to_vec()))
    }

    fn load(&mut self, fragment: FragmentId, values: &[f32], keep: bool) -> Result<(), EngineError> {
        self.order(fragment, Work::Load { values: values.to_vec(), keep })
    }
}

impl Engine for DeskEngine {
    fn exchange(&self) -> &dyn Exchange {
        self
    }

    fn exchange_mut(&mut self) -> &mut dyn Exchange {
        self
    }

    fn describe(&self) -> String {
        self.describe.clone()
    }

    /// Returns as soon as the batch is queued, while the program trains on the previous one. Tokens count once the
    /// program has trained on them, so the result is that of earlier steps.
    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        let windows = (tokens.len() / self.window) as u32;
        while !self.desk.is_leaving() && !self.desk.offer(tokens, windows, lr)? {
            // No other work can be done meanwhile.
            self.collect()?;
            self.desk.changed().await;
        }
        self.steps_begun += 1;
        loop {
            let (done, loss, tokens) = self.desk.take_steps()?;
            if done > 0 || self.steps_begun > 1 || self.desk.is_leaving() {
                return Ok(StepStats { loss, grad_norm: 0.0, tokens });
            }
            self.desk.changed().await;
        }
    }

    /// The program measures between two steps, so this takes as long as the current step and the measurement.
    async fn held_out_loss(&mut self, windows: &[u32]) -> Result<Option<f32>, EngineError> {
        if !self.measures || self.desk.is_leaving() {
            return Ok(None);
        }
        let count = (windows.len() / self.window) as u32;
        let id = self.desk.ask(self.replica.hat().to_vec(), self.fit.whole(), windows, count);
        loop {
            if let Some(loss) = self.desk.take_measured(id)? {
                return Ok(loss);
            }
            self.collect()?;
            self.desk.changed().await;
        }
    }

    async fn settle(&mut self) -> Result<(), EngineError> {
        self.collect()?;
        while self.is_busy() {
            self.desk.changed().await;
            self.collect()?;
        }
        Ok(())
    }

    /// Only copies are awaited here; steps are awaited in the next step.
    fn is_busy(&self) -> bool {
        !self.awaited.is_empty()
    }
}

#[cfg(test)]
mod tests;
