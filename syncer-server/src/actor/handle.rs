//! Talking to the actor.

use std::sync::Arc;

use archipelago_core::diloco::syncer::{Exam, Input, Regard, Sampling, SyncerConfig};
use archipelago_core::diloco::{ConnId, FragmentId, LearnerId, Version};
use archipelago_core::wire::Bye;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use super::subject::{Judgement, Subject};
use crate::outbox::Outbox;
use crate::report::Story;
use crate::status::{Evaluation, Happening, LearnersQuery, LogQuery, ServerStatus};

/// Commands waiting for the actor, at most; a reader that finds it full stops reading its socket.
const COMMANDS_MAX: usize = 1_024;

/// Raw events of the core that a subscriber may lag behind.
const EVENTS_MAX: usize = 1_024;

/// News that a subscriber may lag behind.
const NEWS_MAX: usize = 64;

/// Something new to show: the name of an event of `/v1/events`, and its JSON.
pub type News = (&'static str, Arc<str>);

/// What the actor can be told and asked.
#[derive(Debug)]
pub enum Command {
    /// A connection stands; its messages follow.
    Open(ConnId, Outbox),
    /// Something for the core.
    Input(Input),
    /// A socket was closed with this before the core heard of it, or in spite of what it knew.
    TurnedAway(Bye),
    /// Something that the core has no part in happened.
    Happened(Happening),
    /// What stands between the processes of the run does its part, or this is what is wrong with it.
    Served(Option<Arc<str>>),
    /// An order of the owner, about this learner if it is about one.
    Order(Option<LearnerId>, Input, oneshot::Sender<Obeyed>),
    /// Could an order be given now, about this learner if it is about one?
    MayOrder(Option<LearnerId>, oneshot::Sender<Obeyed>),
    /// Asks for the outcome of an order to stop at this many merged tokens (0 is never), without giving the order.
    MayStopAt(u64, oneshot::Sender<Obeyed>),
    /// These settings hold from now on, and this is what changed.
    Retune(Box<SyncerConfig>, Vec<Happening>, oneshot::Sender<Obeyed>),
    /// What is Θ̂ of this fragment?
    Hat(FragmentId, oneshot::Sender<(Version, Arc<Vec<f32>>)>),
    /// What is Θ?
    Subject(oneshot::Sender<Subject>),
    /// How does the run stand?
    Status(oneshot::Sender<Box<ServerStatus>>),
    /// What is there to report?
    Story(oneshot::Sender<Box<Story>>),
    /// What does this view show now, as JSON?
    View(View, oneshot::Sender<Arc<str>>),
    /// The next merge that this picks is to be looked at.
    Exam(Box<Sampling>, oneshot::Sender<Exam>),
    /// This was found out about a held-out loss.
    Judged(Box<Judgement>),
    /// The held-out loss was measured, and maybe a text written; answered when that is taken in.
    Evaluated(Evaluation, Option<String>, oneshot::Sender<()>),
}

/// What became of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Obeyed {
    /// It is carried out.
    Taken,
    /// There has been no such learner.
    NoSuchLearner,
    /// The run is complete: nothing is left to steer.
    RunOver,
    /// The run would end at once: its schedule has counted this many tokens already.
    PastStop(u64),
}

/// A part of what is shown.
#[derive(Clone, Debug)]
pub enum View {
    /// Some learners.
    Learners(LearnersQuery),
    /// The course of the run.
    Series,
    /// The last rounds.
    Rounds,
    /// Lines of the run's log.
    Log(LogQuery),
}

