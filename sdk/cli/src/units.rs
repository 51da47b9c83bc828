//! Durations, sizes and counts of tokens as people write them, and errors for settings out of range.

use std::fmt;
use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// Text that is not a duration, a size or a count of tokens.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// The suffix is not a unit of time.
    #[error("{unit:?} is not a unit of time: write ms, s, m (or min), h or d")]
    TimeUnit {
        /// Text after the number.
        unit: String,
    },
    /// The number is missing or invalid for a duration.
    #[error("{text:?} is not a duration: write 500ms, 30s, 5m or 2h")]
    Duration {
        /// The whole text.
        text: String,
    },
    /// The duration is shorter than a millisecond.
    #[error("{text:?} is too short: give 1ms or more")]
    NoTime {
        /// The whole text.
        text: String,
    },
    /// The suffix is not a unit of size.
    #[error("{unit:?} is not a unit of bytes: write kB, MB, GB, KiB, MiB or GiB")]
    SizeUnit {
        /// Text after the number.
        unit: String,
    },
    /// The number is missing or invalid for a size.
    #[error("{text:?} is not a number of bytes: write e.g. 8MiB")]
    Size {
        /// The whole text.
        text: String,
    },
    /// The text is not a whole number of at least 0, or the number is too large.
    #[error("{text:?} is not a number of tokens: write e.g. 5000, 10_000, 20k, 10M, 1.5B or 1e7")]
    Tokens {
        /// The whole text.
        text: String,
    },
}

/// Duration written as `250ms`, `30s`, `1.5m`, `5min`, `2h` or `1d`. A number without a unit is in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// Returns the duration in milliseconds, rounded to the nearest and at most `u64::MAX`.
    #[must_use]
    pub fn ms(self) -> u64 {
        // The cast saturates.
        (self.0.as_secs_f64() * 1e3).round() as u64
    }
}

