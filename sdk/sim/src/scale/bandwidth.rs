//! Required speed of a link between data centres, by the rules of the published bandwidth simulator.
//!
//! An inner step takes T: T/3 for its forward pass, 2T/3 for its backward pass. The data leaves piece by piece as the
//! backward pass releases it, over one first-in-first-out link. Data that misses its deadline stalls the learner,
//! except in Decoupled DiLoCo, where no learner waits.

/// Steps over which a utilisation is measured.
const STEPS: u64 = 2_000;

/// Largest difference between two states of the link that count as the same, as a fraction of a step.
const SAME: f64 = 1e-9;

/// Limit of fragments, buckets and layers; larger numbers count as this.
const PIECES_MAX: u32 = 4_096;

/// Limit of steps between two exchanges; larger numbers count as this.
const SYNC_EVERY_MAX: u32 = 100_000;

/// Share of a step for its forward pass.
const FORWARD: f64 = 1.0 / 3.0;

/// Number of decades below the highest rate that the search for a rate covers.
const DECADES: f64 = 16.0;

/// Number of bisections of these decades. The error is then far below a millionth of the rate.
const HALVINGS: u32 = 36;

/// Contribution of each data centre to the time of a fragment's exchange, in seconds. Our own constant: with it, the
/// published rates of Decoupled DiLoCo over 2 and over 8 data centres are reproduced.
pub const LATENCY_S: f64 = 0.032;

/// Training over several data centres.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Training {
    /// N, parameters of the model.
    pub params: f64,
    /// Bits per value.
    pub value_bits: f64,
    /// T, compute time of one inner step, in seconds, above 0.
    pub step_s: f64,
    /// M, data centres, at least 1.
    pub data_centres: u32,
    /// Time of an exchange in addition to sending, in seconds.
    pub latency_s: f64,
    /// Release of data by the backward pass.
    pub release: Release,
}

/// Release of data by the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// All exchanged data in this many buckets, evenly over the whole pass.
    Even(u32),
    /// Each of this many layers after its gradients, the last layer first. Fragments are strided: with P fragments,
    /// fragment p has the layers p, p + P, …
    Layers(u32),
}

/// Rates over which the tables of Streaming DiLoCo were swept: 10^(−1 + 4k/49) Gbit/s for k = 0…49. All its published
/// figures lie on it.
pub const GRID: u32 = 50;

/// Returns rate `k` of [`GRID`], in bit/s.
#[must_use]
pub fn grid_rate(k: u32) -> f64 {
    1e9 * libm::pow(10.0, 4.0 * f64::from(k) / f64::from(GRID - 1) - 1.0)
}

/// A schedule of exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// All gradients at each step, due at its end.
    DataParallel,
    /// All parameters at each H-th step, due at its end.
    DiLoCo {
        /// H, steps between two exchanges.
        sync_every: u32,
    },
    /// One of P fragments every H/P steps, due τ steps after the end of the step in which it leaves.
    Streaming {
        /// H, steps between two exchanges of the same fragment.
        sync_every: u32,
        /// P, fragments.
        fragments: u32,
        /// τ, additional steps that an exchange may take.
        overlap_steps: u32,
    },
    /// One of P fragments at each step. Each fragment in flight has the link to itself, for τ steps, as the paper
    /// assumes. [`Training::shared_rate`] gives the requirement if all in flight share the link.
    Decoupled {
        /// P, fragments.
        fragments: u32,
        /// τ, steps that an exchange may take.
        overlap_steps: u32,
    },
}

impl Method {
    /// Returns the time of an exchange among `data_centres` in addition to sending, in seconds, if each of them adds
    /// `each_s`. It is nonzero only for Decoupled DiLoCo: the published rates of the others are reproduced without it.
    #[must_use]
    pub fn latency_s(self, data_centres: u32, each_s: f64) -> f64 {
        if let Self::Decoupled { .. } = self { each_s * f64::from(data_centres) } else { 0.0 }
    }
}

impl Training {
    /// Returns the bits that an exchange of all parameters puts on the link of one data centre: N · bits · 2(1 − 1/M).
    #[must_use]
    pub fn exchange_bits(&self) -> f64 {
        let data_centres = f64::from(self.data_centres.max(1));
        self.params * self.value_bits * 2.0 * (1.0 - 1.0 / data_centres)
    }

