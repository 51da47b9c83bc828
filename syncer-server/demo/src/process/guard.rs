//! `archipelago-demo guard`: runs a program and kills it when standard input closes.
//!
//! The pipe closes however the parent ends, even by `kill -9`, so that no program is left behind.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Read},
    path::PathBuf,
    process::{self, Child, Command, ExitCode, Stdio},
    sync::mpsc::{self, TryRecvError},
    thread,
    time::Duration,
};

use archipelago_cli::{fail, write};

/// Exit code for a program killed by a signal: 128 + SIGKILL, as in shells.
const KILLED: u8 = 137;

/// Interval of the checks for the program's end.
const POLL: Duration = Duration::from_millis(20);

/// What to guard.
#[derive(clap::Args)]
pub struct Args {
    /// File that the program's standard output is added to.
    #[arg(long)]
    stdout: PathBuf,
    /// File that its standard error is added to.
    #[arg(long)]
    stderr: PathBuf,
    /// Kills what the program has started as well, where the system knows groups of processes.
    #[arg(long)]
    children: bool,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Prints the program's process id, then waits for its end or for the end of standard input.
pub fn run(args: &Args) -> ExitCode {
    match start(args).and_then(|child| watch(child, args.children)) {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&format_args!("{}: {error}", args.command[0].to_string_lossy()), 1),
    }
}

fn start(args: &Args) -> io::Result<Child> {
    let open = |path| File::options().append(true).create(true).open(path);
    let child = Command::new(&args.command[0])
        .args(&args.command[1..])
        .stdin(Stdio::null())
        .stdout(open(&args.stdout)?)
        .stderr(open(&args.stderr)?)
        .spawn()?;
    write(format_args!("{}\n", child.id()))?;
    Ok(child)
}

fn watch(mut child: Child, children: bool) -> io::Result<u8> {
    let (alive, parent) = mpsc::channel::<()>();
    thread::spawn(move || {
        let _alive = alive;
        // The parent never writes, so this returns when the pipe closes.
        let _ = io::stdin().read(&mut [0]);
    });
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code().map_or(KILLED, |code| u8::try_from(code).unwrap_or(1)));
        }
        if parent.try_recv() == Err(TryRecvError::Disconnected) {
            if children {
                kill_group();
            }
            child.kill()?;
        }
        thread::sleep(POLL);
    }
}

/// Kills the process group that this process leads, itself included. Has no effect on systems without process groups.
fn kill_group() {
    let group = format!("-{}", process::id());
    // Without `kill`, only the guarded program is killed.
    let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
}
