//! Driver of one fragment in an owner's process: the state machine and its requests to the services.

use std::sync::Arc;
use std::time::Duration;

use archipelago_core::cluster::{
    AdminCommands, FragmentLeader, LeaderInput, LeaderOutput, LeaderTerms, Reply,
};
use archipelago_core::diloco::FragmentState;
use archipelago_core::wire::{FragmentId, Millis};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep};

use super::InitialStates;
use crate::clock::{Clock, ms};
use crate::error::ServiceError;
use crate::retry::Retry;
use crate::service::{Inbox, Services};

/// Maximum number of requests of one fragment in flight. The state machine repeats dropped ones.
const ASKED_MAX: usize = 16;
/// Delay before a failed initial state is made again.
const BEGIN_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Result of a request.
enum Done {
    /// Input for the state machine, if there was an answer.
    Input(Option<LeaderInput>),
    /// Initial state of the fragment, if it could be made.
    Begun(Option<FragmentState>),
    /// Subscription to gateways' replies.
    Replies(Option<Inbox<Reply>>),
    /// End of a send, successful or not.
    Said,
}

/// Requests of one fragment.
struct FragmentRequests {
    fragment: FragmentId,
    services: Services,
    clock: Clock,
    beginnings: InitialStates,
    /// True while the initial state is being made.
    is_beginning: bool,
    asked: JoinSet<Done>,
    patience: Arc<[Retry; 4]>,
}

/// Service that a request goes to.
#[derive(Clone, Copy)]
enum ServiceKind {
    Tape,
    Blobs,
    Bus,
    /// Deletions from the blobs. Backoff is separate, because a process without permission to delete can still store.
    Bin,
}

/// Drives the owner of a fragment by its lease and the orders in force, until the sender of the lease is dropped.
pub(super) async fn lead(
    services: Services,
    (terms, beginnings): (LeaderTerms, InitialStates),
    clock: Clock,
    (mut lease, mut orders): (watch::Receiver<Option<Millis>>, watch::Receiver<AdminCommands>),
    tick_ms: u64,
) {
    let fragment = terms.rounds.fragment;
    let mut owner = FragmentLeader::new(terms);
    owner.handle(clock.now(), LeaderInput::Ordered(*orders.borrow_and_update()));
    let (asked, patience) = (JoinSet::new(), Arc::default());
    let mut desk =
        FragmentRequests { fragment, services, clock, beginnings, is_beginning: false, asked, patience };
    let mut replies: Option<Inbox<Reply>> = None;
    let mut tick = interval(ms(tick_ms));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut is_leased, mut is_listening) = (false, false);
    loop {
        let input = tokio::select! {
            changed = lease.changed() => {
                if changed.is_err() {
                    return;
                }
                let until = *lease.borrow_and_update();
                if until.is_none() {
                    replies = None;
                }
                is_leased = until.is_some();
                until.map_or(LeaderInput::NotLeased, LeaderInput::Leased)
            }
            Ok(()) = orders.changed() => LeaderInput::Ordered(*orders.borrow_and_update()),
            Some(reply) = next(&mut replies) => LeaderInput::Reply(reply),
            Some(done) = desk.asked.join_next() => match done {
                Ok(Done::Input(Some(input))) => input,
                Ok(Done::Begun(state)) => {
                    desk.is_beginning = false;
                    let Some(state) = state else { continue };
                    LeaderInput::Begun(state)
                }
                Ok(Done::Replies(inbox)) => {
                    is_listening = false;
                    replies = inbox.filter(|_| is_leased);
                    continue;
                }
                Ok(Done::Input(None) | Done::Said) | Err(_) => continue,
            },
            _ = tick.tick() => LeaderInput::Tick,
        };
        if is_leased && replies.is_none() && !is_listening {
            is_listening = desk.listen();
        }
        owner.handle(clock.now(), input);
        while let Some(order) = owner.poll() {
            desk.ask(order);
        }
    }
}

