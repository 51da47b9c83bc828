//! A process that stands between learners and owners: one machine for each fragment, over the tape and the bus.
//!
//! Learners are somebody else's: whoever holds their sockets hands in what they say, and takes what they are told.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_core::cluster::{Gateway, GatewayInput, GatewayOrder, GatewayTerms, Notice, Record};
use archipelago_core::wire::FragmentId;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::clock::{Clock, ms};
use crate::error::ServiceError;
use crate::patience::Patience;
use crate::service::{Inbox, Services};

/// What learners say, or are to be told, of one fragment, waiting at most.
const WAITING_MAX: usize = 1_024;
/// What one fragment has on its way to the bus at most; the machine says it again.
const SAID_MAX: usize = 64;

/// What a gateway's process knows.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// The fragments, and what is to be known of each.
    pub fragments: Vec<(FragmentId, GatewayTerms)>,
    /// The tape is looked at, and what was lost said again, after so many milliseconds, at least 1.
    pub tick_ms: u64,
}

/// The end of a gateway that faces learners.
#[derive(Debug)]
pub struct Learners {
    /// Takes what learners say: that they came, that they left, and their updates. What one says on one connection is
    /// to be handed in in its order.
    pub inputs: mpsc::Sender<(FragmentId, GatewayInput)>,
    /// Gives what they are to be told, [`GatewayOrder::Ask`], [`GatewayOrder::Receipt`] and
    /// [`GatewayOrder::Refused`], and each record of the
    /// tape, [`GatewayOrder::Seen`]; no other order. The gateway waits for whoever does not take them, for none may be
    /// lost.
    pub orders: mpsc::Receiver<(FragmentId, GatewayOrder)>,
}

/// A gateway that is about to run; see [`gateway`].
pub struct Running {
    services: Services,
    settings: GatewaySettings,
    inputs: mpsc::Receiver<(FragmentId, GatewayInput)>,
    orders: mpsc::Sender<(FragmentId, GatewayOrder)>,
}

/// A gateway, and the end of it that faces learners.
#[must_use]
pub fn gateway(services: Services, settings: GatewaySettings) -> (Running, Learners) {
    let (to_gateway, inputs) = mpsc::channel(WAITING_MAX);
    let (orders, to_learners) = mpsc::channel(WAITING_MAX);
    (Running { services, settings, inputs, orders }, Learners { inputs: to_gateway, orders: to_learners })
}

impl Running {
    /// Runs until `stop` is ready, or nobody faces learners any more. What it holds is gone then; its learners learn
    /// from another gateway what became of it.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) {
        let clock = Clock::start();
        let mut tasks = JoinSet::new();
        let mut fragments = BTreeMap::new();
        for (fragment, terms) in self.settings.fragments {
            let (sender, inputs) = mpsc::channel(WAITING_MAX);
            fragments.insert(fragment, sender);
            let desk = Desk {
                fragment,
                services: self.services.clone(),
                clock,
                orders: self.orders.clone(),
                asked: JoinSet::new(),
                wanted: None,
                is_reading: false,
                patience: Arc::default(),
            };
            tasks.spawn(serve(Gateway::new(terms), desk, inputs, self.settings.tick_ms.max(1)));
        }
        tokio::pin!(stop);
        loop {
            let (fragment, input) = tokio::select! {
                () = &mut stop => return,
                input = self.inputs.recv() => match input {
                    Some(input) => input,
                    None => return,
                },
            };
            let Some(to) = fragments.get(&fragment) else { continue };
            tokio::select! {
                () = &mut stop => return,
                sent = to.send(input) => if sent.is_err() { return },
            }
        }
    }
}

/// How a question ended.
enum Done {
    /// What the tape has after a number.
    Read(Option<(u64, Vec<Record>)>),
    /// What owners tell from now on.
    Notices(Option<Inbox<Notice>>),
    /// Something was said, or not.
    Said,
}

/// Which service something is asked of.
#[derive(Clone, Copy)]
enum Whom {
    Tape,
    Bus,
}

/// What one fragment has asked.
struct Desk {
    fragment: FragmentId,
    services: Services,
    clock: Clock,
    orders: mpsc::Sender<(FragmentId, GatewayOrder)>,
    asked: JoinSet<Done>,
    /// The oldest number after which the tape is to be read; one reading answers for all later ones.
    wanted: Option<u64>,
    is_reading: bool,
    patience: Arc<[Patience; 2]>,
}

