//! The rounds of one fragment: collect, decide, merge, one after the other.
//!
//! [`Rounds`] owns all that belongs to one fragment and to no other: Θ, Θ̂ and momentum, the version, the round that
//! is under way, and what norms its updates usually have. It knows nothing of connections, leases or other fragments.
//! What it needs of them comes in as values ([`Launch`], [`Standing`]), and what it finds goes out as values
//! ([`Merge`] and [`super::Settled`] among them). So the rounds of one fragment can live in a process of their own.

mod admit;
mod ask;
mod collecting;
mod influence;
mod merge;
mod remake;
mod usual;
mod verdict;
mod verify;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;

pub use influence::Influence;
pub use merge::{Merge, Paced};
pub use remake::Remade;
pub use verdict::{Answered, Quorum, Verdict};
pub use verify::{Verified, Verifier};

use super::{
    CheckedBody, Codec, Decision, FragmentExpert, FragmentState, Launch, MergeRule, QuorumPolicy, Repute,
    RoundView, Segment, Standing, Timing,
};
use crate::wire::{Fate, FragmentId, InnerSpec, LearnerId, Millis, Mixture, Serial, Version};
use admit::Admitted;
use collecting::Collecting;
use merge::Merging;
use remake::Remaking;
use usual::Usual;
use waiting::Waiting;

/// What decides the rounds of a fragment.
#[derive(Clone, Debug)]
pub struct RoundTerms {
    /// The fragment.
    pub fragment: FragmentId,
    /// Its pieces of tensors.
    pub segments: Vec<Segment>,
    /// The experts that they are of.
    pub experts: Vec<FragmentExpert>,
    /// What the experts of the model are, if it has any.
    pub mixture: Option<Mixture>,
    /// How bodies are coded.
    pub codec: Codec,
    /// The inner optimiser of the run, which bounds how far an update can reach.
    pub inner: InnerSpec,
    /// H, in steps.
    pub sync_every: u32,
    /// Whether an update can be merged later than it was asked for: see `ApplyPolicy::is_additive`.
    pub is_additive: bool,
    /// How long a lease lasts, in milliseconds.
    pub lease_ms: u64,
    /// When a round is over.
    pub quorum: QuorumPolicy,
    /// How updates are merged.
    pub merge: MergeRule,
    /// What an update weighs.
    pub influence: Influence,
    /// On each segment the norm of an update counts up to this many times the usual one at its pace; 0 for no bound.
    pub norm_ratio_max: f64,
}

/// The rounds of one fragment, at most one of them under way.
#[derive(Debug)]
pub struct Rounds {
    terms: RoundTerms,
    /// Names the content of Θ̂; known while a merge job has the state, too.
    version: Version,
    /// `None` while a merge job has it.
    state: Option<FragmentState>,
    phase: Phase,
    /// Who was asked and has not answered, and since when.
    asked: BTreeMap<LearnerId, Millis>,
    /// Who was asked ahead of the next round and had nothing to report.
    passed: BTreeSet<LearnerId>,
    /// When the last round was launched.
    launched: Option<Millis>,
    /// Answers that came while no round collected: they are part of the next one.
    early: BTreeMap<LearnerId, Taken>,
    usual: Usual,
    /// The latest versions, oldest first.
    versions: VecDeque<Version>,
    /// Since when the tokens of a learner are not counted yet, as far as this process knows.
    counted: BTreeMap<LearnerId, Millis>,
    /// When the last update of a learner that was merged had come.
    came: BTreeMap<LearnerId, Millis>,
    /// The version that it was merged to.
    merged_to: BTreeMap<LearnerId, Version>,
}

#[derive(Debug)]
enum Phase {
    Idle,
    Collecting(Collecting),
    Merging(Merging),
    /// What it was merged to is being undone.
    Remaking(Remaking),
}

/// An update that passed every check.
#[derive(Debug)]
struct Taken {
    serial: Serial,
    /// The version that its sender held.
    base: Version,
    steps: u32,
    /// As far as they count.
    tokens: u64,
    /// Those that went through each expert, `[experts]`, as far as that is believed.
    seen: Vec<u64>,
    /// What is thought of its sender.
    repute: Repute,
    /// Steps after that moment are not in it.
    until: Millis,
    /// When it came.
    came: Millis,
    body: CheckedBody,
    checksum: u64,
}

impl Rounds {
    /// The rounds of a fragment in `state`, none of them under way. What is known of norms and of uncounted time is
    /// not part of the state: it starts anew with each process.
    #[must_use]
    pub fn new(terms: RoundTerms, state: FragmentState) -> Self {
        Self {
            usual: Usual::new(&terms.segments),
            terms,
            version: state.version,
            state: Some(state),
            phase: Phase::Idle,
            asked: BTreeMap::new(),
            passed: BTreeSet::new(),
            launched: None,
            early: BTreeMap::new(),
            versions: VecDeque::new(),
            counted: BTreeMap::new(),
            came: BTreeMap::new(),
            merged_to: BTreeMap::new(),
        }
    }

    /// The version that learners are to hold.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether the body of `update`, if it can be one, is as one of the fragment.
    pub(crate) fn is_of_fragment(&self, update: &Verified) -> bool {
        update.body().is_none_or(|body| body.squares().len() == self.terms.segments.len())
    }

    /// Θ, Θ̂ and momentum; `None` while a merge job has them.
    #[must_use]
    pub fn state(&self) -> Option<&FragmentState> {
        self.state.as_ref()
    }

    /// Θ̂ and its version; `None` while a merge job has them.
    #[must_use]
    pub fn hat(&self) -> Option<(Version, Arc<Vec<f32>>)> {
        self.state.as_ref().map(|state| (state.version, Arc::clone(&state.hat)))
    }

