//! What happens to whom, and when: a function of a seed.

use std::time::Duration;

use archipelago_shaper::Weather;

use crate::bench::chance::Chance;

/// Mean time between two faults: 180 an hour.
const GAP_MS: u64 = 20_000;
/// So long before the end nothing begins any more, so that it is seen how each fault ends.
const CALM_MS: u64 = 40_000;
/// A fault lasts so long at least, and so much longer at most.
const LASTS_MS: [u64; 2] = [2_000, 18_000];
/// A learner is left alone for so long after a fault has ended.
const REST_MS: u64 = 20_000;

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A learner is killed (SIGKILL), and started again at the end.
    Killed,
    /// A learner is held still (SIGSTOP), and goes on at the end.
    Frozen,
    /// A learner's link has this weather until the end.
    Link(&'static str, Weather),
    /// The syncer is killed (SIGKILL), and started again at once.
    Syncer,
}

impl Kind {
    /// Its name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Killed => "killed",
            Self::Frozen => "frozen",
            Self::Link(name, _) => name,
            Self::Syncer => "syncer killed",
        }
    }
}

/// One fault. Times are counted from when all learners took part.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    pub kind: Kind,
    /// Index of the learner that it befalls; nobody's for [`Kind::Syncer`].
    pub learner: usize,
    pub from: Duration,
    /// When its cause ends.
    pub until: Duration,
}

impl Fault {
    /// The number of the learner that it befalls, from 1; `None` if that is nobody.
    pub fn island(&self) -> Option<usize> {
        (self.kind != Kind::Syncer).then_some(self.learner + 1)
    }
}

/// Every kind once, in the order in which one storm has them before any comes again.
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

/// The faults of a run of `length` with so many learners.
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
        // With few learners all of them may be at rest; then this fault is left out.
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
            // 125 an hour is the bar.
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
