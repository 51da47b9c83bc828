//! `cargo xtask gpu`: builds, checks and measures the GPU engine of this machine in one call, without a network.
//!
//! For a machine that has a GPU and nothing else: call `cargo xtask gpu --pack DIR` elsewhere, copy DIR to the machine,
//! and call `DIR/xtask gpu --prebuilt DIR` there.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use serde_json::{Map, Value, json};

use crate::cargo::{build, cargo};

/// Program that measures the same model in PyTorch.
const TORCH: &str = include_str!("torch.py");
/// Minimum time left, in seconds, for which another measurement is started.
const WORTH_S: u64 = 30;

/// File name of the program that trains.
const LEARNER: &str = "native-learner";
const TESTS: &str = "gpu-tests";
const XTASK: &str = "xtask";

/// Flags of `cargo xtask gpu`.
#[derive(clap::Args)]
pub struct Args {
    /// Uses the programs that `--pack` wrote to this folder instead of building them.
    #[arg(long, value_name = "DIR")]
    prebuilt: Option<PathBuf>,
    /// Builds the programs, writes them to this folder and ends.
    #[arg(long, value_name = "DIR", conflicts_with = "prebuilt")]
    pack: Option<PathBuf>,
    /// Presets to train.
    #[arg(long, value_delimiter = ',', default_value = "small,medium,base")]
    presets: Vec<String>,
    /// Seconds for each measurement, after its warm-up.
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// Seconds for everything; presets that do not fit are left out and listed.
    #[arg(long, default_value_t = 540)]
    limit: u64,
    /// Part of the adapter's name [default: the best adapter].
    #[arg(long)]
    adapter: Option<String>,
    /// Python interpreter with PyTorch.
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Prints one JSON object as the last line.
    #[arg(long)]
    json: bool,
}

/// Runs the checks and measurements. The exit code is 1 if a build or a check failed, or if a measurement was
/// impossible.
pub fn run(args: &Args) -> ExitCode {
    match report(args) {
        Ok(figures) => {
            if args.json {
                println!("{figures}");
            }
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn report(args: &Args) -> Result<Value, String> {
    let until = Instant::now() + Duration::from_secs(args.limit);
    if let Some(folder) = &args.pack {
        return Programs::build()?.pack(folder).map(|()| Value::Null);
    }
    let programs = match &args.prebuilt {
        Some(folder) => Programs::in_folder(folder)?,
        None => Programs::build()?,
    };
    let mut figures = Map::new();
    println!("── doctor");
    let mut doctor = Command::new(&programs.learner);
    doctor.args(["doctor", "--engine", "gpu", "--json"]);
    figures.insert("doctor".into(), last_json(with_adapter(args, &mut doctor))?.1);
    println!("── parity: compares each kernel and the whole engine with the CPU");
    figures.insert("parity".into(), parity(&programs)?);
    let mut rows = Vec::new();
    for preset in &args.presets {
        if until.saturating_duration_since(Instant::now()).as_secs() < WORTH_S {
            println!("── {preset}: left out, because the time limit is reached");
            rows.push(json!({ "preset": preset, "left_out": true }));
            continue;
        }
        println!("── {preset}");
        rows.push(measure(args, &programs, preset, until)?);
    }
    print!("{}", crate::bench::render(&json!({ "presets": summary(&rows) })));
    figures.insert("presets".into(), Value::Array(rows));
    Ok(Value::Object(figures))
}

/// Runs the tests of the GPU engine on this machine's adapter.
fn parity(programs: &Programs) -> Result<Value, String> {
    let mut command = Command::new(&programs.tests);
    // The skipped test reads the sources, which may be missing here.
    command.args(["engine::gpu", "--skip", "files_are_kernels"]).env_remove("ARCHIPELAGO_TEST_GPU");
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().rfind(|line| line.starts_with("test result")).unwrap_or_default().to_owned();
    println!("   {last}");
    if output.status.success() { Ok(Value::String(last)) } else { Err(format!("the tests failed:\n{text}")) }
}

/// Measures our engine, and PyTorch if it is installed.
fn measure(args: &Args, programs: &Programs, preset: &str, until: Instant) -> Result<Value, String> {
    let seconds = args.seconds.to_string();
    let mut command = Command::new(&programs.learner);
    command.args([
        "bench",
        "--engine",
        "gpu",
        "--profile",
        "--json",
        "--preset",
        preset,
        "--seconds",
        &seconds,
    ]);
    let (_, mut ours) = last_json(with_adapter(args, &mut command))?;
    println!("   ours: {} tokens/s", ours["tokens_per_s"]);
    let left_s = until.saturating_duration_since(Instant::now()).as_secs();
    ours["torch"] = match torch(args, &ours, left_s) {
        Ok(torch) => torch,
        Err(reason) => {
            println!("   PyTorch: not measured: {reason}");
            json!({ "left_out": reason })
        }
    };
    for name in ["eager", "compiled", "tf32", "bf16"] {
        if let (Some(own), Some(torch)) = (ours["tokens_per_s"].as_f64(), ours["torch"][name].as_f64()) {
            ours[format!("ratio_to_{name}")] = json!(own / torch);
        }
    }
    Ok(ours)
}

/// Measures PyTorch on the shape of `ours`, only on a GPU; other devices have no basis for comparison.
fn torch(args: &Args, ours: &Value, left_s: u64) -> Result<Value, String> {
    if ours["software"].as_bool() == Some(true) {
        return Err("the adapter is a program on the CPU".to_owned());
    }
    let shape = ["vocab", "d_model", "layers", "heads", "d_ff", "context", "batch"];
    let shape = shape.map(|field| ours[field].to_string());
    let mut command = Command::new("timeout");
    command.arg(left_s.to_string()).arg(&args.python).arg("-").args(shape).arg(args.seconds.to_string());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{} did not start: {error}", args.python.display()))?;
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(TORCH.as_bytes()).map_err(|error| error.to_string())?;
    drop(stdin);
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).map_err(|_| format!("{} ended with {}", args.python.display(), output.status))
}

/// Returns one line for each preset.
fn summary(rows: &[Value]) -> Vec<Value> {
    let ratios = ["ratio_to_eager", "ratio_to_compiled", "ratio_to_tf32", "ratio_to_bf16"];
    let fields = [&["preset", "tokens_per_s", "step_ms_p50", "share_of_peak"][..], &ratios].concat();
    let row = |row: &Value| fields.iter().map(|&field| (field.to_owned(), row[field].clone())).collect();
    rows.iter().map(|value| Value::Object(row(value))).collect()
}

fn with_adapter<'a>(args: &Args, command: &'a mut Command) -> &'a mut Command {
    command.args(args.adapter.iter().flat_map(|adapter| ["--adapter", adapter]))
}

