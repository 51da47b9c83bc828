//! Tests of syncers that serve learners over the real protocol while leaders lead their rounds, with the services of
//! [`Local`].

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod faced;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use archipelago_cluster::{Local, Services};
use archipelago_core::cluster::Record;
use archipelago_core::diloco::Replica;
use archipelago_core::wire::{CloseCode, Fate, FragmentId, LearnerId, Message, Serial};
use faced::{FRAGMENTS, TestCluster, Visitor};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

/// Time limit far above any expected time.
const PATIENCE: Duration = Duration::from_secs(60);

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("{what}: not in {PATIENCE:?}"))
}

/// Returns all updates that the tapes report as merged. Asserts that no update was merged twice.
async fn merged(services: &Services) -> BTreeSet<(FragmentId, LearnerId, Serial)> {
    let mut all = BTreeSet::new();
    for fragment in (0..FRAGMENTS).map(FragmentId) {
        for record in services.tape.read(fragment, 0).await.unwrap() {
            let Record::Merged { merge, .. } = record else { continue };
            for part in merge.parts {
                assert!(all.insert((fragment, part.learner, part.serial)), "merged twice: {part:?}");
            }
        }
    }
    all
}

/// Goal: learners at two gateways train one model. Each change leads to the merged parameters, also after a learner
/// that was behind has fetched them. Both gateways credit the same tokens.
#[tokio::test(flavor = "multi_thread")]
async fn learners_of_two_gateways_train_one_model() {
    let services = Local::services();
    let cluster = TestCluster::open(&services, 2, 2);
    let mut visitors = Vec::new();
    for (peer, at) in [(1, 0), (2, 0), (3, 1), (4, 1)] {
        visitors.push(cluster.visit(peer, at, None));
    }
    let (trained, mut learners_trained) = mpsc::channel(4);
    for mut visitor in visitors {
        let mut replica = Replica::new(cluster.fragments(), cluster.codec(), cluster.apply());
        let mut theta = vec![0.0; cluster.len()];
        let trained = trained.clone();
        tokio::spawn(async move {
            visitor.join().await;
            let (mut changes, mut fetches, mut receipts) = (0, 0, 0);
            // The learner continues, because rounds of the other learners would wait for it.
            loop {
                if changes >= 5 && changes + fetches >= 40 && receipts >= 20 {
                    let _ = trained.try_send(visitor.learner());
                }
                match visitor.next().await {
                    Message::Collect { fragment, base, .. } => visitor.answer(fragment, base, 0.01),
                    Message::Receipt { fate, .. } => {
                        receipts += u32::from(matches!(fate, Fate::Merged { .. }))
                    }
                    Message::Merged(merged) => {
                        replica.apply(merged.fragment, &merged.body, &mut theta).unwrap();
                        assert_eq!(replica.digest(merged.fragment), merged.digest, "{}", merged.version);
                        visitor.holds(merged.fragment, merged.version);
                        changes += 1;
                    }
                    Message::Resync { fragment, .. } => {
                        let (version, hat) = visitor.fetch(fragment).await;
                        replica.load(fragment, &hat, true, &mut theta).unwrap();
                        visitor.holds(fragment, version);
                        fetches += 1;
                    }
                    _ => {}
                }
            }
        });
    }
    let mut learners = BTreeSet::new();
    while learners.len() < 4 {
        learners.extend(within("forty versions", learners_trained.recv()).await);
    }
    let parts = merged(&services).await;
    let of_each = |learner| parts.iter().filter(|(_, who, _)| *who == learner).count();
    assert!(learners.iter().all(|&learner| of_each(learner) >= 20), "{learners:?}");
    // Rounds continue until each gateway knows all of them.
    let agree = async {
        loop {
            let [one, other] = [cluster.clock_tokens(0).await, cluster.clock_tokens(1).await];
            if one == other && one > 0 {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    within("both count the same", agree).await;
    for fragment in (0..FRAGMENTS).map(FragmentId) {
        let (kept, all) = kept(&services, fragment).await;
        assert!(all > 15 && (1..=9).contains(&kept), "{kept} of {all} states are in the storage");
    }
}

/// Returns the number of a fragment's states in the storage, and the number of all its states so far.
async fn kept(services: &Services, fragment: FragmentId) -> (usize, usize) {
    let (mut kept, mut all) = (0, 0);
    for (record, seq) in services.tape.read(fragment, 0).await.unwrap().iter().zip(1..) {
        if matches!(record, Record::Merged { .. }) {
            kept += usize::from(services.blobs.load(fragment, seq).await.unwrap().is_some());
            all += 1;
        }
    }
    (kept, all)
}

/// Goal: after the owner of the run has ended it, each fragment has one more round with all learners. Then the
/// gateways close all connections.
#[tokio::test(flavor = "multi_thread")]
async fn last_round_includes_all_learners() {
    let services = Local::services();
    let cluster = TestCluster::open(&services, 2, 2);
    let mut homes = Vec::new();
    for (peer, at) in [(1, 0), (2, 0), (3, 1)] {
        let mut visitor = cluster.visit(peer, at, None);
        homes.push(tokio::spawn(async move {
            visitor.join().await;
            loop {
                match visitor.heard().await {
                    // Only the last round waits for a learner that is this slow.
                    Message::Collect { fragment, base, .. } => {
                        sleep(Duration::from_millis(if peer == 3 { 80 } else { 1 })).await;
                        visitor.answer(fragment, base, 0.01);
                    }
                    Message::Bye(bye) => return bye.code,
                    _ => {}
                }
            }
        }));
    }
    let is_merged = async { while merged(&services).await.len() < 12 {} };
    within("some rounds", is_merged).await;
    cluster.ordering.send_modify(|orders| orders.is_ending = true);
    for home in homes {
        assert_eq!(within("home", home).await.unwrap(), CloseCode::Done);
    }
    for fragment in (0..FRAGMENTS).map(FragmentId) {
        let records = services.tape.read(fragment, 0).await.unwrap();
        let [.., Record::Merged { merge, .. }, Record::Finished] = &records[..] else {
            panic!("{:?}", records.last());
        };
        assert_eq!(merge.parts.len(), 3, "all are in the last one");
    }
}

/// Goal: a learner that returns to another gateway while the fate of an update is unknown gets the true fate there.
/// No progress is lost or merged twice, even if the old gateway has not read the update yet.
#[tokio::test(flavor = "multi_thread")]
async fn learner_gets_true_fates_at_another_gateway() {
    let services = Local::services();
    let cluster = TestCluster::open(&services, 2, 1);
    // Another learner trains meanwhile.
    let mut other = cluster.visit(9, 1, None);
    let others = tokio::spawn(async move {
        other.join().await;
        loop {
            if let Message::Collect { fragment, base, .. } = other.next().await {
                other.answer(fragment, base, 0.01);
            }
        }
    });
    let mut visitor = cluster.visit(1, 0, None);
    visitor.join().await;
    let mut said: BTreeMap<(FragmentId, Serial), bool> = BTreeMap::new();
    let mut late = Vec::new();
    for turn in 0..30_usize {
        let (fragment, base) = within("a question", visitor.question()).await;
        let update = visitor.update(fragment, base, 0.01);
        let serial = update.serial;
        let run = visitor.run();
        match turn % 5 {
            // The update arrives, and then the connection breaks.
            0 => visitor.say(Message::Update(update)),
            // The update arrives long after the learner left, and the old gateway does not know yet that it left.
            1 => late.push((visitor.sender(), update)),
            // The update arrives, and the learner returns before the old gateway knows that it left.
            2 => visitor.say(Message::Update(update)),
            // The update arrives after the end of its round, and may be merged in a later round while the learner is
            // connected. The old gateway may or may not know that the learner left.
            _ => {
                sleep(Duration::from_millis(60)).await;
                visitor.say(Message::Update(update));
                let is_there = async { while !matches!(visitor.heard().await, Message::Bye(_)) {} };
                let _ = timeout(Duration::from_millis(3 * turn as u64), is_there).await;
            }
        }
        let next_serial = visitor.next_serial();
        if matches!(turn % 5, 0 | 3) {
            visitor.leave();
        }
        let mut back = cluster.visit(1, (turn + 1) % 2, Some(run));
        back.number_from(next_serial);
        let welcome = within("a welcome", back.join()).await;
        let p = usize::from(fragment.0);
        assert_eq!(welcome.unsettled[p], None, "nothing is open once it is welcomed");
        said.insert((fragment, serial), welcome.merged[p] == Some(serial));
        for (sender, update) in late.drain(..) {
            sender.say(Message::Update(update));
        }
        visitor = back;
    }
    let told: u32 = said.values().map(|&is_merged| u32::from(is_merged)).sum();
    assert!(told > 0, "some of them were merged");
    // Pending updates have time to be merged.
    for _ in 0..4 {
        let (fragment, base) = within("a question", visitor.question()).await;
        visitor.answer(fragment, base, 0.01);
    }
    let (parts, learner) = (merged(&services).await, visitor.learner());
    for ((fragment, serial), is_merged) in said {
        assert_eq!(parts.contains(&(fragment, learner, serial)), is_merged, "{fragment}, {serial}");
    }
    others.abort();
}

/// Goal: a learner whose answers take longer than a round, as on a slow link, is merged in a later round and gets the
/// receipts.
#[tokio::test(flavor = "multi_thread")]
async fn a_learner_that_is_always_late_is_merged() {
    let services = Local::services();
    let cluster = TestCluster::open(&services, 2, 1);
    for (peer, at) in [(7, 0), (8, 1)] {
        let mut other = cluster.visit(peer, at, None);
        tokio::spawn(async move {
            other.join().await;
            loop {
                merge(&mut other).await;
            }
        });
    }
    let mut slow = cluster.visit(1, 0, None);
    slow.join().await;
    let (mut told, mut asked) = (BTreeSet::new(), 0);
    let many = async {
        while told.len() < 6 {
            match slow.next().await {
                Message::Collect { fragment, base, .. } => {
                    asked += 1;
                    let update = slow.update(fragment, base, 0.01);
                    let sender = slow.sender();
                    tokio::spawn(async move {
                        // This delay is about ten rounds.
                        sleep(Duration::from_millis(250)).await;
                        sender.say(Message::Update(update));
                    });
                }
                Message::Receipt { fragment, serial, fate, .. } => {
                    if matches!(fate, Fate::Merged { .. }) {
                        told.insert((fragment, serial));
                    }
                }
                _ => {}
            }
        }
    };
    within("six merges", many).await;
    let (parts, learner) = (merged(&services).await, slow.learner());
    for (fragment, serial) in told {
        assert!(parts.contains(&(fragment, learner, serial)), "{fragment}, {serial}");
    }
    assert!(asked <= 12, "it is not asked again while an answer waits: {asked} questions for six merges");
}

/// Goal: the only learner can return, although no other learner makes rounds take place.
#[tokio::test(flavor = "multi_thread")]
async fn only_learner_can_return() {
    let services = Local::services();
    let cluster = TestCluster::open(&services, 2, 1);
    let mut visitor = cluster.visit(1, 0, None);
    let first = within("a welcome", visitor.join()).await;
    let (fragment, base) = within("a question", visitor.question()).await;
    visitor.answer(fragment, base, 0.01);
    let run = visitor.run();
    visitor.leave();
    let mut back: Visitor = cluster.visit(1, 1, Some(run));
    let welcome = within("a welcome", back.join()).await;
    assert_eq!(welcome.learner, first.learner, "it has the same number elsewhere");
    let (fragment, base) = within("a question", back.question()).await;
    back.answer(fragment, base, 0.01);
}

/// Answers requests until one update of the learner is merged.
async fn merge(visitor: &mut Visitor) {
    loop {
        match visitor.next().await {
            Message::Collect { fragment, base, .. } => visitor.answer(fragment, base, 0.01),
            Message::Receipt { fate: Fate::Merged { .. }, .. } => return,
            _ => {}
        }
    }
}

/// Goal: a new process of a learner with many merged tokens is merged at another gateway, which never leased text for
/// those tokens.
#[tokio::test(flavor = "multi_thread")]
async fn new_process_of_a_learner_is_merged_at_another_gateway() {
    let services = Local::services();
    let cluster = TestCluster::open(&services, 2, 1);
    for peer in [7, 8, 9] {
        let mut other = cluster.visit(peer, 1, None);
        tokio::spawn(async move {
            other.join().await;
            loop {
                merge(&mut other).await;
            }
        });
    }
    let mut visitor = cluster.visit(1, 0, None);
    let first = within("a welcome", visitor.join()).await;
    for _ in 0..16 {
        within("a merge", merge(&mut visitor)).await;
    }
    visitor.leave();
    let mut fresh = cluster.visit(1, 1, None);
    fresh.number_from(1 << 50);
    // The new lease is smaller than the learner's merged tokens.
    fresh.step_ms = 20_000.0;
    let welcome = within("a welcome", fresh.join()).await;
    assert_eq!(welcome.learner, first.learner);
    within("a merge elsewhere", merge(&mut fresh)).await;
}
