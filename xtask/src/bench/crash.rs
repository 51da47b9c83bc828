//! Crash benchmark: kills a syncer repeatedly while learners train. It checks that no receipt is lost, that all
//! learners take part again soon, that none waits long for data, and that each keeps its share of all tokens.

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::receipts::ReceiptComparison;
use super::stats::{SplitMix64, largest, quantile, shares};
use super::testbed::{Slot, TINY, Testbed};
use super::{Args, judge};

/// Number of learners.
const LEARNERS: usize = 4;
/// Default number of kills.
const POINTS: u32 = 20;
/// Warm-up after all learners have joined. Tokens of this time are not measured, since the first steps are not typical.
const WARM: Duration = Duration::from_secs(10);
/// Time from the warm-up to the first kill. In it the syncer saves a snapshot with current leases.
const STEADY: Duration = Duration::from_secs(35);
/// Maximum random part of the delay from the return of all learners to the next kill, in milliseconds. The delay is
/// shorter than the time between two snapshots. So several kills in a row replay an ever longer tape, until a snapshot
/// is saved between two kills.
const GAP_MS: u64 = 3_000;
/// Fixed part of the delay, in milliseconds. Learners that are merged in it reconnect at once; others back off.
const GAP_MS_MIN: u64 = 1_000;
/// Limit of the median time from a kill until all learners take part again, in seconds.
const LIVE_S_MAX: f64 = 5.0;
/// Limit of the longest time that a learner waits for data, in seconds.
const STARVED_S_MAX: f64 = 2.0;
/// Limit of the longest time until a syncer answers again, in seconds.
const RECOVERY_S_MAX: f64 = 5.0;
/// Limit of the change in a learner's share of all tokens, from before the first kill to after it. Learners that share
/// two cores with other programs differ by a few hundredths anyway.
const SHARE_APART_MAX: f64 = 0.05;

/// One kill of the syncer. All times are in seconds.
struct SyncerKill {
    /// Time from the start of the syncer to the kill.
    lived_s: f64,
    /// Time from the kill until all learners took part in rounds again.
    live_s: f64,
    /// Time from the end of the syncer until the next one answered.
    recovery_s: f64,
    /// Largest total time that a learner had waited for data, up to the kill.
    starved_before_s: f64,
}

/// Report of a learner, which sends about one a second.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LearnerReport {
    /// Tokens trained so far.
    tokens: f64,
    /// Time spent waiting for data so far, in milliseconds.
    starved_ms: f64,
}

/// Complete record of the benchmark.
struct CrashRecord {
    kills: Vec<SyncerKill>,
    /// Reports of each learner, in order.
    reports: Vec<Vec<LearnerReport>>,
    /// Tokens of each learner after the warm-up and at the first kill.
    before: Vec<[f64; 2]>,
}

/// Kills the syncer repeatedly, at times drawn from the seed.
pub fn run(args: &Args) -> Result<Value, String> {
    let programs = args.programs()?;
    let points = args.points.unwrap_or(POINTS);
    let mut testbed = Testbed::start(&programs, "crash", TINY, &[])?;
    (0..LEARNERS).try_for_each(|_| testbed.add(Slot::default()))?;
    testbed.wait_for_all()?;
    thread::sleep(WARM);
    let warm = reports(&testbed);
    thread::sleep(STEADY);
    let before =
        warm.iter().zip(&reports(&testbed)).map(|(warm, first)| [tokens(warm), tokens(first)]).collect();
    let (mut kills, mut born, mut rng) = (Vec::new(), Instant::now(), SplitMix64(args.seed()));
    for number in 1..=points {
        thread::sleep(Duration::from_millis(GAP_MS_MIN + rng.below(GAP_MS)));
        let (killed, lived_s) = (Instant::now(), born.elapsed().as_secs_f64());
        let starved_before_s = longest_wait_s(&reports(&testbed));
        let recovery_s = testbed.restart_syncer()?.as_secs_f64();
        born = Instant::now();
        testbed.wait_for_all()?;
        let live_s = killed.elapsed().as_secs_f64();
        println!(
            "   kill {number} of {points}: answers after {recovery_s:.2} s, all learners live after {live_s:.2} s"
        );
        kills.push(SyncerKill { lived_s, live_s, recovery_s, starved_before_s });
    }
    // The last kill is observed a little longer.
    thread::sleep(Duration::from_millis(GAP_MS));
    testbed.check()?;
    let history = CrashRecord { kills, reports: reports(&testbed), before };
    Ok(figures(&history, &testbed.prove()?))
}

