//! State machine of the rounds of one fragment, which collects, decides and merges one round after another.
//!
//! [`Rounds`] owns the state of one fragment: Θ, Θ̂ and momentum, the version, the round under way, and the norm
//! statistics. It does not depend on connections, leases or other fragments. Inputs are values such as [`Launch`] and
//! [`SenderInfo`]; results are values such as [`Merge`] and [`super::UpdateOutcome`]. The rounds of a fragment can
//! therefore run in a separate process.
//!
//! The set of pending learners is updated incrementally. The syncer examines each round after each message, which must
//! not cost a pass over all invited learners.

mod admit;
mod merge;
mod norm_stats;

pub use admit::{Verified, Verifier};
pub use merge::{Merge, Paced, RollbackResult};

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;

use super::{
    CheckedBody, Codec, Decision, FragmentExpert, FragmentState, Launch, MergeRule, QuorumPolicy, RoundView,
    Segment, SenderInfo, SenderTrust, Timing, WeightBounds,
};
use crate::wire::{Fate, FragmentId, InnerSpec, LearnerId, Millis, Mixture, Round, Serial, Version};
use admit::Admitted;
use merge::{Merging, RollingBack};
use norm_stats::NormStats;

/// Settings of the rounds of a fragment.
#[derive(Clone, Debug)]
pub struct RoundTerms {
    /// The fragment.
    pub fragment: FragmentId,
    /// Segments of the fragment, by ascending start.
    pub segments: Vec<Segment>,
    /// Experts with segments in the fragment.
    pub experts: Vec<FragmentExpert>,
    /// Expert layout of the model; `None` if the model has no experts.
    pub mixture: Option<Mixture>,
    /// Codec of update bodies.
    pub codec: Codec,
    /// Inner optimiser of the run, which bounds the norm of an update.
    pub inner: InnerSpec,
    /// H, in steps.
    pub sync_every: u32,
    /// Whether an update can be merged in a later round than the one that requested it: see `ApplyPolicy::is_additive`.
    pub is_additive: bool,
    /// Training time that one lease covers, in milliseconds.
    pub lease_ms: u64,
    /// Rule for the end of a round.
    pub quorum: QuorumPolicy,
    /// Rule that averages updates.
    pub merge: MergeRule,
    /// Bounds on the weights of updates.
    pub influence: WeightBounds,
    /// Upper bound on the norm of an update on a segment, as a multiple of the median in the norm statistics; longer
    /// updates are scaled down to it. 0 for no bound.
    pub norm_ratio_max: f64,
}

/// Rounds of one fragment. At most one round is in progress.
#[derive(Debug)]
pub struct Rounds {
    terms: RoundTerms,
    /// Version of Θ̂; also known while a merge job holds the state.
    version: Version,
    /// State of the fragment; `None` while a merge job holds it.
    state: Option<FragmentState>,
    phase: Phase,
    /// Learners with an unanswered request, and the time of the request.
    asked: BTreeMap<LearnerId, Millis>,
    /// Learners that were asked ahead of the next round and had no update.
    passed: BTreeSet<LearnerId>,
    /// Time of the last launch.
    launched: Option<Millis>,
    /// Updates that arrived while no round collected. The next round takes them.
    early: BTreeMap<LearnerId, PendingUpdate>,
    norm_stats: NormStats,
    /// The latest versions, oldest first, at most `VERSIONS_KEPT`.
    versions: VecDeque<Version>,
    /// Time since which the steps of each learner are not credited yet; missing if unknown to this process.
    credited: BTreeMap<LearnerId, Millis>,
    /// Time of arrival of the last merged update of each learner.
    came: BTreeMap<LearnerId, Millis>,
    /// Version into which the last update of each learner was merged.
    merged_to: BTreeMap<LearnerId, Version>,
}

