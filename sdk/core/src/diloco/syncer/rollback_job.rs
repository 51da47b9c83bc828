//! Replay of a fragment without the updates of some learners.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::recompute::{RecoveryError, again, read_kept};
use crate::diloco::{
    Codec, Correction, Entry, FragmentState, Fragments, MergeEntry, MergeError, MergeFailure, MergeOutcome,
    Segment,
};
use crate::wire::{FragmentId, LearnerId, Round, Version};

/// Replay of a fragment from an earlier state, without the updates of some learners.
///
/// Updates are additive progress, whatever version they started from, so the others count as before. Weights, radii and
/// outer steps stay unchanged.
#[derive(Clone, Debug)]
pub struct Remake {
    fragment: FragmentId,
    segments: Vec<Segment>,
    codec: Codec,
    state: FragmentState,
    without: BTreeSet<LearnerId>,
    until: Version,
}

impl Remake {
    /// Starts a replay of each of the `fragments` from `from`, `[P]`, to the versions `until`, `[P]`.
    #[must_use]
    pub fn all(
        fragments: &Fragments,
        codec: Codec,
        from: &[FragmentState],
        without: &BTreeSet<LearnerId>,
        until: &[Version],
    ) -> Vec<Self> {
        let places = fragments.ids().zip(from.iter().cloned()).zip(until);
        let remake = |((fragment, state), until): ((FragmentId, FragmentState), &Version)| {
            Self::new(fragments, codec, (fragment, state), without.clone(), *until)
        };
        places.filter_map(remake).collect()
    }

    /// Starts a replay of `fragment` from `state` to version `until`. `None` if the fragment does not exist.
    pub(super) fn new(
        fragments: &Fragments,
        codec: Codec,
        (fragment, state): (FragmentId, FragmentState),
        without: BTreeSet<LearnerId>,
        until: Version,
    ) -> Option<Self> {
        let segments = fragments.segments(fragment)?.to_vec();
        Some(Self { fragment, segments, codec, state, without, until })
    }

    /// Takes the next entry of the tape, of any kind. `body` returns the next data recorded with it, of the given
    /// number of bytes, or an error. It is called for all data of the entry or for none.
    ///
    /// # Errors
    /// Each variant of [`RecoveryError`] but `Lease` and `Diverged`.
    pub fn follow(
        &mut self,
        entry: &Entry,
        body: impl FnMut(usize) -> Result<Vec<u8>, String>,
    ) -> Result<(), RecoveryError> {
        match entry {
            Entry::Merged(merge) if self.is_ahead(merge.fragment, merge.version) => {
                again(&self.codec, &self.segments, &mut self.state, merge, &self.without, body)?;
            }
            Entry::Remade(remade) if self.is_ahead(remade.fragment, remade.version) => {
                let [theta, momentum] = read_kept(remade, self.state.theta.len(), body)?;
                let (hat, version) = (Arc::clone(&self.state.hat), remade.version);
                self.state = FragmentState { version, theta, hat, momentum };
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns true once the replay has reached its last version.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.version == self.until
    }

    /// Returns the fragment and its Θ, `[fragment_len]`.
    #[must_use]
    pub fn theta(&self) -> (FragmentId, &[f32]) {
        (self.fragment, &self.state.theta)
    }

    fn is_ahead(&self, fragment: FragmentId, version: Version) -> bool {
        fragment == self.fragment && version > self.state.version && version <= self.until
    }
}

/// Culprits and the starting point of a rollback.
#[derive(Clone, Debug)]
pub struct Undo {
    /// The last fragments with a normal loss, `[P]`; [`FragmentState::without_hat`] is enough.
    pub from: Vec<FragmentState>,
    /// The newest row of the tape at that time, for the process that runs the [`RemakeJob`]s.
    pub after: u64,
    /// Learners whose updates are left out from there on.
    pub culprits: Vec<LearnerId>,
}

/// Returns the senders of the updates in `entry`; empty if it is no merge.
pub fn senders(entry: &Entry) -> impl Iterator<Item = LearnerId> {
    let parts = if let Entry::Merged(MergeEntry { parts, .. }) = entry { &parts[..] } else { &[] };
    parts.iter().map(|part| part.learner)
}

/// Rollback of one fragment. Let [`Self::remake`] follow the tape from its starting point, then [`Self::run`] the job
/// and return the result like that of a merge.
#[derive(Clone, Debug)]
pub struct RemakeJob {
    /// Replay from the starting point to the present.
    pub remake: Remake,
    /// The row of the tape after which the replay begins.
    pub after: u64,
    pub(super) round: Round,
    pub(super) now: FragmentState,
}

impl RemakeJob {
    /// Returns the fragment.
    #[must_use]
    pub fn fragment(&self) -> FragmentId {
        self.remake.fragment
    }

    /// Returns the round.
    #[must_use]
    pub fn round(&self) -> Round {
        self.round
    }

    /// Computes the change that leads learners to the replayed state.
    ///
    /// # Errors
    /// [`MergeFailure`] with the unchanged state: [`MergeError::Unread`] if the tape was not followed to its end.
    pub fn run(self) -> Result<MergeOutcome, Box<MergeFailure>> {
        let Self { remake, round, now, .. } = self;
        if !remake.is_done() {
            let (fragment, error) = (remake.fragment, MergeError::Unread);
            return Err(Box::new(MergeFailure { round, fragment, state: now, error }));
        }
        let Remake { fragment, segments, codec, state: FragmentState { theta, momentum, .. }, .. } = remake;
        let next = Version(round.0);
        Correction { round, fragment, state: now, theta, momentum, segments, codec, next }.run()
    }
}
