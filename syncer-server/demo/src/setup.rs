//! Locations of the demo's programs. `cargo xtask demo` passes them; an installed demo looks in its own folder.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The programs, the folder of runs, and the pages.
#[derive(clap::Args, Clone, Debug)]
pub struct Setup {
    /// The program syncer-server [default: the one in the folder of this program].
    #[arg(long, value_name = "FILE")]
    syncer: Option<PathBuf>,
    /// The program native-learner [default: the one in the folder of this program].
    #[arg(long, value_name = "FILE")]
    learner: Option<PathBuf>,
    /// Folder in which each demo makes one for itself.
    #[arg(long, value_name = "FOLDER", default_value = "runs")]
    pub runs: PathBuf,
    /// Folder of pages that the syncer serves instead of those built into it.
    #[arg(long, value_name = "FOLDER")]
    pub pages: Option<PathBuf>,
    /// Seconds that were spent on building before this program began.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, hide = true)]
    pub build_s: f64,
    /// A command that builds those pages while the run goes on.
    #[arg(last = true, requires = "pages", hide = true, value_name = "COMMAND")]
    pub builder: Vec<OsString>,
}

impl Setup {
    /// Returns the path of the syncer program.
    ///
    /// # Errors
    /// A sentence: it is missing.
    pub fn syncer(&self) -> Result<PathBuf, String> {
        find(self.syncer.as_deref(), "syncer-server", "--syncer")
    }

    /// Returns the path of the learner program.
    ///
    /// # Errors
    /// A sentence: it is missing.
    pub fn learner(&self) -> Result<PathBuf, String> {
        find(self.learner.as_deref(), "native-learner", "--learner")
    }
}

/// Returns the program that `flag` names, or the one called `name` in the folder of this program.
fn find(given: Option<&Path>, name: &str, flag: &str) -> Result<PathBuf, String> {
    let file = match given {
        Some(file) => file.to_owned(),
        None => {
            let own = env::current_exe().map_err(|error| format!("where this program lies: {error}"))?;
            own.with_file_name(format!("{name}{}", env::consts::EXE_SUFFIX))
        }
    };
    if file.is_file() {
        return Ok(file);
    }
    Err(format!("there is no {}: put it there, or say with {flag} where it is", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_lie_beside_this_one_unless_named() {
        let own = env::current_exe().unwrap();
        assert_eq!(find(Some(&own), "syncer-server", "--syncer").unwrap(), own);
        let missing = find(None, "no-such-program", "--syncer").unwrap_err();
        let beside = own.with_file_name("no-such-program");
        assert!(missing.contains(&beside.display().to_string()) && missing.contains("--syncer"), "{missing}");
    }
}
