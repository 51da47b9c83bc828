//! Node and what web-demo takes from npm.

use std::fs;
use std::process::Command;

use super::call;
use crate::cargo::root;
use crate::tools::{check_node, program, script};

/// A program that npm installed for web-demo, to run there.
pub fn node(name: &str) -> Command {
    let folder = root().join("web-demo");
    let mut command = Command::new(folder.join("node_modules/.bin").join(script(name)));
    command.current_dir(folder);
    command
}

/// Installs what the lock file in `folder`, from the workspace's root, names, unless it is there.
///
/// # Errors
/// A sentence: Node is missing or old, or npm failed.
pub fn install(folder: &str) -> Result<(), String> {
    check_node()?;
    let name = folder;
    let folder = root().join(folder);
    // npm keeps a copy of the lock it has installed.
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let stamp = "node_modules/.installed-lock.json";
    let lock = read("package-lock.json").ok_or_else(|| format!("{name}/package-lock.json is missing"))?;
    if read(stamp).as_deref() == Some(&lock) {
        return Ok(());
    }
    call(program("npm").args(["ci", "--no-audit", "--no-fund", "--loglevel", "error"]).current_dir(&folder))?;
    fs::write(folder.join(stamp), lock).map_err(|error| format!("{name}/{stamp}: {error}"))
}