/// Returns the next reply if there is a subscription. An inbox that has ended is dropped.
async fn next(replies: &mut Option<Inbox<Reply>>) -> Option<Reply> {
    let Some(inbox) = replies else { return std::future::pending().await };
    let reply = inbox.recv().await;
    if reply.is_none() {
        *replies = None;
    }
    reply
}

impl FragmentRequests {
    /// Subscribes to gateways' replies. Returns true if the request was sent.
    fn listen(&mut self) -> bool {
        let (services, fragment) = (self.services.clone(), self.fragment);
        let question = async move { services.bus.replies(fragment).await };
        self.spawn(ServiceKind::Bus, question, Done::Replies)
    }

    /// Sends a request of the state machine. The result becomes its input. Without a result, the state machine repeats
    /// the request.
    fn ask(&mut self, order: LeaderOutput) {
        let (services, fragment) = (self.services.clone(), self.fragment);
        match order {
            LeaderOutput::Append { turn, expect, record } => {
                let question = async move {
                    let appended = services.tape.append(fragment, expect, &record).await?;
                    Ok(appended.map_or(LeaderInput::Refused, |seq| LeaderInput::Appended { turn, seq }))
                };
                self.spawn(ServiceKind::Tape, question, Done::Input);
            }
            LeaderOutput::Read(after) => {
                let question = async move {
                    let records = services.tape.read(fragment, after).await?;
                    Ok(LeaderInput::Records(after, records))
                };
                self.spawn(ServiceKind::Tape, question, Done::Input);
            }
            LeaderOutput::Store(key, bytes) => {
                let question = async move {
                    let is_ours = services.blobs.store(fragment, key, bytes).await?;
                    Ok(LeaderInput::Stored(key, is_ours))
                };
                self.spawn(ServiceKind::Blobs, question, Done::Input);
            }
            LeaderOutput::Load(key) => {
                let question = async move {
                    let bytes = services.blobs.load(fragment, key).await?;
                    Ok(LeaderInput::Loaded(key, bytes))
                };
                self.spawn(ServiceKind::Blobs, question, Done::Input);
            }
            LeaderOutput::Begin => self.begin(),
            LeaderOutput::Forget(keys) => {
                let question = async move { services.blobs.forget(fragment, keys).await };
                self.spawn(ServiceKind::Bin, question, |_| Done::Said);
            }
            LeaderOutput::Tell(notice) => {
                let question = async move { services.bus.tell(fragment, &notice).await };
                self.spawn(ServiceKind::Bus, question, |_| Done::Said);
            }
        }
    }

    /// Makes the initial state unless that is in progress; memory holds only one.
    fn begin(&mut self) {
        if std::mem::replace(&mut self.is_beginning, true) {
            return;
        }
        let (beginnings, fragment) = (self.beginnings.clone(), self.fragment);
        self.asked.spawn(async move {
            let made = spawn_blocking(move || beginnings.make(fragment)).await;
            match made.unwrap_or_else(|failed| Err(failed.into())) {
                Ok(state) => Done::Begun(Some(state)),
                Err(error) => {
                    tracing::error!(%fragment, "cannot start: {error}");
                    sleep(BEGIN_AGAIN_AFTER).await;
                    Done::Begun(None)
                }
            }
        });
    }

    /// Sends a request unless the service is in backoff or too many are in flight. Returns true if it was sent.
    fn spawn<T: Send + 'static>(
        &mut self,
        whom: ServiceKind,
        question: impl Future<Output = Result<T, ServiceError>> + Send + 'static,
        done: fn(Option<T>) -> Done,
    ) -> bool {
        let (clock, patience) = (self.clock, Arc::clone(&self.patience));
        if self.asked.len() >= ASKED_MAX || !patience[whom as usize].may_ask(clock.now()) {
            return false;
        }
        self.asked.spawn(async move {
            let result = question.await;
            done(patience[whom as usize].note(clock.now(), result))
        });
        true
    }
}
