//! web-demo as a WebAssembly module: it builds, loads and answers.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::cargo::{WASM, build, root};

/// Loads the module without its JavaScript glue and prints what `wireVersion` answers.
const SMOKE: &str = include_str!("smoke.mjs");

/// Builds web-demo and, where Node is installed, runs it.
pub fn check() -> Result<String, String> {
    let files = build(&["--locked", "-p", "web-demo", "--lib", "--target", WASM])?;
    let module = files
        .iter()
        .find(|file| file.file_name().is_some_and(|name| name == "web_demo.wasm"))
        .ok_or("the build of web-demo left no web_demo.wasm")?;
    let kilobytes =
        fs::metadata(module).map_err(|error| format!("{}: {error}", module.display()))?.len() / 1000;
    if !node_installed() {
        return Ok(format!("{kilobytes} kB unoptimised; not run: there is no `node` here"));
    }
    let answer = smoke(module)?;
    let expected = wire_version()?;
    if answer != expected {
        return Err(format!("wireVersion() answered {answer:?}, the source says {expected:?}"));
    }
    Ok(format!("{kilobytes} kB unoptimised, wire version {answer}"))
}

/// Whether the standard library for [`WASM`] is there, however it was installed.
pub fn target_installed() -> bool {
    Command::new("rustc")
        .args(["--print", "target-libdir", "--target", WASM])
        .current_dir(root())
        .output()
        .is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

fn node_installed() -> bool {
    Command::new("node").arg("--version").output().is_ok_and(|output| output.status.success())
}

fn smoke(module: &Path) -> Result<String, String> {
    let output = Command::new("node")
        .args(["--input-type=module", "--eval", SMOKE])
        .arg(module)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("node did not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("node could not run {}: {}", module.display(), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The version as the source of the SDK states it, to compare the module's answer with.
fn wire_version() -> Result<String, String> {
    let file = "sdk/src/wire/mod.rs";
    let source = fs::read_to_string(root().join(file)).map_err(|error| format!("{file}: {error}"))?;
    source
        .lines()
        .find_map(|line| line.strip_prefix("pub const VERSION: u16 = ")?.strip_suffix(';'))
        .map(str::to_owned)
        .ok_or_else(|| format!("{file} states no VERSION"))
}
