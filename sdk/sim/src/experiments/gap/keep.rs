//! Runs that were made, a line of JSON each.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use archipelago_sim::lab::{Outcome, Sample};
use serde::{Deserialize, Serialize};

use super::key::Key;
use crate::experiments::SimulateError;

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

/// All that were made, in a file if there is one.
pub(super) struct Kept {
    made: BTreeMap<Key, Made>,
    file: Option<(PathBuf, File)>,
}

impl Kept {
    /// Those of `path`, which is made if it is not there. A last line that was cut off counts as not written.
    ///
    /// # Errors
    /// - `Disk`: it cannot be read or written.
    /// - `Refused`: a line is no run.
    pub(super) fn open(path: Option<&Path>) -> Result<Self, SimulateError> {
        let Some(path) = path else { return Ok(Self { made: BTreeMap::new(), file: None }) };
        let disk = |what| move |source| SimulateError::Disk { what, path: path.to_owned(), source };
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(path).map_err(disk("open"))?;
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(disk("read"))?;
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        if whole < text.len() {
            file.set_len(whole as u64).map_err(disk("mend"))?;
        }
        let made = parse(&text[..whole], path)?.into_iter().map(|run| (run.key.clone(), run)).collect();
        Ok(Self { made, file: Some((path.to_owned(), file)) })
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Made> {
        self.made.get(key)
    }

    /// Keeps one more.
    ///
    /// # Errors
    /// `Disk`
    pub(super) fn add(&mut self, made: Made) -> Result<(), SimulateError> {
        if let Some((path, file)) = &mut self.file {
            let line = serde_json::to_string(&made).expect("plain data") + "\n";
            let disk = |source| SimulateError::Disk { what: "write", path: path.clone(), source };
            file.write_all(line.as_bytes()).map_err(disk)?;
        }
        self.made.insert(made.key.clone(), made);
        Ok(())
    }
}

/// The runs of `text`, a line each, which stands in the file at `path`.
///
/// # Errors
/// `Refused`: a line is no run.
pub(super) fn parse(text: &str, path: &Path) -> Result<Vec<Made>, SimulateError> {
    let run = |(line, number): (&str, usize)| {
        serde_json::from_str(line).map_err(|error| {
            SimulateError::refused(format!(
                "line {number} of {} is no run: {error}; take it out, or give another file",
                path.display()
            ))
        })
    };
    text.lines().zip(1..).map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::super::key::Side;
    use super::*;
    use crate::experiments::Exit;

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
        let mut kept = Kept::open(Some(&path)).unwrap();
        let blown = Made::failed(made(2).key, "the held-out loss is NaN".into());
        kept.add(made(1)).unwrap();
        kept.add(blown.clone()).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, whole.clone() + &whole[..40]).unwrap();
        let mut kept = Kept::open(Some(&path)).unwrap();
        assert_eq!(kept.get(&made(1).key), Some(&made(1)));
        assert_eq!(kept.get(&made(2).key), Some(&blown));
        kept.add(made(3)).unwrap();
        let after = std::fs::read_to_string(&path).unwrap();
        assert!(after.starts_with(&whole) && after.lines().count() == 3, "{after}");

        std::fs::write(&path, "{}\n").unwrap();
        let error = Kept::open(Some(&path)).err().unwrap();
        assert!(error.exit() == Exit::Settings && error.to_string().contains("line 1 of"), "{error}");
        let error = Kept::open(Some(folder.path())).err().unwrap();
        assert_eq!(error.exit(), Exit::Disk);
    }
}
