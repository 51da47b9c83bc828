//! Tests of a whole cluster in one process: leaders, gateways that accept TCP connections, and learners, with the
//! services of [`Local`].

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use archipelago_cluster::{
    Blobs, GatewaySettings, InitialStates, LeaderSettings, Local, ServiceError, ServiceFuture, Services,
    Tape, gateway, own,
};
use archipelago_core::cluster::{GatewayId, ProcessId, Record};
use archipelago_core::rng::Rng;
use archipelago_core::wire::{FragmentId, LearnerId};
use support::RunConstants;
use support::check;
use support::{Book, SimulatedLearner};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// Duration of a lease in milliseconds. It is short, because the test waits for its end.
const LEASE_MS: u64 = 600;

/// Starts a process that leads fragments, as a task. It ends when the returned sender sends or is dropped.
fn owner(
    run: &Arc<RunConstants>,
    services: &Services,
    process: u64,
    lease_ms: u64,
) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (fragments, initial_states, process) = (run.owner(), run.initial_states(), ProcessId(process));
    let orders = run.orders();
    let settings = LeaderSettings {
        process,
        fragments,
        initial_states,
        lead_max: usize::MAX,
        lease_ms,
        tick_ms: 20,
        orders,
    };
    let (stop, stopped) = oneshot::channel();
    let services = services.clone();
    (stop, tokio::spawn(own(services, settings, async move { drop(stopped.await) })))
}

/// Starts a gateway that accepts learners' connections. Returns its address.
async fn open(run: &Arc<RunConstants>, services: &Services, id: u32) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let settings = GatewaySettings { fragments: run.gateway(GatewayId(id)), tick_ms: 50 };
    let (running, learners) = gateway(services.clone(), settings);
    tokio::spawn(running.run(std::future::pending()));
    tokio::spawn(support::keep(Arc::clone(run), listener, learners));
    at
}

/// Learners that train until they are stopped.
struct LearnerGroup {
    accounting: Vec<(LearnerId, Arc<Mutex<Book>>)>,
    tasks: Vec<JoinHandle<()>>,
    doors: watch::Sender<Vec<SocketAddr>>,
}

impl LearnerGroup {
    fn gather(run: &Arc<RunConstants>, at: Vec<SocketAddr>, count: u32) -> Self {
        let (doors, known) = watch::channel(at);
        let (mut accounting, mut tasks) = (Vec::new(), Vec::new());
        for id in (1..=count).map(LearnerId) {
            let learner = SimulatedLearner::new(id, Arc::clone(run), 3);
            accounting.push((id, learner.book()));
            tasks.push(tokio::spawn(learner.train(known.clone())));
        }
        Self { accounting, tasks, doors }
    }

    async fn leave(self) -> BTreeMap<LearnerId, Book> {
        drop(self.doors);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.accounting.into_iter().map(|(id, book)| (id, book.lock().unwrap().clone())).collect()
    }
}

async fn merges(run: &RunConstants, services: &Services) -> Vec<usize> {
    let mut counts = Vec::new();
    for fragment in run.ids() {
        let tape = services.tape.read(fragment, 0).await.unwrap();
        counts.push(tape.iter().filter(|record| matches!(record, Record::Merged { .. })).count());
    }
    counts
}

/// Waits until every fragment has at least `more` merges more than in `before`.
async fn await_merges(run: &RunConstants, services: &Services, before: &[usize], more: usize) {
    for _ in 0..600 {
        let now = merges(run, services).await;
        if now.iter().zip(before).all(|(now, before)| *now >= before + more) {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?} merges after 30 s, {before:?} before", merges(run, services).await);
}

/// Goal: a leader makes the initial state of a fragment once, even if that takes long, and again after a failure.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn initial_state_is_made_once() {
    let run = Arc::new(RunConstants::new(9, 3, 50));
    let services = Local::services();
    let made = Arc::new(Mutex::new(Vec::new()));
    let (seen, begun) = (Arc::clone(&made), Arc::clone(&run));
    let initial_states = InitialStates::new(move |fragment| {
        let mut seen = seen.lock().unwrap();
        seen.push(fragment);
        let is_first = seen.iter().filter(|other| **other == fragment).count() == 1;
        drop(seen);
        if fragment == FragmentId(1) && is_first {
            return Err("it is not there yet".into());
        }
        // This takes far longer than the time after which a leader repeats its request.
        std::thread::sleep(Duration::from_secs(1));
        Ok(begun.initial(fragment))
    });
    let (process, fragments, orders) = (ProcessId(1), run.owner(), run.orders());
    let settings = LeaderSettings {
        process,
        fragments,
        initial_states,
        lead_max: usize::MAX,
        lease_ms: LEASE_MS,
        tick_ms: 20,
        orders,
    };
    let (stop, stopped) = oneshot::channel::<()>();
    let leading = tokio::spawn(own(services.clone(), settings, async { drop(stopped.await) }));
    for fragment in run.ids() {
        let mut tape = Vec::new();
        for _ in 0..600 {
            tape = services.tape.read(fragment, 0).await.unwrap();
            if !tape.is_empty() {
                break;
            }
            sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(tape[0], Record::Took(process));
    }
    drop(stop);
    leading.await.unwrap();
    let mut made = made.lock().unwrap().clone();
    made.sort();
    assert_eq!(made, [0, 1, 1, 2].map(FragmentId));
}

/// Goal: all fragments are merged, regardless of the process that leads them. A crashed process is replaced after its
/// lease, a stopped one at once. All receipts are true.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_survives_the_loss_of_leading_processes() {
    let run = Arc::new(RunConstants::new(7, 3, 50));
    let services = Local::services();
    let (stop, first) = owner(&run, &services, 1, LEASE_MS);
    let second = owner(&run, &services, 2, LEASE_MS);
    let at = vec![open(&run, &services, 1).await, open(&run, &services, 2).await];
    let crowd = LearnerGroup::gather(&run, at, 6);
    await_merges(&run, &services, &[0; 3], 3).await;
    // The first process is stopped, and the other one leads all fragments.
    stop.send(()).unwrap();
    first.await.unwrap();
    let before = merges(&run, &services).await;
    await_merges(&run, &services, &before, 3).await;
    // The second process crashes, and a third one replaces it.
    second.1.abort();
    let _ = second.1.await;
    let before = merges(&run, &services).await;
    let _third = owner(&run, &services, 3, LEASE_MS);
    await_merges(&run, &services, &before, 3).await;

    let accounting = crowd.leave().await;
    let counts = check(&run, &services, &accounting, &[]).await.unwrap();
    assert!(counts.takeovers >= 5 && counts.receipts > 20, "{counts:?}");
}

