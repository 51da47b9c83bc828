//! Secrets and links as people copy them into flags, variables and files.

use std::convert::Infallible;

use archipelago_core::text::link_of;

/// Reads a secret. Removes surrounding blanks and the newline that an editor or `echo` adds.
///
/// # Errors
/// None.
pub fn secret(text: &str) -> Result<String, Infallible> {
    Ok(text.trim().to_owned())
}

/// Reads a link or an invite. Removes surrounding blanks and newlines, as [`secret`] does, and quotes.
///
/// # Errors
/// None.
pub fn link(text: &str) -> Result<String, Infallible> {
    Ok(link_of(text).to_owned())
}