    /// Whether no round is under way, so that one may be launched.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(self.phase, Phase::Idle)
    }

    /// Whether a merge job is at work.
    #[must_use]
    pub fn is_merging(&self) -> bool {
        matches!(self.phase, Phase::Merging(_) | Phase::Remaking(_))
    }

    /// Begins a round, with the answers that are there already. Gives those who are still to be asked for their
    /// progress.
    ///
    /// # Panics
    /// If a round is under way: [`super::Schedule`] launches on idle fragments only.
    pub fn launch(&mut self, now: Millis, launch: Launch) -> Vec<LearnerId> {
        assert!(self.is_idle(), "one round on a fragment at a time");
        let Launch { round, invited, last_of, .. } = launch;
        let taken = std::mem::take(&mut self.early);
        self.passed.clear();
        if !self.terms.is_additive {
            // Whoever was asked about an older version cannot answer any more.
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
            said: None,
        });
        ask
    }

    /// Whether answers wait for the next round.
    #[must_use]
    pub fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// The update of `learner` that is here and has no fate yet, if there is one.
    #[must_use]
    pub fn unsettled(&self, learner: LearnerId) -> Option<Serial> {
        let taken = match &self.phase {
            Phase::Collecting(open) => open.taken.get(&learner).map(|taken| taken.serial),
            Phase::Merging(merging) => merging.serial(learner),
            Phase::Idle | Phase::Remaking(_) => None,
        };
        taken.or_else(|| self.early.get(&learner).map(|taken| taken.serial))
    }

    /// Takes in an update of `learner`, for the round under way or the next one, or gives the fate that it meets at
    /// once.
    ///
    /// # Errors
    /// The fate, [`Fate::Late`] or [`Fate::Refused`]. A refused answer is an answer: the round waits no longer for
    /// this learner.
    pub fn answer(
        &mut self,
        now: Millis,
        learner: LearnerId,
        update: Verified,
        standing: &Standing,
    ) -> Result<Answered, Fate> {
        let asked = self.asked.remove(&learner);
        let admitted = self.admit(now, learner, &update, standing);
        let open = match &mut self.phase {
            Phase::Collecting(open) => Some(open),
            Phase::Idle | Phase::Merging(_) | Phase::Remaking(_) => None,
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
        let repute = standing.repute;
        taken.insert(
            learner,
            Taken { serial, base, steps, tokens, seen, repute, until, came, body, checksum },
        );
        Ok(Answered { round, tokens, after_ms: asked.map(|asked| now.since(asked)) })
    }

    /// Notes once that the round under way has its quorum.
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

    /// What to do about the round under way; `None` if none collects. On [`Decision::Merge`] call [`Self::merge`], on
    /// [`Decision::Abandon`] [`Self::abandon`].
    pub fn decide(&mut self, now: Millis, timing: &Timing) -> Option<Verdict> {
        let decision = self.policy()?.decide(timing, now, &self.view()?);
        let open = self.collecting_mut()?;
        let kind = std::mem::discriminant(&decision);
        let is_new = open.said.as_ref().map(std::mem::discriminant) != Some(kind);
        open.said = Some(decision);
        Some(Verdict { round: open.round, decision, is_new })
    }

    /// When the round under way ends if nobody answers any more; `None` if none collects.
    #[must_use]
    pub fn ends_at(&self, now: Millis, timing: &Timing) -> Option<Millis> {
        Some(match self.policy()?.decide(timing, now, &self.view()?) {
            Decision::AwaitQuorum { until, .. } | Decision::AwaitGrace { until, .. } => until,
            Decision::Merge { .. } | Decision::Abandon { .. } => now,
        })
    }

    /// From now on rounds end by `quorum` and are merged by `merge`.
    pub(crate) fn retune(&mut self, quorum: QuorumPolicy, merge: MergeRule) {
        (self.terms.quorum, self.terms.merge) = (quorum, merge);
    }

    /// Ends the round that collects with nothing. Whoever has not answered yet still may.
    pub fn abandon(&mut self) {
        if self.collecting().is_some() {
            self.phase = Phase::Idle;
        }
    }

    /// Counts the tokens of `learner` from `now` on, unless an earlier moment is known.
    pub fn count_from(&mut self, now: Millis, learner: LearnerId) {
        self.counted.entry(learner).or_insert(now);
    }

    /// Forgets when the last update of `learner` came, because a new process trains for it. The time since an update of
    /// the previous process tells nothing about the pace.
    pub fn restart(&mut self, learner: LearnerId) {
        self.came.remove(&learner);
    }

    /// Forgets `learner`, of whom nothing was merged.
    pub fn forget(&mut self, learner: LearnerId) {
        self.counted.remove(&learner);
        self.came.remove(&learner);
        self.unask(learner);
    }

    fn collecting(&self) -> Option<&Collecting> {
        match &self.phase {
            Phase::Collecting(open) => Some(open),
            Phase::Idle | Phase::Merging(_) | Phase::Remaking(_) => None,
        }
    }

    fn collecting_mut(&mut self) -> Option<&mut Collecting> {
        match &mut self.phase {
            Phase::Collecting(open) => Some(open),
            Phase::Idle | Phase::Merging(_) | Phase::Remaking(_) => None,
        }
    }

    fn view(&self) -> Option<RoundView> {
        let open = self.collecting()?;
        // The last round waits for everyone.
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

/// Whether one that was `asked` then had the patience of a whole round, when the last one was launched.
fn is_overdue(asked: Option<&Millis>, launched_before: Option<Millis>) -> bool {
    asked.zip(launched_before).is_some_and(|(&at, launched)| at <= launched)
}

#[cfg(test)]
mod tests;
