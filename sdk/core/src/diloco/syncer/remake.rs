//! What a fragment would be if some learners had never sent anything.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::again::{RecoveryError, again, read_kept};
use crate::diloco::{
    Codec, Correction, Entry, FragmentState, Fragments, MergeEntry, MergeError, MergeFailure, MergeOutcome,
    Segment,
};
use crate::wire::{FragmentId, LearnerId, Round, Version};

/// A fragment on its way from an earlier state through its merges, without the updates of some learners.
///
/// Updates are progress that adds up, from whatever version it was made, so those of the others count as they did.
/// Weights, radii and outer steps are as they were.
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
    /// What all `fragments`, in `from`, `[P]`, would be at the versions `until`, `[P]`.
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

    /// From `state` of `fragment` up to version `until`. `None` if there is no such fragment.
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

    /// Takes in the next entry of the tape, of whatever it tells. `body` gives the next of what is kept with it, of so
    /// many bytes, or says why it cannot; it is asked for all of it, or for nothing.
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

    /// Whether it has come to where it was to.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state.version == self.until
    }

    /// The fragment, and its Θ, `[fragment_len]`.
    #[must_use]
    pub fn theta(&self) -> (FragmentId, &[f32]) {
        (self.fragment, &self.state.theta)
    }

    fn is_ahead(&self, fragment: FragmentId, version: Version) -> bool {
        fragment == self.fragment && version > self.state.version && version <= self.until
    }
}

/// Whose updates did harm, and from where on.
#[derive(Clone, Debug)]
pub struct Undo {
    /// The fragments when all was well, `[P]`; [`FragmentState::without_hat`] is enough.
    pub from: Vec<FragmentState>,
    /// The newest row of the tape by then, for whoever does the [`RemakeJob`]s.
    pub after: u64,
    /// Whose updates are left out from there on.
    pub culprits: Vec<LearnerId>,
}

/// Who has an update in `entry`, if it is a merge.
pub fn senders(entry: &Entry) -> impl Iterator<Item = LearnerId> {
    let parts = if let Entry::Merged(MergeEntry { parts, .. }) = entry { &parts[..] } else { &[] };
    parts.iter().map(|part| part.learner)
}

/// A fragment to be undone: have [`Self::remake`] follow the tape from where the undoing goes back to, then
/// [`Self::run`] it, and bring the result back as a merge's.
#[derive(Clone, Debug)]
pub struct RemakeJob {
    /// The way from there to here.
    pub remake: Remake,
    /// The row of the tape after which it begins.
    pub after: u64,
    pub(super) round: Round,
    pub(super) now: FragmentState,
}

impl RemakeJob {
    /// The fragment.
    #[must_use]
    pub fn fragment(&self) -> FragmentId {
        self.remake.fragment
    }

    /// The round.
    #[must_use]
    pub fn round(&self) -> Round {
        self.round
    }

    /// Leads learners to what the fragment would be.
    ///
    /// # Errors
    /// [`MergeFailure`] with the state as it was: [`MergeError::Unread`] if the tape was not followed to its end.
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
