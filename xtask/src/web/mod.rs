//! `cargo xtask web`: builds the files for browsers: the engine as WebAssembly, the npm package, and the pages.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fs, io, thread};

use crate::cargo::{WASM, build, cargo, command_line, program as built, root, target_folder};
use crate::tools::{self, check_node, program, script};

/// Builds of the engine, and the WebAssembly features that each requires.
const BUILDS: [(&str, &str); 2] = [("plain", "+simd128"), ("relaxed", "+simd128,+relaxed-simd")];

/// Lower inlining threshold for optimised code: 7 % fewer bytes at the same speed, because critical functions are
/// marked for inlining.
const SMALL: &str = "-C llvm-args=-inline-threshold=60";

/// Output folder of the pages, where the build of the syncer finds them.
pub const SITE: &str = "web-demo/dist";

/// Cargo profile for delivery.
const DELIVERED: &str = "web";
/// Cargo profile for faster builds of a demo.
const DEMO: &str = "web-demo";

/// Folder of the engine's builds in the npm package.
const ENGINE: &str = "web-demo/package/dist/wasm";

/// Folder of lessons. Their module computes the same bits in each browser, so it does without `relaxed-simd`.
const LESSON: &str = "web-demo/lesson/dist";

/// Flags of `cargo xtask web`.
#[derive(clap::Args)]
pub struct Args {
    /// Builds only the module of lessons.
    #[arg(long, conflicts_with_all = ["package", "parity"])]
    lesson: bool,
    /// Builds only the engine and the npm package.
    #[arg(long)]
    package: bool,
    /// Builds the pages for a demo: sooner, and with one build of the engine for all browsers.
    #[arg(long, hide = true, conflicts_with_all = ["lesson", "package", "parity"])]
    demo: bool,
    /// Builds the parity tests of the GPU engine instead, for `web-demo/tests`.
    #[arg(long, conflicts_with = "package")]
    parity: bool,
}

