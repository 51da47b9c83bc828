//! What runs led to.

use archipelago_sim::lab::{Outcome, Sample};
use serde::{Deserialize, Serialize};

use super::key::Key;
use crate::experiments::kept::Keyed;

/// What one run led to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Made {
    #[serde(flatten)]
    pub(super) key: Key,
    /// Why it led to nothing.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(super) failed: Option<String>,
    /// Loss of the last parameters and of the averaged ones on what is chosen by…
    pub(super) validation: [Option<f32>; 2],
    /// …and on what is told of.
    pub(super) test: [Option<f32>; 2],
    /// Mean steps of a learner.
    pub(super) steps: f64,
    /// Tokens trained, and the loss on what is chosen by.
    pub(super) course: Vec<(u64, f32)>,
}

impl Made {
    pub(super) fn of(key: Key, outcome: &Outcome) -> Self {
        let Outcome { loss, ends, steps_per_learner: steps, samples, .. } = outcome;
        let course = samples.iter().map(|&Sample { tokens, loss, .. }| (tokens, loss)).collect();
        let (validation, test) = ([Some(*loss), ends.averaged], [ends.test, ends.averaged_test]);
        Self { key, failed: None, validation, test, steps: *steps, course }
    }

    /// One that blew up: it is worse than any other.
    pub(super) fn failed(key: Key, why: String) -> Self {
        let nothing = [None, None];
        Self { key, failed: Some(why), validation: nothing, test: nothing, steps: 0.0, course: Vec::new() }
    }
}

impl Keyed for Made {
    type Key = Key;

    fn key(&self) -> &Key {
        &self.key
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::Side;
    use super::*;
    use crate::experiments::Exit;
    use crate::experiments::kept::Kept;

    fn made(seed: u64) -> Made {
        let key = Key {
            text: "a".into(),
            settings: "b".into(),
            side: Side::Decoupled,
            learners: 2,
            lr: "0.004".into(),
            warmup: "0.05".into(),
            seed,
            is_told: false,
        };
        let course = vec![(64, 3.5), (128, 3.25)];
        let (validation, test) = ([Some(3.25), Some(3.0)], [None, None]);
        Made { key, failed: None, validation, test, steps: 2.5, course }
    }

    #[test]
    fn runs_come_back_but_for_one_that_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        let mut kept = Kept::<Made>::open(Some(&path)).unwrap();
        let blown = Made::failed(made(2).key, "the held-out loss is NaN".into());
        kept.add(made(1)).unwrap();
        kept.add(blown.clone()).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, whole.clone() + &whole[..40]).unwrap();
        let mut kept = Kept::<Made>::open(Some(&path)).unwrap();
        assert_eq!(kept.get(&made(1).key), Some(&made(1)));
        assert_eq!(kept.get(&made(2).key), Some(&blown));
        kept.add(made(3)).unwrap();
        let after = std::fs::read_to_string(&path).unwrap();
        assert!(after.starts_with(&whole) && after.lines().count() == 3, "{after}");

        std::fs::write(&path, "{}\n").unwrap();
        let error = Kept::<Made>::open(Some(&path)).err().unwrap();
        assert!(error.exit() == Exit::Settings && error.to_string().contains("line 1 of"), "{error}");
        let error = Kept::<Made>::open(Some(folder.path())).err().unwrap();
        assert_eq!(error.exit(), Exit::Disk);
    }
}
