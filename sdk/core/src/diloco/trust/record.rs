//! Trust record of one learner: the part of its trust that survives a restart, and the resulting level.

use serde::{Deserialize, Serialize};

use crate::diloco::Suspicion;

/// Merged time that ends a learner's probation, in milliseconds, as the mean over fragments. In a young run less is
/// needed: see `TrustRecord::level`. Our own constant.
pub const PROBATION_MS: u64 = 600_000;
/// Merged updates per fragment that probation needs. Our own constant.
const PROBATION_TURNS: u64 = 8;
/// Longest time between two merged updates that is credited as merged time, in milliseconds. Waiting without updates
/// therefore does not end a probation.
pub(crate) const TURN_MS_MAX: u64 = PROBATION_MS / PROBATION_TURNS;
/// Number of convictions after which a learner is banned until the owner pardons it.
pub const CONVICTIONS_MAX: u32 = 2;

/// Level of trust in a learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrustLevel {
    /// The learner has too few merged updates or too little merged time. Its updates have little weight.
    Newcomer,
    /// The learner's updates have their full weight.
    Trusted,
    /// Loss checks do not show that the learner trains. Its updates have almost no weight.
    Suspected,
    /// The learner's updates did harm before, and it is on probation again.
    Convicted,
    /// The learner's updates did harm. It is excluded for a while, or until the owner pardons it.
    Banned,
}

impl TrustLevel {
    /// Returns true if updates of the learner have their full weight. At all other levels they are limited as those of
    /// newcomers.
    #[must_use]
    pub fn is_trusted(self) -> bool {
        self == Self::Trusted
    }
}

/// Trust record of one learner, part of its account.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrustRecord {
    /// Merged time since the last conviction, summed over fragments, in milliseconds.
    merged_ms: u64,
    /// Number of convictions since the last pardon.
    #[serde(rename = "harms", default, skip_serializing_if = "is_zero")]
    convictions: u32,
    #[serde(rename = "doubt", default, skip_serializing_if = "Option::is_none")]
    suspicion: Option<Suspicion>,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl TrustRecord {
    /// Records a merged update that arrived `after_ms` after the previous one on its fragment.
    pub(in crate::diloco) fn merged(&mut self, after_ms: u64) {
        self.merged_ms = self.merged_ms.saturating_add(after_ms.min(TURN_MS_MAX));
    }

    /// Records a suspicion, or clears it with `None`. Returns true if the learner became suspected or was cleared.
    pub(in crate::diloco) fn suspect(&mut self, suspicion: Option<Suspicion>) -> bool {
        std::mem::replace(&mut self.suspicion, suspicion).is_some() != suspicion.is_some()
    }

    /// Records a conviction. The learner's probation begins again.
    pub(in crate::diloco) fn convict(&mut self) {
        self.convictions = self.convictions.saturating_add(1);
        self.merged_ms = 0;
    }

    /// Forgets all convictions. Returns true if there was any.
    pub(in crate::diloco) fn pardon(&mut self) -> bool {
        std::mem::take(&mut self.convictions) > 0
    }

    /// Returns the level of a learner with `merged` merged updates in a run with `fragments` fragments, except
    /// `Banned`.
    ///
    /// Probation lasts until the learner has [`PROBATION_TURNS`] merged updates per fragment and a merged time of
    /// [`PROBATION_MS`], or half of `longest_ms` if that is shorter. `longest_ms` is the longest merged time of a live
    /// learner. Without it, all learners of a young run would be newcomers, and the first that ends its probation would
    /// dominate a merge.
    pub(in crate::diloco) fn level(&self, merged: u64, fragments: usize, longest_ms: u64) -> TrustLevel {
        let is_short = merged < PROBATION_TURNS * fragments as u64;
        if self.suspicion.is_some() {
            TrustLevel::Suspected
        } else if !is_short && self.merged_ms(fragments) >= needed_ms(longest_ms) {
            TrustLevel::Trusted
        } else if self.convictions > 0 {
            TrustLevel::Convicted
        } else {
            TrustLevel::Newcomer
        }
    }

    /// Returns the merged time in milliseconds, as the mean over `fragments` fragments.
    pub(in crate::diloco) fn merged_ms(&self, fragments: usize) -> u64 {
        self.merged_ms / (fragments as u64).max(1)
    }

    /// Returns the number of convictions since the last pardon.
    #[must_use]
    pub fn convictions(&self) -> u32 {
        self.convictions
    }

    /// Returns the reason to suspect the learner; `None` if it is not suspected.
    #[must_use]
    pub fn suspicion(&self) -> Option<Suspicion> {
        self.suspicion
    }

    /// Returns true if the learner is banned until the owner pardons it.
    #[must_use]
    pub fn is_banned(&self) -> bool {
        self.convictions >= CONVICTIONS_MAX
    }
}

/// Returns the merged time that ends a probation, in milliseconds, if the longest merged time of a live learner is
/// `longest_ms`.
pub(super) fn needed_ms(longest_ms: u64) -> u64 {
    PROBATION_MS.min(longest_ms / 2)
}

