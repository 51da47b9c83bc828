//! Node, and web-demo's npm dependencies.

use std::fs;
use std::process::Command;

use super::call;
use crate::cargo::root;
use crate::tools::{check_node, program, script};

/// Returns a command for a program that npm installed for web-demo, to run there.
pub fn node(name: &str) -> Command {
    let folder = root().join("web-demo");
    let mut command = Command::new(folder.join("node_modules/.bin").join(script(name)));
    command.current_dir(folder);
    command
}

/// Installs the packages of the lock file in `folder`, relative to the workspace's root, unless they are installed. A
/// folder without a lock file has exact versions in its `package.json`.
///
/// # Errors
/// A message if Node is missing or old, or npm failed.
pub fn install(folder: &str) -> Result<(), String> {
    check_node()?;
    let name = folder;
    let folder = root().join(folder);
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let (wanted, args): (_, &[&str]) = match read("package-lock.json") {
        Some(lock) => (lock, &["ci"]),
        None => {
            let missing = || format!("{name}/package.json is missing");
            (read("package.json").ok_or_else(missing)?, &["install", "--no-package-lock"])
        }
    };
    // npm keeps a copy of the file that it has installed.
    let stamp = "node_modules/.installed.json";
    if read(stamp).as_deref() == Some(&wanted) {
        return Ok(());
    }
    let quiet = ["--no-audit", "--no-fund", "--loglevel", "error"];
    call(program("npm").args(args).args(quiet).current_dir(&folder))?;
    fs::write(folder.join(stamp), wanted).map_err(|error| format!("{name}/{stamp}: {error}"))
}
