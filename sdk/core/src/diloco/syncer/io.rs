//! Interface of the syncer to the program that drives it: inputs, outputs, requests of leaders, and the status.

use super::{RemakeJob, Syncer, Undo};
use crate::diloco::sessions::Session;
use crate::diloco::trust::ContributionVerdict;
use crate::diloco::{
    Account, Decision, Entry, FateCounts, FragmentState, MergeEntry, MergeFailure, MergeJob, MergeOutcome,
    SenderInfo, Suspicion, Timing, Verified,
};
use crate::wire::{
    Bye, ConnId, Fate, Fingerprint, FragmentId, Hello, LearnerId, LearnerState, LeaseId, Message, Millis,
    Refusal, Round, Serial, Share, Version,
};
use serde::{Deserialize, Serialize};

/// Input of the syncer.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Input {
    /// A message arrived on a connection. The first one on a connection must be `Hello`.
    Message(ConnId, Message),
    /// The peer gave a sign of life below the level of messages (a pong, or a part of a large message).
    Heard(ConnId),
    /// The connection is gone, for any reason.
    Disconnected(ConnId),
    /// An update arrived and [`super::Syncer::verifier`] has verified it, so that the syncer need not. A shell without
    /// threads passes the message on unverified.
    Update(ConnId, Box<Verified>),
    /// A job from [`Output::Merge`] or [`Output::Remake`] is done, or failed and returns its state.
    Merged(Box<Result<MergeOutcome, Box<MergeFailure>>>),
    /// Merges did harm and are rolled back. A host that sends this must support [`Output::Remake`].
    Undo(Box<Undo>),
    /// The [`ContributionTest`](crate::diloco::trust::ContributionTest) changed its verdict on a learner.
    ContributionVerdict { learner: LearnerId, verdict: ContributionVerdict },
    /// Collect the last progress of every learner on every fragment, then say goodbye.
    Finish,
    /// The owner pauses or resumes the run. In a paused run nothing is leased, learners wait, and only a last
    /// collection is launched.
    Hold(bool),
    /// Whether decisions currently cannot be stored. Until they can, nothing is launched or leased. Learners keep
    /// training and receive no notice.
    Stall(bool),
    /// The owner sets the fraction of its time that a learner trains.
    Pace { learner: LearnerId, share: Share },
    /// The owner sends a learner away for `wait_ms`, at most [`super::DROP_MS_MAX`]; 0 lets it return.
    Drop { learner: LearnerId, wait_ms: u32 },
    /// The owner banned the identity with this fingerprint, so its connection is closed. The shell, which verifies
    /// identities, keeps it from returning.
    Ban(Fingerprint),
    /// Learner number for a connection that introduced itself, see [`super::LeaderRequest::Introduce`].
    Introduced { conn: ConnId, learner: LearnerId, hello: Box<Hello> },
    /// The leader of a fragment asks a learner for its progress, over the given connection.
    Asked { fragment: FragmentId, learner: LearnerId, conn: ConnId, round: Round },
    /// A forwarded update was not merged.
    Unmerged {
        fragment: FragmentId,
        learner: LearnerId,
        conn: ConnId,
        serial: Serial,
        /// Reason for a refusal; `None` if the update was only late.
        refusal: Option<Refusal>,
    },
    /// The leader of a fragment reports a new version.
    Followed(Box<Followed>),
    /// The leader of a fragment reports that a round ended without a version.
    Over(FragmentId, Round),
    /// The leader of a fragment reports that its last round is over. The run ends when this holds for all fragments.
    Closed(FragmentId),
    /// The number of an [`Output::Probe`] came back on this connection.
    Probed(ConnId, u64),
    /// The time of [`super::Syncer::deadline`] has come.
    Timeout,
}

/// Action for the host.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Send `message` on one connection.
    Send(ConnId, Message),
    /// Send `message` on several connections; encode it once.
    Broadcast(Vec<ConnId>, Message),
    /// Send the goodbye, then close the connection. No `Disconnected` is expected, but one does no harm.
    Close(ConnId, Bye),
    /// Store the entry before any later output reaches a peer: see [`super::Host::record`].
    Record(Entry),
    /// Run the job, here or elsewhere, and return the result as an input.
    Merge(Box<MergeJob>),
    /// Let the job follow the tape, here or elsewhere, once the tape has the version of its fragment. Then run it and
    /// return the result as [`Input::Merged`].
    Remake(Box<RemakeJob>),
    /// Forward this to the leaders of the rounds. Only for a host of [`super::Syncer::led_elsewhere`].
    LeaderRequest(LeaderRequest),
    /// Have the peer of a connection echo this number, as a WebSocket does by itself. Return the echo as
    /// [`Input::Probed`], after everything that arrived on the connection before it. Only for a host of
    /// [`super::Syncer::led_elsewhere`].
    Probe(ConnId, u64),
    /// Event for logs, the dashboard and tests.
    Event(Event),
    /// The run is complete: all learners have been informed and no output follows.
    Finished,
}

