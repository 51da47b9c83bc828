//! One fragment of an owner's process: the machine, and what it asks of the services.

use std::sync::Arc;

use archipelago_core::cluster::{Notice, Order, Owner, OwnerInput, OwnerTerms, Reply};
use archipelago_core::wire::{FragmentId, Millis};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::clock::{Clock, ms};
use crate::patience::Patience;
use crate::service::{Inbox, Services};

/// Questions of one fragment under way at most; the machine asks again for what was not asked.
const ASKED_MAX: usize = 16;

/// How a question ended.
enum Done {
    /// With something for the machine.
    Input(OwnerInput),
    /// With what gateways say from now on.
    Replies(Inbox<Reply>),
    /// With nothing.
    Nothing,
}

/// What has been asked.
struct Desk {
    fragment: FragmentId,
    services: Services,
    clock: Clock,
    asked: JoinSet<Done>,
    patience: Arc<[Patience; 3]>,
}

/// Which service something is asked of.
#[derive(Clone, Copy)]
enum Whom {
    Tape,
    Blobs,
    Bus,
}

/// Drives the owner of a fragment until `lease` has no sender any more.
pub(super) async fn lead(
    services: Services,
    terms: OwnerTerms,
    clock: Clock,
    mut lease: watch::Receiver<Option<Millis>>,
    tick_ms: u64,
) {
    let fragment = terms.rounds.fragment;
    let mut owner = Owner::new(terms);
    let (asked, patience) = (JoinSet::new(), Arc::default());
    let mut desk = Desk { fragment, services, clock, asked, patience };
    let mut replies: Option<Inbox<Reply>> = None;
    let mut tick = interval(ms(tick_ms));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_leased = false;
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
                until.map_or(OwnerInput::NotLeased, OwnerInput::Leased)
            }
            Some(reply) = next(&mut replies) => OwnerInput::Reply(reply),
            Some(done) = desk.asked.join_next() => match done {
                Ok(Done::Input(input)) => input,
                Ok(Done::Replies(inbox)) => {
                    replies = is_leased.then_some(inbox);
                    continue;
                }
                Ok(Done::Nothing) | Err(_) => continue,
            },
            _ = tick.tick() => OwnerInput::Tick,
        };
        if is_leased && replies.is_none() && matches!(input, OwnerInput::Tick | OwnerInput::Leased(_)) {
            desk.listen();
        }
        owner.handle(clock.now(), input);
        while let Some(order) = owner.poll() {
            desk.ask(order);
        }
    }
}

/// The next reply, if anybody listens. An inbox that has ended is listened to no more.
async fn next(replies: &mut Option<Inbox<Reply>>) -> Option<Reply> {
    let Some(inbox) = replies else { return std::future::pending().await };
    let reply = inbox.recv().await;
    if reply.is_none() {
        *replies = None;
    }
    reply
}

impl Desk {
    /// Asks for what gateways say, unless that is under way.
    fn listen(&mut self) {
        let (services, fragment) = (self.services.clone(), self.fragment);
        self.spawn(Whom::Bus, async move { services.bus.replies(fragment).await.map(Done::Replies) });
    }

    /// Asks for what the machine wants. What comes of it is told to the machine; if nothing does, it asks again.
    fn ask(&mut self, order: Order) {
        let (services, fragment) = (self.services.clone(), self.fragment);
        match order {
            Order::Append { turn, expect, record } => self.spawn(Whom::Tape, async move {
                let appended = services.tape.append(fragment, expect, &record).await?;
                Ok(Done::Input(match appended {
                    Some(seq) => OwnerInput::Appended { turn, seq },
                    None => OwnerInput::Refused,
                }))
            }),
            Order::Read(after) => self.spawn(Whom::Tape, async move {
                let records = services.tape.read(fragment, after).await?;
                Ok(Done::Input(OwnerInput::Records(after, records)))
            }),
            Order::Store(key, bytes) => self.spawn(Whom::Blobs, async move {
                let is_ours = services.blobs.store(fragment, key, bytes).await?;
                Ok(Done::Input(OwnerInput::Stored(key, is_ours)))
            }),
            Order::Load(key) => self.spawn(Whom::Blobs, async move {
                let bytes = services.blobs.load(fragment, key).await?;
                Ok(Done::Input(OwnerInput::Loaded(key, bytes)))
            }),
            Order::Tell(notice) => self.tell(notice),
        }
    }

    fn tell(&mut self, notice: Notice) {
        let (services, fragment) = (self.services.clone(), self.fragment);
        self.spawn(Whom::Bus, async move {
            services.bus.tell(fragment, &notice).await?;
            Ok(Done::Nothing)
        });
    }

    fn spawn(
        &mut self,
        whom: Whom,
        question: impl Future<Output = Result<Done, crate::error::ServiceError>> + Send + 'static,
    ) {
        let (clock, patience) = (self.clock, Arc::clone(&self.patience));
        if self.asked.len() >= ASKED_MAX || !patience[whom as usize].may_ask(clock.now()) {
            return;
        }
        self.asked.spawn(async move {
            let result = question.await;
            patience[whom as usize].note(clock.now(), result).unwrap_or(Done::Nothing)
        });
    }
}
