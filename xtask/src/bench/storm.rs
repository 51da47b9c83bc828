//! Storm benchmark: a run under faults, compared with the same run without faults. Learners are killed, frozen, cut
//! off, moved far away, or put behind slow and lossy links, and the syncer is killed too.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use archipelago_link_emulator::LinkConditions;
use serde_json::{Value, json};

use super::receipts::ReceiptComparison;
use super::stats::{SplitMix64, quantile};
use super::testbed::{Kind, Programs, Slot, TINY, Testbed, learner_name, number, words};
use super::{Args, judge};

/// Default number of learners of each run.
const LEARNERS: usize = 32;
/// Default length of each of the two runs in minutes.
const MINUTES: u32 = 8;
/// Cores used by all learners together. On two cores this leaves some time free. Without free time, the other learners
/// would speed up when one fails, and its lost tokens would not show.
const CORES: f64 = 1.2;
/// Round trip of all learners to the syncer: two places in one country.
const ROUND_TRIP: Duration = Duration::from_millis(20);
/// Warm-up after all learners take part. The first merges are not typical.
const WARM: Duration = Duration::from_secs(20);
/// Interval at which faults start and end, and their effect is observed.
const TICK: Duration = Duration::from_millis(100);
/// Flags of the syncers. The learning-rate schedule has more tokens than any of these runs merges.
const FLAGS: [&str; 6] = ["--total-tokens", "400000000", "--eval-every", "10s", "--keep", "4GiB"];

/// Mean time between two faults in milliseconds: 180 faults an hour.
const GAP_MS: u64 = 20_000;
/// Time before the end in which no fault starts, in milliseconds, so that the recovery from each fault is observed.
const CALM_MS: u64 = 40_000;
/// Minimum duration of a fault, and the maximum of the random part added to it, in milliseconds.
const LASTS_MS: [u64; 2] = [2_000, 18_000];
/// Time without faults for a learner after a fault.
const REST: Duration = Duration::from_secs(20);

/// Minimum number of faults an hour.
const FAULTS_PER_HOUR_MIN: f64 = 125.0;
/// Minimum ratio of merged tokens to those of the fault-free run.
const MERGED_RATIO_MIN: f64 = 0.977;
/// Minimum ratio of merged to trained tokens.
const PARTICIPATION_MIN: f64 = 0.95;
/// Maximum of the median time from the end of a fault to the next merged update, in seconds.
const REJOIN_S_MAX: f64 = 5.0;
/// Maximum ratio of the held-out loss to that of the fault-free run at equal merged tokens.
const LOSS_RATIO_MAX: f64 = 1.01;

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq)]
enum FaultKind {
    /// A learner is killed (SIGKILL), and restarted at the end.
    Killed,
    /// A learner is stopped (SIGSTOP), and continues at the end.
    Frozen,
    /// A learner's link has these conditions until the end.
    Link(&'static str, LinkConditions),
    /// The syncer is killed (SIGKILL), and restarted at once.
    Syncer,
}

impl FaultKind {
    /// Returns the name of the fault in tables.
    fn name(&self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Frozen => "frozen",
            Self::Link(name, _) => name,
            Self::Syncer => "syncer killed",
        }
    }
}

/// All kinds, in the order in which a storm uses them. After the last one, the order repeats.
const KINDS: [FaultKind; 8] = [
    FaultKind::Killed,
    FaultKind::Link("cut off", LinkConditions { cut: true, ..LinkConditions::FAIR }),
    FaultKind::Frozen,
    FaultKind::Link("far away", LinkConditions { delay: Duration::from_millis(150), ..LinkConditions::FAIR }),
    FaultKind::Syncer,
    FaultKind::Killed,
    FaultKind::Link("thin line", LinkConditions { mbit_per_s: Some(1.0), ..LinkConditions::FAIR }),
    FaultKind::Link("lossy line", LinkConditions { lost: 0.03, ..LinkConditions::FAIR }),
];

/// Fault of a plan. Times are relative to the time when all learners took part.
#[derive(Clone, Debug, PartialEq)]
struct ScheduledFault {
    kind: FaultKind,
    /// Index of the affected learner; unused for [`FaultKind::Syncer`].
    learner: usize,
    from: Duration,
    /// End of the cause.
    until: Duration,
}

impl ScheduledFault {
    /// Returns true if the fault affects this learner alone.
    fn affects(&self, learner: usize) -> bool {
        self.kind != FaultKind::Syncer && self.learner == learner
    }
}

