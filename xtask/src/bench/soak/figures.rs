//! Figures of a soak, compared with the limits.

use serde_json::{Value, json};

use super::gauge::{Look, larger};
use super::run::Seen;

/// Number of merges after a start during which a program still fills its buffers and histories.
const WARM_MERGES: u64 = 2_500;
/// Limit: memory growth in KiB a minute: 30 MiB a day, which is less than the noise of the samples.
const SLOPE_KIB_MAX: f64 = 21.0;
/// Seconds between two snapshots, and bytes of a segment, as in the syncer.
const SNAPSHOT_S: f64 = 30.0;
const SEGMENT_BYTES: u64 = 64 << 20;
/// Bytes of a row (see `TAPE.md`), with the index and partly filled pages.
const ROW_BYTES: u64 = 800;

/// Returns the figures.
pub fn figures(seen: &Seen) -> Value {
    let Seen { looks, .. } = seen;
    let end_s = looks.last().map_or(0.0, |look| look.at_s);
    let warm: Vec<&Look> = looks.iter().filter(|look| look.merges >= WARM_MERGES).collect();
    let syncer = |look: &Look| look.syncer.rss_bytes;
    let learner = |look: &Look| look.learner.rss_bytes;
    // A restarted syncer starts with fresh memory, so the growth is measured within each life. Learners are not
    // restarted.
    let all: Vec<&Look> = looks.iter().collect();
    let of_syncer = within_lives(&all, |look| look.life, syncer);
    let of_learner = within_lives(&all, |_| 1, learner);
    let (slope_syncer, slope_learner) = (slope_kib_per_min(&of_syncer), slope_kib_per_min(&of_learner));
    let most = |part: fn(&Look) -> u64| looks.iter().map(part).max().unwrap_or(0);
    let (disk_bytes_max, formula) = (most(|look| look.disk_bytes), formula_bytes(seen));
    let held =
        looks.iter().fold(Default::default(), |held, look| larger(held, larger(look.syncer, look.learner)));
    let first = |part: fn(&Look) -> u64| warm.first().map_or(0, |look| part(look));
    let last = |part: fn(&Look) -> u64| warm.last().map_or(0, |look| part(look));
    // Without samples after the warm-up the result is unknown.
    let is_flat = slope_syncer <= SLOPE_KIB_MAX && slope_learner <= SLOPE_KIB_MAX && !of_syncer.is_empty();
    let is_kept = seen.acked_lost == 0 && seen.told > 0;
    json!({
        "minutes": end_s / 60.0,
        "restarts": seen.restarts,
        "merges": seen.merges,
        "acked": seen.told,
        "acked_lost": seen.acked_lost,
        "looks_warm": of_syncer.len(),
        "rss_syncer_start": first(syncer),
        "rss_syncer_end": last(syncer),
        "rss_syncer_slope_kib_per_min": slope_syncer,
        "rss_learner_start": first(learner),
        "rss_learner_end": last(learner),
        "rss_learner_slope_kib_per_min": slope_learner,
        "disk_bytes_max": disk_bytes_max,
        "disk_bytes_end": last(|look| look.disk_bytes),
        "disk_formula_bytes": formula,
        "fd_max": held.files,
        "threads_max": held.threads,
        "within": is_flat && is_kept && disk_bytes_max <= formula,
    })
}

/// Returns the maximum size of the folder in bytes, by the formula of `TAPE.md`.
fn formula_bytes(seen: &Seen) -> u64 {
    let rate = |pair: &[Look]| {
        let same = pair[0].life == pair[1].life;
        let bytes = if same { pair[1].bytes_up.saturating_sub(pair[0].bytes_up) } else { 0 };
        bytes as f64 / (pair[1].at_s - pair[0].at_s).max(1e-3)
    };
    let fastest = seen.looks.windows(2).map(rate).fold(0.0, f64::max);
    let between = (fastest * SNAPSHOT_S) as u64;
    seen.keep_bytes + 2 * between + SEGMENT_BYTES + 24 * seen.params + ROW_BYTES * seen.updates_kept
}

/// Returns the time in minutes and the memory in KiB, each relative to the mean of its life.
fn within_lives(
    looks: &[&Look],
    life: impl Fn(&Look) -> u32,
    part: impl Fn(&Look) -> u64,
) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for life in looks.chunk_by(|a, b| life(a) == life(b)) {
        let of = |look: &&Look| (look.at_s / 60.0, part(look) as f64 / 1_024.0);
        let warm = life[0].merges + WARM_MERGES;
        let life: Vec<(f64, f64)> = life.iter().filter(|look| look.merges >= warm).map(of).collect();
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
    use crate::bench::soak::gauge::Held;

    /// Returns an hour in which the syncer is killed in the middle, and its memory grows by `kib_per_min` in each life.
    fn seen(kib_per_min: f64) -> Seen {
        let look = |n: u32| {
            let (at_s, life) = (10.0 * f64::from(n), 1 + n / 180);
            let in_life_min = f64::from(n % 180) / 6.0;
            let rss_bytes = (1_024.0 * (50_000.0 + kib_per_min * in_life_min)) as u64;
            let syncer = Held { rss_bytes, files: 20, threads: 5 };
            let learner = Held { rss_bytes: 30 << 20, files: 9, threads: 3 };
            Look {
                at_s,
                syncer,
                learner,
                disk_bytes: 60 << 20,
                bytes_up: 1_000_000 * u64::from(n % 180),
                merges: 40 * u64::from(n),
                life,
            }
        };
        Seen {
            looks: (0..360).map(look).collect(),
            restarts: 1,
            params: 100_000,
            keep_bytes: 16 << 20,
            merges: 9,
            updates_kept: 1_000,
            told: 5,
            acked_lost: 0,
        }
    }

    #[test]
    fn memory_that_grows_within_a_life_is_seen() {
        assert_eq!(figures(&seen(0.0))["within"], json!(true));
        let grown = figures(&seen(40.0));
        let slope = grown["rss_syncer_slope_kib_per_min"].as_f64().unwrap();
        assert!((39.9..40.1).contains(&slope), "{slope}");
        assert_eq!(grown["within"], json!(false));
    }

    #[test]
    fn the_other_bars_bind() {
        let within = |change: fn(&mut Seen)| {
            let mut seen = seen(0.0);
            change(&mut seen);
            figures(&seen)["within"].as_bool().unwrap()
        };
        assert!(!within(|seen| seen.acked_lost = 1));
        assert!(!within(|seen| seen.told = 0));
        // Too few merges for any program to be warm.
        assert!(!within(|seen| seen.looks.iter_mut().for_each(|look| look.merges /= 10)));
        // 16 MiB, twice 3 MB, 64 MiB, 2.4 MB and 0.8 MB: about 94 MB.
        assert!(within(|seen| seen.looks[9].disk_bytes = 92_000_000));
        assert!(!within(|seen| seen.looks[9].disk_bytes = 96_000_000));
    }
}
