//! The stages. All that compile for this machine share one profile, so that dependencies build once.

use std::process::Command;

use crate::cargo::{TEST_PROGRAMS, WASM, cargo, root, shown};
use crate::tools;

use super::{browsers, tidy, vulkan};

/// One check.
pub struct Stage {
    /// What `--only` calls it.
    pub name: &'static str,
    /// What it does, for people.
    pub what: &'static str,
    /// A remark for the table, or what went wrong, in one sentence.
    pub run: fn() -> Result<String, String>,
}

/// Every stage, cheapest first.
pub const STAGES: &[Stage] = &[
    Stage {
        name: "setup",
        what: "rustfmt, clippy, the wasm32 target, a Vulkan driver, Node and browsers are there",
        run: setup,
    },
    Stage { name: "tidy", what: "house rules that no compiler checks", run: || tidy::check(root()) },
    Stage { name: "fmt", what: "the code is formatted", run: || call(cargo(&["fmt", "--all", "--check"])) },
    Stage { name: "tree", what: "the syncer does not depend on wgpu", run: tree },
    Stage { name: "floor", what: "the pure floor builds without any feature", run: || call(floor(None)) },
    Stage { name: "floor-wasm", what: "and so it does for browsers", run: || call(floor(Some(WASM))) },
    Stage { name: "learner-wasm", what: "learner and engines build for browsers", run: learner_wasm },
    Stage { name: "lint", what: "clippy on every target, warnings are errors", run: lint },
    Stage { name: "lint-wasm", what: "clippy on what browsers run", run: lint_wasm },
    Stage {
        name: "web",
        what: "the engine for browsers, its npm package and the pages build",
        run: browsers::build,
    },
    Stage { name: "build", what: "the programs the tests start", run: build },
    Stage { name: "test", what: "every test", run: test },
    Stage {
        name: "browser",
        what: "learners in Chromium and Firefox, the npm package and the pages",
        run: browser,
    },
    Stage { name: "demo", what: "a short run that loses a learner and exports the model", run: demo },
    Stage { name: "doc", what: "the documentation builds without warnings", run: doc },
];

fn floor(target: Option<&str>) -> Command {
    let mut command = cargo(&["clippy", "--locked", "-p", "archipelago-core", "--no-default-features"]);
    command.args(target.iter().flat_map(|target| ["--target", *target])).args(["--", "-D", "warnings"]);
    command
}

/// The learner as a browser gets it.
fn learner_wasm() -> Result<String, String> {
    let mut command = cargo(&["clippy", "--locked", "-p", "archipelago", "--no-default-features"]);
    command.args(["--features", "cpu-portable,gpu,learner", "--target", WASM, "--", "-D", "warnings"]);
    call(command)
}

fn lint() -> Result<String, String> {
    let mut command =
        cargo(&["clippy", "--locked", "--workspace", "--all-targets", "--features", "xtask/bench"]);
    command.args(["--", "-D", "warnings"]);
    call(command)
}

fn lint_wasm() -> Result<String, String> {
    let mut command = cargo(&["clippy", "--locked", "--target", WASM, "-p", "web-demo", "-p", "lesson"]);
    command.args(["--", "-D", "warnings"]);
    call(command)
}

fn build() -> Result<String, String> {
    let mut command = cargo(&["build"]);
    command.args(TEST_PROGRAMS);
    call(command)
}

fn test() -> Result<String, String> {
    call(cargo(&["test", "--locked", "--workspace", "--quiet"]))
}

/// Tests in browsers, with the programs that the stage `build` left.
fn browser() -> Result<String, String> {
    let files = crate::cargo::build(TEST_PROGRAMS)?;
    let program = files.iter().rfind(|file| file.file_stem().is_some_and(|name| name == "syncer-server"));
    let folder = program.and_then(|file| file.parent()).ok_or("the build left no syncer-server")?;
    browsers::test(folder)
}

/// The README's first command, with the programs that the stage `build` left.
fn demo() -> Result<String, String> {
    let folder = root().join("runs").join("test-export");
    // Through cargo: the stage `test` may have built xtask anew, in the place of the file that runs this.
    let mut command = cargo(&["run", "--locked", "--quiet", "--package", "xtask", "--"]);
    command.args(["demo", "--dev", "--headless", "--preset", "tiny", "--learners", "2", "--kill-one"]);
    command.args(["--for", "30s", "--export"]).arg(folder);
    call(command)
}

fn doc() -> Result<String, String> {
    let mut command = cargo(&["doc", "--locked", "--workspace", "--no-deps", "--keep-going", "--quiet"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    call(command)
}

fn tree() -> Result<String, String> {
    let output =
        cargo(&["tree", "--locked", "-p", "syncer-server", "-e", "normal,build", "--prefix", "none"])
            .output()
            .map_err(|error| format!("cargo did not start: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let tree = String::from_utf8_lossy(&output.stdout);
    match tree.lines().find(|line| line.starts_with("wgpu")) {
        Some(line) => Err(format!("syncer-server depends on {line}; keep the GPU out of its features")),
        None => Ok(String::new()),
    }
}

/// Adds what is missing of the toolchain.
fn setup() -> Result<String, String> {
    let mut added = Vec::new();
    for component in ["fmt", "clippy"] {
        if cargo(&[component, "--version"]).output().is_ok_and(|output| output.status.success()) {
            continue;
        }
        let name = if component == "fmt" { "rustfmt" } else { component };
        rustup(&["component", "add", name])?;
        added.push(name);
    }
    if tools::add_target()? {
        added.push(WASM);
    }
    let packages = vulkan::setup()?;
    added.extend(packages.as_deref());
    added.extend(browsers::setup()?);
    Ok(if added.is_empty() { String::new() } else { format!("added {}", added.join(", ")) })
}

fn rustup(args: &[&str]) -> Result<(), String> {
    let mut command = Command::new("rustup");
    // In the root, where `rust-toolchain.toml` names the toolchain.
    command.args(args).current_dir(root());
    call(command).map(drop).map_err(|reason| {
        format!("{reason}; install it by hand: `rustup {}`, or your system's package of it", args.join(" "))
    })
}

/// Runs `command` with its output on this terminal.
fn call(mut command: Command) -> Result<String, String> {
    println!("   {}", shown(&command));
    match command.status() {
        Ok(status) if status.success() => Ok(String::new()),
        Ok(status) => Err(format!("`{}` ended with {status}", shown(&command))),
        Err(error) => Err(format!("`{}` did not start: {error}", shown(&command))),
    }
}