/// Returns the faults of a run of `length` with `learners` learners, as a function of the seed.
fn plan(seed: u64, learners: usize, length: Duration) -> Vec<ScheduledFault> {
    let (mut rng, mut faults) = (SplitMix64(seed), Vec::<ScheduledFault>::new());
    let end_ms = (length.as_millis() as u64).saturating_sub(CALM_MS);
    let mut at_ms = GAP_MS / 2;
    for kind in KINDS.into_iter().cycle() {
        if at_ms >= end_ms {
            break;
        }
        let from = Duration::from_millis(at_ms);
        let lasts_ms = if kind == FaultKind::Syncer { 0 } else { LASTS_MS[0] + rng.below(LASTS_MS[1]) };
        let is_free = |&learner: &usize| {
            !faults.iter().any(|fault| fault.affects(learner) && fault.until + REST > from)
        };
        let first = rng.below(learners as u64) as usize;
        let learner = (0..learners).map(|more| (first + more) % learners).find(is_free);
        // With few learners all of them may have had a fault recently; then this fault is skipped.
        if let Some(learner) = learner {
            faults.push(ScheduledFault {
                kind,
                learner,
                from,
                until: from + Duration::from_millis(lasts_ms),
            });
        }
        at_ms += GAP_MS / 2 + rng.below(GAP_MS);
    }
    faults
}

/// Results of one run.
struct StormResult {
    /// Tokens merged and trained after the warm-up.
    merged: f64,
    trained: f64,
    /// Merged tokens and held-out loss, in order.
    losses: Vec<(f64, f64)>,
    /// For each fault in order, the seconds from the end of its cause until the affected learners are merged again;
    /// `None` if that was never seen.
    rejoins_s: Vec<Option<f64>>,
    proof: ReceiptComparison,
}

/// Runs the preset `tiny` twice: without faults, and under faults drawn from the seed.
pub fn run(args: &Args) -> Result<Value, String> {
    let programs = args.programs()?;
    let learners = args.islands.map_or(LEARNERS, usize::from);
    let length = Duration::from_secs(60 * u64::from(args.minutes.unwrap_or(MINUTES)));
    println!("   without faults: {learners} learners, {} s", length.as_secs());
    let calm = measure(&programs, learners, length, &[])?;
    let faults = plan(args.seed(), learners, length);
    println!("   storm: {} faults", faults.len());
    let storm = measure(&programs, learners, length, &faults)?;
    Ok(figures(&faults, length, &calm, &storm))
}

/// Runs `learners` learners for `length` under `faults`.
fn measure(
    programs: &Programs,
    learners: usize,
    length: Duration,
    faults: &[ScheduledFault],
) -> Result<StormResult, String> {
    let kind = Kind::with_duty_cycle(CORES / learners as f64);
    let slot = Slot { link: Some((None, ROUND_TRIP)), kind };
    let mut testbed = Testbed::start(programs, "storm", TINY, &words(&FLAGS))?;
    (0..learners).try_for_each(|_| testbed.add(slot.clone()))?;
    testbed.wait_for_all()?;
    thread::sleep(WARM);
    let first = testbed.status()?;
    let mut watch =
        Watch { states: vec![FaultProgress::Pending; faults.len()], faults, start: Instant::now() };
    while watch.start.elapsed() < length {
        watch.act(&mut testbed)?;
        watch.observe(&testbed)?;
        testbed.check()?;
        thread::sleep(TICK);
    }
    let (last, series) = (testbed.status()?, testbed.get("/v1/series")?);
    let grown = |path: &str| number(&last, path).saturating_sub(number(&first, path)) as f64;
    let point = |one: &Value| Some((one["tokensMerged"].as_f64()?, one["loss"].as_f64()?));
    Ok(StormResult {
        merged: grown("/tokensMerged"),
        trained: grown("/tokensTrained"),
        losses: series["evaluations"].as_array().into_iter().flatten().filter_map(point).collect(),
        rejoins_s: watch.states.iter().map(FaultProgress::rejoin_s).collect(),
        proof: testbed.prove()?,
    })
}

/// Progress of a fault.
#[derive(Clone)]
enum FaultProgress {
    Pending,
    Active,
    /// End of the cause, and the number of merged updates of each affected learner at that time.
    Over(Duration, BTreeMap<String, u64>),
    /// Time from the end of the cause until all affected learners were merged again.
    Recovered(Duration),
}

impl FaultProgress {
    fn rejoin_s(&self) -> Option<f64> {
        match self {
            Self::Recovered(after) => Some(after.as_secs_f64()),
            _ => None,
        }
    }
}

/// Observer of a run under faults.
struct Watch<'a> {
    faults: &'a [ScheduledFault],
    states: Vec<FaultProgress>,
    start: Instant,
}

