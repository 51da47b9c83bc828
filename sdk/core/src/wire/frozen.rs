//! Frozen weights of a run: their description in [`super::RunSpec`] and their storage formats.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Format in which frozen weights are sent and stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "ts", derive(ts_rs::TS))]
#[serde(rename_all = "snake_case")]
pub enum FrozenForm {
    /// 16 bits for each value: IEEE 754 binary16.
    F16,
    /// Matrices: 8 bits for each value, −127…127 times a binary16 scale for each 32 values of a row. Vectors:
    /// binary16.
    Int8,
}

impl FrozenForm {
    /// All formats, most exact first.
    pub const ALL: [Self; 2] = [Self::F16, Self::Int8];

    /// Returns its name in settings, reports and JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }
}

impl fmt::Display for FrozenForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for FrozenForm {
    type Err = UnknownForm;

    fn from_str(name: &str) -> Result<Self, UnknownForm> {
        let found = Self::ALL.into_iter().find(|form| form.name() == name);
        found.ok_or_else(|| UnknownForm { name: name.into() })
    }
}

/// Name that is not a format of frozen weights.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("frozen weights cannot be stored as {name:?}; choose f16 or int8")]
pub struct UnknownForm {
    /// Requested form.
    pub name: String,
}

/// Size of a part in descriptions from [`Frozen::of`], in bytes. On a slow link, a part takes some seconds.
pub const FROZEN_PART_BYTES: u32 = 4 << 20;

/// Maximum size of a part of frozen weights, in bytes. A learner holds a whole part in memory.
pub const FROZEN_PART_BYTES_MAX: u32 = 64 << 20;

/// Maximum number of parts of frozen weights.
pub const FROZEN_PARTS_MAX: u32 = 1 << 14;

/// Bytes of a checksum.
const SHA256_BYTES: usize = 32;

/// Description of frozen weights, which learners fetch once, in parts, and keep.
///
/// Every part has `part_bytes` bytes except the last, which has the remainder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frozen {
    /// Storage format of a weight.
    pub form: FrozenForm,
    /// Total bytes, at least 1.
    pub bytes: u64,
    /// Bytes of a part, 1 to [`FROZEN_PART_BYTES_MAX`].
    pub part_bytes: u32,
    /// SHA-256 of each part, concatenated, `[32 × parts]`; at most [`FROZEN_PARTS_MAX`] parts.
    #[serde(with = "serde_bytes")]
    pub sha256: Vec<u8>,
}

/// Reason why a description of frozen weights is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartsError {
    /// There are no weights.
    #[error("frozen weights of no bytes")]
    Empty,
    /// A part is empty or above the maximum size.
    #[error("parts of {bytes} bytes: they must have 1 to {FROZEN_PART_BYTES_MAX}")]
    PartBytes {
        /// Announced size of a part.
        bytes: u32,
    },
    /// There are too many parts.
    #[error("{parts} parts of frozen weights: at most {FROZEN_PARTS_MAX} are fetched")]
    Parts {
        /// Resulting number of parts.
        parts: u64,
    },
    /// The number of checksums differs from the number of parts.
    #[error("{found} bytes of checksums for {parts} parts of frozen weights")]
    Checksums {
        /// Bytes of checksums found.
        found: usize,
        /// Number of parts.
        parts: u64,
    },
}

impl Frozen {
    /// Describes `bytes` as parts of [`FROZEN_PART_BYTES`].
    #[must_use]
    pub fn of(form: FrozenForm, bytes: &[u8]) -> Self {
        let sha256 = bytes.chunks(FROZEN_PART_BYTES as usize).flat_map(Sha256::digest).collect();
        Self { form, bytes: bytes.len() as u64, part_bytes: FROZEN_PART_BYTES, sha256 }
    }

