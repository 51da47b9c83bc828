//! Status of a run for people and dashboards.

use super::Syncer;
use crate::diloco::sessions::Session;
use crate::diloco::{Account, FateCounts, Timing};
use crate::wire::{Fingerprint, FragmentId, LearnerId, LearnerState, Millis, Share, Version};

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
