//! Checks of the container files for operators, with linters that include their schemas.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::python::{self, Environment};
use crate::cargo::root;
use crate::web::call;

/// Folder of the files.
const FOLDER: &str = "syncer-server/deploy";
/// Compose files.
const COMPOSE: [&str; 2] = ["compose.yaml", "cluster/compose.yaml"];
/// Folder of the Kubernetes files.
const KUBERNETES: &str = "cluster/kubernetes";

/// Checks the files, unless `PYTHON_TESTS=no`.
///
/// # Errors
/// A message about the failure.
pub fn check() -> Result<String, String> {
    if python::is_off() {
        return Ok("left out: PYTHON_TESTS=no".to_owned());
    }
    python::setup()?;
    let folder = root().join(FOLDER);
    let environment = Environment::make("deploy", false)?;
    environment.install(&["-r", &folder.join("requirements.txt").to_string_lossy()])?;
    let mut compose = Command::new(environment.program("check-jsonschema"));
    compose.args(["--builtin-schema", "vendor.compose-spec"]).args(COMPOSE).current_dir(&folder);
    call(&mut compose)?;
    let files = manifests(folder.join(KUBERNETES))?;
    let mut kubernetes = Command::new(environment.program("kubernetes-validate"));
    kubernetes.args(["--strict", "--quiet"]).args(&files);
    call(&mut kubernetes)?;
    Ok(format!("{} files", COMPOSE.len() + files.len()))
}

/// Returns the Kubernetes files, in order.
fn manifests(folder: PathBuf) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    match files.is_empty() {
        true => Err(format!("{} has no file of YAML", folder.display())),
        false => Ok(files),
    }
}
