//! JSON views of learners: the most relevant ones, or all of them in pages.

use std::cmp::Reverse;

use archipelago_core::diloco::syncer::{LearnerStatus, Syncer};
use archipelago_core::diloco::{LearnerId, Millis, TrustLevel};
use archipelago_core::wire::{self, LearnerState};
use serde::{Deserialize, Serialize};

use super::series::Speeds;
use super::view;

/// Maximum number of learners in `/v1/status`.
pub const TOP_LEARNERS_MAX: usize = 64;

/// Maximum number of learners in one page.
pub const PAGE_MAX: usize = 200;

/// State of one learner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LearnerView {
    /// Number of the learner in the run.
    pub learner: LearnerId,
    /// Fingerprint of the learner's key, 32 hex digits, as used in bans.
    pub fingerprint: String,
    /// Display name of the learner.
    pub name: String,
    /// The learner's own description of its device.
    pub device: String,
    /// Kind of the learner's device.
    pub kind: DeviceKind,
    /// Activity of the learner; `null` while it is not connected.
    pub state: Option<LearnerState>,
    /// True if the learner takes part in rounds.
    pub live: bool,
    /// Time since the learner connected, in seconds; `null` while it is not connected.
    pub connected_s: Option<f64>,
    /// Duration of the learner's steps, in milliseconds; 0 if unknown.
    pub step_ms: f64,
    /// Windows in the learner's batch; 0 until it trains.
    pub batch: u32,
    /// Time from a request for an update to its arrival, in milliseconds; 0 if unknown. It includes the latency and the
    /// rest of the current step.
    pub answer_ms: f64,
    /// True if the learner's link is too slow for every change. It then fetches whole fragments at its own pace.
    pub thin: bool,
    /// Tokens that the learner trained per second, over the last 10 seconds.
    pub tokens_per_s: f64,
    /// Last training loss that the learner reported, in nats per token.
    pub loss: Option<f32>,
    /// Tokens that the learner trained.
    pub tokens_trained: u64,
    /// Merged tokens of the learner.
    pub tokens_merged: u64,
    /// The learner's share of all merged tokens, 0 to 1.
    pub merged_share: f64,
    /// Number of updates from the learner.
    pub updates: u64,
    /// Fates of the learner's updates.
    pub fates: view::Fates,
    /// Share of its pace that the owner allows the learner, 0.001 to 1.
    pub share: f64,
    /// Trust of the run in the learner.
    pub trust: Trust,
    /// Reason why the learner is suspected of not training, as a sentence for people; `null` if it is not.
    pub doubt: Option<String>,
    /// Time until the learner may return, in seconds, if the owner dropped it; `null` otherwise.
    pub returns_s: Option<f64>,
}

impl LearnerView {
    /// Hides the learner's identity: its number replaces its name, and the kind of its device replaces the description.
    pub(super) fn hide(&mut self) {
        self.name = hidden_name(self.learner);
        self.device = self.kind.name().into();
    }

    /// Returns the learner's state as one word.
    pub(crate) fn state_name(&self) -> &'static str {
        match self.state {
            Some(LearnerState::Joining) => "joining",
            Some(LearnerState::Training) => "training",
            Some(LearnerState::Paused) => "paused",
            Some(LearnerState::Hidden) => "hidden",
            Some(LearnerState::Starved) => "starved",
            Some(LearnerState::Held) => "held",
            None => "away",
        }
    }
}

/// Returns the name that replaces a learner's own in a run with hidden names.
#[must_use]
pub fn hidden_name(learner: LearnerId) -> String {
    format!("islet {learner}")
}

/// Kind of a learner's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum DeviceKind {
    /// A page in a browser.
    Browser,
    /// A GPU.
    Gpu,
    /// A CPU.
    Cpu,
    /// Something else.
    #[default]
    Other,
}

impl DeviceKind {
    /// Returns the kind as one word, as in JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Browser => "browser",
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
            Self::Other => "other",
        }
    }
}

