//! Stage that runs the commands of the documentation as printed, from a folder outside the repository.
//!
//! A command block of a page is an indented block, or a fenced one marked `sh`. HTML comments before a block, which
//! readers do not see, control this stage:
//!
//! | comment | meaning |
//! |---|---|
//! | `<!-- not run: REASON -->` | the block is not run |
//! | `<!-- page not run: REASON -->` | no block of the page is run |
//! | `<!-- first: COMMAND -->` | a command to run before the block |
//! | `<!-- fresh -->` | all running programs are ended, and the folder `runs` is removed |
//! | `<!-- let WORD: COMMAND -->` | from here on, the command's output replaces WORD; the command runs for each use |
//! | `<!-- file: NAME -->` | the fenced block, of any kind, is written to this file |
//!
//! For `cargo run`, the stage runs the named program or example as the tests have built it.
//! In commands that readers do not see, `$ARCHIPELAGO` is the repository. `syncer-server serve` and
//! `native-learner join` go on in the background until the next server starts or the page ends. Each must then end with
//! exit code 0 after Ctrl+C.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use archipelago_cli::process::Process;

use crate::cargo::{TEST_PROGRAMS, build, program, root};
use crate::http::{fetch, get};

/// Arguments of `cargo build` for the examples and the simulator, the same as in the stage `test`.
const EXAMPLES: &[&str] = &["--locked", "--workspace", "--examples", "--bin", "simulate"];

/// Pages whose commands are either run or marked as not run.
const PAGES: &[&str] = &[
    "README.md",
    "docs/deploy.md",
    "docs/developer.md",
    "docs/evidence.md",
    "docs/lab.md",
    "docs/owner.md",
    "docs/paper.md",
    "docs/scale.md",
    "docs/teacher.md",
    "sdk/python/README.md",
    "web-demo/package/README.md",
];

/// Address of the syncer in all pages.
const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7700);

/// Commands of learners, which run until they are ended.
const LEARNERS: &[&str] = &["native-learner join ", "custom_model ws://"];

/// Maximum wait for a server to start, a learner to take its first step, or a program to end.
const WAIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(100);
/// Time limit for a command that is not a server, in seconds.
const COMMAND_SECONDS_MAX: u64 = 300;
/// Bytes of the text that pages call `my.txt`.
const TEXT_BYTES: usize = 100_000;
/// Conversations in the file that pages call `chats.jsonl`.
const CHATS: usize = 300;

/// Instruction of a page for this stage.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Instruction {
    /// Run a command. `true` if readers see it.
    Run(String, bool),
    /// End all programs, and remove the runs.
    Fresh,
    /// Replace a word by the output of a command.
    Let(String, String),
    /// Write a file.
    File(String, String),
}

/// Instructions of a page with their lines, and the number of commands that are marked as not run.
#[derive(Debug, Default, PartialEq, Eq)]
struct Page {
    instructions: Vec<(usize, Instruction)>,
    left_out: usize,
}

/// Runs all commands of [`PAGES`].
///
/// # Errors
/// A message with the page, the line, the command, and its output.
pub fn check() -> Result<String, String> {
    if std::env::consts::OS == "windows" {
        return Ok("left out: the commands need a POSIX shell".to_owned());
    }
    let syncer = program(&build(TEST_PROGRAMS)?, "syncer-server")?;
    build(EXAMPLES)?;
    let programs = syncer.parent().ok_or("the build has no folder of programs")?;
    let (mut run, mut left_out) = (0, 0);
    for page in PAGES {
        let text = fs::read_to_string(root().join(page)).map_err(|error| format!("{page}: {error}"))?;
        let Page { instructions, left_out: more } =
            parse(&text).map_err(|reason| format!("{page}{reason}"))?;
        left_out += more;
        if instructions.is_empty() {
            continue;
        }
        let mut session = PageSession::begin(page, programs)?;
        for (line, instruction) in instructions {
            run += usize::from(matches!(instruction, Instruction::Run(_, true)));
            session.take(instruction).map_err(|reason| format!("{page}:{line}: {reason}"))?;
        }
        session.end().map_err(|reason| format!("{page}, at its end: {reason}"))?;
    }
    Ok(format!("{run} commands run, {left_out} excluded with a reason"))
}