/// Returns the reports of each learner so far.
fn reports(testbed: &Testbed<'_>) -> Vec<Vec<LearnerReport>> {
    let number = |event: &Value, key: &str| event[key].as_f64().unwrap_or(0.0);
    let report = |event: &Value| LearnerReport {
        tokens: number(event, "tokensTrained"),
        starved_ms: number(event, "starvedMs"),
    };
    let reports = |events: &Vec<Value>| {
        events.iter().filter(|event| event["event"] == "progress").map(report).collect()
    };
    testbed.events().iter().map(reports).collect()
}

/// Returns the tokens that a learner has trained on.
fn tokens(reports: &[LearnerReport]) -> f64 {
    reports.last().map_or(0.0, |last| last.tokens)
}

/// Returns the largest total time that a learner has waited for data so far, in seconds.
fn longest_wait_s(reports: &[Vec<LearnerReport>]) -> f64 {
    largest(reports.iter().filter_map(|reports| reports.last()).map(|last| last.starved_ms / 1e3))
}

/// Returns the figures, and whether they meet the limits.
fn figures(CrashRecord { kills, reports, before }: &CrashRecord, proof: &ReceiptComparison) -> Value {
    let of = |time: fn(&SyncerKill) -> f64| kills.iter().map(time).collect::<Vec<_>>();
    let (recovery, live) = (of(|kill| kill.recovery_s), of(|kill| kill.live_s));
    let shares_before = shares(&before.iter().map(|[warm, first]| first - warm).collect::<Vec<_>>());
    let after = reports.iter().zip(before).map(|(reports, [_, first])| tokens(reports) - first);
    let shares_after = shares(&after.collect::<Vec<_>>());
    let starved: Vec<f64> = reports.iter().map(|reports| longest_starved_s(reports)).collect();
    let starved_max = largest(starved.iter().copied());
    let apart_max = largest(shares_before.iter().zip(&shares_after).map(|(a, b)| (a - b).abs()));
    let learner = |index: usize| {
        json!({
            "learner": index + 1,
            "longest_starved_s": starved[index],
            "share_before": shares_before[index],
            "share_after": shares_after[index],
        })
    };
    let next = kills.iter().skip(1).map(|kill| kill.starved_before_s).chain([longest_wait_s(reports)]);
    let kill = |(kill, next_s): (&SyncerKill, f64)| {
        json!({
            "lived_s": kill.lived_s,
            "live_again_s": kill.live_s,
            "recovery_s": kill.recovery_s,
            "starved_s": (next_s - kill.starved_before_s).max(0.0),
        })
    };
    let (live_p50, recovery_max) = (quantile(&live, 0.5), largest(recovery.iter().copied()));
    let mut figures = json!({
        "points": kills.len(),
        "recovery_s_p50": quantile(&recovery, 0.5),
        "recovery_s_max": recovery_max,
        "kills": kills.iter().zip(next).map(kill).collect::<Vec<_>>(),
        "learners": (0..reports.len()).map(learner).collect::<Vec<_>>(),
        "live_again_s_p50": live_p50,
        "live_again_s_max": largest(live),
        "share_spread": largest(shares_after.iter().copied()) - shares_after.iter().copied().fold(1.0, f64::min),
        "starved_s_max": starved_max,
        "share_apart_max": apart_max,
    });
    proof.add_to(&mut figures);
    let limits = [
        ("recovery_s_max", recovery_max < RECOVERY_S_MAX),
        ("live_again_s_p50", live_p50.is_none_or(|live_s| live_s <= LIVE_S_MAX)),
        ("starved_s_max", starved_max <= STARVED_S_MAX),
        ("share_apart_max", apart_max <= SHARE_APART_MAX),
    ];
    judge(figures, &[&proof.limits()[..], &limits].concat())
}

