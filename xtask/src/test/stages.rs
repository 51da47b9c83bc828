//! Test stages. All stages that compile for this machine share one profile, so that dependencies build once.

use std::num::NonZero;
use std::process::Command;
use std::{env, fs, thread};

use crate::cargo::{TEST_PROGRAMS, WASM, build, cargo, program, root, shown};
use crate::tools;

use super::{
    api, browsers, cluster, deploy, deps, docs, newcomer, package, python, tidy, transformers, vulkan,
};

/// Name of the daily stages in `--only`.
pub const QUICK: &str = "quick";

/// Variable with the number of parallel tests of a program, and the default per processor.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
const TESTS_PER_PROCESSOR: usize = 4;

/// Test stage.
pub struct Stage {
    /// Name in `--only`.
    pub name: &'static str,
    /// Description for users.
    pub what: &'static str,
    /// Condition to run without being named.
    pub when: When,
    /// Runs the stage. Returns a remark for the table, or an error message of one sentence.
    pub run: fn() -> Result<String, String>,
}

/// Condition for a stage to run without being named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// With all stages, and as one of [`QUICK`].
    Both,
    /// With all stages.
    All,
    /// As one of [`QUICK`]; with all, another stage checks the same.
    Quick,
    /// Never. Its result depends on services of other projects, which change over time.
    Asked,
}

impl Stage {
    /// Returns true if the stage runs for these names; without names, all stages run.
    pub fn is_in(&self, asked: &[String]) -> bool {
        let named = asked.iter().any(|name| name == self.name);
        let quick = asked.iter().any(|name| name == QUICK) && matches!(self.when, When::Both | When::Quick);
        named || quick || asked.is_empty() && matches!(self.when, When::Both | When::All)
    }
}

/// All stages. First comes the stage that takes seconds and installs nothing, then the newcomer's, which needs an
/// unprepared machine, then the others in order of cost.
pub const STAGES: &[Stage] = &[
    Stage {
        name: "tidy",
        when: When::Both,
        what: "house rules that no compiler checks",
        run: || tidy::check(root()),
    },
    Stage {
        name: "newcomer",
        when: When::All,
        what: "the README's first command from a clean clone, on a toolchain without wasm32, pages included",
        run: newcomer::check,
    },
    Stage {
        name: "setup",
        when: When::All,
        what: "rustfmt, clippy, the wasm32 target, a Vulkan driver, Node, browsers and Python are there",
        run: setup,
    },
    Stage {
        name: "fmt",
        when: When::Both,
        what: "the code is formatted",
        run: || call(cargo(&["fmt", "--all", "--check"])),
    },
    Stage {
        name: "crates",
        when: When::Both,
        what: "the SDK's crates are whole packages",
        run: package::crates,
    },
    Stage {
        name: "deps",
        when: When::Both,
        what: "others' crates come from one registry, under licences that go with ours, in one version each",
        run: deps::check,
    },
    Stage {
        name: "advisories",
        when: When::Asked,
        what: "nobody knows of a fault in what we depend on: asks cargo-deny and npm, which ask others",
        run: deps::advisories,
    },
    Stage { name: "tree", when: When::Both, what: "the syncer does not depend on wgpu", run: tree },
    Stage {
        name: "floor",
        when: When::Both,
        what: "the pure floor builds without any feature",
        run: || call(floor(None)),
    },
    Stage {
        name: "floor-wasm",
        when: When::All,
        what: "and so it does for browsers",
        run: || call(floor(Some(WASM))),
    },
    Stage {
        name: "learner-wasm",
        when: When::All,
        what: "learner and engines build for browsers",
        run: learner_wasm,
    },
    Stage { name: "lint", when: When::Both, what: "clippy on every target, warnings are errors", run: lint },
    Stage { name: "lint-wasm", when: When::All, what: "clippy on what browsers run", run: lint_wasm },
    Stage { name: "units", when: When::Quick, what: "the tests of core, demo and build tool", run: units },
    Stage {
        name: "lint-web",
        when: When::All,
        what: "pages and package are formatted, and their linter finds nothing",
        run: browsers::lint,
    },
    Stage {
        name: "web",
        when: When::All,
        what: "the engine for browsers, its npm package and the pages build",
        run: browsers::build,
    },
    Stage { name: "npm", when: When::All, what: "the npm package is whole", run: package::npm },
    Stage { name: "build", when: When::All, what: "the programs the tests start", run: programs },
    Stage { name: "test", when: When::All, what: "every test", run: test },
    Stage {
        name: "docs",
        when: When::Asked,
        what: "the commands of the documentation, run as printed outside the repository",
        run: docs::check,
    },
    Stage {
        name: "python",
        when: When::All,
        what: "the Python package: its wheel in a fresh environment, and NumPy learners in real runs",
        run: python::test,
    },
    Stage {
        name: "transformers",
        when: When::Asked,
        what: "chat templates write what transformers writes: pip fetches it from others",
        run: transformers::test,
    },
    Stage {
        name: "deploy",
        when: When::All,
        what: "files for containers fit the schemas of compose and Kubernetes",
        run: deploy::check,
    },
    Stage {
        name: "cluster",
        when: When::All,
        what: "a cluster on real servers that are killed and paused, if CLUSTER_TESTS=yes",
        run: cluster::test,
    },
    Stage {
        name: "browser",
        when: When::All,
        what: "learners in Chromium and Firefox, the npm package and the pages",
        run: browser,
    },
    Stage {
        name: "demo",
        when: When::All,
        what: "a short run that loses a learner and exports the model",
        run: demo,
    },
    Stage { name: "doc", when: When::All, what: "the documentation builds without warnings", run: doc },
    Stage { name: "api", when: When::All, what: "what the SDK shows is what its lists say", run: api },
];