impl FromStr for Span {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split_unit(text);
        let unit_s = match unit {
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => 86_400.0,
            _ => return Err(UnitError::TimeUnit { unit: unit.to_owned() }),
        };
        let wrong = || UnitError::Duration { text: text.to_owned() };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        Duration::try_from_secs_f64(number * unit_s).map(Self).map_err(|_| wrong())
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Parses a duration of at least a millisecond, as a value parser for `clap`.
///
/// # Errors
/// Those of [`Span`], and [`UnitError::NoTime`].
pub fn some_time(text: &str) -> Result<Span, UnitError> {
    let span: Span = text.parse()?;
    if span.ms() > 0 { Ok(span) } else { Err(UnitError::NoTime { text: text.to_owned() }) }
}

/// Number of bytes written as `4096`, `64KiB`, `8MiB` or `2GiB`, or with `B`, `kB`, `MB` or `GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let (number, unit) = split_unit(text);
        let unit_bytes = match unit {
            "" | "B" => 1.0,
            "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            _ => return Err(UnitError::SizeUnit { unit: unit.to_owned() }),
        };
        match number.parse::<f64>() {
            // The cast saturates.
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(Self((number * unit_bytes) as u64)),
            _ => Err(UnitError::Size { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        for (unit, factor) in [("GiB", 1024.0 * 1024.0 * 1024.0), ("MiB", 1024.0 * 1024.0), ("KiB", 1024.0)] {
            if bytes >= factor {
                return write!(f, "{:.1}{unit}", bytes / factor);
            }
        }
        write!(f, "{}B", self.0)
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

/// Parses a count of tokens written as `5000`, `10_000`, `20k`, `10M`, `1.5B`, `2T` or `1e7`, as a value parser for
/// `clap`.
///
/// # Errors
/// [`UnitError::Tokens`]: the text is not a whole number of at least 0, or the number does not fit into `T`.
pub fn tokens<T: TryFrom<u64>>(text: &str) -> Result<T, UnitError> {
    let count = whole(text.trim()).and_then(|count| T::try_from(count).ok());
    count.ok_or_else(|| UnitError::Tokens { text: text.to_owned() })
}

/// Parses a count of at least one token, as a value parser for `clap`.
///
/// # Errors
/// [`UnitError::Tokens`]: the text is not such a count.
pub fn some_tokens(text: &str) -> Result<NonZeroU32, UnitError> {
    NonZeroU32::new(tokens(text)?).ok_or_else(|| UnitError::Tokens { text: text.to_owned() })
}

/// Suffixes of counts, with their powers of ten.
const COUNT_UNITS: [(char, i32); 5] = [('k', 3), ('K', 3), ('M', 6), ('B', 9), ('T', 12)];

/// Parses a decimal number with underscores, an exponent and a suffix. Returns `None` if its value is not a whole
/// number. Integer arithmetic keeps every digit exact.
fn whole(text: &str) -> Option<u64> {
    let found = COUNT_UNITS.iter().find_map(|(unit, power)| Some((text.strip_suffix(*unit)?, *power)));
    let (number, mut power) = found.unwrap_or((text, 0));
    let mut number = number;
    if let Some((mantissa, exponent)) = number.split_once(['e', 'E']) {
        power = power.checked_add(exponent.parse().ok()?)?;
        number = mantissa;
    }
    let (before, after) = number.split_once('.').unwrap_or((number, ""));
    let after = after.replace('_', "");
    let after = after.trim_end_matches('0');
    let digits = before.replace('_', "") + after;
    if !number.starts_with(|c: char| c.is_ascii_digit())
        || !digits.bytes().all(|digit| digit.is_ascii_digit())
    {
        return None;
    }
    let value: u64 = digits.parse().ok()?;
    let power = power.checked_sub(i32::try_from(after.len()).ok()?)?;
    let factor = 10_u64.checked_pow(power.unsigned_abs());
    match (value, factor) {
        (0, _) => Some(0),
        (_, Some(factor)) if power >= 0 => value.checked_mul(factor),
        (_, Some(factor)) => value.is_multiple_of(factor).then_some(value / factor),
        (_, None) => None,
    }
}

/// Splits `text` into the number and the unit, which begins at the first letter.
fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let at = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    (text[..at].trim(), &text[at..])
}

/// Setting out of range, with the permitted range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("--{flag} {found} is out of range: give {range}")]
pub struct SettingError {
    /// Flag, without its dashes.
    pub flag: &'static str,
    /// Value of the flag.
    pub found: f64,
    /// Permitted range.
    pub range: String,
}

/// Checks that the value `found` of `--flag` is in `range`. `holds` is the result of the check, `range` its
/// description.
///
/// # Errors
/// [`SettingError`]: `holds` is false.
pub fn range(flag: &'static str, found: f64, holds: bool, range: &str) -> Result<(), SettingError> {
    if holds { Ok(()) } else { Err(SettingError { flag, found, range: range.to_owned() }) }
}

/// Checks that the value `found` of `--flag` is in `bounds`; NaN is not.
///
/// # Errors
/// [`SettingError`]: the value is out of bounds.
pub fn within(flag: &'static str, found: f64, bounds: RangeInclusive<f64>) -> Result<(), SettingError> {
    let words = format!("a number from {} to {}", bounds.start(), bounds.end());
    range(flag, found, bounds.contains(&found), &words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_durations() {
        let check = |text: &str, ms: u64| {
            let span: Span = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((span.0, span.ms()), (Duration::from_millis(ms), ms), "{text}");
        };
        check("30s", 30_000);
        check("1.5m", 90_000);
        check("1.5 min", 90_000);
        check("250ms", 250);
        check("2h", 7_200_000);
        check("5d", 432_000_000);
        check("5", 5_000);
        check("0s", 0);
        for bad in ["", "s", "5w", "1 week", "-1s", "1e400s", "5 s s", "NaN", "inf"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }

    #[test]
    fn some_time_is_above_0() {
        assert_eq!(some_time("1ms").map(Span::ms), Ok(1));
        for bad in ["0s", "0.4ms"] {
            assert_eq!(some_time(bad), Err(UnitError::NoTime { text: bad.to_owned() }), "{bad}");
        }
    }

    #[test]
    fn reads_bytes() {
        let check = |text: &str, bytes| assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        check("4096", 4096);
        check("8MiB", 8 << 20);
        check("2GB", 2_000_000_000);
        for bad in ["", "MiB", "1TB", "-1kB", "inf"] {
            assert!(bad.parse::<Bytes>().is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_counts_of_tokens() {
        for (text, count) in [
            ("0", 0),
            ("5000", 5_000),
            ("10_000_000", 10_000_000),
            ("20k", 20_000),
            ("20K", 20_000),
            ("10M", 10_000_000),
            (" 1.5B ", 1_500_000_000),
            ("2T", 2_000_000_000_000),
            ("1e7", 10_000_000),
            ("2.5E3", 2_500),
            ("1500e-2", 15),
            ("10000000.0", 10_000_000),
            ("1.1M", 1_100_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(tokens(text), Ok(count), "{text}");
        }
        let bad = [
            "",
            "M",
            "_",
            ".5M",
            "-1",
            "-1M",
            "+1",
            "1.5",
            "0.0001k",
            "10m",
            "10 MB",
            "1e",
            "1e99",
            "1e-99",
            "e7",
            "1.2.3",
            "NaN",
            "inf",
            "20000000T",
            "18446744073709551616",
            "1e99999999999",
        ];
        for text in bad {
            assert_eq!(tokens::<u64>(text), Err(UnitError::Tokens { text: text.to_owned() }), "{text}");
        }
        assert!(tokens::<u32>("5B").is_err() && some_tokens("0").is_err());
        assert_eq!(some_tokens("1k").map(NonZeroU32::get), Ok(1_000));
    }
}
