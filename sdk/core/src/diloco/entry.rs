//! Entries of the tape: every decision that changes a run, in order.
//!
//! The syncer emits each decision as an [`Entry`] through [`super::syncer::Output::Record`], before any learner sees
//! its effect. The host stores each entry and holds back all later output until the entry is on disk. A crash then
//! loses nothing that a learner knows of, and [`super::syncer::Recovery`] continues from the entries.
//!
//! Entries record decisions without their causes. Recovery does not need the reason for the end of a round, the invited
//! learners, or the rule that refused an update, and these may change between versions of the program.

use serde::{Deserialize, Serialize};

use crate::diloco::{ExpertWeights, MergeRule, OuterSpec, UpdateOutcome};
use crate::wire::{Fate, FragmentId, LearnerId, LeaseGrant, LeaseId, Round, Serial, Share, Version};

/// One decision of the syncer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Entry {
    /// A process of the syncer started. It numbers rounds and leases from `next_round` on. Each learner may be credited
    /// `slack_tokens` beyond its leases.
    Began { next_round: u64, slack_tokens: u64 },
    /// A learner enrolled, or changed its name or device. `identity` is the fingerprint of its key.
    Enrolled { learner: LearnerId, identity: [u8; 16], name: String, device: String },
    /// The account of a learner without merged updates was deleted to make room.
    Forgotten { learner: LearnerId },
    /// A learner began a new process, whose reported tokens start at 0.
    Restarted { learner: LearnerId },
    /// Windows were leased.
    Leased { learner: LearnerId, grant: LeaseGrant },
    /// A learner reported its total of trained tokens, and its finished windows by lease.
    Reported { learner: LearnerId, tokens: u64, leases: Vec<(LeaseId, u32)> },
    /// A lease ended with this many windows left, which go to other learners. The holder of an `expired` lease may
    /// still train on it and is credited for that.
    Returned { learner: LearnerId, lease: LeaseId, windows: u32, expired: bool },
    /// An update was not merged; `fate` says whether it was late or refused.
    Settled { fragment: FragmentId, learner: LearnerId, serial: Serial, fate: Fate },
    /// A round merged its updates into a new version.
    Merged(MergeEntry),
    /// A fragment was rolled back: its merges were repeated without the updates of some learners.
    #[serde(rename = "remade")]
    RolledBack(RollbackEntry),
    /// A learner was convicted: the held-out loss showed that its updates did harm.
    Blamed { learner: LearnerId },
    /// A learner became suspected of not training what it claims. Without a `doubt` it is no longer suspected.
    Doubted {
        learner: LearnerId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        doubt: Option<Suspicion>,
    },
    /// The owner pardoned a learner whose updates did harm.
    Pardoned { learner: LearnerId },
    /// A round ended without a new version.
    Abandoned { round: Round, fragment: FragmentId },
    /// The owner paused or resumed the run.
    Held { held: bool },
    /// The owner limited the share of its time that a learner trains.
    Paced { learner: LearnerId, share: Share },
    /// A learner was sent away for this time; 0 lets it return.
    Dropped { learner: LearnerId, wait_ms: u32 },
    /// The final collection began.
    Finishing,
    /// The run ended for good.
    Finished,
}

/// Reason to suspect a learner of not training what it claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suspicion {
    /// Number of the learner's updates that loss checks had examined when it became suspected.
    pub looks: u32,
}

/// A merge without the bodies of its updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergeEntry {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// Version before the merge.
    pub base: Version,
    /// Version after the merge.
    pub version: Version,
    /// The merge rule.
    pub rule: MergeRule,
    /// The outer step.
    pub outer: OuterSpec,
    /// Upper bound on the norm of a one-step update on each segment, `[segments]`; empty for no bound.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub radii: Vec<f64>,
    /// The updates, ordered by learner id.
    pub parts: Vec<Part>,
    /// Weight of established learners that the round awaited without result; it enters the mean as an update of zeros.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub absent: f64,
    /// Merge weights of the updates for each expert of the fragment, `[experts]`; empty without experts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub experts: Vec<ExpertWeights>,
    /// Checksum of the coded change of Θ̂.
    pub checksum: u64,
    /// Digest of the new Θ̂.
    pub digest: u64,
    /// L2 norm of the merged delta, before the outer step.
    pub norm: f64,
}

