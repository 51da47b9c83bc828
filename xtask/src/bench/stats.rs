//! Statistics, random numbers from a seed, and tables of figures.

use serde_json::Value;

/// Returns the quantile `share` of `values`, with linear interpolation; `None` if there are no values.
pub fn quantile(values: &[f64], share: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = share * sorted.len().saturating_sub(1) as f64;
    // The cast drops the fraction.
    let below = at as usize;
    let low = *sorted.get(below)?;
    let high = sorted.get(below + 1).copied().unwrap_or(low);
    Some(low + (at - below as f64) * (high - low))
}

/// Returns the largest of `values`, at least 0.
pub fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, f64::max)
}

/// Returns each value as a share of the sum.
pub fn shares(parts: &[f64]) -> Vec<f64> {
    let whole: f64 = parts.iter().sum();
    parts.iter().map(|part| if whole > 0.0 { part / whole } else { 0.0 }).collect()
}

/// Generator of uniform numbers: SplitMix64 (Steele, Lea and Flood, 2014). The library also has a generator, but
/// `cargo xtask` must not link the library.
pub struct SplitMix64(pub u64);

impl SplitMix64 {
    /// Returns a uniform number below `bound`; 0 if that is 0. The bias is below `bound / 2⁶⁴`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^= bits >> 31;
        // The high half of the product; the cast keeps its 64 bits.
        ((u128::from(bits) * u128::from(bound)) >> 64) as u64
    }
}

/// Formats `value`: one line for each scalar, and a table for each list of objects.
pub fn render(value: &Value) -> String {
    let Value::Object(fields) = value else { return format!("{}\n", cell(value)) };
    let mut text = String::new();
    for (key, value) in fields {
        match value.as_array() {
            Some(rows) if rows.iter().all(Value::is_object) => text.push_str(&table(rows)),
            _ => text.push_str(&format!("{key}: {}\n", cell(value))),
        }
    }
    text
}

fn table(rows: &[Value]) -> String {
    let Some(first) = rows.first().and_then(Value::as_object) else { return String::new() };
    let columns: Vec<&String> = first.keys().collect();
    let mut lines = vec![columns.iter().map(|column| column.to_string()).collect::<Vec<_>>()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|column| cell(&row[column.as_str()])).collect()));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |cells: &Vec<String>| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join("  ") + "\n"
    };
    lines.iter().map(line).collect()
}

/// Formats a value with three significant digits, the precision of a noisy machine.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => match number.as_f64().unwrap_or(f64::NAN) {
            large if large.abs() >= 100.0 => format!("{large:.0}"),
            middle if middle.abs() >= 1.0 => format!("{middle:.2}"),
            small => format!("{small:.3}"),
        },
        Value::Null => "–".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantiles_lie_between_values() {
        let values = [4.0, 1.0, 2.0];
        assert_eq!(
            [0.0, 0.25, 0.5, 1.0].map(|share| quantile(&values, share)),
            [1.0, 1.5, 2.0, 4.0].map(Some)
        );
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn numbers_are_spread_over_the_range() {
        let (mut rng, mut seen) = (SplitMix64(1), [0_u32; 8]);
        (0..8_000).for_each(|_| seen[rng.below(8) as usize] += 1);
        assert!(seen.iter().all(|count| (850..1_150).contains(count)), "{seen:?}");
        assert_eq!(rng.below(0), 0);
    }

    #[test]
    fn scalars_are_lines_and_lists_are_tables() {
        let rows = json!([{ "a": 1, "b": 1234.5 }, { "a": 200, "b": 0.25 }, { "a": null, "b": null }]);
        let value = json!({ "copy": 12.345, "rows": rows });
        assert_eq!(render(&value), "copy: 12.35\n  a      b\n  1   1234\n200  0.250\n  –      –\n");
    }
}
