//! Recovery of a run: replays the tape from a snapshot to its end, and recomputes each merge bit for bit.
//!
//! A snapshot consists of a [`SyncerRecord`] and the [`FragmentState`]s.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{Syncer, SyncerConfig, SyncerError, plan};
use crate::data;
use crate::diloco::accounting::LEASE_WINDOWS_MAX;
use crate::diloco::{
    Codec, Correction, Entry, FragmentState, Fragments, Layout, LeaseError, LeasePool, Ledger, MergeEntry,
    MergeError, MergeJob, MergeOutcome, QuantError, Restrictions, RollbackEntry, Rounds, STATE_BYTES,
    Segment, Timing, Turn, WeightedUpdate, accounting, checksum, decode_state,
};
use crate::wire::{FragmentId, LearnerId, LeaseId, RunId, RunSpec, Version};
use serde::{Deserialize, Serialize};

/// Replay of a run's tape.
#[derive(Clone, Debug)]
pub struct Recovery {
    record: SyncerRecord,
    fragments: Arc<Fragments>,
    codec: Codec,
    states: Vec<FragmentState>,
}

impl Recovery {
    /// Starts a replay at `record`. Each of `states` is as old as the record or newer.
    ///
    /// # Errors
    /// The errors of [`Syncer::restore`].
    pub fn new(
        record: SyncerRecord,
        layout: &Layout,
        states: Vec<FragmentState>,
    ) -> Result<Self, SyncerError> {
        let fragments = record.check(layout, &states)?;
        let codec = Codec::new(&record.spec.exchange)?;
        Ok(Self { record, fragments, codec, states })
    }

    /// Replays one entry. A merge or rollback is recomputed and returned, unless the state of its fragment includes it.
    ///
    /// `body` is called with a number of bytes and returns the next body of the entry: the updates of a merge, in
    /// order, or the result of a rollback.
    ///
    /// # Errors
    /// Each variant of [`RecoveryError`]. The parameters are then unchanged, except after a merge that diverged, which
    /// is applied.
    pub fn follow(
        &mut self,
        entry: &Entry,
        body: impl FnMut(usize) -> Result<Vec<u8>, String>,
    ) -> Result<Option<MergeOutcome>, RecoveryError> {
        let outcome = match entry {
            Entry::Merged(merge) => self.merge(merge, body)?,
            Entry::RolledBack(rolled_back) => self.rolled_back(rolled_back, body)?,
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
            Entry::RolledBack(RollbackEntry { round, .. }) => {
                record.next_round = record.next_round.max(round.0 + 1);
            }
            Entry::Abandoned { round, .. } => {
                record.rounds_abandoned += 1;
                record.next_round = record.next_round.max(round.0 + 1);
            }
            Entry::Held { held } => record.held = *held,
            Entry::Paced { learner, share } => record.restrictions.pace(*learner, *share),
            Entry::Dropped { learner, wait_ms } => record.restrictions.exclude_learner(*learner, *wait_ms),
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

    fn rolled_back(
        &mut self,
        rolled_back: &RollbackEntry,
        body: impl FnMut(usize) -> Result<Vec<u8>, String>,
    ) -> Result<Option<MergeOutcome>, RecoveryError> {
        let (&RollbackEntry { round, fragment, base, version, .. }, codec) = (rolled_back, self.codec);
        let Some((segments, state)) = self.behind(fragment, version)? else { return Ok(None) };
        at_base(fragment, base, state)?;
        let [theta, momentum] = read_state(rolled_back, state.theta.len(), body)?;
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
            ("the change's checksum", outcome.checksum, rolled_back.checksum),
            ("the digest of Θ̂", outcome.digest, rolled_back.digest),
        ];
        same(fragment, version, &found)?;
        *state = outcome.state.clone();
        Ok(Some(outcome))
    }

    /// Returns the segments and the state of `fragment`; `None` if the state includes `version`.
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

/// Checks that recomputed values equal the recorded ones. `found` has the name, the recomputed and the recorded value.
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
    /// Resumes a run at the end of its tape, in a process that started at Unix time `started_s`, in seconds. The tape
    /// has all leases, so no learner is credited beyond them, unlike after [`Self::restore`].
    ///
    /// # Errors
    /// The errors of [`Self::restore`].
    pub fn resume(
        recovered: Recovery,
        layout: &Layout,
        config: SyncerConfig,
        started_s: u32,
    ) -> Result<Self, SyncerError> {
        let (record, states) = recovered.into_parts();
        Self::reopen(record, layout, config, states, started_s, 0)
    }
}

/// Error in the replay of an entry.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecoveryError {
    /// An entry about a lease does not fit the leases before it.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The fragment does not exist.
    #[error("there is no fragment {0}")]
    NoFragment(FragmentId),
    /// The fragment is not at the version before the merge.
    #[error("fragment {fragment} is at version {actual}, but the merge began at version {expected}")]
    Gap {
        /// The fragment.
        fragment: FragmentId,
        /// The version before the merge.
        expected: Version,
        /// The current version.
        actual: Version,
    },
    /// The body of a learner's update is missing, for this reason.
    #[error("the update of learner {0} is missing: {1}")]
    Missing(LearnerId, String),
    /// The body of a learner's update has another checksum (first number) than the merged one (second number).
    #[error("the update of learner {0} is damaged: its checksum is {1:016x} instead of {2:016x}")]
    Damaged(LearnerId, u64, u64),
    /// The recorded Θ and momentum of a rollback are missing or damaged.
    #[error("the rollback state of fragment {0} is missing: {1}")]
    Unkept(FragmentId, String),
    /// The body of a learner's update cannot be decoded.
    #[error("the update of learner {0} cannot be read: {1}")]
    Body(LearnerId, QuantError),
    /// The updates cannot be merged.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// The recomputed merge or rollback differs from the recorded one.
    #[error(
        "recomputed, fragment {fragment} at version {version} has {what} {actual:016x} instead of {expected:016x}"
    )]
    Diverged {
        /// The fragment.
        fragment: FragmentId,
        /// The version.
        version: Version,
        /// Name of the value that differs.
        what: &'static str,
        /// The recomputed value.
        actual: u64,
        /// The recorded value.
        expected: u64,
    },
}

