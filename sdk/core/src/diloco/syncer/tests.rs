//! Tests of lying peers: bounds on the harm that a peer can do with arbitrary messages.

use std::collections::BTreeMap;

use super::*;
use crate::diloco::{Codec, checksum};
use crate::testing::{Asked, RecordingHost, larger};
use crate::wire::{
    Bye, CloseCode, ConnId, Fate, Hello, Identity, LateReason, LearnerState, LeaseGrant, LeaseId, Message,
    Progress, Refusal, Serial, Signature, Update,
};

const RUN: RunId = RunId(7);
/// Tokens of one step of [`larger`].
const STEP_TOKENS: u64 = 32;
/// Step time that an honest learner reports, in milliseconds.
const HONEST_MS: f32 = 1_000.0;

/// Syncer with a record of its outputs.
struct Bench {
    now: Millis,
    syncer: Syncer,
    codec: Codec,
    learners: BTreeMap<ConnId, LearnerId>,
    leases: BTreeMap<ConnId, Vec<LeaseGrant>>,
    collects: Vec<(ConnId, FragmentId, Version)>,
    serial: u64,
    fates: Vec<(ConnId, Fate)>,
    byes: Vec<(ConnId, CloseCode)>,
    leases_lost: usize,
}

fn hello(run: Option<RunId>, identity: Identity, name: String, device: String) -> Hello {
    let signature = Signature::NONE;
    Hello { run, layout: None, identity, signature, name, device, invite: None }
}

impl Bench {
    fn new(config: SyncerConfig) -> Self {
        let (spec, layout) = larger();
        let codec = Codec::new(&spec.exchange).unwrap();
        let syncer = Syncer::new(RUN, spec, config, &layout, &vec![0.0; layout.len()]).unwrap();
        Self {
            now: Millis(0),
            syncer,
            codec,
            learners: BTreeMap::new(),
            leases: BTreeMap::new(),
            collects: Vec::new(),
            serial: 0,
            fates: Vec::new(),
            byes: Vec::new(),
            leases_lost: 0,
        }
    }

    /// Sends the `Hello` of peer number `peer`. `run` is the run to which the peer claims to return, if any.
    fn hello(&mut self, peer: u8, run: Option<RunId>) -> ConnId {
        let conn = ConnId(u64::from(peer));
        let identity = Identity([peer; 32]);
        let (name, device) = (peer.to_string(), String::new());
        self.say(conn, Message::Hello(hello(run, identity, name, device)));
        conn
    }

    /// Sends `Hello` and `Ready`.
    fn join(&mut self, peer: u8, run: Option<RunId>) -> ConnId {
        let conn = self.hello(peer, run);
        let layout = self.syncer.fragments().hash();
        self.say(conn, Message::Ready { run: RUN, layout, batch: 4 });
        conn
    }

    /// Adds an honest peer, which reports its step time.
    fn honest(&mut self, peer: u8) -> ConnId {
        let conn = self.join(peer, None);
        self.report(conn, HONEST_MS, 0, Vec::new());
        conn
    }

    fn report(&mut self, conn: ConnId, step_ms: f32, tokens: u64, leases: Vec<(LeaseId, u32)>) {
        let state = LearnerState::Training;
        let progress = Progress { run: RUN, leases, steps: 0, tokens, step_ms, loss: f32::NAN, state };
        self.say(conn, Message::Progress(progress));
    }

    /// Reports all leased windows as done.
    fn report_done(&mut self, conn: ConnId, step_ms: f32) {
        let leases = self.leases.remove(&conn).unwrap_or_default();
        let done = leases.iter().map(|grant| (grant.lease, grant.windows)).collect();
        self.report(conn, step_ms, 0, done);
    }

    /// Answers each `Collect` with an update of `steps` steps and `tokens` tokens in which each value is `value`.
    fn answer(&mut self, conn: ConnId, value: f32, steps: u32, tokens: u64) {
        let (asked, rest) = std::mem::take(&mut self.collects).into_iter().partition(|ask| ask.0 == conn);
        self.collects = rest;
        let asked: Vec<(ConnId, FragmentId, Version)> = asked;
        for (_, fragment, base) in asked {
            self.serial += 1;
            let values = vec![value; self.syncer.fragments().len(fragment)];
            let segments = self.syncer.fragments().segments(fragment).unwrap();
            let body = self.codec.encode(segments, &values);
            let (checksum, serial) = (checksum(&body), Serial(self.serial));
            let update =
                Update { run: RUN, fragment, serial, base, steps, tokens, body, checksum, seen: Vec::new() };
            self.say(conn, Message::Update(update));
        }
    }

