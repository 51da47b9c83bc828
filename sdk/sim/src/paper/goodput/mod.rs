//! Share of the time that a large machine trains while its chips fail and return: Table 1 of the paper.
//!
//! M learners on N chips are M independent clusters of N/M chips. Interruptions of chips are random (Poisson, one per
//! MTBI each). An elastic cluster stops briefly, continues without the affected slice, and takes it in again later; an
//! inelastic one restarts as a whole. The paper names these mechanisms and not their durations, so that all
//! [`Constants`] but the MTBI are our own.
//!
//! ```
//! use archipelago_sim::paper::goodput::Cluster;
//!
//! let lock_step = Cluster::new(1_200_000, 1).simulate(1, 100.0)?;
//! let decoupled = Cluster::new(1_200_000, 8).simulate(1, 100.0)?;
//! assert!(lock_step.goodput < 0.6 && decoupled.goodput > 0.85);
//! # Ok::<(), archipelago_sim::paper::goodput::ClusterError>(())
//! ```

mod learner;

use serde::{Deserialize, Serialize};

use crate::world::Rng;
use learner::Learner;

/// Largest expected number of interruptions in one simulation.
const INTERRUPTIONS_MAX: f64 = 2e7;

/// Largest number of chips in one simulation: each slice of them has its own speed.
const CHIPS_MAX: u64 = 100_000_000;

/// Largest number of learners in one simulation.
const LEARNERS_MAX: u32 = 1 << 16;

/// A machine of many chips.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// N, chips in total, at least one for each learner, up to 10⁸.
    pub chips: u64,
    /// M, learners that share them evenly, 1 to 65,536.
    pub learners: u32,
    /// Whether a learner continues without the chips that it lost.
    pub elastic: bool,
    /// Failure rates and durations.
    pub constants: Constants,
}

/// Failure rate of chips, and durations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Constants {
    /// Mean time between interruptions of one chip, in seconds. One year, from the paper.
    pub mtbi_s: f64,
    /// Chips that leave and return together. 64, our own choice.
    pub slice_chips: u32,
    /// Time of an inner step, in seconds. 4, our own choice. An interruption stops its learner at the end of the
    /// current step; several in one step share the stop.
    pub step_s: f64,
    /// Stop of an elastic learner that continues with fewer chips, in seconds. 22, our own choice.
    pub down_scale_s: f64,
    /// Stop of an elastic learner that takes in chips, in seconds. 20, our own choice.
    pub up_scale_s: f64,
    /// Time that returned chips wait for another stop before they cause one, in seconds. 180, our own choice.
    pub gather_s: f64,
    /// Stop of an inelastic learner, in seconds. 80, our own choice.
    pub restart_s: f64,
    /// Time until interrupted chips return.
    pub away: Delay,
    /// Standard deviation of the speed of slices over its mean. 0.001, our own choice. A learner is as fast as its
    /// slowest slice.
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

/// An exponentiated Weibull distribution, F(t) = (1 − exp(−(t/scale)^shape))^exponent; the family is the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Delay {
    /// Scale, in seconds. 300, our own choice.
    pub scale_s: f64,
    /// Shape; below 1 for a heavy tail. 0.8, our own choice.
    pub shape: f64,
    /// Exponent; above 1 for few short delays. 2, our own choice.
    pub exponent: f64,
}

impl Default for Delay {
    fn default() -> Self {
        Self { scale_s: 300.0, shape: 0.8, exponent: 2.0 }
    }
}

impl Delay {
    /// Draws a delay in seconds: F⁻¹ of a uniform number.
    pub fn draw_s(&self, rng: &mut Rng) -> f64 {
        let below = libm::pow(rng.unit(), 1.0 / self.exponent);
        self.scale_s * libm::pow(-libm::log1p(-below), 1.0 / self.shape)
    }
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    /// Share of the allocated chip time that trained, 0 to 1.
    pub goodput: f64,
    /// Share of the time in which at least one learner trained, 0 to 1.
    pub uptime: f64,
    /// Interruptions of chips.
    pub interruptions: u64,
    /// Stops of learners.
    pub stops: u64,
    /// Mean share of absent chips, 0 to 1.
    pub away: f64,
}

/// The result of one learner.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stops {
    /// Seconds of training, weighted by the share of its participating chips and their speed.
    pub trained_s: f64,
    /// Stops, (from, until) in seconds, in order.
    pub stopped_s: Vec<(f64, f64)>,
}

/// The reason why a cluster cannot be simulated.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ClusterError {
    /// A number is out of its range.
    #[error("{what} is {value}: give {range}")]
    Range {
        /// Name of the number.
        what: &'static str,
        /// The value.
        value: f64,
        /// The range.
        range: &'static str,
    },
    /// The simulation would take too long.
    #[error(
        "{expected:.0} interruptions are more than {most:.0}: give fewer hours or chips, or a longer MTBI"
    )]
    TooMany {
        /// Expected number of interruptions.
        expected: f64,
        /// Largest number allowed.
        most: f64,
    },
}

impl Cluster {
    /// Creates a machine of elastic learners with the default constants.
    #[must_use]
    pub fn new(chips: u64, learners: u32) -> Self {
        Self { chips, learners, elastic: true, constants: Constants::default() }
    }

    /// Creates a machine with one learner that restarts as a whole: lockstep training without elasticity.
    #[must_use]
    pub fn rigid(chips: u64) -> Self {
        Self { elastic: false, ..Self::new(chips, 1) }
    }

    /// Simulates `hours` hours.
    ///
    /// # Errors
    /// - [`ClusterError::Range`]: a number of the cluster, or `hours`, is out of range.
    /// - [`ClusterError::TooMany`]: more than 20 million interruptions are expected.
    pub fn simulate(&self, seed: u64, hours: f64) -> Result<Goodput, ClusterError> {
        self.check(hours)?;
        let end_s = hours * 3_600.0;
        let mut all = Goodput { goodput: 0.0, uptime: 0.0, interruptions: 0, stops: 0, away: 0.0 };
        // Spans in which no learner so far trained.
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

    /// Simulates the same for each learner separately, with the spans of its stops.
    ///
    /// # Errors
    /// Those of [`Self::simulate`].
    pub fn stops(&self, seed: u64, hours: f64) -> Result<Vec<Stops>, ClusterError> {
        self.check(hours)?;
        let stops = |(_, learner): (u64, Learner<'_>)| Stops {
            trained_s: learner.trained_s,
            stopped_s: learner.stopped,
        };
        Ok(self.learners(seed, hours * 3_600.0).map(stops).collect())
    }

    /// Returns the chips of each learner, with its simulation.
    fn learners(&self, seed: u64, end_s: f64) -> impl Iterator<Item = (u64, Learner<'_>)> {
        let (each, more) = (self.chips / u64::from(self.learners), self.chips % u64::from(self.learners));
        (0..u64::from(self.learners)).map(move |learner| {
            let chips = each + u64::from(learner < more);
            let rng = Rng::stream(seed, learner);
            let mut learner = Learner::new(chips, self.elastic, &self.constants, rng);
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

/// Returns the overlaps of two lists of spans; both are sorted and disjoint.
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

#[cfg(test)]
mod tests;