/// Returns the longest uninterrupted wait for data, in seconds: the growth of `starved_ms` over consecutive reports
/// with growth.
fn longest_starved_s(reports: &[LearnerReport]) -> f64 {
    let (mut longest_ms, mut stretch_ms) = (0.0_f64, 0.0);
    for pair in reports.windows(2) {
        let more_ms = pair[1].starved_ms - pair[0].starved_ms;
        stretch_ms = if more_ms > 0.0 { stretch_ms + more_ms } else { 0.0 };
        longest_ms = longest_ms.max(stretch_ms);
    }
    longest_ms / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(tokens: f64, starved_ms: f64) -> LearnerReport {
        LearnerReport { tokens, starved_ms }
    }

    const PROOF: ReceiptComparison = ReceiptComparison {
        acked: 9,
        acked_lost: 0,
        merges: 3,
        updates: 9,
        merged_twice: 0,
        ledger_exact: true,
    };

    fn kill(live_s: f64) -> SyncerKill {
        SyncerKill { lived_s: 9.0, recovery_s: 0.5 * live_s, live_s, starved_before_s: 0.1 }
    }

    #[test]
    fn the_longest_time_without_data_is_consecutive() {
        let starved_ms = [0.0, 900.0, 1_900.0, 1_900.0, 2_400.0, 2_400.0];
        assert_eq!(longest_starved_s(&starved_ms.map(|ms| report(1.0, ms))), 1.9);
        assert_eq!(longest_starved_s(&[]), 0.0);
    }

    #[test]
    fn each_limit_binds() {
        let good = || CrashRecord {
            kills: [1.0, 2.0, 9.0].map(kill).into(),
            reports: vec![vec![report(0.0, 0.0), report(300.0, 1_500.0)], vec![report(310.0, 0.0)]],
            before: vec![[100.0, 200.0], [110.0, 210.0]],
        };
        let missed = |change: fn(&mut CrashRecord, &mut ReceiptComparison)| {
            let (mut history, mut proof) = (good(), PROOF);
            change(&mut history, &mut proof);
            figures(&history, &proof)["missed"].clone()
        };
        assert_eq!(missed(|_, _| {}), Value::Null);
        assert_eq!(missed(|_, proof| proof.acked = 0), json!(["acked"]));
        assert_eq!(missed(|_, proof| proof.acked_lost = 1), json!(["acked_lost"]));
        assert_eq!(missed(|_, proof| proof.merged_twice = 1), json!(["merged_twice"]));
        assert_eq!(missed(|_, proof| proof.ledger_exact = false), json!(["ledger_exact"]));
        assert_eq!(missed(|history, _| history.kills[2].recovery_s = 5.0), json!(["recovery_s_max"]));
        assert_eq!(missed(|history, _| history.kills[1].live_s = 6.0), json!(["live_again_s_p50"]));
        assert_eq!(missed(|history, _| history.reports[0][1].starved_ms = 2_100.0), json!(["starved_s_max"]));
        assert_eq!(missed(|history, _| history.reports[1][0].tokens = 340.0), json!(["share_apart_max"]));
        let figures = figures(&good(), &PROOF);
        assert_eq!((&figures["live_again_s_p50"], &figures["recovery_s_max"]), (&json!(2.0), &json!(4.5)));
        assert_eq!(figures["kills"][2]["starved_s"], json!(1.4));
    }
}