    /// Answers like a learner that took ten steps in one direction.
    fn answer_honestly(&mut self, conn: ConnId) {
        self.answer(conn, 0.1, 10, 10 * STEP_TOKENS);
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.after(ms);
        self.feed(Input::Timeout);
    }

    fn say(&mut self, conn: ConnId, message: Message) {
        self.feed(Input::Message(conn, message));
    }

    fn feed(&mut self, input: Input) {
        let mut recorder = RecordingHost::default();
        self.syncer.drive(self.now, input, &mut recorder);
        let lost = |event: &&Event| matches!(event, Event::LeaseReturned { .. });
        self.leases_lost += recorder.events.iter().filter(lost).count();
        for asked in recorder.asked {
            match asked {
                Asked::Send(conns, message) => {
                    conns.into_iter().for_each(|conn| self.hear(conn, message.clone()));
                }
                Asked::Merge(job) => self.feed(Input::Merged(Box::new(job.run()))),
                Asked::Rollback(job) => self.feed(Input::Merged(Box::new(job.run()))),
            }
        }
    }

    fn hear(&mut self, conn: ConnId, message: Message) {
        match message {
            Message::Welcome(welcome) => {
                self.learners.insert(conn, welcome.learner);
            }
            Message::Lease { grant, .. } => self.leases.entry(conn).or_default().push(grant),
            Message::Collect { fragment, base, .. } => self.collects.push((conn, fragment, base)),
            Message::Receipt { fate, .. } => self.fates.push((conn, fate)),
            Message::Bye(bye) => self.byes.push((conn, bye.code)),
            _ => {}
        }
    }

    fn account(&self, conn: ConnId) -> &crate::diloco::Account {
        self.syncer.ledger().account(self.learners[&conn]).unwrap()
    }

    /// Returns the learner's largest number of merged tokens on one fragment.
    fn tokens_merged(&self, conn: ConnId) -> u64 {
        self.account(conn).tokens_merged.iter().copied().max().unwrap()
    }

    fn refusals(&self, conn: ConnId) -> Vec<Refusal> {
        let its = self.fates.iter().filter(|(whose, _)| *whose == conn);
        its.filter_map(|(_, fate)| if let Fate::Refused(refusal) = fate { Some(*refusal) } else { None })
            .collect()
    }
}

impl Default for Bench {
    fn default() -> Self {
        Self::new(SyncerConfig::default())
    }
}

#[test]
fn empty_updates_do_not_exclude_honest_learners() {
    for value in [0.0, 1e-20] {
        let mut bench = Bench::default();
        let idler = bench.honest(1);
        for _ in 0..200 {
            bench.pass(2_000);
            bench.report_done(idler, HONEST_MS);
            bench.answer(idler, value, 10, 10 * STEP_TOKENS);
        }
        assert!(bench.account(idler).fates.merged > 5 * 32, "{:?}", bench.account(idler).fates);
        let honest = bench.honest(2);
        for _ in 0..100 {
            bench.pass(2_000);
            bench.report_done(honest, HONEST_MS);
            bench.report_done(idler, HONEST_MS);
            bench.answer(idler, value, 10, 10 * STEP_TOKENS);
            bench.answer_honestly(honest);
        }
        assert_eq!(bench.refusals(honest), [], "beside one that sends {value}");
        assert!(bench.account(honest).fates.merged > 50, "{:?}", bench.account(honest).fates);
    }
}

#[test]
fn update_on_a_future_version_is_not_merged() {
    let mut bench = Bench::default();
    let (honest, liar) = (bench.honest(1), bench.honest(2));
    for base in [u64::MAX, 1 << 40] {
        bench.pass(2_000);
        for (conn, _, asked) in &mut bench.collects {
            if *conn == liar {
                *asked = Version(base);
            }
        }
        bench.answer_honestly(liar);
        bench.answer_honestly(honest);
        let late = Fate::Late(LateReason::StaleBase);
        assert!(bench.fates.iter().any(|(conn, fate)| *conn == liar && *fate == late), "{:?}", bench.fates);
    }
    assert_eq!((bench.account(liar).fates.merged, bench.refusals(liar)), (0, vec![]));
    assert!(bench.account(honest).fates.merged > 0, "nobody waits for the liar");
}

