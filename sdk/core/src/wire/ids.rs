//! Identifiers, each with its own type so that they cannot be confused.

use std::fmt;
use std::num::NonZeroU16;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        id!(plain #[derive(Serialize, Deserialize)] #[serde(transparent)] $(#[$doc])* $name($int));
    };
    (plain $(#[$meta:meta])* $name:ident($int:ty)) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "ts", derive(ts_rs::TS))]
        $(#[$meta])*
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

/// Defines a 64-bit id that pages receive. Text formats such as JSON contain it as a string, because JavaScript's
/// numbers are exact only up to 2⁵³. Numbers are accepted too, because older snapshots contain them.
macro_rules! wide_id {
    ($(#[$doc:meta])* $name:ident) => {
        id!(plain $(#[$doc])* #[cfg_attr(feature = "ts", ts(type = "string"))] $name(u64));

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() { serializer.collect_str(self) } else { self.0.serialize(serializer) }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if !deserializer.is_human_readable() {
                    return u64::deserialize(deserializer).map(Self);
                }
                match Wide::deserialize(deserializer)? {
                    Wide::Number(number) => Ok(Self(number)),
                    Wide::Text(text) => text.parse().map(Self).map_err(serde::de::Error::custom),
                }
            }
        }
    };
}

/// Text form of a wide id: a number or a string.
#[derive(Deserialize)]
#[serde(untagged)]
enum Wide {
    Number(u64),
    Text(String),
}

id!(/// Id of a learner in a run. The syncer numbers identities in the order in which they first joined.
    LearnerId(u32));
id!(/// Id of a fragment, one of the `P` parts of the parameters.
    FragmentId(u16));
wide_id!(/// Number of a state of one fragment. It grows with each merge. After a restart from a snapshot it jumps to an
    /// unused range, so that a version never names two states.
    Version);
wide_id!(/// Id of a round of one fragment, unique in a run, also across restarts.
    Round);
id!(/// Number that a learner gives to an update. Each process of the learner uses its own range.
    Serial(u64));
id!(/// Id of a lease: a range of training windows granted to one learner.
    LeaseId(u64));
id!(/// Number that the shell gives to a connection, never reused during the process.
    ConnId(u64));

/// Part of the training time that the owner allows a learner, in thousandths from 1 to 1000. An integer on the wire
/// cannot be 0 or NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "u16", try_from = "u16")]
pub struct Share(NonZeroU16);

/// A share out of range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("a share of {0} is out of range: give the part of the time to train, from 0.001 to 1")]
pub struct ShareError(pub f64);

impl Share {
    /// The whole of the time.
    pub const FULL: Self = Self(NonZeroU16::new(1_000).expect("it is not 0"));

    /// Returns `ratio` rounded to the nearest thousandth.
    ///
    /// # Errors
    /// [`ShareError`]: `ratio` is not from 0.001 to 1.
    pub fn new(ratio: f64) -> Result<Self, ShareError> {
        let permille = (0.001..=1.0).contains(&ratio).then(|| (ratio * 1_000.0).round() as u16);
        permille.and_then(NonZeroU16::new).map(Self).ok_or(ShareError(ratio))
    }

    /// Returns the share in thousandths, 1 to 1000.
    #[must_use]
    pub fn permille(self) -> u16 {
        self.0.get()
    }

    /// Returns the share as a number, 0.001 to 1.
    #[must_use]
    pub fn ratio(self) -> f64 {
        f64::from(self.permille()) / 1e3
    }
}

impl Default for Share {
    fn default() -> Self {
        Self::FULL
    }
}

impl From<Share> for u16 {
    fn from(share: Share) -> Self {
        share.permille()
    }
}

impl TryFrom<u16> for Share {
    type Error = ShareError;

    fn try_from(permille: u16) -> Result<Self, ShareError> {
        Self::new(f64::from(permille) / 1e3)
    }
}

/// Id of a run; messages of different runs never mix. Displayed as 16 hex digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub u64);

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// First 8 bytes, big endian, of the SHA-256 of a parameter layout and its fragments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayoutHash(pub u64);

impl fmt::Display for LayoutHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Identity of a learner: its Ed25519 public key (RFC 8032). It is not secret, because the private key signs each
/// `Hello`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity(#[serde(with = "serde_bytes")] pub [u8; 32]);

impl Identity {
    /// Returns the short name for ledgers, lists of bans and displays: the first 16 bytes of the key's SHA-256.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(Sha256::digest(self.0)[..16].try_into().expect("SHA-256 has 32 bytes"))
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// Short name of an [`Identity`], displayed as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(pub [u8; 16]);

/// A text that is not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not a fingerprint of a key, which has 32 hex digits")]
pub struct FingerprintError;

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let digits = text.bytes().all(|digit| digit.is_ascii_hexdigit()) && text.len() == 32;
        let number = digits.then(|| u128::from_str_radix(text, 16).ok()).flatten();
        number.map(|number| Self(number.to_be_bytes())).ok_or(FingerprintError)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Fingerprint({self})")
    }
}

/// An Ed25519 signature of [`crate::wire::Challenge::text`].
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature(#[serde(with = "serde_bytes")] pub [u8; 64]);

impl Signature {
    /// Placeholder until the owner of the key has signed.
    pub const NONE: Self = Self([0; 64]);
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signature({:02x}{:02x}…)", self.0[0], self.0[1])
    }
}

/// Invite to a run: a secret shared by many learners. Never displayed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Invite(String);

impl Invite {
    /// Wraps `text` as an invite.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the secret text, for comparison or transmission.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Invite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Invite(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_are_read_as_they_are_shown() {
        let fingerprint = Identity([7; 32]).fingerprint();
        assert_eq!(fingerprint.to_string(), "4bb06f8e4e3a7715d201d573d0aa4237");
        assert_eq!(fingerprint.to_string().parse(), Ok(fingerprint));
        for wrong in ["", "4bb06f8e4e3a7715d201d573d0aa423", "+bb06f8e4e3a7715d201d573d0aa4237", "é"] {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(FingerprintError), "{wrong}");
        }
    }

    #[test]
    fn wide_ids_are_text_for_pages_and_numbers_on_the_wire() {
        let version = Version((1_795_354_000 << 32) + 1);
        let text = serde_json::to_string(&version).unwrap();
        assert_eq!(text, "\"7710986714742784001\"");
        assert_eq!(serde_json::from_str::<Version>(&text).unwrap(), version);
        assert_eq!(serde_json::from_str::<Version>("7710986714742784001").unwrap(), version);
        assert!(serde_json::from_str::<Version>("\"-1\"").is_err());
        let bytes = rmp_serde::to_vec(&version).unwrap();
        assert_eq!(bytes, rmp_serde::to_vec(&version.0).unwrap());
        assert_eq!(rmp_serde::from_slice::<Version>(&bytes).unwrap(), version);
    }
}