/// Runs the builds. The exit code is 1 if one of them failed.
pub fn run(args: &Args) -> ExitCode {
    let built = tools::for_pages().and_then(|()| match args {
        Args { parity: true, .. } => parity(),
        Args { package: true, .. } => package(),
        Args { lesson: true, .. } => lesson(),
        Args { demo: true, .. } => demo_site(),
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

/// Builds package and pages. Returns the folder that the syncer embeds.
///
/// # Errors
/// A message about the missing tool or the failure.
pub fn site() -> Result<PathBuf, String> {
    install("web-demo")?;
    let [plain, relaxed] = engines();
    // Lessons lie in the folder of the plain build, so they come after it.
    modules(vec![vec![plain, lessons(DELIVERED)], vec![relaxed]])?;
    pack()?;
    call(node("tsc").args(["-p", "pages"]))?;
    call(node("vite").args(["build", "--logLevel", "warn"]))?;
    Ok(root().join(SITE))
}

/// Returns the output folder of a demo's pages, which no delivered syncer embeds.
///
/// # Errors
/// A message if cargo does not report its target folder.
pub fn demo_folder() -> Result<PathBuf, String> {
    Ok(target_folder()?.join("demo-pages"))
}

/// Builds package and pages for a demo. Returns their folder. One build of the engine serves all browsers, with less
/// optimisation, and types are not checked, since the tests check them.
///
/// # Errors
/// A message about the missing tool or the failure.
pub fn demo_site() -> Result<PathBuf, String> {
    install("web-demo")?;
    modules(vec![vec![engine(BUILDS[0], DEMO), lessons(DEMO)]])?;
    copy_plain_build(&root().join(ENGINE))?;
    call(node("tsc").args(["-p", "package"]))?;
    let folder = demo_folder()?;
    call(node("vite").args(["build", "--logLevel", "warn", "--emptyOutDir", "--outDir"]).arg(&folder))?;
    Ok(folder)
}

/// Builds the npm package. Returns its folder.
///
/// # Errors
/// A message about the missing tool or the failure.
pub fn package() -> Result<PathBuf, String> {
    install("web-demo")?;
    modules(engines().map(|engine| vec![engine]).into())?;
    pack()
}

/// Builds the module of lessons. Returns its folder.
///
/// # Errors
/// A message about the missing tool or the failure.
pub fn lesson() -> Result<PathBuf, String> {
    modules(vec![vec![lessons(DELIVERED)]])?;
    Ok(root().join(LESSON))
}

/// Builds the rest of the npm package, around the builds of the engine. Returns its folder.
fn pack() -> Result<PathBuf, String> {
    let folder = root().join("web-demo/package");
    call(node("tsc").args(["-p", "package"]))?;
    licences(&folder.join("dist"))?;
    Ok(folder)
}

/// Builds the parity tests of the GPU engine for browsers. Returns their folder. It uses the profile and cargo folder
/// of a demo, so little is compiled after a demo's build.
///
/// # Errors
/// A message about the missing tool or the failure.
pub fn parity() -> Result<PathBuf, String> {
    let (build, features) = BUILDS[0];
    let out = root().join("web-demo/tests/dist");
    let module = Module {
        package: "web-demo",
        name: "parity",
        build,
        features,
        profile: DEMO,
        with: Some("parity"),
        out,
    };
    bind(&bindgen()?, &module, &compile(&module)?)?;
    Ok(module.out)
}

/// Builds the program that generates the JavaScript side of a module.
fn bindgen() -> Result<PathBuf, String> {
    built(&build(&["--locked", "-p", "xtask", "--bin", "bindgen", "--features", "bindgen"])?, "bindgen")
}

/// Build of a crate for browsers.
struct Module {
    package: &'static str,
    /// Base name of the output files.
    name: &'static str,
    build: &'static str,
    features: &'static str,
    /// Cargo profile.
    profile: &'static str,
    /// Enabled feature of the crate.
    with: Option<&'static str>,
    /// Output folder of the JavaScript side.
    out: PathBuf,
}

/// Returns the build of the engine for browsers with the features of `build`.
fn engine((build, features): (&'static str, &'static str), profile: &'static str) -> Module {
    let out = root().join(ENGINE).join(build);
    Module { package: "web-demo", name: "archipelago", build, features, profile, with: None, out }
}

fn engines() -> [Module; 2] {
    BUILDS.map(|build| engine(build, DELIVERED))
}

fn lessons(profile: &'static str) -> Module {
    let (build, features) = BUILDS[0];
    Module {
        package: "lesson",
        name: "lesson",
        build,
        features,
        profile,
        with: None,
        out: root().join(LESSON),
    }
}

/// Builds modules. The modules of one list share a cargo folder, and are compiled one after the other. The lists are
/// compiled in parallel, because much of a build is a single-threaded optimisation of one crate. The program for the
/// bindings is built at the same time.
fn modules(lists: Vec<Vec<Module>>) -> Result<(), String> {
    thread::scope(|scope| {
        let bindgen = scope.spawn(bindgen);
        let compiled: Vec<_> = lists
            .into_iter()
            .map(|list| {
                let compiled = move |module: Module| Ok((compile(&module)?, module));
                scope.spawn(move || list.into_iter().map(compiled).collect::<Result<Vec<_>, String>>())
            })
            .collect();
        let bindgen = bindgen.join().expect("a failed build returns an error")?;
        compiled.into_iter().try_for_each(|list| {
            let list = list.join().expect("a failed build returns an error")?;
            list.iter().try_for_each(|(file, module)| bind(&bindgen, module, file))
        })
    })
}

/// Compiles a module. Returns cargo's output file.
fn compile(module: &Module) -> Result<PathBuf, String> {
    let Module { package, name, build, features, profile, with, .. } = module;
    let target = target_folder()?.join("web").join(build);
    println!("   {name}, {build}: {features}");
    let mut command = cargo(&["build", "--locked", "--quiet", "--profile", profile, "-p", package, "--lib"]);
    // A separate folder: different flags would rebuild everything.
    command.args(["--target", WASM, "--target-dir"]).arg(&target);
    command.args(with.iter().flat_map(|feature| ["--features", feature]));
    command.env("RUSTFLAGS", format!("-C target-feature={features} {SMALL}"));
    call(&mut command)?;
    Ok(target.join(WASM).join(profile).join(format!("{}.wasm", package.replace('-', "_"))))
}

/// Generates the JavaScript side of `module` from the compiled `file`.
fn bind(bindgen: &Path, module: &Module, file: &Path) -> Result<(), String> {
    let Module { name, out, .. } = module;
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    call(Command::new(bindgen).arg(file).arg(name).arg(out))
}

/// Copies the licences into the package, because npm ignores links.
fn licences(dist: &Path) -> Result<(), String> {
    ["LICENSE-MIT", "LICENSE-APACHE"].into_iter().try_for_each(|name| {
        let copied = fs::copy(root().join(name), dist.join(name));
        copied.map(drop).map_err(|error| format!("{name}: {error}"))
    })
}

/// Copies the plain build of the engine to the folder for browsers with more features.
fn copy_plain_build(wasm: &Path) -> Result<(), String> {
    let (from, to) = (wasm.join(BUILDS[0].0), wasm.join(BUILDS[1].0));
    let copy = || -> io::Result<()> {
        fs::create_dir_all(&to)?;
        for entry in fs::read_dir(&from)? {
            let entry = entry?;
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        Ok(())
    };
    copy().map_err(|error| format!("{}: {error}", to.display()))
}

/// Returns a command for a program that npm installed for web-demo, to run there.
pub fn node(name: &str) -> Command {
    let folder = root().join("web-demo");
    let mut command = Command::new(folder.join("node_modules/.bin").join(script(name)));
    command.current_dir(folder);
    command
}

/// Installs the packages of the lock file in `folder`, relative to the workspace's root, unless they are installed. A
/// folder without a lock file has exact versions in its `package.json`.
///
/// # Errors
/// A message if Node is missing or old, or npm failed.
pub fn install(folder: &str) -> Result<(), String> {
    check_node()?;
    let name = folder;
    let folder = root().join(folder);
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let (wanted, args): (_, &[&str]) = match read("package-lock.json") {
        Some(lock) => (lock, &["ci"]),
        None => {
            let missing = || format!("{name}/package.json is missing");
            (read("package.json").ok_or_else(missing)?, &["install", "--no-package-lock"])
        }
    };
    // npm keeps a copy of the file that it has installed.
    let stamp = "node_modules/.installed.json";
    if read(stamp).as_deref() == Some(&wanted) {
        return Ok(());
    }
    let quiet = ["--no-audit", "--no-fund", "--loglevel", "error"];
    call(program("npm").args(args).args(quiet).current_dir(&folder))?;
    fs::write(folder.join(stamp), wanted).map_err(|error| format!("{name}/{stamp}: {error}"))
}

/// Runs `command` with its output on this terminal.
///
/// # Errors
/// A message if it did not start, or failed.
pub fn call(command: &mut Command) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{}` ended with {status}", command_line(command))),
        Err(error) => Err(format!("`{}` did not start: {error}", command_line(command))),
    }
}
