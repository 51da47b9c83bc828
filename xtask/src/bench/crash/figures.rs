//! Figures of repeated kills.

use serde_json::{Value, json};

use crate::bench::proof::Proof;

/// Limit: median time until all learners take part again, in seconds.
const LIVE_S_MAX: f64 = 5.0;
/// Limit: longest time that a learner waits for data, in seconds.
const STARVED_S_MAX: f64 = 2.0;
/// Limit: longest time until a syncer answers again, in seconds.
const RECOVERY_S_MAX: f64 = 5.0;
/// Limit: change of a learner's share of all tokens from before the first kill to after it. Learners that share two
/// cores with other programs differ by a few hundredths anyway.
const SHARE_APART_MAX: f64 = 0.05;

/// One kill of the syncer.
pub struct Kill {
    /// Age of the syncer, in seconds.
    pub lived_s: f64,
    /// Time from the kill until all learners took part in rounds again, in seconds.
    pub live_s: f64,
    /// Time from the end of the syncer until the next one answered, in seconds.
    pub recovery_s: f64,
    /// Time until the next kill in which the worst-off learner waited for data, in seconds.
    pub starved_s: f64,
}

/// One report of a learner; there is about one a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    /// Tokens trained so far.
    pub tokens: f64,
    /// Time spent waiting for data so far, in milliseconds.
    pub starved_ms: f64,
}

/// Complete record of the benchmark.
pub struct History {
    /// Kills in order.
    pub kills: Vec<Kill>,
    /// Reports of each learner, in order.
    pub said: Vec<Vec<Said>>,
    /// Tokens of each learner after the warm-up and at the first kill.
    pub before: Vec<[f64; 2]>,
}

/// Returns the figures, compared with the limits.
pub fn figures(history: &History, proof: &Proof) -> Value {
    let History { kills, said, before } = history;
    let recovery: Vec<f64> = kills.iter().map(|kill| kill.recovery_s).collect();
    let live: Vec<f64> = kills.iter().map(|kill| kill.live_s).collect();
    let last = |said: &[Said]| said.last().map_or(0.0, |said| said.tokens);
    let shares_before = shares(before.iter().map(|[warm, first]| first - warm).collect());
    let shares_after = shares(said.iter().zip(before).map(|(said, [_, first])| last(said) - first).collect());
    let starved: Vec<f64> = said.iter().map(|said| longest_starved_s(said)).collect();
    let apart = |(a, b): (&f64, &f64)| (a - b).abs();
    let apart_max = shares_before.iter().zip(&shares_after).map(apart).fold(0.0, f64::max);
    let starved_max = starved.iter().copied().fold(0.0, f64::max);
    let learner = |m: usize| {
        json!({
            "learner": m + 1,
            "longest_starved_s": starved[m],
            "share_before": shares_before[m],
            "share_after": shares_after[m],
        })
    };
    let kill = |kill: &Kill| {
        json!({
            "lived_s": kill.lived_s,
            "live_again_s": kill.live_s,
            "recovery_s": kill.recovery_s,
            "starved_s": kill.starved_s,
        })
    };
    let highest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let spread = highest(&shares_after) - shares_after.iter().copied().fold(1.0, f64::min);
    let is_exact = proof.acked_lost == 0 && proof.merged_twice == 0 && proof.ledger_exact && proof.told > 0;
    let is_soon = highest(&recovery) < RECOVERY_S_MAX && median(&live) <= LIVE_S_MAX;
    json!({
        "points": kills.len(),
        "acked": proof.told,
        "acked_lost": proof.acked_lost,
        "merges": proof.merges,
        "updates": proof.updates,
        "merged_twice": proof.merged_twice,
        "ledger_exact": proof.ledger_exact,
        "recovery_s_p50": median(&recovery),
        "recovery_s_max": highest(&recovery),
        "kills": kills.iter().map(kill).collect::<Vec<_>>(),
        "learners": (0..said.len()).map(learner).collect::<Vec<_>>(),
        "live_again_s_p50": median(&live),
        "live_again_s_max": highest(&live),
        "share_spread": spread,
        "starved_s_max": starved_max,
        "share_apart_max": apart_max,
        "within": is_exact && is_soon && starved_max <= STARVED_S_MAX && apart_max <= SHARE_APART_MAX,
    })
}

/// Returns the longest time without data in a row, in seconds: the growth over consecutive reports that all grew.
fn longest_starved_s(said: &[Said]) -> f64 {
    let (mut longest_ms, mut stretch_ms) = (0.0_f64, 0.0);
    for pair in said.windows(2) {
        let more_ms = pair[1].starved_ms - pair[0].starved_ms;
        stretch_ms = if more_ms > 0.0 { stretch_ms + more_ms } else { 0.0 };
        longest_ms = longest_ms.max(stretch_ms);
    }
    longest_ms / 1e3
}

/// Returns the lower median; 0 if there are no values.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// Returns each value as a share of the sum.
fn shares(parts: Vec<f64>) -> Vec<f64> {
    let whole: f64 = parts.iter().sum();
    parts.into_iter().map(|part| if whole > 0.0 { part / whole } else { 0.0 }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(tokens: f64, starved_ms: f64) -> Said {
        Said { tokens, starved_ms }
    }

    const PROOF: Proof =
        Proof { told: 9, acked_lost: 0, merges: 3, updates: 9, merged_twice: 0, ledger_exact: true };

    fn kill(live_s: f64) -> Kill {
        Kill { lived_s: 9.0, recovery_s: 0.5 * live_s, live_s, starved_s: 0.1 }
    }

    #[test]
    fn the_longest_time_without_data_is_one_at_a_stretch() {
        let starved_ms = [0.0, 900.0, 1_900.0, 1_900.0, 2_400.0, 2_400.0];
        assert_eq!(longest_starved_s(&starved_ms.map(|ms| said(1.0, ms))), 1.9);
        assert_eq!(longest_starved_s(&[]), 0.0);
    }

    #[test]
    fn each_bar_binds() {
        let fair = || History {
            kills: [1.0, 2.0, 9.0].map(kill).into(),
            said: vec![vec![said(0.0, 0.0), said(300.0, 1_500.0)], vec![said(310.0, 0.0)]],
            before: vec![[100.0, 200.0], [110.0, 210.0]],
        };
        let within = |change: fn(&mut History)| {
            let mut history = fair();
            change(&mut history);
            figures(&history, &PROOF)["within"].as_bool().unwrap()
        };
        let unproved = |proof: Proof| !figures(&fair(), &proof)["within"].as_bool().unwrap();
        assert!(unproved(Proof { acked_lost: 1, ..PROOF }));
        assert!(unproved(Proof { merged_twice: 1, ..PROOF }));
        assert!(unproved(Proof { ledger_exact: false, ..PROOF }));
        assert!(unproved(Proof { told: 0, ..PROOF }));
        assert!(!within(|history| history.kills[2].recovery_s = 5.0));
        assert!(within(|_| {}));
        assert!(!within(|history| history.kills[1].live_s = 6.0));
        assert!(!within(|history| history.said[0][1].starved_ms = 2_100.0));
        assert!(!within(|history| history.said[1][0].tokens = 340.0));
        let figures = figures(&fair(), &PROOF);
        assert_eq!((&figures["live_again_s_p50"], &figures["recovery_s_max"]), (&json!(2.0), &json!(4.5)));
    }
}
