//! The syncer: the one authority of a run, as a state machine.
//!
//! There are three kinds of methods. [`Syncer::handle`] takes in what happened. [`Syncer::poll`] gives
//! what to do; call it until `None` after every `handle`, or let [`Syncer::drive`] do both for a [`Host`].
//! [`Syncer::deadline`] says when to handle [`Input::Timeout`] if nothing else happens first. Time is an argument
//! and never goes back.
//!
//! Five machines do the work, each of which stands and is tested by itself:
//!
//! | machine | owns |
//! |---|---|
//! | `Rounds`, one for each fragment | Θ, Θ̂, momentum, version, the round under way, usual norms |
//! | `Roster` | who is connected, how fast, and the owner's hand on single learners |
//! | `Books` | leases, ledger, what each learner can have in stock |
//! | `Schedule` | when the next round is launched, on which fragment, and whom it asks |
//! | `Downlink` | which learner holds which version, and what is on its way to it |
//!
//! They hand each other values (`Launch`, `Standing`, `Settled`). [`Syncer`] only routes: it asks one machine, tells
//! another, and says to the outside what came of it.

mod again;
mod blame;
mod config;
mod exam;
mod hello;
mod host;
mod io;
mod led;
mod lookout;
mod people;
mod proof;
mod record;
mod recovery;
mod remake;
mod seats;
mod standing;
mod standings;
mod status;
#[cfg(test)]
mod tests;
mod trained;
mod turns;
mod undo;
mod upward;

use std::collections::{BTreeMap, VecDeque};
use std::num::NonZeroU16;
use std::sync::Arc;

pub use super::roster::DROP_MS_MAX;
pub use again::RecoveryError;
pub use blame::{Blame, Verdict};
pub use config::{SyncerConfig, SyncerError};
pub use exam::{EXAMINED_MAX, Exam, Shown, WINDOWS_MAX};
pub use host::Host;
pub use io::{Event, Input, LeaveCause, Output};
use led::Led;
pub use lookout::Lookout;
pub use people::BANNED;
pub use proof::{Proofs, Regard, Sampling};
pub use record::SyncerRecord;
pub use recovery::Recovery;
pub use remake::{Remake, RemakeJob, Undo, senders};
use standings::Standings;
pub use status::{LearnerStatus, Status};
pub use trained::{Fruit, Trained};
use undo::Undoing;
pub use undo::{HARMS_MAX, Trust};
pub use upward::{Answer, Followed, Paces, Upward};

use super::{
    Books, Codec, Downlink, Entry, FragmentState, Fragments, Layout, LeasePool, Ledger, MergeRule,
    QuorumPolicy, Roster, Rounds, Schedule, Timing, Verifier,
};
use crate::wire::{ConnId, FragmentId, LearnerId, Millis, RunId, RunSpec, Serial, Share, Version};

