//! Bridge between a gateway and a syncer that serves real learners. It forwards the syncer's requests to the leaders,
//! and merges and fates to the syncer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::cluster::{FollowError, GatewayInput, GatewayOutput, GatewayTerms, Record, follow};
use archipelago_core::diloco::syncer::{Answer, Input, LeaderRequest, RemoteMerge};
use archipelago_core::diloco::{Codec, FragmentState, MergeEntry, Segment, Version};
use archipelago_core::wire::{ConnId, FragmentId, Hello, LearnerId, Round};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use tokio::time::sleep;

use crate::admin_commands::AdminCommandLog;
use crate::gateway::{GatewayLoop, GatewaySettings, gateway};
use crate::ids::number;
use crate::retry::persist;
use crate::service::{ServiceError, Services};

/// Maximum number of queued inputs for the syncer. While the queue is full, the gateway waits.
const WAITING_MAX: usize = 256;

/// Bridge that is ready to run; see [`front`].
pub struct Bridge {
    gateway: GatewayLoop,
    said: mpsc::UnboundedReceiver<LeaderRequest>,
    inputs: mpsc::Sender<Input>,
    orders: mpsc::Receiver<(FragmentId, GatewayOutput)>,
    to_gateway: mpsc::Sender<(FragmentId, GatewayInput)>,
    joins: PendingJoins,
    following: Follower,
    fragments: Vec<FragmentId>,
    commands: AdminCommandLog,
}

/// Syncer's side of the bridge.
#[derive(Debug)]
pub struct BridgeHandle {
    /// Sender for the syncer's requests, in order. The queue is bounded by the number of connected learners, because
    /// each learner has at most one update of a fragment in flight.
    pub said: mpsc::UnboundedSender<LeaderRequest>,
    /// Receiver of inputs for the syncer, in order.
    pub inputs: mpsc::Receiver<Input>,
}

/// Returns a bridge and the syncer's side of it. `initial` has the initial state of each fragment; only its Θ̂ is
/// used. The gateway polls the tape every `tick_ms` milliseconds, at least 1.
#[must_use]
pub fn front(
    services: Services,
    fragments: Vec<(FragmentId, GatewayTerms)>,
    initial: Vec<FragmentState>,
    tick_ms: u64,
) -> (Bridge, BridgeHandle) {
    let (said, to_front) = mpsc::unbounded_channel();
    let (inputs, to_syncer) = mpsc::channel(WAITING_MAX);
    let ids: Vec<FragmentId> = fragments.iter().map(|(fragment, _)| *fragment).collect();
    let following = Follower::new(services.clone(), &fragments, initial);
    let settings = GatewaySettings { fragments, tick_ms };
    let (gateway, learners) = gateway(services.clone(), settings);
    let front = Bridge {
        gateway,
        commands: AdminCommandLog::of(&services),
        joins: PendingJoins::new(services, ids.clone()),
        said: to_front,
        inputs,
        orders: learners.orders,
        to_gateway: learners.inputs,
        following,
        fragments: ids,
    };
    (front, BridgeHandle { said, inputs: to_syncer })
}

/// Error: the syncer's side was dropped.
struct SyncerGone;

impl Bridge {
    /// Runs until `stop` resolves or the syncer's side is dropped.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let Self { gateway, mut said, inputs, mut orders, to_gateway, fragments, commands, .. } = self;
        let (mut joins, mut following) = (self.joins, self.following);
        let (ups, mut queued) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(gateway.run(std::future::pending()));
        // This queue is unbounded, so that the bridge can read the gateway's output while the gateway accepts no
        // input.
        tasks.spawn(async move {
            while let Some(up) = queued.recv().await {
                if to_gateway.send(up).await.is_err() {
                    return;
                }
            }
        });
        let desk = BridgeLoop { ups, inputs, fragments, commands };
        tokio::pin!(stop);
        loop {
            let done = tokio::select! {
                () = &mut stop => return,
                up = said.recv() => match up {
                    Some(up) => {
                        desk.pass_on(&mut joins, up);
                        Ok(())
                    }
                    None => return,
                },
                order = orders.recv() => match order {
                    Some((fragment, order)) => desk.order(&mut following, fragment, order).await,
                    None => return,
                },
                joined = joins.next() => desk.joined(joined).await,
                (fragment, seq, event) = following.next() => {
                    desk.followed(&mut joins, fragment, seq, event).await
                }
            };
            if done.is_err() {
                return;
            }
        }
    }
}