fn floor(target: Option<&str>) -> Command {
    let mut command = cargo(&["clippy", "--locked", "-p", "archipelago-core", "--no-default-features"]);
    command.args(target.iter().flat_map(|target| ["--target", *target])).args(["--", "-D", "warnings"]);
    command
}

/// Lints the learner with the features for browsers.
fn learner_wasm() -> Result<String, String> {
    let mut command = cargo(&["clippy", "--locked", "-p", "archipelago", "--no-default-features"]);
    command.args(["--features", "cpu-portable,gpu,learner", "--target", WASM, "--", "-D", "warnings"]);
    call(command)
}

fn lint() -> Result<String, String> {
    let mut command = cargo(&["clippy", "--locked", "--workspace", "--all-targets"]);
    command.args([
        "--features",
        "xtask/bench,archipelago-python/extension,syncer-server/cluster,archipelago-tests/cluster",
        "--",
        "-D",
        "warnings",
    ]);
    call(command)
}

fn lint_wasm() -> Result<String, String> {
    let mut command = cargo(&["clippy", "--locked", "--target", WASM, "-p", "web-demo", "-p", "lesson"]);
    command.args(["--", "-D", "warnings"]);
    call(command)
}

fn programs() -> Result<String, String> {
    let mut command = cargo(&["build"]);
    command.args(TEST_PROGRAMS);
    call(command)
}

/// Runs all tests. Most of them wait for a clock or a peer, so more of them run in parallel than there are processors.
fn test() -> Result<String, String> {
    let mut command = cargo(&["test", "--locked", "--workspace", "--no-fail-fast", "--quiet"]);
    if env::var_os(TEST_THREADS).is_none() {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        command.env(TEST_THREADS, (TESTS_PER_PROCESSOR * processors).to_string());
    }
    call(command)
}

/// Runs the tests that need neither a browser nor a run.
fn units() -> Result<String, String> {
    call(cargo(&[
        "test",
        "--locked",
        "--quiet",
        "-p",
        "archipelago-core",
        "-p",
        "archipelago-demo",
        "-p",
        "xtask",
    ]))
}

/// Runs the browser tests with the programs of the stage `build`.
fn browser() -> Result<String, String> {
    let syncer = program(&build(TEST_PROGRAMS)?, "syncer-server")?;
    browsers::test(syncer.parent().ok_or("the build left no folder of programs")?)
}

/// Runs the README's first command with the programs of the stage `build`.
fn demo() -> Result<String, String> {
    let folder = root().join("runs").join("test-export");
    // An export does not overwrite the folder of another run.
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    // Cargo runs it, because the stage `test` may have replaced the running executable of xtask.
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

/// Checks the API lists against fresh documentation.
fn api() -> Result<String, String> {
    doc()?;
    api::check()
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

/// Installs missing parts of the toolchain.
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
    added.extend(python::setup()?);
    Ok(if added.is_empty() { String::new() } else { format!("added {}", added.join(", ")) })
}

fn rustup(args: &[&str]) -> Result<(), String> {
    let mut command = Command::new("rustup");
    // In the root, where `rust-toolchain.toml` selects the toolchain.
    command.args(args).current_dir(root());
    call(command).map(drop).map_err(|reason| {
        format!("{reason}; install it by hand: `rustup {}`, or your system's package of it", args.join(" "))
    })
}

/// Runs `command` with its output on this terminal.
pub fn call(mut command: Command) -> Result<String, String> {
    println!("   {}", shown(&command));
    match command.status() {
        Ok(status) if status.success() => Ok(String::new()),
        Ok(status) => Err(format!("`{}` ended with {status}", shown(&command))),
        Err(error) => Err(format!("`{}` did not start: {error}", shown(&command))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_what_runs() {
        let run = |asked: &[&str]| -> Vec<&str> {
            let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
            STAGES.iter().filter(|stage| stage.is_in(&asked)).map(|stage| stage.name).collect()
        };
        let (all, quick) = (run(&[]), run(&[QUICK]));
        assert!(all.contains(&"newcomer") && all.contains(&"test") && !all.contains(&"units"), "{all:?}");
        assert!(quick.contains(&"lint") && quick.contains(&"units") && !quick.contains(&"web"), "{quick:?}");
        assert!(!all.contains(&"advisories") && !quick.contains(&"advisories"), "{all:?} {quick:?}");
        assert_eq!(run(&["advisories"]), ["advisories"]);
        assert_eq!(run(&["doc"]), ["doc"]);
        assert_eq!(run(&[QUICK, "doc"]).last(), Some(&"doc"));
    }
}
