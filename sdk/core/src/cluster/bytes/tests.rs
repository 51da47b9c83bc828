//! Every kind of value survives a round trip, and foreign bytes are rejected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::cluster::{AdminCommand, GatewayId, ProcessId};
use crate::diloco::syncer::Paces;
use crate::diloco::{
    FragmentId, LearnerId, MergeEntry, MergeRule, OuterSpec, Round, SenderTrust, Serial, Version,
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
    let repute = SenderTrust { is_shown: Some(true), ..SenderTrust::default() };
    let standing = SenderInfo {
        step_ms_least,
        steps_max: Some(48),
        step_tokens: 512,
        stranger_ms: None,
        unmerged_tokens: 4_096,
        repute,
        has_voice: true,
        clock_tokens: 1 << 40,
    };
    let update = serde_json::from_value(update).unwrap();
    let offers = vec![Offer { learner: LearnerId(3), update, standing }];
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
        Reply::Sum { gateway: GatewayId(1), round: Round(7), cancelled: Vec::new(), bytes: vec![1, 0, 255] },
    ]
}

/// Goal: each process decodes what another one encoded, bit for bit.
#[test]
fn all_come_back() {
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

/// Goal: the encoding stays compatible with other programs of the same layout.
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

/// Goal: truncated, extended or bit-flipped bytes give an error or another value, and never a panic.
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

/// Goal: foreign bytes give a distinct error that names the remedy.
#[test]
fn others_are_told_apart() {
    let check = |bytes: &[u8], expected: BytesError| assert_eq!(Record::of_bytes(bytes), Err(expected));
    check(b"", BytesError::Foreign);
    check(b"ARCH\x07\x00", BytesError::Foreign);
    check(b"ARCL\x01\x01", BytesError::Layout { found: 1 });
    check(&Notice::Ended(Round(1)).to_bytes(), BytesError::Kind { found: 2, expected: 1 });
    assert!(matches!(Record::of_bytes(b"ARCL\x04\x01\xc0"), Err(BytesError::Shape { .. })));
}

/// Goal: decoding rejects numbers that are not finite or out of range.
#[test]
fn numbers_are_numbers() {
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
