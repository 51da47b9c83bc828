//! Stages that use Python: the Python package, and checks by programs that pip installs, each in an environment below
//! `target`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::stages::call;
use super::{Args, MachineFeature, setup as machine};
use crate::cargo::{TEST_PROGRAMS, build, cargo, program, root, target_folder};
use crate::web;

/// Folder of the package.
const PACKAGE: &str = "sdk/python";
/// Linted folders of the package.
const SOURCES: [&str; 3] = ["python/archipelago_train", "tests", "examples"];
/// Native program with the model of one of the package's examples, built as in the stage `test`.
const EXAMPLE: &[&str] = &["--locked", "--workspace", "--example", "custom_model"];
/// Features of the wheel: its own, and the SDK features of the tests, so that both share one build.
const FEATURES: &str = "extension,archipelago/default,archipelago/ts";
/// Remark of a stage without Python.
const LEFT_OUT: &str = "left out: --without python";
/// Folder of the files for containers.
const DEPLOY: &str = "syncer-server/deploy";
/// Compose files in [`DEPLOY`].
const COMPOSE: [&str; 2] = ["compose.yaml", "cluster/compose.yaml"];
/// Folder of the Kubernetes files in [`DEPLOY`].
const KUBERNETES: &str = "cluster/kubernetes";
/// Folder with chat templates, conversations, expected texts, and the program that writes these texts.
const CHAT: &str = "syncer-server/tests/chat";
/// Folder of the check of GGUF files.
const LLAMA_CPP: &str = "syncer-server/tests/gguf";
/// Required Debian packages.
const DEBIAN: [&str; 2] = ["python3", "python3-venv"];
/// Check that Python is new enough and can create environments. The version is that of the wheel's stable ABI.
const ASK: &str = "import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))";

/// Python environment: a folder with an interpreter and separate packages.
pub(super) struct Environment(PathBuf);

impl Environment {
    /// Returns the environment `name`. Creates it if it is missing, or in any case if `is_fresh` is true.
    pub(super) fn make(name: &str, is_fresh: bool) -> Result<Self, String> {
        let folder = target_folder()?.join("python").join(name);
        let environment = Self(folder);
        if is_fresh || !environment.program("python").exists() {
            let mut venv = Command::new(interpreter());
            venv.args(["-m", "venv", "--clear"]).arg(&environment.0);
            call(venv)?;
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
        call(self.python(&[&pip[..], words].concat())).map(drop)
    }
}

/// Installs a missing Python that can create environments. Returns the installed packages.
///
/// # Errors
/// A message if Python is missing, with ways to install it or to go without.
pub fn setup(args: &Args) -> Result<Vec<&'static str>, String> {
    if args.is_without(MachineFeature::Python) || answers() {
        return Ok(Vec::new());
    }
    if machine::install(&DEBIAN) && answers() {
        return Ok(DEBIAN.to_vec());
    }
    Err(format!(
        "`{}` is not Python 3.11 or newer with venv; install one (on Debian: apt-get install {}), name another one \
         with PYTHON=PATH, or skip these tests with --without python",
        interpreter(),
        DEBIAN.join(" ")
    ))
}

/// Lints, builds, installs and tests the package.
///
/// # Errors
/// A message about the failure.
pub fn test(args: &Args) -> Result<String, String> {
    if args.is_without(MachineFeature::Python) {
        return Ok(LEFT_OUT.to_owned());
    }
    setup(args)?;
    let tools = tools()?;
    call(tools.python(&[&["-m", "ruff", "check", "--quiet"], &SOURCES[..]].concat()))?;
    call(tools.python(&[&["-m", "ruff", "format", "--check", "--quiet"], &SOURCES[..]].concat()))?;
    call(tools.python(&[&["-m", "mypy", "--no-error-summary"], &SOURCES[..]].concat()))?;
    let wheel = wheel(&tools)?;
    let programs = programs()?;
    let fresh = Environment::make("fresh", true)?;
    fresh.install(&["-c", "tests/requirements.txt", &wheel])?;
    run(&fresh, &programs, "test_*.py", None)
}

