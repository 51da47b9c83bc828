//! Stage that runs the README's first command as a new user does: from a clean clone without builds, on a toolchain
//! without the library for browsers. A checkout as clean as a clone serves as the clone, so that later stages reuse the
//! demo's build.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use super::bare_toolchain::BareToolchain;
use super::tidy::SKIPPED;
use super::{Args, MachineFeature};
use crate::cargo::{WASM, root, target_folder};
use crate::http::fetch;

/// Maximum wait for any event: far more than a busy machine needs.
const WAIT: Duration = Duration::from_secs(1_800);
const POLL: Duration = Duration::from_millis(500);
/// Magic bytes of WebAssembly.
const WASM_MAGIC: &[u8] = b"\0asm";
/// Base name of the engine's file, without the hash.
const ENGINE: &str = "archipelago_bg";
/// Maximum number of files of a page; more indicate an endless search.
const FILES_MAX: usize = 200;
/// Paths that exist only after a build or a run.
const TRACES: [&str; 3] = ["web-demo/node_modules", "web-demo/dist", RUNS];
/// Paths in cargo's target folder that exist only after a build of more than xtask.
const TRACES_OF_CARGO: [&str; 2] = ["debug/syncer-server", "web"];
/// Variables of users that stay set; cargo's other variables belong to the call that runs this program.
const KEPT: [&str; 3] = ["CARGO_HOME", "CARGO_INCREMENTAL", "CARGO_PROFILE_DEV_DEBUG"];
/// Folder of a demo's runs.
const RUNS: &str = "runs";

/// Starts the demo, waits until it has trained and serves a page with its engine, and interrupts it.
///
/// # Errors
/// A message with the problem that a new user would have met.
pub fn check(args: &Args) -> Result<String, String> {
    if args.is_without(MachineFeature::Browser) || env::consts::OS == "windows" {
        return Ok("left out: browser tests are off".to_owned());
    }
    let target = target_folder()?;
    let folder = target.join("newcomer");
    clear(&folder)?;
    let is_clean = TRACES.iter().all(|trace| !root().join(trace).exists())
        && TRACES_OF_CARGO.iter().all(|trace| !target.join(trace).exists());
    let (clone, target) =
        if is_clean { (root().to_owned(), target) } else { (folder.join("clone"), folder.join("target")) };
    if is_clean {
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    } else {
        copy_sources(root(), &clone)?;
    }
    let bare = BareToolchain::make(&folder)?;
    if let Some(bare) = &bare {
        adds_missing_target(bare, &clone)?;
    }
    let start = Instant::now();
    let mut demo = Demo::start(&clone, &target, &folder.join("said"), bare.as_ref())?;
    let seen = demo.watch(start)?;
    let code = demo.stop()?;
    clear(&clone.join(RUNS))?;
    clear(&folder)?;
    if !code.success() {
        return Err(format!("the interrupted demo ended with {code}, not 0"));
    }
    let on =
        if bare.is_some() { "" } else { "; with the installed toolchain, because rustup did not install it" };
    Ok(format!("{seen}{on}"))
}

/// Lets rustup install the missing library from the toolchain file, then removes it, so that the demo must install it.
/// Not every rustup installs missing parts unasked.
fn adds_missing_target(bare: &BareToolchain, clone: &Path) -> Result<(), String> {
    if bare.has_target() {
        return Err("the toolchain of the test already has the library for browsers".to_owned());
    }
    let call = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).current_dir(clone).stdout(Stdio::null());
        bare.apply(&mut command);
        crate::web::call(&mut command)
    };
    call("cargo", &["--version"])?;
    if !bare.has_target() {
        return Err(format!("rust-toolchain.toml does not make rustup add {WASM}"));
    }
    call("rustup", &["target", "remove", WASM])
}

/// Removes `folder` and its contents.
fn clear(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if folder.exists() => Err(format!("{}: {error}", folder.display())),
        _ => Ok(()),
    }
}

/// Copies the files that a clone of the working tree would have.
fn copy_sources(from: &Path, to: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", from.display());
    fs::create_dir_all(to).map_err(failed)?;
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if !path.is_dir() {
            fs::copy(&path, &copy).map_err(failed)?;
        } else if SKIPPED.iter().all(|skipped| entry.file_name() != *skipped) {
            copy_sources(&path, &copy)?;
        }
    }
    Ok(())
}

/// Process group of the command; dropping it ends the processes.
struct Demo {
    child: Child,
    said: PathBuf,
}