/// A rollback of one fragment. Its new Θ and momentum are stored as a body, as updates are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RollbackEntry {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// Version before the rollback.
    pub base: Version,
    /// Version after the rollback.
    pub version: Version,
    /// Learners whose updates were removed, by id.
    pub without: Vec<LearnerId>,
    /// Checksum of Θ and the momentum in their stored form, see [`super::encode_state`].
    pub kept: u64,
    /// Checksum of the coded change of Θ̂.
    pub checksum: u64,
    /// Digest of the new Θ̂.
    pub digest: u64,
    /// L2 distance between the old and the new Θ.
    pub norm: f64,
}

/// One update in a merge, with facts about its sender at that time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The sender.
    pub learner: LearnerId,
    /// Serial number that the sender gave it.
    pub serial: Serial,
    /// Version of the fragment from which the sender trained.
    pub base: Version,
    /// Steps since the sender's last merged update on this fragment.
    pub steps: u32,
    /// Credited tokens of these steps, at most the leased and unmerged tokens of the sender.
    pub tokens: u64,
    /// Weight relative to the other updates.
    pub weight: f64,
    /// Checksum of its body.
    pub checksum: u64,
    /// Time between the arrivals of the sender's previous merged update on this fragment and of this one, in
    /// milliseconds; `None` if this process of the syncer has not seen a previous one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// Number of steps from which the norm bound of this update follows; `None` if it equals `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach_steps: Option<u32>,
    /// Whether the sender was proven when it was merged.
    #[serde(rename = "is_shown", default, skip_serializing_if = "is_false")]
    pub is_proven: bool,
}

fn is_false(is: &bool) -> bool {
    !is
}

fn is_zero(weight: &f64) -> bool {
    *weight == 0.0
}

impl MergeEntry {
    /// Returns the outcome of each update, ordered by learner id.
    pub(crate) fn outcomes(&self) -> impl Iterator<Item = UpdateOutcome> {
        let &Self { round, fragment, version, .. } = self;
        let total = self.absent + self.parts.iter().map(|part| part.weight).sum::<f64>();
        self.parts.iter().map(move |&Part { learner, serial, tokens, weight, .. }| {
            let fate = Fate::Merged { version, weight: (weight / total) as f32, tokens };
            UpdateOutcome { round: Some(round), fragment, learner, serial, tokens, fate }
        })
    }
}

impl Part {
    /// Returns the sender's mean time per step in milliseconds: `after_ms` divided by `steps`. `None` if `after_ms` is.
    pub(crate) fn step_ms(&self) -> Option<f64> {
        self.after_ms.map(|after_ms| after_ms as f64 / f64::from(self.steps.max(1)))
    }
}

impl Entry {
    /// Returns the name of the entry on the tape.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Began { .. } => "began",
            Self::Enrolled { .. } => "enrolled",
            Self::Forgotten { .. } => "forgotten",
            Self::Restarted { .. } => "restarted",
            Self::Leased { .. } => "leased",
            Self::Reported { .. } => "reported",
            Self::Returned { .. } => "returned",
            Self::Settled { .. } => "settled",
            Self::Merged(_) => "merged",
            Self::RolledBack(_) => "remade",
            Self::Blamed { .. } => "blamed",
            Self::Doubted { .. } => "doubted",
            Self::Pardoned { .. } => "pardoned",
            Self::Abandoned { .. } => "abandoned",
            Self::Held { .. } => "held",
            Self::Paced { .. } => "paced",
            Self::Dropped { .. } => "dropped",
            Self::Finishing => "finishing",
            Self::Finished => "finished",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a merge survives a round trip, and its empty fields are not serialised.
    #[test]
    fn merge_entry_omits_empty_fields() {
        let short = r#"{"kind":"merged","round":5,"fragment":0,"base":3,"version":5,"rule":"radial",
            "outer":{"lr":0.5,"momentum":0.5},"parts":[],"checksum":1,"digest":2,"norm":0.5}"#;
        let entry: Entry = serde_json::from_str(short).unwrap();
        let Entry::Merged(merge) = &entry else { panic!("{entry:?}") };
        assert_eq!(merge.radii, [0.0; 0]);
        assert!(!serde_json::to_string(&entry).unwrap().contains("radii"));
        assert_eq!(merge.absent, 0.0);
        assert!(!serde_json::to_string(&entry).unwrap().contains("absent"));
        assert!(!serde_json::to_string(&entry).unwrap().contains("experts"));
        let weights = ExpertWeights { weights: vec![0.0, 1.0 / 3.0], absent: 0.1 };
        let bounded = Entry::Merged(MergeEntry {
            radii: vec![0.1, 1.0 / 3.0],
            absent: 0.7,
            experts: vec![weights],
            ..merge.clone()
        });
        let text = serde_json::to_string(&bounded).unwrap();
        assert_eq!(serde_json::from_str::<Entry>(&text).unwrap(), bounded, "to the bit");
    }
}
