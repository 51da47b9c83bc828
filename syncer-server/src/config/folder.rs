//! Folder of a run, for commands that inspect it.

use std::path::{Path, PathBuf};

/// Default folder of a run.
pub(super) const DEFAULT_FOLDER: &str = "runs/default";

/// The folder of a run, by itself or after `--dir`.
#[derive(clap::Args, Clone, Debug)]
pub struct FolderArgs {
    /// Folder of the run, instead of --dir
    #[arg(value_name = "FOLDER")]
    run: Option<PathBuf>,
    /// Folder of the run
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER)]
    dir: PathBuf,
}

impl FolderArgs {
    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.run.as_ref().unwrap_or(&self.dir)
    }
}

impl From<PathBuf> for FolderArgs {
    fn from(dir: PathBuf) -> Self {
        Self { run: None, dir }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::{Verb, parse};
    use super::*;

    #[test]
    fn the_folder_of_a_run_stands_by_itself_or_after_its_flag() {
        let folder = |arguments: &[&str]| {
            let arguments = ["syncer-server", "replay"].iter().chain(arguments).map(OsString::from);
            match parse(arguments).unwrap().verb {
                Verb::Replay(args) => args.folder.path().to_owned(),
                verb => panic!("{verb:?}"),
            }
        };
        assert_eq!(folder(&[]), Path::new(DEFAULT_FOLDER));
        assert_eq!(folder(&["--json", "here"]), Path::new("here"));
        assert_eq!(folder(&["--dir", "there", "--json"]), Path::new("there"));
    }
}