/// Runs `command`. Returns its output and the JSON in its last line.
fn last_json(command: &mut Command) -> Result<(String, Value), String> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = text.lines().last().and_then(|line| serde_json::from_str(line).ok());
    match last {
        Some(value) if output.status.success() => Ok((text, value)),
        _ => Err(format!("`{}` ended with {}:\n{text}", crate::cargo::command_line(command), output.status)),
    }
}

/// Measured programs, built here or packed elsewhere.
struct Programs {
    /// `native-learner`.
    learner: PathBuf,
    /// Tests of the SDK.
    tests: PathBuf,
}

impl Programs {
    /// Builds the programs with optimisation.
    fn build() -> Result<Self, String> {
        let files = build(&["--release", "--locked", "-p", LEARNER])?;
        let learner = files.into_iter().find(|file| file.file_stem().is_some_and(|name| name == LEARNER));
        let learner = learner.ok_or("the build produced no native-learner")?;
        Ok(Self { learner, tests: build_tests()? })
    }

    /// Finds the programs that [`Self::pack`] left in `folder`.
    fn in_folder(folder: &Path) -> Result<Self, String> {
        let find = |name: &str| {
            let file = folder.join(name);
            if file.is_file() { Ok(file) } else { Err(format!("{} does not exist", file.display())) }
        };
        Ok(Self { learner: find(LEARNER)?, tests: find(TESTS)? })
    }

    /// Copies the programs and this one into `folder`.
    fn pack(&self, folder: &Path) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot write {}: {error}", folder.display());
        let own = env::current_exe().map_err(|error| error.to_string())?;
        fs::create_dir_all(folder).map_err(failed)?;
        for (file, name) in [(&self.learner, LEARNER), (&self.tests, TESTS), (&own, XTASK)] {
            let copy = folder.join(name);
            fs::copy(file, &copy).map_err(failed)?;
            // Stripped files are smaller; a system without `strip` keeps the larger ones.
            Command::new("strip").arg(&copy).status().ok();
        }
        println!(
            "copy {0} to the machine with the GPU and run: {0}/{XTASK} gpu --prebuilt {0}",
            folder.display()
        );
        Ok(())
    }
}

/// Builds the SDK's unit tests with the GPU engine. Returns the program.
fn build_tests() -> Result<PathBuf, String> {
    let args = [
        "test",
        "--release",
        "--locked",
        "-p",
        "archipelago-runtime",
        "--features",
        "cpu,gpu,platform",
        "--lib",
        "--no-run",
    ];
    let mut command = cargo(&args);
    let output = command
        .arg("--message-format=json-render-diagnostics")
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo did not start: {error}"))?;
    let messages = String::from_utf8_lossy(&output.stdout);
    let executable = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    executable.ok_or_else(|| "the build produced no test program".to_owned())
}
