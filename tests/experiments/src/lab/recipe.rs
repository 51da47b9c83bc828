//! Recipes of experiments, and their outcomes.

use std::sync::Arc;

use serde::Serialize;

use super::measurement::{Average, HeldOutMeter};
use super::trainers::{Base, Trainers, base};
use super::{AttackStats, Corpus, Cosines, LabError, LossCheck};
use archipelago_core::data::BYTE_VOCAB;
use archipelago_core::diloco::syncer::SyncerConfig;
use archipelago_core::model::ModelSpec;
use archipelago_core::model::init;
use archipelago_core::wire::{ExchangeSpec, InnerSpec, RunSpec};
use archipelago_runtime::engine::EngineError;
use archipelago_sim::world::{Attack, Fault, Harm, MachineSpec, MonitorSpec, Poison};

/// Budget after which an experiment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Ends when all honest machines together have trained this many tokens.
    Tokens(u64),
    /// Ends after this many milliseconds of virtual time.
    Ms(u64),
}

/// Initial optimiser state of a learner whose machine starts after the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinerStart {
    /// Zero moments, as every learner has initially. This is what ships.
    Zero,
    /// Zero moments, and an inner learning rate that rises linearly to the run's over the first `steps` steps.
    Ramp {
        /// Steps until the joiner has the run's rate.
        steps: u32,
    },
    /// AdamW's moments of the learner on the first machine. Their transfer is not counted in bytes. CPU only.
    Donor,
}

/// Interpolation every `steps` steps: the parameters move to the point at the fraction `share` of the way from their
/// last interpolation to their present values (Zhang, Lucas, Hinton and Ba 2019).
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
    /// Exchange of parameters between learners and syncer.
    pub exchange: ExchangeSpec,
    /// The syncer's settings.
    pub syncer: SyncerConfig,
    /// The M machines, with one learner on each.
    pub machines: Vec<MachineSpec>,
    /// Whether every machine has the text from the beginning. Otherwise it fetches the text over its link.
    pub text_at_hand: bool,
    /// Faults of the machines, in this order, each with its earliest time in milliseconds of virtual time. A machine
    /// that is poisoned at any time is hostile: the budget does not include its tokens, and it may be sent away.
    pub faults: Vec<(u64, Fault)>,
    /// Initial optimiser state of joiners.
    pub joining: JoinerStart,
    /// The end of the experiment.
    pub budget: Budget,
    /// Seed of parameters, data order and world.
    pub seed: u64,
    /// The initial parameters, `[len]`, if they do not follow from the seed.
    pub start: Option<Arc<[f32]>>,
    /// Number of loss measurements, evenly spaced over the budget.
    pub samples: u32,
    /// Settings of the loss monitor with rollback; `None` disables it.
    pub undo: Option<MonitorSpec>,
    /// Whether the cosines between honest updates of the same merge are measured. This takes time for each pair, and
    /// does not affect the run.
    pub cosines: bool,
    /// Horizon of the parameter average, as a share of the budget; 0 for no average. The loss of the average is
    /// measured in addition to that of the last parameters.
    pub average: f64,
    /// Whether the loss on [`Corpus::test`] is measured at the end. No setting is chosen by it.
    pub measures_test: bool,
    /// Lookahead of a single trainer; `None` for learners.
    pub lookahead: Option<Lookahead>,
    /// Whether loss checks of single updates run, and learners that fail them are suspected. This models a server with
    /// enough time for all of its checks.
    pub loss_checks: bool,
    /// The source of trainers and measurements; `None` means [`archipelago_runtime::engine::cpu::CpuTrainer::fixed`].
    /// Loss checks run on the CPU in any case.
    pub trainers: Option<Arc<dyn Trainers>>,
}

/// Returns the shape of the independent model of the method that our results are compared with: two layers of width 64,
/// context 64, a byte vocabulary.
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

