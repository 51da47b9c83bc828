//! Tests with random faults of leaders, gateways, learners, and the services between them.

use std::ops::Range;

use archipelago_core::cluster::{Reply, UnresolvedUpdate};
use archipelago_core::diloco::FragmentState;
use archipelago_core::wire::Refusal;

use super::*;

const MILD: TransportFaults = TransportFaults { loss: 0.0, twice: 0.0, delay_ms: 20, disk_ms: 10 };

/// Number of random runs in a test.
const SEEDS: u64 = 60;

/// Returns the seeds of `cargo xtask test --only cluster-sim --seeds FROM..UNTIL`, or `0..count` without that setting.
/// 10,000 seeds take about four minutes. They have found bugs that 60 did not.
fn seeds(count: u64) -> Range<u64> {
    let Ok(asked) = std::env::var("ARCHIPELAGO_TEST_SEEDS") else { return 0..count };
    let range =
        asked.split_once("..").and_then(|(from, until)| Some(from.parse().ok()?..until.parse().ok()?));
    range.expect("seeds are FROM..UNTIL")
}

fn faults(seed: u64) -> TransportFaults {
    let mut rng = Rng::stream(seed, 0xc3);
    TransportFaults {
        loss: 0.1 * rng.unit(),
        twice: 0.2 * rng.unit(),
        delay_ms: rng.between(5, 200),
        disk_ms: rng.between(2, 400),
    }
}

/// Goal: under any faults there is one chain of versions, no acknowledged record is lost, no update is merged twice,
/// receipts agree with the tape, and each merge has the bits of the same merge in one process. After the faults end,
/// updates of every learner are merged again.
#[test]
fn random_faults_break_no_invariant_and_all_learners_are_merged_again() {
    let (mut versions, mut takeovers) = (0, 0);
    for seed in seeds(SEEDS) {
        let mut cluster = Cluster::new(seed, 1 + seed as usize % 4, 2 + seed as u32 % 7, faults(seed));
        cluster.inject_random_faults(25, 20_000);
        for _ in 0..2 {
            cluster.run_for(10_000);
            cluster.check().unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        }
        cluster.end_faults();
        cluster.run_for(15_000);
        let before = cluster.merges();
        // Rounds are as slow as the transport: about one learner in tens of thousands is in no round of the first 15
        // seconds.
        cluster.run_for(25_000);
        cluster.check().unwrap_or_else(|broken| panic!("seed {seed}, calm: {broken}"));
        for (learner, merges) in cluster.merges() {
            assert!(merges > before[&learner], "seed {seed}: learner {learner} is not merged any more");
        }
        // Half of the runs end during more faults, the other half without faults.
        cluster.command(|commands| commands.is_ending = true);
        if seed % 2 == 0 {
            cluster.inject_random_faults(5, 5_000);
            cluster.run_for(6_000);
            cluster.end_faults();
        }
        cluster.run_for(30_000);
        cluster.check().unwrap_or_else(|broken| panic!("seed {seed}, ended: {broken}"));
        assert_eq!(cluster.records().last(), Some(&Record::Finished), "seed {seed}: it does not end");
        let left = cluster.blobs.len();
        assert!(left <= cluster.run.leader_terms.states_kept + 5, "seed {seed}: {left} states are left");
        versions += cluster.versions();
        takeovers += cluster.records().iter().filter(|record| matches!(record, Record::Took(_))).count();
    }
    // The runs must contain enough merges and takeovers.
    let runs = seeds(SEEDS).count();
    assert!(
        versions > 20 * runs && takeovers > runs,
        "{versions} versions, {takeovers} takeovers in {runs} runs"
    );
}

/// Goal: without faults, rounds merge the updates of all learners.
#[test]
fn a_calm_cluster_merges_all_in_every_round() {
    let mut cluster = Cluster::new(1, 3, 9, MILD);
    cluster.run_for(20_000);
    cluster.check().unwrap();
    let took = cluster.records().iter().filter(|record| matches!(record, Record::Took(_))).count();
    assert_eq!(took, 1, "one process leads");
    assert!(cluster.versions() >= 30, "{}", cluster.versions());
    let last = cluster.records().iter().rev().find_map(|record| match record {
        Record::Merged { merge, .. } => Some(merge.parts.len()),
        _ => None,
    });
    assert_eq!(last, Some(9));
}

