//! Conversion between the body of a message and MessagePack.

use serde::{Deserialize, Serialize};

use super::{DecodeError, Tag};

/// Appends `body` as MessagePack.
pub(super) fn write(bytes: &mut Vec<u8>, body: &impl Serialize) {
    rmp_serde::encode::write(bytes, body).expect("memory takes every byte and our types have lengths");
}

/// Decodes all of `body` as a `T`.
///
/// # Errors
/// `Shape`: the body is MessagePack of another shape.
pub(super) fn read<'a, T: Deserialize<'a>>(tag: Tag, body: &'a [u8]) -> Result<T, DecodeError> {
    rmp_serde::from_slice(body).map_err(|error| DecodeError::Shape { tag, detail: error.to_string() })
}
