//! Interface between the syncer and its host: inputs, outputs, requests to remote leaders, and the status.

use super::{RollbackJob, RollbackOrder, Syncer};
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
    /// The peer is alive, but sent no complete message: a pong or a part of a large message arrived.
    Heard(ConnId),
    /// The connection is gone, for any reason.
    Disconnected(ConnId),
    /// An update arrived that the host has verified with [`super::Syncer::verifier`]. A host without threads passes the
    /// update as a [`Self::Message`] instead, and the syncer verifies it.
    Update(ConnId, Box<Verified>),
    /// A job from [`Output::Merge`] or [`Output::Rollback`] is done, or it failed and returns its state.
    Merged(Box<Result<MergeOutcome, Box<MergeFailure>>>),
    /// Roll back merges that did harm. A host that sends this must support [`Output::Rollback`].
    Rollback(Box<RollbackOrder>),
    /// The [`ContributionTest`](crate::diloco::trust::ContributionTest) changed its verdict on a learner.
    ContributionVerdict { learner: LearnerId, verdict: ContributionVerdict },
    /// Merge the remaining progress of all learners on every fragment, then end the run.
    Finish,
    /// The owner pauses or resumes the run. In a paused run no text is leased, learners wait, and no rounds but last
    /// ones are launched.
    Hold(bool),
    /// Decisions cannot be stored (true) or can be stored again (false). Meanwhile no round is launched and no text is
    /// leased. Learners keep training and are not informed.
    Stall(bool),
    /// The owner limits the share of its time that a learner trains.
    Pace { learner: LearnerId, share: Share },
    /// The owner sends a learner away for `wait_ms`, at most [`super::DROP_MS_MAX`]; 0 lets it return.
    Drop { learner: LearnerId, wait_ms: u32 },
    /// The owner banned the identity with this fingerprint; the syncer closes its connection. The host, which verifies
    /// identities, must refuse its later connections.
    Ban(Fingerprint),
    /// The leaders assigned a learner number to a connection, see [`super::LeaderRequest::Introduce`].
    Introduced { conn: ConnId, learner: LearnerId, hello: Box<Hello> },
    /// The leader of a fragment requests the progress of a learner for a round, over this connection.
    Asked { fragment: FragmentId, learner: LearnerId, conn: ConnId, round: Round },
    /// The leader of a fragment did not merge a forwarded update.
    Unmerged {
        fragment: FragmentId,
        learner: LearnerId,
        conn: ConnId,
        serial: Serial,
        /// Reason for a refusal; `None` if the update was only late.
        refusal: Option<Refusal>,
    },
    /// The leader of a fragment merged a round into a new version.
    Followed(Box<RemoteMerge>),
    /// The leader of a fragment ended a round without a version.
    Over(FragmentId, Round),
    /// The leader of a fragment ended its last round. The run ends once this holds for all fragments.
    Closed(FragmentId),
    /// The peer echoed the number of an [`Output::Probe`] on this connection.
    Probed(ConnId, u64),
    /// The time of [`super::Syncer::deadline`] has come, or a setting was changed.
    Timeout,
}

/// Action for the host.
#[derive(Debug)]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Output {
    /// Send the message on one connection.
    Send(ConnId, Message),
    /// Send the message on several connections; encode it once.
    Broadcast(Vec<ConnId>, Message),
    /// Send `Bye`, then close the connection. A following [`Input::Disconnected`] is not necessary and has no effect.
    Close(ConnId, Bye),
    /// Store the entry before any later output reaches a peer: see [`super::Host::record`].
    Record(Entry),
    /// Run the job on any thread, and return the result as [`Input::Merged`].
    Merge(Box<MergeJob>),
    /// Run the job on any thread, and return the result as [`Input::Merged`]. Before, pass it all entries of the tape
    /// after its starting point, up to the version of its fragment.
    Rollback(Box<RollbackJob>),
    /// Forward this to the leaders of the rounds. Emitted only after [`super::Syncer::into_gateway`].
    LeaderRequest(LeaderRequest),
    /// Send this number to the peer of a connection, which echoes it, as in a WebSocket ping. Return the echo as
    /// [`Input::Probed`], after everything that arrived on the connection before it. Emitted only after
    /// [`super::Syncer::into_gateway`].
    Probe(ConnId, u64),
    /// Report an event to logs, the dashboard and tests.
    Event(Event),
    /// Handle the end of the run: all learners have been informed, and no output follows.
    Finished,
}

