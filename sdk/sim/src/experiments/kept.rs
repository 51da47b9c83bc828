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
