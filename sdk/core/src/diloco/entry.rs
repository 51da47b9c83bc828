//! The tape: every decision that changes a run, in order.
//!
//! The syncer emits each decision as an [`Entry`] through [`super::syncer::Output::Record`], before any learner sees
//! its effect. A host that stores the entries, and delays all later output until an entry is safe, loses nothing that
//! a learner was ever told. After a crash, [`super::syncer::Recovery`] continues from the entries.
//!
//! Entries record decisions and not their causes. Why a round ended, which learners were asked and which rule refused
//! an update is not needed for recovery, and may change between versions of the program.

use serde::{Deserialize, Serialize};

use crate::diloco::{ExpertWeights, MergeRule, OuterSpec, UpdateOutcome};
use crate::wire::{Fate, FragmentId, LearnerId, LeaseGrant, LeaseId, Round, Serial, Share, Version};

/// One decision of the syncer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Entry {
    /// A process of the syncer began. Rounds and leases are numbered from here on, and each learner may count
    /// `slack_tokens` beyond its leases.
    Began { next_round: u64, slack_tokens: u64 },
    /// A learner enrolled, or changed its name. `identity`: the fingerprint of its key.
    Enrolled { learner: LearnerId, identity: [u8; 16], name: String, device: String },
    /// A learner without merged updates was forgotten, to make room.
    Forgotten { learner: LearnerId },
    /// A new process of a learner counts its tokens from 0.
    Restarted { learner: LearnerId },
    /// Windows were leased.
    Leased { learner: LearnerId, grant: LeaseGrant },
    /// Total tokens that a learner reports, and its finished windows by lease.
    Reported { learner: LearnerId, tokens: u64, leases: Vec<(LeaseId, u32)> },
    /// A lease was returned with this many windows left. A learner may still train on an `expired` lease, and its
    /// updates count.
    Returned { learner: LearnerId, lease: LeaseId, windows: u32, expired: bool },
    /// Outcome of an update that was not merged.
    Settled { fragment: FragmentId, learner: LearnerId, serial: Serial, fate: Fate },
    /// A round merged its updates into a new version.
    Merged(MergeEntry),
    /// Rollback of a fragment: it was merged again without the updates of some learners.
    Remade(RemadeEntry),
    /// Updates of a learner were found harmful by the held-out loss.
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
    /// The owner set the share of a learner.
    Paced { learner: LearnerId, share: Share },
    /// The owner sent a learner away for this time; 0 lets it return.
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
    /// Number of its updates that were checked until then without showing that it trains.
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
    /// Bound on the norm of a one-step update, by segment; empty for no bound.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub radii: Vec<f64>,
    /// The updates, by learner.
    pub parts: Vec<Part>,
    /// Total weight of missing learners that the round waited for; each counts as an update of zeros.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub absent: f64,
    /// Merge weights for each expert of the fragment; empty without experts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub experts: Vec<ExpertWeights>,
    /// Checksum of the coded change of Θ̂.
    pub checksum: u64,
    /// Digest of the new Θ̂.
    pub digest: u64,
    /// L2 norm of the merged delta, before the outer step.
    pub norm: f64,
}

/// A rollback on one fragment, without its Θ and momentum, which are stored like updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemadeEntry {
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
    /// Checksum of Θ and the momentum in their stored form, see [`super::kept`].
    pub kept: u64,
    /// Checksum of the coded change of Θ̂.
    pub checksum: u64,
    /// Digest of the new Θ̂.
    pub digest: u64,
    /// L2 norm of the movement of Θ.
    pub norm: f64,
}

/// One update in a merge, with facts about its sender at that time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The sender.
    pub learner: LearnerId,
    /// Serial number that the sender gave it.
    pub serial: Serial,
    /// Version of the fragment that the sender held.
    pub base: Version,
    /// Steps since the sender's last merged update on this fragment.
    pub steps: u32,
    /// Tokens of these steps that count, at most those leased to the sender.
    pub tokens: u64,
    /// Weight relative to the other updates.
    pub weight: f64,
    /// Checksum of its body.
    pub checksum: u64,
    /// Time since the sender's previous merged update on this fragment arrived, in milliseconds; `None` for the first
    /// one that a process of the syncer sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// Number of steps for which the norm bound of the update was computed; `None` if it equals `steps`.
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
    /// Returns the outcome of each update, by learner.
    pub(crate) fn settled(&self) -> impl Iterator<Item = UpdateOutcome> {
        let &Self { round, fragment, version, .. } = self;
        let total = self.absent + self.parts.iter().map(|part| part.weight).sum::<f64>();
        self.parts.iter().map(move |&Part { learner, serial, tokens, weight, .. }| {
            let fate = Fate::Merged { version, weight: (weight / total) as f32, tokens };
            UpdateOutcome { round: Some(round), fragment, learner, serial, tokens, fate }
        })
    }
}

impl Part {
    /// Returns the sender's time for one step in milliseconds: the time since its previous update, divided by the
    /// steps of this one. `None` for the first update.
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
            Self::Remade(_) => "remade",
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

    /// Goal: a merge survives a round trip, and empty fields are omitted.
    #[test]
    fn a_merge_leaves_out_what_is_empty() {
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
