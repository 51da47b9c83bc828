//! Encoding of tape records and of messages between the processes of a cluster.
//!
//! The bytes are [`MAGIC`], the layout number and the kind (6 bytes in all), then the value as MessagePack. Any
//! process that reaches the bus may send bytes. Decoding checks types and ranges. The receiver checks whether the
//! value fits the run.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Notice, Offer, Record, Reply, UpdateWeight};
use crate::diloco::SenderInfo;

/// First bytes of every encoded message and record.
pub const MAGIC: [u8; 4] = *b"ARCL";
/// Number of the encoding's layout. Each change of the encoding gets a new number.
pub const LAYOUT: u8 = 4;

/// Reason why bytes cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BytesError {
    /// Wrong first bytes: another program uses the same bus or storage.
    #[error("these bytes are not from a process of a run: give this run a prefix of its own on the bus")]
    Foreign,
    /// Layout number of another version of this program.
    #[error("layout {found}, but this process reads layout {LAYOUT}: run the same version on all machines")]
    Layout {
        /// Layout found.
        found: u8,
    },
    /// Kind other than the expected one, for example a reply in place of a record.
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
    /// Number that is not finite or is out of range.
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
    /// Never: memory takes every byte, and all lengths are known.
    #[must_use]
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([LAYOUT, Self::KIND]);
        // Field names are needed, because serde skips some fields with default values.
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

/// Checks that `value`, a weight, a time or a sum of squares, is finite and not negative.
fn size(what: &'static str, value: f64) -> Result<(), BytesError> {
    if value.is_finite() && value >= 0.0 { Ok(()) } else { Err(BytesError::Number { what }) }
}

mod sealed {
    /// Checks of a value beyond its types.
    pub trait Checked {
        /// Number of the kind in the encoding.
        const KIND: u8;

        fn check(&self) -> Result<(), super::BytesError>;
    }
}

impl sealed::Checked for Record {
    const KIND: u8 = 1;

