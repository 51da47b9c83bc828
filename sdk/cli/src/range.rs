//! Settings that are out of range.

use std::ops::RangeInclusive;

/// A setting out of range, with the permitted range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("--{flag} {found} is out of range: give {range}")]
pub struct SettingError {
    /// Flag, without its dashes.
    pub flag: &'static str,
    /// Its value.
    pub found: f64,
    /// Permitted range.
    pub range: String,
}

/// Checks that `--flag`, whose value is `found`, is in `range`, as indicated by `holds`.
///
/// # Errors
/// [`SettingError`]: `holds` is false.
pub fn range(flag: &'static str, found: f64, holds: bool, range: &str) -> Result<(), SettingError> {
    if holds { Ok(()) } else { Err(SettingError { flag, found, range: range.to_owned() }) }
}

/// Checks that `--flag`, whose value is `found`, is a number in `bounds`; NaN never is.
///
/// # Errors
/// [`SettingError`]: the value is out of bounds.
pub fn within(flag: &'static str, found: f64, bounds: RangeInclusive<f64>) -> Result<(), SettingError> {
    let words = format!("a number from {} to {}", bounds.start(), bounds.end());
    range(flag, found, bounds.contains(&found), &words)
}
