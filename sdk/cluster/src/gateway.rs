//! Driver of a gateway process between learners and leaders: one state machine for each fragment, on the tape and the
//! bus.
//!
//! The gateway has no sockets. The caller holds the learners' sockets and forwards messages in both directions.

use std::collections::BTreeMap;
use std::sync::Arc;

use archipelago_core::cluster::{Gateway, GatewayInput, GatewayOutput, GatewayTerms, Notice, Record};
use archipelago_core::wire::FragmentId;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::retry::{MonotonicClock, Retry, ms};
use crate::service::{Inbox, ServiceError, Services};

/// Maximum number of queued inputs, and of queued outputs, of one fragment.
const WAITING_MAX: usize = 1_024;
/// Maximum number of requests of one fragment in flight. At this limit, replies to the bus are dropped, and the state
/// machine repeats them.
const REQUESTS_MAX: usize = 64;

/// Settings of a gateway process.
#[derive(Clone, Debug)]
pub struct GatewaySettings {
    /// Fragments and their parameters.
    pub fragments: Vec<(FragmentId, GatewayTerms)>,
    /// Interval in milliseconds, at least 1, at which the tape is polled and lost messages are repeated.
    pub tick_ms: u64,
}

/// Learners' side of a gateway.
#[derive(Debug)]
pub struct Learners {
    /// Sender for inputs about learners: joins, leaves and updates. Inputs of one connection must be sent in order.
    pub inputs: mpsc::Sender<(FragmentId, GatewayInput)>,
    /// Receiver of outputs for learners ([`GatewayOutput::Ask`], [`GatewayOutput::Receipt`] and
    /// [`GatewayOutput::Refused`]) and of each record of the tape ([`GatewayOutput::Seen`]). It receives no other
    /// outputs. Outputs must not be lost, so the gateway waits for a slow receiver.
    pub orders: mpsc::Receiver<(FragmentId, GatewayOutput)>,
}

/// Gateway that is ready to run; see [`gateway`].
pub struct GatewayLoop {
    services: Services,
    settings: GatewaySettings,
    inputs: mpsc::Receiver<(FragmentId, GatewayInput)>,
    orders: mpsc::Sender<(FragmentId, GatewayOutput)>,
}

/// Returns a gateway, and the learners' side of it.
#[must_use]
pub fn gateway(services: Services, settings: GatewaySettings) -> (GatewayLoop, Learners) {
    let (to_gateway, inputs) = mpsc::channel(WAITING_MAX);
    let (orders, to_learners) = mpsc::channel(WAITING_MAX);
    (GatewayLoop { services, settings, inputs, orders }, Learners { inputs: to_gateway, orders: to_learners })
}