struct BridgeLoop {
    ups: mpsc::UnboundedSender<(FragmentId, GatewayInput)>,
    inputs: mpsc::Sender<Input>,
    fragments: Vec<FragmentId>,
    commands: AdminCommandLog,
}

impl BridgeLoop {
    async fn send(&self, input: Input) -> Result<(), SyncerGone> {
        self.inputs.send(input).await.map_err(|_| SyncerGone)
    }

    /// Sends an input to the gateway of every fragment.
    fn up(&self, input: &GatewayInput) {
        for &fragment in &self.fragments {
            // The send fails only if the gateway has ended, and then the bridge ends too.
            let _ = self.ups.send((fragment, input.clone()));
        }
    }

    fn pass_on(&self, joins: &mut PendingJoins, request: LeaderRequest) {
        match request {
            LeaderRequest::Introduce(conn, hello) => joins.introduce(conn, hello),
            LeaderRequest::Came(learner, conn) => self.up(&GatewayInput::Came(learner, conn, None)),
            LeaderRequest::Left(learner, conn) => self.up(&GatewayInput::Left(learner, conn)),
            LeaderRequest::Gone(conn) => self.forget(joins, conn),
            LeaderRequest::Pace(step_ms) => self.up(&GatewayInput::Pace(step_ms)),
            LeaderRequest::Enough => {
                let commands = self.commands.clone();
                // The task ends by itself or with the runtime.
                tokio::spawn(async move { commands.finish().await });
            }
            LeaderRequest::Answer(fragment, learner, conn, round, answer) => {
                let input = match answer {
                    Answer::Update(update, sender) => {
                        GatewayInput::Update(learner, conn, round, *update, sender)
                    }
                    Answer::Nothing => GatewayInput::Pass(learner, conn, round),
                };
                let _ = self.ups.send((fragment, input));
            }
        }
    }

    fn forget(&self, joins: &mut PendingJoins, conn: ConnId) {
        if let Some(learner) = joins.forget(conn) {
            self.up(&GatewayInput::WaitsNoMore(learner));
        }
    }

    async fn joined(&self, joined: JoinOutcome) -> Result<(), SyncerGone> {
        match joined {
            JoinOutcome::In(learner, input) => {
                // The learner may have waited on another connection.
                self.up(&GatewayInput::WaitsNoMore(learner));
                self.send(*input).await
            }
            JoinOutcome::Waits(learner) => {
                self.up(&GatewayInput::Waits(learner));
                Ok(())
            }
        }
    }

    async fn order(
        &self,
        following: &mut Follower,
        fragment: FragmentId,
        order: GatewayOutput,
    ) -> Result<(), SyncerGone> {
        match order {
            GatewayOutput::Ask(learner, conn, round) => {
                self.send(Input::Asked { fragment, learner, conn, round }).await
            }
            GatewayOutput::Receipt(learner, conn, serial, None) => {
                self.send(Input::Unmerged { fragment, learner, conn, serial, refusal: None }).await
            }
            GatewayOutput::Refused(learner, conn, serial, why) => {
                self.send(Input::Unmerged { fragment, learner, conn, serial, refusal: Some(why) }).await
            }
            // Merged updates are handled for all learners at once, by the records of the tape.
            GatewayOutput::Receipt(_, _, _, Some(_)) => Ok(()),
            GatewayOutput::Seen(seq, record) => {
                following.add(fragment, seq, *record);
                Ok(())
            }
            GatewayOutput::Reply(_) | GatewayOutput::Read(_) => Ok(()),
        }
    }

