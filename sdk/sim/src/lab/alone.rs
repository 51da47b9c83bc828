//! The experiment's baseline: one trainer with the batches of all learners.

use super::recipe::Sampler;
use super::{Corpus, LabError, Noticed, Outcome, Reader, Recipe, Sample, Spent};
use archipelago_core::model::learning_rate;
use archipelago_core::wire::InnerSpec;
use archipelago_runtime::engine::Trainer;
use archipelago_runtime::engine::cpu::CpuTrainer;

impl Recipe {
    /// Trains one learner alone on `tokens` tokens with the batches of all M at once: synchronous
    /// data-parallel training, from the same parameters, over the same text in the same order of windows, by the same
    /// schedule.
    ///
    /// Two things differ from [`Self::train`] beside the method. Here the inner rate follows the tokens trained;
    /// there it follows the tokens merged, which lie about half of H steps behind. And there a learner leases up to an
    /// eighth of the text at a time, so that of more than eight some begin on the second pass over a short text.
    ///
    /// # Errors
    /// Each variant of [`LabError`] but `Split`, `Stopped`, `StandsStill` and `Violation`.
    pub fn train_alone(&self, corpus: &Corpus, tokens: u64) -> Result<Outcome, LabError> {
        self.check()?;
        let inner = InnerSpec { batch: self.inner.batch.saturating_mul(self.learners()), ..self.inner };
        let mut trainer = CpuTrainer::fixed(&self.model, &inner)?;
        trainer.params_mut().copy_from_slice(&self.theta()?);
        let mut reader = Reader::new(&self.run_spec(corpus))?;
        let mut sampler = Sampler::new(self);
        let (mut trained, mut steps) = (0, 0_u32);
        while trained < tokens {
            let batch = reader.next_batch(corpus, inner.batch);
            let lr = learning_rate(&inner, trained);
            trained += trainer.step(&batch, lr)?.tokens;
            steps += 1;
            if sampler.is_due(trained as f64 / tokens as f64) {
                let loss = self.measure(corpus, trainer.params())?;
                sampler.take(Sample { at_ms: 0, tokens: trained, loss });
            }
        }
        let loss = self.measure(corpus, trainer.params())?;
        Ok(Outcome {
            loss,
            broken: None,
            tokens: trained,
            tokens_merged: trained,
            merged_by: Vec::new(),
            grace_ms: 0,
            spent: Spent { loss, tokens: trained, tokens_merged: trained },
            steps_per_learner: f64::from(steps),
            rounds: 0,
            updates_merged: 0,
            refused: 0,
            virtual_ms: 0,
            samples: sampler.end(),
            harms: Vec::new(),
            noticed: Noticed::default(),
            cosines: Vec::new(),
            shown: Vec::new(),
        })
    }
}