/// State of the round under way.
#[derive(Debug)]
enum Phase {
    Idle,
    Collecting(Collecting),
    Merging(Merging),
    /// A rollback is under way.
    RollingBack(RollingBack),
}

/// Admitted update that is not merged yet.
#[derive(Debug)]
struct PendingUpdate {
    serial: Serial,
    /// Version from which the sender trained.
    base: Version,
    /// Admitted steps.
    steps: u32,
    /// Credited tokens.
    tokens: u64,
    /// Credited tokens for each expert, `[experts]`.
    seen: Vec<u64>,
    /// Trust in the sender.
    trust: SenderTrust,
    /// Time of the request. Steps after it are not part of the update.
    until: Millis,
    /// Time of arrival.
    came: Millis,
    body: CheckedBody,
    checksum: u64,
}

impl Rounds {
    /// Creates the rounds of a fragment with `state`, without a round under way. Norm statistics and the times of
    /// credited steps are not part of the state, so they start from scratch with each process.
    #[must_use]
    pub fn new(terms: RoundTerms, state: FragmentState) -> Self {
        Self {
            norm_stats: NormStats::new(&terms.segments),
            terms,
            version: state.version,
            state: Some(state),
            phase: Phase::Idle,
            asked: BTreeMap::new(),
            passed: BTreeSet::new(),
            launched: None,
            early: BTreeMap::new(),
            versions: VecDeque::new(),
            credited: BTreeMap::new(),
            came: BTreeMap::new(),
            merged_to: BTreeMap::new(),
        }
    }

    /// Returns the current version of Θ̂.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns true if the body of `update` is invalid or has as many segments as this fragment.
    pub(crate) fn is_of_fragment(&self, update: &Verified) -> bool {
        update.body().is_none_or(|body| body.squares().len() == self.terms.segments.len())
    }

    /// Returns Θ, Θ̂ and momentum; `None` while a merge job has them.
    #[must_use]
    pub fn state(&self) -> Option<&FragmentState> {
        self.state.as_ref()
    }

    /// Returns Θ̂ and its version; `None` while a merge job has them.
    #[must_use]
    pub fn hat(&self) -> Option<(Version, Arc<Vec<f32>>)> {
        self.state.as_ref().map(|state| (state.version, Arc::clone(&state.hat)))
    }

    /// Returns true if no round is under way, so that a round may be launched.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// Returns true while a merge or rollback job is under way.
    #[must_use]
    pub fn is_merging(&self) -> bool {
        matches!(self.phase, Phase::Merging(_) | Phase::RollingBack(_))
    }

    /// Starts a round with the updates that wait for it. Returns the learners to send `Collect` to.
    ///
    /// # Panics
    /// If a round is under way. [`super::Schedule`] launches on idle fragments only.
    pub fn launch(&mut self, now: Millis, launch: Launch) -> Vec<LearnerId> {
        assert!(self.is_idle(), "one round on a fragment at a time");
        let Launch { round, invited, last_of, .. } = launch;
        let taken = std::mem::take(&mut self.early);
        self.passed.clear();
        if !self.terms.is_additive {
            // Requests about an older version can no longer be answered.
            self.asked.clear();
        }
        let is_to_ask =
            |learner: &&LearnerId| !taken.contains_key(learner) && !self.asked.contains_key(learner);
        let ask: Vec<_> = invited.iter().filter(is_to_ask).copied().collect();
        self.asked.extend(ask.iter().map(|&learner| (learner, now)));
        let answered: BTreeSet<_> = taken.keys().copied().collect();
        let launched_before = self.launched.replace(now);
        let mut waiting = Waiting::default();
        for &learner in invited.difference(&answered) {
            waiting.begin(learner, is_overdue(self.asked.get(&learner), launched_before));
        }
        self.phase = Phase::Collecting(Collecting {
            round,
            launched: now,
            launched_before,
            invited,
            answered,
            waiting,
            taken,
            quorum_at: None,
            last_of,
            decision: None,
        });
        ask
    }

