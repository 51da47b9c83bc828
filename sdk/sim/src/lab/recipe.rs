//! What is trained, how, where and for how long; and what it led to.

use std::sync::Arc;

use serde::Serialize;

use super::average::Average;
use super::trainers::{Base, Meter, Trainers, base};
use super::{Corpus, Cosines, LabError, MachineShown, Noticed};
use crate::world::{Fault, Harm, Lie, LookSpec, MachineSpec, Poison};
use archipelago_core::data::BYTE_VOCAB;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::model::ModelSpec;
use archipelago_core::model::init;
use archipelago_core::wire::{ExchangeSpec, InnerSpec, RunSpec};
use archipelago_runtime::engine::EngineError;

/// When an experiment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// All honest machines together have trained so many tokens.
    Tokens(u64),
    /// So many milliseconds of virtual time are over.
    Ms(u64),
}

/// What the learner of a machine that starts after the beginning has beside the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joining {
    /// Moments of zero, as every learner has at first: what ships.
    Zero,
    /// Moments of zero, and over its first `steps` steps an inner rate that rises in a line to the run's.
    Ramp {
        /// Steps of the joiner until it has the run's rate.
        steps: u32,
    },
    /// AdamW's moments of the learner on the first machine. Nobody counts their bytes. On the CPU only.
    Donor,
}

/// Every `steps` steps parameters go from where they were at the last such moment by `share` of the way that they went
/// (Zhang, Lucas, Hinton and Ba 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lookahead {
    /// k, at least 1.
    pub steps: u32,
    /// α, above 0, at most 1.
    pub share: f32,
}

/// One experiment.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// Shape of the model.
    pub model: ModelSpec,
    /// Inner optimisation of one learner.
    pub inner: InnerSpec,
    /// How learners and syncer exchange parameters.
    pub exchange: ExchangeSpec,
    /// The syncer's knobs.
    pub syncer: SyncerConfig,
    /// The machines, with one learner on each: M of them.
    pub machines: Vec<MachineSpec>,
    /// Whether every machine holds the text from the beginning. It fetches it over its link if not.
    pub text_at_hand: bool,
    /// What is done to the machines: not before so many milliseconds of virtual time, in this order. A machine that is
    /// poisoned at some time is hostile: its tokens do not count, and it may be sent away.
    pub faults: Vec<(u64, Fault)>,
    /// What who joins late begins with.
    pub joining: Joining,
    /// When it ends.
    pub budget: Budget,
    /// Seed of parameters, data order and world.
    pub seed: u64,
    /// The parameters that it begins with, `[len]`, where they do not follow from the seed.
    pub start: Option<Arc<[f32]>>,
    /// How often the loss is measured on the way, evenly spread over the budget.
    pub samples: u32,
    /// How often the held-out loss is looked at to undo what did harm to it; never if `None`.
    pub undo: Option<LookSpec>,
    /// Whether honest updates that are merged together are compared; it takes time for each pair, and changes nothing
    /// of the run.
    pub cosines: bool,
    /// Share of the budget over which the parameters are averaged that are measured beside the last ones; 0 for none.
    pub average: f64,
    /// Whether the loss on [`Corpus::test`] is measured at the end. Nothing is chosen by it.
    pub is_told: bool,
    /// In training alone only: every so many steps go back a part of the way.
    pub lookahead: Option<Lookahead>,
    /// Whether single updates are tried on the text that they were trained on, and who does not show that it trains is
    /// suspected, as by a server that has the time to look at all that it wants to.
    pub exams: bool,
    /// What trains and measures; [`archipelago_runtime::engine::cpu::CpuTrainer::fixed`] where this is `None`. Exams
    /// are on the CPU all the same.
    pub trainers: Option<Arc<dyn Trainers>>,
}

/// The shape of the independent model of the method that our results are set beside: two layers of
/// width 64, context 64, a byte vocabulary.
#[must_use]
pub fn reference_model() -> ModelSpec {
    ModelSpec {
        vocab: BYTE_VOCAB,
        d_model: 64,
        layers: 2,
        heads: 4,
        kv_heads: 4,
        d_ff: 176,
        context: 64,
        rope_theta: 1e4,
        norm_eps: 1e-5,
        untied_head: false,
        experts: None,
        lora: None,
    }
}