/// Fact about a run: an action of the syncer, with its details.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Event {
    /// A learner introduced itself.
    Joined { learner: LearnerId, name: String, device: String, returning: bool },
    /// A learner holds the parameters and trains.
    Live { learner: LearnerId },
    /// A learner is gone.
    Left { learner: LearnerId, why: LeaveCause },
    /// A connection that never became a learner was turned away, with this close code and reason.
    TurnedAway { code: u16, reason: String },
    /// A learner's state changed.
    State { learner: LearnerId, state: LearnerState },
    /// A round began.
    Launched { round: Round, fragment: FragmentId, invited: u32, step_ms: f64 },
    /// A learner answered `after_ms` after the question, with an update of `tokens` countable tokens, or with no update
    /// and 0 tokens. Without a round, the answer waits for the next one.
    Answered { round: Option<Round>, fragment: FragmentId, learner: LearnerId, tokens: u64, after_ms: u64 },
    /// A round reached its quorum of `updates` updates.
    Quorum { round: Round, fragment: FragmentId, updates: u32, after_ms: u64 },
    /// The decision about a round changed.
    Decided { round: Round, fragment: FragmentId, decision: Decision },
    /// Fate of an update, with its round if it was part of one.
    Settled {
        round: Option<Round>,
        fragment: FragmentId,
        learner: LearnerId,
        serial: Serial,
        tokens: u64,
        fate: Fate,
    },
    /// A round ended in a new version.
    Merged {
        round: Round,
        fragment: FragmentId,
        version: Version,
        updates: u32,
        tokens: u64,
        norm: f64,
        collect_ms: u64,
        sync_ms: u64,
    },
    /// Updates of a learner did harm, `harms` times so far. They are rolled back, and the learner is sent away.
    Blamed { learner: LearnerId, harms: u32 },
    /// The loss checks do not show that a learner trains as it claims. It counts as a newcomer, and its tokens count
    /// for nothing. Without a `doubt`, the checks clear it.
    Doubted { learner: LearnerId, doubt: Option<Suspicion> },
    /// A fragment was rolled back. It has a new version, at distance `norm` from the one before.
    Remade { round: Round, fragment: FragmentId, version: Version, norm: f64, sync_ms: u64 },
    /// The owner paused or resumed the run.
    Held { held: bool },
    /// The owner set the fraction of its time that a learner trains, in thousandths.
    Paced { learner: LearnerId, share: Share },
    /// The owner sent a learner away for `wait_ms`, or with 0 lets it return.
    Dropped { learner: LearnerId, wait_ms: u32 },
    /// A merge failed; the fragment is unchanged.
    MergeFailed { round: Round, fragment: FragmentId, error: String },
    /// A lease expired or was returned; its remaining `windows` go to other learners.
    LeaseReturned { learner: LearnerId, lease: LeaseId, windows: u32, expired: bool },
}

/// Reason why a learner left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "cause")]
pub enum LeaveCause {
    /// The learner said goodbye.
    Polite,
    /// The connection broke.
    Lost,
    /// The syncer closed the connection.
    Closed {
        /// The close code.
        code: u16,
        /// The reason that the learner was given.
        reason: String,
    },
}

/// Services that a syncer's host performs, in the order in which the syncer requests them.
pub trait Host {
    /// Sends `message` on each of `conns`; encodes it once.
    fn send(&mut self, conns: &[ConnId], message: Message);

    /// Sends the goodbye, then closes the connection. No [`Input::Disconnected`] is expected, but one does no harm.
    fn close(&mut self, conn: ConnId, bye: Bye);

    /// Runs the job, here or elsewhere, and returns the result as [`Input::Merged`].
    fn merge(&mut self, job: MergeJob);

    /// Lets the job follow the tape from its starting point, once the tape has the version of its fragment, and returns
    /// the result as [`Input::Merged`]. The default is for a host without a tape: it gives the job back, and the
    /// fragment stays as it is. A host that sends no [`Input::Undo`] is never asked.
    fn remake(&mut self, job: RemakeJob) -> Option<RemakeJob> {
        Some(job)
    }

    /// Forwards `said` to the leaders of the rounds. Never called if the syncer leads its own rounds, as the default
    /// assumes.
    fn leader_request(&mut self, request: LeaderRequest) {
        let _ = request;
    }

    /// Has the peer of `conn` echo this number, and returns the echo as [`Input::Probed`]. Never called if the syncer
    /// leads its own rounds, as the default assumes.
    fn probe(&mut self, conn: ConnId, number: u64) {
        let _ = (conn, number);
    }

