//! Peers that connect or send messages too often.

use super::*;
use crate::wire::Bye;

/// Goal: discarded identities are forgotten long before the ledger is full, with or without a lease. A merged learner
/// is not.
#[test]
fn thrown_away_identities_fill_no_books() {
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
    // Learners that vanish with a lease keep their place only until it expires.
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

/// Goal: a learner that floods the syncer with messages is sent away with a reason, and costs little until then.
#[test]
fn a_flood_of_messages_ends_in_a_typed_close() {
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