/// Held-out loss at one moment of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Virtual time, in milliseconds; 0 in training alone.
    pub at_ms: u64,
    /// Tokens trained by all honest machines together.
    pub tokens: u64,
    /// Held-out loss of Θ, in nats per token.
    pub loss: f32,
}

/// An experiment at the end of its budget.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spent {
    /// Held-out loss of Θ̂, which all learners hold, in nats per token.
    pub loss: f32,
    /// Tokens trained by all honest machines together.
    pub tokens: u64,
    /// Tokens that were merged, those of hostile learners too.
    pub tokens_merged: u64,
}

/// Losses at the end beside that of the last parameters on what settings are chosen by, in nats per token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ends {
    /// Held-out loss of the averaged parameters, if they were.
    pub averaged: Option<f32>,
    /// Loss of the last parameters on [`Corpus::test`], if that is told…
    pub test: Option<f32>,
    /// …and of the averaged ones.
    pub averaged_test: Option<f32>,
}

/// What training led to.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Held-out loss of the parameters that result, in nats per token; infinite if hostile learners made them such that
    /// they have none.
    pub loss: f32,
    /// Other losses at the end.
    pub ends: Ends,
    /// Why honest learners could not go on, where hostile ones brought that about: then all else is as it was by then.
    pub broken: Option<String>,
    /// Tokens trained by all honest machines together.
    pub tokens: u64,
    /// Tokens that were merged, those of hostile learners too.
    pub tokens_merged: u64,
    /// The same of the learner on each machine; empty in training alone.
    pub merged_by: Vec<u64>,
    /// The longest wait of a round after its quorum when the budget was spent, in milliseconds; 0 in training alone.
    pub grace_ms: u64,
    /// When the budget was spent, before the last rounds collected everybody's progress.
    pub spent: Spent,
    /// Mean steps of an honest learner.
    pub steps_per_learner: f64,
    /// Rounds that led to a version.
    pub rounds: u64,
    /// Updates that were merged, all rounds together.
    pub updates_merged: u64,
    /// Updates that were refused.
    pub refused: u64,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
    /// The loss on the way.
    pub samples: Vec<Sample>,
    /// Harm that was seen and undone; nothing in training alone.
    pub harms: Vec<Harm>,
    /// What became of hostile learners and of honest ones; zeros in training alone.
    pub noticed: Noticed,
    /// How near honest updates were to each other, if that was asked for.
    pub cosines: Vec<Cosines>,
    /// What single updates showed, if that was asked for.
    pub shown: Vec<MachineShown>,
}

impl Outcome {
    /// Of training outside of a world, in which no time passes and nobody is late or hostile: so many tokens in so many
    /// steps.
    pub(super) fn of_steps(loss: f32, ends: Ends, (tokens, steps): (u64, u32), samples: Vec<Sample>) -> Self {
        Self {
            loss,
            ends,
            broken: None,
            tokens,
            tokens_merged: tokens,
            merged_by: Vec::new(),
            grace_ms: 0,
            spent: Spent { loss, tokens, tokens_merged: tokens },
            steps_per_learner: f64::from(steps),
            rounds: 0,
            updates_merged: 0,
            refused: 0,
            virtual_ms: 0,
            samples,
            harms: Vec::new(),
            noticed: Noticed::default(),
            cosines: Vec::new(),
            shown: Vec::new(),
        }
    }
}

impl Recipe {
    /// The run that follows, on `corpus`.
    #[must_use]
    pub fn run_spec(&self, corpus: &Corpus) -> RunSpec {
        let (model, inner, exchange) = (self.model, self.inner, self.exchange);
        let (data, seed) = (corpus.data.clone(), self.seed);
        RunSpec { model: model.into(), inner, exchange, data, seed, frozen: None }
    }

    /// The parameters that it begins with, `[len]`.
    ///
    /// # Errors
    /// [`LabError::Model`]
    pub(super) fn theta(&self) -> Result<Vec<f32>, LabError> {
        match &self.start {
            Some(start) => Ok(start.to_vec()),
            None => Ok(init(&self.model, self.seed)?),
        }
    }

