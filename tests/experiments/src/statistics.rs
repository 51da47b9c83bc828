//! Means, intervals and trends over few seeds.

use archipelago_cli::plot::figure;

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

/// The 97.5th percentile of Student's t for 1 to 30 degrees of freedom; for more it is smaller.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Returns half the width of the 95 % confidence interval of the mean of `values` (Student); `None` for one value.
fn interval(values: &[f64]) -> Option<f64> {
    let free = values.len().checked_sub(1)?;
    let t = T.get(free.checked_sub(1)?).copied().unwrap_or(T[29]);
    Some(t * deviation(values) / (values.len() as f64).sqrt())
}

/// Returns half the width of the same interval as text, such as "± 0.75".
pub fn half_interval(values: &[f64]) -> String {
    format!("± {}", interval(values).map_or("unknown".into(), |half| format!("{half:.2}")))
}

/// Formats values, such as "by seed +1.33 · −0.02".
pub fn by_seed(values: &[f64]) -> String {
    let each: Vec<String> = values.iter().map(|value| format!("{value:+.2}")).collect();
    format!("by seed {}", each.join(" · "))
}

/// Points of a line: a value of the setting, and the gap of each seed at it in percent.
pub type Points = Vec<(f64, Vec<f64>)>;

/// A straight line over the logarithm of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LineFit {
    /// Slope, in percent per doubling.
    slope: f64,
    /// Mean of the base-2 logarithms of the setting, and the percentage there.
    middle: (f64, f64),
}

impl LineFit {
    /// Fits a line through `points` (setting, percent) by least squares; `None` for fewer than two values of the
    /// setting.
    fn through(points: &[(f64, f64)]) -> Option<Self> {
        let points: Vec<(f64, f64)> = points.iter().map(|(x, y)| (x.log2(), *y)).collect();
        let middle = (mean(points.iter().map(|(x, _)| *x)), mean(points.iter().map(|(_, y)| *y)));
        let squares: f64 = points.iter().map(|(x, _)| (x - middle.0).powi(2)).sum();
        let products: f64 = points.iter().map(|(x, y)| (x - middle.0) * (y - middle.1)).sum();
        (squares > 0.0).then(|| Self { slope: products / squares, middle })
    }

    /// Returns the setting at which the line reaches `percent`; `None` if no possible setting does.
    fn reaches(&self, percent: f64) -> Option<f64> {
        let x = (self.middle.0 + (percent - self.middle.1) / self.slope).exp2();
        (x.is_finite() && x > 0.0).then_some(x)
    }
}

/// Returns a sentence on the trend of one line, and on the setting at which it reaches `percent`. `None` without two
/// values of the setting, or with a value that has no logarithm.
///
/// Each seed gets its own straight line, so that the interval of the slope is that of a mean of independent values
/// (Student).
pub fn trend(line: &str, setting: &str, points: &Points, percent: f64) -> Option<String> {
    let seeds = points.iter().map(|(_, gaps)| gaps.len()).min()?;
    let of = |seed: usize| -> Vec<(f64, f64)> { points.iter().map(|(x, gaps)| (*x, gaps[seed])).collect() };
    if points.iter().any(|(x, _)| *x <= 0.0) {
        return None;
    }
    let straight: Vec<LineFit> = (0..seeds).map(|seed| LineFit::through(&of(seed))).collect::<Option<_>>()?;
    let slopes: Vec<f64> = straight.iter().map(|line| line.slope).collect();
    let whole = LineFit::through(
        &points.iter().map(|(x, gaps)| (*x, mean(gaps.iter().copied()))).collect::<Vec<_>>(),
    )?;
    let place =
        |line: &LineFit| line.reaches(percent).map_or("nowhere".to_owned(), |x| format!("at {}", figure(x)));
    let each: Vec<String> = straight.iter().map(place).collect();
    Some(format!(
        "{line}: {:+.2} {} % for each doubling of {setting} ({}); a straight line comes to {percent} % {} \
         (by seed {}).",
        whole.slope,
        half_interval(&slopes),
        by_seed(&slopes),
        place(&whole),
        each.join(" · "),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_student() {
        assert_eq!(interval(&[1.0]), None);
        // By hand: the deviation is √2.5, that of the mean √0.5.
        let half = interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((half - 2.776 * 0.5_f64.sqrt()).abs() < 1e-9, "{half}");
        assert_eq!(interval(&[7.0; 40]), Some(0.0));
    }

    #[test]
    fn a_trend_is_found_again() {
        // 5 % at 100, and 2 % less for each doubling; the second seed is 1 % higher and falls by 3 %.
        let gaps = |doublings: f64| vec![5.0 - 2.0 * doublings, 6.0 - 3.0 * doublings];
        let points: Points =
            [0.0_f64, 1.0, 2.0].map(|doublings| (100.0 * doublings.exp2(), gaps(doublings))).into();
        let said = trend("ours", "steps", &points, 1.0).unwrap();
        // 12.706 · 0.5, the deviation of two slopes from their mean by √½ / √2.
        assert!(
            said.starts_with("ours: -2.50 ± 6.35 % for each doubling of steps (by seed -2.00 · -3.00)"),
            "{said}"
        );
        // 5.5 − 2.5 d = 1, 5 − 2 d = 1 and 6 − 3 d = 1.
        assert!(said.ends_with("comes to 1 % at 348.2 (by seed at 400.0 · at 317.5)."), "{said}");
    }

    #[test]
    fn rows_without_a_trend_have_no_sentence() {
        assert_eq!(trend("ours", "steps", &Vec::new(), 1.0), None);
        assert_eq!(trend("ours", "steps", &vec![(100.0, vec![1.0])], 1.0), None);
        assert_eq!(trend("ours", "extra", &vec![(0.0, vec![1.0]), (1.0, vec![2.0])], 1.0), None);
        // A line with zero slope, and one of a setting below 1.
        let level: Points = vec![(0.004, vec![0.5, 0.5]), (0.008, vec![0.5, 0.75])];
        let said = trend("ours", "lr", &level, 1.0).unwrap();
        assert!(said.ends_with("(by seed nowhere · at 0.016)."), "{said}");
    }
}
