//! A step in lock-step in which somebody lies: gradients are added up as they come, and nobody bounds them.

use super::super::stage::{LIE_TIMES, Stage};
use super::Twin;
use archipelago_core::model::AdamW;
use archipelago_runtime::engine::{OptimiserState, Trainer};

impl Twin {
    /// Whether an island that takes part lies.
    pub(super) fn is_lied_to(&self) -> bool {
        self.islands.iter().any(|island| island.here && island.lies)
    }

    /// The step that AdamW takes if those who lie send [`LIE_TIMES`] times their gradient. `batch` is that of all who
    /// take part, in order. Gives the loss before it.
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
            // The mean has its gradient once already.
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