/// Event of a run, for logs, the dashboard and tests.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Event {
    /// A learner was admitted; `returning` is true if it was part of the run before.
    Joined { learner: LearnerId, name: String, device: String, returning: bool },
    /// A learner holds the parameters and is ready to train.
    Live { learner: LearnerId },
    /// A learner left.
    Left { learner: LearnerId, why: LeaveCause },
    /// A connection that never became a learner was turned away, with this close code and reason.
    TurnedAway { code: u16, reason: String },
    /// A learner's state changed.
    State { learner: LearnerId, state: LearnerState },
    /// A round began with `invited` learners; `step_ms` is the median step time of live learners.
    Launched { round: Round, fragment: FragmentId, invited: u32, step_ms: f64 },
    /// A learner answered `after_ms` after the request, with an update of `tokens` credited tokens, or without an
    /// update and with 0 tokens. Without a round, the answer waits for the next round.
    Answered { round: Option<Round>, fragment: FragmentId, learner: LearnerId, tokens: u64, after_ms: u64 },
    /// A round reached its quorum of `updates` updates.
    Quorum { round: Round, fragment: FragmentId, updates: u32, after_ms: u64 },
    /// The decision about a round changed.
    Decided { round: Round, fragment: FragmentId, decision: Decision },
    /// An update has its fate; `round` is the round that held it, if one did.
    Settled {
        round: Option<Round>,
        fragment: FragmentId,
        learner: LearnerId,
        serial: Serial,
        tokens: u64,
        fate: Fate,
    },
    /// A round ended in a new version; `norm` is the L2 norm of the merged update.
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
    /// A learner was convicted of harm, with `harms` convictions so far. Its updates are rolled back, and it is sent
    /// away.
    Blamed { learner: LearnerId, harms: u32 },
    /// A learner became suspected: loss checks do not show that it trains as it claims. Its updates have almost no
    /// weight, and the schedule does not credit its tokens. Without a `doubt`, it is no longer suspected.
    Doubted { learner: LearnerId, doubt: Option<Suspicion> },
    /// A fragment was rolled back. `norm` is the L2 distance between the old and the new Θ.
    RolledBack { round: Round, fragment: FragmentId, version: Version, norm: f64, sync_ms: u64 },
    /// The owner paused or resumed the run.
    Held { held: bool },
    /// The owner limited the share of its time that a learner trains, in thousandths.
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
    /// The learner sent `Bye`.
    Polite,
    /// The connection broke.
    Lost,
    /// The syncer closed the connection.
    Closed {
        /// The close code.
        code: u16,
        /// The reason in the `Bye` to the learner.
        reason: String,
    },
}

/// Services of a host, each for one [`Output`]. [`Syncer::drain`] calls them in order.
pub trait Host {
    /// Sends `message` on each of `conns`; encodes it once.
    fn send(&mut self, conns: &[ConnId], message: Message);

    /// Sends `bye`, then closes the connection. A following [`Input::Disconnected`] is not necessary and has no effect.
    fn close(&mut self, conn: ConnId, bye: Bye);

    /// Runs the job on any thread, and returns the result as [`Input::Merged`].
    fn merge(&mut self, job: MergeJob);

    /// Runs the job on any thread, and returns the result as [`Input::Merged`]. Before, passes it all entries of the
    /// tape after its starting point, up to the version of its fragment.
    ///
    /// The default is for a host without a tape: it returns the job, and the fragment stays unchanged. It is not called
    /// unless the host sends [`Input::Rollback`].
    fn rollback(&mut self, job: RollbackJob) -> Option<RollbackJob> {
        Some(job)
    }

    /// Forwards `request` to the leaders of the rounds. It is not called if the syncer leads its own rounds, which the
    /// default assumes.
    fn leader_request(&mut self, request: LeaderRequest) {
        let _ = request;
    }

    /// Sends `number` to the peer of `conn`, which echoes it, and returns the echo as [`Input::Probed`]. It is not
    /// called if the syncer leads its own rounds, which the default assumes.
    fn probe(&mut self, conn: ConnId, number: u64) {
        let _ = (conn, number);
    }

    /// Stores `entry`, and holds back later output until the entry is on disk. The default is for a host without a
    /// tape: after a crash it resumes from its last snapshot, and decisions since then are lost although learners know
    /// of them.
    fn record(&mut self, entry: Entry) {
        let _ = entry;
    }