    /// Returns true if updates wait for the next round.
    #[must_use]
    pub fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Returns the serial number of the update of `learner` that has no fate yet, if there is one.
    #[must_use]
    pub fn unresolved(&self, learner: LearnerId) -> Option<Serial> {
        let taken = match &self.phase {
            Phase::Collecting(open) => open.taken.get(&learner).map(|taken| taken.serial),
            Phase::Merging(merging) => merging.serial(learner),
            Phase::Idle | Phase::RollingBack(_) => None,
        };
        taken.or_else(|| self.early.get(&learner).map(|taken| taken.serial))
    }

    /// Admits an update of `learner` to the collecting round, or to the next one if none collects.
    ///
    /// # Errors
    /// [`Fate::Late`] or [`Fate::Refused`] for an update that is not admitted. It is still an answer: the round no
    /// longer waits for this learner.
    pub fn answer(
        &mut self,
        now: Millis,
        learner: LearnerId,
        update: Verified,
        sender: &SenderInfo,
    ) -> Result<AdmittedAnswer, Fate> {
        let asked = self.asked.remove(&learner);
        let admitted = self.admit(now, learner, &update, sender);
        let open = match &mut self.phase {
            Phase::Collecting(open) => Some(open),
            Phase::Idle | Phase::Merging(_) | Phase::RollingBack(_) => None,
        };
        let round = open.as_ref().map(|open| open.round);
        let taken = open.map_or(&mut self.early, |open| {
            open.answer(learner);
            &mut open.taken
        });
        let Admitted { steps, tokens, seen } = admitted?;
        let Verified { serial, base, body, checksum, .. } = update;
        let body = body.map_err(Fate::Refused)?;
        let (until, came) = (asked.unwrap_or(now), now);
        let trust = sender.trust;
        taken.insert(
            learner,
            PendingUpdate { serial, base, steps, tokens, seen, trust, until, came, body, checksum },
        );
        Ok(AdmittedAnswer { round, tokens, after_ms: asked.map(|asked| now.since(asked)) })
    }

    /// Returns the quorum of the collecting round, once per round as soon as it is reached.
    pub fn reach_quorum(&mut self, now: Millis) -> Option<Quorum> {
        let policy = self.policy()?;
        let view = self.view()?;
        let open = self.collecting_mut()?;
        if open.quorum_at.is_some() || !policy.is_quorate(&view) {
            return None;
        }
        open.quorum_at = Some(now);
        Some(Quorum { round: open.round, updates: view.updates, after_ms: now.since(open.launched) })
    }

    /// Returns the decision about the collecting round; `None` if none collects. The caller follows it: it calls
    /// [`Self::merge`] on [`Decision::Merge`] and [`Self::abandon`] on [`Decision::Abandon`].
    pub fn decide(&mut self, now: Millis, timing: &Timing) -> Option<RoundDecision> {
        let decision = self.policy()?.decide(timing, now, &self.view()?);
        let open = self.collecting_mut()?;
        let kind = std::mem::discriminant(&decision);
        let is_new = open.decision.as_ref().map(std::mem::discriminant) != Some(kind);
        open.decision = Some(decision);
        Some(RoundDecision { round: open.round, decision, is_new })
    }

    /// Returns the time at which the collecting round ends without further answers; `None` if none collects.
    #[must_use]
    pub fn ends_at(&self, now: Millis, timing: &Timing) -> Option<Millis> {
        Some(match self.policy()?.decide(timing, now, &self.view()?) {
            Decision::AwaitQuorum { until, .. } | Decision::AwaitGrace { until, .. } => until,
            Decision::Merge { .. } | Decision::Abandon { .. } => now,
        })
    }

    /// Changes the quorum policy and the merge rule.
    pub(crate) fn retune(&mut self, quorum: QuorumPolicy, merge: MergeRule) {
        (self.terms.quorum, self.terms.merge) = (quorum, merge);
    }

