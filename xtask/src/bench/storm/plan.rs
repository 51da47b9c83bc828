//! Schedule of faults, as a function of a seed.

use std::time::Duration;

use archipelago_shaper::Weather;

use crate::bench::chance::Chance;

/// Mean time between two faults: 180 an hour.
const GAP_MS: u64 = 20_000;
/// Time before the end in which no fault starts, so that the recovery from each fault is observed.
const CALM_MS: u64 = 40_000;
/// Minimum duration of a fault, and maximum addition to it.
const LASTS_MS: [u64; 2] = [2_000, 18_000];
/// Time without faults for a learner after a fault.
const REST_MS: u64 = 20_000;

/// Kind of fault.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A learner is killed (SIGKILL), and restarted at the end.
    Killed,
    /// A learner is stopped (SIGSTOP), and continues at the end.
    Frozen,
    /// A learner's link has these conditions until the end.
    Link(&'static str, Weather),
    /// The syncer is killed (SIGKILL), and restarted at once.
    Syncer,
}

impl Kind {
    /// Returns the name of the fault in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Frozen => "frozen",
            Self::Link(name, _) => name,
            Self::Syncer => "syncer killed",
        }
    }
}

/// Fault. Times are relative to the time when all learners took part.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    pub kind: Kind,
    /// Index of the affected learner; unused for [`Kind::Syncer`].
    pub learner: usize,
    pub from: Duration,
    /// End of the cause.
    pub until: Duration,
}

impl Fault {
    /// Returns the number of the affected learner, from 1; `None` for a fault of the syncer.
    pub fn island(&self) -> Option<usize> {
        (self.kind != Kind::Syncer).then_some(self.learner + 1)
    }
}

/// Returns every kind once, in the order of a storm, which repeats after the last one.
fn kinds() -> Vec<Kind> {
    let fair = Weather::FAIR;
    let far = Weather { delay: Duration::from_millis(150), ..fair };
    vec![
        Kind::Killed,
        Kind::Link("cut off", Weather { cut: true, ..fair }),
        Kind::Frozen,
        Kind::Link("far away", far),
        Kind::Syncer,
        Kind::Killed,
        Kind::Link("thin line", Weather { mbit_per_s: Some(1.0), ..fair }),
        Kind::Link("lossy line", Weather { lost: 0.03, ..fair }),
    ]
}

/// Returns the faults of a run of `length` with `learners` learners.
pub fn plan(seed: u64, learners: usize, length: Duration) -> Vec<Fault> {
    let (mut chance, mut faults) = (Chance::new(seed), Vec::<Fault>::new());
    let mut kinds = kinds().into_iter().cycle();
    let end_ms = (length.as_millis() as u64).saturating_sub(CALM_MS);
    let mut at_ms = GAP_MS / 2;
    while at_ms < end_ms {
        let kind = kinds.next().expect("a cycle never ends");
        let from = Duration::from_millis(at_ms);
        let lasts_ms = match kind {
            Kind::Syncer => 0,
            _ => LASTS_MS[0] + chance.below(LASTS_MS[1]),
        };
        let rests = |learner: usize| {
            let rest = Duration::from_millis(REST_MS);
            let touches = |fault: &Fault| fault.kind != Kind::Syncer && fault.learner == learner;
            !faults.iter().any(|fault| touches(fault) && fault.until + rest > from)
        };
        let first = chance.below(learners as u64) as usize;
        let learner = (0..learners).map(|more| (first + more) % learners).find(|&learner| rests(learner));
        // With few learners all of them may be at rest; then this fault is skipped.
        if let Some(learner) = learner {
            faults.push(Fault { kind, learner, from, until: from + Duration::from_millis(lasts_ms) });
        }
        at_ms += GAP_MS / 2 + chance.below(GAP_MS);
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(480);

    #[test]
    fn a_seed_decides_all_of_it() {
        assert_eq!(plan(3, 32, LENGTH), plan(3, 32, LENGTH));
        assert_ne!(plan(3, 32, LENGTH), plan(4, 32, LENGTH));
    }

    #[test]
    fn every_kind_comes_often_and_nobody_has_two_at_once() {
        for seed in 0..20 {
            let faults = plan(seed, 32, LENGTH);
            // The limit is 125 an hour.
            assert!(faults.len() >= 17, "{}", faults.len());
            for kind in kinds() {
                assert!(faults.iter().any(|fault| fault.kind == kind), "{}", kind.name());
            }
            for (at, fault) in faults.iter().enumerate() {
                assert!(fault.until + Duration::from_secs(20) <= LENGTH);
                let of_learner = |other: &&Fault| {
                    other.learner == fault.learner && ![other.kind, fault.kind].contains(&Kind::Syncer)
                };
                assert!(faults[at + 1..].iter().filter(of_learner).all(|later| later.from >= fault.until));
            }
        }
    }
}
