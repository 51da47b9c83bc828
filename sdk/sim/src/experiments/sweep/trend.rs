//! Change of a gap with each doubling of a setting.

use archipelago_cli::plot::figure;

use crate::experiments::findings::mean;
use crate::experiments::student;

/// Points of a line: a value of the setting, and the gap of each seed at it in percent.
pub(super) type Points = Vec<(f64, Vec<f64>)>;

/// A straight line over the logarithm of a setting.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Straight {
    /// Slope, in percent per doubling.
    slope: f64,
    /// The mean of the base-2 logarithms, and the percentage there.
    middle: (f64, f64),
}

impl Straight {
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
pub(super) fn sentence(line: &str, setting: &str, points: &Points, percent: f64) -> Option<String> {
    let seeds = points.iter().map(|(_, gaps)| gaps.len()).min()?;
    let of = |seed: usize| -> Vec<(f64, f64)> { points.iter().map(|(x, gaps)| (*x, gaps[seed])).collect() };
    if points.iter().any(|(x, _)| *x <= 0.0) {
        return None;
    }
    let straight: Vec<Straight> =
        (0..seeds).map(|seed| Straight::through(&of(seed))).collect::<Option<_>>()?;
    let slopes: Vec<f64> = straight.iter().map(|line| line.slope).collect();
    let whole = Straight::through(
        &points.iter().map(|(x, gaps)| (*x, mean(gaps.iter().copied()))).collect::<Vec<_>>(),
    )?;
    let place =
        |line: &Straight| line.reaches(percent).map_or("nowhere".to_owned(), |x| format!("at {}", figure(x)));
    let each: Vec<String> = straight.iter().map(place).collect();
    Some(format!(
        "{line}: {:+.2} {} % for each doubling of {setting} ({}); a straight line comes to {percent} % {} \
         (by seed {}).",
        whole.slope,
        student::half(&slopes),
        student::by_seed(&slopes),
        place(&whole),
        each.join(" · "),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found_again() {
        // 5 % at 100, and 2 % less for each doubling; the second seed is 1 % higher and falls by 3 %.
        let gaps = |doublings: f64| vec![5.0 - 2.0 * doublings, 6.0 - 3.0 * doublings];
        let points: Points =
            [0.0_f64, 1.0, 2.0].map(|doublings| (100.0 * doublings.exp2(), gaps(doublings))).into();
        let said = sentence("ours", "steps", &points, 1.0).unwrap();
        // 12.706 · 0.5, the deviation of two slopes from their mean by √½ / √2.
        assert!(
            said.starts_with("ours: -2.50 ± 6.35 % for each doubling of steps (by seed -2.00 · -3.00)"),
            "{said}"
        );
        // 5.5 − 2.5 d = 1, 5 − 2 d = 1 and 6 − 3 d = 1.
        assert!(said.ends_with("comes to 1 % at 348.2 (by seed at 400.0 · at 317.5)."), "{said}");
    }

    #[test]
    fn what_has_no_trend_is_not_told() {
        assert_eq!(sentence("ours", "steps", &Vec::new(), 1.0), None);
        assert_eq!(sentence("ours", "steps", &vec![(100.0, vec![1.0])], 1.0), None);
        assert_eq!(sentence("ours", "extra", &vec![(0.0, vec![1.0]), (1.0, vec![2.0])], 1.0), None);
        // A line with zero slope, and one of a setting below 1.
        let level: Points = vec![(0.004, vec![0.5, 0.5]), (0.008, vec![0.5, 0.75])];
        let said = sentence("ours", "lr", &level, 1.0).unwrap();
        assert!(said.ends_with("(by seed nowhere · at 0.016)."), "{said}");
    }
}