/// Goal: while the run is paused, nothing is merged under any leader. After the pause it continues.
#[test]
fn paused_run_merges_nothing() {
    let mut cluster = Cluster::new(7, 2, 5, MILD);
    cluster.run_for(5_000);
    cluster.command(|commands| commands.is_held = true);
    // A round that is open is merged as usual.
    cluster.run_for(5_000);
    let before = cluster.versions();
    let (first, ..) = cluster.lease.unwrap();
    cluster.inject(ClusterFault::KillFragmentLeader(first));
    cluster.run_for(20_000);
    let held = cluster.versions();
    cluster.command(|commands| commands.is_held = false);
    cluster.run_for(10_000);
    cluster.check().unwrap();
    let after = cluster.versions();
    assert!(before > 5 && held == before && after > before + 5, "{before}, {held}, {after}");
}

/// Goal: if there are more learners than `cohort_max`, a round invites a rotating sample. The last round invites all.
#[test]
fn round_asks_a_rotating_sample() {
    let mut cluster = Cluster::new(11, 3, 9, MILD);
    cluster.command(|commands| commands.cohort_max = 3);
    cluster.run_for(20_000);
    cluster.check().unwrap();
    let sizes = |cluster: &Cluster| -> Vec<usize> {
        let size = |record: &Record| match record {
            Record::Merged { merge, .. } => Some(merge.parts.len()),
            _ => None,
        };
        cluster.records().iter().filter_map(size).collect()
    };
    // The first round may have begun before the leader read the command.
    assert!(sizes(&cluster)[1..].iter().all(|&size| size <= 3), "{:?}", sizes(&cluster));
    let merges = cluster.merges();
    assert!(merges.values().all(|&merges| merges >= 5), "{merges:?}");
    cluster.command(|commands| commands.is_ending = true);
    cluster.run_for(10_000);
    assert_eq!(sizes(&cluster).last(), Some(&9));
}

/// Goal: a run begins when the required number of learners are connected, and later continues with any number.
#[test]
fn a_run_waits_for_its_first_learners() {
    let begun = |learners: u32| {
        let mut cluster = Cluster::new(2, 2, learners, MILD);
        cluster.run.leader_terms.learners_start = 4;
        // The existing leader processes have the old terms, so they are replaced.
        for at in 0..2 {
            let machine = cluster.new_leader();
            cluster.leaders[at].restart(machine);
        }
        cluster.run_for(5_000);
        cluster.versions() > 0
    };
    assert!(!begun(3) && begun(4));
}

/// Goal: the last round of a run waits for all learners, and no record follows it.
#[test]
fn last_round_merges_all_learners() {
    let mut cluster = Cluster::new(9, 3, 7, MILD);
    cluster.run_for(5_000);
    cluster.command(|commands| commands.is_ending = true);
    cluster.run_for(10_000);
    cluster.check().unwrap();
    let [.., Record::Merged { merge, .. }, Record::Finished] = cluster.records() else {
        panic!("{:?}", cluster.records().last());
    };
    assert_eq!(merge.parts.len(), 7);
    let records = cluster.records().len();
    let (first, ..) = cluster.lease.unwrap();
    cluster.inject(ClusterFault::KillFragmentLeader(first));
    cluster.run_for(20_000);
    assert_eq!(cluster.records().len(), records, "nobody takes over what is over");
}

/// Goal: no round waits for a learner that left, not even the last one.
#[test]
fn round_does_not_wait_for_a_learner_that_left() {
    let mut cluster = Cluster::new(9, 1, 3, MILD);
    cluster.run_for(5_000);
    cluster.command(|commands| commands.is_ending = true);
    // The learner leaves before it is asked, without a message.
    let learner = &mut cluster.learners[0];
    let (id, before) = (learner.id, conn(learner.epoch));
    (learner.epoch, learner.gateway) = (learner.epoch + 1, None);
    // The last round begins while the gateway still counts the learner as connected. It would wait two seconds.
    cluster.run_for(700);
    let life = cluster.gateways[0].life;
    cluster.gateway_input(0, life, GatewayInput::Left(id, before));
    cluster.run_for(900);
    cluster.check().unwrap();
    let [.., Record::Merged { merge, .. }, Record::Finished] = cluster.records() else {
        panic!("it waits: {:?}", cluster.records().last());
    };
    assert_eq!(merge.parts.len(), 2);
}

