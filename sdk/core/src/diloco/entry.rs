//! The tape: every decision that changes a run, in order.
//!
//! The syncer says each of its decisions as an [`Entry`], by [`super::syncer::Output::Record`], before it tells anybody
//! what follows from it. Who keeps the entries, and holds back what comes after one until it is safe, loses nothing
//! that a learner was ever told: [`super::syncer::Recovery`] goes on from there.
//!
//! Entries are decisions and not what led to them: why a round was over when it was, who was asked, what was refused
//! by which rule is not needed to go on, and may change from one version of the program to the next.

use serde::{Deserialize, Serialize};

use crate::diloco::{ExpertWeights, MergeRule, OuterSpec, Settled};
use crate::wire::{Fate, FragmentId, LearnerId, LeaseGrant, LeaseId, Round, Serial, Share, Version};

/// One decision of the syncer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Entry {
    /// A process of the syncer began: rounds and leases are numbered from here on, and each learner may count so many
    /// tokens beyond its leases.
    Began { next_round: u64, slack_tokens: u64 },
    /// A learner came for the first time, or under another name. `identity`: the fingerprint of its
    /// key.
    Enrolled { learner: LearnerId, identity: [u8; 16], name: String, device: String },
    /// A learner that had come to nothing was forgotten, to make room.
    Forgotten { learner: LearnerId },
    /// A new process of a learner counts its tokens from 0.
    Restarted { learner: LearnerId },
    /// Windows were leased.
    Leased { learner: LearnerId, grant: LeaseGrant },
    /// What a learner says it has trained in all, and how many windows of which lease.
    Reported { learner: LearnerId, tokens: u64, leases: Vec<(LeaseId, u32)> },
    /// A lease came back with so many windows left. One that `expired` may still be trained on, and what was trained
    /// handed in.
    Returned { learner: LearnerId, lease: LeaseId, windows: u32, expired: bool },
    /// What became of an update that was not merged.
    Settled { fragment: FragmentId, learner: LearnerId, serial: Serial, fate: Fate },
    /// A round led to a version.
    Merged(MergeEntry),
    /// What a fragment was merged to was undone: it was merged again without somebody.
    Remade(RemadeEntry),
    /// Merges went worse for the updates of a learner, by the loss that is measured.
    Blamed { learner: LearnerId },
    /// Updates of a learner do not show that it trains what it says it does, or do so again: without a `doubt` it is
    /// suspected no longer.
    Doubted {
        learner: LearnerId,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        doubt: Option<Doubt>,
    },
    /// The owner forgives a learner whose updates did harm.
    Pardoned { learner: LearnerId },
    /// A round led to nothing.
    Abandoned { round: Round, fragment: FragmentId },
    /// The owner holds the run, or lets it go on.
    Held { held: bool },
    /// The owner has a learner train for this part of its time.
    Paced { learner: LearnerId, share: Share },
    /// The owner sent a learner away for so long, or with 0 lets it come back.
    Dropped { learner: LearnerId, wait_ms: u32 },
    /// The last collection began.
    Finishing,
    /// The run is over for good.
    Finished,
}

/// Why a learner is suspected of not training what it says it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Doubt {
    /// Updates of it that were looked at by then, and did not show it.
    pub looks: u32,
}

/// All of a merge but the bodies of its updates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MergeEntry {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// The version before.
    pub base: Version,
    /// The version that it led to.
    pub version: Version,
    /// How updates were merged.
    pub rule: MergeRule,
    /// The outer step.
    pub outer: OuterSpec,
    /// How far the norm of an update of one step counted on each segment; empty for no bound.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub radii: Vec<f64>,
    /// The updates, by learner.
    pub parts: Vec<Part>,
    /// The weight of those who were waited for in vain: as if each of them had sent zeros.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub absent: f64,
    /// The weights for each expert of the fragment; empty where it has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub experts: Vec<ExpertWeights>,
    /// Checksum of the coded change of Θ̂.
    pub checksum: u64,
    /// Digest of the new Θ̂.
    pub digest: u64,
    /// L2 norm of the merged delta, before the outer step.
    pub norm: f64,
}

/// All of an undoing on one fragment but Θ and the momentum that it led to, which are kept as updates are.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemadeEntry {
    /// The round.
    pub round: Round,
    /// The fragment.
    pub fragment: FragmentId,
    /// The version before.
    pub base: Version,
    /// The version that it led to.
    pub version: Version,
    /// Whose updates are not in it any more, by id.
    pub without: Vec<LearnerId>,
    /// Checksum of Θ and the momentum as they are kept, see [`super::kept`].
    pub kept: u64,
    /// Checksum of the coded change of Θ̂.
    pub checksum: u64,
    /// Digest of the new Θ̂.
    pub digest: u64,
    /// How far Θ moved, as L2 norm.
    pub norm: f64,
}

/// One update in a merge, and where its sender stood.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Who sent it.
    pub learner: LearnerId,
    /// As its sender numbered it.
    pub serial: Serial,
    /// The version that its sender held.
    pub base: Version,
    /// Steps since its sender was last merged.
    pub steps: u32,
    /// Tokens of these steps, as counted.
    pub tokens: u64,
    /// Its weight against the others'.
    pub weight: f64,
    /// Checksum of its body.
    pub checksum: u64,
    /// Time since the update of its sender before this one came that was merged on this fragment, in milliseconds;
    /// `None` for the first one that a process of the syncer sees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<u64>,
    /// It counted as far as an update of so many steps; `None` for its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach_steps: Option<u32>,
    /// Its sender had shown by then that it trains.
    #[serde(default, skip_serializing_if = "is_false")]
    pub is_shown: bool,
}

fn is_false(is: &bool) -> bool {
    !is
}

fn is_zero(weight: &f64) -> bool {
    *weight == 0.0
}

impl MergeEntry {
    /// What became of the update of each learner, by id.
    pub(crate) fn settled(&self) -> impl Iterator<Item = Settled> {
        let &Self { round, fragment, version, .. } = self;
        let total = self.absent + self.parts.iter().map(|part| part.weight).sum::<f64>();
        self.parts.iter().map(move |&Part { learner, serial, tokens, weight, .. }| {
            let fate = Fate::Merged { version, weight: (weight / total) as f32, tokens };
            Settled { round: Some(round), fragment, learner, serial, tokens, fate }
        })
    }
}

impl Part {
    /// What a step took its sender, in milliseconds: the time since its update before this one over the steps of this
    /// one; `None` for the first.
    pub(crate) fn step_ms(&self) -> Option<f64> {
        self.after_ms.map(|after_ms| after_ms as f64 / f64::from(self.steps.max(1)))
    }
}

impl Entry {
    /// Its name, as the tape has it.
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

    /// Goal: a merge is read as it was written, and leaves out what is empty.
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
