//! Node and what web-demo takes from npm.

use std::process::{Command, Stdio};
use std::{env, fs};

use super::call;
use crate::cargo::root;
use crate::tools::starts;

/// Oldest Node that will do.
const NODE_MAJOR: u32 = 20;

/// A program that npm installed for web-demo, to run there.
pub fn node(name: &str) -> Command {
    let folder = root().join("web-demo");
    let mut command = Command::new(folder.join("node_modules/.bin").join(script(name)));
    command.current_dir(folder);
    command
}

/// A program of Node itself: `node` or `npm`.
pub fn program(name: &str) -> Command {
    Command::new(if name == "npm" { script(name) } else { name.to_owned() })
}

/// What npm's programs are called here.
fn script(name: &str) -> String {
    if env::consts::OS == "windows" { format!("{name}.cmd") } else { name.to_owned() }
}

/// Installs what web-demo's lock file names, unless it is there.
///
/// # Errors
/// A sentence: Node is missing or old, or npm failed.
pub fn install() -> Result<(), String> {
    check()?;
    let folder = root().join("web-demo");
    // npm keeps a copy of the lock it has installed.
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let stamp = "node_modules/.installed-lock.json";
    let lock = read("package-lock.json").ok_or("web-demo/package-lock.json is missing")?;
    if read(stamp).as_deref() == Some(&lock) {
        return Ok(());
    }
    call(program("npm").args(["ci", "--no-audit", "--no-fund", "--loglevel", "error"]).current_dir(&folder))?;
    fs::write(folder.join(stamp), lock).map_err(|error| format!("web-demo/{stamp}: {error}"))
}

/// Looks whether Node and npm are there.
///
/// # Errors
/// A sentence: one of them is missing, or Node is older than [`NODE_MAJOR`].
pub fn check() -> Result<(), String> {
    let wanted = format!("pages need Node {NODE_MAJOR} or newer, with npm: install it");
    let output = program("node").arg("--version").stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("node did not start ({error}); {wanted}"))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if major(&version).is_none_or(|major| major < NODE_MAJOR) {
        return Err(format!("this machine's Node is {version:?}; {wanted}"));
    }
    if starts(program("npm").arg("--version")) {
        return Ok(());
    }
    Err(format!("npm did not start; {wanted}"))
}

/// The first number of a version as Node prints it: `v20.20.2`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_version_of_node() {
        assert_eq!(major("v20.20.2"), Some(20));
        assert_eq!(major("v9.1"), Some(9));
        assert_eq!(major(""), None);
        assert_eq!(major("node"), None);
    }
}