    /// A trainer of what this recipe trains with, for steps of `inner`.
    ///
    /// # Errors
    /// [`EngineError`]
    pub(super) fn base(&self, inner: &InnerSpec) -> Result<Base, EngineError> {
        base(self.trainers.as_deref(), &self.model, inner)
    }

    /// What measures losses.
    ///
    /// # Errors
    /// [`LabError::Engine`]
    pub(super) fn meter(&self) -> Result<Meter, LabError> {
        Meter::new(self.trainers.as_deref(), &self.model, &self.inner, self.seed)
    }

    /// The average of parameters that begins with `params`, `[len]`, if there is to be one.
    pub(super) fn averaging(&self, params: Vec<f32>) -> Option<Average> {
        Average::new(self.average, self.trainers.is_some(), params)
    }

    /// M.
    #[must_use]
    pub fn learners(&self) -> u32 {
        // A world of more than 2³² machines fits no memory.
        self.machines.len() as u32
    }

    /// Whether a machine is poisoned at some time.
    #[must_use]
    pub fn is_hostile(&self, machine: u32) -> bool {
        self.poisons(machine).next().is_some()
    }

    /// Whether anybody is.
    pub(super) fn is_attacked(&self) -> bool {
        (0..self.learners()).any(|machine| self.is_hostile(machine))
    }

    /// Whether a machine's learner does a part of its work only.
    pub(super) fn idles(&self, machine: u32) -> bool {
        self.poisons(machine).any(|poison| poison == Poison::Lie(Lie::Sandbags))
    }

    fn poisons(&self, machine: u32) -> impl Iterator<Item = Poison> {
        self.faults.iter().filter_map(move |(_, fault)| match fault {
            Fault::Poison(poisoned, poison) if *poisoned == machine => *poison,
            _ => None,
        })
    }

    /// # Errors
    /// [`LabError::Nothing`] and [`LabError::Donor`].
    pub(super) fn check(&self) -> Result<(), LabError> {
        if self.trainers.is_some() && self.joining == Joining::Donor {
            return Err(LabError::Donor);
        }
        let honest = (0..self.learners()).any(|machine| !self.is_hostile(machine));
        let nothing = !honest || matches!(self.budget, Budget::Tokens(0) | Budget::Ms(0));
        if nothing { Err(LabError::Nothing) } else { Ok(()) }
    }

    /// What [`Ends`] says of `params`, `[len]`, and of what was averaged.
    ///
    /// # Errors
    /// Those of [`Corpus::held_out_loss`].
    pub(super) fn ends(
        &self,
        meter: &mut Meter,
        corpus: &Corpus,
        params: &[f32],
        average: Option<&Average>,
    ) -> Result<Ends, LabError> {
        let averaged = average.map(|average| average.params.as_slice());
        let told = averaged.filter(|_| self.is_told);
        Ok(Ends {
            averaged: averaged.map(|params| meter.held_out(corpus, params)).transpose()?,
            test: self.is_told.then(|| meter.test(corpus, params)).transpose()?,
            averaged_test: told.map(|params| meter.test(corpus, params)).transpose()?,
        })
    }

    /// How far along the budget `tokens` and `ms` are: 1 is the end.
    pub(super) fn spent(&self, tokens: u64, ms: u64) -> f64 {
        match self.budget {
            Budget::Tokens(all) => tokens as f64 / all as f64,
            Budget::Ms(all) => ms as f64 / all as f64,
        }
    }
}

/// Takes [`Sample`]s as an experiment goes on.
pub(super) struct Sampler {
    wanted: u32,
    samples: Vec<Sample>,
}

impl Sampler {
    pub(super) fn new(recipe: &Recipe) -> Self {
        Self { wanted: recipe.samples, samples: Vec::new() }
    }

    /// Whether the next sample is due at this share of the budget.
    pub(super) fn is_due(&self, spent: f64) -> bool {
        let next = self.samples.len() as u32 + 1;
        next <= self.wanted && spent * f64::from(self.wanted) >= f64::from(next)
    }

    pub(super) fn take(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    pub(super) fn end(self) -> Vec<Sample> {
        self.samples
    }
}
