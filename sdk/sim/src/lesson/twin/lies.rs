//! A lockstep step with a liar: gradients are summed without any bound.

use super::super::stage::{LIE_TIMES, Stage};
use super::Twin;
use archipelago_core::model::AdamW;
use archipelago_runtime::engine::{OptimiserState, Trainer};

impl Twin {
    /// Returns true if a participating island lies.
    pub(super) fn is_lied_to(&self) -> bool {
        self.islands.iter().any(|island| island.here && island.lies)
    }

    /// Takes the AdamW step in which liars send [`LIE_TIMES`] times their gradient. `batch` is that of all
    /// participating islands, in order. Returns the loss before the step.
    pub(super) fn false_step(&mut self, batch: &[u32], lr: f32) -> f32 {
        let members = self.members();
        let its_tokens = batch.len() / members as usize;
        let (loss, grad) = self.trainer.loss_and_grad(batch).expect("a batch of this model");
        let mut sum = grad.to_vec();
        let mut alone = Stage::trainer(&self.stage.inner, self.stage.inner.batch);
        alone.params_mut().copy_from_slice(self.trainer.params());
        let here = self.islands.iter().filter(|island| island.here);
        for (island, tokens) in here.zip(batch.chunks(its_tokens)) {
            if !island.lies {
                continue;
            }
            // The mean already contains the honest gradient once.
            let more = (LIE_TIMES - 1) as f32 / members as f32;
            let (_, its) = alone.loss_and_grad(tokens).expect("a batch of this model");
            sum.iter_mut().zip(its).for_each(|(sum, its)| *sum += more * its);
        }
        let moments = self.trainer.moments().expect("it trains with AdamW");
        let [m, v] = moments.adamw(sum.len()).expect("moments of this model");
        let mut adamw = AdamW { m: m.to_vec(), v: v.to_vec(), steps: moments.steps };
        adamw.step(&Stage::layout(), &self.stage.inner, lr, self.trainer.params_mut(), &sum);
        let moments = OptimiserState::of_adamw(adamw.steps, adamw.m, adamw.v);
        self.trainer.resume(&moments).expect("moments of this model");
        loss
    }
}