/// Held-out loss at one time of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Virtual time, in milliseconds; 0 in training alone.
    pub at_ms: u64,
    /// Tokens trained by all honest machines together.
    pub tokens: u64,
    /// Held-out loss of Θ, in nats per token.
    pub loss: f32,
}

/// State of an experiment when its budget is spent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BudgetResult {
    /// Held-out loss of Θ̂, which all learners hold, in nats per token.
    pub loss: f32,
    /// Tokens trained by all honest machines together.
    pub tokens: u64,
    /// Merged tokens, including those of hostile learners.
    pub tokens_merged: u64,
}

/// Further losses at the end, in nats per token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct FinalLosses {
    /// Held-out loss of the averaged parameters, if there is an average.
    pub averaged: Option<f32>,
    /// Loss of the last parameters on [`Corpus::test`], if requested.
    pub test: Option<f32>,
    /// Loss of the averaged parameters on [`Corpus::test`], if both are requested.
    pub averaged_test: Option<f32>,
}

/// The result of training.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrainingResult {
    /// Held-out loss of the resulting parameters, in nats per token; infinite if hostile learners ruined them.
    pub loss: f32,
    /// Further losses at the end.
    pub ends: FinalLosses,
    /// The reason why honest learners could not continue, if hostile ones caused that; all other fields describe that
    /// moment.
    pub broken: Option<String>,
    /// Tokens trained by all honest machines together.
    pub tokens: u64,
    /// Merged tokens, including those of hostile learners.
    pub tokens_merged: u64,
    /// Merged tokens of the learner on each machine; empty in training alone.
    pub merged_by: Vec<u64>,
    /// Longest wait of a round after its quorum when the budget was spent, in milliseconds; 0 in training alone.
    pub grace_ms: u64,
    /// The state when the budget was spent, before the last rounds collected all remaining progress.
    pub spent: BudgetResult,
    /// Mean steps of an honest learner.
    pub steps_per_learner: f64,
    /// Rounds that led to a version.
    pub rounds: u64,
    /// Merged updates, over all rounds.
    pub updates_merged: u64,
    /// Refused updates.
    pub refused: u64,
    /// Virtual time, in milliseconds.
    pub virtual_ms: u64,
    /// Held-out losses during training.
    pub samples: Vec<Sample>,
    /// Harm found and rolled back; empty in training alone.
    pub harms: Vec<Harm>,
    /// Treatment of hostile and honest learners; zeros in training alone.
    pub attack_stats: AttackStats,
    /// Cosines between honest updates, if requested.
    pub cosines: Vec<Cosines>,
    /// Results of the checks of single updates, if requested.
    pub loss_checks: Vec<LossCheck>,
}

impl TrainingResult {
    /// Creates the outcome of training outside a world, where no time passes and no learner is late or hostile:
    /// `tokens` tokens in `steps` steps.
    pub(super) fn of_steps(
        loss: f32,
        ends: FinalLosses,
        (tokens, steps): (u64, u32),
        samples: Vec<Sample>,
    ) -> Self {
        Self {
            loss,
            ends,
            broken: None,
            tokens,
            tokens_merged: tokens,
            merged_by: Vec::new(),
            grace_ms: 0,
            spent: BudgetResult { loss, tokens, tokens_merged: tokens },
            steps_per_learner: f64::from(steps),
            rounds: 0,
            updates_merged: 0,
            refused: 0,
            virtual_ms: 0,
            samples,
            harms: Vec::new(),
            attack_stats: AttackStats::default(),
            cosines: Vec::new(),
            loss_checks: Vec::new(),
        }
    }
}

impl Recipe {
    /// Returns the specification of the run on `corpus`.
    #[must_use]
    pub fn run_spec(&self, corpus: &Corpus) -> RunSpec {
        let (model, inner, exchange) = (self.model, self.inner, self.exchange);
        let (data, seed) = (corpus.data.clone(), self.seed);
        RunSpec { model: model.into(), inner, exchange, data, seed, frozen: None }
    }