/// Parses a page.
///
/// # Errors
/// A line number and a message if a comment controls nothing.
fn parse(text: &str) -> Result<Page, String> {
    let mut page = Page::default();
    let lines: Vec<&str> = text.lines().collect();
    let whole_page = lines.iter().any(|line| line.starts_with("<!-- page not run: "));
    let (mut skip, mut file) = (whole_page, None);
    let mut at = 0;
    while at < lines.len() {
        let (number, line) = (at + 1, lines[at]);
        at += 1;
        if let Some(comment) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            if comment == "fresh" {
                page.instructions.push((number, Instruction::Fresh));
            }
            let Some((word, rest)) = comment.split_once(": ") else { continue };
            match word.split_once(' ').unwrap_or((word, "")) {
                ("not", "run") => skip = true,
                ("first", "") => page.instructions.push((number, Instruction::Run(rest.to_owned(), false))),
                ("let", name) => {
                    page.instructions.push((number, Instruction::Let(name.to_owned(), rest.to_owned())))
                }
                ("file", "") => file = Some(rest.to_owned()),
                _ => {}
            }
            continue;
        }
        let fence = line.strip_prefix("```");
        let is_block = line.starts_with("    ") && (at < 2 || lines[at - 2].trim().is_empty());
        if fence.is_none() && !is_block {
            if (skip && !whole_page || file.is_some()) && !line.trim().is_empty() {
                return Err(format!(":{number}: a comment for a code block is followed by text"));
            }
            continue;
        }
        let ends = |line: &str| if fence.is_some() { line == "```" } else { !line.starts_with("    ") };
        let start = if fence.is_some() { at } else { at - 1 };
        let length = lines[start..].iter().take_while(|line| !ends(line)).count();
        let block = &lines[start..start + length];
        at = start + length + usize::from(fence.is_some());
        if let Some(name) = file.take() {
            page.instructions.push((number, Instruction::File(name, block.join("\n") + "\n")));
        } else if fence.is_none_or(|kind| kind == "sh") {
            let commands = commands(block, start + 1);
            if skip {
                page.left_out += commands.len();
            } else {
                page.instructions
                    .extend(commands.into_iter().map(|(line, text)| (line, Instruction::Run(text, true))));
            }
            skip = whole_page;
        }
    }
    Ok(page)
}

/// Returns the commands of a block that begins at line `first`, without comments. Joins lines that end in a backslash.
fn commands(block: &[&str], first: usize) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (number, line) in (first..).zip(block) {
        let line = line.split(" # ").next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (text, more) = line.strip_suffix('\\').map_or((line, false), |text| (text.trim_end(), true));
        match found.last_mut().filter(|_| goes_on) {
            Some((_, command)) => _ = write!(command, " {text}"),
            None => found.push((number, text.to_owned())),
        }
        goes_on = more;
    }
    found
}

/// Replaces `cargo run … --example NAME -- ARGS` by `NAME ARGS`, and the same for `--bin NAME` and `-p NAME`.
fn without_cargo(command: &str) -> String {
    let Some((before, call)) = command.split_once("cargo run ") else { return command.to_owned() };
    let (options, args) = call.split_once(" -- ").unwrap_or((call, ""));
    let options: Vec<&str> = options.split_whitespace().collect();
    let value = |flag: &str| options.iter().position(|word| *word == flag).and_then(|at| options.get(at + 1));
    let name = ["--example", "--bin", "-p"].iter().find_map(|flag| value(flag));
    format!("{before}{} {args}", name.unwrap_or(&"")).trim().to_owned()
}

/// Folder of one page, and the programs that run there.
struct PageSession {
    folder: PathBuf,
    variables: Vec<(String, String)>,
    /// Words of the page, and the commands whose output replaces them.
    words: Vec<(String, String)>,
    /// Learners and the server, in the order in which they started.
    running: Vec<(String, Process)>,
}

