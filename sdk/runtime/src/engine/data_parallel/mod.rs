//! One learner on several workers without shared memory. Each computes the gradient of some windows of a batch.
//!
//! In browsers, helpers are Workers with a WebAssembly instance each. Parameters and windows go out as messages, and
//! gradients come back, so neither `SharedArrayBuffer` nor headers for cross-origin isolation are needed. Gradients are
//! added in a fixed order. If a helper fails or hangs, the learner drops it and recomputes its part with the same bits.
//! Moments and the exchange stay with the learner.

mod helper;
mod shares;
#[cfg(test)]
mod tests;

use std::rc::Rc;

pub use helper::{Helper, HelperError, Helpers, Part, Task, Working};

use self::shares::Shares;
use super::cpu::{CpuTrainer, Sums, instruction_set};
use super::{Engine, EngineError, Exchange, HostEngine, OptimiserState, StepStats};

/// A CPU engine that gives a part of each batch to [`Helper`]s and computes the rest itself at the same time.
///
/// Only this worker holds parameters and moments. Gradients are added in a fixed order, this worker's first. So for a
/// given division of the batch, a step has the same bits regardless of timing. The division follows the measured speed
/// of the workers. Division and number of workers change bits, but only as much as the order of a sum does.
pub struct DataParallel {
    host: HostEngine<CpuTrainer>,
    helpers: Vec<Box<dyn Helper>>,
    /// Shares of this worker, then of the helpers.
    shares: Shares,
    dropped: Vec<HelperError>,
    now_us: Rc<dyn Fn() -> u64>,
}

/// A helper's part of a step, in progress.
struct Begun {
    helper: usize,
    first: usize,
    windows: usize,
    working: Working,
}

/// Factor on the expected time after which a helper is given up.
const PATIENCE: f64 = 20.0;
/// Minimum time before a helper is given up, in milliseconds, because a machine may stall for a while.
const PATIENCE_MS_MIN: u64 = 10_000;
/// Patience before any measurement, in milliseconds, because a helper may still be loading.
const PATIENCE_MS_FIRST: u64 = 60_000;

impl DataParallel {
    /// Creates a team of the trainer in `host` and `helpers`, if there are any. `now_us` returns microseconds since an
    /// arbitrary time.
    #[must_use]
    pub fn new(
        mut host: HostEngine<CpuTrainer>,
        helpers: Vec<Box<dyn Helper>>,
        now_us: Rc<dyn Fn() -> u64>,
    ) -> Self {
        let shares = Shares::new(host.trainer_mut().batch(), 1 + helpers.len());
        Self { host, helpers, shares, dropped: Vec::new(), now_us }
    }

    /// Returns why each dropped helper was given up, in chronological order.
    #[must_use]
    pub fn dropped(&self) -> &[HelperError] {
        &self.dropped
    }

    /// Computes the gradient of a checked batch with `count` learnt tokens.
    async fn differentiate(&mut self, tokens: &[u32], count: u64) -> Result<Sums, EngineError> {
        let window = tokens.len() / self.host.trainer_mut().batch();
        let own = self.shares.of(0);
        let begun = self.begin(tokens, window, count);

        let start_us = (self.now_us)();
        let gradient = self.host.trainer_mut().gradient();
        let mut loss = gradient.differentiate(&tokens[..own * window], count)?.loss;
        self.shares.measured(0, (self.now_us)().saturating_sub(start_us));

        let (mut grads, mut failed) = (Vec::with_capacity(begun.len()), Vec::new());
        for Begun { helper, first, windows, working } in begun {
            let found = working.await.and_then(|part| part.check(gradient.grad().len()));
            let part = match found {
                Ok(part) => {
                    self.shares.measured(1 + helper, part.busy_us);
                    part
                }
                Err(error) => {
                    failed.push((helper, error));
                    let kept = gradient.grad().to_vec();
                    let sums =
                        gradient.differentiate(&tokens[first * window..][..windows * window], count)?;
                    let grad = gradient.grad().to_vec();
                    gradient.set_grad(&kept);
                    Part { loss: sums.loss, grad, busy_us: 0 }
                }
            };
            loss += part.loss;
            grads.push(part.grad);
        }
        let squares = gradient.add(&grads.iter().map(|grad| &grad[..]).collect::<Vec<_>>());
        for (helper, error) in failed.into_iter().rev() {
            self.helpers.remove(helper);
            self.shares.remove(1 + helper);
            self.dropped.push(error);
        }
        Ok(Sums { loss, squares })
    }

    /// Hands out all windows except this worker's own.
    fn begin(&mut self, tokens: &[u32], window: usize, count: u64) -> Vec<Begun> {
        let params = self.host.params();
        let (mut first, mut begun) = (self.shares.of(0), Vec::with_capacity(self.helpers.len()));
        for (helper, worker) in self.helpers.iter_mut().enumerate() {
            let windows = self.shares.of(1 + helper);
            if windows == 0 {
                continue;
            }
            let expected_us = self.shares.expected_us(1 + helper);
            let patience_ms = expected_us.map_or(PATIENCE_MS_FIRST, |expected_us| {
                PATIENCE_MS_MIN.max((PATIENCE * expected_us / 1e3) as u64)
            });
            let tokens = &tokens[first * window..][..windows * window];
            let working = worker.begin(&Task { params, tokens, count, patience_ms });
            begun.push(Begun { helper, first, windows, working });
            first += windows;
        }
        begun
    }
}

impl Engine for DataParallel {
    fn exchange(&self) -> &dyn Exchange {
        self.host.exchange()
    }

    fn exchange_mut(&mut self) -> &mut dyn Exchange {
        self.host.exchange_mut()
    }

    fn describe(&self) -> String {
        match self.helpers.len() {
            0 => self.host.describe(),
            helpers => format!("cpu {} {} workers", instruction_set(), 1 + helpers),
        }
    }

    async fn step(&mut self, tokens: &[u32], lr: f32) -> Result<StepStats, EngineError> {
        if self.helpers.is_empty() {
            return self.host.step(tokens, lr).await;
        }
        let trainer = self.host.trainer_mut();
        trainer.check(tokens, lr)?;
        let learnt = trainer.learnt(tokens);
        let sums = self.differentiate(tokens, learnt).await?;
        let stats = self.host.trainer_mut().finish(sums, learnt, lr);
        self.shares.balance();
        stats
    }

    async fn rehearse(&mut self, tokens: &[u32]) -> Result<bool, EngineError> {
        if self.helpers.is_empty() {
            return self.host.rehearse(tokens).await;
        }
        let trainer = self.host.trainer_mut();
        trainer.check(tokens, 0.0)?;
        let learnt = trainer.learnt(tokens);
        let sums = self.differentiate(tokens, learnt).await?;
        self.host.trainer_mut().finish_nothing(sums);
        Ok(true)
    }

    fn take_seen(&mut self) -> Vec<u64> {
        self.host.take_seen()
    }

    fn salvage(&mut self) -> Option<OptimiserState> {
        self.host.salvage()
    }
}