    fn check(&self) -> Result<(), BytesError> {
        // The reader checks a merge against the resulting state.
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

fn check_offer(Offer { update, sender, .. }: &Offer) -> Result<(), BytesError> {
    let SenderInfo { step_ms_least, .. } = *sender;
    size("the time of a step", step_ms_least)?;
    if step_ms_least == 0.0 {
        return Err(BytesError::Number { what: "the time of a step" });
    }
    let squares = update.body().map_or(&[][..], |body| body.squares());
    squares.iter().try_for_each(|&square| size("a sum of squares", square))
}

/// Serde functions for values behind an `Arc`, which is not encoded.
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

pub(super) mod compact {
    //! Compact encodings of long lists. A message may have an entry for each of thousands of learners.

    use std::collections::BTreeSet;

    use serde::de::{DeserializeOwned, Error as _};
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_bytes::{ByteBuf, Bytes};

    use crate::wire::LearnerId;

    /// Encodes values without field names. No field of such a value may be skipped.
    pub(in crate::cluster) mod values {
        use super::*;

        pub fn serialize<T: Serialize, S: Serializer>(values: &[T], to: S) -> Result<S::Ok, S::Error> {
            let bytes = rmp_serde::to_vec(values).map_err(S::Error::custom)?;
            Bytes::new(&bytes).serialize(to)
        }

        pub fn deserialize<'de, T: DeserializeOwned, D: Deserializer<'de>>(
            from: D,
        ) -> Result<Vec<T>, D::Error> {
            let bytes = ByteBuf::deserialize(from)?;
            let mut rest = &bytes[..];
            let values = rmp_serde::from_read(&mut rest).map_err(D::Error::custom)?;
            if !rest.is_empty() {
                return Err(D::Error::custom("extra bytes after the last value"));
            }
            Ok(values)
        }
    }

    /// Encodes learner ids as differences between successive ids. Each byte has seven bits, lowest first; a set
    /// eighth bit means that more bytes follow.
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
                // A number of more than five bytes has more than 32 bits or is not the shortest form.
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
            fn invalid_distances_are_refused() {
                assert_eq!(read(&[5, 0]), None, "twice the same");
                assert_eq!(read(&[0x80]), None, "cut off");
                assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x0f, 1]), None, "above all numbers");
                assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x1f]), None, "above all numbers at once");
                assert_eq!(read(&[0x80, 0x80, 0x80, 0x80, 0x80, 0]), None, "too long");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    //! Tests that every kind of value survives a round trip and that foreign bytes are rejected.

    use std::collections::{BTreeMap, BTreeSet};
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{AdminCommand, GatewayId, ProcessId};
    use crate::diloco::syncer::Paces;
    use crate::diloco::{
        FragmentId, LearnerId, MergeEntry, MergeRule, OuterSpec, Round, SenderTrust, Serial, TrustLevel,
        Version,
    };
    use crate::wire::{Fingerprint, Refusal, Share};

    fn merge() -> MergeEntry {
        let (round, fragment, base, version) = (Round(7), FragmentId(2), Version(5), Version(7));
        let (rule, outer) = (MergeRule::Radial, OuterSpec::default());
        let (parts, experts, radii) = (Vec::new(), Vec::new(), vec![0.25]);
        let (absent, checksum, digest, norm) = (0.5, 3, 4, 1.0 / 3.0);
        MergeEntry {
            round,
            fragment,
            base,
            version,
            rule,
            outer,
            radii,
            parts,
            absent,
            experts,
            checksum,
            digest,
            norm,
        }
    }

    fn records() -> Vec<Record> {
        vec![
            Record::Took(ProcessId(u64::MAX)),
            Record::Merged { merge: Box::new(merge()), state: 9 },
            Record::Abandoned,
            Record::Finished,
            Record::Decreed(AdminCommand::Agreed(vec![("min-quorum".to_owned(), "2".to_owned())])),
            Record::Decreed(AdminCommand::Hold(true)),
            Record::Decreed(AdminCommand::Pace(LearnerId(3), Share::new(0.25).unwrap())),
            Record::Decreed(AdminCommand::Drop(LearnerId(3), 1 << 41)),
            Record::Decreed(AdminCommand::Ban(Fingerprint([7; 16]), "a liar".to_owned())),
        ]
    }

    fn weigh(weight: f64) -> Notice {
        let (learner, serial, experts, steps) = (LearnerId(3), Serial(8), vec![0.0, 2.5], 12);
        let weighing = UpdateWeight { learner, serial, weight, experts, steps };
        let terms = json!({ "terms": [{ "way": "mean", "total": 1.5, "radius": null, "exponent": 3 }] });
        Notice::Weigh {
            round: Round(7),
            cancelled: vec![1],
            plan: serde_json::from_value(terms).map(Arc::new).unwrap(),
            weights: Arc::new(vec![(GatewayId(1), vec![weighing]), (GatewayId(4), Vec::new())]),
        }
    }

    fn collect(round: u64, invited: Option<BTreeSet<LearnerId>>) -> Notice {
        Notice::Collect { round: Round(round), invited, heard: BTreeMap::from([(GatewayId(1), 2)]) }
    }

    fn notices() -> Vec<Notice> {
        vec![
            collect(7, None),
            collect(7, Some([3, 300_000].map(LearnerId).into())),
            weigh(0.1),
            Notice::Ended(Round(7)),
            Notice::Refused { round: Round(7), refused: vec![(LearnerId(3), Serial(4), Refusal::Norm)] },
        ]
    }

    fn offer(body: Value, step_ms_least: f64) -> Reply {
        let update = json!({
            "body": body, "checksum": 1, "run": 2, "fragment": 3, "serial": 4, "base": 5, "steps": 6, "tokens": 7,
            "seen": [8],
        });
        let trust = SenderTrust { level: TrustLevel::Trusted, is_proven: Some(true) };
        let sender = SenderInfo {
            step_ms_least,
            steps_max: Some(48),
            step_tokens: 512,
            stranger_ms: None,
            unmerged_tokens: 4_096,
            trust,
            is_in_norm_stats: true,
            clock_tokens: 1 << 40,
        };
        let update = serde_json::from_value(update).unwrap();
        let offers = vec![Offer { learner: LearnerId(3), update, sender }];
        Reply::Offers { gateway: GatewayId(1), round: Round(7), offers }
    }

    fn replies() -> Vec<Reply> {
        vec![
            Reply::Here {
                gateway: GatewayId(1),
                learners: BTreeSet::from([LearnerId(3), LearnerId(300_000)]),
                waits: true,
                paces: Paces { step_ms: 12.5, answer_ms: 90.0 },
            },
            Reply::Pass { round: Round(9), learners: BTreeSet::from([LearnerId(3)]) },
            offer(json!({ "Ok": { "squares": [0.5, 0.0] } }), 1.5),
            offer(json!({ "Err": "norm" }), 1.5),
            Reply::Sum {
                gateway: GatewayId(1),
                round: Round(7),
                cancelled: Vec::new(),
                bytes: vec![1, 0, 255],
            },
        ]
    }

    /// Goal: each process decodes what another one encoded, bit for bit.
    #[test]
    fn values_survive_a_round_trip() {
        for record in records() {
            assert_eq!(Record::of_bytes(&record.to_bytes()), Ok(record));
        }
        for notice in notices() {
            assert_eq!(Notice::of_bytes(&notice.to_bytes()), Ok(notice));
        }
        for reply in replies() {
            let bytes = reply.to_bytes();
            let back = Reply::of_bytes(&bytes).unwrap();
            assert_eq!(format!("{back:?}"), format!("{reply:?}"));
            assert_eq!(back.to_bytes(), bytes);
        }
    }

    /// Goal: the encoding stays compatible with other programs of the same layout number.
    #[test]
    fn bytes_stay_as_they_are() {
        let found: Vec<String> = [
            Record::Abandoned.to_bytes(),
            Record::Took(ProcessId(5)).to_bytes(),
            collect(7, None).to_bytes(),
            Reply::Here {
                gateway: GatewayId(1),
                learners: BTreeSet::from([LearnerId(3)]),
                waits: false,
                paces: Paces { step_ms: 0.5, answer_ms: 2.0 },
            }
            .to_bytes(),
        ]
        .iter()
        .map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
        .collect();
        let expected = [
            "4152434c0401a94162616e646f6e6564",
            "4152434c040181a4546f6f6b05",
            "4152434c040281a7436f6c6c65637482a5726f756e6407a56865617264810102",
            concat!(
                "4152434c040381a44865726584a76761746577617901a86c6561726e657273c40103a57761697473c2",
                "a5706163657382a7737465705f6d73cb3fe0000000000000a9616e737765725f6d73cb4000000000000000"
            ),
        ];
        assert_eq!(found, expected);
    }

    /// Goal: truncated, extended or damaged bytes give an error or another value, and never a panic.
    #[test]
    fn damage_is_noticed_or_harmless() {
        fn try_all<T: AsBytes>(bytes: &[u8]) {
            for len in 0..bytes.len() {
                assert!(T::of_bytes(&bytes[..len]).is_err(), "cut off at {len}");
            }
            let longer = [bytes, &[0]].concat();
            assert!(matches!(T::of_bytes(&longer), Err(BytesError::Shape { .. })));
            for bit in 0..8 * bytes.len() {
                let mut damaged = bytes.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                if let Ok(other) = T::of_bytes(&damaged) {
                    let _ = other.to_bytes();
                }
            }
        }
        records().iter().for_each(|record| try_all::<Record>(&record.to_bytes()));
        notices().iter().for_each(|notice| try_all::<Notice>(&notice.to_bytes()));
        replies().iter().for_each(|reply| try_all::<Reply>(&reply.to_bytes()));
    }

    /// Goal: foreign bytes give an error that names the remedy.
    #[test]
    fn foreign_bytes_are_distinguished() {
        let check = |bytes: &[u8], expected: BytesError| assert_eq!(Record::of_bytes(bytes), Err(expected));
        check(b"", BytesError::Foreign);
        check(b"ARCH\x07\x00", BytesError::Foreign);
        check(b"ARCL\x01\x01", BytesError::Layout { found: 1 });
        check(&Notice::Ended(Round(1)).to_bytes(), BytesError::Kind { found: 2, expected: 1 });
        assert!(matches!(Record::of_bytes(b"ARCL\x04\x01\xc0"), Err(BytesError::Shape { .. })));
    }

    /// Goal: decoding rejects numbers that are not finite or are out of range.
    #[test]
    fn numbers_out_of_range_are_rejected() {
        let nothing = || json!({ "Ok": { "squares": [] } });
        let square = offer(json!({ "Ok": { "squares": [0.125] } }), 1.0).to_bytes();
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            let found = Notice::of_bytes(&weigh(wrong).to_bytes());
            assert_eq!(found, Err(BytesError::Number { what: "a weight" }), "{wrong}");
            let found = Reply::of_bytes(&with(&square, 0.125, wrong)).map(|_| ());
            assert_eq!(found, Err(BytesError::Number { what: "a sum of squares" }), "{wrong}");
            for (step_ms, answer_ms, what) in
                [(wrong, 1.0, "the time of a step"), (1.0, wrong, "the time of an answer")]
            {
                let (gateway, learners, waits) = (GatewayId(1), BTreeSet::new(), false);
                let here = Reply::Here { gateway, learners, waits, paces: Paces { step_ms, answer_ms } };
                let found = Reply::of_bytes(&here.to_bytes()).map(|_| ());
                assert_eq!(found, Err(BytesError::Number { what }), "{wrong}");
            }
            let found = Reply::of_bytes(&offer(nothing(), wrong).to_bytes()).map(|_| ());
            assert_eq!(found, Err(BytesError::Number { what: "the time of a step" }), "{wrong}");
            let found = Notice::of_bytes(&with(&weigh(1.0).to_bytes(), 1.5, wrong));
            assert_eq!(found, Err(BytesError::Number { what: "a term of a plan" }), "{wrong}");
        }
        assert!(Reply::of_bytes(&offer(nothing(), 0.0).to_bytes()).is_err());
        assert!(Reply::of_bytes(&square).is_ok());
    }

    /// Replaces the only occurrence of the number `before` in `bytes`.
    fn with(bytes: &[u8], before: f64, after: f64) -> Vec<u8> {
        let at = bytes.windows(8).position(|window| window == before.to_be_bytes()).unwrap();
        [&bytes[..at], &after.to_be_bytes(), &bytes[at + 8..]].concat()
    }
}
