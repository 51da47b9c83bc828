//! Single machines with scripted inputs.

use archipelago_core::cluster::{Reply, UnresolvedUpdate};
use archipelago_core::diloco::FragmentState;
use archipelago_core::wire::Refusal;

use super::*;

/// Goal: a late answer about a record that an owner appended before it took the fragment over again does not count for
/// the record that it appends now.
#[test]
fn late_word_of_one_record_is_no_word_of_the_next() {
    let mut owner = FragmentLeader::new(LeaderTerms { process: ProcessId(1), ..run(1).owner });
    let mut hear = |input: LeaderInput| -> Vec<LeaderOutput> {
        owner.handle(Millis(5), input);
        std::iter::from_fn(|| owner.poll()).collect()
    };
    let took = |turn| vec![LeaderOutput::Append { turn, expect: 0, record: Record::Took(ProcessId(1)) }];
    let begun = || LeaderInput::Begun(run(1).initial);
    assert_eq!(hear(LeaderInput::Leased(Millis(10_000))), [LeaderOutput::Read(0)]);
    assert_eq!(hear(LeaderInput::Records(0, Vec::new())), [LeaderOutput::Begin]);
    assert_eq!(hear(begun()), took(1));
    assert_eq!(hear(LeaderInput::NotLeased), []);
    assert_eq!(hear(LeaderInput::Leased(Millis(10_000))), [LeaderOutput::Read(0)]);
    assert_eq!(hear(LeaderInput::Records(0, Vec::new())), [LeaderOutput::Begin]);
    assert_eq!(hear(begun()), took(2));
    assert_eq!(hear(LeaderInput::Appended { turn: 1, seq: 1 }), []);
    let ended = hear(LeaderInput::Appended { turn: 2, seq: 1 });
    assert_eq!(ended, [LeaderOutput::Tell(Notice::Ended(Round(1)))]);
}

/// Goal: an owner requests the fragment's initial state while it leads and nothing is merged, until the state arrives;
/// no other input is taken for it.
#[test]
fn a_fragment_begins_once_it_is_asked_for() {
    let mut owner = FragmentLeader::new(LeaderTerms { process: ProcessId(1), ..run(1).owner });
    let mut hear = |at: u64, input: LeaderInput| -> Vec<LeaderOutput> {
        owner.handle(Millis(at), input);
        std::iter::from_fn(|| owner.poll()).collect()
    };
    let begun = || LeaderInput::Begun(run(1).initial);
    assert_eq!(hear(0, begun()), [], "it leads nothing");
    assert_eq!(hear(0, LeaderInput::Leased(Millis(10_000))), [LeaderOutput::Read(0)]);
    assert_eq!(hear(0, begun()), [], "it may be merged by now");
    assert_eq!(hear(0, LeaderInput::Records(0, vec![Record::Abandoned])), [LeaderOutput::Begin]);
    assert_eq!(hear(299, LeaderInput::Tick), []);
    assert_eq!(hear(300, LeaderInput::Tick), [LeaderOutput::Begin]);
    let short = FragmentState::new(vec![0.0]);
    assert_eq!(hear(301, LeaderInput::Begun(short)), [], "it is of another fragment");
    let later = FragmentState { version: Version(1), ..run(1).initial };
    assert_eq!(hear(301, LeaderInput::Begun(later)), [], "it is no beginning");
    let took = LeaderOutput::Append { turn: 1, expect: 1, record: Record::Took(ProcessId(1)) };
    assert_eq!(hear(302, begun()), [took]);
    assert_eq!(hear(303, begun()), []);
}

/// Goal: late messages about a closed connection do not affect the same learner's next connection.
#[test]
fn late_word_of_one_connection_is_no_word_of_the_next() {
    let cluster = Cluster::new(1, 1, 1, MILD);
    let mut gateway = cluster.gateway(0);
    let mut hear = |input: GatewayInput| {
        gateway.handle(input);
        words(&mut gateway)
    };
    let (learner, older, newer) = (LearnerId(1), ConnId(1), ConnId(2));
    let update = |conn| answer(&cluster, learner, conn, Round(1));
    assert!(hear(GatewayInput::Came(learner, newer, None)).is_empty());
    let unsettled = UnresolvedUpdate { round: Round(1), serial: Serial(1) };
    assert!(hear(GatewayInput::Came(learner, older, Some(unsettled))).is_empty(), "nothing is open");
    assert!(hear(GatewayInput::Left(learner, older)).is_empty());
    let asked = hear(collect(Round(1), 0));
    assert!(matches!(asked[..], [GatewayOutput::Ask(_, conn, Round(1))] if conn == newer), "{asked:?}");
    assert!(hear(update(older)).is_empty());
    let offered = hear(update(newer));
    assert_eq!(offers(&offered), [vec![learner]]);
    let told = hear(GatewayInput::Records(0, vec![Record::Abandoned]));
    let is_told =
        |order: &GatewayOutput| matches!(order, GatewayOutput::Receipt(_, conn, _, None) if *conn == newer);
    assert!(told.len() == 1 && is_told(&told[0]), "{told:?}");
}

/// Goal: a sender gets the reason of a refusal once the round is over, and no reason for any other update.
#[test]
fn what_is_wrong_with_an_update_is_told() {
    let cluster = Cluster::new(1, 1, 1, MILD);
    let (learner, conn, round) = (LearnerId(1), ConnId(1), Round(1));
    let told = |refused: Serial, record: Record| {
        let mut gateway = cluster.gateway(0);
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
    let found = told(Serial(1), Record::Abandoned);
    let is_refused =
        matches!(found[..], [GatewayOutput::Refused(LearnerId(1), ConnId(1), Serial(1), Refusal::Norm)]);
    assert!(is_refused, "{found:?}");
    let found = told(Serial(2), Record::Abandoned);
    assert!(
        matches!(found[..], [GatewayOutput::Receipt(_, _, Serial(1), None)]),
        "another one was: {found:?}"
    );
}

/// Goal: updates that arrive together are offered together, in any number. They are offered again only if the owner
/// asks again without having received all of them.
#[test]
fn what_comes_together_is_offered_at_once() {
    let cluster = Cluster::new(1, 1, 1, MILD);
    let mut gateway = cluster.gateway(0);
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

/// Returns a gateway's messages about rounds, without presence reports.
fn words(gateway: &mut Gateway) -> Vec<GatewayOutput> {
    let is_word = |order: &GatewayOutput| {
        !matches!(order, GatewayOutput::Reply(Reply::Here { .. }) | GatewayOutput::Seen(..))
    };
    std::iter::from_fn(|| gateway.poll()).filter(is_word).collect()
}

/// Returns the learners whose updates are offered, for each message.
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
