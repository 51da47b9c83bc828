//! Soak benchmark: a run of light learners for an hour or more, whose syncer is killed every 20 minutes. It shows
//! growth over time of memory, files, threads, and the tape on disk.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::receipts::{PrunedTapeComparison, compare_with_kept};
use super::testbed::{Kind, Slot, TINY, Testbed, Usage, number, words};
use super::{Args, judge};

/// Default length in minutes.
const MINUTES: u32 = 60;
const LEARNERS: usize = 3;
/// Duty cycle of each learner: enough for thousands of merges between two kills.
const DUTY_CYCLE: f64 = 0.15;
/// Maximum bytes of updates kept for replay. The value is small, so that the syncer removes many updates within the
/// hour.
const KEEP_BYTES: u64 = 16 << 20;
/// Time between two kills of the syncer.
const KILL_EVERY: Duration = Duration::from_secs(1_200);
/// Time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_secs(10);
/// Time without kills at the end, so that the end is like the beginning.
const CALM: Duration = Duration::from_secs(120);
/// Number of merges after the start of a program, during which it still fills its buffers and histories.
const WARM_MERGES: u64 = 2_500;
/// Limit of the memory growth, in KiB a minute. It equals 30 MiB a day, which is less than the noise of the samples.
const SLOPE_KIB_MAX: f64 = 21.0;
/// Seconds between two snapshots, as in the syncer.
const SNAPSHOT_S: f64 = 30.0;
/// Maximum bytes of a segment of the tape's bodies, as in the syncer.
const SEGMENT_BYTES: u64 = 64 << 20;
/// Bytes of a row of the tape (see `TAPE.md`), with the index and partly filled pages.
const ROW_BYTES: u64 = 800;

/// Resources at one time.
#[derive(Clone, Debug, Default)]
struct Sample {
    /// Time since the start, in seconds.
    at_s: f64,
    syncer: Usage,
    /// Maximum over all learners, for each resource separately.
    learner: Usage,
    /// Size of all files of the run, in bytes.
    disk_bytes: u64,
    /// Bytes of updates received since the start of this syncer.
    bytes_up: u64,
    /// Merges of the run so far.
    merges: u64,
    /// Number of syncer processes so far, from 1.
    life: u32,
}

/// Complete record of the benchmark.
struct SoakRecord {
    samples: Vec<Sample>,
    params: u64,
    merges: u64,
    kept: PrunedTapeComparison,
}

/// Runs learners of the preset `tiny`.
pub fn run(args: &Args) -> Result<Value, String> {
    let programs = args.programs()?;
    let length = Duration::from_secs(60 * u64::from(args.minutes.unwrap_or(MINUTES)));
    let flags = words(&["--keep", &KEEP_BYTES.to_string(), "--total-tokens", "400000000"]);
    let mut testbed = Testbed::start(&programs, "soak", TINY, &flags)?;
    let slot = Slot { link: None, kind: Kind::with_duty_cycle(DUTY_CYCLE) };
    (0..LEARNERS).try_for_each(|_| testbed.add(slot.clone()))?;
    testbed.wait_for_all()?;
    let (began, mut killed, mut samples) = (Instant::now(), Instant::now(), Vec::new());
    while began.elapsed() < length {
        thread::sleep(SAMPLE_EVERY);
        if killed.elapsed() >= KILL_EVERY && began.elapsed() + CALM < length {
            testbed.restart_syncer()?;
            testbed.wait_for_all()?;
            killed = Instant::now();
            println!(
                "   {:>4} s: syncer killed and restarted, all learners live again",
                began.elapsed().as_secs()
            );
        }
        let sample = sample(&testbed, began)?;
        // Every sample is printed, so that the time of a growth is visible.
        println!(
            "   {:>5.0} s: syncer {} KiB, learner {} KiB, disk {} KiB",
            sample.at_s,
            sample.syncer.rss_bytes >> 10,
            sample.learner.rss_bytes >> 10,
            sample.disk_bytes >> 10
        );
        samples.push(sample);
        testbed.check()?;
    }
    let last = testbed.status()?;
    let (receipts, replay) = testbed.end()?;
    let kept = compare_with_kept(&receipts, &replay);
    Ok(figures(&SoakRecord {
        samples,
        params: number(&last, "/params"),
        merges: number(&last, "/rounds"),
        kept,
    }))
}

