//! Recovery: replays the tape after a snapshot to its end. It books each entry again and recomputes each merge to the
//! bit.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::recompute::{RecoveryError, again, at_base, read_kept};
use super::{Syncer, SyncerConfig, SyncerError, SyncerRecord};
use crate::diloco::{
    Codec, Correction, Entry, FragmentState, Fragments, Layout, MergeEntry, MergeOutcome, RemadeEntry,
    Segment, accounting,
};
use crate::wire::{FragmentId, Version};

/// Replay of a run along its tape.
#[derive(Clone, Debug)]
pub struct Recovery {
    record: SyncerRecord,
    fragments: Arc<Fragments>,
    codec: Codec,
    states: Vec<FragmentState>,
}

impl Recovery {
    /// Starts at `record`. Each of `states` is of the same time or newer.
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

    /// Replays one entry. `body` returns the next data recorded with it, of the given number of bytes, or an error: the
    /// updates of a merge, in order, or the result of a rollback. A merge is recomputed and returned, unless the
    /// fragment is already past it.
    ///
    /// # Errors
    /// Each variant of [`RecoveryError`]; the parameters are then as before the entry, except that a merge that
    /// diverged is applied.
    pub fn follow(
        &mut self,
        entry: &Entry,
        body: impl FnMut(usize) -> Result<Vec<u8>, String>,
    ) -> Result<Option<MergeOutcome>, RecoveryError> {
        let outcome = match entry {
            Entry::Merged(merge) => self.merge(merge, body)?,
            Entry::Remade(remade) => self.remade(remade, body)?,
            _ => None,
        };
        let SyncerRecord { leases, ledger, spec, .. } = &mut self.record;
        accounting::follow(entry, leases, ledger, spec.model.context)?;
        self.turn(entry);
        Ok(outcome)
    }

    /// Returns the current state of the run.
    #[must_use]
    pub fn record(&self) -> &SyncerRecord {
        &self.record
    }

    /// Returns the current fragments, `[P]`.
    #[must_use]
    pub fn states(&self) -> &[FragmentState] {
        &self.states
    }

    /// Returns the current state and fragments, to resume the run from.
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
            Entry::Remade(RemadeEntry { round, .. }) => {
                record.next_round = record.next_round.max(round.0 + 1);
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
            | Entry::Blamed { .. }
            | Entry::Doubted { .. }
            | Entry::Pardoned { .. }
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
        body: impl FnMut(usize) -> Result<Vec<u8>, String>,
    ) -> Result<Option<MergeOutcome>, RecoveryError> {
        let &MergeEntry { fragment, version, .. } = merge;
        let codec = self.codec;
        let Some((segments, state)) = self.behind(fragment, version)? else { return Ok(None) };
        let Some(outcome) = again(&codec, &segments, state, merge, &BTreeSet::new(), body)? else {
            return Ok(None);
        };
        let found = [
            ("the change's checksum", outcome.checksum, merge.checksum),
            ("the digest of Θ̂", outcome.digest, merge.digest),
            ("the norm", outcome.norm.to_bits(), merge.norm.to_bits()),
        ];
        same(fragment, version, &found).map(|()| Some(outcome))
    }

    fn remade(
        &mut self,
        remade: &RemadeEntry,
        body: impl FnMut(usize) -> Result<Vec<u8>, String>,
    ) -> Result<Option<MergeOutcome>, RecoveryError> {
        let (&RemadeEntry { round, fragment, base, version, .. }, codec) = (remade, self.codec);
        let Some((segments, state)) = self.behind(fragment, version)? else { return Ok(None) };
        at_base(fragment, base, state)?;
        let [theta, momentum] = read_kept(remade, state.theta.len(), body)?;
        let correction = Correction {
            round,
            fragment,
            state: state.clone(),
            theta,
            momentum,
            segments,
            codec,
            next: version,
        };
        let outcome = correction.run().map_err(|failure| RecoveryError::Merge(failure.error))?;
        let found = [
            ("the change's checksum", outcome.checksum, remade.checksum),
            ("the digest of Θ̂", outcome.digest, remade.digest),
        ];
        same(fragment, version, &found)?;
        *state = outcome.state.clone();
        Ok(Some(outcome))
    }

    /// Returns the segments and the state of `fragment`, if it is older than `version`.
    fn behind(
        &mut self,
        fragment: FragmentId,
        version: Version,
    ) -> Result<Option<(Vec<Segment>, &mut FragmentState)>, RecoveryError> {
        let no_fragment = || RecoveryError::NoFragment(fragment);
        let segments = self.fragments.segments(fragment).ok_or_else(no_fragment)?.to_vec();
        let state = self.states.get_mut(usize::from(fragment.0)).ok_or_else(no_fragment)?;
        Ok((version > state.version).then_some((segments, state)))
    }
}

/// Checks that recomputed values equal the recorded ones, given as (name, recomputed, recorded).
fn same(
    fragment: FragmentId,
    version: Version,
    found: &[(&'static str, u64, u64)],
) -> Result<(), RecoveryError> {
    match found.iter().find(|(_, actual, expected)| actual != expected) {
        Some(&(what, actual, expected)) => {
            Err(RecoveryError::Diverged { fragment, version, what, actual, expected })
        }
        None => Ok(()),
    }
}

impl Syncer {
    /// Resumes at the end of the tape, in a process that started at Unix time `started_s`, in seconds. No decision that
    /// a learner knows of is lost, so no learner may count more than was leased to it.
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
