//! A link without a world around it.

use super::*;

/// Returns an item with a number for identification.
fn freight(class: Class, bytes: u64, number: u64) -> Freight<u64> {
    Freight { class, bytes, conn: Some(ConnId(number)), carries: number, sight: None }
}

/// Sends everything queued. Returns number and arrival time of each, in sending order.
fn drain(lane: &mut Lane<u64>, mut now: Millis, rng: &mut Rng) -> Vec<(u64, u64)> {
    let mut sent = Vec::new();
    loop {
        let (passages, next) = lane.pump(now, rng);
        sent.extend(passages.into_iter().filter_map(|passage| match passage {
            Passage::Sent { arrives, carries } => Some((carries, arrives.0)),
            Passage::Began { .. } => None,
        }));
        match next {
            Some(at) => now = at,
            None => return sent,
        }
    }
}

fn lane(bytes_per_s: Option<u64>, jitter_ms: u64) -> Lane<u64> {
    Lane::new(LinkSpec { latency_ms: 10, jitter_ms, bytes_per_s, loss: 0.0 })
}

/// Goal: all traffic shares one rate; items sent together take as long as their sum.
#[test]
fn the_rate_is_shared() {
    let (mut lane, mut rng) = (lane(Some(1_000), 0), Rng::new(1));
    for (number, class) in [(1, Class::Bulk), (2, Class::Control), (3, Class::Http), (4, Class::Bulk)] {
        lane.take(freight(class, 500, number));
    }
    let last = drain(&mut lane, Millis(0), &mut rng).into_iter().map(|(_, at)| at).max();
    assert_eq!(last, Some(2_010));
}

/// Goal: a short message overtakes all queued parameters, but not the transmission in progress.
#[test]
fn control_goes_first_and_what_is_begun_is_finished() {
    let (mut lane, mut rng) = (lane(Some(1_000), 0), Rng::new(1));
    lane.take(freight(Class::Bulk, 100, 1));
    lane.take(freight(Class::Bulk, 100, 2));
    assert_eq!(lane.pump(Millis(0), &mut rng).1, Some(Millis(100)));
    lane.take(freight(Class::Control, 10, 3));
    assert_eq!((lane.waiting(), lane.waiting_bytes()), ((1, 1), 110));
    assert_eq!(drain(&mut lane, Millis(100), &mut rng), [(1, 110), (3, 120), (2, 220)]);
}

/// Goal: an HTTP response and the socket get half of the link each while both want it, in either order of arrival.
#[test]
fn http_shares_with_the_socket() {
    let (mut lane, mut rng) = (lane(Some(10_000), 0), Rng::new(1));
    lane.take(freight(Class::Http, 20_000, 0));
    for number in 1..=10 {
        lane.take(freight(Class::Bulk, 1_000, number));
    }
    let sent = drain(&mut lane, Millis(0), &mut rng);
    let socket = sent.iter().rfind(|(number, _)| *number > 0).expect("ten messages").1;
    // 10 kB of its own, and as much of HTTP.
    assert!((1_850..=2_150).contains(&socket), "{sent:?}");
    assert_eq!(sent.last(), Some(&(0, 3_010)));
}

/// Goal: jitter never reorders the messages of one connection, and a new connection does not wait for the old.
#[test]
fn messages_of_one_connection_stay_in_order() {
    let (mut lane, mut rng) = (lane(None, 50), Rng::new(3));
    let mut last = Millis(0);
    for number in 0..100 {
        lane.take(freight(if number % 2 == 0 { Class::Bulk } else { Class::Control }, 1, number));
        let (passages, next) = lane.pump(Millis(number), &mut rng);
        let ([Passage::Sent { arrives, .. }], None) = (&passages[..], next) else { panic!("{passages:?}") };
        assert!(*arrives >= last, "{arrives} after {last}");
        last = *arrives;
    }
    lane.arrived[0] = Millis(100_000);
    lane.begin_stream();
    lane.take(freight(Class::Control, 1, 0));
    assert!(drain(&mut lane, Millis(100), &mut rng)[0].1 <= 160);
}

/// Goal: traffic held up by a cut is sent after it, and arrives after it.
#[test]
fn nothing_arrives_in_the_past() {
    let (mut lane, mut rng) = (lane(Some(1_000), 0), Rng::new(1));
    lane.take(freight(Class::Bulk, 100, 1));
    lane.take(freight(Class::Bulk, 100, 2));
    lane.pump(Millis(0), &mut rng);
    assert_eq!(drain(&mut lane, Millis(5_000), &mut rng), [(1, 5_010), (2, 5_110)]);
}

#[test]
fn what_waits_of_a_connection_is_forgotten() {
    let mut rng = Rng::new(1);
    let mut lane = lane(Some(1_000), 0);
    for class in [Class::Bulk, Class::Bulk, Class::Control] {
        lane.take(freight(class, 100, 1));
    }
    lane.take(freight(Class::Bulk, 100, 2));
    lane.pump(Millis(0), &mut rng);
    lane.forget(ConnId(1), false);
    assert!(!lane.is_clear_of(ConnId(1)), "one is being sent");
    assert_eq!(drain(&mut lane, Millis(100), &mut rng), [(1, 110), (2, 210)]);
    lane.take(freight(Class::Control, 100, 1));
    lane.forget(ConnId(1), true);
    assert!(lane.is_clear_of(ConnId(1)) && drain(&mut lane, Millis(200), &mut rng).is_empty());
}

#[test]
fn what_is_lost_comes_later() {
    let spec = LinkSpec { latency_ms: 10, jitter_ms: 0, bytes_per_s: None, loss: 0.5 };
    let mut rng = Rng::new(1);
    let mut travel = |loss| LinkSpec { loss, ..spec }.travel_ms(&mut rng);
    let late: Vec<u64> = (0..1_000).map(|_| travel(0.5)).filter(|&ms| ms != 10).collect();
    assert!((450..550).contains(&late.len()), "{}", late.len());
    assert!(late.iter().all(|at| [210, 610, 1_410, 3_010, 6_210, 12_610].contains(at)), "{late:?}");
    assert_eq!(travel(1.0), 12_610, "in the end it comes");
    assert_eq!(travel(0.0), 10);
}
