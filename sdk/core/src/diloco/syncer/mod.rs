//! Syncer: the authority of a run, as a state machine.
//!
//! [`Syncer::handle`] takes an input. [`Syncer::poll`] returns the next output; call it until it returns `None` after
//! each `handle`, or let [`Syncer::drive`] do both for a [`Host`]. [`Syncer::deadline`] returns the time to handle
//! [`Input::Timeout`] if no other input comes first. Time is an argument and never goes back.
//!
//! The syncer composes six state machines. Each is independent and tested alone:
//!
//! | machine | owns |
//! |---|---|
//! | `Rounds`, one for each fragment | Θ, Θ̂, momentum, version, the round under way, norm statistics |
//! | `Roster` | connected learners, their paces, and the owner's restrictions on single learners |
//! | `Accounting` | leases, ledger, and the number of windows leased ahead to each learner |
//! | `Schedule` | time, fragment and invited learners of the next round |
//! | `Downlink` | the versions that each learner holds, and the data in flight to it |
//! | `Trust` | the trust in each learner, and the resulting limits |
//!
//! They exchange values (`Launch`, `SenderInfo`, `UpdateOutcome`). [`Syncer`] only passes values between them and emits
//! the results.

mod io;
mod loss_check;
mod recovery;
mod remote_rounds;
mod rollback;
mod round_handlers;
mod session_handlers;
#[cfg(test)]
mod tests;
mod trained_windows;

pub use super::sessions::DROP_MS_MAX;
pub use io::{
    Answer, Event, Host, Input, LeaderRequest, LearnerStatus, LeaveCause, Output, Paces, RemoteMerge, Status,
};
pub use loss_check::{EXAMINED_MAX, LossCheck, LossMonitor, WINDOWS_MAX};
pub use recovery::{Recovery, RecoveryError, SyncerRecord};
pub use rollback::{Rollback, RollbackJob, RollbackOrder, senders};
pub use session_handlers::BANNED;
pub use trained_windows::{Trained, TrainedWindows};

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::Arc;

use super::trust::Trust;
use super::{
    Accounting, Codec, Downlink, Entry, FragmentState, Fragments, Layout, LeasePool, Ledger, MergeRule,
    QuorumPolicy, Roster, Rounds, Schedule, Timing, Verifier,
};
use crate::diloco::{
    AccountingTerms, DownlinkPolicy, DownlinkTerms, LeaseError, OuterSpec, QuantError, RoundTerms,
    ScheduleTerms, SilenceLimits, WeightBounds,
};
use crate::wire::{ConnId, FragmentId, LearnerId, Millis, RunId, RunSpec, Serial, Share, Version};
use remote_rounds::RemoteRounds;
use rollback::PendingRollback;
use serde::{Deserialize, Serialize};

/// State machine of a run.
pub struct Syncer {
    run: RunId,
    spec: RunSpec,
    config: SyncerConfig,
    fragments: Arc<Fragments>,
    verifier: Verifier,
    /// Rounds of each fragment, `[P]`.
    rounds: Vec<Rounds>,
    roster: Roster,
    accounting: Accounting,
    schedule: Schedule,
    downlink: Downlink,
    trust: Trust,
    rollback: PendingRollback,
    /// State of remote rounds; `None` if this process leads the rounds.
    led: Option<RemoteRounds>,
    /// Next time at which [`Self::ask_ahead`] has a request to send.
    ask_ahead_at: Option<Millis>,
    out: VecDeque<Output>,
}

impl Syncer {
    /// Starts a new run with the parameters `theta`, `[layout.len()]`.
    ///
    /// # Errors
    /// [`SyncerError::NoFragments`], [`SyncerError::NoSteps`], [`SyncerError::Codec`] or [`SyncerError::Lease`] for an
    /// invalid `spec`; [`SyncerError::Parameters`] if the length of `theta` is not that of the layout.
    pub fn new(
        run: RunId,
        spec: RunSpec,
        config: SyncerConfig,
        layout: &Layout,
        theta: &[f32],
    ) -> Result<Self, SyncerError> {
        if theta.len() != layout.len() {
            return Err(SyncerError::Parameters { expected: layout.len(), actual: theta.len() });
        }
        let fragments = plan(&spec, layout)?;
        let states = fragments.ids().map(|p| FragmentState::new(fragments.gather(p, theta))).collect();
        Self::begin(run, spec, config, fragments, states)
    }

