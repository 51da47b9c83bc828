//! The syncer: the one authority of a run, as a state machine.
//!
//! There are three kinds of methods. [`Syncer::handle`] takes in what happened. [`Syncer::poll`] gives
//! what to do; call it until `None` after every `handle`. [`Syncer::deadline`] says when to handle
//! [`Input::Timeout`] if nothing else happens first. Time is an argument and never goes back.
//!
//! Sub-machines, each in its file: `session` (who is connected), `round` (launch, collect, settle),
//! and [`super::LeasePool`], [`super::Ledger`], [`super::QuorumPolicy`], which know nothing of connections.

mod admit;
mod config;
mod io;
mod norm;
mod record;
mod rein;
mod round;
mod session;
mod speed;
mod status;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;

pub use config::{SyncerConfig, SyncerError};
pub use io::{Event, Input, LeaveCause, Output};
pub use record::SyncerRecord;
pub use rein::DROP_MS_MAX;
pub use status::{LearnerStatus, Status};

use super::Codec;
use super::FragmentState;
use super::LeasePool;
use super::Ledger;
use super::Timing;
use super::{Fragments, Layout};
use crate::data;
use crate::wire::{
    Bye, CloseCode, ConnId, FragmentId, LearnerId, Message, Millis, Round, RunId, RunSpec, Version,
};
use norm::NormGuard;
use rein::Rein;
use round::{Closed, Open};
use session::Session;
use speed::Supply;

/// The state of a run and the rules by which it changes.
pub struct Syncer {
    run: RunId,
    spec: RunSpec,
    config: SyncerConfig,
    fragments: Arc<Fragments>,
    codec: Codec,
    /// `None` while a merge job has it.
    states: Vec<Option<FragmentState>>,
    /// Known while merging too.
    versions: Vec<Version>,
    sessions: BTreeMap<ConnId, Session>,
    connections: BTreeMap<LearnerId, ConnId>,
    open: BTreeMap<FragmentId, Open>,
    closed: BTreeMap<FragmentId, Closed>,
    norms: Vec<NormGuard>,
    /// Since when the tokens of a learner on a fragment are not counted yet, as far as this process knows.
    counted: BTreeMap<(LearnerId, FragmentId), Millis>,
    leases: LeasePool,
    supplies: BTreeMap<LearnerId, Supply>,
    ledger: Ledger,
    timing: Timing,
    /// The number of the next round and of the version that it leads to.
    next_round: u64,
    next_fragment: FragmentId,
    /// When the last round was launched.
    launched: Option<Millis>,
    /// When the latest rounds were launched.
    launches: BTreeMap<Round, Millis>,
    rounds_merged: u64,
    rounds_abandoned: u64,
    /// The owner holds the run: nothing is launched or leased.
    held: bool,
    /// Learners that the owner slowed down or sent away.
    reins: BTreeMap<LearnerId, Rein>,
    finishing: Option<Finishing>,
    out: VecDeque<Output>,
}

/// The number of a run's first round.
const FIRST_ROUND: u64 = 1;

/// The last collection, before everyone is sent home.
struct Finishing {
    /// Fragments whose last round is still to come.
    todo: Vec<FragmentId>,
    said: bool,
}

