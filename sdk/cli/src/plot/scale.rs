//! Mapping of numbers to an axis, and selection of ticks.

use super::Scale;

/// Approximate number of ticks.
const TICKS: f64 = 6.0;

/// Mapping of numbers between two ends of an axis.
pub(super) struct Map<'a> {
    scale: &'a Scale,
    /// Smallest and largest number shown, or their logarithms.
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl<'a> Map<'a> {
    /// Returns an axis from `from` to `to` that shows all `values`.
    pub(super) fn new(scale: &'a Scale, values: Vec<f64>, from: f64, to: f64) -> Self {
        let (low, high) = match scale {
            Scale::Names(names) => (-0.5, names.len().max(1) as f64 - 0.5),
            Scale::Linear | Scale::Log => {
                let values: Vec<f64> = values.into_iter().filter_map(|value| lay(scale, value)).collect();
                let low = values.iter().copied().reduce(f64::min);
                let high = values.iter().copied().reduce(f64::max);
                let (low, high) = low.zip(high).unwrap_or((0.0, 1.0));
                // A single number is in the middle; several get some margin, but never below zero.
                let air = if high > low { 0.04 * (high - low) } else { 0.5 };
                let bottom =
                    if *scale == Scale::Linear && low >= 0.0 { 0.0_f64.max(low - air) } else { low - air };
                (bottom, high + air)
            }
        };
        Self { scale, low, high, from, to }
    }

    /// Returns the position of `value`, if the axis can show it.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let at = lay(self.scale, value)?;
        Some(self.from + (at - self.low) / (self.high - self.low) * (self.to - self.from))
    }

    /// Returns positions and labels of the ticks.
    pub(super) fn ticks(&self) -> Vec<(f64, String)> {
        let values: Vec<(f64, String)> = match self.scale {
            Scale::Names(names) => {
                names.iter().enumerate().map(|(i, name)| (i as f64, name.clone())).collect()
            }
            Scale::Linear => {
                let step = nice_step((self.high - self.low) / TICKS);
                // The epsilon keeps a tick that rounding would move over the edge.
                let first = (self.low / step - 1e-9).ceil();
                let ticks = (0..).map(|i| (first + f64::from(i)) * step);
                ticks
                    .take_while(|tick| *tick <= self.high + 1e-9 * step)
                    .map(|tick| (tick, label(tick)))
                    .collect()
            }
            Scale::Log => {
                let dense = self.high - self.low < 2.0;
                let decades = (self.low.floor() as i32)..=(self.high.ceil() as i32);
                let digits: &[f64] = if dense { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let ticks =
                    decades.flat_map(|decade| digits.iter().map(move |digit| digit * 10_f64.powi(decade)));
                let shown = |tick: &f64| (self.low..=self.high).contains(&tick.log10());
                ticks.filter(shown).map(|tick| (tick, label(tick))).collect()
            }
        };
        values.into_iter().filter_map(|(value, label)| Some((self.place(value)?, label))).collect()
    }
}

fn lay(scale: &Scale, value: f64) -> Option<f64> {
    match scale {
        Scale::Log => (value.is_finite() && value > 0.0).then(|| value.log10()),
        Scale::Linear | Scale::Names(_) => value.is_finite().then_some(value),
    }
}

/// Returns the smallest number of at least `rough` that is 1, 2 or 5 times a power of ten.
fn nice_step(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= rough * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

/// Returns a short label of a tick: 150 k instead of 150000.
fn label(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, " G"),
        size if size >= 1e6 => (value / 1e6, " M"),
        size if size >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    // Four digits after the point hide binary rounding errors.
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let text = if text.is_empty() || text == "-0" { "0" } else { text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks(scale: &Scale, values: &[f64]) -> Vec<String> {
        Map::new(scale, values.to_vec(), 0.0, 100.0).ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(ticks(&Scale::Linear, &[0.0, 100.0]), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(ticks(&Scale::Linear, &[1.52, 1.74]), ["1.55", "1.6", "1.65", "1.7"]);
        assert_eq!(ticks(&Scale::Log, &[1.5e5, 2.4e6]), ["200 k", "500 k", "1 M", "2 M"]);
        assert_eq!(ticks(&Scale::Log, &[0.1, 1_000.0]), ["0.1", "1", "10", "100", "1000"]);
        assert_eq!(ticks(&Scale::Names(vec!["a".into(), "b".into()]), &[]), ["a", "b"]);
        assert_eq!(ticks(&Scale::Linear, &[-0.02, 0.02]), ["-0.02", "-0.01", "0", "0.01", "0.02"]);
    }

    #[test]
    fn every_value_has_its_place() {
        let linear = Map::new(&Scale::Linear, vec![3.0], 0.0, 100.0);
        assert_eq!(linear.place(3.0), Some(50.0));
        assert_eq!(linear.place(f64::NAN), None);
        let log = Map::new(&Scale::Log, vec![1.0, 100.0], 0.0, 100.0);
        assert!((log.place(10.0).unwrap() - 50.0).abs() < 1e-9);
        assert_eq!(log.place(0.0), None);
        // There is an axis even without values.
        assert!(Map::new(&Scale::Log, vec![-1.0], 0.0, 1.0).place(3.0).is_some());
    }
}