    fn assemble(
        record: SyncerRecord,
        config: SyncerConfig,
        fragments: Arc<Fragments>,
        states: Vec<FragmentState>,
    ) -> Result<Self, SyncerError> {
        let turn = record.turn();
        let SyncerRecord { run, spec, leases, ledger, restrictions, .. } = record;
        let codec = Codec::new(&spec.exchange)?;
        let versions = states.iter().map(|state| state.version).collect();
        let rounds = fragments.ids().zip(states).map(|(fragment, state)| {
            Rounds::new(config.round_terms(&spec, fragment, &fragments, codec), state)
        });
        Ok(Self {
            run,
            rounds: rounds.collect(),
            roster: Roster::new(config.patience(), restrictions),
            accounting: Accounting::new(config.accounting_terms(&spec), leases, ledger),
            schedule: Schedule::new(config.schedule_terms(&spec, fragments.count()), turn),
            downlink: Downlink::new(config.downlink_terms(&fragments, codec), versions),
            verifier: Verifier::new(Arc::clone(&fragments), codec),
            spec,
            config,
            fragments,
            trust: Trust::default(),
            rollback: PendingRollback::default(),
            led: None,
            ask_ahead_at: None,
            out: VecDeque::new(),
        })
    }

    /// Handles an input at `now`, which never goes back.
    pub fn handle(&mut self, now: Millis, input: Input) {
        match input {
            Input::Message(conn, message) => self.on_message(now, conn, message),
            Input::Update(conn, update) => self.on_verified(now, conn, *update),
            Input::Heard(conn) => self.roster.note_activity(now, conn),
            Input::Disconnected(conn) => self.on_disconnected(conn),
            Input::Merged(merged) => self.on_merged(now, *merged),
            Input::Rollback(undo) => self.on_undo(now, *undo),
            Input::ContributionVerdict { learner, verdict } => self.on_verdict(learner, verdict),
            Input::Finish => self.finish(),
            Input::Hold(held) => self.on_hold(now, held),
            Input::Stall(stalled) => self.on_stall(now, stalled),
            Input::Pace { learner, share } => self.on_pace(learner, share),
            Input::Drop { learner, wait_ms } => self.on_drop(now, learner, wait_ms),
            Input::Ban(fingerprint) => self.on_ban(fingerprint),
            Input::Introduced { conn, learner, hello } => self.on_introduced(now, conn, &hello, learner),
            Input::Asked { fragment, learner, conn, round } => {
                self.on_asked(now, fragment, learner, conn, round);
            }
            Input::Unmerged { fragment, learner, conn, serial, refusal } => {
                self.on_unmerged(fragment, (learner, conn), serial, refusal);
            }
            Input::Followed(followed) => self.on_followed(now, *followed),
            Input::Over(fragment, round) => self.on_over(fragment, round),
            Input::Closed(fragment) => self.on_closed(fragment),
            Input::Probed(conn, number) => self.on_probed(now, conn, number),
            Input::Timeout => {}
        }
        self.advance(now);
    }

    /// Changes the quorum policy and the merge rule, also for rounds under way; handle [`Input::Timeout`] next.
    ///
    /// Recorded merges stay valid, because each is recorded with its rule and its parts. The record of the run has
    /// neither setting, so a process that resumes the run must set both again.
    pub fn retune(&mut self, quorum: QuorumPolicy, merge: MergeRule) {
        (self.config.quorum, self.config.merge) = (quorum, merge);
        for rounds in &mut self.rounds {
            rounds.retune(quorum, merge);
        }
        self.schedule.retune(quorum.rounds_in_flight);
    }

    /// Changes three settings of [`SyncerConfig`]; handle [`Input::Timeout`] next. Connected learners stay, and no
    /// recorded entry depends on these settings.
    pub fn limit(&mut self, learners_max: u32, cohort_max: u32, stop_tokens: u64) {
        self.config = SyncerConfig { learners_max, cohort_max, stop_tokens, ..self.config };
        self.schedule.limit(cohort_max);
    }

    /// Returns the next output; call until it returns `None` after each [`Self::handle`].
    pub fn poll(&mut self) -> Option<Output> {
        // Decisions come before their consequences.
        self.accounting.next_entry().map(Output::Record).or_else(|| self.out.pop_front())
    }