    /// Ends the collecting round without a version. Learners may still answer its requests.
    pub fn abandon(&mut self) {
        if self.collecting().is_some() {
            self.phase = Phase::Idle;
        }
    }

    /// Credits steps of `learner` from `now` on, unless a time is known already.
    pub fn count_from(&mut self, now: Millis, learner: LearnerId) {
        self.credited.entry(learner).or_insert(now);
    }

    /// Forgets the arrival of the last update of `learner`, which began a new process. The time since then may include
    /// time without training, so it would distort the pace.
    pub fn restart(&mut self, learner: LearnerId) {
        self.came.remove(&learner);
    }

    /// Forgets `learner`, which has no merged update.
    pub fn forget(&mut self, learner: LearnerId) {
        self.credited.remove(&learner);
        self.came.remove(&learner);
        self.cancel_request(learner);
    }

    fn collecting(&self) -> Option<&Collecting> {
        match &self.phase {
            Phase::Collecting(open) => Some(open),
            Phase::Idle | Phase::Merging(_) | Phase::RollingBack(_) => None,
        }
    }

    fn collecting_mut(&mut self) -> Option<&mut Collecting> {
        match &mut self.phase {
            Phase::Collecting(open) => Some(open),
            Phase::Idle | Phase::Merging(_) | Phase::RollingBack(_) => None,
        }
    }

    fn view(&self) -> Option<RoundView> {
        let open = self.collecting()?;
        // A last round waits for all learners.
        let overdue = if open.last_of.is_some() { 0 } else { open.waiting.overdue() };
        Some(RoundView {
            launched: open.launched,
            updates: open.taken.len() as u32,
            pending: open.waiting.pending(),
            overdue,
            quorum_at: open.quorum_at,
            at_once: open.last_of.unwrap_or(1),
        })
    }

    fn policy(&self) -> Option<QuorumPolicy> {
        let everyone = QuorumPolicy { updates_min: NonZeroU32::MAX, ..self.terms.quorum };
        let open = self.collecting()?;
        Some(if open.last_of.is_some() { everyone } else { self.terms.quorum })
    }
}

/// Returns true if a learner has had a whole round to answer: it was asked at or before the previous launch.
fn is_overdue(asked: Option<&Millis>, launched_before: Option<Millis>) -> bool {
    asked.zip(launched_before).is_some_and(|(&at, launched)| at <= launched)
}

impl Rounds {
    /// Returns true if `learner` may be asked ahead of the next round: the fragment is idle and its progress is kept by
    /// learners, and `learner` has no unanswered request, no waiting update, and did not just answer without an update.
    #[must_use]
    pub fn may_ask_ahead(&self, learner: LearnerId) -> bool {
        self.terms.is_additive
            && self.is_idle()
            && !self.asked.contains_key(&learner)
            && !self.early.contains_key(&learner)
            && !self.passed.contains(&learner)
    }

    /// Notes that `learner` is asked ahead of the next round.
    pub fn ask_ahead(&mut self, now: Millis, learner: LearnerId) {
        self.asked.entry(learner).or_insert(now);
    }

    /// Handles the reconnection of `learner`. Returns true if the collecting round lacks its answer; the caller then
    /// sends it `Collect`.
    pub fn ask_again(&mut self, now: Millis, learner: LearnerId) -> bool {
        let Some(open) = self.collecting_mut().filter(|open| open.awaits(learner)) else { return false };
        open.waiting.begin(learner, is_overdue(Some(&now), open.launched_before));
        self.asked.insert(learner, now);
        true
    }

