//! Tests of the feed, on shards whose tokens encode their position.

use super::super::shard::{ShardForm, encode_shard, shard_spec};
use super::super::windows;
use super::*;
use crate::token;
use crate::wire::{ApplyPolicy, Architecture, Code, ExchangeSpec, InnerSpec, Model, ShardSpec};

const CONTEXT: u32 = 8;

/// Shards whose tokens encode their position: 100 · shard + place.
fn shard_bytes(shard: u32) -> Vec<u8> {
    let tokens: Vec<u32> = (0..84).map(|place| 100 * shard + place).collect();
    encode_shard(&tokens, 2).unwrap()
}

fn feed(shards: u32) -> Feed {
    let specs = (0..shards).map(|shard| shard_spec(&shard_bytes(shard), 2).unwrap()).collect();
    Feed::new(&run(specs))
}

fn run(shards: Vec<ShardSpec>) -> RunSpec {
    RunSpec {
        model: Model {
            context: CONTEXT,
            vocab: 1_000,
            tensors: Vec::new(),
            architecture: Architecture::default(),
            experts: None,
        },
        inner: InnerSpec {
            batch: 2,
            lr_max: 1e-3,
            lr_min_ratio: 0.1,
            warmup_tokens: 1,
            total_tokens: 2,
            beta1: 0.9,
            beta2: 0.99,
            eps: 1e-8,
            weight_decay: 0.1,
            clip_norm: 1.0,
        },
        exchange: ExchangeSpec {
            fragments: 1,
            sync_every: 1,
            block: 64,
            code: Code::Int4,
            apply: ApplyPolicy::Overwrite,
        },
        data: DataSpec { token_bytes: 2, masks: false, shards },
        seed: 7,
        frozen: None,
    }
}

fn grant(lease: u64, shard: u32, start: u32, windows: u32) -> LeaseGrant {
    LeaseGrant { lease: LeaseId(lease), epoch: 0, shard, start, windows }
}

#[test]
fn refuses_grants_that_make_no_sense() {
    let mut feed = feed(2);
    assert_eq!(windows(84, CONTEXT), 9);
    let unknown = FeedError::UnknownShard { shard: 2, shards: 2 };
    assert_eq!(feed.grant(grant(1, 2, 0, 1)), Err(unknown.clone()));
    assert_eq!(feed.add_shard(2, vec![]), Err(unknown));
    for (start, windows) in [(0, 0), (0, 10), (9, 1), (u32::MAX, 1), (1, u32::MAX)] {
        let expected = FeedError::Range { lease: LeaseId(1), start, windows, shard_windows: 9 };
        assert_eq!(feed.grant(grant(1, 0, start, windows)), Err(expected));
    }
    feed.grant(grant(1, 0, 0, 9)).unwrap();
    feed.grant(grant(1, 0, 0, 9)).unwrap();
    assert_eq!(feed.grant(grant(1, 0, 0, 8)), Err(FeedError::Conflict { lease: LeaseId(1) }));
    for lease in 2..=u64::from(LEASES_MAX) {
        feed.grant(grant(lease, 1, 0, 1)).unwrap();
    }
    assert_eq!(feed.grant(grant(99, 1, 0, 1)), Err(FeedError::TooManyLeases { lease: LeaseId(99) }));
    let error = ShardError::Length { found: 1, expected: 168 };
    assert_eq!(feed.add_shard(1, vec![0]), Err(FeedError::Shard { shard: 1, error }));
}

#[test]
fn a_batch_spans_leases_and_starves_when_they_end() {
    let mut feed = feed(2);
    feed.grant(grant(5, 0, 0, 3)).unwrap();
    feed.grant(grant(4, 1, 0, 2)).unwrap();
    assert_eq!(feed.next_batch(1), None);
    feed.add_shard(0, shard_bytes(0)).unwrap();
    assert_eq!(feed.ready_windows(), 3);
    assert_eq!(feed.next_batch(4), None);
    feed.add_shard(1, shard_bytes(1)).unwrap();

    let batch = feed.next_batch(4).unwrap();
    let firsts: Vec<u32> = batch.chunks(9).map(|window| window[0] / 100).collect();
    assert_eq!(firsts, [0, 0, 0, 1]);
    for window in batch.chunks(9) {
        assert!(window.windows(2).all(|pair| pair[1] == pair[0] + 1), "{window:?}");
    }
    assert_eq!(feed.next_batch(2), None);
    assert_eq!(feed.next_batch(0), None);
    assert_eq!(feed.progress(), [(LeaseId(4), 1), (LeaseId(5), 3)]);
}

/// Goal: for any leases, each window of an epoch comes exactly once.
#[test]
fn an_epoch_gives_each_window_once() {
    let mut feed = feed(1);
    feed.add_shard(0, shard_bytes(0)).unwrap();
    for (lease, start, windows) in [(1, 4, 5), (2, 0, 1), (3, 1, 3)] {
        feed.grant(grant(lease, 0, start, windows)).unwrap();
    }
    let mut targets: Vec<u32> = Vec::new();
    for _ in 0..3 {
        targets.extend(feed.next_batch(3).unwrap().chunks(9).flat_map(|window| &window[1..]));
    }
    targets.sort_unstable();
    targets.dedup();
    assert_eq!(targets.len(), 9 * 8);
    assert_eq!(targets[71] - targets[0], 71);
}

