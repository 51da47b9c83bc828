//! Confidence intervals of the mean of few values.

use super::findings::deviation;

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

/// Returns the same as text: "± 0.75".
pub fn half(values: &[f64]) -> String {
    format!("± {}", interval(values).map_or("unknown".into(), |half| format!("{half:.2}")))
}

/// Formats values like "by seed +1.33 · −0.02".
pub fn by_seed(values: &[f64]) -> String {
    let each: Vec<String> = values.iter().map(|value| format!("{value:+.2}")).collect();
    format!("by seed {}", each.join(" · "))
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
}
