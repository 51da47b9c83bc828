//! The engine that the loop drives: it has no model, and lays down on the desk what is to be done to the program's.

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

/// Codes fragments that the program copied out, and has it take changes in.
///
/// Each change of the exchange is `θ = kept · θ + values` on a fragment, whatever the run's policy, so nobody but the
/// program needs θ: what the replica makes of a θ of 0 are the values.
pub struct DeskEngine {
    desk: Arc<Desk>,
    fit: Fit,
    fragments: Arc<Fragments>,
    replica: Replica,
    apply: ApplyPolicy,
    describe: String,
    /// Whether the program can measure a loss.
    measures: bool,
    /// Tokens of a window, the last target included.
    window: usize,
    /// Parameters as the replica takes them, `[len]`; only one fragment of it means anything at a time.
    flat: Vec<f32>,
    /// The copies that are awaited, and what is to be done with the same fragment after each.
    awaited: BTreeMap<FragmentId, Awaited>,
    loaded: BTreeSet<FragmentId>,
    encoded: VecDeque<Encoded>,
    steps_begun: u64,
}

/// A copy that the program has not given yet.
struct Awaited {
    id: u64,
    serial: Serial,
    later: VecDeque<Work>,
}

/// What is to be done with a fragment.
enum Work {
    Encode(Serial),
    Include,
    Apply(Vec<u8>),
    Load { values: Vec<f32>, keep: bool },
}

impl DeskEngine {
    /// An engine for the run of `spec`, at a desk that is cleared for it. `describe` says what the program computes
    /// with, and `measures` whether it can measure a loss.
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

    /// Does `work` after what is to be done with `fragment` before.
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

    /// The share of unmerged progress that stays beside a change.
    fn kept(&self) -> f32 {
        match self.apply {
            ApplyPolicy::Keep { .. } => 1.0,
            ApplyPolicy::Overwrite => 0.0,
            ApplyPolicy::Blend { alpha } => alpha,
        }
    }

    /// Codes what the program copied out.
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
            // Up to the next copy of it, which then awaits the rest.
            while let Some(work) = later.pop_front() {
                self.act(fragment, work)?;
                if let Some(awaited) = self.awaited.get_mut(&fragment) {
                    awaited.later = std::mem::take(&mut later);
                }
            }
        }
        Ok(())
    }

    /// Names the tensor that is no number any more to the program.
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

    /// Returns as soon as the batch lies ready, which it does while the program trains on the one before. Tokens count
    /// once the program has trained on them, so they are those of earlier steps.
    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        let windows = (tokens.len() / self.window) as u32;
        while !self.desk.is_leaving() && !self.desk.offer(tokens, windows, lr)? {
            // Nothing else is to be done meanwhile.
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

    /// The program measures between two steps, so that this takes as long as the step before it and the loss.
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

    /// Copies are what comes out of it; steps are waited for in the next one.
    fn is_busy(&self) -> bool {
        !self.awaited.is_empty()
    }
}

#[cfg(test)]
mod tests;
