//! Secrets and links as people copy them into flags, variables and files.

use std::convert::Infallible;

use archipelago_core::text::link_of;

/// Reads a secret: without the newline that an editor or `echo` left, and without blanks.
///
/// # Errors
/// None.
pub fn secret(text: &str) -> Result<String, Infallible> {
    Ok(text.trim().to_owned())
}

/// Reads a link or an invite: as [`secret`] does, and without the quotes around it.
///
/// # Errors
/// None.
pub fn link(text: &str) -> Result<String, Infallible> {
    Ok(link_of(text).to_owned())
}
