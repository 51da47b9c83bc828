//! Byte encoding of tape records and of messages between the processes of a cluster.
//!
//! Layout: [`MAGIC`], the layout number and the kind (6 bytes in all), then the value as MessagePack. Any process that
//! reaches the bus may send bytes. Decoding checks the type and the range of each number. The receiver checks whether
//! the value fits the run.

pub(super) mod compact;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Notice, Offer, Record, Reply, UpdateWeight};
use crate::diloco::SenderInfo;

/// Prefix of every encoded message and record.
pub const MAGIC: [u8; 4] = *b"ARCL";
/// Number of the current layout. Each change of the layout gets a new number.
pub const LAYOUT: u8 = 4;

/// Reason why bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BytesError {
    /// Wrong prefix: another program uses the same bus or storage.
    #[error("these bytes are not from a process of a run: give this run a prefix of its own on the bus")]
    Foreign,
    /// Layout of another version of this program.
    #[error("layout {found}, but this process reads layout {LAYOUT}: run the same version on all machines")]
    Layout {
        /// Layout found.
        found: u8,
    },
    /// Kind other than the expected one, for example an answer in place of a record.
    #[error("kind {found}, expected {expected}")]
    Kind {
        /// Kind found.
        found: u8,
        /// Kind expected.
        expected: u8,
    },
    /// Truncated or damaged bytes.
    #[error("damaged: {detail}")]
    Shape {
        /// Description of the defect.
        detail: String,
    },
    /// Number that is not finite or out of range.
    #[error("{what} is out of range")]
    Number {
        /// Name of the field.
        what: &'static str,
    },
}

/// Value that the processes of a cluster exchange or store.
pub trait AsBytes: Serialize + DeserializeOwned + sealed::Checked {
    /// Encodes the value.
    ///
    /// # Panics
    /// Never: a vector accepts every byte, and all lengths are known.
    #[must_use]
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([LAYOUT, Self::KIND]);
        // Named fields are required because some values skip default fields.
        rmp_serde::encode::write_named(&mut bytes, self)
            .expect("memory takes every byte and our types have lengths");
        bytes
    }

    /// Decodes bytes that [`Self::to_bytes`] wrote.
    ///
    /// # Errors
    /// All of [`BytesError`].
    fn of_bytes(bytes: &[u8]) -> Result<Self, BytesError> {
        let Some((&[m0, m1, m2, m3, layout, kind], body)) = bytes.split_first_chunk() else {
            return Err(BytesError::Foreign);
        };
        if [m0, m1, m2, m3] != MAGIC {
            return Err(BytesError::Foreign);
        }
        if layout != LAYOUT {
            return Err(BytesError::Layout { found: layout });
        }
        if kind != Self::KIND {
            return Err(BytesError::Kind { found: kind, expected: Self::KIND });
        }
        let mut rest = body;
        let value: Self = rmp_serde::from_read(&mut rest).map_err(|error| shape(&error.to_string()))?;
        if !rest.is_empty() {
            return Err(shape("extra bytes after the end"));
        }
        value.check()?;
        Ok(value)
    }
}

impl AsBytes for Record {}
impl AsBytes for Notice {}
impl AsBytes for Reply {}

fn shape(detail: &str) -> BytesError {
    BytesError::Shape { detail: detail.to_owned() }
}

/// Checks that `value` can be a weight, a length or a sum of squares.
fn size(what: &'static str, value: f64) -> Result<(), BytesError> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(BytesError::Number { what }) }
}

mod sealed {
    /// Checks on a value beyond its shape.
    pub trait Checked {
        /// Kind of the value in its encoding.
        const KIND: u8;

        fn check(&self) -> Result<(), super::BytesError>;
    }
}

impl sealed::Checked for Record {
    const KIND: u8 = 1;

    fn check(&self) -> Result<(), BytesError> {
        // A reader checks the claims of a merge against the resulting state.
        Ok(())
    }
}

impl sealed::Checked for Notice {
    const KIND: u8 = 2;

    fn check(&self) -> Result<(), BytesError> {
        let Self::Weigh { weights, plan, .. } = self else { return Ok(()) };
        if !plan.is_sound() {
            return Err(BytesError::Number { what: "a term of a plan" });
        }
        let all = weights.iter().flat_map(|(_, weights)| weights);
        all.into_iter().try_for_each(|UpdateWeight { weight, experts, .. }| {
            experts.iter().chain([weight]).try_for_each(|&weight| size("a weight", weight))
        })
    }
}

impl sealed::Checked for Reply {
    const KIND: u8 = 3;

    fn check(&self) -> Result<(), BytesError> {
        if let Self::Here { paces, .. } = self {
            size("the time of an answer", paces.answer_ms)?;
            return size("the time of a step", paces.step_ms);
        }
        let Self::Offers { offers, .. } = self else { return Ok(()) };
        offers.iter().try_for_each(check_offer)
    }
}

fn check_offer(Offer { update, standing, .. }: &Offer) -> Result<(), BytesError> {
    let SenderInfo { step_ms_least, .. } = *standing;
    size("the time of a step", step_ms_least)?;
    if step_ms_least == 0.0 {
        return Err(BytesError::Number { what: "the time of a step" });
    }
    let squares = update.body().map_or(&[][..], |body| body.squares());
    squares.iter().try_for_each(|&square| size("a sum of squares", square))
}

/// Serde functions for shared values, encoded without the `Arc`.
pub(super) mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<T: Serialize, S: Serializer>(value: &Arc<T>, to: S) -> Result<S::Ok, S::Error> {
        T::serialize(value, to)
    }

    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(from: D) -> Result<Arc<T>, D::Error> {
        T::deserialize(from).map(Arc::new)
    }
}

#[cfg(test)]
mod tests;