/// Goal: a leader does not request a deleted state forever, but reads the tape again for the newest one.
#[test]
fn leader_reads_the_tape_again_if_a_state_is_deleted() {
    let mut cluster = Cluster::new(4, 1, 3, MILD);
    cluster.run_for(5_000);
    let records = cluster.records().to_vec();
    let seq = 1 + records.iter().rposition(|record| matches!(record, Record::Merged { .. })).unwrap() as u64;
    let mut leader = cluster.new_leader();
    let mut handle = |at: u64, input: LeaderInput| -> Vec<LeaderOutput> {
        leader.handle(Millis(at), input);
        std::iter::from_fn(|| leader.poll())
            .filter(|order| !matches!(order, LeaderOutput::Forget(_)))
            .collect()
    };
    assert_eq!(handle(0, LeaderInput::Leased(Millis(60_000))), [LeaderOutput::Read(0)]);
    assert_eq!(handle(10, LeaderInput::Records(0, records)), [LeaderOutput::Load(seq)]);
    assert_eq!(handle(400, LeaderInput::Tick), [LeaderOutput::Load(seq)], "there was no answer");
    assert_eq!(handle(500, LeaderInput::Loaded(seq, None)), []);
    assert_eq!(handle(600, LeaderInput::Tick), []);
    assert_eq!(handle(900, LeaderInput::Tick), [LeaderOutput::Read(0)]);
}

/// Goal: a leader that was paused beyond its lease, and believes that it still holds the lease, cannot append to the
/// tape.
#[test]
fn a_stale_owner_is_refused() {
    let mut cluster = Cluster::new(5, 2, 4, MILD);
    cluster.run_for(5_000);
    let (first, ..) = cluster.lease.unwrap();
    let took = |cluster: &Cluster| {
        let took = cluster.records().iter().filter_map(|record| match record {
            Record::Took(process) => Some(*process),
            _ => None,
        });
        took.collect::<Vec<_>>()
    };
    assert_eq!(took(&cluster).len(), 1);
    cluster.inject(ClusterFault::LateFragmentLeader(first, 60_000));
    cluster.run_for(500);
    cluster.inject(ClusterFault::PauseFragmentLeader(first, 6_000));
    cluster.run_for(20_000);
    cluster.check().unwrap();
    let processes = took(&cluster);
    assert_eq!(processes.len(), 2, "the other one took over, and the first one did not come back");
    assert_ne!(processes[0], processes[1]);
}

/// Goal: a gateway that is lost with all its learners delays no round. The other learners are merged as often as
/// before.
#[test]
fn lost_gateway_delays_no_round() {
    let mut cluster = Cluster::new(3, 2, 8, MILD);
    cluster.run_for(10_000);
    let before = cluster.versions();
    cluster.run_for(20_000);
    let usual = cluster.versions() - before;
    cluster.inject(ClusterFault::PauseGateway(0, 1_000_000));
    cluster.run_for(10_000);
    let before = cluster.versions();
    cluster.run_for(20_000);
    cluster.check().unwrap();
    let alone = cluster.versions() - before;
    assert!(10 * alone >= 9 * usual, "{usual} merges in 20 s with both, {alone} with one");
}

/// Goal: the same seed gives the same tape.
#[test]
fn one_seed_is_one_history() {
    let records = |seed| {
        let mut cluster = Cluster::new(seed, 3, 5, faults(seed));
        cluster.inject_random_faults(20, 20_000);
        cluster.run_for(25_000);
        cluster.records().to_vec()
    };
    assert!(records(3).len() > 5);
    assert_eq!(records(3), records(3));
}