    /// Handles the answer of `learner` that it has no update; `None` if it was not asked or no round waits for it.
    pub fn pass(&mut self, now: Millis, learner: LearnerId) -> Option<AdmittedAnswer> {
        let asked = self.asked.remove(&learner)?;
        let Some(open) = self.collecting_mut().filter(|open| open.awaits(learner)) else {
            self.passed.insert(learner);
            return None;
        };
        open.answer(learner);
        Some(AdmittedAnswer { round: Some(open.round), tokens: 0, after_ms: Some(now.since(asked)) })
    }

    /// Returns true if `learner` has an unanswered request.
    pub(crate) fn is_asked(&self, learner: LearnerId) -> bool {
        self.asked.contains_key(&learner)
    }

    /// Drops the requests to all learners that are not in `those`.
    pub fn cancel_other_requests(&mut self, those: &BTreeSet<LearnerId>) {
        self.asked.retain(|learner, _| those.contains(learner));
        self.passed.retain(|learner| those.contains(learner));
    }

    /// Drops the request to `learner`, whose connection is gone. The round no longer waits for it.
    pub fn cancel_request(&mut self, learner: LearnerId) {
        if let Some(open) = self.collecting_mut() {
            open.waiting.end(learner);
        }
        self.asked.remove(&learner);
        self.passed.remove(&learner);
    }
}

/// Round that collects updates.
#[derive(Debug)]
struct Collecting {
    round: Round,
    launched: Millis,
    /// Time of the previous launch on this fragment. A learner asked by then has had a whole round to answer.
    launched_before: Option<Millis>,
    invited: BTreeSet<LearnerId>,
    answered: BTreeSet<LearnerId>,
    waiting: Waiting,
    /// Admitted updates.
    taken: BTreeMap<LearnerId, PendingUpdate>,
    quorum_at: Option<Millis>,
    /// As in [`Launch::last_of`].
    last_of: Option<u32>,
    /// The last decision that was returned.
    decision: Option<Decision>,
}

impl Collecting {
    fn awaits(&self, learner: LearnerId) -> bool {
        self.invited.contains(&learner) && !self.answered.contains(&learner)
    }

    fn answer(&mut self, learner: LearnerId) {
        self.answered.insert(learner);
        self.waiting.end(learner);
    }
}

/// Admitted answer of a learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmittedAnswer {
    /// Round of the answer; `None` if it waits for the next round.
    pub round: Option<Round>,
    /// Credited tokens of the update; 0 for an answer without an update.
    pub tokens: u64,
    /// Time since the request, in milliseconds; `None` without a request.
    pub after_ms: Option<u64>,
}

/// Round that has just reached its quorum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quorum {
    /// The round.
    pub round: Round,
    /// Number of updates admitted so far.
    pub updates: u32,
    /// Time since the round was launched, in milliseconds.
    pub after_ms: u64,
}

/// Decision about the collecting round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundDecision {
    /// The round.
    pub round: Round,
    /// The decision.
    pub decision: Decision,
    /// Whether the kind of decision differs from the previous one.
    pub is_new: bool,
}

/// Invited learners that are connected and have not answered.
#[derive(Debug, Default)]
struct Waiting {
    pending: BTreeSet<LearnerId>,
    /// Those among the pending learners that have had a whole round to answer.
    overdue: BTreeSet<LearnerId>,
}

impl Waiting {
    /// Starts waiting for `learner`.
    fn begin(&mut self, learner: LearnerId, is_overdue: bool) {
        self.pending.insert(learner);
        if is_overdue {
            self.overdue.insert(learner);
        } else {
            self.overdue.remove(&learner);
        }
    }

    /// Stops waiting for `learner`, which answered or left.
    fn end(&mut self, learner: LearnerId) {
        if self.pending.remove(&learner) {
            self.overdue.remove(&learner);
        }
    }

    /// Returns the number of pending learners.
    fn pending(&self) -> u32 {
        self.pending.len() as u32
    }

    /// Returns the number of pending learners that have had a whole round to answer.
    fn overdue(&self) -> u32 {
        self.overdue.len() as u32
    }
}

#[cfg(test)]
mod tests;