    /// Stores `entry`, and sends no later output before the entry is safe. The default is for a host without a tape:
    /// after a crash it returns to its last snapshot, and what it told learners since then no longer holds.
    fn record(&mut self, entry: Entry) {
        let _ = entry;
    }

    /// Reports an event to logs, the dashboard and tests; `syncer` is in the state after it.
    fn note(&mut self, syncer: &Syncer, event: Event);

    /// Handles the end of the run: all learners have been informed, and no output follows.
    fn finished(&mut self);
}

impl Syncer {
    /// Handles an input and all outputs that follow from it.
    pub fn drive(&mut self, now: Millis, input: Input, host: &mut impl Host) {
        self.handle(now, input);
        self.drain(host);
    }

    /// Handles all pending outputs.
    pub fn drain(&mut self, host: &mut impl Host) {
        while let Some(output) = self.poll() {
            match output {
                Output::Send(conn, message) => host.send(&[conn], message),
                Output::Broadcast(conns, message) => host.send(&conns, message),
                Output::Close(conn, bye) => host.close(conn, bye),
                Output::Record(entry) => host.record(entry),
                Output::Merge(job) => host.merge(*job),
                Output::Remake(job) => {
                    if let Some(job) = host.remake(*job) {
                        self.give_back(job);
                    }
                }
                Output::LeaderRequest(request) => host.leader_request(request),
                Output::Probe(conn, number) => host.probe(conn, number),
                Output::Event(event) => host.note(self, event),
                Output::Finished => host.finished(),
            }
        }
    }
}

/// Message from a gateway to the leaders of the rounds.
#[derive(Debug)]
pub enum LeaderRequest {
    /// A learner introduces itself. Reply with [`super::Input::Introduced`] and its number, which is the same at every
    /// gateway. If [`Hello::run`] marks it as returning, first wait until each fragment's possibly open round has ended
    /// and [`super::Input::Followed`] has reported that.
    Introduce(ConnId, Box<Hello>),
    /// A learner takes part from now on, over this connection.
    Came(LearnerId, ConnId),
    /// A learner has left.
    Left(LearnerId, ConnId),
    /// A connection closed that never became a learner.
    Gone(ConnId),
    /// Current paces of the learners.
    Pace(Paces),
    /// The run has its number of merged tokens: each fragment shall have its last round.
    Enough,
    /// Answer of a learner in this round, over this connection.
    Answer(FragmentId, LearnerId, ConnId, Round, Answer),
}

/// Paces of learners; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Paces {
    /// Median time of a step, in milliseconds.
    pub step_ms: f64,
    /// Typical time of an answer, in milliseconds.
    pub answer_ms: f64,
}

/// Answer of a learner.
#[derive(Debug)]
pub enum Answer {
    /// Verified update, with the facts about its sender.
    Update(Box<Verified>, SenderInfo),
    /// No update.
    Nothing,
}

/// Merge that another process decided on.
#[derive(Debug)]
pub struct Followed {
    /// The merge without the bodies of its updates.
    pub merge: MergeEntry,
    /// New state of the fragment and its coded change from the previous version. Only Θ̂ of the state is kept. `None`
    /// if a later version is on its way.
    pub led: Option<(FragmentState, Vec<u8>)>,
}

/// Status of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The run id, as 16 hex digits.
    pub run: String,
    /// The layout hash, as 16 hex digits.
    pub layout: String,
    /// Parameters of the model.
    pub params: u64,
    /// Connected learners.
    pub connected: u32,
    /// Connected learners that hold the parameters and take part in rounds.
    pub live: u32,
    /// Learners in the ledger.
    pub learners_total: u32,
    /// Tokens trained on, by all learners.
    pub tokens_trained: u64,
    /// Tokens merged; also the clock of the inner schedule.
    pub tokens_merged: u64,
    /// Ratio of merged to trained tokens, 0 to 1.
    pub participation: f64,
    /// Rounds that led to a version.
    pub rounds: u64,
    /// Rounds that were abandoned.
    pub rounds_abandoned: u64,
    /// Rounds in flight.
    pub rounds_open: u32,
    /// Updates received.
    pub updates: u64,
    /// Updates without a fate, in rounds that are still in flight.
    pub updates_pending: u64,
    /// Fates of all other updates.
    pub fates: FateCounts,
    /// The pass over the data, from 0.
    pub epoch: u32,
    /// Upper bound on windows trained twice because of a lost lease.
    pub regranted_windows: u64,
    /// Measured times.
    pub timing: Timing,
    /// Current limit of the grace window, in milliseconds.
    pub grace_ms: u64,
    /// Mean of the connected learners' last training losses, in nats per token.
    pub train_loss: Option<f32>,
    /// Each fragment with its version and its number of values.
    pub fragments: Vec<(FragmentId, Version, u64)>,
    /// Whether the owner has paused the run: nothing is launched or leased.
    pub paused: bool,
    /// Whether the last collection has begun.
    pub finishing: bool,
    /// Whether the run is over for good.
    pub finished: bool,
}