impl PageSession {
    fn begin(page: &str, programs: &Path) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("{page}: cannot prepare a folder: {error}");
        let name = format!("archipelago-docs-{}-{}", std::process::id(), page.replace(['/', '.'], "-"));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(folder.join("home")).map_err(failed)?;
        let novel = fs::read(root().join("syncer-server/assets/austen.txt")).map_err(failed)?;
        fs::write(folder.join("my.txt"), &novel[..TEXT_BYTES]).map_err(failed)?;
        fs::write(folder.join("chats.jsonl"), chats()).map_err(failed)?;
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{0}:{0}/examples:{path}", programs.display());
        let home = folder.join("home").display().to_string();
        let variables = [("PATH", path), ("ARCHIPELAGO", root().display().to_string())];
        let states = ["XDG_STATE_HOME", "XDG_CACHE_HOME"].map(|name| (name, home.clone()));
        let variables = variables.into_iter().chain(states).map(|(name, value)| (name.to_owned(), value));
        let words = vec![("HOST".to_owned(), format!("echo {}", ADDRESS.ip()))];
        Ok(Self { folder, variables: variables.collect(), words, running: Vec::new() })
    }

    fn take(&mut self, instruction: Instruction) -> Result<(), String> {
        match instruction {
            Instruction::File(name, text) => {
                let path = self.folder.join(&name);
                let made = path.parent().map_or(Ok(()), fs::create_dir_all);
                made.and_then(|()| fs::write(&path, text)).map_err(|error| format!("{name}: {error}"))
            }
            Instruction::Fresh => {
                self.end()?;
                match fs::remove_dir_all(self.folder.join("runs")) {
                    Err(error) if error.kind() != ErrorKind::NotFound => Err(format!("runs: {error}")),
                    _ => Ok(()),
                }
            }
            Instruction::Let(word, command) => {
                self.words.push((word, command));
                Ok(())
            }
            Instruction::Run(command, _) => {
                let command = self.filled(&command)?;
                println!("   {command}");
                if command.contains("syncer-server serve ") || command.ends_with("syncer-server serve") {
                    self.end()?;
                    self.start(&command)?;
                    self.wait_for(&command, || {
                        fetch(ADDRESS, "/readyz").is_ok_and(|answer| answer.code == 200)
                    })
                } else if LEARNERS.iter().any(|learner| command.contains(learner)) {
                    self.start(&command)?;
                    // The server is one of the programs.
                    let learners = self.running.len() as u64 - 1;
                    self.wait_for(&command, || learners_train(learners))
                } else {
                    self.run(&command).map(drop)
                }
            }
        }
    }

    /// Replaces the page's words in `command`, the newest first, by the present output of their commands.
    fn filled(&self, command: &str) -> Result<String, String> {
        let mut filled = command.to_owned();
        for (word, prints) in self.words.iter().rev() {
            if filled.contains(word.as_str()) {
                filled = filled.replace(word.as_str(), self.run(prints)?.trim());
            }
        }
        Ok(without_cargo(&filled))
    }

    /// Runs a command to its end and returns its output.
    fn run(&self, command: &str) -> Result<String, String> {
        let mut shell = Command::new("timeout");
        shell.args([&COMMAND_SECONDS_MAX.to_string(), "sh", "-ec", command]).current_dir(&self.folder);
        let shell = shell.envs(self.variables.iter().cloned()).stdin(Stdio::null());
        let output = shell.output().map_err(|error| format!("`{command}` did not start: {error}"))?;
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(printed);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("`{command}` ended with {}:\n{printed}{said}", output.status))
    }

    /// Starts a command in the background.
    fn start(&mut self, command: &str) -> Result<(), String> {
        if self.running.is_empty() && fetch(ADDRESS, "/healthz").is_ok() {
            return Err(format!(
                "another program listens on {ADDRESS}, which the pages use; end that program"
            ));
        }
        let script = format!("cd {} && exec {command}", self.folder.display());
        let args = ["-ec", &script].map(OsString::from);
        let log = self.folder.join(format!("program-{}", self.running.len()));
        let process = Process::spawn_with(Path::new("/bin/sh"), &args, &log, &self.variables)?;
        self.running.push((command.to_owned(), process));
        Ok(())
    }

    /// Waits until `is_there` returns true. Fails if the newest program ends first.
    fn wait_for(&mut self, command: &str, is_there: impl Fn() -> bool) -> Result<(), String> {
        let end = Instant::now() + WAIT;
        while Instant::now() < end {
            if is_there() {
                return Ok(());
            }
            let (_, process) = self.running.last_mut().expect("a program was started");
            if let Some(code) = process.exit_code() {
                return Err(format!("`{command}` ended with {code}: {}", process.last_words()));
            }
            thread::sleep(POLL);
        }
        Err(format!("`{command}` had no effect within {} s", WAIT.as_secs()))
    }

    /// Ends all programs as a reader does, with Ctrl+C, the newest first.
    fn end(&mut self) -> Result<(), String> {
        while let Some((command, mut process)) = self.running.pop() {
            process.interrupt();
            match process.wait(WAIT) {
                Some(0) => {}
                Some(code) => {
                    return Err(format!("`{command}` ended with {code}, not 0: {}", process.last_words()));
                }
                None => return Err(format!("`{command}` did not end within {} s", WAIT.as_secs())),
            }
        }
        Ok(())
    }
}

