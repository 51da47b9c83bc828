//! `archipelago-demo ARGS` is `syncer-server demo ARGS`, for scripts that start the demo as a program of its own.

use std::process::{Command, exit};
use std::{env, io};

fn main() {
    let server =
        env::current_exe().map(|me| me.with_file_name(format!("syncer-server{}", env::consts::EXE_SUFFIX)));
    let Err(error) =
        server.and_then(|server| run(Command::new(server).arg("demo").args(env::args_os().skip(1))));
    eprintln!("archipelago-demo: cannot start syncer-server, which must be in the same folder: {error}");
    exit(1);
}

/// Becomes `command`, so that signals reach the demo itself.
#[cfg(unix)]
fn run(command: &mut Command) -> io::Result<std::convert::Infallible> {
    Err(std::os::unix::process::CommandExt::exec(command))
}

/// Runs `command` and ends with its exit code.
#[cfg(not(unix))]
fn run(command: &mut Command) -> io::Result<std::convert::Infallible> {
    exit(command.status()?.code().unwrap_or(1))
}