#[test]
fn impossible_steps_do_not_raise_the_norm_bound() {
    let mut bench = Bench::default();
    let (honest, liar) = (bench.honest(1), bench.join(2, None));
    bench.report(liar, HONEST_MS, 0, Vec::new());
    bench.pass(2_000);
    bench.answer(liar, 1e6, u32::MAX, 10 * STEP_TOKENS);
    bench.answer_honestly(honest);
    assert!(!bench.refusals(liar).is_empty());
    assert!(bench.refusals(liar).iter().all(|refusal| *refusal == Refusal::Norm));
    assert_eq!(bench.refusals(honest), []);
}

#[test]
fn impossible_step_time_closes_the_connection() {
    for step_ms in [f32::NAN, f32::INFINITY, -1.0] {
        let mut bench = Bench::default();
        let (honest, odd) = (bench.honest(1), bench.honest(2));
        bench.report(odd, step_ms, 0, Vec::new());
        assert_eq!(bench.byes, [(odd, CloseCode::Protocol)], "{step_ms}");
        bench.answer_honestly(honest);
        assert_eq!(bench.refusals(honest), []);
    }
}

/// Goal: a peer that claims a hundred thousand times the speed of honest ones, reports no speed, or falsely claims to
/// return is leased and credited at most as much as the fastest plausible learner.
#[test]
fn credit_for_claimed_speed_is_bounded() {
    for (step_ms, run) in [(0.01, None), (0.0, None), (0.0, Some(RUN)), (1e30, Some(RUN))] {
        let mut bench = Bench::default();
        for peer in [1, 2] {
            bench.honest(peer);
        }
        if run.is_some() {
            bench.hello(3, None);
            bench.feed(Input::Disconnected(ConnId(3)));
        }
        let liar = bench.join(3, run);
        for _ in 0..1_000 {
            bench.pass(10);
            bench.report_done(liar, step_ms);
        }
        // In 10 s at twice the speed of a thousand honest learners, plus the largest stock.
        let steps = 2 * 10_000 + 30_000 + 1_000;
        let leased = bench.account(liar).leased_tokens;
        assert!(leased <= steps * STEP_TOKENS, "{step_ms}, {run:?}: {leased} tokens leased");

        bench.answer(liar, 1e-3, u32::MAX, u64::MAX);
        let merged = bench.tokens_merged(liar);
        assert!(
            merged > 0 && merged <= 20_010 * STEP_TOKENS,
            "{step_ms}, {run:?}: {merged} tokens merged; {:?}",
            bench.fates
        );
    }
}

/// Goal: an honest server that is 750 times as fast as a phone, or 180,000 times as fast as a very slow learner, is
/// credited in full.
#[test]
fn honest_fast_learner_is_credited_in_full() {
    for phone_ms in [15_000.0, 3_600_000.0] {
        let mut bench = Bench::default();
        let (phone, server) = (bench.join(1, None), bench.join(2, None));
        let (mut steps, mut sent) = (0_u64, BTreeMap::new());
        for _ in 0..600 {
            bench.pass(100);
            bench.report(phone, phone_ms, 0, Vec::new());
            bench.report_done(server, 20.0);
            steps += 5;
            for ask in std::mem::take(&mut bench.collects).into_iter().filter(|ask| ask.0 == server) {
                let took = steps - sent.insert(ask.1, steps).unwrap_or(0);
                bench.collects = vec![ask];
                bench.answer(server, 1e-3, took as u32, took * STEP_TOKENS);
            }
        }
        assert_eq!(bench.refusals(server), []);
        for (p, merged) in bench.syncer.fragments().ids().zip(&bench.account(server).tokens_merged) {
            let sent = sent[&p] * STEP_TOKENS;
            // The last round may still be open.
            assert!(10 * merged >= 9 * sent && sent > 0, "{merged} of {sent} tokens are merged");
        }
    }
}

