//! Measurements of parameters: their loss during and after an experiment, and their average.

use super::recipe::{Recipe, Sample};
use super::trainers::Trainers;
use super::{Corpus, LabError};
use archipelago_core::model::ModelSpec;
use archipelago_core::wire::InnerSpec;
use archipelago_runtime::engine::Trainer;

/// Number of windows in a batch of a measurement.
const MEASURED_WINDOWS: u32 = 32;

/// Number of updates of the average per horizon, if reading the parameters is slow. More updates would cost time and
/// hardly change the average.
const TIMES: f64 = 64.0;

/// A meter of held-out losses, with the recipe's kind of trainer.
pub(super) struct HeldOutMeter {
    model: ModelSpec,
    seed: u64,
    /// `None` uses [`Corpus::held_out_loss`].
    trainer: Option<Box<dyn Trainer>>,
}

impl HeldOutMeter {
    /// Creates a meter for the model of a run with the seed `seed` and the inner optimisation `inner`.
    ///
    /// # Errors
    /// [`LabError::Engine`]
    pub(super) fn new(
        trainers: Option<&dyn Trainers>,
        model: &ModelSpec,
        inner: &InnerSpec,
        seed: u64,
    ) -> Result<Self, LabError> {
        let inner = InnerSpec { batch: MEASURED_WINDOWS, ..*inner };
        let trainer = trainers.map(|trainers| trainers.trainer(model, &inner)).transpose()?;
        Ok(Self { model: *model, seed, trainer })
    }

    /// Returns the held-out loss of `params`, `[len]`, in nats per token.
    ///
    /// # Errors
    /// [`LabError::NotFinite`], and those of [`Corpus::held_out_loss`].
    pub(super) fn measure(&mut self, corpus: &Corpus, params: &[f32]) -> Result<f32, LabError> {
        let loss = self.held_out(corpus, params)?;
        if loss.is_finite() { Ok(loss) } else { Err(LabError::NotFinite { seed: self.seed, loss }) }
    }

    /// Returns the held-out loss of `params`, `[len]`, in nats per token, even if it is not finite.
    ///
    /// # Errors
    /// Those of [`Corpus::held_out_loss`].
    pub(super) fn held_out(&mut self, corpus: &Corpus, params: &[f32]) -> Result<f32, LabError> {
        match &mut self.trainer {
            None => Ok(corpus.held_out_loss(&self.model, params)?),
            Some(trainer) => Ok(Corpus::loss_with(&mut **trainer, &self.model, params, &corpus.held_out)?),
        }
    }

    /// Returns the loss of `params`, `[len]`, on [`Corpus::test`], in nats per token.
    ///
    /// # Errors
    /// Those of [`Corpus::test_loss`].
    pub(super) fn test(&mut self, corpus: &Corpus, params: &[f32]) -> Result<f32, LabError> {
        match &mut self.trainer {
            None => Ok(corpus.test_loss(&self.model, params)?),
            Some(trainer) => Ok(Corpus::loss_with(&mut **trainer, &self.model, params, &corpus.test)?),
        }
    }
}

/// Collector of [`Sample`]s during an experiment.
pub(super) struct Sampler {
    wanted: u32,
    samples: Vec<Sample>,
}

impl Sampler {
    pub(super) fn new(recipe: &Recipe) -> Self {
        Self { wanted: recipe.samples, samples: Vec::new() }
    }

    /// Returns true if the next sample is due at this share of the budget.
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

/// An exponential moving average of parameters over the spent share of the budget. New parameters have the weight 1 −
/// e^(−Δ/horizon).
pub(super) struct Average {
    /// Share of the budget after which an old contribution has decayed to e⁻¹.
    horizon: f64,
    /// Smallest share of the budget between two updates.
    apart: f64,
    /// Spent share of the budget at the last update.
    spent: f64,
    /// Averaged parameters, `[len]`.
    pub(super) params: Vec<f32>,
}

impl Average {
    /// Creates an average that starts with `params`, `[len]`; `None` for a horizon of 0. If the parameters are `afar`,
    /// reading them is slow, and the average takes at most [`TIMES`] updates per horizon.
    pub(super) fn new(horizon: f64, afar: bool, params: Vec<f32>) -> Option<Self> {
        let apart = if afar { horizon / TIMES } else { 0.0 };
        (horizon > 0.0).then_some(Self { horizon, apart, spent: 0.0, params })
    }

    /// Returns true if an update is due at this share of the budget; the final one always is.
    pub(super) fn is_due(&self, spent: f64) -> bool {
        spent >= 1.0 || spent - self.spent >= self.apart
    }

    /// Adds `params`, `[len]`, at this share of the budget, which never decreases.
    pub(super) fn take(&mut self, spent: f64, params: &[f32]) {
        let weight = (1.0 - libm::exp((self.spent - spent) / self.horizon)) as f32;
        self.spent = spent;
        for (mean, newest) in self.params.iter_mut().zip(params) {
            *mean += weight * (newest - *mean);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_does_not_depend_on_the_number_of_steps() {
        assert!(Average::new(0.0, false, vec![1.0]).is_none());
        let run = |steps: u32| {
            let mut average = Average::new(0.1, false, vec![1.0]).unwrap();
            for step in 1..=steps {
                average.take(f64::from(step) / f64::from(steps), &[3.0]);
            }
            average.params[0]
        };
        let expected = 3.0 - 2.0 * (-10.0_f64).exp() as f32;
        assert!((run(1) - expected).abs() < 1e-6 && (run(50) - expected).abs() < 1e-6, "{}", run(50));
        let mut average = Average::new(0.5, true, vec![0.0]).unwrap();
        assert!(!average.is_due(0.007) && average.is_due(0.008));
        average.take(0.5, &[1.0]);
        assert!(!average.is_due(0.507) && average.is_due(0.508) && average.is_due(1.0));
        assert!((average.params[0] - (1.0 - (-1.0_f32).exp())).abs() < 1e-6);
    }
}