    /// Returns the initial parameters, `[len]`.
    ///
    /// # Errors
    /// [`LabError::Model`]
    pub(super) fn theta(&self) -> Result<Vec<f32>, LabError> {
        match &self.start {
            Some(start) => Ok(start.to_vec()),
            None => Ok(init(&self.model, self.seed)?),
        }
    }

    /// Creates a trainer of the recipe's kind, for steps of `inner`.
    ///
    /// # Errors
    /// [`EngineError`]
    pub(super) fn base(&self, inner: &InnerSpec) -> Result<Base, EngineError> {
        base(self.trainers.as_deref(), &self.model, inner)
    }

    /// Creates the meter of losses.
    ///
    /// # Errors
    /// [`LabError::Engine`]
    pub(super) fn meter(&self) -> Result<HeldOutMeter, LabError> {
        HeldOutMeter::new(self.trainers.as_deref(), &self.model, &self.inner, self.seed)
    }

    /// Creates the average of parameters that starts with `params`, `[len]`, if the recipe has one.
    pub(super) fn averaging(&self, params: Vec<f32>) -> Option<Average> {
        Average::new(self.average, self.trainers.is_some(), params)
    }

    /// Returns M.
    #[must_use]
    pub fn learners(&self) -> u32 {
        // A world of more than 2³² machines does not fit into memory.
        self.machines.len() as u32
    }

    /// Returns true if a machine is poisoned at some time.
    #[must_use]
    pub fn is_hostile(&self, machine: u32) -> bool {
        self.poisons(machine).next().is_some()
    }

    /// Returns true if any machine is hostile.
    pub(super) fn is_attacked(&self) -> bool {
        (0..self.learners()).any(|machine| self.is_hostile(machine))
    }

    /// Returns true if a machine's learner skips most of its work.
    pub(super) fn rides_free(&self, machine: u32) -> bool {
        self.poisons(machine).any(|poison| poison == Poison::Lie(Attack::Sandbags))
    }

    fn poisons(&self, machine: u32) -> impl Iterator<Item = Poison> {
        self.faults.iter().filter_map(move |(_, fault)| match fault {
            Fault::Poison(poisoned, poison) if *poisoned == machine => *poison,
            _ => None,
        })
    }

    /// Checks machines, budget and joiners.
    ///
    /// # Errors
    /// [`LabError::Nothing`] and [`LabError::Donor`].
    pub(super) fn check(&self) -> Result<(), LabError> {
        if self.trainers.is_some() && self.joining == JoinerStart::Donor {
            return Err(LabError::Donor);
        }
        let honest = (0..self.learners()).any(|machine| !self.is_hostile(machine));
        let nothing = !honest || matches!(self.budget, Budget::Tokens(0) | Budget::Ms(0));
        if nothing { Err(LabError::Nothing) } else { Ok(()) }
    }

    /// Returns the [`FinalLosses`] of `params`, `[len]`, and of the average.
    ///
    /// # Errors
    /// Those of [`Corpus::held_out_loss`].
    pub(super) fn ends(
        &self,
        meter: &mut HeldOutMeter,
        corpus: &Corpus,
        params: &[f32],
        average: Option<&Average>,
    ) -> Result<FinalLosses, LabError> {
        let averaged = average.map(|average| average.params.as_slice());
        let tested = averaged.filter(|_| self.measures_test);
        Ok(FinalLosses {
            averaged: averaged.map(|params| meter.held_out(corpus, params)).transpose()?,
            test: self.measures_test.then(|| meter.test(corpus, params)).transpose()?,
            averaged_test: tested.map(|params| meter.test(corpus, params)).transpose()?,
        })
    }

    /// Returns the spent share of the budget after `tokens` tokens and `ms` milliseconds; 1 is the end.
    pub(super) fn spent(&self, tokens: u64, ms: u64) -> f64 {
        match self.budget {
            Budget::Tokens(all) => tokens as f64 / all as f64,
            Budget::Ms(all) => ms as f64 / all as f64,
        }
    }
}
