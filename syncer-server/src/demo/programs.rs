//! Programs of a demo: their discovery, start and end.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use archipelago_cli::DemoArgs;
use archipelago_cli::process::{Process, last_line};
use archipelago_core::wire::http as path;
use serde::Deserialize;
use serde_json::Value;

use super::DemoError;
use crate::announce::Classroom;
use crate::config::DemoSetup;
use crate::errors::ServerError;
use crate::inspect::Remote;
use crate::status::ServerStatus;
use crate::store::Store;

/// Longest wait until the syncer listens; it reads, tokenises and splits the corpus first.
const START_WAIT: Duration = Duration::from_secs(120);

/// Duration of the speed measurement of a learner, in seconds.
const BENCH_S: u32 = 3;

/// Running syncer.
pub struct Syncer {
    pub process: Process,
    /// Address of the syncer on this machine.
    address: SocketAddr,
    /// The invite as the end of a link; empty if the run asks for none.
    invite: String,
    /// Join instructions, if the run is for a class.
    pub classroom: Option<Classroom>,
}

/// The syncer's announcement, as far as the demo reads it.
#[derive(Deserialize)]
struct Listening {
    address: SocketAddr,
    join: String,
    classroom: Option<Classroom>,
}

impl Syncer {
    /// Returns the URL of the syncer on this machine.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the link for learners on this machine, with the invite.
    pub fn join(&self) -> String {
        format!("ws://{}{}{}", self.address, path::SOCKET, self.invite)
    }

    /// Requests the status of the run.
    pub fn status(&self) -> Result<ServerStatus, ServerError> {
        Remote { url: &self.url(), ca: None, token: None }.get(path::STATUS)
    }
}

/// The two programs of a demo, and the folder of its run.
pub struct Programs {
    syncer: PathBuf,
    learner: PathBuf,
    /// Pages that are served instead of the embedded ones.
    pages: Option<PathBuf>,
    /// Folder for logs, snapshots and the owner's token.
    pub dir: PathBuf,
    /// Number of threads of each learner.
    pub threads: usize,
}

impl Programs {
    /// Finds both programs, lets the syncer check data and settings, and creates a folder for the run.
    ///
    /// # Errors
    /// - [`DemoError::Failed`]: a program is missing, or the folder cannot be created.
    /// - [`DemoError::Ended`]: data or settings are wrong; the syncer explains it.
    pub fn find(setup: &DemoSetup) -> Result<Self, DemoError> {
        let cores = thread::available_parallelism()?.get();
        let syncer = env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
        let mut programs = Self {
            learner: learner(setup.learner.as_deref(), &syncer)?,
            syncer,
            pages: setup.pages.clone(),
            dir: setup.runs.join("demo"),
            threads: (cores / setup.run.learners().max(1) as usize).max(1),
        };
        let line = programs.syncer_line("validate", &setup.run, None);
        let output = Command::new(&programs.syncer).args(line).output()?;
        if !output.status.success() {
            return Err(ended("syncer", &output));
        }
        programs.dir = new_folder(&setup.runs)?;
        Ok(programs)
    }

    /// Starts the syncer and waits until it answers. Returns it with its first status.
    ///
    /// # Errors
    /// - [`DemoError::Ended`]: it ended at once, with an explanation.
    /// - [`DemoError::Silent`]: it never answered.
    pub fn start_syncer(
        &self,
        args: &DemoArgs,
        total_tokens: Option<u64>,
    ) -> Result<(Syncer, ServerStatus), DemoError> {
        let line = self.syncer_line("serve", args, total_tokens);
        let mut process = Process::spawn(&self.syncer, &line, &self.dir.join("syncer"))?;
        let end = Instant::now() + START_WAIT;
        let listening = loop {
            if let Some(line) = process.stdout().first().and_then(|line| serde_json::from_str(line).ok()) {
                break line;
            }
            wait_for_syncer(&mut process, end)?;
        };
        let Listening { mut address, join, mut classroom } = listening;
        let coloured = io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none();
        classroom.iter_mut().for_each(|classroom| classroom.coloured = coloured);
        if address.ip().is_unspecified() {
            address.set_ip(Ipv4Addr::LOCALHOST.into());
        }
        let invite = join.find('#').map_or_else(String::new, |at| join[at..].to_owned());
        let mut syncer = Syncer { process, address, invite, classroom };
        loop {
            match syncer.status() {
                Ok(status) => return Ok((syncer, status)),
                Err(_) => wait_for_syncer(&mut syncer.process, end)?,
            }
        }
    }

    /// Starts the learner `name` for the run at `join`. A learner that is started again has the same identity.
    ///
    /// # Errors
    /// [`DemoError::Failed`]: it could not be started.
    pub fn start_learner(&self, name: &str, join: &str) -> Result<Process, DemoError> {
        let mut line = words(["join", join, "--json", "--name", name]);
        line.extend(words(["--threads", &self.threads.to_string()]));
        line.extend(["--identity".into(), self.dir.join(name).with_extension("identity").into()]);
        let (program, line) = low_priority(&self.learner, line);
        Ok(Process::spawn(&program, &line, &self.dir.join(name))?)
    }

