//! Compact encodings of long lists. A message may carry an entry for each of thousands of learners.

use std::collections::BTreeSet;

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::{ByteBuf, Bytes};

use crate::wire::LearnerId;

/// Encodes values without field names. Such values cannot skip fields.
pub(in crate::cluster) mod values {
    use super::*;

    pub fn serialize<T: Serialize, S: Serializer>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
        let bytes = rmp_serde::to_vec(values).map_err(S::Error::custom)?;
        Bytes::new(&bytes).serialize(to)
    }

    pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(from: D) -> Result<Vec<T>, D::Error> {
        let bytes = ByteBuf::deserialize(from)?;
        let mut rest = &bytes[..];
        let values = rmp_serde::from_read(&mut rest).map_err(D::Error::custom)?;
        if !rest.is_empty() {
            return Err(D::Error::custom("extra bytes after the last value"));
        }
        Ok(values)
    }
}

/// Encodes learner ids as differences between neighbours. Each byte holds seven bits, lowest first; a set eighth bit
/// means that more bytes follow.
pub(in crate::cluster) mod learners {
    use super::*;

    pub fn serialize<S: Serializer>(learners: &BTreeSet<LearnerId>, to: S) -> Result<S::Ok, S::Error> {
        let (mut bytes, mut before) = (Vec::with_capacity(learners.len()), 0);
        for LearnerId(id) in learners {
            let mut distance = id - before;
            while distance >= 0x80 {
                bytes.push(distance as u8 | 0x80);
                distance >>= 7;
            }
            bytes.push(distance as u8);
            before = *id;
        }
        Bytes::new(&bytes).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeSet<LearnerId>, D::Error> {
        let bytes = ByteBuf::deserialize(from)?;
        read(&bytes).ok_or_else(|| D::Error::custom("these are not distances between learners"))
    }

    fn read(bytes: &[u8]) -> Option<BTreeSet<LearnerId>> {
        let (mut learners, mut before, mut rest) = (BTreeSet::new(), 0_u32, bytes);
        while !rest.is_empty() {
            let last = rest.iter().position(|byte| byte & 0x80 == 0)?;
            let (number, after) = rest.split_at(last + 1);
            let shifts = (0..).step_by(7);
            // A longer number has at least 35 bits and cannot be a 32-bit id.
            if number.len() > 5 {
                return None;
            }
            let distance = number
                .iter()
                .zip(shifts)
                .fold(0_u64, |sum, (byte, shift): (_, u32)| sum | u64::from(byte & 0x7f) << shift);
            before = before.checked_add(u32::try_from(distance).ok()?)?;
            if !learners.insert(LearnerId(before)) {
                return None;
            }
            rest = after;
        }
        Some(learners)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Here(#[serde(with = "super")] BTreeSet<LearnerId>);

        #[test]
        fn learners_come_back() {
            for ids in [&[][..], &[0], &[1, 2, 3, 300, 16_500, 70_000], &[0, u32::MAX]] {
                let here = Here(ids.iter().copied().map(LearnerId).collect());
                let bytes = rmp_serde::to_vec(&here).unwrap();
                assert_eq!(rmp_serde::from_slice::<Here>(&bytes).unwrap(), here);
            }
            let crowd = Here((1..=5_000).map(|at| LearnerId(2 * at)).collect());
            assert!(rmp_serde::to_vec(&crowd).unwrap().len() < 5_010, "a byte each");
        }

        #[test]
        fn what_is_no_distance_is_refused() {
            assert_eq!(read(&[5, 0]), None, "twice the same");
            assert_eq!(read(&[0x80]), None, "cut off");
            assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x0f, 1]), None, "above all numbers");
            assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x1f]), None, "above all numbers at once");
            assert_eq!(read(&[0x80, 0x80, 0x80, 0x80, 0x80, 0]), None, "too long");
        }
    }
}
