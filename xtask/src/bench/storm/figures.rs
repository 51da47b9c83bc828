//! Figures of a storm, compared with the limits.

use std::time::Duration;

use serde_json::{Value, json};

use super::plan::Fault;
use super::run::Outcome;

/// Limit: minimum number of faults an hour.
const FAULTS_PER_HOUR_MIN: f64 = 125.0;
/// Limit: minimum ratio of merged tokens to those of the fault-free run.
const MERGED_RATIO_MIN: f64 = 0.977;
/// Limit: minimum ratio of merged to trained tokens.
const PARTICIPATION_MIN: f64 = 0.95;
/// Limit: median time from the end of a fault to the next merged update, in seconds.
const REJOIN_S_MAX: f64 = 5.0;
/// Limit: maximum ratio of the held-out loss to that of the fault-free run at equal merged tokens.
const LOSS_RATIO_MAX: f64 = 1.01;

/// Returns the figures of both runs.
pub fn figures(faults: &[Fault], length: Duration, fair: &Outcome, storm: &Outcome) -> Value {
    let hours = length.as_secs_f64() / 3_600.0;
    let faults_per_hour = faults.len() as f64 / hours;
    let mut rejoins: Vec<f64> = storm.rejoins_s.iter().copied().flatten().collect();
    rejoins.sort_by(f64::total_cmp);
    let never = storm.rejoins_s.len() - rejoins.len();
    let merged_ratio = storm.merged / fair.merged;
    let participation = storm.merged / storm.trained;
    let loss_ratio = loss_ratio(&fair.losses, &storm.losses);
    let proof = storm.proof;
    let is_exact = proof.acked_lost == 0 && proof.merged_twice == 0 && proof.ledger_exact && proof.told > 0;
    let is_merged = merged_ratio >= MERGED_RATIO_MIN && participation >= PARTICIPATION_MIN;
    let is_back = never == 0 && quantile(&rejoins, 0.5).is_some_and(|s| s < REJOIN_S_MAX);
    let is_as_good = loss_ratio.is_some_and(|ratio| ratio <= LOSS_RATIO_MAX);
    let row = |(fault, rejoin): (&Fault, &Option<f64>)| {
        json!({
            "at_s": fault.from.as_secs_f64(),
            "learner": fault.island(),
            "kind": fault.kind.name(),
            "lasts_s": (fault.until - fault.from).as_secs_f64(),
            "rejoin_s": rejoin,
        })
    };
    json!({
        "seconds": length.as_secs(),
        "faults": faults.iter().zip(&storm.rejoins_s).map(row).collect::<Vec<_>>(),
        "faults_per_hour": faults_per_hour,
        "merged_ratio": merged_ratio,
        "participation": participation,
        "participation_fair": fair.merged / fair.trained,
        "rejoin_s_p50": quantile(&rejoins, 0.5),
        "rejoin_s_p99": quantile(&rejoins, 0.99),
        "never_rejoined": never,
        "acked": proof.told,
        "acked_lost": proof.acked_lost,
        "merged_twice": proof.merged_twice,
        "ledger_exact": proof.ledger_exact,
        "merges": proof.merges,
        "updates": proof.updates,
        "val_loss_ratio": loss_ratio,
        "within": faults_per_hour >= FAULTS_PER_HOUR_MIN && is_exact && is_merged && is_back && is_as_good,
    })
}

/// Returns the lower quantile of sorted values, or `None` if there are no values.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    sorted.get(((sorted.len().saturating_sub(1)) as f64 * share).ceil() as usize).copied()
}

/// Returns the ratio of the losses with and without faults at equal merged tokens, at the last common measurement.
fn loss_ratio(fair: &[(f64, f64)], storm: &[(f64, f64)]) -> Option<f64> {
    storm.iter().rev().find_map(|(tokens, loss)| at(fair, *tokens).map(|beside| loss / beside))
}

/// Returns the loss after `tokens`, linearly interpolated between two measurements; `None` outside of them.
fn at(losses: &[(f64, f64)], tokens: f64) -> Option<f64> {
    let [(before, high), (after, low)] =
        *losses.windows(2).find(|pair| pair[0].0 <= tokens && tokens <= pair[1].0)?
    else {
        return None;
    };
    let share = if after > before { (tokens - before) / (after - before) } else { 0.0 };
    Some(high + share * (low - high))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::proof::Proof;
    use crate::bench::storm::plan::plan;

    const LENGTH: Duration = Duration::from_secs(480);

    fn outcome(merged: f64, rejoin_s: Option<f64>, faults: usize) -> Outcome {
        Outcome {
            merged,
            trained: 1_010.0,
            losses: vec![(0.0, 5.0), (500.0, 3.0), (1_000.0, 2.0)],
            rejoins_s: vec![rejoin_s; faults],
            proof: Proof {
                told: 9,
                acked_lost: 0,
                merges: 3,
                updates: 9,
                merged_twice: 0,
                ledger_exact: true,
            },
        }
    }

    #[test]
    fn each_bar_binds() {
        let faults = plan(1, 32, LENGTH);
        let within = |change: fn(&mut Outcome)| {
            let mut storm = outcome(990.0, Some(2.0), faults.len());
            change(&mut storm);
            figures(&faults, LENGTH, &outcome(1_000.0, None, 0), &storm)["within"].as_bool().unwrap()
        };
        assert!(within(|_| {}));
        assert!(!within(|storm| storm.merged = 970.0));
        assert!(!within(|storm| storm.trained = 1_100.0));
        assert!(!within(|storm| storm.rejoins_s[0] = None));
        assert!(!within(|storm| storm.rejoins_s.fill(Some(6.0))));
        assert!(!within(|storm| storm.proof.acked_lost = 1));
        assert!(!within(|storm| storm.proof.merged_twice = 1));
        assert!(!within(|storm| storm.proof.ledger_exact = false));
        assert!(!within(|storm| storm.losses[2].1 = 2.1));
        let few = &faults[..16];
        let calm = outcome(990.0, Some(2.0), few.len());
        assert_eq!(figures(few, LENGTH, &outcome(1_000.0, None, 0), &calm)["within"], json!(false));
    }

    #[test]
    fn losses_are_compared_at_as_many_tokens() {
        let fair = [(0.0, 5.0), (500.0, 3.0), (1_000.0, 2.0)];
        assert_eq!(loss_ratio(&fair, &[(750.0, 2.5), (1_200.0, 1.0)]), Some(1.0));
        assert_eq!(loss_ratio(&fair, &[(1_200.0, 1.0)]), None);
    }
}