impl From<wire::DeviceKind> for DeviceKind {
    fn from(kind: wire::DeviceKind) -> Self {
        match kind {
            wire::DeviceKind::Browser => Self::Browser,
            wire::DeviceKind::Gpu => Self::Gpu,
            wire::DeviceKind::Cpu => Self::Cpu,
            wire::DeviceKind::Other => Self::Other,
        }
    }
}

/// Trust of a run in a learner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum Trust {
    /// A newcomer, whose updates have a small weight.
    #[default]
    Probation,
    /// The learner's updates have full weight.
    Trusted,
    /// The learner's updates made the model worse once, or do not show that it trains. It must prove itself again.
    Suspect,
    /// The learner's updates made the model worse. The run accepts none for a while, or until the owner readmits it.
    Out,
}

impl From<TrustLevel> for Trust {
    fn from(level: TrustLevel) -> Self {
        match level {
            TrustLevel::Newcomer => Self::Probation,
            TrustLevel::Trusted => Self::Trusted,
            TrustLevel::Suspected | TrustLevel::Convicted => Self::Suspect,
            TrustLevel::Banned => Self::Out,
        }
    }
}

/// Number of learners in each state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LearnersByState {
    /// Learners that fetch parameters or data.
    pub joining: u32,
    /// Learners that train.
    pub training: u32,
    /// Learners paused by their users.
    pub paused: u32,
    /// Learners in hidden browser tabs.
    pub hidden: u32,
    /// Learners without a lease to train on.
    pub starved: u32,
    /// Learners that wait because the run's owner paused the run.
    pub held: u32,
    /// Learners that are not connected.
    pub away: u32,
}

/// Returns up to [`TOP_LEARNERS_MAX`] learners, connected ones first and then by merged tokens, and the number of
/// learners in each state.
#[must_use]
pub fn top_learners(syncer: &Syncer, speeds: &Speeds, now: Millis) -> (Vec<LearnerView>, LearnersByState) {
    let mut counts = LearnersByState::default();
    let mut learners: Vec<LearnerStatus<'_>> = syncer.present().collect();
    counts.away = syncer.ledger().len().saturating_sub(learners.len()) as u32;
    for learner in &learners {
        *match learner.state {
            Some(LearnerState::Joining) => &mut counts.joining,
            Some(LearnerState::Training) => &mut counts.training,
            Some(LearnerState::Paused) => &mut counts.paused,
            Some(LearnerState::Hidden) => &mut counts.hidden,
            Some(LearnerState::Starved) => &mut counts.starved,
            Some(LearnerState::Held) => &mut counts.held,
            // Learners without a state are not connected, and are counted above.
            None => continue,
        } += 1;
    }
    if learners.len() < TOP_LEARNERS_MAX {
        learners.extend(syncer.learners().filter(|learner| learner.state.is_none()));
    }
    if learners.len() > TOP_LEARNERS_MAX {
        learners.select_nth_unstable_by_key(TOP_LEARNERS_MAX, |learner| {
            (learner.state.is_none(), Reverse(learner.tokens_merged), learner.learner)
        });
        learners.truncate(TOP_LEARNERS_MAX);
    }
    // A stable order keeps the rows of tables in place.
    learners.sort_by_key(|learner| learner.learner);
    (learners.iter().map(|learner| learner_view(learner, syncer, speeds, now)).collect(), counts)
}

/// Query parameters of `/v1/learners`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnersQuery {
    /// Number of learners to skip.
    #[serde(default)]
    pub offset: usize,
    /// Maximum number of learners in the answer, at least 1. A page has at most [`PAGE_MAX`].
    #[serde(default = "page")]
    pub limit: usize,
    /// Sort order.
    #[serde(default)]
    pub sort: Sort,
}

fn page() -> usize {
    50
}