impl Watch<'_> {
    /// Starts and ends due faults.
    fn act(&mut self, testbed: &mut Testbed<'_>) -> Result<(), String> {
        for (at, fault) in self.faults.iter().enumerate() {
            if matches!(self.states[at], FaultProgress::Pending) && self.start.elapsed() >= fault.from {
                let name =
                    if fault.kind == FaultKind::Syncer { String::new() } else { learner_name(fault.learner) };
                println!("   {:>4} s: {name} {}", fault.from.as_secs(), fault.kind.name());
                match fault.kind {
                    FaultKind::Killed => testbed.kill_learner(fault.learner),
                    FaultKind::Frozen => testbed.freeze(fault.learner, true)?,
                    FaultKind::Link(_, conditions) => testbed.set_link(fault.learner, conditions),
                    FaultKind::Syncer => {}
                }
                self.states[at] = FaultProgress::Active;
            }
            if matches!(self.states[at], FaultProgress::Active) && self.start.elapsed() >= fault.until {
                match fault.kind {
                    FaultKind::Killed => testbed.start_learner(fault.learner)?,
                    FaultKind::Frozen => testbed.freeze(fault.learner, false)?,
                    FaultKind::Link(..) => testbed.set_link(fault.learner, LinkConditions::FAIR),
                    FaultKind::Syncer => drop(testbed.restart_syncer()?),
                }
                let ended = self.start.elapsed();
                let mut merged = merged(&testbed.rows()?);
                merged.retain(|name, _| match fault.kind {
                    // Learners with a fault of their own are left out.
                    FaultKind::Syncer => !self.is_affected(name),
                    _ => *name == learner_name(fault.learner),
                });
                self.states[at] = FaultProgress::Over(ended, merged);
            }
        }
        Ok(())
    }

    /// Marks the faults whose learners have merged updates again.
    fn observe(&mut self, testbed: &Testbed<'_>) -> Result<(), String> {
        if !self.states.iter().any(|state| matches!(state, FaultProgress::Over(..))) {
            return Ok(());
        }
        let now = merged(&testbed.rows()?);
        for at in 0..self.states.len() {
            let FaultProgress::Over(ended, before) = &self.states[at] else { continue };
            let is_merged = |name: &String, count: &u64| now.get(name).is_some_and(|now| now > count);
            let is_excused =
                |name: &String| self.faults[at].kind == FaultKind::Syncer && self.is_affected(name);
            if before.iter().all(|(name, count)| is_merged(name, count) || is_excused(name)) {
                self.states[at] = FaultProgress::Recovered(self.start.elapsed().saturating_sub(*ended));
            }
        }
        Ok(())
    }

    /// Returns true if learner `name` suffers from its own fault, or still recovers from it.
    fn is_affected(&self, name: &str) -> bool {
        self.faults.iter().zip(&self.states).any(|(fault, state)| {
            let suffers = matches!(state, FaultProgress::Active | FaultProgress::Over(..));
            suffers && fault.kind != FaultKind::Syncer && learner_name(fault.learner) == name
        })
    }
}

/// Returns the number of merged updates of each learner.
fn merged(rows: &[Value]) -> BTreeMap<String, u64> {
    let row = |row: &Value| Some((row["name"].as_str()?.to_owned(), number(row, "/fates/merged")));
    rows.iter().filter_map(row).collect()
}

/// Returns the figures of both runs, and whether they meet the limits.
fn figures(faults: &[ScheduledFault], length: Duration, calm: &StormResult, storm: &StormResult) -> Value {
    let faults_per_hour = faults.len() as f64 / (length.as_secs_f64() / 3_600.0);
    let rejoins: Vec<f64> = storm.rejoins_s.iter().copied().flatten().collect();
    let never = storm.rejoins_s.len() - rejoins.len();
    let (merged_ratio, participation) = (storm.merged / calm.merged, storm.merged / storm.trained);
    let (rejoin_p50, loss_ratio) = (quantile(&rejoins, 0.5), loss_ratio(&calm.losses, &storm.losses));
    let row = |(fault, rejoin): (&ScheduledFault, &Option<f64>)| {
        json!({
            "at_s": fault.from.as_secs_f64(),
            "learner": (fault.kind != FaultKind::Syncer).then_some(fault.learner + 1),
            "kind": fault.kind.name(),
            "lasts_s": (fault.until - fault.from).as_secs_f64(),
            "rejoin_s": rejoin,
        })
    };
    let mut figures = json!({
        "seconds": length.as_secs(),
        "faults": faults.iter().zip(&storm.rejoins_s).map(row).collect::<Vec<_>>(),
        "faults_per_hour": faults_per_hour,
        "merged_ratio": merged_ratio,
        "participation": participation,
        "participation_fair": calm.merged / calm.trained,
        "rejoin_s_p50": rejoin_p50,
        "rejoin_s_p99": quantile(&rejoins, 0.99),
        "never_rejoined": never,
        "val_loss_ratio": loss_ratio,
    });
    storm.proof.add_to(&mut figures);
    let limits = [
        ("faults_per_hour", faults_per_hour >= FAULTS_PER_HOUR_MIN),
        ("merged_ratio", merged_ratio >= MERGED_RATIO_MIN),
        ("participation", participation >= PARTICIPATION_MIN),
        ("never_rejoined", never == 0),
        ("rejoin_s_p50", rejoin_p50.is_some_and(|rejoin_s| rejoin_s < REJOIN_S_MAX)),
        ("val_loss_ratio", loss_ratio.is_some_and(|ratio| ratio <= LOSS_RATIO_MAX)),
    ];
    judge(figures, &[&storm.proof.limits()[..], &limits].concat())
}