    /// Returns the compute utilisation over a link of `rate` bit/s: compute time over compute and stall time, 0 to 1.
    ///
    /// The stall of a step is the maximum over its buckets of max(0, arrival − deadline). For [`Method::Decoupled`],
    /// where no learner waits, the utilisation is the share of a fragment that fits into τ steps.
    #[must_use]
    pub fn utilisation(&self, method: Method, rate: f64) -> f64 {
        match method {
            Method::DataParallel => self.stalling(rate, 1, 1, 0),
            Method::DiLoCo { sync_every } => self.stalling(rate, sync_every, 1, 0),
            Method::Streaming { sync_every, fragments, overlap_steps } => {
                self.stalling(rate, sync_every, fragments, overlap_steps)
            }
            Method::Decoupled { fragments, overlap_steps } => {
                let bits = self.exchange_bits() / f64::from(fragments.max(1));
                let sending_s = (f64::from(overlap_steps) * self.step_s - self.latency_s).max(0.0);
                if bits > 0.0 { (rate * sending_s / bits).min(1.0) } else { 1.0 }
            }
        }
    }

    /// Returns the rate of a link, in bit/s, at which utilisation reaches `target`, by bisection of the logarithm below
    /// `rate_max`; `None` if `rate_max` is too slow. For [`Method::Decoupled`] the target is always 1.
    #[must_use]
    pub fn rate_for(&self, method: Method, target: f64, rate_max: f64) -> Option<f64> {
        let target = if let Method::Decoupled { .. } = method { 1.0 } else { target };
        let reached = |rate| self.utilisation(method, rate) >= target;
        if !reached(rate_max) {
            return None;
        }
        let (mut low, mut high) = (rate_max * libm::pow(10.0, -DECADES), rate_max);
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt();
            if reached(middle) { high = middle } else { low = middle }
        }
        Some(high)
    }

    /// Returns the rate of a link, in bit/s, that carries all fragments of [`Method::Decoupled`] when those in flight
    /// share it, first in, first out. Each fragment has left before the next one, and arrives within τ steps. `None` if
    /// no link is fast enough.
    ///
    /// (exchange bits / P) / min(T, τT − latency). On a slower link the queue grows without bound, and fragments are
    /// exchanged less often.
    #[must_use]
    pub fn shared_rate(&self, fragments: u32, overlap_steps: u32) -> Option<f64> {
        let sending_s = (f64::from(overlap_steps) * self.step_s - self.latency_s).min(self.step_s);
        let bits = self.exchange_bits() / f64::from(fragments.max(1));
        (sending_s > 0.0).then(|| bits / sending_s)
    }

    /// Returns the slowest rate of [`GRID`] at which utilisation reaches `target`, in bit/s; `None` if even the fastest
    /// is too slow.
    #[must_use]
    pub fn grid_rate_for(&self, method: Method, target: f64) -> Option<f64> {
        let (mut low, mut high) = (0, GRID);
        while low < high {
            let middle = u32::midpoint(low, high);
            let reached = self.utilisation(method, grid_rate(middle)) >= target;
            if reached { high = middle } else { low = middle + 1 }
        }
        (low < GRID).then(|| grid_rate(low))
    }

    /// Returns the utilisation if one of `fragments` leaves every `sync_every / fragments` steps and is due
    /// `overlap_steps` after its step's end.
    fn stalling(&self, rate: f64, sync_every: u32, fragments: u32, overlap_steps: u32) -> f64 {
        let sync_every = u64::from(sync_every.clamp(1, SYNC_EVERY_MAX));
        let fragments = u64::from(fragments.clamp(1, PIECES_MAX));
        let different = if let Release::Layers(_) = self.release { fragments } else { 1 };
        let plans: Vec<Vec<(f64, f64)>> = (0..different).map(|p| self.plan(p, fragments)).collect();
        let (mut clock_s, mut link_free_s) = (0.0, 0.0_f64);
        // After H steps the schedule repeats, starting from the link's present state.
        let (mut step, mut lag_s) = (0, f64::NAN);
        while step < STEPS {
            let (began_s, before_s) = (clock_s, lag_s);
            for step in 0..sync_every {
                let mut stall_s = 0.0_f64;
                let deadline_s = clock_s + (f64::from(overlap_steps) + 1.0) * self.step_s;
                // Evenly over the steps: P/H of a fragment at each, with the running sum rounded down.
                for p in step * fragments / sync_every..(step + 1) * fragments / sync_every {
                    for &(after_s, bits) in &plans[(p % different) as usize] {
                        let sending_s = if bits > 0.0 { bits / rate } else { 0.0 };
                        link_free_s = link_free_s.max(clock_s + after_s) + sending_s;
                        stall_s = stall_s.max(link_free_s + self.latency_s - deadline_s);
                    }
                }
                clock_s += self.step_s + stall_s;
            }
            step += sync_every;
            lag_s = (link_free_s - clock_s).max(0.0);
            if (lag_s - before_s).abs() <= SAME * self.step_s {
                let rounds = STEPS.saturating_sub(step) as f64 / sync_every as f64;
                return STEPS.max(step) as f64 * self.step_s / (clock_s + rounds * (clock_s - began_s));
            }
        }
        step as f64 * self.step_s / clock_s
    }

    /// Returns when the backward pass releases data of fragment `p`: times after the beginning of the step, in seconds,
    /// each with the number of bits released at that time.
    fn plan(&self, p: u64, fragments: u64) -> Vec<(f64, f64)> {
        let bits = self.exchange_bits();
        // The argument is the completed share of the backward pass.
        let after_s = |share: f64| (FORWARD + share * (1.0 - FORWARD)) * self.step_s;
        match self.release {
            Release::Even(buckets) => {
                let buckets = buckets.clamp(1, PIECES_MAX);
                let bits = bits / f64::from(buckets) / fragments as f64;
                (1..=buckets).map(|bucket| (after_s(f64::from(bucket) / f64::from(buckets)), bits)).collect()
            }
            Release::Layers(layers) => {
                let layers = layers.clamp(1, PIECES_MAX);
                let own = (0..layers).rev().filter(|layer| u64::from(*layer) % fragments == p);
                let share = |layer| f64::from(layers - layer) / f64::from(layers);
                own.map(|layer| (after_s(share(layer)), bits / f64::from(layers))).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GBIT: f64 = 1e9;

    fn five_billion(data_centres: u32, value_bits: f64, latency_s: f64) -> Training {
        Training {
            params: 5e9,
            value_bits,
            step_s: 1.0,
            data_centres,
            latency_s,
            release: Release::Even(128),
        }
    }

    fn near(found: Option<f64>, published: f64, share: f64) {
        let found = found.expect("the rate is reached") / GBIT;
        assert!((found / published - 1.0).abs() <= share, "{found} beside {published}");
    }

    #[test]
    fn published_points_are_met() {
        let decoupled = Method::Decoupled { fragments: 24, overlap_steps: 2 };
        let rate = |method: Method, data_centres, value_bits| {
            let latency_s = method.latency_s(data_centres, LATENCY_S);
            five_billion(data_centres, value_bits, latency_s).rate_for(method, 0.9, 1e4 * GBIT)
        };
        near(rate(Method::DataParallel, 2, 16.0), 104.0, 0.01);
        near(rate(Method::DataParallel, 8, 16.0), 198.0, 0.10);
        near(rate(decoupled, 2, 16.0), 1.7, 0.02);
        near(rate(decoupled, 2, 4.0), 0.43, 0.02);
        near(rate(decoupled, 8, 4.0), 0.84, 0.02);
    }

    /// One link for all fragments in flight must carry one fragment per step: 3.33 Gbit/s, compared with 1.72 if each
    /// has its own link. Learners that wait for a tenth of the time would need 2.98.
    #[test]
    fn fragments_that_share_a_link_need_a_faster_one() {
        let training = five_billion(2, 16.0, 0.064);
        near(training.shared_rate(24, 2), 80.0 / 24.0, 1e-9);
        near(five_billion(8, 4.0, 0.256).shared_rate(24, 2), 35.0 / 24.0, 1e-9);
        near(training.shared_rate(24, 1), 80.0 / 24.0 / 0.936, 1e-9);
        assert_eq!(five_billion(2, 16.0, 2.0).shared_rate(24, 2), None);
        let waiting = Method::Streaming { sync_every: 24, fragments: 24, overlap_steps: 2 };
        near(five_billion(2, 16.0, 0.0).rate_for(waiting, 0.9, 1e4 * GBIT), 2.98, 0.01);
    }

    #[test]
    fn a_saturated_link_sets_the_pace() {
        // If the link is always busy, a round of all parameters takes exchange_bits / rate.
        let training = five_billion(2, 16.0, 0.0);
        for method in [
            Method::DataParallel,
            Method::DiLoCo { sync_every: 10 },
            Method::Streaming { sync_every: 10, fragments: 5, overlap_steps: 1 },
        ] {
            let steps = if method == Method::DataParallel { 1.0 } else { 10.0 };
            let rate = training.exchange_bits() / (20.0 * steps);
            let utilisation = training.utilisation(method, rate);
            assert!((utilisation - 1.0 / 20.0).abs() < 0.004, "{method:?}: {utilisation}");
        }
    }

    #[test]
    fn absurd_counts_are_bounded() {
        let training = Training { release: Release::Layers(u32::MAX), ..five_billion(2, 16.0, 0.0) };
        for overlap_steps in [1, u32::MAX] {
            let method = Method::Streaming { sync_every: u32::MAX, fragments: u32::MAX, overlap_steps };
            assert!((0.0..=1.0).contains(&training.utilisation(method, GBIT)));
        }
    }

    #[test]
    fn more_rate_is_never_worse_and_less_to_send_needs_less() {
        let training = five_billion(4, 16.0, 0.01);
        for method in [
            Method::DataParallel,
            Method::DiLoCo { sync_every: 7 },
            Method::Streaming { sync_every: 100, fragments: 16, overlap_steps: 1 },
            Method::Decoupled { fragments: 24, overlap_steps: 2 },
        ] {
            let rates = (0..8).map(|i| GBIT * 3.0_f64.powi(i));
            let utilisation: Vec<f64> = rates.map(|rate| training.utilisation(method, rate)).collect();
            assert!(utilisation.is_sorted() && utilisation[0] < utilisation[7], "{method:?} {utilisation:?}");
            let rate = |bits| Training { value_bits: bits, ..training }.rate_for(method, 0.8, 1e4 * GBIT);
            assert!(rate(4.0) < rate(16.0), "{method:?}");
        }
    }

    /// Table 4 of Streaming DiLoCo, its 10-billion model: on the grid's own value or a neighbouring one.
    #[test]
    fn the_streaming_table_is_met() {
        let method =
            |fragments, overlap_steps| Method::Streaming { sync_every: 100, fragments, overlap_steps };
        let rows = [
            (Method::DataParallel, 16.0, [104.8, 222.3, 222.3, 268.3, 471.5]),
            (Method::DiLoCo { sync_every: 100 }, 16.0, [1.7, 7.5, 16.0, 33.9, 104.8]),
            (method(16, 0), 16.0, [1.7, 5.2, 9.1, 13.3, 19.3]),
            (method(16, 1), 16.0, [1.7, 3.6, 5.2, 6.2, 7.5]),
            (method(16, 1), 4.0, [0.4, 0.9, 1.4, 1.4, 1.7]),
        ];
        let layers = |value_bits| Training {
            params: 0.83 * 10e9,
            step_s: 0.8,
            release: Release::Layers(48),
            ..five_billion(2, value_bits, 0.0)
        };
        for (method, bits, row) in rows {
            for (target, paper) in [0.5, 0.8, 0.9, 0.95, 0.99].into_iter().zip(row) {
                let ours = layers(bits).grid_rate_for(method, target).expect("on the grid") / GBIT;
                // Published figures have one digit after the decimal point.
                let beside = (ours / paper) <= 1.21 && (ours + 0.05) / paper >= 1.0 / 1.21;
                assert!(beside, "{method:?} at {target}: {ours} beside {paper}");
            }
        }
    }

    #[test]
    fn what_cannot_be_reached_is_not_claimed() {
        let late = five_billion(2, 16.0, 3.0);
        let decoupled = Method::Decoupled { fragments: 24, overlap_steps: 2 };
        assert_eq!(late.rate_for(decoupled, 0.9, 1e4 * GBIT), None);
        assert_eq!(late.rate_for(Method::DataParallel, 0.9, 1e4 * GBIT), None);
        assert_eq!(late.grid_rate_for(Method::DataParallel, 0.9), None);
        let alone = five_billion(1, 16.0, 0.0);
        assert_eq!(alone.utilisation(Method::DataParallel, 0.0), 1.0, "one data centre sends nothing");
    }
}