/// Recomputes `merge` without the updates of the learners in `without`, and advances `state` to the result. Returns
/// `None` if no update remains; then only the version of `state` advances. `body` is called with a number of bytes and
/// returns the next recorded update, in order.
///
/// # Errors
/// `Gap`, `Missing`, `Damaged`, `Body` or `Merge`; `state` is then unchanged.
pub(super) fn again(
    codec: &Codec,
    segments: &[Segment],
    state: &mut FragmentState,
    merge: &MergeEntry,
    without: &BTreeSet<LearnerId>,
    mut body: impl FnMut(usize) -> Result<Vec<u8>, String>,
) -> Result<Option<MergeOutcome>, RecoveryError> {
    let &MergeEntry { round, fragment, base, version, rule, outer, absent, .. } = merge;
    at_base(fragment, base, state)?;
    let len = codec.body_bytes(segments);
    let mut updates = Vec::with_capacity(merge.parts.len());
    for (at, part) in merge.parts.iter().enumerate() {
        let learner = part.learner;
        let bytes = body(len).map_err(|why| RecoveryError::Missing(learner, why))?;
        if without.contains(&learner) {
            continue;
        }
        let sum = checksum(&bytes);
        if sum != part.checksum {
            return Err(RecoveryError::Damaged(learner, sum, part.checksum));
        }
        let body = codec.check(segments, bytes).map_err(|error| RecoveryError::Body(learner, error))?;
        let steps = part.reach_steps.unwrap_or(part.steps);
        // A weight that is missing on the tape becomes NaN, which the merge rejects.
        let experts =
            merge.experts.iter().map(|of| of.weights.get(at).copied().unwrap_or(f64::NAN)).collect();
        updates.push(WeightedUpdate { learner, weight: part.weight, experts, steps, body });
    }
    if updates.is_empty() && !merge.parts.is_empty() {
        state.version = version;
        return Ok(None);
    }
    // The state is moved out so that the job owns its tensors and need not copy them.
    let before = std::mem::replace(state, FragmentState::new(Vec::new()));
    let (segments, radii) = (segments.to_vec(), merge.radii.clone());
    let job = MergeJob {
        round,
        fragment,
        state: before,
        absent,
        absent_experts: merge.experts.iter().map(|of| of.absent).collect(),
        updates,
        segments,
        codec: *codec,
        rule,
        radii,
        outer,
        next: version,
    };
    match job.run() {
        Ok(outcome) => {
            *state = outcome.state.clone();
            Ok(Some(outcome))
        }
        Err(failure) => {
            *state = failure.state;
            Err(failure.error.into())
        }
    }
}