#[test]
fn reported_tokens_are_limited_to_leases() {
    let mut bench = Bench::default();
    for peer in [1, 2] {
        let conn = bench.honest(peer);
        bench.report(conn, HONEST_MS, u64::MAX, Vec::new());
    }
    let leased: u64 = bench.syncer.ledger().accounts().map(|(_, account)| account.leased_tokens).sum();
    assert!(bench.syncer.status().tokens_trained <= leased);
}

#[test]
fn connected_learner_keeps_its_leases() {
    let mut bench = Bench::default();
    let (idle, gone) = (bench.honest(1), bench.honest(2));
    bench.feed(Input::Disconnected(gone));
    for _ in 0..50 {
        bench.pass(10_000);
        bench.report(idle, HONEST_MS, 0, Vec::new());
    }
    assert_eq!(bench.syncer.leases().leases(bench.learners[&idle]).len(), bench.leases[&idle].len());
    assert_eq!(bench.leases_lost, bench.leases[&gone].len(), "those of one that is gone go to others");
}

#[test]
fn identities_without_merges_are_forgotten_in_a_full_ledger() {
    let mut bench = Bench::new(SyncerConfig { identities_max: 4, ..SyncerConfig::default() });
    let honest = bench.honest(1);
    bench.pass(2_000);
    bench.answer_honestly(honest);
    assert!(bench.account(honest).fates.merged > 0);
    bench.feed(Input::Disconnected(honest));
    for peer in 2..100 {
        let conn = bench.hello(peer, None);
        bench.feed(Input::Disconnected(conn));
    }
    assert_eq!(bench.byes, []);
    assert_eq!(bench.syncer.ledger().len(), 4);
    let numbers: std::collections::BTreeSet<_> = bench.learners.values().collect();
    assert_eq!(numbers.len(), 99, "no number is given twice");
    let before = bench.learners[&honest];
    bench.honest(1);
    assert_eq!(bench.learners[&honest], before, "one that was merged is remembered");

    // The newest identity is not forgotten, because its number would be assigned again.
    let mut last = Bench::new(SyncerConfig { identities_max: 2, ..SyncerConfig::default() });
    last.honest(1);
    for peer in [2, 3] {
        let conn = last.hello(peer, None);
        last.feed(Input::Disconnected(conn));
    }
    assert_eq!(last.byes, [(ConnId(3), CloseCode::Full)]);

    // Connected learners are not forgotten.
    let mut full = Bench::new(SyncerConfig { identities_max: 2, ..SyncerConfig::default() });
    for peer in 1..=3 {
        full.hello(peer, None);
    }
    assert_eq!(full.byes, [(ConnId(3), CloseCode::Full)]);
}

#[test]
fn turned_away_peer_is_reported_but_not_as_a_learner_that_left() {
    let mut bench = Bench::new(SyncerConfig { learners_max: 1, ..SyncerConfig::default() });
    bench.hello(1, None);
    let mut told = |peer: u8, run: Option<RunId>| -> Vec<Event> {
        let (identity, name, device) = (Identity([peer; 32]), String::new(), String::new());
        let hello = hello(run, identity, name, device);
        bench.syncer.handle(Millis(0), Input::Message(ConnId(9), Message::Hello(hello)));
        let outputs = std::iter::from_fn(|| bench.syncer.poll());
        outputs
            .filter_map(|output| if let Output::Event(event) = output { Some(event) } else { None })
            .collect()
    };
    for (run, code) in [(None, CloseCode::Full), (Some(RunId(8)), CloseCode::WrongRun)] {
        match &told(2, run)[..] {
            [Event::TurnedAway { code: found, .. }] => assert_eq!(*found, u16::from(code)),
            other => panic!("{other:?}"),
        }
    }
    // A replaced connection belonged to a learner, so the learner is reported as left.
    let replaced = told(1, None);
    assert!(
        matches!(&replaced[..], [Event::Left { .. }, Event::Joined { returning: true, .. }]),
        "{replaced:?}"
    );
}

