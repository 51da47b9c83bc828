//! Rounds: launch, collect, merge, settle.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use super::{Event, FIRST_ROUND, Output, Syncer};
use crate::diloco::checksum;
use crate::diloco::{Decision, OuterSpec, QuorumPolicy, RoundView};
use crate::diloco::{FragmentState, MergeError, MergeJob, MergeOutcome, Weighted};
use crate::wire::{
    CloseCode, ConnId, Fate, FragmentId, LateReason, LearnerId, Merged, Message, Millis, Round, Update,
    Version,
};

/// Weight of the newest value in the moving averages of times.
const TIMING_WEIGHT: f64 = 0.5;

/// Launches that are remembered, to know how late an update is that comes after its round.
const LAUNCHES_MAX: usize = 256;

/// A round that collects.
pub(super) struct Open {
    pub(super) round: Round,
    pub(super) base: Version,
    launched: Millis,
    pub(super) invited: BTreeSet<LearnerId>,
    pub(super) answered: BTreeSet<LearnerId>,
    taken: BTreeMap<LearnerId, Taken>,
    quorum_at: Option<Millis>,
    /// The last of a finishing run waits for everyone.
    last: bool,
    /// Rounds launched together, this one included.
    at_once: u32,
    said: Option<Decision>,
}

/// An update that passed every check.
struct Taken {
    steps: u32,
    /// As far as they count.
    tokens: u64,
    body: Vec<u8>,
}

/// A round that is being merged.
pub(super) struct Closed {
    round: Round,
    shares: Vec<Share>,
    launched: Millis,
    began: Millis,
}

struct Share {
    learner: LearnerId,
    weight: f32,
    tokens: u64,
}

impl Syncer {
    /// Launches what is due: at most τ in flight, at least `H · ξ_step / P` apart.
    pub(super) fn launch_due(&mut self, now: Millis) {
        while self.launch_at().is_some_and(|at| at <= now) {
            let fragment = self.next_fragment;
            self.next_fragment = FragmentId((fragment.0 + 1) % self.fragments.count());
            let invited = self.cohort();
            self.launch(now, fragment, invited, None);
        }
    }

    /// When the next round may be launched; `None` if only an arrival can bring that about.
    pub(super) fn launch_at(&self) -> Option<Millis> {
        let in_flight = self.open.len() + self.closed.len();
        let busy = |p: &FragmentId| self.open.contains_key(p) || self.closed.contains_key(p);
        let live = self.sessions.values().filter(|session| session.live).count();
        // Once a run has begun, whoever is there carries it on, also after a restart.
        let needed =
            if self.next_round == FIRST_ROUND { self.config.learners_start.max(1) as usize } else { 1 };
        let measured = self.sessions.values().any(|session| session.live && session.step_ms > 0.0);
        let full = in_flight >= self.config.quorum.rounds_in_flight.max(1) as usize;
        if self.finishing.is_some()
            || self.held
            || full
            || busy(&self.next_fragment)
            || live < needed
            || !measured
        {
            return None;
        }
        let Some(launched) = self.launched else { return Some(Millis(0)) };
        let exchange = &self.spec.exchange;
        let floor_ms =
            f64::from(exchange.sync_every) * self.timing.step_ms / f64::from(self.fragments.count());
        Some(launched.after(floor_ms.ceil() as u64))
    }

    /// Launches the last round of each fragment that is free.
    pub(super) fn launch_last(&mut self, now: Millis) {
        let live: BTreeSet<_> = self.live().collect();
        let Some(finishing) = self.finishing.as_mut() else { return };
        let (open, closed) = (&self.open, &self.closed);
        let (busy, free): (Vec<_>, Vec<_>) = std::mem::take(&mut finishing.todo)
            .into_iter()
            .partition(|p| open.contains_key(p) || closed.contains_key(p));
        finishing.todo = busy;
        if live.is_empty() {
            return;
        }
        let together = u32::try_from(free.len()).unwrap_or(u32::MAX);
        for fragment in free {
            self.launch(now, fragment, live.clone(), Some(together));
        }
    }

