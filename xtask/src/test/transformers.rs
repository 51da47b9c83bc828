//! Stage that compares the expected texts of chat templates in the syncer's tests with the output of `transformers`.

use std::process::Command;

use super::python::{self, Environment};
use crate::cargo::root;
use crate::web::call;

/// Folder with templates, conversations, expected texts, and the program that writes these texts.
const FOLDER: &str = "syncer-server/tests/chat";

/// Installs `transformers` and compares.
///
/// # Errors
/// A message about the failure.
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
