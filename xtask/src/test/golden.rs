//! Golden files. The tests that compare them can also write them.

use std::process::Command;

use clap::ValueEnum;

use super::{api, stages};
use crate::cargo::cargo;

/// Environment variable that makes tests write their golden files before they compare them.
const BLESS: &str = "ARCHIPELAGO_TEST_BLESS";

/// Golden files of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Golden {
    /// `tests/golden/lesson.json`.
    Lesson,
    /// TypeScript types of the Rust types that pages receive.
    Types,
    /// The stored run in `tests/golden/tape`.
    Tape,
    /// The public items in `tests/golden/api`.
    Api,
}

/// Tests that write each kind.
const TESTS: &[(Golden, &[&str])] = &[
    (Golden::Lesson, &["-p", "archipelago-sim", "--lib", "lesson"]),
    (Golden::Types, &["-p", "web-demo", "types"]),
    (Golden::Types, &["-p", "lesson", "types"]),
    (Golden::Types, &["-p", "syncer-server", "--lib", "types"]),
    (Golden::Tape, &["-p", "syncer-server", "--test", "server", "the_stored_run"]),
];

/// Writes the golden files of these kinds, or of all kinds if the list is empty.
///
/// # Errors
/// A message about a test that failed, or a file that could not be written.
pub fn bless(kinds: &[Golden]) -> Result<(), String> {
    let is_asked = |kind: Golden| kinds.is_empty() || kinds.contains(&kind);
    for (_, args) in TESTS.iter().filter(|(kind, _)| is_asked(*kind)) {
        let mut test: Command = cargo(&["test", "--locked", "--quiet"]);
        test.args(*args).env(BLESS, "1");
        stages::call(test)?;
    }
    if is_asked(Golden::Api) {
        stages::doc()?;
        api::write()?;
    }
    println!("compare the files with `git diff`, and say in the commit why they changed");
    Ok(())
}