    /// Returns the time to handle [`Input::Timeout`] if no other input comes first; always after `now`.
    #[must_use]
    pub fn deadline(&self, now: Millis) -> Option<Millis> {
        let ends = |rounds: &Rounds| rounds.ends_at(now, self.schedule.timing());
        let rounds = self.rounds.iter().filter_map(ends);
        let may_end = !self.is_led() && self.schedule.may_end(self.rounds.iter().all(Rounds::is_idle));
        let end = may_end.then_some(now);
        let sessions = self.roster.deadline();
        let others = [sessions, self.accounting.deadline(), self.launch_at(), self.ask_ahead_at, end];
        rounds.chain(others.into_iter().flatten()).min().map(|at| at.max(now.after(1)))
    }

    /// Returns the id of the run.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Returns the specification of the run.
    #[must_use]
    pub fn spec(&self) -> &RunSpec {
        &self.spec
    }

    /// Returns the settings of the syncer.
    #[must_use]
    pub fn config(&self) -> &SyncerConfig {
        &self.config
    }

    /// Returns the fragments of the run.
    #[must_use]
    pub fn fragments(&self) -> &Arc<Fragments> {
        &self.fragments
    }

    /// Returns the verifier of updates, which any thread can use: see [`Input::Update`].
    #[must_use]
    pub fn verifier(&self) -> &Verifier {
        &self.verifier
    }

    /// Returns the ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        self.accounting.ledger()
    }

    /// Returns the leases.
    #[must_use]
    pub fn leases(&self) -> &LeasePool {
        self.accounting.leases()
    }

    /// Returns the moving averages of measured times.
    #[must_use]
    pub fn timing(&self) -> &Timing {
        self.schedule.timing()
    }

    /// Returns the number of merged rounds.
    #[must_use]
    pub fn rounds_merged(&self) -> u64 {
        self.schedule.turn().rounds_merged
    }

    /// Returns Θ̂ of a fragment and its version; `None` if the fragment does not exist, or until the next
    /// [`Input::Merged`] if it is being merged.
    #[must_use]
    pub fn hat(&self, fragment: FragmentId) -> Option<(Version, Arc<Vec<f32>>)> {
        self.rounds.get(usize::from(fragment.0))?.hat()
    }

    /// Returns Θ of each fragment, `[P]`, without copying; `None` while any fragment is being merged.
    #[must_use]
    pub fn thetas(&self) -> Option<Vec<Arc<Vec<f32>>>> {
        self.rounds.iter().map(|rounds| Some(Arc::clone(&rounds.state()?.theta))).collect()
    }

    /// Returns a flat copy of Θ, `[layout.len()]`; `None` while any fragment is being merged.
    #[must_use]
    pub fn theta(&self) -> Option<Vec<f32>> {
        let thetas = self.thetas()?;
        let mut flat = vec![0.0; thetas.iter().map(|theta| theta.len()).sum()];
        for (fragment, theta) in self.fragments.ids().zip(&thetas) {
            self.fragments.scatter(fragment, theta, &mut flat);
        }
        Some(flat)
    }

    /// Returns the connection of `learner`, if it is connected.
    #[must_use]
    pub fn connection(&self, learner: LearnerId) -> Option<ConnId> {
        self.roster.conn(learner)
    }

    /// Returns the states of all fragments that are not being merged, in order.
    pub fn states(&self) -> impl Iterator<Item = &FragmentState> {
        self.rounds.iter().filter_map(Rounds::state)
    }

    /// Returns the state of each fragment, `[P]`; `None` for one that is being merged.
    pub fn rests(&self) -> impl Iterator<Item = Option<&FragmentState>> {
        self.rounds.iter().map(Rounds::state)
    }

    /// Returns the serial number of the update of `learner` on `fragment` that has no fate yet, if there is one.
    #[must_use]
    pub fn unresolved(&self, learner: LearnerId, fragment: FragmentId) -> Option<Serial> {
        self.rounds.get(usize::from(fragment.0))?.unresolved(learner)
    }

    /// Returns true if the link of `learner` is too slow for every change, so that the learner fetches whole fragments.
    #[must_use]
    pub fn is_thin(&self, now: Millis, learner: LearnerId) -> bool {
        self.roster.conn(learner).is_some_and(|conn| self.downlink.is_thin(now, conn))
    }

    /// Returns true if the run is over: every connection is closed, and new ones are turned away.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.schedule.is_over()
    }

    /// Returns true if the ledger has an account of `learner`. Orders for other learners have no effect.
    #[must_use]
    pub fn knows(&self, learner: LearnerId) -> bool {
        self.ledger().account(learner).is_some()
    }

    /// Returns the fraction of its time that the owner allows `learner` to train.
    #[must_use]
    pub fn share(&self, learner: LearnerId) -> Share {
        self.roster.share(learner)
    }

    /// Returns the time at which `learner` may return, if the owner sent it away until after `now`.
    #[must_use]
    pub fn returns(&self, now: Millis, learner: LearnerId) -> Option<Millis> {
        self.roster.returns(now, learner)
    }

    /// Does all work that is due after the last input at `now`.
    fn advance(&mut self, now: Millis) {
        self.expire(now);
        self.close_rounds(now);
        if self.config.stop_tokens > 0 && self.ledger().schedule_tokens() >= self.config.stop_tokens {
            self.on_enough();
        }
        self.start_rollbacks(now);
        self.launch_due(now);
        self.ask_ahead(now);
        self.end_run();
    }

    fn finish(&mut self) {
        if !self.schedule.is_ending() {
            self.schedule.finish();
            self.accounting.note(Entry::Finishing);
        }
    }

    fn event(&mut self, event: Event) {
        self.out.push_back(Output::Event(event));
    }
}

