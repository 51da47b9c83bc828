//! Goodput of a large machine whose chips fail and return: Table 1 of the paper.
//!
//! M learners on N chips are M independent clusters of N/M chips. Each chip is interrupted at random times (Poisson
//! process, with the mean time between interruptions MTBI). An elastic cluster stops briefly, continues without the
//! affected slice of chips, and takes it back later. An inelastic cluster restarts as a whole. The paper names these
//! mechanisms but not their durations, so all [`Constants`] except the MTBI are our own.
//!
//! ```
//! use archipelago_sim::scale::goodput::Cluster;
//!
//! let lock_step = Cluster::new(1_200_000, 1).simulate(1, 100.0)?;
//! let decoupled = Cluster::new(1_200_000, 8).simulate(1, 100.0)?;
//! assert!(lock_step.goodput < 0.6 && decoupled.goodput > 0.85);
//! # Ok::<(), archipelago_sim::scale::goodput::ClusterError>(())
//! ```

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use crate::world::Rng;

/// Maximum expected number of interruptions in one simulation.
const INTERRUPTIONS_MAX: f64 = 2e7;

/// Maximum number of chips in one simulation, which draws a speed for each slice.
const CHIPS_MAX: u64 = 100_000_000;

/// Maximum number of learners in one simulation.
const LEARNERS_MAX: u32 = 1 << 16;

/// A machine of many chips.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Total number of chips, N: at least one per learner, up to 10⁸.
    pub chips: u64,
    /// Number of learners, M, with equal parts of the chips: 1 to 65,536.
    pub learners: u32,
    /// Whether a learner continues without chips that it lost.
    pub elastic: bool,
    /// Failure rates and durations.
    pub constants: Constants,
}

/// Failure rate and durations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Constants {
    /// Mean time between interruptions of one chip (MTBI), in seconds. Default: one year, from the paper.
    pub mtbi_s: f64,
    /// Number of chips in a slice, which leave and return together. Default: 64, our own choice.
    pub slice_chips: u32,
    /// Time of an inner step, in seconds. An interruption stops its learner at the end of the current step, and
    /// interruptions during one step cause one stop. Default: 4, our own choice.
    pub step_s: f64,
    /// Duration of an elastic learner's stop to continue with fewer chips, in seconds. Default: 22, our own choice.
    pub down_scale_s: f64,
    /// Duration of an elastic learner's stop to take back chips, in seconds. Default: 20, our own choice.
    pub up_scale_s: f64,
    /// Time that returned chips wait for another stop before they cause one, in seconds. Default: 180, our own choice.
    pub gather_s: f64,
    /// Duration of an inelastic learner's restart, in seconds. Default: 80, our own choice.
    pub restart_s: f64,
    /// Distribution of the time until interrupted chips return.
    pub away: Delay,
    /// Standard deviation of the slices' speed, as a fraction of the mean. A learner is as fast as its slowest slice.
    /// Default: 0.001, our own choice.
    pub speed_spread: f64,
}

impl Default for Constants {
    fn default() -> Self {
        Self {
            mtbi_s: 365.0 * 24.0 * 3_600.0,
            slice_chips: 64,
            step_s: 4.0,
            down_scale_s: 22.0,
            up_scale_s: 20.0,
            gather_s: 180.0,
            restart_s: 80.0,
            away: Delay::default(),
            speed_spread: 0.001,
        }
    }
}

/// Exponentiated Weibull distribution, F(t) = (1 − exp(−(t/scale)^shape))^exponent. The paper names this family.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Delay {
    /// Scale, in seconds. Default: 300, our own choice.
    pub scale_s: f64,
    /// Shape; below 1 for a heavy tail. Default: 0.8, our own choice.
    pub shape: f64,
    /// Exponent; above 1 to make short delays rare. Default: 2, our own choice.
    pub exponent: f64,
}

impl Default for Delay {
    fn default() -> Self {
        Self { scale_s: 300.0, shape: 0.8, exponent: 2.0 }
    }
}

