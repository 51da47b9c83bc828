//! One learner's account in the ledger.

use serde::{Deserialize, Serialize};

use super::FateCounts;
use crate::diloco::Doubt;
use crate::wire::{Fingerprint, Serial};

/// For so long must updates of a learner be merged before it counts as known, in milliseconds, on each fragment. It is
/// less while nobody who is there was merged for twice as long: see [`super::Ledger::is_newcomer`]. Constant of ours.
pub const PROBATION_MS: u64 = 600_000;
/// In so many turns of all fragments at least: the time since the update before counts up to this part of
/// [`PROBATION_MS`], so that nobody is known for having waited. Constant of ours.
pub(super) const PROBATION_TURNS: u64 = 8;
pub(crate) const TURN_MS_MAX: u64 = PROBATION_MS / PROBATION_TURNS;

/// One learner's account.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Account {
    /// The fingerprint of its identity.
    pub(super) identity: [u8; 16],
    /// Its name for people.
    pub name: String,
    /// What it computes with, for people.
    pub device: String,
    /// Tokens that it says it trained on, at most those leased to it.
    #[serde(rename = "trained_tokens")]
    pub tokens_trained: u64,
    /// What its present process said of that.
    pub(super) reported_tokens: u64,
    /// Tokens that were leased to it, but for those that came back untouched.
    pub leased_tokens: u64,
    /// Tokens merged, by fragment, `[P]`.
    #[serde(rename = "merged_tokens")]
    pub tokens_merged: Vec<u64>,
    /// Its last update that was merged, by fragment, `[P]`.
    pub merged: Vec<Option<Serial>>,
    /// Updates taken in, whatever became of them.
    pub updates: u64,
    /// What became of them.
    pub fates: FateCounts,
    /// Refusals since the last update that was merged.
    pub refused_in_a_row: u32,
    /// For how long it was merged, in milliseconds, all fragments together.
    pub(super) merged_ms: u64,
    /// How often its updates did harm, by the loss that is measured.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub harms: u32,
    /// Why it is suspected of not training what it says it does; `None` if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
    /// Tokens of `tokens_merged` that came while it was suspected, by fragment, `[P]` or none: nobody is credited with
    /// them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) doubted_tokens: Vec<u64>,
    /// Tokens of it that the schedule does not count yet, by fragment, `[P]` or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) early_tokens: Vec<u64>,
    /// Tokens that were merged in a time that is known, and that time in milliseconds, all fragments together.
    pub(super) pace: (u64, u64),
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Account {
    /// That of a learner with this identity, of `fragments` fragments, who may count `slack_tokens` beyond its leases.
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

    /// Has it called `name` from now on, which computes with `device`.
    pub(super) fn rename(&mut self, name: &str, device: &str) {
        (self.name, self.device) = (name.into(), device.into());
    }

    /// The short name of its key.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint(self.identity)
    }

    /// Tokens of it that are merged on the fragment of this index, and count.
    pub(super) fn tokens_counted(&self, p: usize) -> u64 {
        let of = |tokens: &[u64]| tokens.get(p).copied().unwrap_or_default();
        of(&self.tokens_merged).saturating_sub(of(&self.doubted_tokens))
    }

    /// Tokens of it that are merged on the fragment of this index, and that the schedule does not count yet.
    pub(super) fn early_tokens(&self, p: usize) -> u64 {
        self.early_tokens.get(p).copied().unwrap_or_default()
    }

    /// Nothing of it is merged.
    #[must_use]
    pub(crate) fn is_stranger(&self) -> bool {
        self.tokens_merged.iter().all(|&tokens| tokens == 0)
    }

    /// Nothing of it is merged, nor can be of what it has sent.
    pub(super) fn is_blank(&self) -> bool {
        self.is_stranger() && self.updates == self.fates.total()
    }

    /// Tokens trained on: what it said, or what was merged where its word is not in yet.
    #[must_use]
    pub fn trained(&self) -> u64 {
        self.tokens_merged.iter().copied().fold(self.tokens_trained, u64::max)
    }
}