    async fn followed(
        &self,
        joins: &mut PendingJoins,
        fragment: FragmentId,
        seq: u64,
        event: RecordEvent,
    ) -> Result<(), SyncerGone> {
        let is_last = matches!(event, RecordEvent::Finished);
        match event {
            RecordEvent::Merged(followed) => self.send(Input::Followed(Box::new(followed))).await?,
            RecordEvent::Finished => self.send(Input::Closed(fragment)).await?,
            RecordEvent::Nothing => self.send(Input::Over(fragment, Round(seq))).await?,
        }
        // After the last record of a fragment, learners must not wait for another one.
        let reached = if is_last { u64::MAX } else { seq };
        for (learner, input) in joins.reached(fragment, reached) {
            self.up(&GatewayInput::WaitsNoMore(learner));
            self.send(input).await?;
        }
        Ok(())
    }
}

/// Number of a record for each fragment.
type Numbers = BTreeMap<FragmentId, u64>;

/// Learners that have sent `Hello` but are not admitted yet.
///
/// Each learner first gets its number. A learner that returns may have left an update at another gateway, and the
/// fate of that update may be unknown. The update belongs to the current round of its fragment or to an older one.
/// The learner therefore waits until the tape of each fragment has one more record than when it returned. Then the
/// fate of each such update is known, and the syncer has it in the learner's account. The learner trains meanwhile.
///
/// This requires that the replica of a tape that answers one read is never a whole round behind the replica that
/// answered an earlier read.
struct PendingJoins {
    services: Services,
    /// Number of the newest record that the syncer knows, for each fragment.
    known: Numbers,
    pending: BTreeMap<ConnId, PendingJoin>,
    asked: JoinSet<(ConnId, Found)>,
}

struct PendingJoin {
    hello: Box<Hello>,
    /// Handle that cancels the requests for this learner.
    asking: AbortHandle,
    /// Number of the learner and the records that it waits for; `None` until the requests are answered.
    waits: Option<(LearnerId, Numbers)>,
}

/// Result of the requests for a joining learner.
enum Found {
    /// Number of the learner and, if it returns, the number of the newest record of each fragment.
    Number(LearnerId, Option<Numbers>),
    /// No number is free for the learner.
    Nothing,
}

/// Outcome of the requests for a joining learner.
enum JoinOutcome {
    /// The learner is admitted: the syncer gets this input.
    In(LearnerId, Box<Input>),
    /// The learner waits for the ends of the current rounds.
    Waits(LearnerId),
}

impl PendingJoins {
    /// Returns a list without learners.
    fn new(services: Services, fragments: Vec<FragmentId>) -> Self {
        let known = fragments.into_iter().map(|fragment| (fragment, 0)).collect();
        Self { services, known, pending: BTreeMap::new(), asked: JoinSet::new() }
    }

    /// Starts the requests for a learner that has sent `Hello` on this connection.
    fn introduce(&mut self, conn: ConnId, hello: Box<Hello>) {
        let services = self.services.clone();
        let fragments: Vec<FragmentId> = self.known.keys().copied().collect();
        let (identity, returns) = (hello.identity.fingerprint(), hello.run.is_some());
        let asking = self.asked.spawn(async move {
            let number = persist(|| async { number(&*services.blobs, identity).await }).await;
            let Some(number) = number else { return (conn, Found::Nothing) };
            let newest = match returns {
                true => Some(persist(|| newest(&services, &fragments)).await),
                false => None,
            };
            (conn, Found::Number(number, newest))
        });
        self.pending.insert(conn, PendingJoin { hello, asking, waits: None });
    }

    /// Returns the next outcome. It is cancel safe.
    async fn next(&mut self) -> JoinOutcome {
        loop {
            let Some(done) = self.asked.join_next().await else { return std::future::pending().await };
            let Ok((conn, found)) = done else { continue };
            let Some(join) = self.pending.get_mut(&conn) else { continue };
            let Found::Number(learner, newest) = found else {
                tracing::error!("no learner number is free for this identity: it collides with others");
                self.pending.remove(&conn);
                continue;
            };
            // The replica that answered may be behind the syncer.
            let known = |fragment: &FragmentId| self.known.get(fragment).copied().unwrap_or(0);
            let next = |(fragment, newest): (FragmentId, u64)| {
                (fragment, newest.max(known(&fragment)).saturating_add(1))
            };
            let needed: Numbers = newest.into_iter().flatten().map(next).collect();
            join.waits = Some((learner, needed));
            // When a learner joins again, it no longer waits on older connections.
            self.pending.retain(|&older, join| older >= conn || !join.is(learner));
            return match self.take(conn) {
                Some((learner, input)) => JoinOutcome::In(learner, Box::new(input)),
                None => JoinOutcome::Waits(learner),
            };
        }
    }

