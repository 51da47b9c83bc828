//! The method without decoupling: all learners step together, and the whole model is merged at once.

use std::num::NonZeroU16;

use super::measurement::Sampler;
use super::{Corpus, LabError, Recipe, Sample, TrainingResult, WindowReader};
use archipelago_core::diloco::{
    Codec, FragmentState, Fragments, MergeJob, OuterSpec, Version, WeightedUpdate,
};
use archipelago_core::model::{layout, learning_rate};
use archipelago_core::wire::{Code, ExchangeSpec, FragmentId, LearnerId, Round};
use archipelago_runtime::engine::Trainer;

/// Fragment that is the whole model.
const WHOLE: FragmentId = FragmentId(0);

impl Recipe {
    /// Trains M learners in lockstep on `tokens` tokens in total. After every H steps their parameters are merged by
    /// the recipe's rule and outer step, in 32 bits and without delay, and all continue from the result. The only
    /// remaining effect of the method is that learners diverge for H steps. With an H of 1, an outer rate of 1 and no
    /// momentum they never diverge.
    ///
    /// Starts from the same parameters as [`Self::train_baseline`], with the same schedule, over the same windows step
    /// by step.
    ///
    /// # Errors
    /// Each variant of [`LabError`] except `Split`, `Stopped`, `StandsStill` and `Violation`.
    pub fn train_in_lockstep(&self, corpus: &Corpus, tokens: u64) -> Result<TrainingResult, LabError> {
        self.check()?;
        let inner = self.inner;
        let start = self.theta()?;
        let mut learners = Vec::new();
        for _ in 0..self.learners() {
            let mut trainer = self.base(&inner)?.boxed();
            trainer.params_mut().copy_from_slice(&start);
            learners.push(trainer);
        }
        let mut meter = self.meter()?;
        let mut whole = WholeModel::new(self, start)?;
        let mut reader = WindowReader::new(&self.run_spec(corpus))?;
        let mut sampler = Sampler::new(self);
        let (mut trained, mut steps) = (0, 0_u32);
        while trained < tokens {
            let lr = learning_rate(&inner, trained);
            for learner in &mut learners {
                let batch = reader.next_batch(corpus, inner.batch);
                trained += learner.step(&batch, lr)?.tokens;
            }
            steps += 1;
            if steps.is_multiple_of(self.exchange.sync_every) || trained >= tokens {
                let outer = self.outer(trained as f64 / tokens as f64);
                whole.merge(&mut learners, outer, self)?;
            }
            if sampler.is_due(trained as f64 / tokens as f64) {
                let loss = meter.measure(corpus, &whole.theta)?;
                sampler.take(Sample { at_ms: 0, tokens: trained, loss });
            }
        }
        let loss = meter.measure(corpus, &whole.theta)?;
        let ends = self.ends(&mut meter, corpus, &whole.theta, None)?;
        let rounds = whole.state.version.0;
        let updates_merged = rounds * u64::from(self.learners());
        let outcome = TrainingResult::of_steps(loss, ends, (trained, steps), sampler.end());
        Ok(TrainingResult { rounds, updates_merged, ..outcome })
    }

    /// Returns the outer step of a round. `share` is the fraction of all tokens that are trained, including those of
    /// this round. It is one round ahead of the syncer's fraction, which has no merged tokens before its first round.
    fn outer(&self, share: f64) -> OuterSpec {
        let (outer, ratio) = (self.syncer.outer, self.syncer.momentum_warmup_ratio);
        if ratio > 0.0 { outer.with_momentum_share(share / ratio) } else { outer }
    }
}

/// Model with all parameters in one fragment.
struct WholeModel {
    fragments: Fragments,
    codec: Codec,
    state: FragmentState,
    /// Θ in the order of the model, `[len]`.
    theta: Vec<f32>,
}

impl WholeModel {
    fn new(recipe: &Recipe, theta: Vec<f32>) -> Result<Self, LabError> {
        let fragments = Fragments::plan(&layout(&recipe.model)?, NonZeroU16::MIN);
        let exchange = ExchangeSpec { fragments: 1, code: Code::F32, ..recipe.exchange };
        let codec = Codec::new(&exchange).map_err(|error| LabError::Syncer(error.into()))?;
        let state = FragmentState::new(fragments.gather(WHOLE, &theta));
        Ok(Self { fragments, codec, state, theta })
    }

    /// Merges the parameters of `learners`, which all continue from the result.
    fn merge(
        &mut self,
        learners: &mut [Box<dyn Trainer>],
        outer: OuterSpec,
        recipe: &Recipe,
    ) -> Result<(), LabError> {
        let segments = self.fragments.segments(WHOLE).unwrap_or_default().to_vec();
        let update = |(learner, trainer): (u32, &dyn Trainer)| {
            let apart = self.theta.iter().zip(trainer.params()).map(|(theta, own)| theta - own);
            let apart = self.fragments.gather(WHOLE, &apart.collect::<Vec<f32>>());
            let body = self.codec.encode(&segments, &apart);
            let body = self.codec.check(&segments, body);
            let body = body.map_err(|_| LabError::NotFinite { seed: recipe.seed, loss: f32::NAN })?;
            let (learner, steps) = (LearnerId(learner), recipe.exchange.sync_every);
            Ok(WeightedUpdate { learner, weight: 1.0, experts: Vec::new(), steps, body })
        };
        let updates = (1..)
            .zip(learners.iter().map(|learner| &**learner))
            .map(update)
            .collect::<Result<_, LabError>>()?;
        let next = Version(self.state.version.0 + 1);
        let job = MergeJob {
            round: Round(next.0),
            fragment: WHOLE,
            state: self.state.clone(),
            absent: 0.0,
            absent_experts: Vec::new(),
            updates,
            segments,
            codec: self.codec,
            rule: recipe.syncer.merge,
            radii: Vec::new(),
            outer,
            next,
        };
        let merged = job.run().map_err(|_| LabError::NotFinite { seed: recipe.seed, loss: f32::NAN })?;
        self.state = merged.state;
        self.fragments.scatter(WHOLE, &self.state.theta, &mut self.theta);
        learners.iter_mut().for_each(|learner| learner.params_mut().copy_from_slice(&self.theta));
        Ok(())
    }
}