/// The way to the actor, for everyone.
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
    /// A handle and the mailbox that it leads to.
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

    /// Tells the actor; false if it has ended.
    pub async fn tell(&self, command: Command) -> bool {
        self.commands.send(command).await.is_ok()
    }

    /// Resolves once the actor has ended.
    pub async fn gone(&self) {
        self.commands.closed().await;
    }

    /// Θ̂ of `fragment` and its version; `None` if the actor has ended or there is no such fragment.
    pub async fn hat(&self, fragment: FragmentId) -> Option<(Version, Arc<Vec<f32>>)> {
        self.ask(|reply| Command::Hat(fragment, reply)).await
    }

    /// Gives an order, about `learner` if it is about one; `None` if the actor has ended.
    pub async fn order(&self, learner: Option<LearnerId>, order: Input) -> Option<Obeyed> {
        self.ask(|reply| Command::Order(learner, order, reply)).await
    }

    /// What would become of an order, about `learner` if it is about one; `None` if the actor has ended.
    pub async fn may_order(&self, learner: Option<LearnerId>) -> Option<Obeyed> {
        self.ask(|reply| Command::MayOrder(learner, reply)).await
    }

    /// Returns the outcome of an order to stop at `tokens` merged tokens (0 is never), without giving it; `None` if the
    /// actor has ended.
    pub async fn may_stop_at(&self, tokens: u64) -> Option<Obeyed> {
        self.ask(|reply| Command::MayStopAt(tokens, reply)).await
    }

    /// Has the owner's settings hold from now on; `changes` are told in the log. `None` if the actor has ended.
    pub async fn retune(&self, config: SyncerConfig, changes: Vec<Happening>) -> Option<Obeyed> {
        self.ask(|reply| Command::Retune(Box::new(config), changes, reply)).await
    }

    /// Θ and where the run stands; `None` if the actor has ended.
    pub async fn subject(&self) -> Option<Subject> {
        self.ask(Command::Subject).await
    }

    /// How the run stands; `None` if the actor has ended.
    pub async fn status(&self) -> Option<Box<ServerStatus>> {
        self.ask(Command::Status).await
    }

    /// What there is to report now; `None` if the actor has ended.
    pub async fn story(&self) -> Option<Box<Story>> {
        self.ask(Command::Story).await
    }

    /// What `view` shows now, as JSON; `None` if the actor has ended.
    pub async fn view(&self, view: View) -> Option<Arc<str>> {
        self.ask(|reply| Command::View(view, reply)).await
    }

    /// Hands in a measurement, and waits until it is taken in.
    pub async fn evaluated(&self, evaluation: Evaluation, sample: Option<String>) {
        self.ask(|reply| Command::Evaluated(evaluation, sample, reply)).await;
    }

    /// The next merge that `sampling` picks, to look at single updates in it; `None` if the actor has ended.
    pub async fn exam(&self, sampling: Sampling) -> Option<Exam> {
        self.ask(|reply| Command::Exam(Box::new(sampling), reply)).await
    }

    /// Says what updates of `learner` show of whether it trains.
    pub async fn regard(&self, learner: LearnerId, regard: Regard) {
        self.tell(Command::Input(Input::Regard { learner, regard })).await;
    }

    /// Hands in what was found out about a loss.
    pub async fn judged(&self, judgement: Judgement) {
        self.tell(Command::Judged(Box::new(judgement))).await;
    }

    /// News from now on.
    #[must_use]
    pub fn news(&self) -> broadcast::Receiver<News> {
        self.news.subscribe()
    }

    /// The core's own events as JSON, from now on.
    #[must_use]
    pub fn events(&self) -> broadcast::Receiver<Arc<str>> {
        self.events.subscribe()
    }

    /// The status as JSON, renewed every second or so.
    #[must_use]
    pub fn status_watch(&self) -> watch::Receiver<Arc<str>> {
        self.status.clone()
    }

    /// Whether the run is complete, as it turns true.
    #[must_use]
    pub fn over_watch(&self) -> watch::Receiver<bool> {
        self.over.clone()
    }

    /// Waits for the actor's end.
    pub async fn closed(&self) {
        self.commands.closed().await;
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.commands.send(command(reply)).await.ok()?;
        answer.await.ok()
    }
}
