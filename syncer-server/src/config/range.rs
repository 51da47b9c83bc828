//! Words for a setting that is out of range.

use std::ops::RangeInclusive;

use crate::errors::ServerError;

/// # Errors
/// `Config`, unless `holds`: `--flag` must be in `range`.
pub fn range(flag: &str, value: f64, holds: bool, range: &str) -> Result<(), ServerError> {
    let why = || format!("--{flag} {value} is out of range: give {range}");
    if holds { Ok(()) } else { Err(ServerError::Config { why: why() }) }
}

/// # Errors
/// `Config`, unless `--flag` is a number in `bounds`.
pub fn within(flag: &str, value: f64, bounds: RangeInclusive<f64>) -> Result<(), ServerError> {
    let words = format!("a number from {} to {}", bounds.start(), bounds.end());
    range(flag, value, bounds.contains(&value), &words)
}

/// `--flag` is none of `choices`.
pub fn choice(flag: &str, found: &str, choices: &str) -> ServerError {
    ServerError::Config { why: format!("--{flag} {found} does not exist: give {choices}") }
}