/// Status of one learner.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnerStatus<'a> {
    /// Its id in the run.
    pub learner: LearnerId,
    /// Short form of its key.
    pub fingerprint: Fingerprint,
    /// Display name.
    pub name: &'a str,
    /// Device that it computes on.
    pub device: &'a str,
    /// Current activity; `None` while it is not connected.
    pub state: Option<LearnerState>,
    /// Whether it takes part in rounds.
    pub live: bool,
    /// Time of a step, in milliseconds; 0 if unknown.
    pub step_ms: f64,
    /// Windows in one step, as reported by the learner; 0 until it trains.
    pub batch: u32,
    /// Moving average of its answer time, in milliseconds; 0 if unknown.
    pub answer_ms: f64,
    /// Last training loss.
    pub loss: Option<f32>,
    /// Tokens that it trained on.
    pub tokens_trained: u64,
    /// Tokens of it that were merged.
    pub tokens_merged: u64,
    /// Updates received from it.
    pub updates: u64,
    /// Number of its updates by fate.
    pub fates: &'a FateCounts,
    /// Fraction of its time that the owner lets it train.
    pub share: Share,
    /// Start of the connection, on the shell's clock; `None` while it is not connected.
    pub since: Option<Millis>,
}

impl Syncer {
    /// Returns the status of the run.
    #[must_use]
    pub fn status(&self) -> Status {
        let (ledger, leases, turn) = (self.ledger(), self.leases(), self.schedule.turn());
        let (fates, updates) = (ledger.fates().clone(), ledger.updates());
        let versions = self.rounds.iter().map(|rounds| rounds.version());
        let size = |p| self.fragments.len(p) as u64;
        Status {
            run: self.run.to_string(),
            layout: self.fragments.hash().to_string(),
            params: self.fragments.ids().map(size).sum(),
            connected: self.roster.len() as u32,
            live: self.roster.live().len() as u32,
            learners_total: ledger.len() as u32,
            tokens_trained: ledger.tokens_trained(),
            tokens_merged: ledger.clock_tokens(),
            participation: ledger.participation(),
            rounds: turn.rounds_merged,
            rounds_abandoned: turn.rounds_abandoned,
            rounds_open: self.rounds.iter().filter(|rounds| !rounds.is_idle()).count() as u32,
            updates,
            updates_pending: updates - fates.total(),
            fates,
            epoch: leases.epoch(),
            regranted_windows: leases.regranted_windows(),
            timing: turn.timing,
            grace_ms: self.config.quorum.grace_ms(&turn.timing),
            train_loss: self.roster.train_loss(),
            fragments: self.fragments.ids().zip(versions).map(|(p, v)| (p, v, size(p))).collect(),
            paused: turn.is_held,
            finishing: self.schedule.is_ending(),
            finished: self.schedule.is_over(),
        }
    }

    /// Returns all learners in the ledger, by id.
    pub fn learners(&self) -> impl Iterator<Item = LearnerStatus<'_>> {
        let accounts = self.ledger().accounts();
        accounts.map(|(learner, account)| self.learner(learner, account, self.roster.session(learner)))
    }

    /// Returns all connected learners, by id.
    pub fn present(&self) -> impl Iterator<Item = LearnerStatus<'_>> {
        self.roster.sessions().filter_map(|(learner, session)| {
            Some(self.learner(learner, self.ledger().account(learner)?, Some(session)))
        })
    }

    fn learner<'a>(
        &'a self,
        learner: LearnerId,
        account: &'a Account,
        session: Option<&Session>,
    ) -> LearnerStatus<'a> {
        LearnerStatus {
            learner,
            fingerprint: account.fingerprint(),
            name: &account.name,
            device: &account.device,
            state: session.map(|session| session.state),
            live: session.is_some_and(|session| session.is_live),
            step_ms: session.map_or(0.0, |session| session.step_ms),
            batch: session.map_or(0, |session| session.batch),
            answer_ms: session.map_or(0.0, |session| session.answer_ms),
            loss: session.map(|session| session.loss).filter(|loss| loss.is_finite()),
            tokens_trained: account.trained(),
            tokens_merged: self.ledger().tokens_merged(account),
            updates: account.updates,
            fates: &account.fates,
            share: self.share(learner),
            since: session.map(|session| session.since),
        }
    }
}
