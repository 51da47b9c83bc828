//! Durations as people write them.

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no duration: write 500ms, 90s, 5m or 2h")]
pub struct DurationError(String);

/// Milliseconds of `500ms`, `90s`, `5m` or `2h`; a number alone is seconds. Fractions are fine.
///
/// # Errors
/// [`DurationError`]: it is none of these, or not above 0.
pub fn parse_duration_ms(text: &str) -> Result<u64, DurationError> {
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit_ms = match unit {
        "ms" => 1.0,
        "" | "s" => 1e3,
        "m" | "min" => 60e3,
        "h" => 3_600e3,
        _ => return Err(DurationError(text.to_owned())),
    };
    match number.trim().parse::<f64>() {
        Ok(number) if (1.0..1e15).contains(&(number * unit_ms)) => Ok((number * unit_ms).round() as u64),
        _ => Err(DurationError(text.to_owned())),
    }
}

/// A count with a unit that keeps it short: `950`, `12.3 k`, `4.5 M`.
pub(crate) fn short(count: f64) -> String {
    match count {
        c if c < 1e3 => format!("{c:.0}"),
        c if c < 1e6 => format!("{:.1} k", c / 1e3),
        c if c < 1e9 => format!("{:.1} M", c / 1e6),
        c => format!("{:.1} G", c / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        for (text, ms) in [("500ms", 500), ("90s", 90_000), ("1.5m", 90_000), ("2h", 7_200_000), ("7", 7_000)]
        {
            assert_eq!(parse_duration_ms(text), Ok(ms), "{text}");
        }
        for text in ["", "s", "0s", "-1s", "1d", "1 week", "NaN", "inf"] {
            assert!(parse_duration_ms(text).is_err(), "{text}");
        }
    }

    #[test]
    fn counts_stay_short() {
        assert_eq!([950.0, 12_345.0, 4.5e6].map(short), ["950", "12.3 k", "4.5 M"]);
    }
}
