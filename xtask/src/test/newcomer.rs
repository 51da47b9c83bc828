//! The README's first command, as a newcomer gives it: from a clean clone, with nothing built, on a toolchain that
//! lacks the library for browsers. Where this checkout is as clean as a clone it is the clone, and the stages after
//! this one need not build again what the demo was built of.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use archipelago_demo::http::fetch;

use super::bare::Bare;
use super::browsers;
use super::tidy::SKIPPED;
use crate::cargo::{WASM, root, target_folder};

/// Longest wait for anything: far more than a busy machine needs.
const WAIT: Duration = Duration::from_secs(1_800);
const LOOK: Duration = Duration::from_millis(500);
/// The first bytes of WebAssembly.
const WASM_MAGIC: &[u8] = b"\0asm";
/// What the file of the engine is called, beside a hash.
const ENGINE: &str = "archipelago_bg";
/// Files that a page may load before it is taken for endless.
const FILES_MAX: usize = 200;
/// What is in a checkout only after somebody has built or run something, and in cargo's folder after more than xtask.
const TRACES: [&str; 3] = ["web-demo/node_modules", "web-demo/dist", RUNS];
const TRACES_OF_CARGO: [&str; 2] = ["debug/syncer-server", "web"];
/// What people set for all that they call; other variables of cargo's are those of the call that runs this.
const KEPT: [&str; 3] = ["CARGO_HOME", "CARGO_INCREMENTAL", "CARGO_PROFILE_DEV_DEBUG"];
/// Where a demo keeps its runs.
const RUNS: &str = "runs";

/// Starts the demo, waits until it has trained and shows a page whose engine is there, and stops it by hand.
///
/// # Errors
/// A sentence: what a newcomer would have met.
pub fn check() -> Result<String, String> {
    if browsers::is_off() || env::consts::OS == "windows" {
        return Ok("left out: no pages are tested here".to_owned());
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
    let bare = Bare::make(&folder)?;
    if let Some(bare) = &bare {
        looks_after_itself(bare, &clone)?;
    }
    let start = Instant::now();
    let mut demo = Demo::start(&clone, &target, &folder.join("said"), bare.as_ref())?;
    let seen = demo.watch(start)?;
    let code = demo.stop()?;
    clear(&clone.join(RUNS))?;
    clear(&folder)?;
    if !code.success() {
        return Err(format!("the demo was stopped by hand and ended with {code}, not 0"));
    }
    let on =
        if bare.is_some() { "" } else { "; on this machine's own toolchain, which rustup did not install" };
    Ok(format!("{seen}{on}"))
}

/// Rustup reads the toolchain's file before anything runs and adds what is missing. Takes it away again, so that the
/// demo has to look after itself: not every rustup may add things unasked.
fn looks_after_itself(bare: &Bare, clone: &Path) -> Result<(), String> {
    if bare.has_target() {
        return Err("the bare toolchain is not bare".to_owned());
    }
    let call = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).current_dir(clone).stdout(Stdio::null());
        bare.apply(&mut command);
        crate::web::call(&mut command)
    };
    call("cargo", &["--version"])?;
    if !bare.has_target() {
        return Err(format!("rust-toolchain.toml does not have rustup add {WASM}"));
    }
    call("rustup", &["target", "remove", WASM])
}

/// Removes `folder` and all below it.
fn clear(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(error) if folder.exists() => Err(format!("{}: {error}", folder.display())),
        _ => Ok(()),
    }
}

/// What a clone of the working tree would have.
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

/// The command and all that it starts; dropping it ends them.
struct Demo {
    child: Child,
    said: PathBuf,
}

impl Demo {
    fn start(clone: &Path, target: &Path, said: &Path, bare: Option<&Bare>) -> Result<Self, String> {
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

    /// Waits for the link, the falling loss and the page; when each was there.
    fn watch(&mut self, start: Instant) -> Result<String, String> {
        let address = self.wait_for("the link", address)?;
        let link_s = start.elapsed().as_secs();
        self.wait_for("a falling loss", |said| said.contains("first falling loss after").then_some(()))?;
        let loss_s = start.elapsed().as_secs();
        self.wait_for("the page", |_| fetch(address, "/").is_ok_and(|page| page.code == 200).then_some(()))?;
        let page_s = start.elapsed().as_secs();
        if !has_engine(address)? {
            return Err("the page leads to no engine".to_owned());
        }
        Ok(format!("link after {link_s} s, first falling loss {loss_s} s, page {page_s} s"))
    }

    /// Looks until `look` finds something in what the demo has said.
    fn wait_for<T>(&mut self, what: &str, look: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let end = Instant::now() + WAIT;
        while Instant::now() < end {
            let said = fs::read_to_string(&self.said).unwrap_or_default();
            if let Some(found) = look(&said) {
                return Ok(found);
            }
            if let Some(failed) = said.lines().find(|line| line.contains("could not be built")) {
                return Err(failed.to_owned());
            }
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the demo ended with {status} before {what} was there"));
            }
            thread::sleep(LOOK);
        }
        Err(format!("{what} was not there after {} s", WAIT.as_secs()))
    }

    /// Ctrl+C, and how the demo ended.
    fn stop(&mut self) -> Result<ExitStatus, String> {
        signal("-INT", &self.child.id().to_string())?;
        let end = Instant::now() + WAIT;
        while Instant::now() < end {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Ok(status);
            }
            thread::sleep(LOOK);
        }
        Err("the demo did not end".to_owned())
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

/// A group of processes of its own, so that one signal reaches all of it.
#[cfg(unix)]
fn own_group(command: &mut Command) {
    std::os::unix::process::CommandExt::process_group(command, 0);
}

#[cfg(not(unix))]
fn own_group(_command: &mut Command) {}

/// Where the demo's link leads.
fn address(said: &str) -> Option<SocketAddr> {
    said.split("http://").nth(1)?.split('/').next()?.parse().ok()
}

/// Whether the page at `/` leads, through its scripts, to the engine, and that is WebAssembly.
fn has_engine(address: SocketAddr) -> Result<bool, String> {
    let mut open = vec!["/".to_owned()];
    let mut seen = BTreeSet::from(["/".to_owned()]);
    while let Some(path) = open.pop() {
        let answer = fetch(address, &path)?;
        // Scripts also name files of the packages that they were made of, which are not there.
        if answer.code == 404 {
            continue;
        }
        if path.ends_with(".wasm") {
            if !answer.body.starts_with(WASM_MAGIC) {
                return Err(format!("{path} is no WebAssembly"));
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

/// Names of scripts and modules in the text of a page or script.
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
