//! The baseline of an experiment: one trainer with the batches of all learners.

use super::measurement::Sampler;
use super::{Corpus, LabError, Recipe, Sample, TrainingResult, WindowReader};
use archipelago_core::model::learning_rate;
use archipelago_core::wire::InnerSpec;

impl Recipe {
    /// Trains one learner alone on `tokens` tokens with the batches of all M at once. This is synchronous data-parallel
    /// training from the same parameters, over the same text in the same order of windows, by the same schedule.
    ///
    /// Two more differences from [`Self::train`] remain. Here the inner learning rate follows the trained tokens; there
    /// it follows the merged tokens, which lag by about half of H steps. There, a learner leases up to an eighth of the
    /// text at a time. With more than eight learners, some therefore begin on the second pass over a short text.
    ///
    /// # Errors
    /// Each variant of [`LabError`] except `Split`, `Stopped`, `StandsStill` and `Violation`.
    pub fn train_baseline(&self, corpus: &Corpus, tokens: u64) -> Result<TrainingResult, LabError> {
        self.check()?;
        let inner = InnerSpec { batch: self.inner.batch.saturating_mul(self.learners()), ..self.inner };
        let mut trainer = self.base(&inner)?.boxed();
        let mut meter = self.meter()?;
        trainer.params_mut().copy_from_slice(&self.theta()?);
        let mut reader = WindowReader::new(&self.run_spec(corpus))?;
        let mut sampler = Sampler::new(self);
        let mut average = self.averaging(trainer.params().to_vec());
        let mut slow = self.lookahead.map(|lookahead| (lookahead, trainer.params().to_vec()));
        let (mut trained, mut steps) = (0, 0_u32);
        while trained < tokens {
            let batch = reader.next_batch(corpus, inner.batch);
            let lr = learning_rate(&inner, trained);
            trained += trainer.step(&batch, lr)?.tokens;
            steps += 1;
            if let Some((lookahead, slow)) = slow.as_mut().filter(|(how, _)| steps.is_multiple_of(how.steps))
            {
                go_back(slow, trainer.params_mut(), lookahead.share);
            }
            let spent = trained as f64 / tokens as f64;
            if let Some(average) = average.as_mut().filter(|average| average.is_due(spent)) {
                average.take(spent, trainer.params());
            }
            if sampler.is_due(spent) {
                let loss = meter.measure(corpus, trainer.params())?;
                sampler.take(Sample { at_ms: 0, tokens: trained, loss });
            }
        }
        let loss = meter.measure(corpus, trainer.params())?;
        let ends = self.ends(&mut meter, corpus, trainer.params(), average.as_ref())?;
        Ok(TrainingResult::of_steps(loss, ends, (trained, steps), sampler.end()))
    }
}

/// Moves `slow` by `share` of the way to `fast`, and sets `fast` to the result; both `[len]`.
fn go_back(slow: &mut [f32], fast: &mut [f32], share: f32) {
    for (slow, fast) in slow.iter_mut().zip(fast) {
        *slow += share * (*fast - *slow);
        *fast = *slow;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_go_a_part_of_the_way() {
        let (mut slow, mut fast) = ([1.0, -1.0], [2.0, -1.0]);
        go_back(&mut slow, &mut fast, 0.25);
        assert_eq!((slow, fast), ([1.25, -1.0], [1.25, -1.0]));
    }
}