/// Checks that `state` is at version `base`.
pub(super) fn at_base(
    fragment: FragmentId,
    base: Version,
    state: &FragmentState,
) -> Result<(), RecoveryError> {
    let actual = state.version;
    if base == actual { Ok(()) } else { Err(RecoveryError::Gap { fragment, expected: base, actual }) }
}

/// Reads Θ and the momentum, `len` values each, from the body of a rollback.
pub(super) fn read_state(
    rolled_back: &RollbackEntry,
    len: usize,
    mut body: impl FnMut(usize) -> Result<Vec<u8>, String>,
) -> Result<[Arc<Vec<f32>>; 2], RecoveryError> {
    let wrong = |why| RecoveryError::Unkept(rolled_back.fragment, why);
    let bytes = body(STATE_BYTES * len).map_err(wrong)?;
    let sum = checksum(&bytes);
    if sum != rolled_back.kept {
        return Err(wrong(format!("its checksum is {sum:016x} instead of {:016x}", rolled_back.kept)));
    }
    Ok(decode_state(&bytes))
}

/// State of a run in a snapshot, next to its [`FragmentState`]s.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncerRecord {
    /// The run.
    pub run: RunId,
    /// The specification of the run.
    pub spec: RunSpec,
    /// The leases.
    pub leases: LeasePool,
    /// The contribution ledger.
    pub ledger: Ledger,
    /// Moving averages of measured times.
    pub timing: Timing,
    /// Number of the next round.
    pub next_round: u64,
    /// Fragment of the next round.
    pub next_fragment: FragmentId,
    /// Number of merged rounds.
    pub rounds_merged: u64,
    /// Number of abandoned rounds.
    pub rounds_abandoned: u64,
    /// Whether the owner has paused the run.
    pub held: bool,
    /// Whether the last rounds of the run have begun. After a restart, interrupted last rounds are not repeated.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub finishing: bool,
    /// Whether the run is over.
    pub finished: bool,
    /// Restrictions of single learners: limits on their duty cycle, and exclusions.
    #[serde(rename = "reins", default, skip_serializing_if = "Restrictions::is_empty")]
    pub restrictions: Restrictions,
}

impl SyncerRecord {
    pub(super) fn new(
        run: RunId,
        spec: RunSpec,
        leases: LeasePool,
        ledger: Ledger,
        turn: Turn,
        restrictions: Restrictions,
    ) -> Self {
        let Turn { timing, next_round, next_fragment, rounds_merged, rounds_abandoned, .. } = turn;
        let Turn { is_held: held, is_ending: finishing, is_over: finished, .. } = turn;
        Self {
            run,
            spec,
            leases,
            ledger,
            timing,
            next_round,
            next_fragment,
            rounds_merged,
            rounds_abandoned,
            held,
            finishing,
            finished,
            restrictions,
        }
    }

    /// Returns the fragments of the run.
    ///
    /// # Errors
    /// The settings are invalid, or `states` do not fit the fragments.
    pub(in crate::diloco) fn check(
        &self,
        layout: &Layout,
        states: &[FragmentState],
    ) -> Result<Arc<Fragments>, SyncerError> {
        let fragments = plan(&self.spec, layout)?;
        if states.len() != usize::from(fragments.count()) {
            let expected = usize::from(fragments.count());
            return Err(SyncerError::FragmentCount { expected, actual: states.len() });
        }
        for (fragment, state) in fragments.ids().zip(states) {
            let expected = fragments.len(fragment);
            let lens = [state.theta.len(), state.hat.len(), state.momentum.len()];
            if let Some(&actual) = lens.iter().find(|&&len| len != expected) {
                return Err(SyncerError::Fragment { fragment, expected, actual });
            }
        }
        Ok(fragments)
    }

