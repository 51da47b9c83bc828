//! Durations and byte counts as people write them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

/// A duration written as `30s`, `1.5m`, `250ms` or `2h`; a bare number is seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let seconds = match unit {
            "ms" => 1e-3,
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(format!("{unit:?} is no unit of time: write ms, s, m or h")),
        };
        let number: f64 = number.parse().map_err(|_| format!("{text:?} is no duration: write e.g. 30s"))?;
        Duration::try_from_secs_f64(number * seconds).map(Self).map_err(|error| error.to_string())
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

/// A number of bytes written as `4096`, `64KiB`, `8MiB`, `2GiB`, or with `kB`, `MB`, `GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (number, unit) = split_unit(text);
        let factor = match unit {
            "" | "B" => 1.0,
            "kB" => 1e3,
            "MB" => 1e6,
            "GB" => 1e9,
            "KiB" => 1024.0,
            "MiB" => 1024.0 * 1024.0,
            "GiB" => 1024.0 * 1024.0 * 1024.0,
            _ => return Err(format!("{unit:?} is no unit of bytes: write kB, MB, GB, KiB, MiB or GiB")),
        };
        match number.parse::<f64>() {
            // The cast saturates.
            Ok(number) if number.is_finite() && number >= 0.0 => Ok(Self((number * factor) as u64)),
            _ => Err(format!("{text:?} is no number of bytes: write e.g. 8MiB")),
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

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let at = text.find(|c: char| c.is_alphabetic()).unwrap_or(text.len());
    (text[..at].trim(), &text[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_durations() {
        let check = |text: &str, ms| assert_eq!(text.parse(), Ok(Span(Duration::from_millis(ms))), "{text}");
        check("30s", 30_000);
        check("1.5m", 90_000);
        check("250ms", 250);
        check("2h", 7_200_000);
        check("5", 5_000);
        for bad in ["", "s", "5d", "-1s", "1e400s", "5 s s"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
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
}