    /// Records that the syncer knows record `seq` of `fragment`. Returns the learners that no longer have to wait,
    /// with inputs for the syncer. Each learner waits on at most one connection.
    fn reached(&mut self, fragment: FragmentId, seq: u64) -> Vec<(LearnerId, Input)> {
        self.known.insert(fragment, seq);
        let conns: Vec<ConnId> = self.pending.keys().copied().collect();
        conns.into_iter().filter_map(|conn| self.take(conn)).collect()
    }

    /// Removes a closed connection. Returns the learner that waited on it, unless it also waits on another
    /// connection.
    fn forget(&mut self, conn: ConnId) -> Option<LearnerId> {
        let join = self.pending.remove(&conn)?;
        join.asking.abort();
        let (learner, _) = join.waits?;
        self.pending.values().all(|join| !join.is(learner)).then_some(learner)
    }

    /// Removes and returns the learner on this connection, unless it still waits for a record.
    fn take(&mut self, conn: ConnId) -> Option<(LearnerId, Input)> {
        let (learner, needed) = self.pending.get(&conn)?.waits.as_ref()?;
        let is_known = |(fragment, needed): (&FragmentId, &u64)| {
            self.known.get(fragment).is_some_and(|known| known >= needed)
        };
        if !needed.iter().all(is_known) {
            return None;
        }
        let learner = *learner;
        let PendingJoin { hello, .. } = self.pending.remove(&conn)?;
        Some((learner, Input::Introduced { conn, learner, hello }))
    }
}

impl PendingJoin {
    fn is(&self, learner: LearnerId) -> bool {
        self.waits.as_ref().is_some_and(|(waits, _)| *waits == learner)
    }
}

/// Returns the number of the newest record of each of `fragments`.
async fn newest(services: &Services, fragments: &[FragmentId]) -> Result<Numbers, ServiceError> {
    let mut asked = JoinSet::new();
    for &fragment in fragments {
        let tape = Arc::clone(&services.tape);
        asked.spawn(async move { Ok((fragment, tape.newest(fragment).await?)) });
    }
    let mut newest = Numbers::new();
    while let Some(done) = asked.join_next().await {
        let (fragment, last) =
            done.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))?;
        newest.insert(fragment, last);
    }
    Ok(newest)
}

/// Delay before a missing or damaged state is loaded again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of states loaded at once. Loading takes about fifty bytes of memory for each parameter, until only
/// Θ̂ is left. A gateway that starts late loads the states of all fragments.
const LOADED_MAX: usize = 2;

/// Event of a record: fragment, number of the record, and event.
type NumberedEvent = (FragmentId, u64, RecordEvent);

/// Event of a record for a process that serves learners.
enum RecordEvent {
    /// The fragment has a new version.
    Merged(RemoteMerge),
    /// No record follows this one.
    Finished,
    /// A round ended without a merge, or a process took the fragment over.
    Nothing,
}

/// Θ̂ of a version as a state, and the coded change that leads to it.
type StateWithChange = (FragmentState, Vec<u8>);

/// Merge with the checksum of its state, and the result of loading that state.
struct MergeLoad {
    merge: Box<MergeEntry>,
    sum: u64,
    led: Option<StateWithChange>,
}

/// Records of all fragments that the syncer does not know yet, and the loading of their states.
struct Follower {
    services: Services,
    queues: BTreeMap<FragmentId, FragmentQueue>,
    jobs: JoinSet<(FragmentId, u64, MergeLoad)>,
    turns: Arc<Semaphore>,
    ready: VecDeque<NumberedEvent>,
}

struct FragmentQueue {
    segments: Arc<Vec<Segment>>,
    codec: Codec,
    /// Newest state that was loaded.
    state: FragmentState,
    queue: VecDeque<(u64, Record)>,
    is_busy: bool,
}

