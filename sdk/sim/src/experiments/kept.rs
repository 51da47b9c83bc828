//! Runs that were made, a line of JSON each.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::SimulateError;

/// What a run led to, which says what run that was.
pub trait Keyed: Serialize + DeserializeOwned {
    /// What tells one run from another.
    type Key: Ord + Clone;

    /// That of this run.
    fn key(&self) -> &Self::Key;
}

/// All that were made, in a file if there is one.
pub struct Kept<M: Keyed> {
    made: BTreeMap<M::Key, M>,
    file: Option<(PathBuf, File)>,
}

impl<M: Keyed> Kept<M> {
    /// Those of `path`, which is made if it is not there. A last line that was cut off counts as not written.
    ///
    /// # Errors
    /// - `Disk`: it cannot be read or written.
    /// - `Refused`: a line is no run.
    pub fn open(path: Option<&Path>) -> Result<Self, SimulateError> {
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
        let made = parse(&text[..whole], path)?.into_iter().map(|run: M| (run.key().clone(), run)).collect();
        Ok(Self { made, file: Some((path.to_owned(), file)) })
    }

    /// What the run of that key led to, if it was made.
    pub fn get(&self, key: &M::Key) -> Option<&M> {
        self.made.get(key)
    }

    /// Keeps one more.
    ///
    /// # Errors
    /// `Disk`
    pub fn add(&mut self, made: M) -> Result<(), SimulateError> {
        if let Some((path, file)) = &mut self.file {
            let line = serde_json::to_string(&made).expect("plain data") + "\n";
            let disk = |source| SimulateError::Disk { what: "write", path: path.clone(), source };
            file.write_all(line.as_bytes()).map_err(disk)?;
        }
        self.made.insert(made.key().clone(), made);
        Ok(())
    }
}

/// The runs of `text`, a line each, which stands in the file at `path`.
///
/// # Errors
/// `Refused`: a line is no run.
pub fn parse<M: DeserializeOwned>(text: &str, path: &Path) -> Result<Vec<M>, SimulateError> {
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
    use serde::Deserialize;

    use super::*;
    use crate::experiments::Exit;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Made {
        seed: u64,
        loss: Option<f32>,
    }

    impl Keyed for Made {
        type Key = u64;

        fn key(&self) -> &u64 {
            &self.seed
        }
    }

    #[test]
    fn runs_come_back_but_for_one_that_was_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        let open = |path: &Path| Kept::<Made>::open(Some(path));
        let [first, blown, last] = [Some(3.25), None, Some(1.5)].map(|loss| Made { seed: 0, loss });
        let (blown, last) = (Made { seed: 1, ..blown }, Made { seed: 2, ..last });
        let mut kept = open(&path).unwrap();
        kept.add(first.clone()).unwrap();
        kept.add(blown.clone()).unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, whole.clone() + &whole[..9]).unwrap();
        let mut kept = open(&path).unwrap();
        assert_eq!((kept.get(&0), kept.get(&1), kept.get(&2)), (Some(&first), Some(&blown), None));
        kept.add(last).unwrap();
        let after = std::fs::read_to_string(&path).unwrap();
        assert!(after.starts_with(&whole) && after.lines().count() == 3, "{after}");

        std::fs::write(&path, "{}\n").unwrap();
        let error = open(&path).err().unwrap();
        assert!(error.exit() == Exit::Settings && error.to_string().contains("line 1 of"), "{error}");
        assert_eq!(open(folder.path()).err().unwrap().exit(), Exit::Disk);
    }
}