/// Sort orders of learners. Ties are in order of number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub enum Sort {
    /// By merged tokens, descending.
    #[default]
    Merged,
    /// By speed, descending.
    Speed,
    /// By name.
    Name,
    /// By state: training first, not connected last.
    State,
}

/// `/v1/learners`: one page of learners.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(test, derive(ts_rs::TS))]
pub struct LearnersPage {
    /// Number of all learners ever seen.
    pub total: usize,
    /// Number of learners before this page.
    pub offset: usize,
    /// Sort order of the learners.
    pub sort: Sort,
    /// The learners of this page.
    pub learners: Vec<LearnerView>,
}

/// Returns the page of learners that `query` selects, for a run whose speeds are unknown.
#[must_use]
pub fn learners_of(syncer: &Syncer, now: Millis, query: LearnersQuery) -> LearnersPage {
    page_of(syncer, &Speeds::default(), now, query)
}

/// Returns the page of learners that `query` selects.
#[must_use]
pub fn page_of(syncer: &Syncer, speeds: &Speeds, now: Millis, query: LearnersQuery) -> LearnersPage {
    let mut learners: Vec<LearnerStatus<'_>> = syncer.learners().collect();
    match query.sort {
        Sort::Merged => learners.sort_by_key(|learner| Reverse(learner.tokens_merged)),
        Sort::Speed => {
            learners.sort_by(|a, b| speeds.of(b.learner).total_cmp(&speeds.of(a.learner)));
        }
        Sort::Name => learners.sort_by_key(|learner| learner.name),
        Sort::State => learners.sort_by_key(|learner| state_rank(learner.state)),
    }
    let page = learners.iter().skip(query.offset).take(query.limit.min(PAGE_MAX));
    LearnersPage {
        total: learners.len(),
        offset: query.offset,
        sort: query.sort,
        learners: page.map(|learner| learner_view(learner, syncer, speeds, now)).collect(),
    }
}

fn state_rank(state: Option<LearnerState>) -> u32 {
    match state {
        Some(LearnerState::Training) => 0,
        Some(LearnerState::Hidden) => 1,
        Some(LearnerState::Starved) => 2,
        Some(LearnerState::Held) => 3,
        Some(LearnerState::Paused) => 4,
        Some(LearnerState::Joining) => 5,
        None => 6,
    }
}

fn learner_view(learner: &LearnerStatus<'_>, syncer: &Syncer, speeds: &Speeds, now: Millis) -> LearnerView {
    let clock_tokens = syncer.ledger().clock_tokens();
    let returns = syncer.returns(now, learner.learner);
    LearnerView {
        learner: learner.learner,
        fingerprint: learner.fingerprint.to_string(),
        name: learner.name.to_owned(),
        device: learner.device.to_owned(),
        kind: wire::DeviceKind::of(learner.device).into(),
        state: learner.state,
        live: learner.live,
        connected_s: learner.since.map(|since| now.since(since) as f64 / 1e3),
        step_ms: learner.step_ms,
        batch: learner.batch,
        answer_ms: learner.answer_ms,
        thin: syncer.is_thin(now, learner.learner),
        tokens_per_s: speeds.of(learner.learner),
        loss: learner.loss,
        tokens_trained: learner.tokens_trained,
        tokens_merged: learner.tokens_merged,
        merged_share: learner.tokens_merged as f64 / clock_tokens.max(1) as f64,
        updates: learner.updates,
        fates: learner.fates.into(),
        share: learner.share.ratio(),
        trust: syncer.trust(now, learner.learner).into(),
        doubt: syncer
            .ledger()
            .suspicion(learner.learner)
            .map(|doubt| format!("Its {}.", suspicion_reason(doubt.looks))),
        returns_s: returns.map(|at| at.since(now) as f64 / 1e3),
    }
}

/// Returns the reason for a suspicion after `looks` loss checks, as a part of a sentence.
#[must_use]
pub fn suspicion_reason(looks: u32) -> String {
    format!("updates do not lower the loss on their own text as other learners' updates do: {looks} checks")
}
