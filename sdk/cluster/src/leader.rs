//! Driver of a process that leads fragments. It claims free fragments up to its share, and releases them when it
//! stops.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::cluster::{
    AdminCommands, FragmentLeader, LeaderInput, LeaderOutput, LeaderTerms, ProcessId, Record, Reply,
};
use archipelago_core::diloco::FragmentState;
use archipelago_core::wire::{FragmentId, Millis};
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::assignment::{FragmentAssignment, Write};
use crate::retry::{MonotonicClock, Retry, ms, persist};
use crate::service::{Entry, Inbox, ServiceError, Services};

/// Number of polls of the roster within the duration of one lease.
const POLLS_PER_LEASE: u64 = 5;
/// Time limit for the release of all fragments on a stop.
const LEAVE_WITHIN: Duration = Duration::from_secs(2);

/// Settings of a process that leads fragments.
#[derive(Clone, Debug)]
pub struct LeaderSettings {
    /// Random id of this process, unique in the whole run.
    pub process: ProcessId,
    /// Parameters for each fragment that the process may lead. Their `process` is replaced by the one above.
    pub fragments: Vec<LeaderTerms>,
    /// Source of initial states, for fragments that were never merged.
    pub initial_states: InitialStates,
    /// Maximum number of fragments led at once, for the machine's capacity; `usize::MAX` for no limit.
    pub lead_max: usize,
    /// Duration of a lease without renewal, in milliseconds, the same for all processes; at least 5. A process that
    /// crashed is replaced after a little more than this time.
    pub lease_ms: u64,
    /// Interval of the state machines' ticks in milliseconds, at least 1.
    pub tick_ms: u64,
    /// Commands in force. After the sender is dropped, they no longer change.
    pub orders: watch::Receiver<AdminCommands>,
}

/// Leads fragments until `stop` resolves, and then releases them, so that other processes need not wait for the end
/// of the leases.
///
/// Each fragment has one task, which also computes its merges; use a runtime with several threads. Errors of services
/// are logged and do not end it: requests are repeated with growing pauses.
pub async fn own(services: Services, settings: LeaderSettings, stop: impl Future<Output = ()> + Send) {
    let LeaderSettings { process, fragments, initial_states, lead_max, lease_ms, tick_ms, orders } = settings;
    let clock = MonotonicClock::start();
    let fragments: BTreeMap<FragmentId, LeaderTerms> = fragments
        .into_iter()
        .map(|terms| (terms.rounds.fragment, LeaderTerms { process, ..terms }))
        .collect();
    let shares = FragmentAssignment::new(process, fragments.keys().copied(), lease_ms.max(POLLS_PER_LEASE))
        .at_most(lead_max);
    let (there, led) = (services.clone(), fragments.keys().copied().collect::<Vec<_>>());
    let crew = LeaderTasks::new(led, move |fragment, lease| {
        let told = (lease, orders.clone());
        let run = (fragments[&fragment].clone(), initial_states.clone());
        lead(there.clone(), run, clock, told, tick_ms.max(1))
    });
    let mut desk = LeaderLoop { services, clock, shares, crew, patience: Retry::default() };
    let mut beat = interval(ms(lease_ms.max(POLLS_PER_LEASE) / POLLS_PER_LEASE));
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            _ = beat.tick() => {}
        }
        tokio::select! {
            () = &mut stop => break,
            () = desk.beat(ms(lease_ms)) => {}
        }
    }
    // All tasks end before the leases are released and other processes may lead.
    let writes = desk.shares.leave();
    desk.crew.end().await;
    let services = desk.services;
    let leave = async {
        for Write { cell, holder, expect } in writes {
            if let Err(error) = services.roster.write(cell, holder, expect).await {
                tracing::warn!("cannot give up leadership; it ends with the lease: {error}");
            }
        }
    };
    if timeout(LEAVE_WITHIN, leave).await.is_err() {
        tracing::warn!(
            "cannot give up leadership, because the roster does not answer; it ends with the lease"
        );
    }
}

/// State of a process that claims leases.
struct LeaderLoop<L> {
    services: Services,
    clock: MonotonicClock,
    shares: FragmentAssignment,
    crew: LeaderTasks<L>,
    patience: Retry,
}

