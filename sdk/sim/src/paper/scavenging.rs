//! Value of temporary learners: the paper's table of scavenged compute.
//!
//! Four learners train from the beginning; others join when half of the tokens are processed, and stay. Figures are
//! wall times to the same number of tokens, relative to the four alone.

use super::trial::{TrialError, merged_at_ms, range};
use crate::world::{MachineSpec, World};

/// Largest number of steps of one learner in a trial.
const STEPS_MAX: u32 = 100_000;

/// Largest number of learners in a trial.
const LEARNERS_MAX: u32 = 64;

/// Tokens of a step of the toys.
const STEP_TOKENS: u64 = 32;

/// Decoupled training, measured on the real cores in virtual time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scavenging {
    /// Learners from the beginning, 1 to 64.
    pub learners: u32,
    /// Steps of each of them without extra learners, 20 to 100,000.
    pub steps: u32,
    /// Time of a step, in milliseconds, 10 to 60,000.
    pub step_ms: u64,
}

impl Default for Scavenging {
    fn default() -> Self {
        Self { learners: 4, steps: 1_800, step_ms: 1_000 }
    }
}

impl Scavenging {
    /// Returns the wall times with each number of `extra` learners, relative to the time without any.
    ///
    /// # Errors
    /// Each variant of [`TrialError`] except `Syncer`.
    pub fn relative_wall(&self, seed: u64, extra: &[u32]) -> Result<Vec<f64>, TrialError> {
        range("the number of learners", self.learners.into(), 1.0, LEARNERS_MAX.into(), "1 to 64")?;
        range("the number of steps", self.steps.into(), 20.0, STEPS_MAX.into(), "20 to 100000")?;
        // Casting is harmless: values out of range are refused either way.
        range("the step in milliseconds", self.step_ms as f64, 10.0, 60_000.0, "10 to 60000")?;
        for &extra in extra {
            range("the number of extra learners", extra.into(), 0.0, LEARNERS_MAX.into(), "0 to 64")?;
        }
        let tokens = u64::from(self.learners) * u64::from(self.steps) * STEP_TOKENS;
        let ms_max = 4 * u64::from(self.steps) * self.step_ms;
        let mut alone = self.world(seed, 0, 0);
        let half_ms = merged_at_ms(&mut alone, tokens / 2, self.step_ms, ms_max)?;
        let alone_ms = merged_at_ms(&mut alone, tokens, self.step_ms, ms_max)?;
        let wall = |&extra: &u32| {
            let mut world = self.world(seed, extra, half_ms);
            let ms = merged_at_ms(&mut world, tokens, self.step_ms, ms_max)?;
            Ok(ms as f64 / alone_ms as f64)
        };
        extra.iter().map(wall).collect()
    }

    fn world(&self, seed: u64, extra: u32, starts_ms: u64) -> World {
        let machine = MachineSpec { step_ms: self.step_ms, ..MachineSpec::default() };
        let mut machines = vec![machine; self.learners as usize];
        machines.extend(vec![MachineSpec { starts_ms, ..machine }; extra as usize]);
        World::of_toys(seed, machines)
    }
}

/// Data-parallel training with temporary learners: a formula with our own constants.
///
/// The state of the optimiser is spread over all learners. Each change of membership stops all of them while 1/M of the
/// state goes over one link, since all links work at once. Temporary learners change often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LockStep {
    /// Learners from the beginning, above 0.
    pub learners: f64,
    /// Bytes of parameters and moments together. 60 GB, our own choice: 5 billion parameters of 12 bytes.
    pub state_bytes: f64,
    /// Rate of each learner's link, in bit/s. 10⁹, our own choice.
    pub link_bits_per_s: f64,
    /// Mean time between two changes of one temporary learner, in seconds. 230, our own choice.
    pub change_every_s: f64,
}

impl Default for LockStep {
    fn default() -> Self {
        Self { learners: 4.0, state_bytes: 60e9, link_bits_per_s: 1e9, change_every_s: 230.0 }
    }
}

impl LockStep {
    /// Returns the wall time with `extra` learners for half of the tokens, relative to the time without any.
    ///
    /// With x = extra/M, and L the seconds that the whole state takes over one link: ½ + ½/(1+x) · (1 + extra ·
    /// L/((1+x)·M) / change_every).
    #[must_use]
    pub fn relative_wall(&self, extra: f64) -> f64 {
        let all = self.learners + extra;
        let load_s = 8.0 * self.state_bytes / self.link_bits_per_s / all;
        let stopped = extra * load_s / self.change_every_s;
        0.5 + 0.5 * self.learners / all * (1.0 + stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTRA: [u32; 4] = [1, 2, 4, 12];

    #[test]
    fn decoupled_learners_use_all_that_comes() {
        let scavenging = Scavenging { steps: 1_200, ..Scavenging::default() };
        let walls = scavenging.relative_wall(1, &EXTRA).unwrap();
        for (ours, paper) in walls.iter().zip([0.90, 0.83, 0.75, 0.62]) {
            assert!((ours / paper - 1.0).abs() < 0.03, "{walls:?}");
        }
        assert_eq!(scavenging.relative_wall(1, &[0]).unwrap(), [1.0]);
    }

    #[test]
    fn lock_step_pays_for_it() {
        let model = LockStep::default();
        assert_eq!(model.relative_wall(0.0), 1.0);
        for (extra, paper) in EXTRA.into_iter().zip([1.07, 1.09, 1.02, 0.80]) {
            let ours = model.relative_wall(extra.into());
            assert!((ours / paper - 1.0).abs() < 0.03, "{extra}: {ours} beside {paper}");
        }
        let free = LockStep { link_bits_per_s: f64::INFINITY, ..model };
        assert_eq!(
            free.relative_wall(4.0),
            0.75,
            "without changes half of the tokens take half of their time"
        );
    }

    #[test]
    fn nonsense_is_refused() {
        let refused = |scavenging: Scavenging, extra| scavenging.relative_wall(1, &[extra]).is_err();
        assert!(refused(Scavenging { learners: 0, ..Scavenging::default() }, 1));
        assert!(refused(Scavenging { steps: 0, ..Scavenging::default() }, 1));
        assert!(refused(Scavenging { step_ms: 0, ..Scavenging::default() }, 1));
        assert!(refused(Scavenging::default(), u32::MAX));
    }
}
