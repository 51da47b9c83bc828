//! From a state of a run and what its tape has after it to where the tape ends: what was booked is booked again, and
//! each merge is computed again, to the bit.

use std::sync::Arc;

use super::{Syncer, SyncerConfig, SyncerError, SyncerRecord};
use crate::diloco::{
    Codec, Entry, FragmentState, Fragments, Layout, LeaseError, MergeEntry, MergeError, MergeJob,
    MergeOutcome, Part, QuantError, Weighted, books, checksum,
};
use crate::wire::{FragmentId, LearnerId, Version};

/// A run on its way along a tape.
#[derive(Clone, Debug)]
pub struct Recovery {
    record: SyncerRecord,
    fragments: Arc<Fragments>,
    codec: Codec,
    states: Vec<FragmentState>,
}

/// Why an entry does not follow on what came before it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecoveryError {
    /// A lease is not the next one.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// There is no such fragment.
    #[error("there is no fragment {0}")]
    NoFragment(FragmentId),
    /// The version that was merged onto is not the one that is there.
    #[error("fragment {fragment} is at version {actual}, and was merged onto version {expected}")]
    Gap {
        /// The fragment.
        fragment: FragmentId,
        /// The version that the entry is about.
        expected: Version,
        /// The version that is there.
        actual: Version,
    },
    /// The body of an update is not there.
    #[error("the update of learner {0} is missing: {1}")]
    Missing(LearnerId, String),
    /// The body of an update is not the one that was merged.
    #[error("the update of learner {0} is damaged: its checksum is {1:016x} and was {2:016x}")]
    Damaged(LearnerId, u64, u64),
    /// The body of an update is none.
    #[error("the update of learner {0} cannot be read: {1}")]
    Body(LearnerId, QuantError),
    /// It cannot be merged.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// Merged again, it gives something else.
    #[error(
        "merged again, fragment {fragment} at version {version} has {what} {actual:016x} and had {expected:016x}"
    )]
    Diverged {
        /// The fragment.
        fragment: FragmentId,
        /// The version.
        version: Version,
        /// What differs.
        what: &'static str,
        /// As it is now.
        actual: u64,
        /// As the tape has it.
        expected: u64,
    },
}

impl Recovery {
    /// Begins at `record`. Each of `states` is as it was then, or later.
    ///
    /// # Errors
    /// Those of [`Syncer::restore`].
    pub fn new(
        record: SyncerRecord,
        layout: &Layout,
        states: Vec<FragmentState>,
    ) -> Result<Self, SyncerError> {
        let fragments = record.check(layout, &states)?;
        let codec = Codec::new(&record.spec.exchange)?;
        Ok(Self { record, fragments, codec, states })
    }

    /// Follows one entry. `body` gives what a learner sent for a merge, or says why it cannot. A merge is computed
    /// again, and given, unless the fragment was further already.
    ///
    /// # Errors
    /// Each variant of [`RecoveryError`]; then the run is where the entry before left it, as far as parameters go.
    pub fn follow(
        &mut self,
        entry: &Entry,
        body: impl FnMut(&Part) -> Result<Vec<u8>, String>,
    ) -> Result<Option<MergeOutcome>, RecoveryError> {
        let outcome = match entry {
            Entry::Merged(merge) => self.merge(merge, body)?,
            _ => None,
        };
        let SyncerRecord { leases, ledger, spec, .. } = &mut self.record;
        books::follow(entry, leases, ledger, spec.model.context)?;
        self.turn(entry);
        Ok(outcome)
    }

    /// The length of the body of an update on `fragment`, in bytes; 0 if there is no such fragment.
    #[must_use]
    pub fn body_bytes(&self, fragment: FragmentId) -> usize {
        self.fragments.segments(fragment).map_or(0, |segments| self.codec.body_bytes(segments))
    }

    /// The run as it is.
    #[must_use]
    pub fn record(&self) -> &SyncerRecord {
        &self.record
    }

    /// The fragments as they are, `[P]`.
    #[must_use]
    pub fn states(&self) -> &[FragmentState] {
        &self.states
    }

    /// The run as it is, to go on from.
    #[must_use]
    pub fn into_parts(self) -> (SyncerRecord, Vec<FragmentState>) {
        (self.record, self.states)
    }

