//! Commands to the actor, and the handle that sends them.

use std::sync::Arc;

use archipelago_core::diloco::syncer::{Input, LossCheck, SyncerConfig};
use archipelago_core::diloco::trust::{ContributionVerdict, Sampling};
use archipelago_core::diloco::{ConnId, FragmentId, LearnerId, Version};
use archipelago_core::wire::Bye;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::eval_snapshot::{EvalSnapshot, HarmVerdict};
use crate::outbox::Outbox;
use crate::report::RunReport;
use crate::status::{Evaluation, LearnersQuery, LogEvent, LogQuery, ServerStatus};

/// Maximum number of queued commands. If the queue is full, connections stop reading their sockets.
const COMMANDS_MAX: usize = 1_024;

/// Maximum number of raw core events that a subscriber may lag behind.
const EVENTS_MAX: usize = 1_024;

/// Maximum number of news items that a subscriber may lag behind.
const NEWS_MAX: usize = 64;

/// A published event: its name in `/v1/events`, and its JSON.
pub type News = (&'static str, Arc<str>);

/// Commands and questions for the actor.
#[derive(Debug)]
pub enum Command {
    /// A connection is open; its messages follow.
    Open(ConnId, Outbox),
    /// An input for the core.
    Input(Input),
    /// A connection was refused with this goodbye without the core's decision.
    TurnedAway(Bye),
    /// An event outside the core, for the log.
    Happened(LogEvent),
    /// A fault of the services that the processes of a cluster share; `None` if they work again.
    Served(Option<Arc<str>>),
    /// An order of the owner, and the learner that it concerns, if any.
    Order(Option<LearnerId>, Input, oneshot::Sender<OrderOutcome>),
    /// Asks whether an order, for this learner if given, would be accepted now.
    MayOrder(Option<LearnerId>, oneshot::Sender<OrderOutcome>),
    /// Asks for the outcome of an order to stop at this many merged tokens (0 is never), without giving the order.
    MayStopAt(u64, oneshot::Sender<OrderOutcome>),
    /// New settings that apply from now on, with the changes for the log.
    Retune(Box<SyncerConfig>, Vec<LogEvent>, oneshot::Sender<OrderOutcome>),
    /// Asks for Θ̂ of this fragment.
    Hat(FragmentId, oneshot::Sender<(Version, Arc<Vec<f32>>)>),
    /// Asks for Θ with the progress of the run.
    EvalSnapshot(oneshot::Sender<EvalSnapshot>),
    /// Asks for the status.
    Status(oneshot::Sender<Box<ServerStatus>>),
    /// Asks for the data of a report.
    Report(oneshot::Sender<Box<RunReport>>),
    /// Asks for this view as JSON.
    View(View, oneshot::Sender<Arc<str>>),
    /// Asks for the next merge that matches this sampling, for loss checks.
    LossCheck(Box<Sampling>, oneshot::Sender<LossCheck>),
    /// The result of a check of the held-out loss.
    Judged(Box<HarmVerdict>),
    /// A measurement of the held-out loss, with a text sample if there is one; answered when it is recorded.
    Evaluated(Evaluation, Option<String>, oneshot::Sender<()>),
}

/// The outcome of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderOutcome {
    /// The order is carried out.
    Taken,
    /// The run has no such learner.
    NoSuchLearner,
    /// The run is complete; there is nothing to steer.
    RunOver,
    /// The run would end at once, because its schedule has already reached this many tokens.
    PastStop(u64),
}

/// A part of the published state.
#[derive(Clone, Debug)]
pub enum View {
    /// One page of learners.
    Learners(LearnersQuery),
    /// Curves of the run.
    Series,
    /// The last rounds.
    Rounds,
    /// Lines of the run's log.
    Log(LogQuery),
}

/// A cloneable handle to the actor.
#[derive(Clone, Debug)]
pub struct ActorHandle {
    commands: mpsc::Sender<Command>,
    events: broadcast::Sender<Arc<str>>,
    news: broadcast::Sender<News>,
    status: watch::Receiver<Arc<str>>,
    over: watch::Receiver<bool>,
}

/// The actor's ends of an [`ActorHandle`].
#[derive(Debug)]
pub struct Mailbox {
    pub(super) commands: mpsc::Receiver<Command>,
    pub(super) events: broadcast::Sender<Arc<str>>,
    pub(super) news: broadcast::Sender<News>,
    pub(super) status: watch::Sender<Arc<str>>,
    pub(super) over: watch::Sender<bool>,
}

