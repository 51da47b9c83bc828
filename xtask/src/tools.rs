//! Required tools, checked before any compilation. A build that fails after minutes with another program's message
//! helps no user.

use std::env;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::cargo::{WASM, root};

/// Oldest supported version of Node.
const NODE_MAJOR: u32 = 20;

/// Checks the requirements of the syncer and the native learner: a C compiler, for libraries that are not all Rust.
///
/// # Errors
/// A message if the compiler is missing, with ways to install one.
pub fn for_programs() -> Result<(), String> {
    // Microsoft's compiler is not on the path; the build finds it or prints the remedy.
    if env::consts::OS == "windows" {
        return Ok(());
    }
    let compiler = env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    // The variable may also hold arguments.
    let program = compiler.split_whitespace().next().unwrap_or("cc");
    if starts(Command::new(program).arg("--version")) {
        return Ok(());
    }
    Err(format!(
        "no C compiler found (`{program}` did not start); install one (on Debian: apt-get install gcc libc6-dev, \
         on macOS: xcode-select --install)"
    ))
}

/// Checks the requirements of the pages: Node with npm, and the standard library for WebAssembly.
///
/// # Errors
/// A message about a missing tool, with ways to install it.
pub fn for_pages() -> Result<(), String> {
    check_node()?;
    add_target().map(drop)
}

/// Installs the standard library for [`WASM`] if it is missing. Returns true if it was installed.
///
/// # Errors
/// A message if it is missing and rustup cannot add it, with the remedy.
pub fn add_target() -> Result<bool, String> {
    if target_installed() {
        return Ok(false);
    }
    let mut rustup = Command::new("rustup");
    // In the root, where `rust-toolchain.toml` selects the toolchain.
    rustup.args(["target", "add", WASM]).current_dir(root());
    // Rustup's message is longer than a sentence, so it goes to the terminal.
    let _ = rustup.status();
    if target_installed() {
        return Ok(true);
    }
    Err(format!(
        "pages need Rust's standard library for {WASM}, which this toolchain lacks; install it with \
         `rustup target add {WASM}`, or your system's package of it (on Debian: libstd-rust-dev-wasm32); the run \
         without pages is `cargo xtask demo --headless`"
    ))
}

/// Returns true if the standard library for [`WASM`] is installed, from any source.
fn target_installed() -> bool {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let folder = rustc.args(["--print", "target-libdir", "--target", WASM]).current_dir(root()).output();
    folder.is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

/// Returns true if `command` succeeds. Its output is hidden.
fn starts(command: &mut Command) -> bool {
    command.stdin(Stdio::null()).output().is_ok_and(|output| output.status.success())
}

/// Returns a command for `node` or `npm`.
pub fn program(name: &str) -> Command {
    Command::new(if name == "npm" { script(name) } else { name.to_owned() })
}

/// Returns the platform's file name of an npm program.
pub fn script(name: &str) -> String {
    if env::consts::OS == "windows" { format!("{name}.cmd") } else { name.to_owned() }
}

/// Checks that Node and npm are installed.
///
/// # Errors
/// A message if one of them is missing, or Node is older than [`NODE_MAJOR`].
pub fn check_node() -> Result<(), String> {
    let wanted = format!("install Node {NODE_MAJOR} or newer, with npm");
    let output = program("node").arg("--version").stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("node did not start ({error}); {wanted}"))?;
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if major(&version).is_none_or(|major| major < NODE_MAJOR) {
        return Err(format!("Node {version:?} is too old; {wanted}"));
    }
    if starts(program("npm").arg("--version")) {
        return Ok(());
    }
    Err(format!("npm did not start; {wanted}"))
}

/// Parses the major version from Node's output, such as `v20.20.2`.
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