impl Delay {
    /// Draws a delay in seconds, as F⁻¹ of a uniform random number.
    pub fn draw_s(&self, rng: &mut Rng) -> f64 {
        let below = libm::pow(rng.unit(), 1.0 / self.exponent);
        self.scale_s * libm::pow(-libm::log1p(-below), 1.0 / self.shape)
    }
}

/// Result of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    /// Fraction of the chip time that was spent training, 0 to 1.
    pub goodput: f64,
    /// Fraction of the time in which at least one learner trained, 0 to 1.
    pub uptime: f64,
    /// Number of interruptions.
    pub interruptions: u64,
    /// Number of stops of any learner.
    pub stops: u64,
    /// Mean fraction of chips that were absent, 0 to 1.
    pub away: f64,
}

/// Result of one learner.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stops {
    /// Training time in seconds, weighted by the fraction of participating chips and by their speed.
    pub trained_s: f64,
    /// Start and end of each stop, in seconds, in chronological order.
    pub stopped_s: Vec<(f64, f64)>,
}

/// Reason why a cluster cannot be simulated.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// A number is out of range.
    #[error("{what} is {value}: give {range}")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// The value.
        value: f64,
        /// Description of the range.
        range: &'static str,
    },
    /// The simulation would take too long.
    #[error(
        "{expected:.0} interruptions are more than {most:.0}: give fewer hours or chips, or a longer MTBI"
    )]
    TooMany {
        /// Expected number of interruptions.
        expected: f64,
        /// Maximum expected number of interruptions.
        most: f64,
    },
}

impl Cluster {
    /// Creates a machine with elastic learners and the default constants.
    #[must_use]
    pub fn new(chips: u64, learners: u32) -> Self {
        Self { chips, learners, elastic: true, constants: Constants::default() }
    }

    /// Creates a machine with one inelastic learner, that is, lockstep training that restarts as a whole.
    #[must_use]
    pub fn rigid(chips: u64) -> Self {
        Self { elastic: false, ..Self::new(chips, 1) }
    }

    /// Simulates the machine for `hours` hours.
    ///
    /// # Errors
    /// - [`ClusterError::Range`]: a number of the cluster, or `hours`, is out of range.
    /// - [`ClusterError::TooMany`]: more than 20 million interruptions are expected.
    pub fn simulate(&self, seed: u64, hours: f64) -> Result<Goodput, ClusterError> {
        self.check(hours)?;
        let end_s = hours * 3_600.0;
        let mut all = Goodput { goodput: 0.0, uptime: 0.0, interruptions: 0, stops: 0, away: 0.0 };
        // Spans in which none of the learners so far trained.
        let mut down = vec![(0.0, end_s)];
        for (chips, learner) in self.learners(seed, end_s) {
            let share = chips as f64 / self.chips as f64;
            all.goodput += share * learner.trained_s / end_s;
            all.away += share * learner.away_s / end_s;
            all.interruptions += learner.interruptions;
            all.stops += learner.stopped.len() as u64;
            down = both(&down, &learner.stopped);
        }
        all.uptime = 1.0 - down.iter().map(|(from, until)| until - from).sum::<f64>() / end_s;
        Ok(all)
    }

    /// Simulates the machine as [`Self::simulate`] does, and returns training time and stops of each learner.
    ///
    /// # Errors
    /// Those of [`Self::simulate`].
    pub fn stops(&self, seed: u64, hours: f64) -> Result<Vec<Stops>, ClusterError> {
        self.check(hours)?;
        let stops = |(_, learner): (u64, SimulatedLearner<'_>)| Stops {
            trained_s: learner.trained_s,
            stopped_s: learner.stopped,
        };
        Ok(self.learners(seed, hours * 3_600.0).map(stops).collect())
    }