    /// Measures the tokens per second of `learners` learners that train at the same time, without a syncer.
    ///
    /// # Errors
    /// [`DemoError::Ended`]: one of them failed, with an explanation.
    pub fn measure(&self, learners: u32, preset: &str) -> Result<f64, DemoError> {
        let mut line = words(["bench", "--json", "--preset", preset]);
        line.extend(words(["--threads", &self.threads.to_string(), "--seconds", &BENCH_S.to_string()]));
        let start =
            |_| Command::new(&self.learner).args(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let benches = (0..learners).map(start).collect::<Result<Vec<_>, _>>()?;
        let mut sum = 0.0;
        for bench in benches {
            let output = bench.wait_with_output()?;
            let stdout = String::from_utf8_lossy(&output.stdout);
            let last = stdout.lines().last().and_then(|line| serde_json::from_str::<Value>(line).ok());
            let Some(speed) = last.and_then(|last| last["tokens_per_s"].as_f64()) else {
                return Err(ended("native-learner bench", &output));
            };
            sum += speed;
        }
        Ok(sum)
    }

    /// Exports the newest snapshot as a Hugging Face folder.
    ///
    /// # Errors
    /// [`DemoError::Ended`]: the export failed, with an explanation.
    pub fn export(&self, folder: &Path) -> Result<(), DemoError> {
        let mut export = Command::new(&self.syncer);
        let output = export.arg("export").arg("--dir").arg(self.store()).arg("--out").arg(folder).output()?;
        if output.status.success() { Ok(()) } else { Err(ended("export", &output)) }
    }

    /// Reads the owner's token, which the syncer has created.
    ///
    /// # Errors
    /// [`DemoError::Failed`]: it is missing.
    pub fn admin_token(&self) -> Result<String, DemoError> {
        let file = Store::open_read_only(&self.store()).admin_token_path();
        let token = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(token.trim().to_owned())
    }

    fn syncer_line(&self, verb: &str, args: &DemoArgs, total_tokens: Option<u64>) -> Vec<OsString> {
        let host = if args.classroom { "0.0.0.0" } else { "127.0.0.1" };
        let mut line = words([verb, "--json", "--listen", &format!("{host}:{}", args.port)]);
        line.extend(["--dir".into(), self.store().into()]);
        line.extend(words(["--preset", args.preset(), "--seed", &args.seed.to_string()]));
        line.extend(words(["--learners-start", &args.learners().max(1).to_string()]));
        if args.classroom {
            line.push("--classroom".into());
        }
        if let Some(link) = &args.public_url {
            line.extend(words(["--public-url", link]));
        }
        if let Some(tokens) = total_tokens {
            line.extend(words(["--total-tokens", &tokens.to_string()]));
        }
        if let Some(pages) = &self.pages {
            line.extend(["--pages".into(), pages.into()]);
        }
        if let Some(data) = &args.data {
            line.extend(["--data".into(), data.into()]);
        }
        line
    }

    /// Returns the folder of the run itself.
    fn store(&self) -> PathBuf {
        self.dir.join("store")
    }
}

/// Waits a moment for the syncer to start.
///
/// # Errors
/// The syncer has ended, or it is later than `end`.
fn wait_for_syncer(process: &mut Process, end: Instant) -> Result<(), DemoError> {
    if let Some(code) = process.exit_code() {
        return Err(DemoError::Ended { name: "syncer".into(), code, words: process.last_words() });
    }
    if Instant::now() > end {
        let seconds = START_WAIT.as_secs();
        return Err(DemoError::Silent(format!("the syncer does not answer after {seconds} s; see its log")));
    }
    thread::sleep(Duration::from_millis(50));
    Ok(())
}

/// Returns the learner program: `given`, or the one next to the program `syncer`.
fn learner(given: Option<&Path>, syncer: &Path) -> Result<PathBuf, String> {
    let next_to = || syncer.with_file_name(format!("native-learner{}", env::consts::EXE_SUFFIX));
    let file = given.map_or_else(next_to, Path::to_owned);
    if file.is_file() {
        return Ok(file);
    }
    Err(format!("{} does not exist: put native-learner there, or give --learner its path", file.display()))
}

/// Returns the error for a program that has ended, with its last message.
fn ended(name: &str, output: &Output) -> DemoError {
    // In a demo, the flag `--listen` is called `--port`.
    let words = last_line(&String::from_utf8_lossy(&output.stderr)).replace("--listen", "--port");
    DemoError::Ended { name: name.to_owned(), code: output.status.code().unwrap_or(1), words }
}

/// Returns the same command at a lower priority, if the system supports that. Page builds, the syncer and a visitor's
/// browser then come before learners, which use all spare time.
fn low_priority(program: &Path, line: Vec<OsString>) -> (PathBuf, Vec<OsString>) {
    if !cfg!(unix) {
        return (program.to_owned(), line);
    }
    let mut all = words(["-n", "10"]);
    all.push(program.into());
    all.extend(line);
    ("nice".into(), all)
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.into_iter().map(OsString::from).collect()
}

/// Creates `parent/demo-N` with the lowest free N.
fn new_folder(parent: &Path) -> Result<PathBuf, DemoError> {
    fs::create_dir_all(parent)?;
    for number in 1.. {
        let folder = parent.join(format!("demo-{number}"));
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(DemoError::Failed(format!("{}: {error}", folder.display()))),
        }
    }
    unreachable!("one of 2⁶⁴ names is free")
}