/// Trust in the sender of an update, which limits the weight of the update.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "SenderFlags", into = "SenderFlags")]
pub struct SenderTrust {
    /// Level of the sender. Serialisation turns `Convicted` and `Banned` into `Newcomer`, which has the same weight.
    pub level: TrustLevel,
    /// Whether loss checks show that the sender trains; `None` without a verdict. Next to a proven learner, an unproven
    /// one has at most the mean share of a merge.
    pub is_proven: Option<bool>,
}

/// Serialised form of a [`SenderTrust`].
#[derive(Serialize, Deserialize)]
struct SenderFlags {
    is_new: bool,
    is_doubted: bool,
    is_shown: Option<bool>,
}

impl From<SenderTrust> for SenderFlags {
    fn from(SenderTrust { level, is_proven }: SenderTrust) -> Self {
        let is_doubted = level == TrustLevel::Suspected;
        Self { is_new: !level.is_trusted(), is_doubted, is_shown: is_proven }
    }
}

impl From<SenderFlags> for SenderTrust {
    fn from(SenderFlags { is_new, is_doubted, is_shown }: SenderFlags) -> Self {
        let level = match (is_new, is_doubted) {
            (false, _) => TrustLevel::Trusted,
            (true, false) => TrustLevel::Newcomer,
            (true, true) => TrustLevel::Suspected,
        };
        Self { level, is_proven: is_shown }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TURNS: u64 = PROBATION_TURNS;
    const SUSPICION: Option<Suspicion> = Some(Suspicion { looks: 24 });

    /// Returns the level with one fragment, enough merged updates, and the full probation time.
    fn level(record: &TrustRecord) -> TrustLevel {
        record.level(TURNS, 1, u64::MAX)
    }

    fn trusted() -> TrustRecord {
        let mut record = TrustRecord::default();
        assert_eq!(level(&record), TrustLevel::Newcomer);
        (0..TURNS).for_each(|_| record.merged(u64::MAX));
        assert_eq!(level(&record), TrustLevel::Trusted);
        record
    }

    #[test]
    fn a_newcomer_needs_merged_updates_and_merged_time() {
        let record = trusted();
        assert_eq!(record.level(TURNS - 1, 1, u64::MAX), TrustLevel::Newcomer, "too few updates");
        assert_eq!(
            record.level(2 * TURNS, 2, u64::MAX),
            TrustLevel::Newcomer,
            "half of the time, as the mean"
        );
        assert_eq!(record.level(2 * TURNS, 2, PROBATION_MS), TrustLevel::Trusted, "in a young run");
        assert_eq!(TrustRecord::default().level(TURNS, 1, 1), TrustLevel::Trusted);
    }

    #[test]
    fn a_suspicion_outweighs_every_level_and_leaves_no_trace_once_cleared() {
        for mut record in [TrustRecord::default(), trusted()] {
            let before = record.clone();
            assert!(!record.suspect(None) && record.suspect(SUSPICION));
            assert!(!record.suspect(Some(Suspicion { looks: 30 })), "it was suspected before");
            assert_eq!(level(&record), TrustLevel::Suspected);
            assert!(record.suspect(None));
            assert_eq!(record, before);
        }
    }

    #[test]
    fn a_convicted_learner_passes_probation_again() {
        let mut record = trusted();
        record.convict();
        assert_eq!((level(&record), record.is_banned()), (TrustLevel::Convicted, false));
        (0..TURNS).for_each(|_| record.merged(u64::MAX));
        assert_eq!(level(&record), TrustLevel::Trusted);
        record.suspect(SUSPICION);
        assert_eq!(level(&record), TrustLevel::Suspected);
    }

    #[test]
    fn only_a_pardon_lets_a_learner_back_after_the_last_conviction() {
        let mut record = trusted();
        assert!(!record.pardon(), "nothing to pardon");
        (0..CONVICTIONS_MAX).for_each(|_| record.convict());
        assert!(record.is_banned());
        assert!(record.pardon());
        assert_eq!((level(&record), record.is_banned()), (TrustLevel::Newcomer, false));
    }

    #[test]
    fn a_sender_keeps_its_encoding_and_its_weight() {
        use TrustLevel::{Banned, Convicted, Newcomer, Suspected, Trusted};
        let levels = [Newcomer, Trusted, Suspected, Convicted, Banned];
        let read_as = [Newcomer, Trusted, Suspected, Newcomer, Newcomer];
        for (level, expected) in levels.into_iter().zip(read_as) {
            let (is_new, is_doubted) = (level != Trusted, level == Suspected);
            let json = serde_json::to_value(SenderTrust { level, is_proven: Some(true) }).unwrap();
            let flags = serde_json::json!({ "is_new": is_new, "is_doubted": is_doubted, "is_shown": true });
            assert_eq!(json, flags);
            let read: SenderTrust = serde_json::from_value(json).unwrap();
            assert_eq!(read, SenderTrust { level: expected, is_proven: Some(true) });
        }
    }
}