/// Tests the package with PyTorch, transformers, TRL and experiment trackers, which pip downloads (five gigabytes).
///
/// # Errors
/// A message about the failure.
pub fn test_with_pytorch(args: &Args) -> Result<String, String> {
    setup(args)?;
    let wheel = wheel(&tools()?)?;
    let programs = programs()?;
    let torch = Environment::make("torch", false)?;
    torch.install(&["-r", "tests/requirements-torch.txt"])?;
    torch.install(&["--force-reinstall", "--no-deps", &wheel])?;
    let pages = if args.is_without(MachineFeature::Browser) { None } else { Some(web::site()?) };
    run(&torch, &programs, "torch_*.py", pages.as_deref())
}

/// Validates the files for containers with linters that include their schemas.
///
/// # Errors
/// A message about the failure.
pub fn check_deploy(args: &Args) -> Result<String, String> {
    if args.is_without(MachineFeature::Python) {
        return Ok(LEFT_OUT.to_owned());
    }
    setup(args)?;
    let folder = root().join(DEPLOY);
    let environment = Environment::make("deploy", false)?;
    environment.install(&["-r", &folder.join("requirements.txt").to_string_lossy()])?;
    let mut compose = Command::new(environment.program("check-jsonschema"));
    compose.args(["--builtin-schema", "vendor.compose-spec"]).args(COMPOSE).current_dir(&folder);
    call(compose)?;
    let files = manifests(&folder.join(KUBERNETES))?;
    let mut kubernetes = Command::new(environment.program("kubernetes-validate"));
    kubernetes.args(["--strict", "--quiet"]).args(&files);
    call(kubernetes)?;
    Ok(format!("{} files", COMPOSE.len() + files.len()))
}

/// Returns the Kubernetes files, in order.
fn manifests(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    match files.is_empty() {
        true => Err(format!("{} contains no YAML files", folder.display())),
        false => Ok(files),
    }
}

/// Compares the expected texts of chat templates in the syncer's tests with the output of `transformers`.
///
/// # Errors
/// A message about the failure.
pub fn compare_chat_templates(args: &Args) -> Result<String, String> {
    setup(args)?;
    let folder = root().join(CHAT);
    let environment = Environment::make("transformers", false)?;
    environment.install(&["-r", &folder.join("requirements.txt").to_string_lossy()])?;
    let mut check = Command::new(environment.program("python"));
    check.args(["make.py", "--check"]).current_dir(folder);
    call(check)
}

/// Compares exported GGUF files in llama.cpp with the runs that they come from.
///
/// # Errors
/// A message about the failure.
pub fn compare_gguf(args: &Args) -> Result<String, String> {
    setup(args)?;
    let folder = root().join(LLAMA_CPP);
    let environment = Environment::make("llama-cpp", false)?;
    environment.install(&["-r", &folder.join("requirements.txt").to_string_lossy()])?;
    let mut check = Command::new(environment.program("python"));
    check.arg("check.py").arg(programs()?).current_dir(folder);
    call(check)
}

/// Returns the environment of the linters and the wheel's build.
fn tools() -> Result<Environment, String> {
    let tools = Environment::make("tools", false)?;
    tools.install(&["-r", "tests/requirements.txt"])?;
    Ok(tools)
}

/// Builds the programs that the package's tests start. Returns their folder.
fn programs() -> Result<PathBuf, String> {
    let syncer = program(&build(TEST_PROGRAMS)?, "syncer-server")?;
    build(EXAMPLE)?;
    Ok(syncer.parent().ok_or("the build has no folder of programs")?.to_owned())
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
    call(in_the_environment_of_cargo(pip))?;
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
) -> Result<String, String> {
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
    call(tests)
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