    /// Checks that the parts can be fetched and verified.
    ///
    /// # Errors
    /// - [`PartsError::Empty`]: there are no weights.
    /// - [`PartsError::PartBytes`]: the size of a part is 0 or above the maximum.
    /// - [`PartsError::Parts`]: there are too many parts.
    /// - [`PartsError::Checksums`]: the number of checksums differs from the number of parts.
    pub fn check(&self) -> Result<(), PartsError> {
        if self.bytes == 0 {
            return Err(PartsError::Empty);
        }
        if !(1..=FROZEN_PART_BYTES_MAX).contains(&self.part_bytes) {
            return Err(PartsError::PartBytes { bytes: self.part_bytes });
        }
        let parts = self.bytes.div_ceil(self.part_bytes.into());
        if parts > FROZEN_PARTS_MAX.into() {
            return Err(PartsError::Parts { parts });
        }
        match self.sha256.len() as u64 == parts * SHA256_BYTES as u64 {
            true => Ok(()),
            false => Err(PartsError::Checksums { found: self.sha256.len(), parts }),
        }
    }

    /// Returns the number of parts, derived from the checksums.
    #[must_use]
    pub fn parts(&self) -> u32 {
        (self.sha256.len() / SHA256_BYTES) as u32
    }

    /// Returns the half-open byte range of part `index`, or `None` if there is no such part.
    #[must_use]
    pub fn range(&self, index: u32) -> Option<(u64, u64)> {
        let start = u64::from(index) * u64::from(self.part_bytes);
        let is_there = index < self.parts() && start < self.bytes;
        is_there.then(|| (start, self.bytes.min(start + u64::from(self.part_bytes))))
    }

    /// Returns the SHA-256 of part `index`, if there is such a part.
    #[must_use]
    pub fn checksum(&self, index: u32) -> Option<&[u8]> {
        self.sha256.chunks_exact(SHA256_BYTES).nth(index as usize)
    }

    /// Returns true if `bytes` are the contents of part `index`.
    #[must_use]
    pub fn is_part(&self, index: u32, bytes: &[u8]) -> bool {
        self.range(index).is_some_and(|(start, end)| end - start == bytes.len() as u64)
            && self.checksum(index).is_some_and(|checksum| checksum == &Sha256::digest(bytes)[..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_found_by_its_name_only() {
        for form in FrozenForm::ALL {
            assert_eq!(form.to_string().parse(), Ok(form));
            assert_eq!(serde_json::to_string(&form).unwrap(), format!("\"{form}\""));
        }
        let error = "q4".parse::<FrozenForm>().unwrap_err().to_string();
        assert_eq!(error, "frozen weights cannot be stored as \"q4\"; choose f16 or int8");
    }

    #[test]
    fn parts_are_verified() {
        let bytes: Vec<u8> = (0..FROZEN_PART_BYTES + 7).map(|i| (i % 251) as u8).collect();
        let frozen = Frozen::of(FrozenForm::F16, &bytes);
        assert_eq!((frozen.check(), frozen.parts()), (Ok(()), 2));
        let cut = u64::from(FROZEN_PART_BYTES);
        assert_eq!([0, 1, 2].map(|part| frozen.range(part)), [Some((0, cut)), Some((cut, cut + 7)), None]);
        let (first, last) = bytes.split_at(FROZEN_PART_BYTES as usize);
        assert!(frozen.is_part(0, first) && frozen.is_part(1, last));
        assert!(!frozen.is_part(0, last) && !frozen.is_part(1, &last[1..]) && !frozen.is_part(2, &[]));
        let mut damaged = last.to_vec();
        damaged[3] ^= 1;
        assert!(!frozen.is_part(1, &damaged));
    }

    #[test]
    fn invalid_descriptions_are_refused() {
        let good = Frozen::of(FrozenForm::Int8, &[1, 2, 3]);
        let check = |change: fn(&mut Frozen), error| {
            let mut bad = good.clone();
            change(&mut bad);
            assert_eq!(bad.check(), Err(error));
        };
        check(|frozen| frozen.bytes = 0, PartsError::Empty);
        check(|frozen| frozen.part_bytes = 0, PartsError::PartBytes { bytes: 0 });
        check(|frozen| frozen.part_bytes = u32::MAX, PartsError::PartBytes { bytes: u32::MAX });
        check(
            |frozen| (frozen.bytes, frozen.part_bytes) = (u64::MAX, 1),
            PartsError::Parts { parts: u64::MAX },
        );
        check(|frozen| frozen.sha256.truncate(31), PartsError::Checksums { found: 31, parts: 1 });
        check(|frozen| frozen.bytes = 1 << 23, PartsError::Checksums { found: 32, parts: 2 });
    }
}
