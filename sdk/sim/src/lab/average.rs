//! Parameters averaged over the last part of a course.

/// An exponential moving average of parameters, by how much of the budget is spent: the newest ones count for
/// 1 − e^(−Δ/horizon).
pub(super) struct Average {
    /// Share of the budget after which e⁻¹ of what was before is left.
    horizon: f64,
    /// Share of the budget that was spent when the newest parameters were taken in.
    spent: f64,
    /// `[len]`.
    pub(super) params: Vec<f32>,
}

impl Average {
    /// One that begins with `params`, `[len]`; `None` for a horizon of 0.
    pub(super) fn new(horizon: f64, params: Vec<f32>) -> Option<Self> {
        (horizon > 0.0).then_some(Self { horizon, spent: 0.0, params })
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
        assert!(Average::new(0.0, vec![1.0]).is_none());
        let run = |steps: u32| {
            let mut average = Average::new(0.1, vec![1.0]).unwrap();
            for step in 1..=steps {
                average.take(f64::from(step) / f64::from(steps), &[3.0]);
            }
            average.params[0]
        };
        let expected = 3.0 - 2.0 * (-10.0_f64).exp() as f32;
        assert!((run(1) - expected).abs() < 1e-6 && (run(50) - expected).abs() < 1e-6, "{}", run(50));
        let mut average = Average::new(0.5, vec![0.0]).unwrap();
        average.take(0.5, &[1.0]);
        assert!((average.params[0] - (1.0 - (-1.0_f32).exp())).abs() < 1e-6);
    }
}
