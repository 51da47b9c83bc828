//! Chat templates beside `transformers` itself: the texts that the tests of the syncer expect are those that it writes.

use std::process::Command;

use super::python::{self, Environment};
use crate::cargo::root;
use crate::web::call;

/// The folder with templates, conversations, what is expected of them, and the program that writes it.
const FOLDER: &str = "syncer-server/tests/chat";

/// Installs `transformers` and compares.
///
/// # Errors
/// A sentence: what failed.
pub fn test() -> Result<String, String> {
    if python::is_off() {
        return Ok("left out: PYTHON_TESTS=no".to_owned());
    }
    python::setup()?;
    let folder = root().join(FOLDER);
    let environment = Environment::make("transformers", false)?;
    environment.install(&["-r", &folder.join("requirements.txt").to_string_lossy()])?;
    let mut check = Command::new(environment.program("python"));
    call(check.args(["make.py", "--check"]).current_dir(folder))?;
    Ok(String::new())
}
