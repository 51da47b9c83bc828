//! How far a mean of few values may be from that of all.

use super::findings::deviation;

/// Student's t below which 97.5 of 100 lie, for 1 to 30 degrees of freedom; above that it is less.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// Half of the interval about the mean of `values` in which that of all seeds lies, 95 of 100 times (Student); `None`
/// for one value.
fn interval(values: &[f64]) -> Option<f64> {
    let free = values.len().checked_sub(1)?;
    let t = T.get(free.checked_sub(1)?).copied().unwrap_or(T[29]);
    Some(t * deviation(values) / (values.len() as f64).sqrt())
}

/// The same in words: "± 0.75".
pub fn half(values: &[f64]) -> String {
    format!("± {}", interval(values).map_or("unknown".into(), |half| format!("{half:.2}")))
}

/// "by seed +1.33 · −0.02"
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
        // By hand: deviation √2.5, its share of the mean √0.5.
        let half = interval(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        assert!((half - 2.776 * 0.5_f64.sqrt()).abs() < 1e-9, "{half}");
        assert_eq!(interval(&[7.0; 40]), Some(0.0));
    }
}