impl Follower {
    /// Returns a follower before any record. `initial` has the initial state of each fragment; only its Θ̂ is
    /// used.
    fn new(
        services: Services,
        fragments: &[(FragmentId, GatewayTerms)],
        initial: Vec<FragmentState>,
    ) -> Self {
        let fragment_queue = |((fragment, terms), state): (&(FragmentId, GatewayTerms), FragmentState)| {
            let (segments, codec) = (Arc::clone(&terms.segments), terms.codec);
            (*fragment, FragmentQueue { segments, codec, state, queue: VecDeque::new(), is_busy: false })
        };
        let queues = fragments.iter().zip(initial).map(fragment_queue).collect();
        let turns = Arc::new(Semaphore::new(LOADED_MAX));
        Self { services, queues, jobs: JoinSet::new(), turns, ready: VecDeque::new() }
    }

    /// Adds the next record of `fragment`.
    fn add(&mut self, fragment: FragmentId, seq: u64, record: Record) {
        if let Some(fragment_queue) = self.queues.get_mut(&fragment) {
            fragment_queue.queue.push_back((seq, record));
            self.step(fragment);
        }
    }

    /// Returns the next event. It is cancel safe.
    async fn next(&mut self) -> NumberedEvent {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return event;
            }
            let Some(done) = self.jobs.join_next().await else { return std::future::pending().await };
            let (fragment, seq, MergeLoad { merge, sum, led }) =
                done.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
            let Some(fragment_queue) = self.queues.get_mut(&fragment) else { continue };
            fragment_queue.is_busy = false;
            match led {
                Some(led) => {
                    fragment_queue.state = led.0.clone();
                    let event = RecordEvent::Merged(RemoteMerge { merge: *merge, led: Some(led) });
                    self.ready.push_back((fragment, seq, event));
                }
                // A missing state is loaded again, unless a newer merge exists. In that case it may have been
                // deleted.
                None => {
                    if !fragment_queue.has_newer() {
                        tracing::warn!(%fragment, seq, "the newest state is missing from the storage, or incomplete");
                    }
                    fragment_queue.queue.push_front((seq, Record::Merged { merge, state: sum }));
                }
            }
            self.step(fragment);
        }
    }

    /// Processes the records of a fragment until a state must be loaded.
    fn step(&mut self, fragment: FragmentId) {
        let Some(fragment_queue) = self.queues.get_mut(&fragment).filter(|queue| !queue.is_busy) else {
            return;
        };
        while let Some((seq, record)) = fragment_queue.queue.pop_front() {
            let Record::Merged { merge, state: sum } = record else {
                let is_last = matches!(record, Record::Finished);
                self.ready.push_back((
                    fragment,
                    seq,
                    if is_last { RecordEvent::Finished } else { RecordEvent::Nothing },
                ));
                continue;
            };
            if fragment_queue.has_newer() {
                // Learners skip this version and get the newest one.
                let event = RecordEvent::Merged(RemoteMerge { merge: *merge, led: None });
                self.ready.push_back((fragment, seq, event));
                continue;
            }
            fragment_queue.is_busy = true;
            let (services, state) = (self.services.clone(), fragment_queue.state.clone());
            let (segments, codec) = (Arc::clone(&fragment_queue.segments), fragment_queue.codec);
            let turns = Arc::clone(&self.turns);
            self.jobs.spawn(async move {
                // The semaphore is never closed, so this never fails.
                let turn = turns.acquire_owned().await;
                let led = load(&services, (fragment, seq), state, &merge, sum, segments, codec).await;
                drop(turn);
                if led.is_none() {
                    sleep(AGAIN_AFTER).await;
                }
                (fragment, seq, MergeLoad { merge, sum, led })
            });
            return;
        }
    }
}

impl FragmentQueue {
    /// Returns true if the queue has a later merge.
    fn has_newer(&self) -> bool {
        self.queue.iter().any(|(_, later)| matches!(later, Record::Merged { .. }))
    }
}