impl<L, F> LeaderLoop<L>
where
    L: Fn(FragmentId, watch::Receiver<Option<Millis>>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    /// Polls the roster once and writes the changes. Each request has the time limit `limit`.
    async fn beat(&mut self, limit: Duration) {
        for fragment in self.crew.renew() {
            tracing::error!("fragment {fragment}: leading it failed unexpectedly, and starts again");
            let released = self.shares.release(fragment);
            self.put(released.into_iter().collect(), limit).await;
        }
        let entries = match timeout(limit, self.services.roster.list()).await {
            Ok(entries) => self.patience.note(self.clock.now(), entries),
            Err(_) => None,
        };
        if let Some(entries) = entries {
            self.write(&entries, limit).await;
        }
        self.publish_leases();
    }

    async fn write(&mut self, entries: &[Entry], limit: Duration) {
        let before = self.shares.left();
        let writes = self.shares.update(self.clock.now(), entries);
        let left = self.shares.left();
        if left > 0 && before == 0 {
            tracing::warn!(
                "{left} fragments have no leader, and this process leads as many as it may: start another owner, or \
                 raise --lead-max"
            );
        }
        // The task of a released fragment is notified before other processes can see the release.
        self.publish_leases();
        self.put(writes, limit).await;
    }

    async fn put(&mut self, writes: Vec<Write>, limit: Duration) {
        let mut asked = JoinSet::new();
        for write in writes {
            let (roster, at) = (self.services.roster.clone(), self.clock.now());
            asked.spawn(async move {
                let Write { cell, holder, expect } = write;
                (at, write, timeout(limit, roster.write(cell, holder, expect)).await)
            });
        }
        while let Some(done) = asked.join_next().await {
            let Ok((at, write, Ok(result))) = done else { continue };
            if let Some(revision) = self.patience.note(self.clock.now(), result) {
                self.shares.on_written(at, write, revision);
            }
        }
    }

    /// Notifies each task of the end of its lease.
    fn publish_leases(&self) {
        let now = self.clock.now();
        self.crew.set_leases(|fragment| self.shares.until(now, fragment));
    }
}

/// Interval at which the tape is polled.
const POLL_EVERY: Duration = Duration::from_secs(1);

/// Resolves once the last round of each of these fragments is over, regardless of the process that led it.
pub async fn finished(services: Services, fragments: Vec<FragmentId>) {
    for fragment in fragments {
        let mut last = 0;
        loop {
            let records = persist(|| services.tape.read(fragment, last)).await;
            if records.last() == Some(&Record::Finished) {
                break;
            }
            last += records.len() as u64;
            sleep(POLL_EVERY).await;
        }
    }
}

/// Initial state of a fragment, or the reason why it could not be made.
type InitialState = Result<FragmentState, Box<dyn Error + Send + Sync>>;

/// Source of initial states, which makes a state for each request. A process that leads a few fragments of a large
/// run thus holds only their states.
#[derive(Clone)]
pub struct InitialStates(Arc<dyn Fn(FragmentId) -> InitialState + Send + Sync>);

impl InitialStates {
    /// Returns a source that calls `make`, which returns version 0 of a fragment, the same in each process of the
    /// run. `make` may take long and runs on a blocking thread. Its errors are logged, and it is called again later.
    pub fn new(make: impl Fn(FragmentId) -> InitialState + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// Makes the initial state of `fragment`.
    ///
    /// # Errors
    /// Those of the function given to [`Self::new`].
    fn make(&self, fragment: FragmentId) -> InitialState {
        (self.0)(fragment)
    }
}

impl fmt::Debug for InitialStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InitialStates")
    }
}

/// Tasks, one for each fragment. A task ends when the sender of its lease is dropped.
struct LeaderTasks<L> {
    lead: L,
    tasks: JoinSet<()>,
    /// End of each fragment's lease, as its task knows it.
    leases: BTreeMap<FragmentId, watch::Sender<Option<Millis>>>,
}

