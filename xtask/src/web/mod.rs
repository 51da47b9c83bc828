//! `cargo xtask web`: what browsers get. The engine as WebAssembly, the npm package, the pages.

mod node;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fs, io, thread};

pub use node::{check as check_node, install, node, program};

use crate::cargo::{WASM, build, cargo, root, shown};
use crate::tools;

/// The builds of the engine, and the features of WebAssembly that each asks of a browser.
const BUILDS: [(&str, &str); 2] = [("plain", "+simd128"), ("relaxed", "+simd128,+relaxed-simd")];

/// Inlines less than usual for code that is to be fast: a tenth fewer bytes, and no slower, for what must be
/// inlined says so.
const SMALL: &str = "-C llvm-args=-inline-threshold=60";

/// The folder of lessons, whose module has the same bits in each browser: no `relaxed-simd`.
const LESSON: &str = "web-demo/lesson/dist";

/// What to build.
#[derive(clap::Args)]
pub struct Args {
    /// Builds the module of lessons only.
    #[arg(long, conflicts_with_all = ["package", "parity"])]
    lesson: bool,
    /// Ends after the npm package, without the pages.
    #[arg(long)]
    package: bool,
    /// Builds the parity tests of the GPU engine instead, for `web-demo/tests`.
    #[arg(long, conflicts_with = "package")]
    parity: bool,
}

/// Builds; exit code 1 if something failed.
pub fn run(args: &Args) -> ExitCode {
    let built = tools::for_pages().and_then(|()| match args {
        Args { parity: true, .. } => parity(),
        Args { package: true, .. } => package(),
        Args { lesson: true, .. } => lesson(),
        _ => site(),
    });
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
    lesson()?;
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
        let builds = BUILDS.map(|(build, features)| {
            let (bindgen, out) = (&bindgen, folder.join("dist/wasm").join(build));
            let engine = Module { package: "web-demo", name: "archipelago", build, features };
            scope.spawn(move || module(bindgen, &engine, &out))
        });
        builds.into_iter().try_for_each(|build| build.join().expect("a build that fails says so"))
    })?;
    call(node("tsc").args(["-p", "package"]))?;
    Ok(folder)
}

/// Builds the module of lessons, and gives its folder.
///
/// # Errors
/// A sentence: what is missing or failed.
pub fn lesson() -> Result<PathBuf, String> {
    let out = root().join(LESSON);
    let (name, features) = BUILDS[0];
    module(&bindgen()?, &Module { package: "lesson", name: "lesson", build: name, features }, &out)?;
    Ok(out)
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

/// One build of a crate for browsers.
struct Module {
    package: &'static str,
    /// What the files are called.
    name: &'static str,
    build: &'static str,
    features: &'static str,
}

/// Makes one module; nothing is done where it is newer than what it is made of.
fn module(bindgen: &Path, module: &Module, out: &Path) -> Result<(), String> {
    let Module { package, name, build, features } = module;
    let target = target_folder()?.join("web").join(build);
    println!("   {name}, {build}: {features}");
    let mut command = cargo(&["build", "--locked", "--quiet", "--profile", "web", "-p", package, "--lib"]);
    // A folder of its own: other flags would build everything anew.
    command.args(["--target", WASM, "--target-dir"]).arg(&target);
    command.env("RUSTFLAGS", format!("-C target-feature={features} {SMALL}"));
    call(&mut command)?;
    let built = target.join(WASM).join("web").join(format!("{}.wasm", package.replace('-', "_")));
    let made = out.join(format!("{name}_bg.wasm"));
    if is_newer(&made, &built) {
        return Ok(());
    }
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    call(Command::new(bindgen).arg(&built).arg(name).arg(out))
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