fn sample(testbed: &Testbed<'_>, began: Instant) -> Result<Sample, String> {
    let (status, (syncer, learner)) = (testbed.status()?, testbed.usage());
    Ok(Sample {
        at_s: began.elapsed().as_secs_f64(),
        syncer,
        learner,
        disk_bytes: disk_bytes(&testbed.folder.join("store")),
        bytes_up: number(&status, "/bytesUp"),
        merges: number(&status, "/rounds"),
        life: testbed.lives,
    })
}

/// Returns the size of all files below `folder`. Files that disappear meanwhile count as 0.
fn disk_bytes(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(data) if data.is_dir() => disk_bytes(&entry.path()),
        Ok(data) => data.len(),
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}

/// Returns the figures, and whether they meet the limits.
fn figures(record: &SoakRecord) -> Value {
    let SoakRecord { samples, kept, .. } = record;
    let (syncer, learner) =
        (|sample: &Sample| sample.syncer.rss_bytes, |sample: &Sample| sample.learner.rss_bytes);
    // A restarted syncer starts with fresh memory, so the growth is measured within each life. Learners are not
    // restarted.
    let of_syncer = within_lives(samples, |sample| sample.life, syncer);
    let of_learner = within_lives(samples, |_| 1, learner);
    let (slope_syncer, slope_learner) = (slope_kib_per_min(&of_syncer), slope_kib_per_min(&of_learner));
    let warm: Vec<&Sample> = samples.iter().filter(|sample| sample.merges >= WARM_MERGES).collect();
    let first = |part: fn(&Sample) -> u64| warm.first().map_or(0, |sample| part(sample));
    let last = |part: fn(&Sample) -> u64| warm.last().map_or(0, |sample| part(sample));
    let (disk_bytes_max, formula) =
        (samples.iter().map(|sample| sample.disk_bytes).max().unwrap_or(0), formula_bytes(record));
    let most =
        samples.iter().flat_map(|sample| [sample.syncer, sample.learner]).fold(Usage::default(), Usage::max);
    let figures = json!({
        "minutes": samples.last().map_or(0.0, |sample| sample.at_s) / 60.0,
        "restarts": samples.last().map_or(0, |sample| sample.life.saturating_sub(1)),
        "merges": record.merges,
        "acked": kept.acked,
        "acked_lost": kept.acked_lost,
        "looks_warm": of_syncer.len(),
        "rss_syncer_start": first(syncer),
        "rss_syncer_end": last(syncer),
        "rss_syncer_slope_kib_per_min": slope_syncer,
        "rss_learner_start": first(learner),
        "rss_learner_end": last(learner),
        "rss_learner_slope_kib_per_min": slope_learner,
        "disk_bytes_max": disk_bytes_max,
        "disk_bytes_end": last(|sample| sample.disk_bytes),
        "disk_formula_bytes": formula,
        "fd_max": most.files,
        "threads_max": most.threads,
    });
    let limits = [
        ("acked", kept.acked > 0),
        ("acked_lost", kept.acked_lost == 0),
        // Without samples after the warm-up the growth is unknown.
        ("looks_warm", !of_syncer.is_empty()),
        ("rss_syncer_slope_kib_per_min", slope_syncer <= SLOPE_KIB_MAX),
        ("rss_learner_slope_kib_per_min", slope_learner <= SLOPE_KIB_MAX),
        ("disk_bytes_max", disk_bytes_max <= formula),
    ];
    judge(figures, &limits)
}

/// Returns the maximum size of the folder in bytes, by the formula of `TAPE.md`.
fn formula_bytes(record: &SoakRecord) -> u64 {
    let rate = |pair: &[Sample]| {
        let same = pair[0].life == pair[1].life;
        let bytes = if same { pair[1].bytes_up.saturating_sub(pair[0].bytes_up) } else { 0 };
        bytes as f64 / (pair[1].at_s - pair[0].at_s).max(1e-3)
    };
    let fastest = record.samples.windows(2).map(rate).fold(0.0, f64::max);
    let between = (fastest * SNAPSHOT_S) as u64;
    KEEP_BYTES + 2 * between + SEGMENT_BYTES + 24 * record.params + ROW_BYTES * record.kept.updates
}

