//! `cargo xtask web`: what browsers get. The engine as WebAssembly, the npm package, the pages.

mod node;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fs, io, thread};

pub use node::{install, node, program};

use crate::cargo::{WASM, build, cargo, root, shown};

/// The builds of the engine, and the features of WebAssembly that each asks of a browser.
const BUILDS: [(&str, &str); 2] = [("plain", "+simd128"), ("relaxed", "+simd128,+relaxed-simd")];

/// Inlines less than usual for code that is to be fast: a tenth fewer bytes, and no slower, for what must be
/// inlined says so.
const SMALL: &str = "-C llvm-args=-inline-threshold=60";

/// What to build.
#[derive(clap::Args)]
pub struct Args {
    /// Ends after the npm package, without the pages.
    #[arg(long)]
    package: bool,
    /// Builds the parity tests of the GPU engine instead, for `web-demo/tests`.
    #[arg(long, conflicts_with = "package")]
    parity: bool,
}

/// Builds; exit code 1 if something failed.
pub fn run(args: &Args) -> ExitCode {
    let built = match args {
        Args { parity: true, .. } => parity(),
        Args { package: true, .. } => package(),
        _ => site(),
    };
    match built {
        Ok(folder) => {
            println!("{}", folder.display());
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Builds package and pages, and gives the folder that the syncer embeds.
///
/// # Errors
/// A sentence: what is missing or failed.
pub fn site() -> Result<PathBuf, String> {
    package()?;
    call(node("tsc").args(["-p", "pages"]))?;
    call(node("vite").args(["build", "--logLevel", "warn"]))?;
    Ok(root().join("web-demo/dist"))
}

/// Builds the npm package, and gives its folder.
///
/// # Errors
/// A sentence: what is missing or failed.
pub fn package() -> Result<PathBuf, String> {
    install()?;
    let folder = root().join("web-demo/package");
    let bindgen = bindgen()?;
    // At once: most of a build is one thread that optimises the whole program.
    thread::scope(|scope| {
        let builds = BUILDS.map(|(name, features)| {
            let (bindgen, out) = (&bindgen, folder.join("dist/wasm").join(name));
            scope.spawn(move || engine(bindgen, name, features, &out))
        });
        builds.into_iter().try_for_each(|build| build.join().expect("a build that fails says so"))
    })?;
    call(node("tsc").args(["-p", "package"]))?;
    Ok(folder)
}

/// Builds the parity tests of the GPU engine for browsers, and gives their folder. Not optimised for size.
///
/// # Errors
/// A sentence: what is missing or failed.
pub fn parity() -> Result<PathBuf, String> {
    let args = ["--locked", "-p", "web-demo", "--lib", "--features", "parity", "--target", WASM];
    let folder = root().join("web-demo/tests/dist");
    call(Command::new(bindgen()?).arg(built(&args, "web_demo")?).arg("parity").arg(&folder))?;
    Ok(folder)
}

/// Builds the program that makes the JavaScript side of a module.
fn bindgen() -> Result<PathBuf, String> {
    built(&["--locked", "-p", "xtask", "--bin", "bindgen", "--features", "bindgen"], "bindgen")
}

/// One build of the engine; nothing is done where it is newer than what it is made of.
fn engine(bindgen: &Path, name: &str, features: &str, out: &Path) -> Result<(), String> {
    let target = target_folder()?.join("web").join(name);
    println!("   the engine, {name}: {features}");
    let mut command = cargo(&["build", "--locked", "--quiet", "--profile", "web", "-p", "web-demo", "--lib"]);
    // A folder of its own: other flags would build everything anew.
    command.args(["--target", WASM, "--target-dir"]).arg(&target);
    command.env("RUSTFLAGS", format!("-C target-feature={features} {SMALL}"));
    call(&mut command)?;
    let module = target.join(WASM).join("web/web_demo.wasm");
    let made = out.join("archipelago_bg.wasm");
    if is_newer(&made, &module) {
        return Ok(());
    }
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    call(Command::new(bindgen).arg(&module).arg("archipelago").arg(out))
}

/// Whether `made` is there and no older than `source`.
fn is_newer(made: &Path, source: &Path) -> bool {
    let time = |path: &Path| -> io::Result<_> { fs::metadata(path)?.modified() };
    matches!((time(made), time(source)), (Ok(made), Ok(source)) if made >= source)
}

/// Builds with `args` and gives the program called `name`.
fn built(args: &[&str], name: &str) -> Result<PathBuf, String> {
    let files = build(args)?;
    files
        .into_iter()
        .find(|file| file.file_stem().is_some_and(|stem| stem == name))
        .ok_or_else(|| format!("the build left no {name}"))
}

/// Whether the standard library for [`WASM`] is there, however it was installed.
pub fn target_installed() -> bool {
    Command::new("rustc")
        .args(["--print", "target-libdir", "--target", WASM])
        .current_dir(root())
        .output()
        .is_ok_and(|output| Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

/// Where cargo builds.
fn target_folder() -> Result<PathBuf, String> {
    let output = cargo(&["metadata", "--no-deps", "--format-version", "1"]).output();
    let output = output.map_err(|error| format!("cargo did not start: {error}"))?;
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let folder = metadata["target_directory"].as_str().ok_or("cargo metadata names no target folder")?;
    Ok(PathBuf::from(folder))
}

/// Runs `command` with its output on this terminal.
///
/// # Errors
/// A sentence: it did not start, or failed.
pub fn call(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}", shown(command))),
        Err(error) => Err(format!("`{}` did not start: {error}", shown(command))),
    }
}