/// Returns the ratio of the losses with and without faults at equal merged tokens, at the last common measurement.
fn loss_ratio(calm: &[(f64, f64)], storm: &[(f64, f64)]) -> Option<f64> {
    storm.iter().rev().find_map(|(tokens, loss)| loss_at(calm, *tokens).map(|other| loss / other))
}

/// Returns the loss after `tokens`, linearly interpolated between two measurements; `None` outside of them.
fn loss_at(losses: &[(f64, f64)], tokens: f64) -> Option<f64> {
    let pair = losses.windows(2).find(|pair| pair[0].0 <= tokens && tokens <= pair[1].0)?;
    let [(before, high), (after, low)] = *pair else { return None };
    let share = if after > before { (tokens - before) / (after - before) } else { 0.0 };
    Some(high + share * (low - high))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(480);

    fn outcome(merged: f64, rejoin_s: Option<f64>, faults: usize) -> StormResult {
        StormResult {
            merged,
            trained: 1_010.0,
            losses: vec![(0.0, 5.0), (500.0, 3.0), (1_000.0, 2.0)],
            rejoins_s: vec![rejoin_s; faults],
            proof: ReceiptComparison { acked: 9, ledger_exact: true, ..ReceiptComparison::default() },
        }
    }

    #[test]
    fn each_limit_binds() {
        let faults = plan(1, 32, LENGTH);
        let missed = |change: fn(&mut StormResult)| {
            let mut storm = outcome(990.0, Some(2.0), faults.len());
            change(&mut storm);
            figures(&faults, LENGTH, &outcome(1_000.0, None, 0), &storm)["missed"].clone()
        };
        assert_eq!(missed(|_| {}), Value::Null);
        assert_eq!(missed(|storm| storm.merged = 970.0), json!(["merged_ratio"]));
        assert_eq!(missed(|storm| storm.trained = 1_100.0), json!(["participation"]));
        assert_eq!(missed(|storm| storm.rejoins_s[0] = None), json!(["never_rejoined"]));
        assert_eq!(missed(|storm| storm.rejoins_s.fill(Some(6.0))), json!(["rejoin_s_p50"]));
        assert_eq!(missed(|storm| storm.proof.acked_lost = 1), json!(["acked_lost"]));
        assert_eq!(missed(|storm| storm.losses[2].1 = 2.1), json!(["val_loss_ratio"]));
        let few = &faults[..16];
        let storm = outcome(990.0, Some(2.0), few.len());
        let figures = figures(few, LENGTH, &outcome(1_000.0, None, 0), &storm);
        assert_eq!((&figures["missed"], &figures["within"]), (&json!(["faults_per_hour"]), &json!(false)));
    }

    #[test]
    fn losses_are_compared_at_equal_tokens() {
        let calm = [(0.0, 5.0), (500.0, 3.0), (1_000.0, 2.0)];
        assert_eq!(loss_ratio(&calm, &[(750.0, 2.5), (1_200.0, 1.0)]), Some(1.0));
        assert_eq!(loss_ratio(&calm, &[(1_200.0, 1.0)]), None);
    }

    #[test]
    fn a_plan_follows_from_its_seed() {
        assert_eq!(plan(3, 32, LENGTH), plan(3, 32, LENGTH));
        assert_ne!(plan(3, 32, LENGTH), plan(4, 32, LENGTH));
    }

    #[test]
    fn every_kind_occurs_and_no_learner_has_two_faults_at_once() {
        for seed in 0..20 {
            let faults = plan(seed, 32, LENGTH);
            // The limit is 125 an hour.
            assert!(faults.len() >= 17, "{}", faults.len());
            for kind in KINDS {
                assert!(faults.iter().any(|fault| fault.kind == kind), "{}", kind.name());
            }
            for (at, fault) in faults.iter().enumerate() {
                assert!(fault.until + Duration::from_secs(20) <= LENGTH);
                let same =
                    |other: &&ScheduledFault| fault.kind != FaultKind::Syncer && other.affects(fault.learner);
                assert!(faults[at + 1..].iter().filter(same).all(|later| later.from >= fault.until));
            }
        }
    }
}