impl Syncer {
    /// A new run that starts at `theta`, `[layout.len()]`.
    ///
    /// # Errors
    /// [`SyncerError::NoFragments`], [`SyncerError::NoSteps`], [`SyncerError::Codec`] and
    /// [`SyncerError::Lease`] for a `spec` that cannot be run; [`SyncerError::Parameters`] if `theta`
    /// does not fit the layout.
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
        let states = fragments.ids().map(|p| {
            let theta = fragments.gather(p, theta);
            let momentum = vec![0.0; theta.len()];
            FragmentState { version: Version(0), hat: Arc::new(theta.clone()), theta, momentum }
        });
        let states: Vec<_> = states.collect();
        let lens = fragments.ids().map(|p| fragments.len(p) as u32).collect();
        let windows = spec.data.shards.iter().map(|shard| data::windows(shard.tokens, spec.model.context));
        let leases = LeasePool::new(windows.collect())?;
        let record = SyncerRecord {
            run,
            spec,
            leases,
            ledger: Ledger::new(lens),
            timing: Timing::default(),
            next_round: FIRST_ROUND,
            next_fragment: FragmentId(0),
            rounds_merged: 0,
            rounds_abandoned: 0,
            held: false,
        };
        Self::assemble(record, config, fragments, states)
    }

    fn assemble(
        record: SyncerRecord,
        config: SyncerConfig,
        fragments: Arc<Fragments>,
        states: Vec<FragmentState>,
    ) -> Result<Self, SyncerError> {
        let codec = Codec::new(&record.spec.exchange)?;
        Ok(Self {
            run: record.run,
            config,
            codec,
            versions: states.iter().map(|state| state.version).collect(),
            norms: fragments.ids().map(|p| NormGuard::new(fragments.len(p))).collect(),
            states: states.into_iter().map(Some).collect(),
            fragments,
            spec: record.spec,
            sessions: BTreeMap::new(),
            connections: BTreeMap::new(),
            open: BTreeMap::new(),
            closed: BTreeMap::new(),
            counted: BTreeMap::new(),
            leases: record.leases,
            supplies: BTreeMap::new(),
            ledger: record.ledger,
            timing: record.timing,
            next_round: record.next_round,
            next_fragment: record.next_fragment,
            launched: None,
            launches: BTreeMap::new(),
            rounds_merged: record.rounds_merged,
            rounds_abandoned: record.rounds_abandoned,
            held: record.held,
            reins: BTreeMap::new(),
            finishing: None,
            out: VecDeque::new(),
        })
    }

    /// Takes in what happened at `now`, which never goes back.
    pub fn handle(&mut self, now: Millis, input: Input) {
        match input {
            Input::Message(conn, message) => self.on_message(now, conn, message),
            Input::Heard(conn) => self.on_heard(now, conn),
            Input::Disconnected(conn) => self.on_disconnected(conn),
            Input::MergeDone(outcome) => self.on_merge_done(now, *outcome),
            Input::MergeFailed { fragment, state, error } => self.on_merge_failed(fragment, *state, &error),
            Input::Finish => self.finish(),
            Input::Hold(held) => self.hold(now, held),
            Input::Pace { learner, share } => self.pace(learner, share),
            Input::Drop { learner, wait_ms } => self.drop_learner(now, learner, wait_ms),
            Input::Timeout => {}
        }
        self.advance(now);
    }

    /// The next thing to do; call until `None` after every [`Self::handle`].
    pub fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    /// When to handle [`Input::Timeout`], if nothing else happens before; always after `now`.
    #[must_use]
    pub fn deadline(&self, now: Millis) -> Option<Millis> {
        let sessions = self.sessions.values().map(|session| self.silent_at(session));
        let rounds = self.open.values().filter_map(|round| self.ends_at(now, round));
        let all = sessions.chain(rounds).chain(self.leases.deadline()).chain(self.launch_at());
        all.min().map(|at| at.max(now.after(1)))
    }

    /// The run.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// What the run is.
    #[must_use]
    pub fn spec(&self) -> &RunSpec {
        &self.spec
    }

    /// The syncer's knobs.
    #[must_use]
    pub fn config(&self) -> &SyncerConfig {
        &self.config
    }

    /// The fragments.
    #[must_use]
    pub fn fragments(&self) -> &Arc<Fragments> {
        &self.fragments
    }

    /// The contribution ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The windows on lease.
    #[must_use]
    pub fn leases(&self) -> &LeasePool {
        &self.leases
    }

    /// Θ̂ of one fragment and its version; `None` for a fragment that does not exist or is being
    /// merged this moment (ask again after the next [`Input::MergeDone`]).
    #[must_use]
    pub fn hat(&self, fragment: FragmentId) -> Option<(Version, Arc<Vec<f32>>)> {
        let state = self.states.get(usize::from(fragment.0))?.as_ref()?;
        Some((state.version, Arc::clone(&state.hat)))
    }

    /// Θ, flat, `[layout.len()]`; `None` while anything is being merged.
    #[must_use]
    pub fn theta(&self) -> Option<Vec<f32>> {
        let len = self.fragments.ids().map(|p| self.fragments.len(p)).sum();
        let mut flat = vec![0.0; len];
        for (p, state) in self.fragments.ids().zip(&self.states) {
            self.fragments.scatter(p, &state.as_ref()?.theta, &mut flat);
        }
        Some(flat)
    }

    /// The state of each fragment that is not being merged this moment, in order.
    pub fn states(&self) -> impl Iterator<Item = &FragmentState> {
        self.states.iter().flatten()
    }

    fn finish(&mut self) {
        let todo = self.fragments.ids().collect();
        self.finishing.get_or_insert(Finishing { todo, said: false });
    }

    /// Whatever time, or what just came in, makes due.
    fn advance(&mut self, now: Millis) {
        self.expire(now);
        self.close_rounds(now);
        if self.config.stop_tokens > 0 && self.ledger.clock_tokens() >= self.config.stop_tokens {
            self.finish();
        }
        if self.finishing.is_some() {
            self.launch_last(now);
        } else {
            self.launch_due(now);
        }
        self.say_goodbye();
    }

    /// Sends everyone home once the last round is merged.
    fn say_goodbye(&mut self) {
        let idle = self.open.is_empty() && self.closed.is_empty();
        let done = |finishing: &&mut Finishing| finishing.todo.is_empty() && !finishing.said;
        let Some(finishing) = self.finishing.as_mut().filter(done).filter(|_| idle) else { return };
        finishing.said = true;
        let bye = Bye::new(CloseCode::Done, "the run is complete: thank you");
        for conn in self.sessions.keys().copied().collect::<Vec<_>>() {
            self.close(conn, bye.clone());
        }
        self.out.push_back(Output::Finished);
    }

    /// Holds the run or lets it go on, and tells everyone.
    fn hold(&mut self, now: Millis, held: bool) {
        if self.held == held {
            return;
        }
        self.held = held;
        let everyone: Vec<_> = self.sessions.keys().copied().collect();
        self.out.push_back(Output::Broadcast(everyone.clone(), Message::Hold { run: self.run, held }));
        self.event(Event::Held { held });
        for conn in everyone {
            self.lease(now, conn);
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