    /// Simulates each learner, and returns its number of chips with the result.
    fn learners(&self, seed: u64, end_s: f64) -> impl Iterator<Item = (u64, SimulatedLearner<'_>)> {
        let (each, more) = (self.chips / u64::from(self.learners), self.chips % u64::from(self.learners));
        (0..u64::from(self.learners)).map(move |learner| {
            let chips = each + u64::from(learner < more);
            let rng = Rng::stream(seed, learner);
            let mut learner = SimulatedLearner::new(chips, self.elastic, &self.constants, rng);
            learner.run(end_s);
            (chips, learner)
        })
    }

    fn check(&self, hours: f64) -> Result<(), ClusterError> {
        let Constants { mtbi_s, step_s, down_scale_s, up_scale_s, gather_s, restart_s, .. } = self.constants;
        let Delay { scale_s, shape, exponent } = self.constants.away;
        let learners = f64::from(self.learners);
        let fits = self.learners <= LEARNERS_MAX;
        range("the number of learners", learners, learners >= 1.0 && fits, "1 to 65536")?;
        range(
            "the number of chips",
            self.chips as f64,
            (self.learners.into()..=CHIPS_MAX).contains(&self.chips),
            "one for each learner, up to 100000000",
        )?;
        let slice = self.constants.slice_chips;
        range("the number of chips in a slice", slice.into(), slice > 0, "1 or more")?;
        for (what, value) in [
            ("the number of hours", hours),
            ("the MTBI", mtbi_s),
            ("the scale of the delay", scale_s),
            ("the shape of the delay", shape),
            ("the exponent of the delay", exponent),
        ] {
            range(what, value, value.is_finite() && value > 0.0, "a number above 0")?;
        }
        for (what, value) in [
            ("the step", step_s),
            ("the down-scale", down_scale_s),
            ("the up-scale", up_scale_s),
            ("the time to gather", gather_s),
            ("the restart", restart_s),
        ] {
            range(what, value, value.is_finite() && value >= 0.0, "a number of seconds from 0")?;
        }
        let spread = self.constants.speed_spread;
        range("the spread of speeds", spread, (0.0..=0.25).contains(&spread), "0 to 0.25")?;
        let expected = hours * 3_600.0 / mtbi_s * self.chips as f64;
        match expected <= INTERRUPTIONS_MAX {
            true => Ok(()),
            false => Err(ClusterError::TooMany { expected, most: INTERRUPTIONS_MAX }),
        }
    }
}

fn range(what: &'static str, value: f64, holds: bool, range: &'static str) -> Result<(), ClusterError> {
    if holds { Ok(()) } else { Err(ClusterError::Range { what, value, range }) }
}

/// Returns the intersection of two lists of spans. In each list, spans are sorted and disjoint.
fn both(a: &[(f64, f64)], b: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let (mut i, mut j, mut overlaps) = (0, 0, Vec::new());
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        let (from, until) = (x.0.max(y.0), x.1.min(y.1));
        if from < until {
            overlaps.push((from, until));
        }
        if x.1 < y.1 { i += 1 } else { j += 1 }
    }
    overlaps
}

/// Simulation of one learner, from stop to stop.
struct SimulatedLearner<'a> {
    /// Training time in seconds, weighted by the fraction of participating chips and by their speed.
    trained_s: f64,
    /// Time in seconds, weighted by the fraction of absent chips.
    away_s: f64,
    interruptions: u64,
    /// Start and end of each stop, in seconds, in chronological order.
    stopped: Vec<(f64, f64)>,
    constants: &'a Constants,
    elastic: bool,
    chips: f64,
    /// Number of participating chips.
    taking_part: f64,
    /// Speed of the slowest slice, relative to the mean.
    speed: f64,
    /// Return times of absent slices, earliest first. A past time means that the slice waits to be taken back. Times
    /// are seconds as the bits of an `f64`, which sort like the numbers because these are not negative.
    back: BinaryHeap<Reverse<u64>>,
    rng: Rng,
}

