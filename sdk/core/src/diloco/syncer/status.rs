//! The state of a run for people and dashboards.

use super::Syncer;
use crate::diloco::roster::Session;
use crate::diloco::{Account, FateCounts, Timing};
use crate::wire::{Fingerprint, FragmentId, LearnerId, LearnerState, Millis, Share, Version};

/// A run at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The run, as 16 hex digits.
    pub run: String,
    /// Its layout, as 16 hex digits.
    pub layout: String,
    /// Parameters of the model.
    pub params: u64,
    /// Connections with a learner behind them.
    pub connected: u32,
    /// Those that hold the parameters and take part in rounds.
    pub live: u32,
    /// Learners ever seen.
    pub learners_total: u32,
    /// Tokens trained on, by everyone.
    pub tokens_trained: u64,
    /// Tokens merged; also the clock of the inner schedule.
    pub tokens_merged: u64,
    /// Merged of trained, 0 to 1.
    pub participation: f64,
    /// Rounds that led to a version.
    pub rounds: u64,
    /// Rounds that led to nothing.
    pub rounds_abandoned: u64,
    /// Rounds in flight.
    pub rounds_open: u32,
    /// Updates taken in.
    pub updates: u64,
    /// Updates in rounds that are still in flight, whose fate is yet to come.
    pub updates_pending: u64,
    /// What became of all others.
    pub fates: FateCounts,
    /// The pass over the data, from 0.
    pub epoch: u32,
    /// Windows trained twice because their lease was lost, at most.
    pub regranted_windows: u64,
    /// Measured times.
    pub timing: Timing,
    /// The longest wait after quorum at present, in milliseconds.
    pub grace_ms: u64,
    /// Mean of the connected learners' last training losses, in nats per token.
    pub train_loss: Option<f32>,
    /// Each fragment's version and the size of it.
    pub fragments: Vec<(FragmentId, Version, u64)>,
    /// Whether the owner holds the run: nothing is launched or leased.
    pub paused: bool,
    /// Whether the last collection has begun.
    pub finishing: bool,
    /// Whether the run is over for good: nobody trains any more.
    pub finished: bool,
}

/// One learner at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnerStatus<'a> {
    /// Its id in the run.
    pub learner: LearnerId,
    /// The short name of its key.
    pub fingerprint: Fingerprint,
    /// Its name for people.
    pub name: &'a str,
    /// What it computes with.
    pub device: &'a str,
    /// What it is doing; `None` while it is away.
    pub state: Option<LearnerState>,
    /// Whether it takes part in rounds.
    pub live: bool,
    /// Its time of a step, in milliseconds, 0 if unknown.
    pub step_ms: f64,
    /// Windows that it trains on in one step, by its own word; 0 until it trains.
    pub batch: u32,
    /// From a question to its answer, in milliseconds, a moving average; 0 if unknown.
    pub answer_ms: f64,
    /// Its last training loss.
    pub loss: Option<f32>,
    /// Tokens it trained on.
    pub tokens_trained: u64,
    /// Its tokens that are merged.
    pub tokens_merged: u64,
    /// Its updates and what became of them.
    pub updates: u64,
    /// By fate.
    pub fates: &'a FateCounts,
    /// The part of its time that the owner has it train.
    pub share: Share,
    /// Since when it is connected, on the shell's clock; `None` while it is away.
    pub since: Option<Millis>,
}

impl Syncer {
    /// The state of the run.
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

    /// Everyone ever seen, by id.
    pub fn learners(&self) -> impl Iterator<Item = LearnerStatus<'_>> {
        let accounts = self.ledger().accounts();
        accounts.map(|(learner, account)| self.learner(learner, account, self.roster.session(learner)))
    }

    /// Everyone who is connected, by id.
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
