//! Programs of a demo: discovery, start and end.

use std::{
    ffi::OsString,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    args::Args,
    classroom::Classroom,
    error::DemoError,
    process::{Process, http},
    setup::Setup,
};

/// Longest wait until the syncer listens; it reads, tokenises and splits the corpus first.
const START_WAIT: Duration = Duration::from_secs(120);

/// Duration of the speed measurement of a learner, in seconds.
const BENCH_S: u32 = 3;

/// Running syncer.
pub struct Started {
    pub syncer: Process,
    /// Address of the syncer on this machine.
    pub address: SocketAddr,
    /// Link for learners on this machine, with the invite.
    pub join: String,
    /// Join instructions, if the run is for a class.
    pub classroom: Option<Classroom>,
}

/// The two programs, and the folder of this run.
pub struct Programs {
    syncer: PathBuf,
    learner: PathBuf,
    /// Pages that are served instead of the syncer's own.
    pages: Option<PathBuf>,
    /// Folder for logs, snapshots and the admin's token.
    pub dir: PathBuf,
    /// Number of threads of each learner.
    pub threads: usize,
}

impl Programs {
    /// Finds both programs, lets the syncer check data and settings, and creates a folder for the run.
    ///
    /// # Errors
    /// - [`DemoError::System`]: a program is missing, or the folder cannot be created.
    /// - [`DemoError::Ended`]: data or settings are wrong; the syncer explains it.
    pub fn find(args: &Args, setup: &Setup) -> Result<Self, DemoError> {
        let cores = thread::available_parallelism()?.get();
        let mut programs = Self {
            syncer: setup.syncer()?,
            learner: setup.learner()?,
            pages: setup.pages.clone(),
            dir: setup.runs.join("demo"),
            threads: (cores / args.learners().max(1) as usize).max(1),
        };
        programs.validate(args)?;
        programs.dir = new_folder(&setup.runs)?;
        Ok(programs)
    }

    /// Starts the syncer and waits until it answers.
    ///
    /// # Errors
    /// - [`DemoError::Ended`]: it ended at once, with an explanation.
    /// - [`DemoError::Silent`]: it never answered.
    pub fn start_syncer(&self, args: &Args, total_tokens: Option<u64>) -> Result<Started, DemoError> {
        let line = self.syncer_line("serve", args, total_tokens);
        let mut syncer = Process::spawn(&self.syncer, &line, &self.dir.join("syncer"))?;
        let end = Instant::now() + START_WAIT;
        while Instant::now() < end {
            let line = syncer.stdout().first().and_then(|line| serde_json::from_str::<Value>(line).ok());
            if let Some((line, address)) = line.and_then(|line| address(&line).map(|address| (line, address)))
                && http::get(address, "/v1/status").is_ok()
            {
                let join = format!("ws://{address}/v1/ws{}", invite(&line));
                return Ok(Started { syncer, address, join, classroom: Classroom::read(&line) });
            }
            if let Some(code) = syncer.exit_code() {
                return Err(DemoError::Ended { name: "syncer".to_owned(), code, words: syncer.last_words() });
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err(DemoError::Silent(format!(
            "the syncer does not answer after {} s; see its log",
            START_WAIT.as_secs()
        )))
    }

    /// Starts the learner `name` for the run at `join`. The same name has the same identity.
    ///
    /// # Errors
    /// [`DemoError::System`]: it could not be started.
    pub fn start_learner(&self, name: &str, join: &str) -> Result<Process, DemoError> {
        let mut line = words(["join", join, "--json", "--name", name]);
        line.extend(words(["--threads", &self.threads.to_string()]));
        line.extend(["--identity".into(), self.dir.join(name).with_extension("identity").into()]);
        let (program, line) = aside(&self.learner, line);
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
    /// [`DemoError::NoExport`]: the export failed; the syncer has printed the reason.
    pub fn export(&self, folder: &Path) -> Result<(), DemoError> {
        let mut export = Command::new(&self.syncer);
        export.arg("export").arg("--dir").arg(self.store()).arg("--out").arg(folder).stdout(Stdio::null());
        let written = export.status()?.success() && folder.join("model.safetensors").is_file();
        if written { Ok(()) } else { Err(DemoError::NoExport(folder.to_owned())) }
    }

    /// Reads the admin token that the syncer created.
    ///
    /// # Errors
    /// [`DemoError::System`]: it is missing.
    pub fn admin_token(&self) -> Result<String, DemoError> {
        let file = self.store().join("admin.token");
        let token = fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
        Ok(token.trim().to_owned())
    }

    fn validate(&self, args: &Args) -> Result<(), DemoError> {
        let output = Command::new(&self.syncer).args(self.syncer_line("validate", args, None)).output()?;
        if output.status.success() { Ok(()) } else { Err(ended("syncer", &output)) }
    }

    fn syncer_line(&self, verb: &str, args: &Args, total_tokens: Option<u64>) -> Vec<OsString> {
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

    /// Returns the syncer's folder.
    fn store(&self) -> PathBuf {
        self.dir.join("store")
    }
}

/// Returns the syncer's address on this machine, from its first line.
fn address(line: &Value) -> Option<SocketAddr> {
    let mut address: SocketAddr = line["address"].as_str()?.parse().ok()?;
    if address.ip().is_unspecified() {
        address.set_ip(Ipv4Addr::LOCALHOST.into());
    }
    Some(address)
}

/// Returns the invite in the syncer's first line.
fn invite(line: &Value) -> String {
    let link = line["join"].as_str().unwrap_or_default();
    link.find('#').map_or_else(String::new, |at| link[at..].to_owned())
}

/// Returns the error for a program that has ended, with its last message.
fn ended(name: &str, output: &Output) -> DemoError {
    let said = String::from_utf8_lossy(&output.stderr);
    let words = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    // The demo calls that flag by another name.
    let words = words.replace("--listen", "--port");
    DemoError::Ended { name: name.to_owned(), code: output.status.code().unwrap_or(1), words }
}

/// Returns the same command at a lower priority, if the system supports that. Learners use all spare time, while page
/// builds, the syncer and a visitor's browser come first.
fn aside(program: &Path, line: Vec<OsString>) -> (PathBuf, Vec<OsString>) {
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
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(DemoError::System(format!("{}: {error}", folder.display()))),
        }
    }
    unreachable!("one of 2⁶⁴ names is free")
}