impl<'a> SimulatedLearner<'a> {
    fn new(chips: u64, elastic: bool, constants: &'a Constants, mut rng: Rng) -> Self {
        let slices = chips.div_ceil(constants.slice_chips.into());
        // The model ignores that the slowest slice may be absent.
        let speeds = (0..slices).map(|_| 1.0 + constants.speed_spread * f64::from(rng.normal()));
        let speed = if constants.speed_spread > 0.0 { speeds.fold(f64::INFINITY, f64::min) } else { 1.0 };
        Self {
            trained_s: 0.0,
            away_s: 0.0,
            interruptions: 0,
            stopped: Vec::new(),
            constants,
            elastic,
            chips: chips as f64,
            taking_part: chips as f64,
            speed,
            back: BinaryHeap::new(),
            rng,
        }
    }

    fn run(&mut self, end_s: f64) {
        let mut now_s = 0.0;
        while now_s < end_s {
            now_s = self.train_and_stop(now_s, end_s);
        }
    }

    /// Trains from `now_s` until the next stop. Returns the end of that stop.
    fn train_and_stop(&mut self, now_s: f64, end_s: f64) -> f64 {
        let interrupted_s = now_s + self.until_interrupted_s();
        // The limit `now_s` keeps slices that have waited from moving time backwards.
        let due_s = self.next_back_s().map_or(f64::INFINITY, |s| s + self.constants.gather_s).max(now_s);
        let event_s = interrupted_s.min(due_s).min(end_s);
        let stop_s = self.end_of_step(now_s, event_s).min(end_s);
        let share = self.taking_part / self.chips;
        self.trained_s += (stop_s - now_s) * share * self.speed;
        self.away_s += (stop_s - now_s) * (1.0 - share);
        if stop_s >= end_s {
            return end_s;
        }

        let mut lost = self.interrupt(interrupted_s, stop_s);
        let mut stop_for_s = 0.0_f64;
        if !lost.is_empty() {
            let Constants { down_scale_s, restart_s, .. } = *self.constants;
            stop_for_s = if self.elastic { down_scale_s } else { restart_s };
        }
        let taken_in = self.take_in(stop_s);
        if taken_in > 0.0 {
            stop_for_s = stop_for_s.max(self.constants.up_scale_s);
        }
        let resumes_s = stop_s + stop_for_s;
        // Slices that are interrupted during the stop need no further stop.
        let next_s = stop_s + self.until_interrupted_s();
        lost.extend(self.interrupt(next_s, resumes_s));
        self.away_s += (resumes_s.min(end_s) - stop_s) * (1.0 - self.taking_part / self.chips);
        self.taking_part += taken_in;
        for (lost_s, chips) in lost {
            match self.elastic {
                true => self.send_away(lost_s),
                // A spare slice replaces it during the restart.
                false => self.taking_part += chips,
            }
        }
        if stop_for_s > 0.0 {
            self.stopped.push((stop_s, resumes_s.min(end_s)));
        }
        resumes_s
    }

    /// Removes the slices that are interrupted from `first_s` to `until_s`. Returns the time of each loss and its
    /// number of chips.
    fn interrupt(&mut self, first_s: f64, until_s: f64) -> Vec<(f64, f64)> {
        let (mut at_s, mut lost) = (first_s, Vec::new());
        while at_s <= until_s {
            let chips = f64::from(self.constants.slice_chips).min(self.taking_part);
            self.taking_part -= chips;
            self.interruptions += 1;
            lost.push((at_s, chips));
            at_s += self.until_interrupted_s();
        }
        lost
    }

    fn until_interrupted_s(&mut self) -> f64 {
        match self.taking_part > 0.0 {
            true => self.rng.exponential() * self.constants.mtbi_s / self.taking_part,
            false => f64::INFINITY,
        }
    }

    fn send_away(&mut self, lost_s: f64) {
        let back_s = lost_s + self.constants.away.draw_s(&mut self.rng);
        self.back.push(Reverse(back_s.to_bits()));
    }

