//! The loss of text that is read but not learnt, on the device.

use archipelago_core::bytes::to_f32s;

use super::{GpuEngine, STATS_BYTES, numbers};
use crate::engine::{Engine, EngineError};
use crate::model::{Adjust, windows};
use crate::token;

impl GpuEngine {
    /// Returns the mean loss of the parameters over the learnt tokens of `tokens`, `[n, context + 1]`, in nats per
    /// token, for any n. It is 0 if no token is learnt. Parameters and moments stay unchanged, because it runs steps
    /// that change nothing.
    ///
    /// # Errors
    /// - [`EngineError::Model`]: `tokens` has another shape or a token outside the vocabulary.
    /// - [`EngineError::NotFinite`]: an earlier step diverged.
    /// - [`EngineError::Lost`]: the device is gone.
    pub async fn loss(&mut self, tokens: &[u32]) -> Result<f32, EngineError> {
        windows(tokens, &self.dims)?;
        self.settle().await?;
        let mut sum = 0.0;
        for batch in tokens.chunks(self.inner.batch as usize * (self.dims.context + 1)) {
            if self.ring.is_full() {
                sum += self.take_loss().await?;
            }
            self.submit(&self.whole_batch(batch), &Adjust::NOTHING);
        }
        while !self.ring.is_empty() {
            sum += self.take_loss().await?;
        }
        Ok((sum / token::learnt(tokens, self.dims.context).max(1) as f64) as f32)
    }

    /// Returns `tokens`, padded to a whole batch with windows without learnt tokens.
    fn whole_batch(&self, tokens: &[u32]) -> Vec<u32> {
        let mut batch = tokens.to_vec();
        batch.resize(self.inner.batch as usize * (self.dims.context + 1), token::GIVEN);
        batch
    }

    /// Returns the sum of the losses of the oldest pending batch, in nats.
    async fn take_loss(&mut self) -> Result<f64, EngineError> {
        self.ring.ready(&self.gpu).await?;
        let rows = self.shape.microbatches * self.shape.rows_padded();
        let found = self.ring.next(&self.gpu, |_, bytes| {
            let (stats, seen) = bytes.split_at(STATS_BYTES);
            (f64::from(to_f32s(stats)[0]) * rows as f64, numbers(seen))
        })?;
        let (sum, counted) = found.expect("it was waited for");
        // Tokens that are only read count for no expert.
        self.counted.iter_mut().zip(counted).for_each(|(old, new)| *old = new);
        Ok(sum)
    }
}