    /// Ends the rounds whose time has come.
    pub(super) fn close_rounds(&mut self, now: Millis) {
        for fragment in self.open.keys().copied().collect::<Vec<_>>() {
            let Some((view, policy)) = self.view(fragment) else { continue };
            if policy.is_quorate(&view) && view.quorum_at.is_none() {
                self.reach_quorum(now, fragment);
            }
            let Some((view, policy)) = self.view(fragment) else { continue };
            let decision = policy.decide(&self.timing, now, &view);
            let Some(open) = self.open.get_mut(&fragment) else { continue };
            let round = open.round;
            let changed =
                open.said.as_ref().map(std::mem::discriminant) != Some(std::mem::discriminant(&decision));
            open.said = Some(decision);
            if changed {
                self.event(Event::Decided { round, fragment, decision });
            }
            match decision {
                Decision::Merge { .. } => self.merge(now, fragment),
                Decision::Abandon { .. } => {
                    self.open.remove(&fragment);
                    self.rounds_abandoned += 1;
                }
                Decision::AwaitQuorum { .. } | Decision::AwaitGrace { .. } => {}
            }
        }
    }

    /// When `open` ends if nobody answers any more.
    pub(super) fn ends_at(&self, now: Millis, open: &Open) -> Option<Millis> {
        match self.policy(open).decide(&self.timing, now, &self.view_of(open)) {
            Decision::AwaitQuorum { until, .. } | Decision::AwaitGrace { until, .. } => Some(until),
            Decision::Merge { .. } | Decision::Abandon { .. } => Some(now),
        }
    }

    pub(super) fn on_pass(&mut self, now: Millis, conn: ConnId, round: Round, fragment: FragmentId) {
        let Some(learner) = self.sessions.get(&conn).map(|session| session.learner) else { return };
        if let Some(open) = self.open.get_mut(&fragment).filter(|open| open.round == round)
            && open.invited.contains(&learner)
            && open.answered.insert(learner)
        {
            let after_ms = now.since(open.launched);
            self.event(Event::Answered { round, fragment, learner, tokens: 0, after_ms });
        }
    }

    pub(super) fn on_update(&mut self, now: Millis, conn: ConnId, update: Update) {
        let Some(learner) = self.sessions.get(&conn).map(|session| session.learner) else { return };
        if usize::from(update.fragment.0) >= self.states.len() {
            let reason = format!("there is no fragment {}", update.fragment);
            return self.refuse(conn, CloseCode::Protocol, reason);
        }
        if let Some(account) = self.ledger.account_mut(learner) {
            account.updates += 1;
        }
        let (round, fragment, tokens) = (update.round, update.fragment, update.tokens);
        if let Some(&launched) = self.launches.get(&round) {
            self.timing.answer_ms = average(self.timing.answer_ms, now.since(launched) as f64);
        }
        let fate = match self.check(now, learner, &update) {
            Ok(tokens) => {
                let taken = Taken { steps: update.steps, tokens, body: update.body };
                let open = self.open.get_mut(&fragment).expect("`check` found the round");
                open.answered.insert(learner);
                open.taken.insert(learner, taken);
                let after_ms = now.since(open.launched);
                return self.event(Event::Answered { round, fragment, learner, tokens, after_ms });
            }
            Err(fate) => fate,
        };
        let invited = |open: &&mut Open| open.round == round && open.invited.contains(&learner);
        if let Some(open) = self.open.get_mut(&fragment).filter(invited) {
            open.answered.insert(learner);
        }
        self.settle(round, fragment, learner, tokens, fate);
        let refusals = self.ledger.account(learner).map_or(0, |account| account.refused_in_a_row);
        if refusals >= self.config.refusals_max {
            let reason =
                format!("{refusals} updates in a row were refused: start again with fresh parameters");
            self.refuse(conn, CloseCode::Untrusted, reason);
        }
    }

