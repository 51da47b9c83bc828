//! Workspace root and calls of `cargo` in it.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// Target for browsers.
pub const WASM: &str = "wasm32-unknown-unknown";

/// Arguments of `cargo build` for the programs that tests start. The SDK has the same features as in `cargo test` for
/// the whole workspace, so that tests and programs share one build of it.
pub const TEST_PROGRAMS: &[&str] = &[
    "--locked",
    "-p",
    "syncer-server",
    "-p",
    "native-learner",
    "--features",
    "archipelago/default,archipelago/ts",
];

/// Arguments of `cargo build` for the delivered programs.
pub const RELEASE_PROGRAMS: &[&str] =
    &["--locked", "--release", "-p", "syncer-server", "-p", "native-learner", "--bins"];

/// Arguments of `cargo build` for a demo: as for tests, but the pages are not embedded; they are served from their
/// folder.
pub const DEMO_PROGRAMS: &[&str] = &[
    "--locked",
    "-p",
    "syncer-server",
    "-p",
    "native-learner",
    "--bins",
    "--no-default-features",
    "--features",
    "archipelago/default,archipelago/ts",
];

/// Returns the root of the workspace.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace")
}

/// Returns a `cargo` command in the root of the workspace, with the toolchain that runs this program.
pub fn cargo(args: &[&str]) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    // `cargo run` describes xtask in the environment. Build scripts that read these variables would run again on each
    // switch between cargo with and without xtask, and their dependents would be rebuilt.
    for (name, _) in env::vars_os() {
        if ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_"]
            .iter()
            .any(|own| name.to_string_lossy().starts_with(own))
        {
            command.env_remove(name);
        }
    }
    command
}

/// Runs `cargo build` with `args`. Returns the built files, libraries and executables alike.
///
/// # Errors
/// A message if cargo did not start, or the build failed (cargo has then printed the reason).
pub fn build(args: &[&str]) -> Result<Vec<PathBuf>, String> {
    build_with(args, &[])
}

/// Runs [`build`] with additional environment variables.
///
/// # Errors
/// Those of [`build`].
pub fn build_with(args: &[&str], variables: &[(&str, &str)]) -> Result<Vec<PathBuf>, String> {
    let mut command = cargo(&["build", "--message-format=json-render-diagnostics"]);
    command.envs(variables.iter().copied()).args(args).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("cargo did not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("`cargo build {}` failed; see its messages above", args.join(" ")));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let files = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["reason"] == "compiler-artifact")
        .flat_map(|message| message["filenames"].as_array().cloned().unwrap_or_default())
        .filter_map(|file| file.as_str().map(PathBuf::from))
        .collect();
    Ok(files)
}

/// Returns cargo's target folder.
///
/// # Errors
/// A message if cargo does not report it.
pub fn target_folder() -> Result<PathBuf, String> {
    let output = cargo(&["metadata", "--no-deps", "--format-version", "1"]).output();
    let output = output.map_err(|error| format!("cargo did not start: {error}"))?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let folder = metadata["target_directory"].as_str().ok_or("cargo metadata names no target folder")?;
    Ok(PathBuf::from(folder))
}

/// Returns the executable `name` among the `files` of a build.
///
/// # Errors
/// A message if it is not among them.
pub fn program(files: &[PathBuf], name: &str) -> Result<PathBuf, String> {
    let found = files.iter().rfind(|file| file.file_stem().is_some_and(|stem| stem == name));
    found.cloned().ok_or_else(|| format!("the build produced no {name}"))
}

/// Formats a command as typed in a shell.
pub fn command_line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_stem().unwrap_or_default().to_string_lossy();
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    std::iter::once(program.into_owned()).chain(args).collect::<Vec<_>>().join(" ")
}
