//! Chromium and Firefox for the tests of the pages.

use std::path::{Path, PathBuf};
use std::{env, fs, thread};

use super::apt;
use crate::cargo::root;
use crate::tools::program;
use crate::web::{self, call};

/// A browser, where Debian has it, the variable that names another, and the one that goes without.
struct Browser {
    package: &'static str,
    path: &'static str,
    variable: &'static str,
    switch: &'static str,
}

/// A test that takes longer hangs; far more than a busy machine needs.
const TEST_TIMEOUT: &str = "--test-timeout=900000";

/// The longest two: one computes and the other waits, so they run side by side. Of others, two at once would fight for
/// the processor.
const SIDE_BY_SIDE: [&str; 2] = ["parity.test.mjs", "patience.test.mjs"];

/// The folder of the linter.
const LINT: &str = "web-demo/lint";

const CHROMIUM: Browser =
    Browser { package: "chromium", path: "/usr/bin/chromium", variable: "CHROMIUM", switch: "BROWSER_TESTS" };
const FIREFOX: Browser = Browser {
    package: "firefox-esr",
    path: "/usr/bin/firefox-esr",
    variable: "FIREFOX",
    switch: "FIREFOX_TESTS",
};

/// Sees to it that both are there; what it installed, if anything.
///
/// # Errors
/// A sentence: one is missing, and how to get it or to do without.
pub fn setup() -> Result<Vec<&'static str>, String> {
    if is_off() {
        return Ok(Vec::new());
    }
    web::install("web-demo")?;
    let mut added = Vec::new();
    for Browser { package, path, variable, switch } in [CHROMIUM, FIREFOX] {
        let off = env::var(switch).is_ok_and(|value| value == "no");
        let named = env::var_os(variable).is_some_and(|path| Path::new(&path).exists());
        if off || named || Path::new(path).exists() {
            continue;
        }
        if !(apt::install(&[package]) && Path::new(path).exists()) {
            return Err(format!(
                "there is no {package}: install it (on Debian: apt-get install {package}), name yours with \
                 {variable}=…, or set {switch}=no to go without its tests"
            ));
        }
        added.push(package);
    }
    Ok(added)
}

/// Has the linter look at all TypeScript and JavaScript; it stands apart from what builds the pages.
///
/// # Errors
/// A sentence: it could not be installed, or found something.
pub fn lint() -> Result<String, String> {
    if is_off() {
        return Ok("left out: BROWSER_TESTS=no".to_owned());
    }
    web::install(LINT)?;
    call(program("npm").args(["run", "--silent", "check"]).current_dir(root().join(LINT)))?;
    Ok(String::new())
}

/// Builds the pages and the parity tests, unless the tests of browsers are switched off.
///
/// # Errors
/// A sentence: what failed.
pub fn build() -> Result<String, String> {
    if is_off() {
        return Ok("left out: BROWSER_TESTS=no".to_owned());
    }
    // At once: much of either is one thread that optimises one crate.
    thread::scope(|scope| {
        let parity = scope.spawn(web::parity);
        let site = web::site();
        parity.join().expect("a build that fails says so")?;
        site.map(|_| String::new())
    })
}

/// Runs them.
///
/// # Errors
/// A sentence: what failed.
pub fn test(programs: &Path) -> Result<String, String> {
    if is_off() {
        return Ok("left out: BROWSER_TESTS=no".to_owned());
    }
    let folder = root().join("web-demo/tests");
    let entries = fs::read_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.to_string_lossy().ends_with(".test.mjs"));
    files.sort();
    let is_long = |file: &PathBuf| SIDE_BY_SIDE.iter().any(|name| file.ends_with(name));
    let (long, others): (Vec<_>, Vec<_>) = files.into_iter().partition(is_long);
    for (at_once, files) in [("2", long), ("1", others)] {
        let mut command = program("node");
        command.args([
            "--test",
            &format!("--test-concurrency={at_once}"),
            "--test-reporter=spec",
            TEST_TIMEOUT,
        ]);
        command.args(files).env("ARCHIPELAGO_BIN", programs);
        call(&mut command)?;
    }
    Ok(String::new())
}

/// Whether tests of pages are switched off.
pub fn is_off() -> bool {
    env::var("BROWSER_TESTS").is_ok_and(|value| value == "no")
}