    /// Returns the state of the schedule.
    pub(super) fn turn(&self) -> Turn {
        Turn {
            timing: self.timing,
            next_round: self.next_round,
            next_fragment: self.next_fragment,
            rounds_merged: self.rounds_merged,
            rounds_abandoned: self.rounds_abandoned,
            is_held: self.held,
            is_ending: self.finishing,
            is_over: self.finished,
        }
    }
}

impl Syncer {
    /// Starts a new run with the fragment states `states`, `[P]`.
    pub(super) fn begin(
        run: RunId,
        spec: RunSpec,
        config: SyncerConfig,
        fragments: Arc<Fragments>,
        states: Vec<FragmentState>,
    ) -> Result<Self, SyncerError> {
        let lens = fragments.ids().map(|p| fragments.len(p) as u32).collect();
        let windows = spec.data.shards.iter().map(|shard| data::windows(shard.tokens, spec.model.context));
        let leases = LeasePool::new(windows.collect())?;
        let (ledger, turn) = (Ledger::new(lens), Turn::default());
        let record = SyncerRecord::new(run, spec, leases, ledger, turn, Restrictions::default());
        Self::assemble(record, config, fragments, states)
    }

    /// Returns the state of the run without [`Self::states`]; `None` while any fragment is being merged.
    #[must_use]
    pub fn record(&self) -> Option<SyncerRecord> {
        let is_merging = self.rounds.iter().any(Rounds::is_merging);
        (!is_merging).then(|| self.record_amid())
    }

    /// Returns the state of the run without [`Self::states`], also during merges. A snapshot may combine it with newer
    /// fragment states if a tape is available: see [`super::Recovery::new`].
    #[must_use]
    pub fn record_amid(&self) -> SyncerRecord {
        let (leases, ledger) = (self.accounting.leases().clone(), self.accounting.ledger().clone());
        let (turn, restrictions) = (*self.schedule.turn(), self.roster.restrictions());
        SyncerRecord::new(self.run, self.spec.clone(), leases, ledger, turn, restrictions)
    }

    /// Resumes from a snapshot without a tape, in a process that started at Unix time `started_s`, in seconds.
    ///
    /// Rounds, versions and leases continue in a fresh range of numbers (see `Turn::after_restart`), so that no number
    /// is used twice. Merges after the snapshot are lost; learners see this in the versions of their `Welcome`. Each
    /// learner may be credited the tokens of two further leases of the largest size, because it may have trained on
    /// leases that are not in the snapshot.
    ///
    /// # Errors
    /// [`SyncerError::NoFragments`], [`SyncerError::NoSteps`] or [`SyncerError::Codec`] for an invalid specification;
    /// [`SyncerError::FragmentCount`] or [`SyncerError::Fragment`] if `states` do not fit the layout.
    pub fn restore(
        record: SyncerRecord,
        layout: &Layout,
        config: SyncerConfig,
        states: Vec<FragmentState>,
        started_s: u32,
    ) -> Result<Self, SyncerError> {
        let slack = 2 * record.leases.epoch_windows().min(u64::from(LEASE_WINDOWS_MAX));
        let slack_tokens = slack * u64::from(record.spec.model.context);
        Self::reopen(record, layout, config, states, started_s, slack_tokens)
    }

    pub(super) fn reopen(
        mut record: SyncerRecord,
        layout: &Layout,
        config: SyncerConfig,
        states: Vec<FragmentState>,
        started_s: u32,
        slack_tokens: u64,
    ) -> Result<Self, SyncerError> {
        let fragments = record.check(layout, &states)?;
        record.next_round = record.turn().after_restart(started_s).next_round;
        record.leases.reopen(LeaseId(record.next_round));
        record.ledger.reopen(slack_tokens);
        let next_round = record.next_round;
        let mut syncer = Self::assemble(record, config, fragments, states)?;
        syncer.accounting.note(Entry::Began { next_round, slack_tokens });
        Ok(syncer)
    }
}