/// Goal: identities without merged updates take no more than half of the seats, and none from a learner that trains.
#[test]
fn learner_with_merged_updates_gets_a_seat() {
    let mut bench = Bench::new(SyncerConfig { learners_max: 3, ..SyncerConfig::default() });
    let earners = [1, 2].map(|peer| bench.honest(peer));
    bench.hello(3, None);
    bench.pass(2_000);
    earners.into_iter().for_each(|conn| bench.answer_honestly(conn));
    assert!(earners.iter().all(|conn| bench.account(*conn).fates.merged > 0));
    bench.byes.clear();
    bench.feed(Input::Disconnected(earners[0]));
    bench.hello(4, None);
    assert_eq!(bench.byes, [], "a seat is free");
    bench.honest(1);
    assert_eq!(
        bench.byes,
        [(ConnId(3), CloseCode::Full)],
        "the stranger that has sat there for longest goes"
    );
    bench.feed(Input::Disconnected(ConnId(2)));
    bench.hello(5, None);
    bench.hello(6, None);
    assert_eq!(bench.byes[1..], [(ConnId(6), CloseCode::Full)], "both seats of strangers are taken");
}

/// Goal: abandoned identities are forgotten long before the ledger is full, with or without a lease. A learner with
/// merged updates is not.
#[test]
fn abandoned_identities_are_forgotten_before_the_ledger_is_full() {
    let mut bench = Bench::new(SyncerConfig { learners_max: 4, ..SyncerConfig::default() });
    let honest = bench.honest(1);
    bench.pass(2_000);
    bench.answer_honestly(honest);
    for peer in 2..250 {
        let conn = if peer % 2 == 0 { bench.hello(peer, None) } else { bench.join(peer, None) };
        bench.say(conn, Message::Bye(Bye::new(CloseCode::Done, "")));
        assert!(bench.syncer.ledger().len() <= 9, "{}", bench.syncer.ledger().len());
    }
    assert!(bench.account(honest).fates.merged > 0);
    // The account of a learner that vanishes with a lease is kept until the lease expires.
    for peer in 2..=9 {
        let conn = bench.join(peer, None);
        bench.feed(Input::Disconnected(conn));
    }
    bench.byes.clear();
    bench.hello(200, None);
    assert_eq!(bench.byes, [(ConnId(200), CloseCode::Full)]);
    bench.pass(70_000);
    bench.hello(201, None);
    assert_eq!(bench.byes.iter().filter(|bye| bye.0 == ConnId(201)).count(), 0);
}

/// Goal: the connection of a learner that floods the syncer with messages is soon closed, with a reason.
#[test]
fn message_flood_closes_the_connection() {
    let mut bench = Bench::default();
    let (honest, flooder) = (bench.honest(1), bench.honest(2));
    let mut heard = 0;
    while bench.byes.is_empty() && heard < 100_000 {
        bench.report(flooder, HONEST_MS, 0, Vec::new());
        heard += 1;
    }
    assert_eq!(bench.byes, [(flooder, CloseCode::Protocol)]);
    assert!(heard < 1_100, "{heard} messages at once");
    for _ in 0..3_600 {
        bench.pass(1_000);
        bench.report_done(honest, HONEST_MS);
        bench.answer_honestly(honest);
    }
    assert_eq!(bench.byes.len(), 1, "an hour of honest training is no flood");
}

/// Goal: a learner whose updates are a hundred times too long moves Θ no farther than an honest learner, whatever steps
/// it claims.
#[test]
fn long_updates_with_claims_of_speed_move_little() {
    let far = |lies: bool| {
        let mut bench = Bench::default();
        let honest = [1, 2, 3, 4].map(|peer| bench.honest(peer));
        let liar = bench.join(5, None);
        for turn in 0..100 {
            bench.pass(2_000);
            for &conn in &honest {
                bench.report_done(conn, HONEST_MS);
                bench.answer(conn, if turn % 2 == 0 { 0.1 } else { -0.1 }, 2, 2 * STEP_TOKENS);
            }
            if lies {
                bench.report_done(liar, 0.011);
                bench.answer(liar, 10.0, u32::MAX, u64::MAX);
            }
        }
        bench.syncer.theta().unwrap().iter().fold(0.0_f32, |most, value| most.max(value.abs()))
    };
    let (clean, found) = (far(false), far(true));
    assert!(found < clean + 100.0 * 0.1, "{clean} → {found}: each merge at most an honest step farther");
}