/// Returns the Θ̂ of record `seq` and the change that leads to it, or `None` if the state is missing or damaged.
async fn load(
    services: &Services,
    (fragment, seq): (FragmentId, u64),
    before: FragmentState,
    merge: &MergeEntry,
    sum: u64,
    segments: Arc<Vec<Segment>>,
    codec: Codec,
) -> Option<StateWithChange> {
    let bytes = persist(|| services.blobs.load(fragment, seq)).await?;
    let merge = merge.clone();
    // Decoding a large state takes long, so it runs on a blocking thread.
    let work = spawn_blocking(move || {
        let followed = follow(&before, &merge, (&bytes, sum), &segments, codec);
        if let Err(error @ FollowError::Diverged { .. }) = &followed {
            tracing::error!("{error}");
            // The stored state is valid nevertheless. Learners fetch it as a whole.
            let elsewhere = FragmentState { version: Version(u64::MAX), ..before };
            return follow(&elsewhere, &merge, (&bytes, sum), &segments, codec);
        }
        followed
    });
    match work.await {
        Ok(Ok(led)) => Some(led),
        Ok(Err(error)) => {
            tracing::error!("{error}");
            None
        }
        Err(failed) if failed.is_panic() => std::panic::resume_unwind(failed.into_panic()),
        // The runtime is shutting down and drops this task.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use archipelago_core::cluster::GatewayId;
    use archipelago_core::diloco::{MergeRule, OuterSpec};
    use archipelago_core::wire::{ApplyPolicy, Code, ExchangeSpec, Round};

    use super::*;
    use crate::local::Local;
    use crate::service::{Blobs, ServiceFuture};

    /// Slow blob store without blobs, which counts simultaneous requests.
    #[derive(Default)]
    struct Empty {
        now: AtomicUsize,
        most: AtomicUsize,
        all: AtomicUsize,
    }

    impl Blobs for Empty {
        fn store(&self, _: FragmentId, _: u64, _: Arc<Vec<u8>>) -> ServiceFuture<'_, bool> {
            Box::pin(std::future::ready(Ok(true)))
        }

        fn load(&self, _: FragmentId, _: u64) -> ServiceFuture<'_, Option<Vec<u8>>> {
            let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            Box::pin(async {
                sleep(Duration::from_millis(20)).await;
                self.now.fetch_sub(1, Ordering::SeqCst);
                self.all.fetch_add(1, Ordering::SeqCst);
                Ok(None)
            })
        }

        fn forget(&self, _: FragmentId, _: std::ops::Range<u64>) -> ServiceFuture<'_, ()> {
            Box::pin(std::future::ready(Ok(())))
        }
    }

    fn merged(fragment: FragmentId) -> Record {
        let (round, base, version) = (Round(1), Version(0), Version(1));
        let merge = MergeEntry {
            round,
            fragment,
            base,
            version,
            rule: MergeRule::Radial,
            outer: OuterSpec::default(),
            radii: Vec::new(),
            parts: Vec::new(),
            absent: 0.0,
            experts: Vec::new(),
            checksum: 0,
            digest: 0,
            norm: 0.0,
        };
        Record::Merged { merge: Box::new(merge), state: 0 }
    }

    /// Goal: a gateway that starts late does not load the states of all fragments at once.
    #[tokio::test]
    async fn few_states_are_loaded_at_once() {
        let apply = ApplyPolicy::Keep { residue: true };
        let exchange = ExchangeSpec { fragments: 6, sync_every: 6, block: 8, code: Code::Int4, apply };
        let codec = Codec::new(&exchange).unwrap();
        let fragments: Vec<_> = (0..6).map(FragmentId).collect();
        let terms = |&fragment: &FragmentId| {
            (fragment, GatewayTerms { gateway: GatewayId(1), segments: Arc::default(), codec })
        };
        let terms: Vec<_> = fragments.iter().map(terms).collect();
        let blobs = Arc::new(Empty::default());
        let services = Services { blobs: Arc::<Empty>::clone(&blobs), ..Local::services() };
        let initial = fragments.iter().map(|_| FragmentState::new(Vec::new())).collect();
        let mut following = Follower::new(services, &terms, initial);
        fragments.iter().for_each(|&fragment| following.add(fragment, 1, merged(fragment)));
        // The store is empty, so the follower never has an event.
        let looked = async {
            while blobs.all.load(Ordering::SeqCst) < 6 {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = following.next() => panic!("nothing is there"),
            () = looked => {}
        }
        assert_eq!(blobs.most.load(Ordering::SeqCst), LOADED_MAX);
    }
}
