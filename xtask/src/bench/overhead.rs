//! Cost of a part of the syncer. Runs with and without the part alternate, so that other load on the machine affects
//! both alike. A busy machine still disturbs the rates of merges and tokens. So the figures also have the syncer's
//! processor time per merge, and the share of time in which learners do not train.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::stats::quantile;
use super::testbed::{Kind, Programs, Slot, TINY, Testbed, number, words};
use super::{Args, judge};

/// Number of learners, one thread each.
const LEARNERS: usize = 2;
/// Number of pairs of runs.
const PAIRS: usize = 24;
/// Warm-up after all learners have joined.
const WARM: Duration = Duration::from_secs(3);
/// Length of the measurement.
const SPAN: Duration = Duration::from_secs(8);

/// Part of the syncer, and the flags that disable it.
pub struct SyncerFeature {
    name: &'static str,
    /// Flags of the syncer in both runs.
    always: &'static [&'static str],
    /// Flags of the syncer that disable the part.
    without: &'static [&'static str],
    /// Duty cycle of the learners.
    duty_cycle: f64,
    /// Limit of the share of merges that the part may cost.
    merges_max: f64,
    /// Limit of the share of tokens that the part may cost.
    tokens_max: f64,
}

/// The tape under its heaviest load: many merges of a few bodies each.
pub const TAPE: SyncerFeature = SyncerFeature {
    name: "tape",
    always: &["--sync-every", "8", "--fragments", "4", "--no-eval"],
    without: &["--without-tape-for-benchmarks"],
    duty_cycle: 1.0,
    merges_max: 0.03,
    tokens_max: 0.03,
};

/// Loss checks, free-rider detection and rollback. Learners leave one of two cores free, as if the syncer had its own
/// machine.
pub const TRUST: SyncerFeature = SyncerFeature {
    name: "trust",
    always: &["--sync-every", "8", "--fragments", "4"],
    without: &["--no-undo", "--checks", "0"],
    duty_cycle: 0.5,
    merges_max: 0.05,
    tokens_max: 0.02,
};

/// Results of one run. Merges and tokens are per second.
#[derive(Clone, Copy)]
struct RunRates {
    merges: f64,
    tokens: f64,
    /// Processor time of the syncer per merge, in milliseconds.
    cpu_ms: f64,
    /// Share of the learners' time without training.
    idle: f64,
}

impl fmt::Display for RunRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} merges of {:.2} ms and {:.0} tokens a second", self.merges, self.cpu_ms, self.tokens)
    }
}

/// Runs [`PAIRS`] pairs. The run with the part comes first in every other pair.
pub fn run(args: &Args, part: &SyncerFeature) -> Result<Value, String> {
    let programs = args.programs()?;
    let mut pairs = Vec::new();
    for pair in 0..PAIRS {
        let order = [pair % 2 == 0, pair % 2 == 1];
        let paces = [measure(&programs, part, order[0])?, measure(&programs, part, order[1])?];
        let [with, without] = if order[0] { paces } else { [paces[1], paces[0]] };
        println!("   pair {} of {PAIRS}: {with} with the {}, {without} without", pair + 1, part.name);
        pairs.push((with, without));
    }
    Ok(figures(part, &pairs))
}

/// Measures one run.
fn measure(programs: &Programs, part: &SyncerFeature, is_with: bool) -> Result<RunRates, String> {
    let without: &[&str] = if is_with { &[] } else { part.without };
    let mut testbed = Testbed::start(programs, part.name, TINY, &words(&[part.always, without].concat()))?;
    let slot = Slot { link: None, kind: Kind::with_duty_cycle(part.duty_cycle) };
    (0..LEARNERS).try_for_each(|_| testbed.add(slot.clone()))?;
    testbed.wait_for_all()?;
    thread::sleep(WARM);
    let (from, began, cpu_from) = (testbed.status()?, Instant::now(), testbed.syncer.cpu_ms());
    thread::sleep(SPAN);
    let (to, span_s, cpu_to) = (testbed.status()?, began.elapsed().as_secs_f64(), testbed.syncer.cpu_ms());
    let per_s = |path: &str| number(&to, path).saturating_sub(number(&from, path)) as f64 / span_s;
    let merges = per_s("/rounds");
    let cpu_ms = cpu_to.saturating_sub(cpu_from) as f64 / (merges * span_s).max(1.0);
    let idle = testbed.events().iter().map(|events| idle_share(events)).sum::<f64>() / LEARNERS as f64;
    Ok(RunRates { merges, tokens: per_s("/tokensTrained"), cpu_ms, idle })
}

/// Returns the share of time without training that a learner last reported.
fn idle_share(events: &[Value]) -> f64 {
    events.iter().rev().find_map(|event| event["syncRatio"].as_f64()).unwrap_or(0.0)
}

/// Returns the figures of runs with and without `part`, and whether they meet its limits. Each ratio is the median over
/// the pairs, with its quartiles.
fn figures(part: &SyncerFeature, pairs: &[(RunRates, RunRates)]) -> Value {
    let of = |figure: fn(&RunRates) -> f64| {
        let median = |values: Vec<f64>| quantile(&values, 0.5);
        let ratios: Vec<f64> = pairs.iter().map(|pair| figure(&pair.0) / figure(&pair.1)).collect();
        json!({
            "with": median(pairs.iter().map(|pair| figure(&pair.0)).collect()),
            "without": median(pairs.iter().map(|pair| figure(&pair.1)).collect()),
            "ratio": quantile(&ratios, 0.5),
            "low": quantile(&ratios, 0.25),
            "high": quantile(&ratios, 0.75),
        })
    };
    let (merges, tokens) = (of(|pace| pace.merges), of(|pace| pace.tokens));
    let is_met =
        |figure: &Value, share: f64| figure["ratio"].as_f64().is_some_and(|ratio| ratio > 1.0 - share);
    let limits = [
        ("merges_per_s", is_met(&merges, part.merges_max)),
        ("tokens_per_s", is_met(&tokens, part.tokens_max)),
    ];
    let figures = json!({
        "pairs": pairs.len(),
        "merges_per_s": merges,
        "tokens_per_s": tokens,
        "syncer_cpu_ms_per_merge": of(|pace| pace.cpu_ms),
        "learner_idle_share": of(|pace| pace.idle),
    });
    judge(figures, &limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_bind_for_merges_and_for_tokens() {
        let pair = |merges: f64, tokens: f64| {
            let pace = |merges, tokens| RunRates { merges, tokens, cpu_ms: 1.0, idle: 0.01 };
            (pace(10.0 * merges, 100.0 * tokens), pace(10.0, 100.0))
        };
        let missed = |merges, tokens| {
            figures(&TAPE, &[pair(0.5, 0.5), pair(merges, tokens), pair(1.5, 1.5)])["missed"].clone()
        };
        assert_eq!(missed(0.99, 0.98), Value::Null);
        assert_eq!(missed(0.96, 1.0), json!(["merges_per_s"]));
        assert_eq!(missed(1.0, 0.96), json!(["tokens_per_s"]));
        let figures = figures(&TAPE, &[pair(0.9, 1.0), pair(1.0, 1.0), pair(1.0, 1.0)]);
        assert_eq!(figures["merges_per_s"]["low"], json!(0.95));
    }
}