fn plan(spec: &RunSpec, layout: &Layout) -> Result<Arc<Fragments>, SyncerError> {
    let count = NonZeroU16::new(spec.exchange.fragments).ok_or(SyncerError::NoFragments)?;
    if spec.exchange.sync_every == 0 {
        return Err(SyncerError::NoSteps);
    }
    Ok(Arc::new(Fragments::plan(layout, count)))
}

/// Number of changes of each fragment for which the history of changes has space. If
/// [`DownlinkPolicy::history_bytes_min`] is larger, it applies instead. Our own constant.
const HISTORY_TURNS: u64 = 2;

/// Maximum number of identities without a merged update in the ledger, per seat, so that throwaway identities fill
/// neither the ledger nor the disk. Our own constant.
const STRANGERS_PER_SEAT: u32 = 2;

/// Settings that only the syncer needs; [`crate::wire::RunSpec`] has those on which learners must agree.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SyncerConfig {
    /// Rule for the end of a round.
    pub quorum: QuorumPolicy,
    /// Outer optimiser.
    pub outer: OuterSpec,
    /// Length of the outer momentum's linear warm-up from 0, as a fraction of the inner schedule's `total_tokens`, 0 to
    /// 1; 0 starts with full momentum. The default is our own, see `tests/evidence/DECISIONS.md`.
    pub momentum_warmup_ratio: f64,
    /// Rule that averages updates.
    pub merge: MergeRule,
    /// Bounds on the weights of updates.
    pub influence: WeightBounds,
    /// Limits on data in flight to a learner.
    pub downlink: DownlinkPolicy,
    /// Number of live learners that the first round of a run needs.
    pub learners_start: u32,
    /// Maximum number of connected learners.
    pub learners_max: u32,
    /// Maximum number of identities in the ledger.
    pub identities_max: u32,
    /// Maximum number of learners invited to one round. Rounds of larger runs invite a rotating sample, which raises
    /// the loss slightly (`tests/evidence/STALENESS.md`).
    pub cohort_max: u32,
    /// Time after which a silent connection is closed, in milliseconds.
    pub silent_ms_max: u64,
    /// Time after which a silent connection is closed if the learner reported a hidden tab or a pause, in milliseconds.
    pub hidden_ms_max: u64,
    /// Training time that one lease covers, in milliseconds, as far as the learner's pace is known.
    pub lease_ms: u64,
    /// Time without progress after which a lease expires, in milliseconds. A lease that is queued at a connected
    /// learner does not expire.
    pub lease_idle_ms_max: u64,
    /// Upper bound on the norm of an update on a segment, as a multiple of the median in the norm statistics; longer
    /// updates are scaled down to it. Norms are compared after division by the learning rate and the square root of the
    /// steps. 0 for no bound.
    pub norm_ratio_max: f64,
    /// Number of consecutive refusals after which a learner is sent away.
    pub refusals_max: u32,
    /// Tokens credited by the schedule at which the run finishes by itself; 0 for never.
    pub stop_tokens: u64,
}

