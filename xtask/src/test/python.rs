//! Python package: linted, built as a wheel, installed in a fresh environment, and tested there with real runs.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{apt, browsers};
use crate::cargo::{TEST_PROGRAMS, build, cargo, program, root, target_folder};
use crate::web::{self, call};

/// Folder of the package.
const PACKAGE: &str = "sdk/python";
/// Linted folders of the package.
const SOURCES: [&str; 3] = ["python/archipelago", "tests", "examples"];
/// Native program with the model of one of the package's examples, built as in the stage `test`.
const EXAMPLE: &[&str] = &["--locked", "--workspace", "--example", "custom_model"];
/// Features of the wheel: its own, and the SDK features of the tests, so that both share one build.
const FEATURES: &str = "extension,archipelago/default,archipelago/ts";
/// Required Debian packages.
const DEBIAN: [&str; 2] = ["python3", "python3-venv"];
/// Check that Python is new enough and can create environments. The version is that of the wheel's stable ABI.
const ASK: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))";

/// Python environment: a folder with an interpreter and separate packages.
pub(super) struct Environment(PathBuf);

impl Environment {
    /// Returns the environment `name`. Creates it if it is missing, or in any case if `anew` is true.
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

    /// Returns the path of a program in the environment.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        let windows = env::consts::OS == "windows";
        self.0
            .join(if windows { "Scripts" } else { "bin" })
            .join(format!("{name}{}", env::consts::EXE_SUFFIX))
    }

    /// Returns a call of the interpreter in the package's folder.
    fn python(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.program("python"));
        command.args(words).current_dir(root().join(PACKAGE));
        command
    }

    /// Installs packages with pip.
    pub(super) fn install(&self, words: &[&str]) -> Result<(), String> {
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
        call(&mut self.python(&[&pip[..], words].concat()))
    }
}

/// Installs a missing Python that can create environments. Returns the installed packages.
///
/// # Errors
/// A message if Python is missing, with ways to install it or to go without.
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

/// Lints, builds, installs and tests the package. `PYTORCH_TESTS=yes` adds tests that install PyTorch.
///
/// # Errors
/// A message about the failure.
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

/// Builds the wheel as users do, in the profile of the tests. Returns its path.
fn wheel(tools: &Environment) -> Result<String, String> {
    let folder = target_folder()?.join("python/wheels");
    if folder.exists() {
        fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    let mut pip = tools.python(&["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w"]);
    pip.arg(&folder)
        .arg(".")
        .env("MATURIN_PEP517_ARGS", format!("--locked --profile dev --features {FEATURES}"));
    // The build calls maturin by name, and maturin calls cargo.
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

/// Removes the variables that `cargo run` set from `command`, as [`cargo`] does. Each of them would cause a rebuild.
fn in_the_environment_of_cargo(mut command: Command) -> Command {
    for (name, value) in cargo(&[]).get_envs() {
        if value.is_none() {
            command.env_remove(name);
        }
    }
    command
}

/// Runs the tests in the files that match `pattern`, with the programs in the folder `programs` and a browser on
/// `pages`, if given.
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

/// Returns true if the interpreter is usable.
fn answers() -> bool {
    let mut ask = Command::new(interpreter());
    ask.args(["-c", ASK]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    ask.status().is_ok_and(|status| status.success())
}

/// Returns the interpreter that creates environments.
fn interpreter() -> String {
    env::var("PYTHON")
        .unwrap_or_else(|_| if env::consts::OS == "windows" { "python" } else { "python3" }.to_owned())
}

/// Returns true if tests that need Python are disabled.
pub(super) fn is_off() -> bool {
    env::var("PYTHON_TESTS").is_ok_and(|value| value == "no")
}
