//! Measured programs, built here or brought along.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use serde_json::Value;

use crate::cargo::{build, cargo};

/// File names of the programs.
const LEARNER: &str = "native-learner";
const TESTS: &str = "gpu-tests";
const XTASK: &str = "xtask";

/// Paths of the programs.
pub struct Programs {
    /// `native-learner`.
    pub learner: PathBuf,
    /// Tests of the SDK.
    pub tests: PathBuf,
}

impl Programs {
    /// Builds the programs with optimisation.
    pub fn build() -> Result<Self, String> {
        let files = build(&["--release", "--locked", "-p", LEARNER])?;
        let learner = files.into_iter().find(|file| file.file_stem().is_some_and(|name| name == LEARNER));
        let learner = learner.ok_or("the build left no native-learner")?;
        Ok(Self { learner, tests: tests()? })
    }

    /// Finds the programs that [`Self::pack`] left in `folder`.
    pub fn in_folder(folder: &Path) -> Result<Self, String> {
        let find = |name: &str| {
            let file = folder.join(name);
            if file.is_file() { Ok(file) } else { Err(format!("there is no {}", file.display())) }
        };
        Ok(Self { learner: find(LEARNER)?, tests: find(TESTS)? })
    }

    /// Copies the programs and this one into `folder`.
    pub fn pack(&self, folder: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot write {}: {error}", folder.display());
        let own = env::current_exe().map_err(|error| error.to_string())?;
        fs::create_dir_all(folder).map_err(failed)?;
        for (file, name) in [(&self.learner, LEARNER), (&self.tests, TESTS), (&own, XTASK)] {
            let copy = folder.join(name);
            fs::copy(file, &copy).map_err(failed)?;
            // Stripped files are smaller; a system without `strip` keeps the larger ones.
            Command::new("strip").arg(&copy).status().ok();
        }
        println!(
            "take {0} to the machine with the GPU and call: {0}/{XTASK} gpu --prebuilt {0}",
            folder.display()
        );
        Ok(())
    }
}

/// Builds the SDK's unit tests with the GPU engine. Returns the program.
fn tests() -> Result<PathBuf, String> {
    let args = [
        "test",
        "--release",
        "--locked",
        "-p",
        "archipelago-runtime",
        "--features",
        "cpu,gpu,platform",
        "--lib",
        "--no-run",
    ];
    let mut command = cargo(&args);
    let output = command
        .arg("--message-format=json-render-diagnostics")
        .stderr(std::process::Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo did not start: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    executable.ok_or_else(|| "the build of the tests left no program".to_owned())
}