/// The state of a run and the rules by which it changes.
pub struct Syncer {
    run: RunId,
    spec: RunSpec,
    config: SyncerConfig,
    fragments: Arc<Fragments>,
    verifier: Verifier,
    /// By fragment, `[P]`.
    rounds: Vec<Rounds>,
    roster: Roster,
    books: Books,
    schedule: Schedule,
    downlink: Downlink,
    standings: Standings,
    /// Whether updates show that their senders train, for those whose updates are looked at.
    shown: BTreeMap<LearnerId, bool>,
    undoing: Undoing,
    /// Set if its rounds are led elsewhere.
    led: Option<Led>,
    /// When [`Self::ask_ahead`] has something to do.
    ask_ahead_at: Option<Millis>,
    out: VecDeque<Output>,
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
        let SyncerRecord { run, spec, leases, ledger, reins, .. } = record;
        let codec = Codec::new(&spec.exchange)?;
        let versions = states.iter().map(|state| state.version).collect();
        let rounds = fragments.ids().zip(states).map(|(fragment, state)| {
            Rounds::new(config.round_terms(&spec, fragment, &fragments, codec), state)
        });
        Ok(Self {
            run,
            rounds: rounds.collect(),
            roster: Roster::new(config.patience(), reins),
            books: Books::new(config.book_terms(&spec), leases, ledger),
            schedule: Schedule::new(config.schedule_terms(&spec, fragments.count()), turn),
            downlink: Downlink::new(config.downlink_terms(&fragments, codec), versions),
            verifier: Verifier::new(Arc::clone(&fragments), codec),
            spec,
            config,
            fragments,
            standings: Standings::default(),
            shown: BTreeMap::new(),
            undoing: Undoing::default(),
            led: None,
            ask_ahead_at: None,
            out: VecDeque::new(),
        })
    }

    /// Takes in what happened at `now`, which never goes back.
    pub fn handle(&mut self, now: Millis, input: Input) {
        match input {
            Input::Message(conn, message) => self.on_message(now, conn, message),
            Input::Update(conn, update) => self.on_verified(now, conn, *update),
            Input::Heard(conn) => self.roster.hear(now, conn),
            Input::Disconnected(conn) => self.on_disconnected(conn),
            Input::Merged(merged) => self.on_merged(now, *merged),
            Input::Undo(undo) => self.on_undo(now, *undo),
            Input::Regard { learner, regard } => self.on_regard(learner, regard),
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

    /// From now on rounds end by `quorum` and are merged by `merge`, those under way too: hand in [`Input::Timeout`]
    /// next. What is recorded stays true, for each merge is recorded with its rule and its parts; who takes a run up
    /// from its record says anew what holds.
    pub fn retune(&mut self, quorum: QuorumPolicy, merge: MergeRule) {
        (self.config.quorum, self.config.merge) = (quorum, merge);
        for rounds in &mut self.rounds {
            rounds.retune(quorum, merge);
        }
        self.schedule.retune(quorum.rounds_in_flight);
    }

    /// From now on so many learners may be connected, so many are asked in one round, and the run finishes at so many
    /// merged tokens (0 is never): hand in [`Input::Timeout`] next. Whoever is connected stays; nothing that is
    /// recorded depends on these.
    pub fn limit(&mut self, learners_max: u32, cohort_max: u32, stop_tokens: u64) {
        self.config = SyncerConfig { learners_max, cohort_max, stop_tokens, ..self.config };
        self.schedule.limit(cohort_max);
    }

    /// The next thing to do; call until `None` after every [`Self::handle`].
    pub fn poll(&mut self) -> Option<Output> {
        // What was decided comes before all that follows from it.
        self.books.next_entry().map(Output::Record).or_else(|| self.out.pop_front())
    }

    /// When to handle [`Input::Timeout`], if nothing else happens before; always after `now`.
    #[must_use]
    pub fn deadline(&self, now: Millis) -> Option<Millis> {
        let ends = |rounds: &Rounds| rounds.ends_at(now, self.schedule.timing());
        let rounds = self.rounds.iter().filter_map(ends);
        let may_end = !self.is_led() && self.schedule.may_end(self.rounds.iter().all(Rounds::is_idle));
        let end = may_end.then_some(now);
        let people = self.roster.deadline();
        let others = [people, self.books.deadline(), self.launch_at(), self.ask_ahead_at, end];
        rounds.chain(others.into_iter().flatten()).min().map(|at| at.max(now.after(1)))
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

    /// Looks into updates before they are handled, on any thread: see [`Input::Update`].
    #[must_use]
    pub fn verifier(&self) -> &Verifier {
        &self.verifier
    }

    /// The contribution ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        self.books.ledger()
    }

    /// The windows on lease.
    #[must_use]
    pub fn leases(&self) -> &LeasePool {
        self.books.leases()
    }

    /// Measured times.
    #[must_use]
    pub fn timing(&self) -> &Timing {
        self.schedule.timing()
    }

    /// Rounds that led to a version.
    #[must_use]
    pub fn rounds_merged(&self) -> u64 {
        self.schedule.turn().rounds_merged
    }

    /// Θ̂ of one fragment and its version; `None` for a fragment that does not exist or is being
    /// merged this moment (ask again after the next [`Input::Merged`]).
    #[must_use]
    pub fn hat(&self, fragment: FragmentId) -> Option<(Version, Arc<Vec<f32>>)> {
        self.rounds.get(usize::from(fragment.0))?.hat()
    }

    /// Θ of each fragment, `[P]`; `None` while anything is being merged. Nothing is copied.
    #[must_use]
    pub fn thetas(&self) -> Option<Vec<Arc<Vec<f32>>>> {
        self.rounds.iter().map(|rounds| Some(Arc::clone(&rounds.state()?.theta))).collect()
    }

    /// Θ, flat, `[layout.len()]`; `None` while anything is being merged.
    #[must_use]
    pub fn theta(&self) -> Option<Vec<f32>> {
        let thetas = self.thetas()?;
        let mut flat = vec![0.0; thetas.iter().map(|theta| theta.len()).sum()];
        for (fragment, theta) in self.fragments.ids().zip(&thetas) {
            self.fragments.scatter(fragment, theta, &mut flat);
        }
        Some(flat)
    }

    /// The connection of `learner`, if it is there.
    #[must_use]
    pub fn connection(&self, learner: LearnerId) -> Option<ConnId> {
        self.roster.conn(learner)
    }

    /// The state of each fragment that is not being merged this moment, in order.
    pub fn states(&self) -> impl Iterator<Item = &FragmentState> {
        self.rounds.iter().filter_map(Rounds::state)
    }

    /// The state of each fragment, `[P]`; `None` for one that is being merged this moment.
    pub fn rests(&self) -> impl Iterator<Item = Option<&FragmentState>> {
        self.rounds.iter().map(Rounds::state)
    }

    /// The update of `learner` on `fragment` that is here and has no fate yet, if there is one.
    #[must_use]
    pub fn unsettled(&self, learner: LearnerId, fragment: FragmentId) -> Option<Serial> {
        self.rounds.get(usize::from(fragment.0))?.unsettled(learner)
    }

    /// Whether the link of `learner` cannot carry every change, so that it fetches whole fragments.
    #[must_use]
    pub fn is_thin(&self, now: Millis, learner: LearnerId) -> bool {
        self.roster.conn(learner).is_some_and(|conn| self.downlink.is_thin(now, conn))
    }

    /// Whether the run is over for good: everyone was sent home, and who comes is told so.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.schedule.is_over()
    }

    /// Whether `learner` has ever been here: orders for another change nothing.
    #[must_use]
    pub fn knows(&self, learner: LearnerId) -> bool {
        self.ledger().account(learner).is_some()
    }

    /// The part of its time that the owner has `learner` train.
    #[must_use]
    pub fn share(&self, learner: LearnerId) -> Share {
        self.roster.share(learner)
    }

    /// When `learner` may come back, if the owner dropped it and that moment is not over at `now`.
    #[must_use]
    pub fn returns(&self, now: Millis, learner: LearnerId) -> Option<Millis> {
        self.roster.returns(now, learner)
    }

    /// Whatever time, or what just came in, makes due.
    fn advance(&mut self, now: Millis) {
        self.expire(now);
        self.close_rounds(now);
        if self.config.stop_tokens > 0 && self.ledger().schedule_tokens() >= self.config.stop_tokens {
            self.on_enough();
        }
        self.remake_due(now);
        self.launch_due(now);
        self.ask_ahead(now);
        self.say_goodbye();
    }

    fn finish(&mut self) {
        if !self.schedule.is_ending() {
            self.schedule.finish();
            self.books.note(Entry::Finishing);
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