impl Drop for PageSession {
    fn drop(&mut self) {
        self.running.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns true if `count` learners take part in the runs of this machine, and one of the runs has merged training.
fn learners_train(count: u64) -> bool {
    let runs = get(ADDRESS, "/v1/runs").unwrap_or_default();
    let names = runs["runs"].as_array().into_iter().flatten().filter_map(|run| run["name"].as_str());
    let paths = names.map(|name| format!("/v1/runs/{name}/status")).chain(["/v1/status".to_owned()]);
    let runs: Vec<_> = paths.filter_map(|path| get(ADDRESS, &path).ok()).collect();
    let of = |key: &str| runs.iter().filter_map(|run| run[key].as_u64()).max().unwrap_or(0);
    of("live") >= count && of("tokensMerged") > 0
}

/// Returns conversations of one question and one answer each.
fn chats() -> String {
    let mut lines = String::new();
    for number in 0..CHATS {
        let (a, b) = (number % 20, number / 20);
        let sum = a + b;
        let asks = format!(r#"{{"role": "user", "content": "What is {a} and {b}?"}}"#);
        let says = format!(r#"{{"role": "assistant", "content": "It is {sum}."}}"#);
        _ = writeln!(lines, r#"{{"messages": [{asks}, {says}]}}"#);
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: usize, command: &str) -> (usize, Instruction) {
        (line, Instruction::Run(command.into(), true))
    }

    #[test]
    fn blocks_are_read_with_their_comments() {
        let page = "Text:\n\n    a --b \\\n      --c  # why\n    d\n\n- item\n    not a block\n\n";
        let read = parse(&format!("{page}<!-- not run: slow -->\n\n    e\n")).unwrap();
        assert_eq!(read.instructions, [run(3, "a --b --c"), run(5, "d")]);
        assert_eq!(read.left_out, 1);
    }

    #[test]
    fn cargo_run_is_a_program() {
        let call = "cargo run --release -p archipelago --example learner -- ws://a";
        assert_eq!(without_cargo(call), "learner ws://a");
        assert_eq!(without_cargo("A=b cargo run --bin simulate -- goodput"), "A=b simulate goodput");
        assert_eq!(without_cargo("syncer-server status"), "syncer-server status");
    }

    #[test]
    fn files_and_words_come_before_their_block() {
        let file = "<!-- file: a.toml -->\n```toml\nx = 1\n```\n\n";
        let instructions =
            parse(&format!("{file}<!-- first: mk -->\n<!-- let NAME: id -->\n\n    go NAME\n"))
                .unwrap()
                .instructions;
        assert_eq!(
            instructions,
            [
                (2, Instruction::File("a.toml".into(), "x = 1\n".into())),
                (6, Instruction::Run("mk".into(), false)),
                (7, Instruction::Let("NAME".into(), "id".into())),
                run(9, "go NAME"),
            ]
        );
        assert!(parse("<!-- page not run: hours -->\n\n    a\n").unwrap().instructions.is_empty());
        assert!(parse("<!-- not run: why -->\ntext\n").is_err());
    }
}
