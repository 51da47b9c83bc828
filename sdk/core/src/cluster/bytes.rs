//! What the processes of a run on several machines say to each other, and what a tape keeps, as bytes.
//!
//! First come [`MAGIC`], the number of this layout and the kind of what follows, 6 bytes in all, and then the value as
//! MessagePack. Bytes may come from anybody who reaches the bus: what is read is a value of its type whose numbers are
//! numbers. Whether they fit a run, whoever takes them in finds out.

pub(super) mod compact;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Notice, Offer, Record, Reply, Weighing};
use crate::diloco::Standing;

/// The first bytes of everything that processes of a run send each other.
pub const MAGIC: [u8; 4] = *b"ARCL";
/// The layout that is written and read here: another one gets another number.
pub const LAYOUT: u8 = 4;

/// Why bytes are none of these values.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BytesError {
    /// They do not begin as they should: somebody else uses the same bus or storage.
    #[error("these bytes are not from a process of a run: give this run a prefix of its own on the bus")]
    Foreign,
    /// Another program wrote them.
    #[error("layout {found}, and layout {LAYOUT} is read here: run the same version on all machines")]
    Layout {
        /// Theirs.
        found: u8,
    },
    /// They are something else, say an answer where a record was looked for.
    #[error("kind {found} where kind {expected} was looked for")]
    Kind {
        /// Theirs.
        found: u8,
        /// What was looked for.
        expected: u8,
    },
    /// They are cut off or damaged.
    #[error("damaged: {detail}")]
    Shape {
        /// What does not fit.
        detail: String,
    },
    /// A number in them is none, or has a size that it cannot have.
    #[error("{what} is no number that it can be")]
    Number {
        /// Which.
        what: &'static str,
    },
}

/// A value that processes of a run send each other, or keep.
pub trait AsBytes: Serialize + DeserializeOwned + sealed::Checked {
    /// Its bytes.
    ///
    /// # Panics
    /// Not for any value: memory takes every byte, and all lengths are known.
    #[must_use]
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([LAYOUT, Self::KIND]);
        // With names, for some values leave out what is as usual.
        rmp_serde::encode::write_named(&mut bytes, self)
            .expect("memory takes every byte and our types have lengths");
        bytes
    }

    /// What [`Self::to_bytes`] wrote.
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
            return Err(shape("there is something behind the end"));
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

/// Whether `value` can be a weight, a length or a sum of squares.
fn size(what: &'static str, value: f64) -> Result<(), BytesError> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(BytesError::Number { what }) }
}

mod sealed {
    /// What is asked of a value beside its shape.
    pub trait Checked {
        /// Its kind in bytes.
        const KIND: u8;

        fn check(&self) -> Result<(), super::BytesError>;
    }
}

impl sealed::Checked for Record {
    const KIND: u8 = 1;

    fn check(&self) -> Result<(), BytesError> {
        // What a merge says of itself is compared with the state that it led to.
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
        all.into_iter().try_for_each(|Weighing { weight, experts, .. }| {
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
    let Standing { step_ms_least, .. } = *standing;
    size("the time of a step", step_ms_least)?;
    if step_ms_least == 0.0 {
        return Err(BytesError::Number { what: "the time of a step" });
    }
    let squares = update.body().map_or(&[][..], |body| body.squares());
    squares.iter().try_for_each(|&square| size("a sum of squares", square))
}

/// Values that are shared, as they are.
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
