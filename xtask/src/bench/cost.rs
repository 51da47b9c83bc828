//! Cost of a part of the syncer. The benchmark alternates runs with and without the part, so that other load on the
//! machine affects both. A busy machine disturbs merges and tokens; so the figures also have the syncer's processor
//! time per merge, and the share of time in which learners do not train.

use std::ffi::OsString;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use archipelago_demo::Process;
use serde_json::{Value, json};

use super::processes::{Programs, all_live, empty_folder, number, status};

/// Number of learners under the syncer, one thread each.
const LEARNERS: usize = 2;
/// Number of pairs of runs.
const PAIRS: usize = 24;
/// Warm-up after all learners have joined.
const WARM: Duration = Duration::from_secs(3);
/// Length of the measurement.
const SPAN: Duration = Duration::from_secs(8);

/// Part of the syncer, and the flags that disable it.
pub struct Part {
    name: &'static str,
    /// Flags of the syncer in both runs.
    always: &'static [&'static str],
    /// Flags of the syncer that disable the part.
    without: &'static [&'static str],
    /// Flags of the learners.
    learners: &'static [&'static str],
    /// Limits: the largest share of merges and of tokens that the part may cost.
    merges_max: f64,
    tokens_max: f64,
}

/// The tape with many merges of a few bodies each, its heaviest load.
pub const TAPE: Part = Part {
    name: "tape",
    always: &["--sync-every", "8", "--fragments", "4", "--no-eval"],
    without: &["--without-tape-for-benchmarks"],
    learners: &[],
    merges_max: 0.03,
    tokens_max: 0.03,
};

/// Loss checks, free-rider detection and rollback. Learners leave one of two cores free, as if the syncer had its own
/// machine.
pub const TRUST: Part = Part {
    name: "trust",
    always: &["--sync-every", "8", "--fragments", "4"],
    without: &["--no-undo", "--checks", "0"],
    learners: &["--duty-cycle", "0.5"],
    merges_max: 0.05,
    tokens_max: 0.02,
};

/// Results of one run, per second.
#[derive(Clone, Copy)]
struct Pace {
    merges: f64,
    tokens: f64,
    /// Processor time of the syncer per merge, in milliseconds.
    cpu_ms: f64,
    /// Share of the learners' time without training.
    idle: f64,
}

impl fmt::Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} merges of {:.2} ms and {:.0} tokens a second", self.merges, self.cpu_ms, self.tokens)
    }
}

/// Runs [`PAIRS`] pairs. The run with the part comes first in every other pair.
///
/// # Errors
/// A message if a program could not be started, or ended.
pub fn run(programs: &Programs, part: &Part) -> Result<Value, String> {
    let mut pairs = Vec::new();
    for pair in 0..PAIRS {
        let order = [pair % 2 == 0, pair % 2 == 1];
        let paces = [measure(programs, part, order[0])?, measure(programs, part, order[1])?];
        let [with, without] = if order[0] { paces } else { [paces[1], paces[0]] };
        println!("   pair {} of {PAIRS}: {with} with the {}, {without} without", pair + 1, part.name);
        pairs.push((with, without));
    }
    Ok(figures(part, &pairs))
}

/// Measures one run, with its own files.
fn measure(programs: &Programs, part: &Part, is_with: bool) -> Result<Pace, String> {
    let folder = empty_folder(part.name)?;
    let without: &[&str] = if is_with { &[] } else { part.without };
    let flags: Vec<OsString> = part.always.iter().chain(without).map(OsString::from).collect();
    let (mut syncer, address) = programs.serve("tiny", "127.0.0.1:0", &folder, "syncer", &flags)?;
    let learners =
        (1..=LEARNERS).map(|n| programs.join(address, &folder, &format!("learner-{n}"), part.learners));
    let mut learners = learners.collect::<Result<Vec<_>, _>>()?;
    all_live(address, &mut syncer, LEARNERS).map_err(|error| last_words(&mut learners).unwrap_or(error))?;
    thread::sleep(WARM);
    let (from, began, cpu_from) = (status(address)?, Instant::now(), syncer.cpu_ms());
    thread::sleep(SPAN);
    let (to, span_s, cpu_to) = (status(address)?, began.elapsed().as_secs_f64(), syncer.cpu_ms());
    let a_second = |path: &str| number(&to, path).saturating_sub(number(&from, path)) as f64 / span_s;
    let merges = a_second("/rounds");
    let cpu_ms = (cpu_to.saturating_sub(cpu_from)) as f64 / (merges * span_s).max(1.0);
    let idle = learners.iter().map(idle_share).sum::<f64>() / LEARNERS as f64;
    Ok(Pace { merges, tokens: a_second("/tokensTrained"), cpu_ms, idle })
}

