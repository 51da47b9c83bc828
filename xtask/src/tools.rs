//! What a machine must have before anything is compiled, looked for at once: a build that fails after minutes, in
//! the words of another program, helps nobody.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cargo::{WASM, root};

/// Oldest Node that will do.
const NODE_MAJOR: u32 = 20;

/// What the two programs need: a C compiler, for the libraries that are not all Rust.
///
/// # Errors
/// A sentence: there is none, and how to get one.
pub fn for_programs() -> Result<(), String> {
    // Microsoft's compiler is no program on the path; the build finds it, or says what to install.
    if env::consts::OS == "windows" {
        return Ok(());
    }
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    // The variable may hold arguments too.
    let program = compiler.split_whitespace().next().unwrap_or("cc");
    if starts(Command::new(program).arg("--version")) {
        return Ok(());
    }
    Err(format!(
        "there is no C compiler (`{program}` did not start): install one (on Debian: apt-get install gcc libc6-dev, \
         on macOS: xcode-select --install)"
    ))
}

/// What the pages need: Node with npm, and the standard library for WebAssembly.
///
/// # Errors
/// A sentence: what is missing, and how to get it.
pub fn for_pages() -> Result<(), String> {
    check_node()?;
    add_target().map(drop)
}

/// Sees to it that the standard library for [`WASM`] is there; whether it was added.
///
/// # Errors
/// A sentence: it is missing and rustup cannot add it, and how to get it.
pub fn add_target() -> Result<bool, String> {
    if target_installed() {
        return Ok(false);
    }
    let mut rustup = Command::new("rustup");
    // In the root, where `rust-toolchain.toml` names the toolchain.
    rustup.args(["target", "add", WASM]).current_dir(root());
    // Rustup tells more than one sentence; it is shown as it is.
    let _ = rustup.status();
    if target_installed() {
        return Ok(true);
    }
    Err(format!(
        "pages need Rust's standard library for {WASM}, which this toolchain lacks: install it with \
         `rustup target add {WASM}`, or your system's package of it (on Debian: libstd-rust-dev-wasm32); the run \
         without pages is `cargo xtask demo --headless`"
    ))
}

/// Whether the standard library for [`WASM`] is there, however it was installed.
fn target_installed() -> bool {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let folder = rustc.args(["--print", "target-libdir", "--target", WASM]).current_dir(root()).output();
    folder.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

/// Whether `command` starts and ends well; what it prints is not shown.
fn starts(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success())
}

/// A program of Node itself: `node` or `npm`.
pub fn program(name: &str) -> Command {
    Command::new(if name == "npm" { script(name) } else { name.to_owned() })
}

/// What npm's programs are called here.
pub fn script(name: &str) -> String {
    if env::consts::OS == "windows" { format!("{name}.cmd") } else { name.to_owned() }
}

/// Looks whether Node and npm are there.
///
/// # Errors
/// A sentence: one of them is missing, or Node is older than [`NODE_MAJOR`].
pub fn check_node() -> Result<(), String> {
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