impl GatewayLoop {
    /// Runs until `stop` resolves or the learners' side is dropped. Updates that the gateway holds are then lost, and
    /// their learners get the fates from another gateway.
    pub async fn run(mut self, stop: impl Future<Output = ()> + Send) {
        let clock = MonotonicClock::start();
        let mut tasks = JoinSet::new();
        let mut fragments = BTreeMap::new();
        for (fragment, terms) in self.settings.fragments {
            let (sender, inputs) = mpsc::channel(WAITING_MAX);
            fragments.insert(fragment, sender);
            let desk = FragmentRequests {
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

/// Result of a request.
enum RequestResult {
    /// Number after which the read began, and the records; `None` if the read failed.
    Read(Option<(u64, Vec<Record>)>),
    /// Subscription to leaders' notices; `None` if the request failed.
    Notices(Option<Inbox<Notice>>),
    /// A send is over, with or without success.
    Said,
}

/// Service that a request goes to.
#[derive(Clone, Copy)]
enum ServiceKind {
    Tape,
    Bus,
}

/// Requests of one fragment to the services.
struct FragmentRequests {
    fragment: FragmentId,
    services: Services,
    clock: MonotonicClock,
    orders: mpsc::Sender<(FragmentId, GatewayOutput)>,
    asked: JoinSet<RequestResult>,
    /// Smallest number after which the tape must be read. One read also serves larger numbers.
    wanted: Option<u64>,
    is_reading: bool,
    patience: Arc<[Retry; 2]>,
}

/// Drives the gateway of one fragment until the channel of inputs or that of outputs is closed.
async fn serve(
    mut gateway: Gateway,
    mut desk: FragmentRequests,
    mut inputs: mpsc::Receiver<GatewayInput>,
    tick_ms: u64,
) {
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
                Ok(RequestResult::Read(read)) => {
                    desk.is_reading = false;
                    match read {
                        Some((after, records)) => GatewayInput::Records(after, records),
                        None => continue,
                    }
                }
                Ok(RequestResult::Notices(inbox)) => {
                    is_listening = false;
                    notices = inbox;
                    continue;
                }
                Ok(RequestResult::Said) | Err(_) => continue,
            },
            _ = tick.tick() => GatewayInput::Tick,
        };
        if notices.is_none() && !is_listening {
            is_listening = desk.listen();
        }
        gateway.handle(input);
        // All queued inputs are handled before the output is polled, so that one reply covers them: thousands of
        // learners may answer at the same time.
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

/// Returns the next notice; waits forever without a subscription. A subscription that has ended is dropped.
async fn next(notices: &mut Option<Inbox<Notice>>) -> Option<Notice> {
    let Some(inbox) = notices else { return std::future::pending().await };
    let notice = inbox.recv().await;
    if notice.is_none() {
        *notices = None;
    }
    notice
}

/// Error: the receiver of outputs was dropped.
struct ReceiverGone;

impl FragmentRequests {
    async fn ask(&mut self, order: GatewayOutput) -> Result<(), ReceiverGone> {
        let (services, fragment) = (self.services.clone(), self.fragment);
        match order {
            GatewayOutput::Ask(..)
            | GatewayOutput::Receipt(..)
            | GatewayOutput::Refused(..)
            | GatewayOutput::Seen(..) => {
                return self.orders.send((fragment, order)).await.map_err(|_| ReceiverGone);
            }
            GatewayOutput::Reply(reply)
                if self.asked.len() < REQUESTS_MAX && self.may_send(ServiceKind::Bus) =>
            {
                self.spawn(
                    ServiceKind::Bus,
                    async move { services.bus.reply(fragment, &reply).await },
                    |_| RequestResult::Said,
                );
            }
            GatewayOutput::Reply(_) => {}
            GatewayOutput::Read(after) => {
                self.wanted = Some(self.wanted.map_or(after, |wanted| wanted.min(after)));
            }
        }
        Ok(())
    }

    /// Starts a read of the tape, if one is needed and none is in flight.
    fn read(&mut self) {
        if self.is_reading || !self.may_send(ServiceKind::Tape) {
            return;
        }
        let Some(after) = self.wanted.take() else { return };
        self.is_reading = true;
        let (services, fragment) = (self.services.clone(), self.fragment);
        let question =
            async move { services.tape.read(fragment, after).await.map(|records| (after, records)) };
        self.spawn(ServiceKind::Tape, question, RequestResult::Read);
    }

    /// Starts a subscription to leaders' notices. Returns false if the bus is in backoff.
    fn listen(&mut self) -> bool {
        let may = self.may_send(ServiceKind::Bus);
        if may {
            let (services, fragment) = (self.services.clone(), self.fragment);
            self.spawn(
                ServiceKind::Bus,
                async move { services.bus.notices(fragment).await },
                RequestResult::Notices,
            );
        }
        may
    }

    fn may_send(&self, whom: ServiceKind) -> bool {
        self.patience[whom as usize].may_send(self.clock.now())
    }

    fn spawn<T: Send + 'static>(
        &mut self,
        whom: ServiceKind,
        question: impl Future<Output = Result<T, ServiceError>> + Send + 'static,
        done: fn(Option<T>) -> RequestResult,
    ) {
        let (clock, patience) = (self.clock, Arc::clone(&self.patience));
        self.asked.spawn(async move {
            let result = question.await;
            done(patience[whom as usize].note(clock.now(), result))
        });
    }
}