/// Returns the last output of a learner that has ended, if any has.
fn last_words(learners: &mut [Process]) -> Option<String> {
    let ended = learners.iter_mut().find_map(|learner| Some((learner.exit_code()?, learner.last_words())));
    ended.map(|(code, words)| format!("a learner ended with {code}: {words}"))
}

/// Returns the share of time without training that a learner last reported.
fn idle_share(learner: &Process) -> f64 {
    let lines = learner.stdout();
    let events = lines.iter().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut shares = events.filter_map(|event| event["syncRatio"].as_f64());
    shares.next().unwrap_or(0.0)
}

/// Returns the figures of pairs with and without `part`, compared with its limits. Each ratio is the median over the
/// pairs, with its quartiles.
fn figures(part: &Part, pairs: &[(Pace, Pace)]) -> Value {
    let of = |figure: fn(&Pace) -> f64| {
        let [with, without] = [0, 1].map(|i| {
            let chosen = pairs.iter().map(|pair| figure(if i == 0 { &pair.0 } else { &pair.1 }));
            quantile(chosen.collect(), 0.5)
        });
        let ratios: Vec<f64> = pairs.iter().map(|pair| figure(&pair.0) / figure(&pair.1)).collect();
        let [low, ratio, high] = [0.25, 0.5, 0.75].map(|q| quantile(ratios.clone(), q));
        (json!({ "with": with, "without": without, "ratio": ratio, "low": low, "high": high }), ratio)
    };
    let (merges, merges_ratio) = of(|pace| pace.merges);
    let (tokens, tokens_ratio) = of(|pace| pace.tokens);
    json!({
        "pairs": pairs.len(),
        "merges_per_s": merges,
        "tokens_per_s": tokens,
        "syncer_cpu_ms_per_merge": of(|pace| pace.cpu_ms).0,
        "learner_idle_share": of(|pace| pace.idle).0,
        "within": merges_ratio > 1.0 - part.merges_max && tokens_ratio > 1.0 - part.tokens_max,
    })
}

/// Returns the quantile `share` of `values`, with linear interpolation; 0 if there are no values.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = share * values.len().saturating_sub(1) as f64;
    // The cast drops the fraction.
    let below = at as usize;
    let value = |i: usize| values.get(i).or(values.last()).copied().unwrap_or(0.0);
    value(below) + (at - below as f64) * (value(below + 1) - value(below))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_binds_for_merges_and_for_tokens() {
        let pair = |merges: f64, tokens: f64| {
            let pace = |merges, tokens| Pace { merges, tokens, cpu_ms: 1.0, idle: 0.01 };
            (pace(10.0 * merges, 100.0 * tokens), pace(10.0, 100.0))
        };
        let within = |merges, tokens| {
            let pairs = [pair(0.5, 0.5), pair(merges, tokens), pair(1.5, 1.5)];
            figures(&TAPE, &pairs)["within"].as_bool().unwrap()
        };
        assert!(within(0.99, 0.98));
        assert!(!within(0.96, 1.0));
        assert!(!within(1.0, 0.96));
        let figures = figures(&TAPE, &[pair(0.9, 1.0), pair(1.0, 1.0), pair(1.0, 1.0)]);
        assert_eq!(figures["merges_per_s"]["low"], json!(0.95));
    }
}