impl ActorHandle {
    /// Creates a handle and its mailbox.
    #[must_use]
    pub fn new() -> (Self, Mailbox) {
        let (commands, commands_queue) = mpsc::channel(COMMANDS_MAX);
        let (events, _) = broadcast::channel(EVENTS_MAX);
        let (news, _) = broadcast::channel(NEWS_MAX);
        let (status, status_watch) = watch::channel(Arc::from("{}"));
        let (over, over_watch) = watch::channel(false);
        let mailbox =
            Mailbox { commands: commands_queue, events: events.clone(), news: news.clone(), status, over };
        (Self { commands, events, news, status: status_watch, over: over_watch }, mailbox)
    }

    /// Sends a command; returns false if the actor has ended.
    pub async fn send(&self, command: Command) -> bool {
        self.commands.send(command).await.is_ok()
    }

    /// Returns Θ̂ of `fragment` and its version; `None` if the actor has ended or there is no such fragment.
    pub async fn hat(&self, fragment: FragmentId) -> Option<(Version, Arc<Vec<f32>>)> {
        self.ask(|reply| Command::Hat(fragment, reply)).await
    }

    /// Gives an order; `learner` is set if the order concerns one. Returns `None` if the actor has ended.
    pub async fn order(&self, learner: Option<LearnerId>, order: Input) -> Option<OrderOutcome> {
        self.ask(|reply| Command::Order(learner, order, reply)).await
    }

    /// Returns the outcome that an order would have; `learner` is set if it concerns one. `None` if the actor has
    /// ended.
    pub async fn may_order(&self, learner: Option<LearnerId>) -> Option<OrderOutcome> {
        self.ask(|reply| Command::MayOrder(learner, reply)).await
    }

    /// Returns the outcome of an order to stop at `tokens` merged tokens (0 is never), without giving it; `None` if the
    /// actor has ended.
    pub async fn may_stop_at(&self, tokens: u64) -> Option<OrderOutcome> {
        self.ask(|reply| Command::MayStopAt(tokens, reply)).await
    }

    /// Applies the owner's settings from now on and logs `changes`; returns `None` if the actor has ended.
    pub async fn retune(&self, config: SyncerConfig, changes: Vec<LogEvent>) -> Option<OrderOutcome> {
        self.ask(|reply| Command::Retune(Box::new(config), changes, reply)).await
    }

    /// Returns Θ with the progress of the run; `None` if the actor has ended.
    pub async fn subject(&self) -> Option<EvalSnapshot> {
        self.ask(Command::EvalSnapshot).await
    }

    /// Returns the status of the run; `None` if the actor has ended.
    pub async fn status(&self) -> Option<Box<ServerStatus>> {
        self.ask(Command::Status).await
    }

    /// Returns the data of a report; `None` if the actor has ended.
    pub async fn report(&self) -> Option<Box<RunReport>> {
        self.ask(Command::Report).await
    }

    /// Returns `view` as JSON; `None` if the actor has ended.
    pub async fn view(&self, view: View) -> Option<Arc<str>> {
        self.ask(|reply| Command::View(view, reply)).await
    }

    /// Reports a held-out loss and perhaps a text sample, and waits until they are recorded.
    pub async fn evaluated(&self, evaluation: Evaluation, sample: Option<String>) {
        self.ask(|reply| Command::Evaluated(evaluation, sample, reply)).await;
    }

    /// Returns the next merge that matches `sampling`, to check single updates in it; `None` if the actor has ended.
    pub async fn next_loss_check(&self, sampling: Sampling) -> Option<LossCheck> {
        self.ask(|reply| Command::LossCheck(Box::new(sampling), reply)).await
    }

    /// Reports the evidence from loss checks on whether `learner` trains.
    pub async fn report_verdict(&self, learner: LearnerId, verdict: ContributionVerdict) {
        self.send(Command::Input(Input::ContributionVerdict { learner, verdict })).await;
    }

    /// Reports the result of a check of the held-out loss.
    pub async fn report_judgement(&self, judgement: HarmVerdict) {
        self.send(Command::Judged(Box::new(judgement))).await;
    }

    /// Subscribes to published events.
    #[must_use]
    pub fn news(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    /// Subscribes to the core's own events as JSON.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Arc<str>> {
        self.events.subscribe()
    }

    /// Returns a watch on the status as JSON, renewed about once a second.
    #[must_use]
    pub fn status_watch(&self) -> watch::Receiver<Arc<str>> {
        self.status.clone()
    }

    /// Returns a watch that turns true once the run is complete.
    #[must_use]
    pub fn over_watch(&self) -> watch::Receiver<bool> {
        self.over.clone()
    }

    /// Resolves once the actor has ended.
    pub async fn closed(&self) {
        self.commands.closed().await;
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}
