//! Checks of the services' guarantees. Each check needs services without other users.

use std::sync::Arc;
use std::time::Duration;

use archipelago_cluster::{Cell, Entry, Inbox, Services};
use archipelago_core::cluster::{GatewayId, Notice, ProcessId, Record, Reply};
use archipelago_core::wire::{FragmentId, Round};
use tokio::time::{sleep, timeout};

const P: FragmentId = FragmentId(0);
const Q: FragmentId = FragmentId(1);
/// Time limit far above any expected delivery time.
const LONG: Duration = Duration::from_secs(10);

/// Repeats a request until it returns an answer.
pub async fn insist<T>(mut what: impl AsyncFnMut() -> Option<T>) -> T {
    for _ in 0..600 {
        if let Some(answer) = what().await {
            return answer;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("no answer in 30 s");
}

fn took(process: u64) -> Record {
    Record::Took(ProcessId(process))
}

/// Checks that appended records stay, in order, under their numbers, and that of several appends with the same
/// expected number one succeeds.
pub async fn tape(services: &Services) {
    let tape = &services.tape;
    assert_eq!(tape.read(P, 0).await.unwrap(), []);
    assert_eq!(tape.read(P, 7).await.unwrap(), []);
    assert_eq!(tape.newest(P).await, Ok(0));
    assert_eq!(tape.append(P, 1, &took(1)).await, Ok(None), "there is no record 1");
    assert_eq!(tape.append(P, 0, &took(1)).await, Ok(Some(1)));
    assert_eq!(tape.append(P, 0, &took(1)).await, Ok(None), "the same again is not taken");
    assert_eq!(tape.append(P, 1, &Record::Abandoned).await, Ok(Some(2)));
    assert_eq!(tape.append(P, 3, &took(2)).await, Ok(None), "no gap");
    assert_eq!(tape.append(Q, 0, &took(3)).await, Ok(Some(1)), "each fragment has a tape of its own");
    let read = insist(async || tape.read(P, 0).await.ok().filter(|read| read.len() == 2)).await;
    assert_eq!(read, [took(1), Record::Abandoned]);
    assert_eq!(tape.read(P, 1).await.unwrap(), [Record::Abandoned]);
    assert_eq!(tape.read(P, 2).await.unwrap(), []);
    // Ten appends race for each of twenty numbers.
    for expect in 2..22 {
        let mut racers = tokio::task::JoinSet::new();
        for process in 0..10 {
            let tape = Arc::clone(tape);
            racers.spawn(async move { (process, tape.append(P, expect, &took(process)).await.unwrap()) });
        }
        let won: Vec<_> = racers.join_all().await.into_iter().filter(|(_, seq)| seq.is_some()).collect();
        let [(process, Some(seq))] = won[..] else { panic!("{won:?} after {expect}") };
        assert_eq!(seq, expect + 1);
        let read = insist(async || tape.read(P, expect).await.ok().filter(|read| !read.is_empty())).await;
        assert_eq!(read, [took(process)]);
    }
    // These are more records than fit into one answer of any server.
    for seq in 22..600 {
        assert_eq!(tape.append(P, seq, &took(seq)).await, Ok(Some(seq + 1)));
    }
    let read = insist(async || tape.read(P, 22).await.ok().filter(|read| read.len() == 578)).await;
    assert!(read.iter().zip(22..).all(|(record, seq)| *record == took(seq)));
    insist(async || tape.newest(P).await.ok().filter(|newest| *newest == 600)).await;
    assert_eq!(tape.newest(Q).await, Ok(1));
}

/// Checks that the first write to a key succeeds and stays.
pub async fn blobs(services: &Services) {
    let blobs = &services.blobs;
    let bytes =
        |seed: u8, len: usize| Arc::new((0..len).map(|at| (at % 253) as u8 ^ seed).collect::<Vec<_>>());
    assert_eq!(blobs.load(P, 1).await, Ok(None));
    for (key, len) in [(1, 0), (2, 10), (3, 3_000_000)] {
        assert_eq!(blobs.store(P, key, bytes(1, len)).await, Ok(true));
        assert_eq!(blobs.store(P, key, bytes(1, len)).await, Ok(true), "the same again is there");
        assert_eq!(blobs.store(P, key, bytes(2, len + 1)).await, Ok(false));
        assert_eq!(blobs.load(P, key).await, Ok(Some(bytes(1, len).to_vec())));
        assert_eq!(blobs.load(Q, key).await, Ok(None), "each fragment has keys of its own");
    }
    let mut racers = tokio::task::JoinSet::new();
    for seed in 0..8 {
        let (blobs, bytes) = (Arc::clone(blobs), bytes(seed, 100_000));
        racers.spawn(async move { (seed, blobs.store(P, 9, bytes).await.unwrap()) });
    }
    let won: Vec<u8> = racers.join_all().await.into_iter().filter(|won| won.1).map(|won| won.0).collect();
    assert_eq!(won.len(), 1);
    assert_eq!(blobs.load(P, 9).await, Ok(Some(bytes(won[0], 100_000).to_vec())));
    assert_eq!(blobs.store(Q, 2, bytes(3, 10)).await, Ok(true));
    // Some of these keys exist, and some do not.
    assert_eq!(blobs.forget(P, 2..9).await, Ok(()));
    assert_eq!((blobs.load(P, 2).await, blobs.load(P, 3).await), (Ok(None), Ok(None)));
    for (fragment, key) in [(P, 1), (P, 9), (Q, 2)] {
        assert!(blobs.load(fragment, key).await.unwrap().is_some(), "{fragment}, {key}");
    }
}

/// Checks that a write succeeds only if no other write came between, and that all readers see it eventually.
pub async fn roster(services: &Services) {
    let roster = &services.roster;
    let (me, you) = (ProcessId(u64::MAX), ProcessId(2));
    assert_eq!(roster.list().await, Ok(Vec::new()));
    let first = roster.write(Cell::Lease(P), Some(me), 0).await.unwrap().unwrap();
    assert_eq!(roster.write(Cell::Lease(P), Some(you), 0).await, Ok(None));
    let there = roster.write(Cell::Present(me), Some(me), 0).await.unwrap().unwrap();
    let second = roster.write(Cell::Lease(P), Some(me), first).await.unwrap().unwrap();
    assert!(first != 0 && second != first && there != 0);
    assert_eq!(roster.write(Cell::Lease(P), Some(you), first).await, Ok(None));
    let third = roster.write(Cell::Lease(P), None, second).await.unwrap().unwrap();
    let mut expected = vec![
        Entry { cell: Cell::Lease(P), holder: None, revision: third },
        Entry { cell: Cell::Present(me), holder: Some(me), revision: there },
    ];
    expected.sort_by_key(|entry| entry.cell);
    insist(async || {
        let mut seen = roster.list().await.ok()?;
        seen.sort_by_key(|entry| entry.cell);
        (seen == expected).then_some(())
    })
    .await;
    assert!(roster.write(Cell::Lease(P), Some(you), third).await.unwrap().is_some());
}

/// Checks that messages of any size arrive complete, and that messages without a listener are lost without an error.
pub async fn bus(services: &Services) {
    let bus = &services.bus;
    bus.notify(P, &Notice::Ended(Round(1))).await.unwrap();
    let (mut one, mut two) = (bus.notices(P).await.unwrap(), bus.notices(P).await.unwrap());
    let (mut other, mut replies) = (bus.notices(Q).await.unwrap(), bus.replies(P).await.unwrap());
    // A new listener receives messages eventually; earlier messages may be lost.
    let notice = |round| Notice::Ended(Round(round));
    insist(async || {
        bus.notify(P, &notice(2)).await.ok()?;
        timeout(Duration::from_millis(200), one.recv()).await.ok().flatten()
    })
    .await;
    bus.notify(P, &notice(3)).await.unwrap();
    assert!(
        until(&mut one, |said| *said == notice(3)).await && until(&mut two, |said| *said == notice(3)).await
    );
    for len in [0, 400_000, 512_000, 5_000_000] {
        bus.reply(P, &sum(1, len)).await.unwrap();
        let is_it = |said: &Reply| matches!(said, Reply::Sum { bytes, .. } if *bytes == noise(1, len));
        assert!(until(&mut replies, is_it).await, "{len}");
    }
    // Messages that are sent at the same time are not mixed up.
    let mut speakers = tokio::task::JoinSet::new();
    for speaker in 0..5 {
        let bus = Arc::clone(bus);
        speakers.spawn(async move { bus.reply(P, &sum(speaker, 2_000_000)).await.unwrap() });
    }
    speakers.join_all().await;
    for _ in 0..5 {
        let Ok(Some(Reply::Sum { gateway, bytes, .. })) = timeout(LONG, replies.recv()).await else {
            panic!("something else came, or nothing")
        };
        assert!(bytes == noise(gateway.0, 2_000_000), "of speaker {}", gateway.0);
    }
    assert!(other.try_recv().is_err(), "each fragment has notices of its own");
    drop((one, two, other, replies));
    bus.notify(P, &notice(4)).await.unwrap();
}

/// Checks that a cluster cannot access the data and messages of another one.
pub async fn apart(services: &Services, others: &Services) {
    assert_eq!(others.tape.read(P, 0).await.unwrap(), []);
    assert_eq!(others.blobs.load(P, 2).await, Ok(None));
    assert_eq!(others.roster.list().await, Ok(Vec::new()));
    let mut heard = others.bus.notices(P).await.unwrap();
    services.bus.notify(P, &Notice::Ended(Round(9))).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    assert!(heard.try_recv().is_err());
}

/// Returns a record of about `bytes` bytes.
#[cfg(feature = "nats-s3")]
pub fn large(bytes: usize) -> Record {
    use archipelago_core::diloco::{MergeEntry, MergeRule, OuterSpec};
    use archipelago_core::wire::Version;
    let merge = MergeEntry {
        round: Round(1),
        fragment: P,
        base: Version(0),
        version: Version(1),
        rule: MergeRule::Radial,
        outer: OuterSpec::default(),
        radii: vec![0.1; bytes / 9],
        parts: Vec::new(),
        absent: 0.0,
        experts: Vec::new(),
        checksum: 1,
        digest: 2,
        norm: 0.5,
    };
    Record::Merged { merge: Box::new(merge), state: 1 }
}

/// Returns true if a matching message arrives in time.
async fn until<T>(inbox: &mut Inbox<T>, mut is_it: impl FnMut(&T) -> bool) -> bool {
    let search = async {
        while let Some(said) = inbox.recv().await {
            if is_it(&said) {
                return true;
            }
        }
        false
    };
    timeout(LONG, search).await.unwrap_or(false)
}

fn sum(speaker: u32, len: usize) -> Reply {
    Reply::Sum {
        gateway: GatewayId(speaker),
        round: Round(1),
        cancelled: Vec::new(),
        bytes: noise(speaker, len),
    }
}

fn noise(seed: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(2_654_435_761 ^ seed) as u8).collect()
}