    pub(super) fn on_merge_done(&mut self, now: Millis, outcome: MergeOutcome) {
        let MergeOutcome { round, fragment, state, body, norm } = outcome;
        let closed = self.closed.remove(&fragment).filter(|closed| closed.round == round);
        let Some(closed) = closed else { return };
        let p = usize::from(fragment.0);
        let (base, version) = (self.versions[p], state.version);
        self.versions[p] = version;
        self.states[p] = Some(state);
        self.rounds_merged += 1;
        let sync_ms = now.since(closed.began);
        self.timing.sync_ms = average(self.timing.sync_ms, sync_ms as f64);

        let (updates, mut tokens) = (closed.shares.len() as u32, 0);
        for Share { learner, weight, tokens: counted } in closed.shares {
            tokens += counted;
            self.counted.insert((learner, fragment), closed.launched);
            let fate = Fate::Merged { version, weight, tokens: counted };
            self.settle(round, fragment, learner, counted, fate);
        }
        let clock_tokens = self.ledger.clock_tokens();
        let checksum = checksum(&body);
        let run = self.run;
        let merged = Merged { run, round, fragment, base, version, clock_tokens, body, checksum };
        let everyone = self.sessions.keys().copied().collect();
        self.out.push_back(Output::Broadcast(everyone, Message::Merged(merged)));
        let collect_ms = closed.began.since(closed.launched);
        self.event(Event::Merged {
            round,
            fragment,
            version,
            updates,
            tokens,
            norm,
            clock_tokens,
            collect_ms,
            sync_ms,
        });
    }

    pub(super) fn on_merge_failed(&mut self, fragment: FragmentId, state: FragmentState, error: &MergeError) {
        let Some(closed) = self.closed.remove(&fragment) else { return };
        let round = closed.round;
        self.states[usize::from(fragment.0)] = Some(state);
        self.rounds_abandoned += 1;
        for share in closed.shares {
            let fate = Fate::Late(LateReason::RoundOver);
            self.settle(round, fragment, share.learner, share.tokens, fate);
        }
        self.event(Event::MergeFailed { round, fragment, error: error.to_string() });
    }

    /// Starts a round on `fragment`: one of so many last ones, or one as any other.
    fn launch(
        &mut self,
        now: Millis,
        fragment: FragmentId,
        invited: BTreeSet<LearnerId>,
        last_of: Option<u32>,
    ) {
        let round = Round(self.next_round);
        self.next_round += 1;
        self.launched = Some(now);
        self.launches.insert(round, now);
        if self.launches.len() > LAUNCHES_MAX {
            self.launches.pop_first();
        }
        let base = self.versions[usize::from(fragment.0)];
        let collect = Message::Collect { run: self.run, round, fragment, base };
        let conns = invited.iter().filter_map(|learner| self.connections.get(learner).copied()).collect();
        self.out.push_back(Output::Broadcast(conns, collect));
        let count = invited.len() as u32;
        self.event(Event::Launched { round, fragment, invited: count, step_ms: self.timing.step_ms });
        let open = Open {
            round,
            base,
            launched: now,
            invited,
            answered: BTreeSet::new(),
            taken: BTreeMap::new(),
            quorum_at: None,
            last: last_of.is_some(),
            at_once: last_of.unwrap_or(1),
            said: None,
        };
        self.open.insert(fragment, open);
    }

    /// Asks one that came back for what its rounds still wait for: the question may have been lost with its
    /// connection.
    pub(super) fn ask_again(&mut self, conn: ConnId, learner: LearnerId) {
        for (&fragment, open) in &self.open {
            if open.invited.contains(&learner) && !open.answered.contains(&learner) {
                let collect =
                    Message::Collect { run: self.run, round: open.round, fragment, base: open.base };
                self.out.push_back(Output::Send(conn, collect));
            }
        }
    }

    /// The live learners, or a sample that moves on with each turn of all fragments: a step for each round could
    /// ask the same learners for the same fragment every time.
    fn cohort(&self) -> BTreeSet<LearnerId> {
        let live: BTreeSet<_> = self.live().collect();
        let size = (self.config.cohort_max.max(1) as usize).min(live.len());
        let turn = self.next_round / u64::from(self.fragments.count());
        let skip = (turn as usize).wrapping_mul(size) % live.len().max(1);
        live.iter().cycle().skip(skip).take(size).copied().collect()
    }

