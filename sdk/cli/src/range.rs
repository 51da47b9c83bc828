//! Settings that are out of range.

use std::ops::RangeInclusive;

/// A setting that is out of range, with the range to choose from.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("--{flag} {found} is out of range: give {range}")]
pub struct SettingError {
    /// The flag, without its dashes.
    pub flag: &'static str,
    /// Its value.
    pub found: f64,
    /// What it may be.
    pub range: String,
}

/// Checks that `--flag`, whose value is `found`, is in `range`: it is if `holds`.
///
/// # Errors
/// [`SettingError`]: it is not.
pub fn range(flag: &'static str, found: f64, holds: bool, range: &str) -> Result<(), SettingError> {
    if holds { Ok(()) } else { Err(SettingError { flag, found, range: range.to_owned() }) }
}

/// Checks that `--flag`, whose value is `found`, is a number in `bounds`; NaN never is.
///
/// # Errors
/// [`SettingError`]: it is not.
pub fn within(flag: &'static str, found: f64, bounds: RangeInclusive<f64>) -> Result<(), SettingError> {
    let words = format!("a number from {} to {}", bounds.start(), bounds.end());
    range(flag, found, bounds.contains(&found), &words)
}