/// Goal: a late acknowledgement of a record from an earlier term of a leader does not acknowledge the record that it
/// appends now.
#[test]
fn late_acknowledgement_does_not_acknowledge_a_later_record() {
    let mut leader = FragmentLeader::new(LeaderTerms { process: ProcessId(1), ..run(1).leader_terms });
    let mut handle = |input: LeaderInput| -> Vec<LeaderOutput> {
        leader.handle(Millis(5), input);
        std::iter::from_fn(|| leader.poll()).collect()
    };
    let took = |turn| vec![LeaderOutput::Append { turn, expect: 0, record: Record::Took(ProcessId(1)) }];
    let begun = || LeaderInput::Begun(run(1).initial);
    assert_eq!(handle(LeaderInput::Leased(Millis(10_000))), [LeaderOutput::Read(0)]);
    assert_eq!(handle(LeaderInput::Records(0, Vec::new())), [LeaderOutput::Begin]);
    assert_eq!(handle(begun()), took(1));
    assert_eq!(handle(LeaderInput::NotLeased), []);
    assert_eq!(handle(LeaderInput::Leased(Millis(10_000))), [LeaderOutput::Read(0)]);
    assert_eq!(handle(LeaderInput::Records(0, Vec::new())), [LeaderOutput::Begin]);
    assert_eq!(handle(begun()), took(2));
    assert_eq!(handle(LeaderInput::Appended { turn: 1, seq: 1 }), []);
    let ended = handle(LeaderInput::Appended { turn: 2, seq: 1 });
    assert_eq!(ended, [LeaderOutput::Tell(Notice::Ended(Round(1)))]);
}

/// Goal: a leader of a fragment without merges requests the initial state until it arrives, and accepts no other state
/// instead.
#[test]
fn leader_accepts_the_initial_state_only_on_request() {
    let mut leader = FragmentLeader::new(LeaderTerms { process: ProcessId(1), ..run(1).leader_terms });
    let mut handle = |at: u64, input: LeaderInput| -> Vec<LeaderOutput> {
        leader.handle(Millis(at), input);
        std::iter::from_fn(|| leader.poll()).collect()
    };
    let begun = || LeaderInput::Begun(run(1).initial);
    assert_eq!(handle(0, begun()), [], "it leads nothing");
    assert_eq!(handle(0, LeaderInput::Leased(Millis(10_000))), [LeaderOutput::Read(0)]);
    assert_eq!(handle(0, begun()), [], "it may be merged by now");
    assert_eq!(handle(0, LeaderInput::Records(0, vec![Record::Abandoned])), [LeaderOutput::Begin]);
    assert_eq!(handle(299, LeaderInput::Tick), []);
    assert_eq!(handle(300, LeaderInput::Tick), [LeaderOutput::Begin]);
    let short = FragmentState::new(vec![0.0]);
    assert_eq!(handle(301, LeaderInput::Begun(short)), [], "it is of another fragment");
    let later = FragmentState { version: Version(1), ..run(1).initial };
    assert_eq!(handle(301, LeaderInput::Begun(later)), [], "it is no beginning");
    let took = LeaderOutput::Append { turn: 1, expect: 1, record: Record::Took(ProcessId(1)) };
    assert_eq!(handle(302, begun()), [took]);
    assert_eq!(handle(303, begun()), []);
}

/// Goal: late messages about a closed connection do not affect the learner's next connection.
#[test]
fn late_messages_of_a_closed_connection_are_ignored() {
    let cluster = Cluster::new(1, 1, 1, MILD);
    let mut gateway = cluster.new_gateway(0);
    let mut handle = |input: GatewayInput| {
        gateway.handle(input);
        words(&mut gateway)
    };
    let (learner, older, newer) = (LearnerId(1), ConnId(1), ConnId(2));
    let update = |conn| answer(&cluster, learner, conn, Round(1));
    assert!(handle(GatewayInput::Came(learner, newer, None)).is_empty());
    let unsettled = UnresolvedUpdate { round: Round(1), serial: Serial(1) };
    assert!(handle(GatewayInput::Came(learner, older, Some(unsettled))).is_empty(), "nothing is open");
    assert!(handle(GatewayInput::Left(learner, older)).is_empty());
    let asked = handle(collect(Round(1), 0));
    assert!(matches!(asked[..], [GatewayOutput::Ask(_, conn, Round(1))] if conn == newer), "{asked:?}");
    assert!(handle(update(older)).is_empty());
    let offered = handle(update(newer));
    assert_eq!(offers(&offered), [vec![learner]]);
    let outputs = handle(GatewayInput::Records(0, vec![Record::Abandoned]));
    let is_receipt =
        |order: &GatewayOutput| matches!(order, GatewayOutput::Receipt(_, conn, _, None) if *conn == newer);
    assert!(outputs.len() == 1 && is_receipt(&outputs[0]), "{outputs:?}");
}