impl Demo {
    fn start(clone: &Path, target: &Path, said: &Path, bare: Option<&BareToolchain>) -> Result<Self, String> {
        let file = fs::File::create(said).map_err(|error| format!("{}: {error}", said.display()))?;
        let mut command = Command::new("cargo");
        command.args(["xtask", "demo"]).current_dir(clone).stdin(Stdio::null()).stdout(file);
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("CARGO_") && KEPT.iter().all(|kept| name != *kept) {
                command.env_remove(name);
            }
        }
        if let Some(bare) = bare {
            bare.apply(&mut command);
            command.env("RUSTUP_AUTO_INSTALL", "0");
        }
        command.env("CARGO_TARGET_DIR", target);
        own_group(&mut command);
        println!("   cargo xtask demo, in {}", clone.display());
        let child = command.spawn().map_err(|error| format!("cargo did not start: {error}"))?;
        Ok(Self { child, said: said.to_owned() })
    }

    /// Waits for the link, the falling loss and the page. Returns their times.
    fn watch(&mut self, start: Instant) -> Result<String, String> {
        let address = self.wait_for("the link", address)?;
        let link_s = start.elapsed().as_secs();
        self.wait_for("a falling loss", |said| said.contains("first falling loss after").then_some(()))?;
        let loss_s = start.elapsed().as_secs();
        self.wait_for("the page", |_| fetch(address, "/").is_ok_and(|page| page.code == 200).then_some(()))?;
        let page_s = start.elapsed().as_secs();
        if !has_engine(address)? {
            return Err("no script of the page leads to the engine".to_owned());
        }
        Ok(format!("link after {link_s} s, first falling loss {loss_s} s, page {page_s} s"))
    }

    /// Polls the output of the demo until `parse` returns a value.
    fn wait_for<T>(&mut self, what: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let end = Instant::now() + WAIT;
        while Instant::now() < end {
            let said = fs::read_to_string(&self.said).unwrap_or_default();
            if let Some(found) = parse(&said) {
                return Ok(found);
            }
            if let Some(failed) = said.lines().find(|line| line.contains("could not be built")) {
                return Err(failed.to_owned());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the demo ended with {status} before {what} appeared"));
            }
            thread::sleep(POLL);
        }
        Err(format!("{what} did not appear within {} s", WAIT.as_secs()))
    }

    /// Sends Ctrl+C. Returns the demo's exit status.
    fn stop(&mut self) -> Result<ExitStatus, String> {
        signal("-INT", &self.child.id().to_string())?;
        let end = Instant::now() + WAIT;
        while Instant::now() < end {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
        Err("the demo did not end after an interrupt".to_owned())
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = signal("-KILL", &format!("-{}", self.child.id()));
            let _ = self.child.wait();
        }
    }
}

fn signal(which: &str, to: &str) -> Result<(), String> {
    crate::web::call(Command::new("kill").args([which, "--", to]))
}

/// Puts the command into a new process group, so that one signal reaches all of its processes.
#[cfg(unix)]
fn own_group(command: &mut Command) {
    std::os::unix::process::CommandExt::process_group(command, 0);
}

#[cfg(not(unix))]
fn own_group(_command: &mut Command) {}

/// Returns the address in the demo's link.
fn address(said: &str) -> Option<SocketAddr> {
    said.split("http://").nth(1)?.split('/').next()?.parse().ok()
}

/// Returns true if the scripts of the page at `/` lead to the engine, and that is WebAssembly.
fn has_engine(address: SocketAddr) -> Result<bool, String> {
    let mut open = vec!["/".to_owned()];
    let mut seen = BTreeSet::from(["/".to_owned()]);
    while let Some(path) = open.pop() {
        let answer = fetch(address, &path)?;
        // Scripts also contain names of source files of their packages, which are not served.
        if answer.code == 404 {
            continue;
        }
        if path.ends_with(".wasm") {
            if !answer.body.starts_with(WASM_MAGIC) {
                return Err(format!("{path} is not WebAssembly"));
            }
            if path.contains(ENGINE) {
                return Ok(true);
            }
            continue;
        }
        for name in names(&answer.text()) {
            let path = format!("/assets/{name}");
            if seen.len() < FILES_MAX && seen.insert(path.clone()) {
                open.push(path);
            }
        }
    }
    Ok(false)
}

/// Returns the names of scripts and modules in a page or script.
fn names(text: &str) -> BTreeSet<&str> {
    let part = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
    let names = text.split(|letter| !part(letter));
    names
        .filter(|name| [".js", ".wasm"].iter().any(|end| name.ends_with(end) && name.len() > end.len()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_link() {
        let said =
            "open http://127.0.0.1:34381/ in a browser and it trains along; http://127.0.0.1:34381/dashboard";
        assert_eq!(address(said), "127.0.0.1:34381".parse().ok());
        assert_eq!(address("   Compiling"), None);
    }

    #[test]
    fn finds_what_a_page_loads() {
        let page =
            r#"<script src="./assets/index-B_1.js"></script>new URL(`a_bg-C.wasm`,import.meta.url) .js"#;
        assert_eq!(names(page).into_iter().collect::<Vec<_>>(), ["a_bg-C.wasm", "index-B_1.js"]);
    }
}