impl<L, F> LeaderTasks<L>
where
    L: Fn(FragmentId, watch::Receiver<Option<Millis>>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    /// Starts a task without a lease for each of `fragments`.
    fn new(fragments: impl IntoIterator<Item = FragmentId>, lead: L) -> Self {
        let mut crew = Self { lead, tasks: JoinSet::new(), leases: BTreeMap::new() };
        fragments.into_iter().for_each(|fragment| crew.begin(fragment));
        crew
    }

    fn begin(&mut self, fragment: FragmentId) {
        let (sender, lease) = watch::channel(None);
        self.leases.insert(fragment, sender);
        self.tasks.spawn((self.lead)(fragment, lease));
    }

    /// Restarts the tasks that have ended, and returns their fragments. Only a panic ends a task. Without a restart,
    /// the process would renew the lease of a fragment without a leader.
    fn renew(&mut self) -> Vec<FragmentId> {
        while self.tasks.try_join_next().is_some() {}
        let ended = self.leases.iter().filter(|(_, lease)| lease.is_closed());
        let ended: Vec<FragmentId> = ended.map(|(fragment, _)| *fragment).collect();
        ended.iter().for_each(|&fragment| self.begin(fragment));
        ended
    }

    /// Sends each task the end of its lease, `until(fragment)`.
    fn set_leases(&self, until: impl Fn(FragmentId) -> Option<Millis>) {
        for (fragment, lease) in &self.leases {
            lease.send_replace(until(*fragment));
        }
    }

    /// Ends all tasks.
    async fn end(mut self) {
        self.leases.clear();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Maximum number of requests of one fragment in flight. The state machine repeats requests that are not sent.
const ASKED_MAX: usize = 16;
/// Delay before an initial state is made again after a failure.
const BEGIN_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Result of a request.
enum RequestResult {
    /// Input for the state machine; `None` if the request failed.
    Input(Option<LeaderInput>),
    /// Initial state of the fragment; `None` if it could not be made.
    Begun(Option<FragmentState>),
    /// Subscription to gateways' replies; `None` if the request failed.
    Replies(Option<Inbox<Reply>>),
    /// A send is over, with or without success.
    Said,
}

/// Requests of one fragment to the services.
struct FragmentRequests {
    fragment: FragmentId,
    services: Services,
    clock: MonotonicClock,
    initial_states: InitialStates,
    /// True while the initial state is being made.
    is_beginning: bool,
    asked: JoinSet<RequestResult>,
    patience: Arc<[Retry; 4]>,
}

/// Service that a request goes to.
#[derive(Clone, Copy)]
enum ServiceKind {
    Tape,
    Blobs,
    Bus,
    /// Deletions of blobs. They have their own backoff, because a process without the permission to delete can still
    /// store.
    Bin,
}

/// Drives the leader of a fragment according to its lease and the commands in force, until the sender of the lease is
/// dropped.
async fn lead(
    services: Services,
    (terms, initial_states): (LeaderTerms, InitialStates),
    clock: MonotonicClock,
    (mut lease, mut orders): (watch::Receiver<Option<Millis>>, watch::Receiver<AdminCommands>),
    tick_ms: u64,
) {
    let fragment = terms.rounds.fragment;
    let mut owner = FragmentLeader::new(terms);
    owner.handle(clock.now(), LeaderInput::Ordered(*orders.borrow_and_update()));
    let (asked, patience) = (JoinSet::new(), Arc::default());
    let mut desk =
        FragmentRequests { fragment, services, clock, initial_states, is_beginning: false, asked, patience };
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
                Ok(RequestResult::Input(Some(input))) => input,
                Ok(RequestResult::Begun(state)) => {
                    desk.is_beginning = false;
                    let Some(state) = state else { continue };
                    LeaderInput::Begun(state)
                }
                Ok(RequestResult::Replies(inbox)) => {
                    is_listening = false;
                    replies = inbox.filter(|_| is_leased);
                    continue;
                }
                Ok(RequestResult::Input(None) | RequestResult::Said) | Err(_) => continue,
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

/// Returns the next reply; waits forever without a subscription. A subscription that has ended is dropped.
async fn next(replies: &mut Option<Inbox<Reply>>) -> Option<Reply> {
    let Some(inbox) = replies else { return std::future::pending().await };
    let reply = inbox.recv().await;
    if reply.is_none() {
        *replies = None;
    }
    reply
}

impl FragmentRequests {
    /// Starts a subscription to gateways' replies. Returns false if it could not be started.
    fn listen(&mut self) -> bool {
        let (services, fragment) = (self.services.clone(), self.fragment);
        let question = async move { services.bus.replies(fragment).await };
        self.spawn(ServiceKind::Bus, question, RequestResult::Replies)
    }

    /// Sends a request of the state machine. Its result becomes an input. Without a result, the state machine repeats
    /// the request.
    fn ask(&mut self, order: LeaderOutput) {
        let (services, fragment) = (self.services.clone(), self.fragment);
        match order {
            LeaderOutput::Append { turn, expect, record } => {
                let question = async move {
                    let appended = services.tape.append(fragment, expect, &record).await?;
                    Ok(appended.map_or(LeaderInput::Refused, |seq| LeaderInput::Appended { turn, seq }))
                };
                self.spawn(ServiceKind::Tape, question, RequestResult::Input);
            }
            LeaderOutput::Read(after) => {
                let question = async move {
                    let records = services.tape.read(fragment, after).await?;
                    Ok(LeaderInput::Records(after, records))
                };
                self.spawn(ServiceKind::Tape, question, RequestResult::Input);
            }
            LeaderOutput::Store(key, bytes) => {
                let question = async move {
                    let is_ours = services.blobs.store(fragment, key, bytes).await?;
                    Ok(LeaderInput::Stored(key, is_ours))
                };
                self.spawn(ServiceKind::Blobs, question, RequestResult::Input);
            }
            LeaderOutput::Load(key) => {
                let question = async move {
                    let bytes = services.blobs.load(fragment, key).await?;
                    Ok(LeaderInput::Loaded(key, bytes))
                };
                self.spawn(ServiceKind::Blobs, question, RequestResult::Input);
            }
            LeaderOutput::Begin => self.begin(),
            LeaderOutput::Forget(keys) => {
                let question = async move { services.blobs.forget(fragment, keys).await };
                self.spawn(ServiceKind::Bin, question, |_| RequestResult::Said);
            }
            LeaderOutput::Tell(notice) => {
                let question = async move { services.bus.notify(fragment, &notice).await };
                self.spawn(ServiceKind::Bus, question, |_| RequestResult::Said);
            }
        }
    }

    /// Makes the initial state, unless that is in progress, so that only one is in memory.
    fn begin(&mut self) {
        if std::mem::replace(&mut self.is_beginning, true) {
            return;
        }
        let (initial_states, fragment) = (self.initial_states.clone(), self.fragment);
        self.asked.spawn(async move {
            let made = spawn_blocking(move || initial_states.make(fragment)).await;
            match made.unwrap_or_else(|failed| Err(failed.into())) {
                Ok(state) => RequestResult::Begun(Some(state)),
                Err(error) => {
                    tracing::error!(%fragment, "cannot start: {error}");
                    sleep(BEGIN_AGAIN_AFTER).await;
                    RequestResult::Begun(None)
                }
            }
        });
    }

    /// Sends a request, unless the service is in backoff or too many requests are in flight. Returns true if it was
    /// sent.
    fn spawn<T: Send + 'static>(
        &mut self,
        whom: ServiceKind,
        question: impl Future<Output = Result<T, ServiceError>> + Send + 'static,
        done: fn(Option<T>) -> RequestResult,
    ) -> bool {
        let (clock, patience) = (self.clock, Arc::clone(&self.patience));
        if self.asked.len() >= ASKED_MAX || !patience[whom as usize].may_send(clock.now()) {
            return false;
        }
        self.asked.spawn(async move {
            let result = question.await;
            done(patience[whom as usize].note(clock.now(), result))
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Goal: after a panic in the task of a fragment, its lease does not stay without a working task.
    #[tokio::test]
    async fn task_is_restarted_after_a_panic() {
        let begun = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
        let counts = Arc::clone(&begun);
        let mut crew = LeaderTasks::new([FragmentId(0), FragmentId(1)], move |fragment, mut lease| {
            let counts = Arc::clone(&counts);
            async move {
                let before = counts[usize::from(fragment.0)].fetch_add(1, Ordering::Relaxed);
                while lease.changed().await.is_ok() {
                    assert!(fragment != FragmentId(1) || before > 0, "the first time it is told something");
                }
            }
        });
        assert!(crew.renew().is_empty());
        crew.set_leases(|_| Some(Millis(1)));
        let mut renewed = crew.renew();
        while renewed.is_empty() {
            tokio::task::yield_now().await;
            renewed = crew.renew();
        }
        assert_eq!(renewed, [FragmentId(1)]);
        crew.set_leases(|_| Some(Millis(2)));
        crew.end().await;
        assert_eq!([&begun[0], &begun[1]].map(|count| count.load(Ordering::Relaxed)), [1, 2]);
    }
}