    fn next_back_s(&self) -> Option<f64> {
        self.back.peek().map(|back| f64::from_bits(back.0))
    }

    /// Removes the slices that have returned by `now_s` from the queue. Returns their number of chips.
    fn take_in(&mut self, now_s: f64) -> f64 {
        let mut slices = 0_u32;
        while self.next_back_s().is_some_and(|back_s| back_s <= now_s) {
            self.back.pop();
            slices += 1;
        }
        let away = self.chips - self.taking_part;
        (f64::from(slices) * f64::from(self.constants.slice_chips)).min(away)
    }

    /// Returns the end of the step in which `event_s` falls. Steps began at `now_s`.
    fn end_of_step(&self, now_s: f64, event_s: f64) -> f64 {
        let step_s = self.constants.step_s;
        if step_s <= 0.0 || event_s == f64::INFINITY {
            return event_s;
        }
        // Rounding must not put the end before the event.
        (now_s + libm::ceil((event_s - now_s) / step_s) * step_s).max(event_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns constants without the effects that the closed formulas neglect.
    fn plain() -> Constants {
        Constants { step_s: 0.0, speed_spread: 0.0, slice_chips: 1, ..Constants::default() }
    }

    fn goodput(cluster: Cluster, hours: f64) -> f64 {
        100.0 * cluster.simulate(1, hours).unwrap().goodput
    }

    /// Goal: every cell of Table 1 is within 3 percentage points.
    #[test]
    fn the_papers_table_is_met() {
        let chips = [150_000, 300_000, 600_000, 1_200_000, 2_400_000];
        let table = [
            (0, [72.0, 57.0, 38.0, 27.0, 18.0]),
            (1, [88.0, 80.0, 69.0, 58.0, 40.0]),
            (2, [94.0, 88.0, 80.0, 70.0, 54.0]),
            (4, [96.0, 93.0, 89.0, 82.0, 73.0]),
            (8, [98.0, 96.0, 94.0, 88.0, 80.0]),
            (16, [99.0, 98.0, 96.0, 93.0, 86.0]),
        ];
        for (learners, row) in table {
            for (chips, paper) in chips.into_iter().zip(row) {
                let cluster =
                    if learners == 0 { Cluster::rigid(chips) } else { Cluster::new(chips, learners) };
                let ours = goodput(cluster, 200.0);
                assert!((ours - paper).abs() <= 3.0, "M = {learners}, {chips} chips: {ours} beside {paper}");
            }
        }
    }

    /// Goal: with a stop of R seconds after a mean of 1/λ seconds of training, goodput is 1/(1 + λR).
    #[test]
    fn restarts_follow_the_closed_formula() {
        for chips in [150_000, 1_200_000] {
            let cluster = Cluster { constants: plain(), ..Cluster::rigid(chips) };
            let rate = chips as f64 / cluster.constants.mtbi_s;
            let expected = 100.0 / (1.0 + rate * cluster.constants.restart_s);
            let ours = goodput(cluster, 1_000.0);
            assert!((ours - expected).abs() < 0.5, "{chips}: {ours} beside {expected}");
        }
    }

    /// Goal: if returned chips are never taken back but do not matter, each interruption costs one down-scale.
    #[test]
    fn down_scales_follow_the_closed_formula() {
        let constants = Constants { gather_s: 1e12, up_scale_s: 0.0, ..plain() };
        let cluster = Cluster { constants, ..Cluster::new(600_000, 2) };
        let expected = 100.0 / (1.0 + 300_000.0 / constants.mtbi_s * constants.down_scale_s);
        let ours = goodput(cluster, 1_000.0);
        assert!((ours - expected).abs() < 0.5, "{ours} beside {expected}");
    }

    #[test]
    fn more_learners_are_one_learner_on_fewer_chips() {
        let (one, eight) =
            (goodput(Cluster::new(150_000, 1), 500.0), goodput(Cluster::new(1_200_000, 8), 500.0));
        assert!((one - eight).abs() < 0.5, "{one} {eight}");
    }

    #[test]
    fn with_several_learners_uptime_is_near_one() {
        let uptime = |learners| Cluster::new(2_400_000, learners).simulate(1, 100.0).unwrap().uptime;
        let alone = Cluster { constants: plain(), ..Cluster::rigid(1_200_000) }.simulate(1, 100.0).unwrap();
        assert!((alone.uptime - alone.goodput).abs() < 1e-9, "{alone:?}");
        assert!(uptime(4) > 0.98 && uptime(8) > 0.999, "{} {}", uptime(4), uptime(8));
    }

    #[test]
    fn the_slowest_slice_sets_the_pace() {
        let with = |speed_spread| {
            let constants = Constants { speed_spread, mtbi_s: 1e15, ..Constants::default() };
            goodput(Cluster { constants, ..Cluster::new(150_000, 1) }, 10.0)
        };
        assert!((with(0.0) - 100.0).abs() < 1e-6, "{}", with(0.0));
        // The slowest of 2,344 slices is about three standard deviations below the mean.
        assert!((96.5..97.5).contains(&with(0.01)), "{}", with(0.01));
    }

    #[test]
    fn delays_have_the_quantiles_they_promise() {
        let delay = Delay { scale_s: 100.0, shape: 0.5, exponent: 3.0 };
        let mut rng = Rng::new(4);
        let mut delays: Vec<f64> = (0..20_000).map(|_| delay.draw_s(&mut rng)).collect();
        delays.sort_by(f64::total_cmp);
        for at in [20.0, 100.0, 500.0, 2_000.0] {
            let promised = (1.0 - (-(at / 100.0_f64).sqrt()).exp()).powi(3);
            let found = delays.partition_point(|delay| *delay <= at) as f64 / 20_000.0;
            assert!((found - promised).abs() < 0.015, "{at}: {found} beside {promised}");
        }
    }

    #[test]
    fn one_seed_one_result_and_shares_stay_shares() {
        let cluster = Cluster::new(2_400_000, 4);
        assert_eq!(cluster.simulate(7, 20.0), cluster.simulate(7, 20.0));
        assert_ne!(cluster.simulate(7, 20.0), cluster.simulate(8, 20.0));
        // This cluster is a single slice that is absent most of the time.
        let constants = Constants { mtbi_s: 3_600.0, ..Constants::default() };
        let hopeless = Cluster { constants, ..Cluster::new(64, 1) }.simulate(1, 1_000.0).unwrap();
        for share in [hopeless.goodput, hopeless.uptime, hopeless.away] {
            assert!((0.0..=1.0).contains(&share), "{hopeless:?}");
        }
        assert!(hopeless.goodput < 0.3 && hopeless.away > 0.5, "{hopeless:?}");
    }

    #[test]
    fn nonsense_is_refused() {
        let check = |change: fn(&mut Cluster)| {
            let mut cluster = Cluster::new(1_000, 4);
            change(&mut cluster);
            cluster.simulate(1, 1.0).unwrap_err()
        };
        for error in [
            check(|cluster| cluster.learners = 0),
            check(|cluster| cluster.learners = u32::MAX),
            check(|cluster| cluster.chips = 3),
            check(|cluster| cluster.constants.mtbi_s = 0.0),
            check(|cluster| cluster.constants.step_s = f64::NAN),
            check(|cluster| cluster.constants.away.shape = -1.0),
            check(|cluster| cluster.constants.slice_chips = 0),
            check(|cluster| cluster.constants.speed_spread = 1.0),
        ] {
            assert!(matches!(error, ClusterError::Range { .. }), "{error}");
        }
        assert!(matches!(check(|cluster| cluster.constants.mtbi_s = 1e-3), ClusterError::TooMany { .. }));
        assert!(Cluster::new(1, 1).simulate(1, f64::INFINITY).is_err());
    }
}