impl Default for SyncerConfig {
    fn default() -> Self {
        Self {
            quorum: QuorumPolicy::default(),
            outer: OuterSpec::default(),
            momentum_warmup_ratio: 0.25,
            merge: MergeRule::Radial,
            influence: WeightBounds::default(),
            downlink: DownlinkPolicy::default(),
            learners_start: 1,
            learners_max: 2_048,
            identities_max: 100_000,
            cohort_max: 256,
            silent_ms_max: 20_000,
            hidden_ms_max: 600_000,
            lease_ms: 30_000,
            lease_idle_ms_max: 60_000,
            norm_ratio_max: 1.5,
            refusals_max: 16,
            stop_tokens: 0,
        }
    }
}

impl SyncerConfig {
    /// Returns the settings for the rounds of `fragment`.
    pub(crate) fn round_terms(
        &self,
        spec: &RunSpec,
        fragment: FragmentId,
        fragments: &Fragments,
        codec: Codec,
    ) -> RoundTerms {
        RoundTerms {
            fragment,
            segments: fragments.segments(fragment).unwrap_or_default().to_vec(),
            experts: fragments.experts(fragment).to_vec(),
            mixture: spec.model.experts,
            codec,
            inner: spec.inner,
            sync_every: spec.exchange.sync_every,
            is_additive: spec.exchange.apply.is_additive(),
            lease_ms: self.lease_ms,
            quorum: self.quorum,
            merge: self.merge,
            influence: self.influence,
            norm_ratio_max: self.norm_ratio_max,
        }
    }

    /// Returns the settings for the downlink, which depend on the sizes of changes.
    fn downlink_terms(&self, fragments: &Fragments, codec: Codec) -> DownlinkTerms {
        let segments = |p| fragments.segments(p).unwrap_or_default();
        let turn_bytes: u64 = fragments.ids().map(|p| codec.body_bytes(segments(p)) as u64).sum();
        DownlinkTerms {
            fragments: fragments.count(),
            policy: self.downlink,
            unconfirmed_bytes_max: turn_bytes.max(self.downlink.unconfirmed_bytes_min),
            history_bytes_max: (HISTORY_TURNS * turn_bytes).max(self.downlink.history_bytes_min),
        }
    }

    /// Returns the time limits on silent connections.
    fn patience(&self) -> SilenceLimits {
        SilenceLimits { silent_ms_max: self.silent_ms_max, hidden_ms_max: self.hidden_ms_max }
    }

    /// Returns the settings for leases and ledger.
    fn accounting_terms(&self, spec: &RunSpec) -> AccountingTerms {
        AccountingTerms {
            context: spec.model.context,
            lease_ms: self.lease_ms,
            lease_idle_ms_max: self.lease_idle_ms_max,
            identities_max: self.identities_max,
            strangers_max: self.learners_max.saturating_mul(STRANGERS_PER_SEAT),
        }
    }

    /// Returns the settings for the schedule of a run with `fragments` fragments.
    fn schedule_terms(&self, spec: &RunSpec, fragments: u16) -> ScheduleTerms {
        ScheduleTerms {
            fragments,
            sync_every: spec.exchange.sync_every,
            rounds_in_flight: self.quorum.rounds_in_flight,
            learners_start: self.learners_start,
            cohort_max: self.cohort_max,
        }
    }
}

/// Error in the settings or the snapshot of a syncer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SyncerError {
    /// P is 0.
    #[error("a run needs at least 1 fragment, not 0")]
    NoFragments,
    /// H is 0.
    #[error("sync_every is 0: a fragment needs at least 1 step between two rounds")]
    NoSteps,
    /// The settings of the code for updates and changes are invalid.
    #[error(transparent)]
    Codec(#[from] QuantError),
    /// The data cannot be leased.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// The number of initial parameters is not that of the layout.
    #[error("{actual} initial parameters for a layout of {expected}")]
    Parameters {
        /// Number of values in the layout.
        expected: usize,
        /// Number of initial parameters.
        actual: usize,
    },
    /// The length of a restored fragment is not that in the layout.
    #[error("the snapshot's fragment {fragment} has {actual} values, the layout has {expected}")]
    Fragment {
        /// The fragment.
        fragment: FragmentId,
        /// Number of values in the layout.
        expected: usize,
        /// Number of values in the snapshot.
        actual: usize,
    },
    /// The number of restored fragments is not that of the run.
    #[error("the snapshot has {actual} fragments, the run has {expected}")]
    FragmentCount {
        /// Number of fragments of the run.
        expected: usize,
        /// Number of fragments in the snapshot.
        actual: usize,
    },
}
