//! Chromium and Firefox for the tests of the pages.

use std::path::Path;
use std::{env, fs, thread};

use super::stages::call;
use super::{Args, MachineFeature, setup as machine};
use crate::cargo::root;
use crate::tools::program;
use crate::web;

/// Browser: its Debian package and path, the variable with another path, and the machine feature that `--without`
/// names.
struct Browser {
    package: &'static str,
    path: &'static str,
    variable: &'static str,
    part: MachineFeature,
}

/// Time limit for a test, far more than a busy machine needs.
const TEST_TIMEOUT: &str = "--test-timeout=900000";

/// Number of test files that run at once. A page, its syncer and its learner occupy little more than one processor.
const FILES_AT_ONCE: &str = "--test-concurrency=2";

/// Remark of a stage without browsers.
const LEFT_OUT: &str = "left out: --without browser";

/// Folder of the linter.
const LINT: &str = "web-demo/lint";

const CHROMIUM: Browser = Browser {
    package: "chromium",
    path: "/usr/bin/chromium",
    variable: "CHROMIUM",
    part: MachineFeature::Browser,
};
const FIREFOX: Browser = Browser {
    package: "firefox-esr",
    path: "/usr/bin/firefox-esr",
    variable: "FIREFOX",
    part: MachineFeature::Firefox,
};

/// Installs missing browsers. Returns the installed packages.
///
/// # Errors
/// A message if one is missing, with ways to install it or to go without.
pub fn setup(args: &Args) -> Result<Vec<&'static str>, String> {
    if args.is_without(MachineFeature::Browser) {
        return Ok(Vec::new());
    }
    web::install("web-demo")?;
    let mut added = Vec::new();
    for Browser { package, path, variable, part } in [CHROMIUM, FIREFOX] {
        let named = env::var_os(variable).is_some_and(|path| Path::new(&path).exists());
        if args.is_without(part) || named || Path::new(path).exists() {
            continue;
        }
        if !(machine::install(&[package]) && Path::new(path).exists()) {
            let flag = if part == MachineFeature::Firefox { "firefox" } else { "browser" };
            return Err(format!(
                "{package} not found; install it (on Debian: apt-get install {package}), name another one with \
                 {variable}=PATH, or skip its tests with --without {flag}"
            ));
        }
        added.push(package);
    }
    Ok(added)
}

/// Lints all TypeScript and JavaScript. The linter is separate from the build of the pages.
///
/// # Errors
/// A message if it could not be installed, or found something.
pub fn lint(args: &Args) -> Result<String, String> {
    if args.is_without(MachineFeature::Browser) {
        return Ok(LEFT_OUT.to_owned());
    }
    web::install(LINT)?;
    let mut npm = program("npm");
    npm.args(["run", "--silent", "check"]).current_dir(root().join(LINT));
    call(npm)
}

/// Builds the pages and the parity tests, unless browser tests are disabled.
///
/// # Errors
/// A message about the failure.
pub fn build(args: &Args) -> Result<String, String> {
    if args.is_without(MachineFeature::Browser) {
        return Ok(LEFT_OUT.to_owned());
    }
    // The builds run in parallel, since both spend long in a single-threaded optimisation of one crate.
    thread::scope(|scope| {
        let parity = scope.spawn(web::parity);
        let site = web::site();
        parity.join().expect("a failed build returns an error")?;
        site.map(|_| String::new())
    })
}

/// Runs the browser tests.
///
/// # Errors
/// A message about the failure.
pub fn test(args: &Args, programs: &Path) -> Result<String, String> {
    if args.is_without(MachineFeature::Browser) {
        return Ok(LEFT_OUT.to_owned());
    }
    let folder = root().join("web-demo/tests");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.to_string_lossy().ends_with(".test.mjs"));
    files.sort();
    let mut command = program("node");
    command.args(["--test", FILES_AT_ONCE, "--test-reporter=spec", TEST_TIMEOUT]);
    args.apply(&mut command).args(files).env("ARCHIPELAGO_BIN", programs);
    call(command)?;
    Ok(String::new())
}