/// Goal: a sender gets the reason of a refusal after the round is over, and only for the update that was refused.
#[test]
fn sender_gets_the_refusal_reason_after_the_round() {
    let cluster = Cluster::new(1, 1, 1, MILD);
    let (learner, conn, round) = (LearnerId(1), ConnId(1), Round(1));
    let outputs = |refused: Serial, record: Record| {
        let mut gateway = cluster.new_gateway(0);
        gateway.handle(GatewayInput::Came(learner, conn, None));
        gateway.handle(collect(round, 0));
        gateway.handle(answer(&cluster, learner, conn, round));
        let refused = vec![(learner, refused, Refusal::Norm)];
        gateway.handle(GatewayInput::Notice(Notice::Refused { round, refused }));
        assert!(
            !words(&mut gateway).iter().any(|order| matches!(order, GatewayOutput::Refused(..))),
            "early"
        );
        gateway.handle(GatewayInput::Records(0, vec![record]));
        words(&mut gateway)
    };
    let found = outputs(Serial(1), Record::Abandoned);
    let is_refused =
        matches!(found[..], [GatewayOutput::Refused(LearnerId(1), ConnId(1), Serial(1), Refusal::Norm)]);
    assert!(is_refused, "{found:?}");
    let found = outputs(Serial(2), Record::Abandoned);
    assert!(
        matches!(found[..], [GatewayOutput::Receipt(_, _, Serial(1), None)]),
        "another one was: {found:?}"
    );
}

/// Goal: a gateway offers all updates that it has in one message. It offers them again only if the leader asks again
/// and lacks some.
#[test]
fn gateway_offers_all_updates_in_one_message() {
    let cluster = Cluster::new(1, 1, 1, MILD);
    let mut gateway = cluster.new_gateway(0);
    let crowd: Vec<LearnerId> = (1..=300).map(LearnerId).collect();
    let round = Round(1);
    for &learner in &crowd {
        gateway.handle(GatewayInput::Came(learner, ConnId(learner.0.into()), None));
    }
    gateway.handle(collect(round, 0));
    assert_eq!(words(&mut gateway).len(), crowd.len(), "all are asked");
    let (first, rest) = crowd.split_at(100);
    for part in [first, rest] {
        for &learner in part {
            gateway.handle(answer(&cluster, learner, ConnId(learner.0.into()), round));
        }
        assert_eq!(offers(&words(&mut gateway)), [part]);
    }
    let mut again = |heard| {
        gateway.handle(collect(round, heard));
        offers(&words(&mut gateway))
    };
    let none: [Vec<LearnerId>; 0] = [];
    assert_eq!(again(100), none, "the rest may be on its way");
    assert_eq!(again(299), [&crowd[..]], "one was lost");
    assert_eq!(again(300), none, "all are heard");
    gateway.handle(collect(Round(2), 0));
    assert_eq!(offers(&words(&mut gateway)), none, "they are of the round before");
}

/// Returns a gateway's messages except presence reports and learner activity.
fn words(gateway: &mut Gateway) -> Vec<GatewayOutput> {
    let is_word = |order: &GatewayOutput| {
        !matches!(order, GatewayOutput::Reply(Reply::Here { .. }) | GatewayOutput::Seen(..))
    };
    std::iter::from_fn(|| gateway.poll()).filter(is_word).collect()
}

/// Returns the learners in each message of offers.
fn offers(orders: &[GatewayOutput]) -> Vec<Vec<LearnerId>> {
    let offered = |order: &GatewayOutput| match order {
        GatewayOutput::Reply(Reply::Offers { offers, .. }) => {
            Some(offers.iter().map(|offer| offer.learner).collect())
        }
        _ => None,
    };
    orders.iter().filter_map(offered).collect()
}

fn collect(round: Round, heard: u32) -> GatewayInput {
    let heard = BTreeMap::from([(GatewayId(0), heard)]);
    GatewayInput::Notice(Notice::Collect { round, invited: None, heard })
}

fn answer(cluster: &Cluster, learner: LearnerId, conn: ConnId, round: Round) -> GatewayInput {
    let run = &cluster.run;
    let body = run.codec.encode(&run.segments, &vec![1e-3; run.fragments.len(P)]);
    let (id, serial, base, seen, checksum) = (RunId(1), Serial(1), Version(0), Vec::new(), checksum(&body));
    let update = Update { run: id, fragment: P, serial, base, steps: 10, tokens: 80, body, checksum, seen };
    GatewayInput::Update(learner, conn, round, run.verifier.verify(update), STANDING)
}