/// Drives the gateway of one fragment until nobody hands in anything any more, or takes anything.
async fn serve(mut gateway: Gateway, mut desk: Desk, mut inputs: mpsc::Receiver<GatewayInput>, tick_ms: u64) {
    let mut notices: Option<Inbox<Notice>> = None;
    let mut is_listening = false;
    let mut tick = interval(ms(tick_ms));
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let input = tokio::select! {
            input = inputs.recv() => match input {
                Some(input) => input,
                None => return,
            },
            Some(notice) = next(&mut notices) => GatewayInput::Notice(notice),
            Some(done) = desk.asked.join_next() => match done {
                Ok(Done::Read(read)) => {
                    desk.is_reading = false;
                    match read {
                        Some((after, records)) => GatewayInput::Records(after, records),
                        None => continue,
                    }
                }
                Ok(Done::Notices(inbox)) => {
                    is_listening = false;
                    notices = inbox;
                    continue;
                }
                Ok(Done::Said) | Err(_) => continue,
            },
            _ = tick.tick() => GatewayInput::Tick,
        };
        if notices.is_none() && !is_listening {
            is_listening = desk.listen();
        }
        gateway.handle(input);
        // Of what has come by now as well, all is said at once: thousands may answer in the same moment.
        for _ in 0..WAITING_MAX {
            let Ok(input) = inputs.try_recv() else { break };
            gateway.handle(input);
        }
        while let Some(order) = gateway.poll() {
            if desk.ask(order).await.is_err() {
                return;
            }
        }
        desk.read();
    }
}

/// The next notice, if anybody listens. An inbox that has ended is listened to no more.
async fn next(notices: &mut Option<Inbox<Notice>>) -> Option<Notice> {
    let Some(inbox) = notices else { return std::future::pending().await };
    let notice = inbox.recv().await;
    if notice.is_none() {
        *notices = None;
    }
    notice
}

/// Nobody takes what learners are to be told.
struct Alone;

impl Desk {
    async fn ask(&mut self, order: GatewayOrder) -> Result<(), Alone> {
        let (services, fragment) = (self.services.clone(), self.fragment);
        match order {
            GatewayOrder::Ask(..)
            | GatewayOrder::Receipt(..)
            | GatewayOrder::Refused(..)
            | GatewayOrder::Seen(..) => {
                return self.orders.send((fragment, order)).await.map_err(|_| Alone);
            }
            GatewayOrder::Reply(reply) if self.asked.len() < SAID_MAX && self.may_ask(Whom::Bus) => {
                self.spawn(Whom::Bus, async move { services.bus.reply(fragment, &reply).await }, |_| {
                    Done::Said
                });
            }
            GatewayOrder::Reply(_) => {}
            GatewayOrder::Read(after) => {
                self.wanted = Some(self.wanted.map_or(after, |wanted| wanted.min(after)));
            }
        }
        Ok(())
    }

    /// Reads the tape, if that is wanted and not under way.
    fn read(&mut self) {
        if self.is_reading || !self.may_ask(Whom::Tape) {
            return;
        }
        let Some(after) = self.wanted.take() else { return };
        self.is_reading = true;
        let (services, fragment) = (self.services.clone(), self.fragment);
        let question =
            async move { services.tape.read(fragment, after).await.map(|records| (after, records)) };
        self.spawn(Whom::Tape, question, Done::Read);
    }

    /// Asks for what owners tell; whether it did.
    fn listen(&mut self) -> bool {
        let may = self.may_ask(Whom::Bus);
        if may {
            let (services, fragment) = (self.services.clone(), self.fragment);
            self.spawn(Whom::Bus, async move { services.bus.notices(fragment).await }, Done::Notices);
        }
        may
    }

    fn may_ask(&self, whom: Whom) -> bool {
        self.patience[whom as usize].may_ask(self.clock.now())
    }

    fn spawn<T: Send + 'static>(
        &mut self,
        whom: Whom,
        question: impl Future<Output = Result<T, ServiceError>> + Send + 'static,
        done: fn(Option<T>) -> Done,
    ) {
        let (clock, patience) = (self.clock, Arc::clone(&self.patience));
        self.asked.spawn(async move {
            let result = question.await;
            done(patience[whom as usize].note(clock.now(), result))
        });
    }
}
