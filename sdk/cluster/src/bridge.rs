//! Bridge between a gateway and a syncer with real learners. It forwards the syncer's messages to owners and their
//! outcomes to the syncer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use archipelago_core::cluster::{FollowError, GatewayInput, GatewayOutput, GatewayTerms, Record, follow};
use archipelago_core::diloco::syncer::{Answer, Followed, Input, LeaderRequest};
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

/// Maximum number of inputs that wait for the syncer. When the queue is full, the gateway waits.
const WAITING_MAX: usize = 256;

/// Bridge that is ready to run; see [`front`].
pub struct Bridge {
    gateway: GatewayLoop,
    said: mpsc::UnboundedReceiver<LeaderRequest>,
    inputs: mpsc::Sender<Input>,
    orders: mpsc::Receiver<(FragmentId, GatewayOutput)>,
    to_gateway: mpsc::Sender<(FragmentId, GatewayInput)>,
    reception: PendingJoins,
    following: Follower,
    fragments: Vec<FragmentId>,
    decrees: AdminCommandLog,
}

/// Syncer's end of the bridge.
#[derive(Debug)]
pub struct BridgeHandle {
    /// Sender for the syncer's messages, in order. Each learner has at most one update of a fragment in flight, so the
    /// number of connected learners bounds the queue.
    pub said: mpsc::UnboundedSender<LeaderRequest>,
    /// Receiver of inputs for the syncer, in order.
    pub inputs: mpsc::Receiver<Input>,
}

/// Creates a bridge and the syncer's end of it. Each fragment of the run starts with the Θ̂ of its state and has these
/// terms. The gateway polls the tape every `tick_ms`, at least 1.
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
        decrees: AdminCommandLog::of(&services),
        reception: PendingJoins::new(services, ids.clone()),
        said: to_front,
        inputs,
        orders: learners.orders,
        to_gateway: learners.inputs,
        following,
        fragments: ids,
    };
    (front, BridgeHandle { said, inputs: to_syncer })
}

/// Error: the syncer is gone.
struct SyncerGone;

