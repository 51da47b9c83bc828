//! One learner's account in the ledger.

use serde::{Deserialize, Serialize};

use super::FateCounts;
use crate::diloco::Suspicion;
use crate::wire::{Fingerprint, Serial};

/// Merged time after which a learner is no longer a newcomer, in milliseconds, as the mean over fragments. The limit
/// is lower while no connected learner was merged for twice as long: see [`super::Ledger::is_newcomer`]. Constant of
/// ours.
pub const PROBATION_MS: u64 = 600_000;
/// Minimum turns of all fragments in [`PROBATION_MS`]. The time between two updates counts up to this part of it, so
/// that waiting alone ends no probation. Constant of ours.
pub(super) const PROBATION_TURNS: u64 = 8;
pub(crate) const TURN_MS_MAX: u64 = PROBATION_MS / PROBATION_TURNS;

/// One learner's account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// Fingerprint of the learner's identity.
    pub(super) identity: [u8; 16],
    /// Display name.
    pub name: String,
    /// Display name of the device.
    pub device: String,
    /// Claimed tokens of training, at most those leased to the learner.
    #[serde(rename = "trained_tokens")]
    pub tokens_trained: u64,
    /// Claimed tokens of the present process.
    pub(super) reported_tokens: u64,
    /// Tokens that were leased to the learner, without those that were returned untouched.
    pub leased_tokens: u64,
    /// Tokens merged, by fragment, `[P]`.
    #[serde(rename = "merged_tokens")]
    pub tokens_merged: Vec<u64>,
    /// Last merged update, by fragment, `[P]`.
    pub merged: Vec<Option<Serial>>,
    /// Updates received, regardless of their fates.
    pub updates: u64,
    /// Fates of these updates.
    pub fates: FateCounts,
    /// Refusals since the last merged update.
    pub refused_in_a_row: u32,
    /// Merged time in milliseconds, summed over fragments.
    pub(super) merged_ms: u64,
    /// Times that its updates were found harmful by the held-out loss.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub harms: u32,
    /// Reason for suspicion; `None` if the learner is not suspected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Suspicion>,
    /// Part of `tokens_merged` that was merged under suspicion, by fragment, `[P]` or empty. These tokens are
    /// credited to no learner.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) doubted_tokens: Vec<u64>,
    /// Merged tokens that the schedule does not count yet, by fragment, `[P]` or empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) early_tokens: Vec<u64>,
    /// Tokens that were merged in a known time, and that time in milliseconds, summed over fragments.
    pub(super) pace: (u64, u64),
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Account {
    /// Opens an account for `identity` over `fragments` fragments, with `slack_tokens` countable tokens beyond its
    /// leases.
    pub(super) fn new(identity: [u8; 16], fragments: usize, slack_tokens: u64) -> Self {
        Self {
            identity,
            name: String::new(),
            device: String::new(),
            tokens_trained: 0,
            reported_tokens: 0,
            leased_tokens: slack_tokens,
            tokens_merged: vec![0; fragments],
            merged: vec![None; fragments],
            updates: 0,
            fates: FateCounts::default(),
            refused_in_a_row: 0,
            merged_ms: 0,
            harms: 0,
            doubt: None,
            doubted_tokens: Vec::new(),
            early_tokens: Vec::new(),
            pace: (0, 0),
        }
    }

    /// Changes the display names of the learner and its device.
    pub(super) fn rename(&mut self, name: &str, device: &str) {
        (self.name, self.device) = (name.into(), device.into());
    }

    /// Returns the short name of the learner's key.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.identity)
    }

    /// Returns the merged tokens on fragment `p` that count.
    pub(super) fn tokens_counted(&self, p: usize) -> u64 {
        let of = |tokens: &[u64]| tokens.get(p).copied().unwrap_or_default();
        of(&self.tokens_merged).saturating_sub(of(&self.doubted_tokens))
    }

    /// Returns the merged tokens on fragment `p` that the schedule does not count yet.
    pub(super) fn early_tokens(&self, p: usize) -> u64 {
        self.early_tokens.get(p).copied().unwrap_or_default()
    }

    /// Returns true if no update of the learner was merged.
    #[must_use]
    pub(crate) fn is_stranger(&self) -> bool {
        self.tokens_merged.iter().all(|&tokens| tokens == 0)
    }

    /// Returns true if no update of the learner was merged, and none is pending.
    pub(super) fn is_blank(&self) -> bool {
        self.is_stranger() && self.updates == self.fates.total()
    }

    /// Returns the trained tokens: the claim, or the merged tokens if they exceed it because a report is still
    /// missing.
    #[must_use]
    pub fn trained(&self) -> u64 {
        self.tokens_merged.iter().copied().fold(self.tokens_trained, u64::max)
    }
}