/// Returns the time in minutes and the memory in KiB of each sample after the warm-up, relative to the mean over the
/// same syncer process.
fn within_lives(
    samples: &[Sample],
    life: impl Fn(&Sample) -> u32,
    part: impl Fn(&Sample) -> u64,
) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for life in samples.chunk_by(|a, b| life(a) == life(b)) {
        let warm = life[0].merges + WARM_MERGES;
        let point = |sample: &Sample| (sample.at_s / 60.0, part(sample) as f64 / 1_024.0);
        let life: Vec<(f64, f64)> = life.iter().filter(|sample| sample.merges >= warm).map(point).collect();
        let count = life.len().max(1) as f64;
        let (min, kib) = life.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
        points.extend(life.iter().map(|point| (point.0 - min / count, point.1 - kib / count)));
    }
    points
}

/// Returns the least-squares slope through points centred on 0; 0 if there are no points.
fn slope_kib_per_min(points: &[(f64, f64)]) -> f64 {
    let (products, squares) =
        points.iter().fold((0.0, 0.0), |sum, (min, kib)| (sum.0 + min * kib, sum.1 + min * min));
    if squares > 0.0 { products / squares } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an hour in which the syncer is killed in the middle, and its memory grows by `kib_per_min` in each life.
    fn record(kib_per_min: f64) -> SoakRecord {
        let sample = |n: u32| {
            let in_life_min = f64::from(n % 180) / 6.0;
            let rss_bytes = (1_024.0 * (50_000.0 + kib_per_min * in_life_min)) as u64;
            Sample {
                at_s: 10.0 * f64::from(n),
                syncer: Usage { rss_bytes, files: 20, threads: 5 },
                learner: Usage { rss_bytes: 30 << 20, files: 9, threads: 3 },
                disk_bytes: 60 << 20,
                bytes_up: 1_000_000 * u64::from(n % 180),
                merges: 40 * u64::from(n),
                life: 1 + n / 180,
            }
        };
        let kept = PrunedTapeComparison { updates: 1_000, acked: 5, acked_lost: 0 };
        SoakRecord { samples: (0..360).map(sample).collect(), params: 100_000, merges: 9, kept }
    }

    #[test]
    fn growth_within_a_life_is_found() {
        assert_eq!(figures(&record(0.0))["within"], json!(true));
        let grown = figures(&record(40.0));
        let slope = grown["rss_syncer_slope_kib_per_min"].as_f64().unwrap();
        assert!((39.9..40.1).contains(&slope), "{slope}");
        assert_eq!(grown["missed"], json!(["rss_syncer_slope_kib_per_min"]));
    }

    #[test]
    fn the_other_limits_bind() {
        let missed = |change: fn(&mut SoakRecord)| {
            let mut record = record(0.0);
            change(&mut record);
            figures(&record)["missed"].clone()
        };
        assert_eq!(missed(|record| record.kept.acked_lost = 1), json!(["acked_lost"]));
        assert_eq!(missed(|record| record.kept.acked = 0), json!(["acked"]));
        // Too few merges for any program to be warm.
        let cold = missed(|record| record.samples.iter_mut().for_each(|sample| sample.merges /= 10));
        assert_eq!(cold, json!(["looks_warm"]));
        // 16 MiB, twice 3 MB, 64 MiB, 2.4 MB and 0.8 MB: about 94 MB.
        assert_eq!(missed(|record| record.samples[9].disk_bytes = 92_000_000), Value::Null);
        assert_eq!(missed(|record| record.samples[9].disk_bytes = 96_000_000), json!(["disk_bytes_max"]));
    }

    #[test]
    fn a_folder_is_as_large_as_its_files() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let file = fs::metadata(folder.join("bench/soak.rs")).unwrap().len();
        assert!(
            disk_bytes(&folder.join("bench")) > file
                && disk_bytes(&folder) > disk_bytes(&folder.join("bench"))
        );
        assert_eq!(disk_bytes(&folder.join("nowhere")), 0);
    }
}
