//! Outcomes of one experiment over several seeds.

use archipelago_sim::lab::Outcome;

/// The outcome of an experiment for each of its seeds, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct Findings(pub Vec<Outcome>);

impl Findings {
    /// Returns the mean loss, in nats per token.
    #[must_use]
    pub fn loss(&self) -> f64 {
        mean(self.losses())
    }

    /// Returns the standard deviation of the losses over seeds; 0 for one seed.
    #[must_use]
    pub fn spread(&self) -> f64 {
        deviation(&self.losses().collect::<Vec<_>>())
    }

    /// Returns the excess of the loss over that of `base` for each seed, in percent.
    #[must_use]
    pub fn gaps(&self, base: &Self) -> Vec<f64> {
        self.losses().zip(base.losses()).map(|(ours, base)| percent_above(ours, base)).collect()
    }

    /// Returns the excess of the loss over that of `base`, in percent: mean and standard deviation over seeds.
    #[must_use]
    pub fn above(&self, base: &Self) -> (f64, f64) {
        let ratios = self.gaps(base);
        (mean(ratios.iter().copied()), deviation(&ratios))
    }

    /// Returns the share of the learner on `machine` in all merged tokens, 0 to 1, as a mean over seeds.
    #[must_use]
    pub fn share(&self, machine: usize) -> f64 {
        let share = |outcome: &Outcome| {
            let own = outcome.merged_by.get(machine).copied().unwrap_or(0);
            own as f64 / outcome.tokens_merged.max(1) as f64
        };
        mean(self.0.iter().map(share))
    }

    /// Returns a summary such as "1.7360 ± 0.0040 after 1465 steps"; for decoupled training also the merged share and
    /// the learners per round.
    #[must_use]
    pub fn words(&self) -> String {
        let over = |of: fn(&Outcome) -> f64| mean(self.0.iter().map(of));
        let steps = over(|outcome| outcome.steps_per_learner);
        let words = format!("{:.4} ± {:.4} after {steps:.0} steps", self.loss(), self.spread());
        if self.0.iter().all(|outcome| outcome.rounds == 0) {
            return words;
        }
        let before = over(|outcome| outcome.spent.loss.into());
        let part = over(|outcome| outcome.spent.tokens_merged as f64 / outcome.spent.tokens.max(1) as f64);
        let learners = over(|outcome| outcome.updates_merged as f64 / outcome.rounds.max(1) as f64);
        format!(
            "{words} (before the last rounds {before:.4}, with {:.1} % of tokens merged; {learners:.1} learners a \
             round)",
            100.0 * part
        )
    }

    /// Returns the loss curve: mean tokens and mean loss at each sample that all seeds have.
    #[must_use]
    pub fn course(&self) -> Vec<(f64, f64)> {
        let at = |k: usize| {
            let samples = self.0.iter().map(move |outcome| outcome.samples[k]);
            (mean(samples.clone().map(|s| s.tokens as f64)), mean(samples.map(|s| s.loss.into())))
        };
        (0..self.samples()).map(at).collect()
    }

    /// Returns the excess of the loss over that of `base` at each sample, in percent, as a mean over seeds.
    #[must_use]
    pub fn course_above(&self, base: &Self) -> Vec<f64> {
        let at = |k: usize| {
            let losses = |of: &Self| of.0.iter().map(|o| f64::from(o.samples[k].loss)).collect::<Vec<f64>>();
            let ratios = losses(self).into_iter().zip(losses(base));
            mean(ratios.map(|(ours, base)| percent_above(ours, base)))
        };
        (0..self.samples().min(base.samples())).map(at).collect()
    }

    fn samples(&self) -> usize {
        self.0.iter().map(|outcome| outcome.samples.len()).min().unwrap_or(0)
    }

    fn losses(&self) -> impl Iterator<Item = f64> {
        self.0.iter().map(|outcome| f64::from(outcome.loss))
    }
}

/// Returns the excess of a loss over another one, in percent.
pub fn percent_above(ours: f64, base: f64) -> f64 {
    100.0 * (ours / base - 1.0)
}

/// Returns true if `value` is the smallest or the largest of the distinct `values` that it was chosen from.
pub fn is_edge(values: &[f64], value: f64) -> bool {
    let least = values.iter().all(|other| value <= *other);
    let greatest = values.iter().all(|other| value >= *other);
    least != greatest
}

/// Returns the mean of `values`.
pub fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0_u32), |(sum, count), value| (sum + value, count + 1));
    sum / f64::from(count.max(1))
}

/// Returns the standard deviation of `values`; 0 for one value.
pub fn deviation(values: &[f64]) -> f64 {
    let (middle, free) = (mean(values.iter().copied()), values.len().saturating_sub(1));
    let squares: f64 = values.iter().map(|value| (value - middle).powi(2)).sum();
    if free == 0 { 0.0 } else { (squares / free as f64).sqrt() }
}

/// Returns an element that occurs in `all` more than once, if any.
pub fn twice<T: PartialEq + ToString>(all: &[T]) -> Option<String> {
    let again = all.iter().enumerate().find(|(at, one)| all[..*at].contains(one));
    again.map(|(_, one)| one.to_string())
}