#[test]
fn a_finished_lease_is_reported_before_it_goes() {
    let mut feed = feed(1);
    feed.add_shard(0, shard_bytes(0)).unwrap();
    feed.grant(grant(1, 0, 0, 2)).unwrap();
    feed.grant(grant(2, 0, 2, 2)).unwrap();
    feed.next_batch(1).unwrap();
    let sent = feed.progress();
    feed.next_batch(2).unwrap();
    feed.reported(&sent);
    let sent = feed.progress();
    assert_eq!(sent, [(LeaseId(1), 2), (LeaseId(2), 1)]);
    // Lease 2 ends after the report was written, so it must stay for the next one.
    feed.next_batch(1).unwrap();
    feed.reported(&sent);
    assert_eq!(feed.progress(), [(LeaseId(2), 2)]);
    feed.retain(&[]);
    assert_eq!(feed.progress(), []);
}

#[test]
fn a_report_that_was_lost_is_made_again() {
    let mut feed = feed(1);
    feed.add_shard(0, shard_bytes(0)).unwrap();
    for lease in 1..=3 {
        feed.grant(grant(lease, 0, 2 * lease as u32 - 2, 2)).unwrap();
    }
    feed.next_batch(5).unwrap();
    feed.reported(&feed.progress());
    assert_eq!(feed.progress(), [(LeaseId(3), 1)]);
    // The syncer does not know lease 1, nor that lease 2 is finished.
    feed.retain(&[LeaseId(2), LeaseId(3)]);
    assert_eq!(feed.progress(), [(LeaseId(2), 2), (LeaseId(3), 1)]);
    feed.next_batch(1).unwrap();
    assert_eq!(feed.next_batch(1), None, "what is finished is not trained on again");
}

#[test]
fn finished_leases_make_room() {
    let mut feed = feed(1);
    feed.add_shard(0, shard_bytes(0)).unwrap();
    for lease in 0..10 * u64::from(LEASES_MAX) {
        feed.grant(grant(lease, 0, (lease % 9) as u32, 1)).unwrap();
        feed.next_batch(1).unwrap();
        feed.reported(&feed.progress());
    }
    feed.retain(&(0..10 * u64::from(LEASES_MAX)).map(LeaseId).collect::<Vec<_>>());
    assert_eq!(feed.progress().len(), LEASES_MAX as usize);
    assert_eq!(feed.progress().last(), Some(&(LeaseId(10 * u64::from(LEASES_MAX) - 1), 1)));
}

#[test]
fn holds_a_few_shards_and_asks_in_order() {
    let mut feed = feed(7);
    assert_eq!(feed.needs(), None);
    for (lease, shard) in (0..).zip([3, 1, 3, 0, 2, 4]) {
        feed.grant(grant(lease, shard, lease as u32, 1)).unwrap();
    }
    let mut asked = Vec::new();
    while let Some(shard) = feed.needs() {
        feed.add_shard(shard, shard_bytes(shard)).unwrap();
        asked.push(shard);
    }
    assert_eq!(asked, [3, 1, 0, 2]);
    // A shard that no lease waits for is dropped at once, as there is no room.
    feed.add_shard(6, shard_bytes(6)).unwrap();
    assert!(feed.shards.keys().eq(&[0, 1, 2, 3]));

    feed.next_batch(3).unwrap();
    assert_eq!(feed.needs(), Some(4));
    feed.add_shard(4, shard_bytes(4)).unwrap();
    assert_eq!(feed.shards.len(), SHARDS_MAX as usize);
    assert_eq!(feed.needs(), None);
    assert_eq!(feed.ready_windows(), 3);
}

/// Goal: leases smaller than a batch starve no learner, however many shards they come from.
#[test]
fn holds_as_many_shards_as_a_batch_takes() {
    let mut feed = feed(7);
    for shard in 0..7 {
        feed.grant(grant(shard.into(), shard, 0, 1)).unwrap();
    }
    let mut fetched = Vec::new();
    let batch = loop {
        if let Some(batch) = feed.next_batch(6) {
            break batch;
        }
        let shard = feed.needs().expect("a shard that makes a batch");
        feed.add_shard(shard, shard_bytes(shard)).unwrap();
        fetched.push(shard);
    };
    assert_eq!((fetched.len(), batch.len()), (6, 6 * (CONTEXT as usize + 1)));
    feed.grant(grant(8, 6, 1, 5)).unwrap();
    feed.add_shard(6, shard_bytes(6)).unwrap();
    assert_eq!(feed.shards.len(), SHARDS_MAX as usize, "and no more than before for longer");
    assert!(feed.next_batch(6).is_some());
}

#[test]
fn windows_say_which_tokens_are_given() {
    let form = ShardForm { token_bytes: 2, masks: true };
    let is_given = |place: u32| place % 5 < 2;
    let tokens: Vec<u32> = (0..84).map(|at| if is_given(at) { at | token::GIVEN } else { at }).collect();
    let bytes = encode_shard(&tokens, form).unwrap();
    let mut run = run(vec![shard_spec(&bytes, form).unwrap()]);
    run.data.masks = true;
    let mut feed = Feed::new(&run);
    feed.grant(LeaseGrant { lease: LeaseId(1), epoch: 0, shard: 0, start: 0, windows: 9 }).unwrap();
    feed.add_shard(0, bytes).unwrap();
    let batch = feed.next_batch(9).unwrap();
    assert!(batch.iter().all(|&found| is_given(token::id(found)) != token::is_learnt(found)));
    assert!(batch.chunks(9).all(|window| window.windows(2).all(|w| token::id(w[0]) + 1 == token::id(w[1]))));
}