/// Goal: another process takes over the fragments of a stopped process long before their leases end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_process_releases_its_fragments() {
    let (run, services, lease_ms) = (Arc::new(RunConstants::new(8, 2, 50)), Local::services(), 20_000);
    let (stop, first) = owner(&run, &services, 1, lease_ms);
    let at = vec![open(&run, &services, 1).await];
    let crowd = LearnerGroup::gather(&run, at, 3);
    await_merges(&run, &services, &[0; 2], 2).await;
    let _second = owner(&run, &services, 2, lease_ms);
    sleep(Duration::from_millis(300)).await;
    let stopped = Instant::now();
    stop.send(()).unwrap();
    first.await.unwrap();
    let before = merges(&run, &services).await;
    await_merges(&run, &services, &before, 1).await;
    assert!(stopped.elapsed() < Duration::from_millis(lease_ms / 2), "{:?}", stopped.elapsed());
    drop(crowd.leave().await);
}

/// Service that loses some of the answers and some of the requests.
struct LossyService<T: ?Sized>(Arc<T>, Mutex<Rng>);

impl<T: ?Sized> LossyService<T> {
    fn new(service: Arc<T>, seed: u64) -> Arc<Self> {
        Arc::new(Self(service, Mutex::new(Rng::new(seed))))
    }

    /// Answers a request, or loses the request or its answer.
    fn lose<'a, A: Send + 'a>(
        &self,
        question: impl FnOnce() -> ServiceFuture<'a, A>,
    ) -> ServiceFuture<'a, A> {
        let silent =
            || ServiceError::Silent { place: "a lame service".to_owned(), detail: "by chance".to_owned() };
        let chance = self.1.lock().unwrap().unit();
        match chance {
            0.0..0.15 => Box::pin(async move { Err(silent()) }),
            0.15..0.3 => {
                let answer = question();
                Box::pin(async move { answer.await.and_then(|_| Err(silent())) })
            }
            _ => question(),
        }
    }
}

impl Tape for LossyService<dyn Tape> {
    fn append<'a>(
        &'a self,
        p: FragmentId,
        expect: u64,
        record: &'a Record,
    ) -> ServiceFuture<'a, Option<u64>> {
        self.lose(|| self.0.append(p, expect, record))
    }

    fn read(&self, p: FragmentId, after: u64) -> ServiceFuture<'_, Vec<Record>> {
        self.lose(|| self.0.read(p, after))
    }

    fn newest(&self, p: FragmentId) -> ServiceFuture<'_, u64> {
        self.lose(|| self.0.newest(p))
    }
}

impl Blobs for LossyService<dyn Blobs> {
    fn store(&self, p: FragmentId, key: u64, bytes: Arc<Vec<u8>>) -> ServiceFuture<'_, bool> {
        self.lose(|| self.0.store(p, key, bytes))
    }

    fn load(&self, p: FragmentId, key: u64) -> ServiceFuture<'_, Option<Vec<u8>>> {
        self.lose(|| self.0.load(p, key))
    }

    fn forget(&self, p: FragmentId, keys: Range<u64>) -> ServiceFuture<'_, ()> {
        self.lose(|| self.0.forget(p, keys.clone()))
    }
}

/// Goal: a request whose answer is lost takes effect once, a lost request is repeated, and the run continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_requests_and_answers_are_repeated() {
    let (run, services) = (Arc::new(RunConstants::new(9, 2, 50)), Local::services());
    let lame = Services {
        tape: LossyService::<dyn Tape>::new(services.tape.clone(), 1),
        blobs: LossyService::<dyn Blobs>::new(services.blobs.clone(), 2),
        ..services.clone()
    };
    let _owner = owner(&run, &lame, 1, LEASE_MS);
    let at = vec![open(&run, &lame, 1).await, open(&run, &lame, 2).await];
    let crowd = LearnerGroup::gather(&run, at, 4);
    await_merges(&run, &services, &[0; 2], 8).await;
    let accounting = crowd.leave().await;
    let counts = check(&run, &services, &accounting, &[]).await.unwrap();
    assert!(counts.receipts > 20, "{counts:?}");
}
