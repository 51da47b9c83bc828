//! A cache of completed runs, with one line of JSON for each.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use super::record::{RunKey, RunRecord};
use crate::SimulateError;

/// All completed runs, optionally in a file.
pub struct RunCache {
    records: BTreeMap<RunKey, RunRecord>,
    file: Option<(PathBuf, File)>,
}

impl RunCache {
    /// Opens the file at `path`, creating it if necessary, and locks it until this is dropped. After complete runs, a
    /// truncated last line counts as not written. A file with any other content is never modified.
    ///
    /// # Errors
    /// - `Disk`: the file cannot be read or written.
    /// - `Refused`: it is not a regular text file, a line is not a run, or another program has locked it.
    pub fn open(path: Option<&Path>) -> Result<Self, SimulateError> {
        let Some(path) = path else { return Ok(Self { records: BTreeMap::new(), file: None }) };
        let disk = |what| move |source| SimulateError::Disk { what, path: path.to_owned(), source };
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(path).map_err(disk("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(SimulateError::refused(format!(
                    "another program keeps its runs in {}: wait until it ends, or give another file",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(disk("lock")(error)),
        }
        // Other kinds of files may be endless.
        let is_file = file.metadata().map_err(disk("read"))?.is_file();
        let mut bytes = Vec::new();
        if is_file {
            file.read_to_end(&mut bytes).map_err(disk("read"))?;
        }
        let text = String::from_utf8(bytes).ok().filter(|_| is_file).ok_or_else(|| {
            SimulateError::refused(format!("{} is no file of runs: give another one", path.display()))
        })?;
        let (lines, last) = text.split_at(text.rfind('\n').map_or(0, |end| end + 1));
        let mut runs: Vec<RunRecord> = parse(lines, path)?;
        match serde_json::from_str(last) {
            _ if last.is_empty() => {}
            Ok(run) => {
                runs.push(run);
                file.write_all(b"\n").map_err(disk("mend"))?;
            }
            // A file without any complete run may belong to another program.
            Err(error) if error.is_eof() && !runs.is_empty() => {
                file.set_len(lines.len() as u64).map_err(disk("mend"))?;
            }
            Err(error) => return Err(no_run(runs.len() + 1, path, &error)),
        }
        let records = runs.into_iter().map(|run: RunRecord| (run.key.clone(), run)).collect();
        Ok(Self { records, file: Some((path.to_owned(), file)) })
    }

    /// Returns the result of the run with this key, if it is cached.
    pub fn get(&self, key: &RunKey) -> Option<&RunRecord> {
        self.records.get(key)
    }

    /// Adds a run.
    ///
    /// # Errors
    /// `Disk`
    pub fn add(&mut self, record: RunRecord) -> Result<(), SimulateError> {
        if let Some((path, file)) = &mut self.file {
            let line = serde_json::to_string(&record).expect("plain data") + "\n";
            let disk = |source| SimulateError::Disk { what: "write", path: path.clone(), source };
            file.write_all(line.as_bytes()).map_err(disk)?;
        }
        self.records.insert(record.key.clone(), record);
        Ok(())
    }
}

/// Parses the runs in `text`, one per line; `path` is the file's path for error messages.
///
/// # Errors
/// `Refused`: a line is not a run.
pub fn parse(text: &str, path: &Path) -> Result<Vec<RunRecord>, SimulateError> {
    let run = |(line, number): (&str, usize)| {
        serde_json::from_str(line).map_err(|error| no_run(number, path, &error))
    };
    text.lines().zip(1..).map(run).collect()
}

fn no_run(line: usize, path: &Path, error: &serde_json::Error) -> SimulateError {
    let path = path.display();
    SimulateError::refused(format!(
        "line {line} of {path} is no run: {error}; take it out, or give another file"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Exit;

    fn record(seed: u64, validation: Option<f32>) -> RunRecord {
        let key = RunKey { text: "t".into(), settings: "s".into(), seed };
        RunRecord { validation, ..RunRecord::failed(key, "lr 1".into(), None) }
    }

    #[test]
    fn all_runs_but_a_truncated_one_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runs.jsonl");
        let open = |path: &Path| RunCache::open(Some(path));
        let (first, blown, last) = (record(0, Some(3.25)), record(1, None), record(2, Some(1.5)));
        let key = |seed| record(seed, None).key;
        let mut cache = open(&path).unwrap();
        cache.add(first.clone()).unwrap();
        cache.add(blown.clone()).unwrap();
        let error = open(&path).err().unwrap();
        assert!(error.to_string().starts_with("another program keeps its runs in"), "{error}");
        drop(cache);
        let whole = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, whole.clone() + &whole[..9]).unwrap();
        let mut cache = open(&path).unwrap();
        assert_eq!([0, 1, 2].map(|seed| cache.get(&key(seed))), [Some(&first), Some(&blown), None]);
        cache.add(last).unwrap();
        drop(cache);
        let after = std::fs::read_to_string(&path).unwrap();
        assert!(after.starts_with(&whole) && after.lines().count() == 3, "{after}");
        // An editor may have removed the final newline.
        std::fs::write(&path, after.trim_end()).unwrap();
        assert!(open(&path).unwrap().get(&key(2)).is_some());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), after);
        assert_eq!(open(folder.path()).err().unwrap().exit(), Exit::Disk);
    }

    /// Goal: a wrong file name does no harm to the file.
    #[test]
    fn a_file_without_runs_is_not_modified() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes.md");
        let check = |text: &str, line: u32| {
            std::fs::write(&path, text).unwrap();
            let error = RunCache::open(Some(&path)).err().unwrap();
            let is_named = error.to_string().starts_with(&format!("line {line} of"));
            assert!(error.exit() == Exit::Settings && is_named, "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        };
        check("{}\n", 1);
        check("{\"a\":1}", 1);
        check("\"To be or not", 1);
        check("{\"name\": \"x\", \"deps\": [", 1);
        check("   ", 1);
        std::fs::write(&path, [0xff]).unwrap();
        for path in [&path, Path::new("/dev/null")] {
            let error = RunCache::open(Some(path)).err().unwrap();
            assert!(
                error.exit() == Exit::Settings && error.to_string().contains("is no file of runs"),
                "{error}"
            );
        }
        check("# Notes\n\nall of them", 1);
        let line = serde_json::to_string(&record(1, None)).unwrap();
        check(&format!("{line}\nnotes"), 2);
    }
}