    fn turn(&mut self, entry: &Entry) {
        let record = &mut self.record;
        match entry {
            Entry::Began { next_round, .. } => record.next_round = *next_round,
            Entry::Merged(MergeEntry { round, fragment, .. }) => {
                record.rounds_merged += 1;
                record.next_round = record.next_round.max(round.0 + 1);
                record.next_fragment = FragmentId((fragment.0 + 1) % self.fragments.count());
            }
            Entry::Abandoned { round, .. } => {
                record.rounds_abandoned += 1;
                record.next_round = record.next_round.max(round.0 + 1);
            }
            Entry::Held { held } => record.held = *held,
            Entry::Paced { learner, share } => record.reins.pace(*learner, *share),
            Entry::Dropped { learner, wait_ms } => record.reins.send_away(*learner, *wait_ms),
            Entry::Finishing => record.finishing = true,
            Entry::Finished => record.finished = true,
            Entry::Enrolled { .. }
            | Entry::Forgotten { .. }
            | Entry::Restarted { .. }
            | Entry::Leased { .. }
            | Entry::Reported { .. }
            | Entry::Returned { .. }
            | Entry::Settled { .. } => {}
        }
    }

    fn merge(
        &mut self,
        merge: &MergeEntry,
        mut body: impl FnMut(&Part) -> Result<Vec<u8>, String>,
    ) -> Result<Option<MergeOutcome>, RecoveryError> {
        let &MergeEntry { round, fragment, base, version, rule, outer, absent, .. } = merge;
        let no_fragment = || RecoveryError::NoFragment(fragment);
        let segments = self.fragments.segments(fragment).ok_or_else(no_fragment)?;
        let state = self.states.get_mut(usize::from(fragment.0)).ok_or_else(no_fragment)?;
        if version <= state.version {
            return Ok(None);
        }
        if base != state.version {
            return Err(RecoveryError::Gap { fragment, expected: base, actual: state.version });
        }
        let updates = merge.parts.iter().map(|part| {
            let learner = part.learner;
            let bytes = body(part).map_err(|why| RecoveryError::Missing(learner, why))?;
            let sum = checksum(&bytes);
            if sum != part.checksum {
                return Err(RecoveryError::Damaged(learner, sum, part.checksum));
            }
            let body =
                self.codec.check(segments, bytes).map_err(|error| RecoveryError::Body(learner, error))?;
            let steps = part.reach_steps.unwrap_or(part.steps);
            Ok(Weighted { learner, weight: part.weight, steps, body })
        });
        let updates = updates.collect::<Result<_, _>>()?;
        let (codec, segments) = (self.codec, segments.to_vec());
        // Copies of the state cost nothing, and this one is given up before the job changes it.
        let before = std::mem::replace(state, FragmentState::new(Vec::new()));
        let radii = merge.radii.clone();
        let job = MergeJob {
            round,
            fragment,
            state: before,
            absent,
            updates,
            segments,
            codec,
            rule,
            radii,
            outer,
            next: version,
        };
        let outcome = match job.run() {
            Ok(outcome) => outcome,
            Err(failure) => {
                *state = failure.state;
                return Err(failure.error.into());
            }
        };
        *state = outcome.state.clone();
        let found = [
            ("the change's checksum", outcome.checksum, merge.checksum),
            ("the digest of Θ̂", outcome.digest, merge.digest),
            ("the norm", outcome.norm.to_bits(), merge.norm.to_bits()),
        ];
        match found.into_iter().find(|(_, actual, expected)| actual != expected) {
            Some((what, actual, expected)) => {
                Err(RecoveryError::Diverged { fragment, version, what, actual, expected })
            }
            None => Ok(Some(outcome)),
        }
    }
}

impl Syncer {
    /// Goes on where the tape ends, in a process that started `started_s` seconds after 1970 began. Nothing that a
    /// learner was told is lost then, so nobody may count more than was leased.
    ///
    /// # Errors
    /// Those of [`Self::restore`].
    pub fn go_on(
        recovered: Recovery,
        layout: &Layout,
        config: SyncerConfig,
        started_s: u32,
    ) -> Result<Self, SyncerError> {
        let (record, states) = recovered.into_parts();
        Self::reopen(record, layout, config, states, started_s, 0)
    }
}