    /// Reports an event to logs, the dashboard and tests. `syncer` is in the state after the input that caused it.
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
                Output::Rollback(job) => {
                    if let Some(job) = host.rollback(*job) {
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
    /// A learner introduces itself. The leaders reply with [`super::Input::Introduced`] and its number, which is the
    /// same at every gateway. If [`Hello::run`] is set, the learner returns, and the reply must wait: first every round
    /// that may be open must end, and [`super::Input::Followed`] must have reported it.
    Introduce(ConnId, Box<Hello>),
    /// A learner takes part from now on, over this connection.
    Came(LearnerId, ConnId),
    /// A learner has left.
    Left(LearnerId, ConnId),
    /// A connection closed before it had a learner.
    Gone(ConnId),
    /// The paces of the learners have changed.
    Pace(Paces),
    /// The run has reached [`super::SyncerConfig::stop_tokens`]; each fragment must have its last round.
    Enough,
    /// A learner answered in this round, over this connection.
    Answer(FragmentId, LearnerId, ConnId, Round, Answer),
}

/// Paces of a gateway's learners; 0 if unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Paces {
    /// Median time of a step, in milliseconds.
    pub step_ms: f64,
    /// Moving average of answer times, in milliseconds.
    pub answer_ms: f64,
}

/// Answer of a learner.
#[derive(Debug)]
pub enum Answer {
    /// A verified update, with the facts about its sender.
    Update(Box<Verified>, SenderInfo),
    /// The learner has no update.
    Nothing,
}

/// Merge that another process has decided.
#[derive(Debug)]
pub struct RemoteMerge {
    /// The merge without the bodies of its updates.
    pub merge: MergeEntry,
    /// New state of the fragment, and its coded change from the previous version. The syncer keeps only the state's Θ̂.
    /// `None` if a later version follows.
    pub led: Option<(FragmentState, Vec<u8>)>,
}

/// Status of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The run id, as 16 hex digits.
    pub run: String,
    /// The layout hash, as 16 hex digits.
    pub layout: String,
    /// Number of parameters of the model.
    pub params: u64,
    /// Number of connected learners.
    pub connected: u32,
    /// Number of connected learners that hold the parameters and take part in rounds.
    pub live: u32,
    /// Number of learners in the ledger.
    pub learners_total: u32,
    /// Trained tokens of all learners.
    pub tokens_trained: u64,
    /// Merged tokens of all learners.
    pub tokens_merged: u64,
    /// Ratio of merged to trained tokens, 0 to 1.
    pub participation: f64,
    /// Number of merged rounds.
    pub rounds: u64,
    /// Number of abandoned rounds.
    pub rounds_abandoned: u64,
    /// Number of rounds in flight.
    pub rounds_open: u32,
    /// Number of received updates.
    pub updates: u64,
    /// Number of received updates without a fate.
    pub updates_pending: u64,
    /// Number of updates by fate.
    pub fates: FateCounts,
    /// Current epoch (pass over the data), from 0.
    pub epoch: u32,
    /// Upper bound on the number of windows that were trained twice because of a lost lease.
    pub regranted_windows: u64,
    /// Moving averages of measured times.
    pub timing: Timing,
    /// Current length of the grace window, in milliseconds.
    pub grace_ms: u64,
    /// Mean of the connected learners' last training losses, in nats per token.
    pub train_loss: Option<f32>,
    /// Each fragment with its version and its number of values.
    pub fragments: Vec<(FragmentId, Version, u64)>,
    /// Whether the owner has paused the run.
    pub paused: bool,
    /// Whether the last rounds of the run have begun.
    pub finishing: bool,
    /// Whether the run is over.
    pub finished: bool,
}

/// Status of one learner.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnerStatus<'a> {
    /// Id in the run.
    pub learner: LearnerId,
    /// Fingerprint of the key.
    pub fingerprint: Fingerprint,
    /// Display name.
    pub name: &'a str,
    /// Device on which the learner computes.
    pub device: &'a str,
    /// Current activity; `None` while the learner is not connected.
    pub state: Option<LearnerState>,
    /// Whether the learner takes part in rounds.
    pub live: bool,
    /// Reported time of a step, in milliseconds; 0 if unknown.
    pub step_ms: f64,
    /// Reported windows per step; 0 until the learner is ready.
    pub batch: u32,
    /// Moving average of answer times, in milliseconds; 0 if unknown.
    pub answer_ms: f64,
    /// Last training loss, in nats per token.
    pub loss: Option<f32>,
    /// Number of trained tokens.
    pub tokens_trained: u64,
    /// Number of merged tokens.
    pub tokens_merged: u64,
    /// Number of received updates.
    pub updates: u64,
    /// Number of updates by fate.
    pub fates: &'a FateCounts,
    /// Fraction of its time that the owner allows the learner to train.
    pub share: Share,
    /// Start of the connection, on the host's clock; `None` while the learner is not connected.
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

    /// Returns all learners in the ledger, ordered by id.
    pub fn learners(&self) -> impl Iterator<Item = LearnerStatus<'_>> {
        let accounts = self.ledger().accounts();
        accounts.map(|(learner, account)| self.learner(learner, account, self.roster.session(learner)))
    }

    /// Returns all connected learners, ordered by id.
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
