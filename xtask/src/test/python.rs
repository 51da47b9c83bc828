//! The Python package: checked, built as a wheel, installed in a fresh environment, and tested there with real runs.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{apt, browsers};
use crate::cargo::{TEST_PROGRAMS, build, cargo, program, root, target_folder};
use crate::web::{self, call};

/// The package's folder.
const PACKAGE: &str = "sdk/python";
/// What of it the linters look at.
const SOURCES: [&str; 3] = ["python/archipelago", "tests", "examples"];
/// A native program with the model of one of the package's examples, built as the stage `test` builds it.
const EXAMPLE: &[&str] = &["--locked", "--workspace", "--example", "custom_model"];
/// What the wheel is built with: its own, and those that tests have of the SDK, so that they share one build of it.
const FEATURES: &str = "extension,archipelago/default,archipelago/ts";
/// What Debian calls what is needed.
const DEBIAN: [&str; 2] = ["python3", "python3-venv"];
/// Asks whether Python is new enough and can make environments. The version is that of the wheel's stable ABI.
const ASK: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))";

/// An environment of Python's: a folder with an interpreter and packages of its own.
pub(super) struct Environment(PathBuf);

impl Environment {
    /// The one called `name`, made if it is not there; `anew` in any case.
    pub(super) fn make(name: &str, anew: bool) -> Result<Self, String> {
        let folder = target_folder()?.join("python").join(name);
        let environment = Self(folder);
        if anew || !environment.program("python").exists() {
            let mut venv = Command::new(interpreter());
            venv.args(["-m", "venv", "--clear"]).arg(&environment.0);
            call(&mut venv)?;
        }
        Ok(environment)
    }

    /// A program of it.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        let windows = env::consts::OS == "windows";
        self.0
            .join(if windows { "Scripts" } else { "bin" })
            .join(format!("{name}{}", env::consts::EXE_SUFFIX))
    }

    /// A call of its interpreter in the package's folder.
    fn python(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program("python"));
        command.args(words).current_dir(root().join(PACKAGE));
        command
    }

    /// Installs with pip.
    pub(super) fn install(&self, words: &[&str]) -> Result<(), String> {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        call(&mut self.python(&[&pip[..], words].concat()))
    }
}

/// Sees to it that there is a Python that can make environments; what it installed, if anything.
///
/// # Errors
/// A sentence: there is none, and how to get one or to do without.
pub fn setup() -> Result<Vec<&'static str>, String> {
    if is_off() || answers() {
        return Ok(Vec::new());
    }
    if apt::install(&DEBIAN) && answers() {
        return Ok(DEBIAN.to_vec());
    }
    Err(format!(
        "`{}` is no Python 3.11 or newer that can make environments: install one (on Debian: apt-get install {}), name \
         yours with PYTHON=…, or set PYTHON_TESTS=no to go without the tests of the Python package",
        interpreter(),
        DEBIAN.join(" ")
    ))
}

/// Checks, builds, installs and tests it. `PYTORCH_TESTS=yes` adds tests that install PyTorch.
///
/// # Errors
/// A sentence: what failed.
pub fn test() -> Result<String, String> {
    if is_off() {
        return Ok("left out: PYTHON_TESTS=no".to_owned());
    }
    setup()?;
    let tools = Environment::make("tools", false)?;
    tools.install(&["-r", "tests/requirements.txt"])?;
    call(&mut tools.python(&[&["-m", "ruff", "check", "--quiet"], &SOURCES[..]].concat()))?;
    call(&mut tools.python(&[&["-m", "ruff", "format", "--check", "--quiet"], &SOURCES[..]].concat()))?;
    call(&mut tools.python(&[&["-m", "mypy", "--no-error-summary"], &SOURCES[..]].concat()))?;

    let wheel = wheel(&tools)?;
    let syncer = program(&build(TEST_PROGRAMS)?, "syncer-server")?;
    let programs = syncer.parent().ok_or("the build left no folder of programs")?;
    build(EXAMPLE)?;
    let fresh = Environment::make("fresh", true)?;
    fresh.install(&["-c", "tests/requirements.txt", &wheel])?;
    run(&fresh, programs, "test_*.py", None)?;
    if env::var("PYTORCH_TESTS").is_ok_and(|value| value == "yes") {
        let torch = Environment::make("torch", false)?;
        torch.install(&["-r", "tests/requirements-torch.txt"])?;
        torch.install(&["--force-reinstall", "--no-deps", &wheel])?;
        let pages = if browsers::is_off() { None } else { Some(web::site()?) };
        run(&torch, programs, "torch_*.py", pages.as_deref())?;
        return Ok("with PyTorch".to_owned());
    }
    Ok("without PyTorch: PYTORCH_TESTS=yes adds it".to_owned())
}

/// Builds the wheel as people do, in the profile of the tests; its path.
fn wheel(tools: &Environment) -> Result<String, String> {
    let folder = target_folder()?.join("python/wheels");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let mut pip = tools.python(&["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]);
    pip.arg(&folder)
        .arg(".")
        .env("MATURIN_PEP517_ARGS", format!("--locked --profile dev --features {FEATURES}"));
    // The build calls maturin by its name, and maturin cargo.
    let scripts = tools.program("maturin");
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = scripts.parent().map(Path::to_owned).into_iter().chain(env::split_paths(&path));
    pip.env("PATH", env::join_paths(folders).map_err(|error| error.to_string())?);
    call(&mut in_the_environment_of_cargo(pip))?;
    let files = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let wheel =
        files.flatten().map(|file| file.path()).find(|file| file.extension().is_some_and(|end| end == "whl"));
    Ok(wheel.ok_or("pip built no wheel")?.to_string_lossy().into_owned())
}

/// `command` without the variables that `cargo run` set, as [`cargo`] has none of them either: each would be a reason
/// to build anew.
fn in_the_environment_of_cargo(mut command: Command) -> Command {
    for (name, value) in cargo(&[]).get_envs() {
        if value.is_none() {
            command.env_remove(name);
        }
    }
    command
}

/// Runs the tests in the files that `pattern` matches, with the programs in the folder `programs` and a browser on
/// `pages` where there are any.
fn run(
    environment: &Environment,
    programs: &Path,
    pattern: &str,
    pages: Option<&Path>,
) -> Result<(), String> {
    let words = [
        "-W",
        "error::ResourceWarning",
        "-m",
        "unittest",
        "discover",
        "-t",
        ".",
        "-s",
        "tests",
        "-p",
        pattern,
    ];
    let mut tests = environment.python(&words);
    tests.env("ARCHIPELAGO_BIN", programs);
    if let Some(pages) = pages {
        tests.env("ARCHIPELAGO_PAGES", pages);
    }
    call(&mut tests)
}

/// Whether the interpreter will do.
fn answers() -> bool {
    let mut ask = Command::new(interpreter());
    ask.args(["-c", ASK]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    ask.status().is_ok_and(|status| status.success())
}

/// The interpreter that makes environments.
fn interpreter() -> String {
    env::var("PYTHON")
        .unwrap_or_else(|_| if env::consts::OS == "windows" { "python" } else { "python3" }.to_owned())
}

/// Whether tests that need Python are switched off.
pub(super) fn is_off() -> bool {
    env::var("PYTHON_TESTS").is_ok_and(|value| value == "no")
}
