//! Parameters averaged over the last part of a course.

/// What is read from afar is taken in so many times in a horizon: more would cost time and hardly change the average.
const TIMES: f64 = 64.0;

/// An exponential moving average of parameters, by how much of the budget is spent: the newest ones count for
/// 1 − e^(−Δ/horizon).
pub(super) struct Average {
    /// Share of the budget after which e⁻¹ of what was before is left.
    horizon: f64,
    /// Share of the budget that is spent between two of them, at least.
    apart: f64,
    /// Share of the budget that was spent when the newest parameters were taken in.
    spent: f64,
    /// `[len]`.
    pub(super) params: Vec<f32>,
}

impl Average {
    /// One that begins with `params`, `[len]`; `None` for a horizon of 0. It takes in all that there is, or less of it
    /// where parameters are `afar`.
    pub(super) fn new(horizon: f64, afar: bool, params: Vec<f32>) -> Option<Self> {
        let apart = if afar { horizon / TIMES } else { 0.0 };
        (horizon > 0.0).then_some(Self { horizon, apart, spent: 0.0, params })
    }

    /// Whether parameters are to be taken in at this share of the budget: the last ones always are.
    pub(super) fn is_due(&self, spent: f64) -> bool {
        spent >= 1.0 || spent - self.spent >= self.apart
    }

    /// Takes in `params`, `[len]`, at this share of the budget, which never falls.
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
    fn steps_that_lead_to_one_place_lead_to_one_average() {
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
