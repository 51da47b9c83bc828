//! A whole cluster in one process: owners, gateways with doors, and learners, over the services of one process.

mod support;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use archipelago_cluster::{GatewaySettings, Local, OwnerSettings, Services, gateway, own};
use archipelago_core::cluster::{GatewayId, ProcessId, Record};
use archipelago_core::wire::LearnerId;
use support::check::check;
use support::door;
use support::learner::Learner;
use support::run::Run;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// How long a lease lasts, in milliseconds: a short one, for the test waits for its end.
const LEASE_MS: u64 = 600;

/// An owner's process as a task; what ends it is to be dropped or sent to.
fn owner(run: &Run, services: &Services, process: u64) -> (oneshot::Sender<()>, JoinHandle<()>) {
    let (fragments, process) = (run.owner(), ProcessId(process));
    let settings = OwnerSettings { process, fragments, lease_ms: LEASE_MS, tick_ms: 20 };
    let (stop, stopped) = oneshot::channel();
    let services = services.clone();
    (stop, tokio::spawn(own(services, settings, async move { drop(stopped.await) })))
}

/// A gateway with its door.
async fn open(run: &Arc<Run>, services: &Services, id: u32) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let settings = GatewaySettings { fragments: run.gateway(GatewayId(id)), tick_ms: 50 };
    let (running, learners) = gateway(services.clone(), settings);
    tokio::spawn(running.run(std::future::pending()));
    tokio::spawn(door::keep(Arc::clone(run), listener, learners));
    at
}

async fn merges(run: &Run, services: &Services) -> Vec<usize> {
    let mut counts = Vec::new();
    for fragment in run.ids() {
        let tape = services.tape.read(fragment, 0).await.unwrap();
        counts.push(tape.iter().filter(|record| matches!(record, Record::Merged { .. })).count());
    }
    counts
}

/// Waits until every fragment has `more` merges than in `before`.
async fn await_merges(run: &Run, services: &Services, before: &[usize], more: usize) {
    for _ in 0..600 {
        let now = merges(run, services).await;
        if now.iter().zip(before).all(|(now, before)| *now >= before + more) {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("{:?} merges after 30 s, {before:?} before", merges(run, services).await);
}

/// Goal: all fragments are merged, whatever owner leads them; one that ends without a word is followed, one that is
/// stopped at once; and all that was told is so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_in_one_process_outlives_its_owners() {
    let run = Arc::new(Run::new(7, 3, 50));
    let services = Local::services();
    let (stop, first) = owner(&run, &services, 1);
    let second = owner(&run, &services, 2);
    let at = vec![open(&run, &services, 1).await, open(&run, &services, 2).await];
    let (doors, known) = watch::channel(at);
    let learners: Vec<Learner> = (1..=6).map(|id| Learner::new(LearnerId(id), Arc::clone(&run), 3)).collect();
    let books: Vec<_> = (1..).map(LearnerId).zip(learners.iter().map(Learner::book)).collect();
    let learners: Vec<_> =
        learners.into_iter().map(|learner| tokio::spawn(learner.train(known.clone()))).collect();
    await_merges(&run, &services, &[0; 3], 3).await;
    // It is stopped, and the other one leads all.
    stop.send(()).unwrap();
    first.await.unwrap();
    let before = merges(&run, &services).await;
    await_merges(&run, &services, &before, 3).await;
    // It ends without a word, and a third one follows it.
    second.1.abort();
    let _ = second.1.await;
    let before = merges(&run, &services).await;
    let _third = owner(&run, &services, 3);
    await_merges(&run, &services, &before, 3).await;

    drop((doors, known));
    for learner in learners {
        learner.await.unwrap();
    }
    let books: BTreeMap<_, _> =
        books.into_iter().map(|(id, book)| (id, book.lock().unwrap().clone())).collect();
    let counts = check(&run, &services, &books, &[]).await.unwrap();
    assert!(counts.takeovers >= 5 && counts.receipts > 20, "{counts:?}");
}
