//! `cargo xtask demo`: builds the programs of a demo and runs `syncer-server demo`.

use std::env;
use std::process::{Command, ExitCode};
use std::time::Instant;

use archipelago_cli::DemoArgs;

use crate::cargo::{DEMO_PROGRAMS, RELEASE_PROGRAMS, TEST_PROGRAMS, build, program, root};
use crate::{tools, web};

/// Flags of `cargo xtask demo`.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    demo: DemoArgs,
    /// Uses the programs as the tests build them, which saves a build.
    #[arg(long, hide = true, conflicts_with = "release")]
    dev: bool,
    /// Uses the programs as they are delivered, which takes a longer build.
    #[arg(long)]
    release: bool,
}

/// Flags that `syncer-server demo` does not have.
const OWN: [&str; 2] = ["--dev", "--release"];

/// Builds the demo and replaces this process with it. The exit code is 1 if that fails.
pub fn run(args: &Args) -> ExitCode {
    match prepare(args, Instant::now()).and_then(become_it) {
        Ok(code) => code,
        Err(reason) => {
            if args.demo.json {
                println!("{}", serde_json::json!({ "ok": false, "error": reason }));
            }
            eprintln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Builds the programs for `args`. Returns the command of the demo.
fn prepare(args: &Args, start: Instant) -> Result<Command, String> {
    tools::for_programs()?;
    if !args.demo.headless {
        tools::for_pages()?;
    }
    let files = build(match args {
        Args { dev: true, .. } => TEST_PROGRAMS,
        Args { release: true, .. } => RELEASE_PROGRAMS,
        _ => DEMO_PROGRAMS,
    })?;
    // A run with a length is planned by the speed of this machine, so no build may run in parallel.
    let pages_first = args.demo.span.is_some() && !args.demo.headless;
    // Phones of a class are slow, so they get the faster build of the engine, if they support its instructions.
    let delivered = args.release || args.demo.classroom;
    let pages = if delivered { root().join(web::SITE) } else { web::demo_folder()? };
    if pages_first {
        if delivered { web::site() } else { web::demo_site() }?;
    }
    let mut demo = Command::new(program(&files, "syncer-server")?);
    demo.args(
        env::args_os().skip_while(|word| word != "demo").filter(|word| !OWN.iter().any(|own| word == own)),
    );
    demo.arg("--learner").arg(program(&files, "native-learner")?);
    demo.arg("--runs").arg(root().join("runs"));
    demo.arg("--build-s").arg(start.elapsed().as_secs_f64().to_string());
    if !args.demo.headless {
        demo.arg("--pages").arg(pages);
    }
    if !args.demo.headless && !pages_first {
        let own = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        demo.arg("--page-builder").arg(own).arg("web").args((!delivered).then_some("--demo"));
    }
    Ok(demo)
}

/// Replaces this process with the demo, so that signals and the exit code are the demo's own.
#[cfg(unix)]
fn become_it(mut demo: Command) -> Result<ExitCode, String> {
    Err(format!("the demo did not start: {}", std::os::unix::process::CommandExt::exec(&mut demo)))
}

/// Waits for the demo. Returns its exit code.
#[cfg(not(unix))]
fn become_it(mut demo: Command) -> Result<ExitCode, String> {
    let status = demo.status().map_err(|error| format!("the demo did not start: {error}"))?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}