    fn live(&self) -> impl Iterator<Item = LearnerId> {
        self.sessions.values().filter(|session| session.live).map(|session| session.learner)
    }

    fn view(&self, fragment: FragmentId) -> Option<(RoundView, QuorumPolicy)> {
        let open = self.open.get(&fragment)?;
        Some((self.view_of(open), self.policy(open)))
    }

    fn view_of(&self, open: &Open) -> RoundView {
        let alive = |learner: &&LearnerId| {
            let session = self.connections.get(*learner).and_then(|conn| self.sessions.get(conn));
            session.is_some_and(|session| session.live)
        };
        let pending = open.invited.difference(&open.answered).filter(alive).count() as u32;
        let updates = open.taken.len() as u32;
        let Open { launched, quorum_at, at_once, .. } = *open;
        RoundView { launched, updates, pending, quorum_at, at_once }
    }

    fn policy(&self, open: &Open) -> QuorumPolicy {
        match open.last {
            true => QuorumPolicy { updates_min: NonZeroU32::MAX, ..self.config.quorum },
            false => self.config.quorum,
        }
    }

    fn reach_quorum(&mut self, now: Millis, fragment: FragmentId) {
        let Some(open) = self.open.get_mut(&fragment) else { return };
        open.quorum_at = Some(now);
        let (round, updates, after_ms) = (open.round, open.taken.len() as u32, now.since(open.launched));
        self.timing.quorum_ms = average(self.timing.quorum_ms, after_ms as f64);
        self.event(Event::Quorum { round, fragment, updates, after_ms });
    }

    /// Hands what was collected on `fragment` to a merge job.
    fn merge(&mut self, now: Millis, fragment: FragmentId) {
        let p = usize::from(fragment.0);
        let Some(open) = self.open.remove(&fragment) else { return };
        let state = self.states[p].take().expect("no other round on this fragment is in flight");
        let mut updates = Vec::with_capacity(open.taken.len());
        let mut shares = Vec::with_capacity(open.taken.len());
        let total: f64 = open.taken.values().map(weight).sum();
        for (learner, taken) in open.taken {
            let weight = weight(&taken);
            shares.push(Share { learner, weight: (weight / total) as f32, tokens: taken.tokens });
            updates.push(Weighted { learner, weight, body: taken.body });
        }
        let (round, launched) = (open.round, open.launched);
        self.closed.insert(fragment, Closed { round, shares, launched, began: now });
        self.out.push_back(Output::Merge(Box::new(MergeJob {
            round,
            fragment,
            state,
            updates,
            segments: self.fragments.segments(fragment).unwrap_or_default().to_vec(),
            codec: self.codec,
            rule: self.config.merge,
            outer: self.outer(),
            next: Version(round.0),
        })));
    }

    /// The outer step at this point of the run.
    fn outer(&self) -> OuterSpec {
        let warmup_tokens = self.config.momentum_warmup_ratio * self.spec.inner.total_tokens as f64;
        match warmup_tokens > 0.0 {
            true => self.config.outer.with_momentum_share(self.ledger.clock_tokens() as f64 / warmup_tokens),
            false => self.config.outer,
        }
    }

    /// Records the fate of an update and tells its learner.
    fn settle(&mut self, round: Round, fragment: FragmentId, learner: LearnerId, tokens: u64, fate: Fate) {
        self.ledger.settle(learner, fragment, round, &fate);
        if let Some(&conn) = self.connections.get(&learner) {
            let receipt = Message::Receipt { run: self.run, round, fragment, fate };
            self.out.push_back(Output::Send(conn, receipt));
        }
        self.event(Event::Settled { round, fragment, learner, tokens, fate });
    }
}

/// `w = tokens · tokens / steps`: quantity times quality.
fn weight(taken: &Taken) -> f64 {
    let tokens = taken.tokens as f64;
    tokens * tokens / f64::from(taken.steps)
}

fn average(old: f64, new: f64) -> f64 {
    if old == 0.0 { new } else { old + TIMING_WEIGHT * (new - old) }
}