impl Bridge {
    /// Runs until `stop` resolves or the syncer is gone.
    pub async fn run(self, stop: impl Future<Output = ()> + Send) {
        let Self { gateway, mut said, inputs, mut orders, to_gateway, fragments, decrees, .. } = self;
        let (mut reception, mut following) = (self.reception, self.following);
        let (ups, mut queued) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(gateway.run(std::future::pending()));
        // A separate task drains the gateway's output while the gateway accepts no input.
        tasks.spawn(async move {
            while let Some(up) = queued.recv().await {
                if to_gateway.send(up).await.is_err() {
                    return;
                }
            }
        });
        let desk = BridgeLoop { ups, inputs, fragments, decrees };
        tokio::pin!(stop);
        loop {
            let done = tokio::select! {
                () = &mut stop => return,
                up = said.recv() => match up {
                    Some(up) => {
                        desk.pass_on(&mut reception, up);
                        Ok(())
                    }
                    None => return,
                },
                order = orders.recv() => match order {
                    Some((fragment, order)) => desk.order(&mut following, fragment, order).await,
                    None => return,
                },
                called = reception.next() => desk.called(called).await,
                (fragment, seq, said) = following.next() => {
                    desk.followed(&mut reception, fragment, seq, said).await
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
    decrees: AdminCommandLog,
}

impl BridgeLoop {
    async fn tell(&self, input: Input) -> Result<(), SyncerGone> {
        self.inputs.send(input).await.map_err(|_| SyncerGone)
    }

    /// Sends an input to the gateway of each fragment.
    fn up(&self, input: &GatewayInput) {
        for &fragment in &self.fragments {
            // The send fails only if the gateway has ended, and then the bridge ends too.
            let _ = self.ups.send((fragment, input.clone()));
        }
    }

    fn pass_on(&self, reception: &mut PendingJoins, said: LeaderRequest) {
        match said {
            LeaderRequest::Introduce(conn, hello) => reception.introduce(conn, hello),
            LeaderRequest::Came(learner, conn) => self.up(&GatewayInput::Came(learner, conn, None)),
            LeaderRequest::Left(learner, conn) => self.up(&GatewayInput::Left(learner, conn)),
            LeaderRequest::Gone(conn) => self.forget(reception, conn),
            LeaderRequest::Pace(step_ms) => self.up(&GatewayInput::Pace(step_ms)),
            LeaderRequest::Enough => {
                let decrees = self.decrees.clone();
                // The task ends by itself or with the runtime.
                tokio::spawn(async move { decrees.finish().await });
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

    fn forget(&self, reception: &mut PendingJoins, conn: ConnId) {
        if let Some(learner) = reception.forget(conn) {
            self.up(&GatewayInput::WaitsNoMore(learner));
        }
    }

    async fn called(&self, called: JoinOutcome) -> Result<(), SyncerGone> {
        match called {
            JoinOutcome::In(learner, input) => {
                // The learner may have waited on another connection.
                self.up(&GatewayInput::WaitsNoMore(learner));
                self.tell(*input).await
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
                self.tell(Input::Asked { fragment, learner, conn, round }).await
            }
            GatewayOutput::Receipt(learner, conn, serial, None) => {
                self.tell(Input::Unmerged { fragment, learner, conn, serial, refusal: None }).await
            }
            GatewayOutput::Refused(learner, conn, serial, why) => {
                self.tell(Input::Unmerged { fragment, learner, conn, serial, refusal: Some(why) }).await
            }
            // Merges reach all learners at once through the tape's records.
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
        reception: &mut PendingJoins,
        fragment: FragmentId,
        seq: u64,
        said: RecordEvent,
    ) -> Result<(), SyncerGone> {
        let is_last = matches!(said, RecordEvent::Finished);
        match said {
            RecordEvent::Merged(followed) => self.tell(Input::Followed(Box::new(followed))).await?,
            RecordEvent::Finished => self.tell(Input::Closed(fragment)).await?,
            RecordEvent::Nothing => self.tell(Input::Over(fragment, Round(seq))).await?,
        }
        // After the last record, waiting learners must not wait for another one.
        let reached = if is_last { u64::MAX } else { seq };
        for (learner, input) in reception.reached(fragment, reached) {
            self.up(&GatewayInput::WaitsNoMore(learner));
            self.tell(input).await?;
        }
        Ok(())
    }
}

/// Record number of each fragment.
type Numbers = BTreeMap<FragmentId, u64>;

/// Learners that have introduced themselves but are not admitted yet.
///
/// Each learner first gets its number. A returning learner may have left an update with another gateway, and the fate
/// of that update may still be open. The update belonged to the current round of its fragment, or to an older one. So
/// the learner waits until the tape of each fragment has one more record than on its return. Then each left update is
/// settled, and the learner's account has the fates. It trains meanwhile.
///
/// This requires that no replica of a tape lags a whole round behind the replica of an earlier read.
struct PendingJoins {
    services: Services,
    /// Newest record of each fragment that the syncer knows.
    told: Numbers,
    guests: BTreeMap<ConnId, Guest>,
    asked: JoinSet<(ConnId, Found)>,
}

struct Guest {
    hello: Box<Hello>,
    /// Handle that cancels the request for this learner.
    asking: AbortHandle,
    /// Learner's number and the records that it waits for, once known.
    waits: Option<(LearnerId, Numbers)>,
}

/// Result of the request for a joining learner.
enum Found {
    /// Number of the learner; for a returning learner, also the newest record of each fragment.
    Number(LearnerId, Option<Numbers>),
    /// No number is available.
    Nothing,
}

/// Outcome of a join request.
enum JoinOutcome {
    /// The learner is admitted.
    In(LearnerId, Box<Input>),
    /// The learner waits for the current rounds.
    Waits(LearnerId),
}

impl PendingJoins {
    /// Creates an empty list of pending joins.
    fn new(services: Services, fragments: Vec<FragmentId>) -> Self {
        let told = fragments.into_iter().map(|fragment| (fragment, 0)).collect();
        Self { services, told, guests: BTreeMap::new(), asked: JoinSet::new() }
    }

    /// Starts the join of a learner on this connection.
    fn introduce(&mut self, conn: ConnId, hello: Box<Hello>) {
        let services = self.services.clone();
        let fragments: Vec<FragmentId> = self.told.keys().copied().collect();
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
        self.guests.insert(conn, Guest { hello, asking, waits: None });
    }

    /// Returns the next outcome of a pending join. Cancel safe.
    async fn next(&mut self) -> JoinOutcome {
        loop {
            let Some(done) = self.asked.join_next().await else { return std::future::pending().await };
            let Ok((conn, found)) = done else { continue };
            let Some(guest) = self.guests.get_mut(&conn) else { continue };
            let Found::Number(learner, newest) = found else {
                tracing::error!("no learner number is free for this identity: it collides with others");
                self.guests.remove(&conn);
                continue;
            };
            // The replica that answered may lag behind the syncer.
            let told = |fragment: &FragmentId| self.told.get(fragment).copied().unwrap_or(0);
            let next = |(fragment, newest): (FragmentId, u64)| {
                (fragment, newest.max(told(&fragment)).saturating_add(1))
            };
            let needed: Numbers = newest.into_iter().flatten().map(next).collect();
            guest.waits = Some((learner, needed));
            // A learner that joins again has abandoned its older connections.
            self.guests.retain(|&older, guest| older >= conn || !guest.is(learner));
            return match self.take(conn) {
                Some((learner, input)) => JoinOutcome::In(learner, Box::new(input)),
                None => JoinOutcome::Waits(learner),
            };
        }
    }

    /// Records that the syncer knows record `seq`. Returns the learners that no longer wait. Each learner waits on at
    /// most one connection.
    fn reached(&mut self, fragment: FragmentId, seq: u64) -> Vec<(LearnerId, Input)> {
        self.told.insert(fragment, seq);
        let conns: Vec<ConnId> = self.guests.keys().copied().collect();
        conns.into_iter().filter_map(|conn| self.take(conn)).collect()
    }

    /// Removes a closed connection. Returns the learner that waited on it, unless it waits on another connection.
    fn forget(&mut self, conn: ConnId) -> Option<LearnerId> {
        let guest = self.guests.remove(&conn)?;
        guest.asking.abort();
        let (learner, _) = guest.waits?;
        self.guests.values().all(|guest| !guest.is(learner)).then_some(learner)
    }

    /// Admits the learner on this connection, unless the syncer still lacks a record that the learner waits for.
    fn take(&mut self, conn: ConnId) -> Option<(LearnerId, Input)> {
        let (learner, needed) = self.guests.get(&conn)?.waits.as_ref()?;
        let is_told = |(fragment, needed): (&FragmentId, &u64)| {
            self.told.get(fragment).is_some_and(|told| told >= needed)
        };
        if !needed.iter().all(is_told) {
            return None;
        }
        let learner = *learner;
        let Guest { hello, .. } = self.guests.remove(&conn)?;
        Some((learner, Input::Introduced { conn, learner, hello }))
    }
}

impl Guest {
    fn is(&self, learner: LearnerId) -> bool {
        self.waits.as_ref().is_some_and(|(waits, _)| *waits == learner)
    }
}

/// Returns the number of the newest record of each of these fragments.
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

/// Time after which a missing or damaged state is loaded again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of states loaded at once. Each takes about fifty bytes a parameter until only Θ̂ is left. A late
/// joiner loads the states of all fragments.
const LOADED_MAX: usize = 2;

/// Next notification: fragment, number and content of a record.
type NumberedEvent = (FragmentId, u64, RecordEvent);

/// Content of a record for processes that serve learners.
enum RecordEvent {
    /// The fragment has a new version.
    Merged(Followed),
    /// No record follows this one.
    Finished,
    /// A round ended, and nothing else happened.
    Nothing,
}

/// Θ̂ as a state, and the change that leads to it.
type StateWithChange = (FragmentState, Vec<u8>);

/// Merge and the result of loading its state.
struct MergeLoad {
    merge: Box<MergeEntry>,
    sum: u64,
    led: Option<StateWithChange>,
}

/// Tapes of all fragments, up to the records that the syncer knows.
struct Follower {
    services: Services,
    lanes: BTreeMap<FragmentId, FragmentQueue>,
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
    /// Creates a follower before any record. Fragments are in their `initial` states; only Θ̂ of these matters.
    fn new(
        services: Services,
        fragments: &[(FragmentId, GatewayTerms)],
        initial: Vec<FragmentState>,
    ) -> Self {
        let lane = |((fragment, terms), state): (&(FragmentId, GatewayTerms), FragmentState)| {
            let (segments, codec) = (Arc::clone(&terms.segments), terms.codec);
            (*fragment, FragmentQueue { segments, codec, state, queue: VecDeque::new(), is_busy: false })
        };
        let lanes = fragments.iter().zip(initial).map(lane).collect();
        let turns = Arc::new(Semaphore::new(LOADED_MAX));
        Self { services, lanes, jobs: JoinSet::new(), turns, ready: VecDeque::new() }
    }

    /// Adds the next record of `fragment`.
    fn add(&mut self, fragment: FragmentId, seq: u64, record: Record) {
        if let Some(lane) = self.lanes.get_mut(&fragment) {
            lane.queue.push_back((seq, record));
            self.step(fragment);
        }
    }

    /// Returns the next notification. Cancel safe.
    async fn next(&mut self) -> NumberedEvent {
        loop {
            if let Some(told) = self.ready.pop_front() {
                return told;
            }
            let Some(done) = self.jobs.join_next().await else { return std::future::pending().await };
            let (fragment, seq, MergeLoad { merge, sum, led }) =
                done.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()));
            let Some(lane) = self.lanes.get_mut(&fragment) else { continue };
            lane.is_busy = false;
            match led {
                Some(led) => {
                    lane.state = led.0.clone();
                    let said = RecordEvent::Merged(Followed { merge: *merge, led: Some(led) });
                    self.ready.push_back((fragment, seq, said));
                }
                // A missing state is loaded again unless a newer one exists; the old one may have been removed for that
                // reason.
                None => {
                    if !lane.has_newer() {
                        tracing::warn!(%fragment, seq, "the newest state is missing from the storage, or incomplete");
                    }
                    lane.queue.push_front((seq, Record::Merged { merge, state: sum }));
                }
            }
            self.step(fragment);
        }
    }

    /// Processes the records of a fragment until a state must be loaded.
    fn step(&mut self, fragment: FragmentId) {
        let Some(lane) = self.lanes.get_mut(&fragment).filter(|lane| !lane.is_busy) else { return };
        while let Some((seq, record)) = lane.queue.pop_front() {
            let Record::Merged { merge, state: sum } = record else {
                let is_last = matches!(record, Record::Finished);
                self.ready.push_back((
                    fragment,
                    seq,
                    if is_last { RecordEvent::Finished } else { RecordEvent::Nothing },
                ));
                continue;
            };
            if lane.has_newer() {
                // Learners skip to the newest version.
                let said = RecordEvent::Merged(Followed { merge: *merge, led: None });
                self.ready.push_back((fragment, seq, said));
                continue;
            }
            lane.is_busy = true;
            let (services, state) = (self.services.clone(), lane.state.clone());
            let (segments, codec) = (Arc::clone(&lane.segments), lane.codec);
            let turns = Arc::clone(&self.turns);
            self.jobs.spawn(async move {
                // The semaphore is never closed.
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
    /// Returns true if the queue holds a later merge.
    fn has_newer(&self) -> bool {
        self.queue.iter().any(|(_, later)| matches!(later, Record::Merged { .. }))
    }
}

/// Returns the Θ̂ of this record and the change that leads to it, or `None` if the state is missing or damaged.
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
    // Decoding a large state blocks.
    let work = spawn_blocking(move || {
        let followed = follow(&before, &merge, (&bytes, sum), &segments, codec);
        if let Err(error @ FollowError::Diverged { .. }) = &followed {
            tracing::error!("{error}");
            // The state is right in any case; learners fetch it as a whole.
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
        // The runtime is shutting down, and this task with it.
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

    /// Slow, empty blob store that counts simultaneous requests.
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

    /// Goal: a late joiner loads the states of all fragments, but not all at once.
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
        // The store is empty, so the follower never has a notification.
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
