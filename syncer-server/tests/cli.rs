//! Tests of messages and exit codes of the program when a command fails.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs the program. Returns exit code, standard output and standard error.
fn run(arguments: &[&str]) -> (i32, String, String) {
    let program = env!("CARGO_BIN_EXE_syncer-server");
    let output = Command::new(program).args(arguments).env_clear().output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn bad_input_has_a_sentence_and_a_code() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (empty, binary) = (write("empty.txt", b""), write("binary.dat", &[0x7f, 0x45, 0x4c, 0x46, 0, 0, 1]));
    let (short, none) = (write("short.txt", b"too little text"), dir.path().join("none.txt"));
    let settings = write("settings.toml", b"sinc-every = 3");
    let runs = dir.path().join("run");
    let runs = runs.to_str().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();

    let check = |code: i32, arguments: &[&str], part: &str| {
        let (found, out, said) =
            run(&[&["serve", "--dir", runs, "--listen", "127.0.0.1:0"], arguments].concat());
        assert_eq!(out, "", "{arguments:?}: nobody is told to come to a run that is not open");
        assert_eq!(found, code, "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "one sentence: {said}");
    };
    check(3, &["--config", &settings], "unknown key `sinc-every`");
    check(3, &["--block", "12"], "--block 12");
    check(3, &["--alert-loss", "0.9"], "--alert-loss 0.9 is out of range");
    check(3, &["--webhook", "chat.example"], "--webhook is not an address");
    check(3, &["--public-url", "class.example"], "--public-url class.example is not a link");
    check(3, &["--tls-cert", &empty], "give --tls-key too");
    check(
        21,
        &["--tls-cert", &empty, "--tls-key", &empty],
        "empty.txt holds no certificate: give --tls-cert the chain",
    );
    check(3, &["--trusted-proxy", "caddy"], "--trusted-proxy: \"caddy\" is not an address");
    check(4, &["--data", none.to_str().unwrap()], "none.txt");
    check(5, &["--data", &empty], "is empty");
    check(6, &["--data", &binary], "is not UTF-8 text (byte 4");
    check(7, &["--data", &short], "needs at least");
    check(3, &["--lr", "-1"], "--lr -1 is out of range: give a number above 0");
    check(3, &["--outer-momentum", "-0.5"], "--outer-momentum -0.5 is out of range");
    check(8, &["--preset", "huge"], "choose tiny, small, medium, base, llama-135m or llama-360m");
    check(9, &["--tokenizer", &empty], "tokenizer");
    check(3, &["--licence", "two words"], "--licence \"two words\" is not a name of a licence");
    check(3, &["--context", "100000"], "--context 100000");
    check(3, &["--held-out", "0"], "--held-out 0 is out of range");
    check(3, &["--admin-token", "x"], "--admin-token is no secret");
    for origin in ["foo", "https://a.example/page", "ftp://a.example"] {
        check(3, &["--allow-origin", origin], &format!("--allow-origin {origin} is not an origin"));
    }
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/init/model");
    check(
        19,
        &["--init", model, "--context", "25"],
        "max_position_embeddings = 24: give --context 24 or less",
    );
    check(19, &["--init", none.to_str().unwrap()], "there is no such folder");
    assert_eq!(run(&["serve", "--init", model, "--vocab", "300"]).0, 2);
    check(11, &["--listen", "256.0.0.1:1"], "256.0.0.1:1");
    check(11, &["--listen", "localhost:"], "and a port, as 127.0.0.1:7700 or localhost:7700");
    let (code, _, said) = run(&["serve", "--quiet", "--dir", runs, "--listen", &taken]);
    assert_eq!(code, 10, "{said}");
    let (code, _, said) = run(&["export", "--dir", runs, "--out", runs, "--licence", "a: x"]);
    assert_eq!(code, 3, "{said}");
    assert_eq!(run(&["export", "--dir", runs, "--out", runs, "--dtype", "f64"]).0, 2);
    assert_eq!(run(&["export", "--dir", runs, "--out", runs, "--dtype", "q8_0"]).0, 3, "only in GGUF");
    let (code, _, said) = run(&["status", "--dir", runs]);
    assert_eq!(code, 16, "{said}");
    let (code, _, said) = run(&["export", "--dir", runs, "--out", runs]);
    assert_eq!(code, 16, "{said}");
    assert_eq!(run(&["serve", "--no-such-flag"]).0, 2);
    assert_eq!(run(&["serve", "--snapshot-every", "0"]).0, 2, "that would be all the time");
}

#[test]
fn inspection_without_a_syncer_names_the_address() {
    let dir = tempfile::tempdir().unwrap();
    for verb in ["status", "history", "learners", "events"] {
        let (code, out, said) = run(&[verb, "--url", "http://127.0.0.1:1"]);
        assert_eq!((code, &*out), (20, ""), "{said}");
        assert!(said.contains("no syncer answers at http://127.0.0.1:1"), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "one sentence: {said}");
    }
    assert_eq!(run(&["status", "--url", "http://127.0.0.1:1", "--dir", dir.path().to_str().unwrap()]).0, 2);
}

#[test]
fn validate_succeeds_if_its_output_pipe_is_closed() {
    let (reader, answers) = std::io::pipe().unwrap();
    drop(reader);
    let dir = tempfile::tempdir().unwrap();
    let mut validate = Command::new(env!("CARGO_BIN_EXE_syncer-server"));
    validate.args(["validate", "--preset", "tiny", "--corpus-bytes", "60kB", "--dir"]).arg(dir.path());
    assert!(validate.env_clear().stdout(answers).status().unwrap().success());
}

#[test]
fn doctor_and_validate_report_their_checks() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("run");
    let place = place.to_str().unwrap();
    let common = ["--dir", place, "--listen", "127.0.0.1:0", "--preset", "tiny", "--corpus-bytes", "60kB"];
    let (code, said, _) = run(&[&["doctor"], &common[..]].concat());
    assert_eq!(code, 0, "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("ok")).count(), 6, "{said}");
    let (code, said, _) = run(&[&["doctor", "--data", "no-such-file"], &common[..]].concat());
    assert_eq!(code, 17, "{said}");

    // An owner process serves no learners, so its address does not matter.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let part = ["--role", "owner", "--listen", &taken, "--bus", "nats://127.0.0.1:1"];
    let small = ["--dir", place, "--preset", "tiny", "--corpus-bytes", "60kB"];
    let (code, said, _) = run(&[&["doctor"], &small[..], &part[..]].concat());
    assert!(code == 17 && said.contains("--role needs --bus") && !said.contains("address"), "{said}");

    let (code, said, _) = run(&[&["validate", "--json"], &common[..]].concat());
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &said["valid"], &said["params"]), (0, &true.into(), &117_056.into()));
    assert!(!dir.path().join("run").exists(), "validate changes nothing");
}

const SMALL: [&str; 6] = ["--preset", "tiny", "--corpus-bytes", "60kB", "--listen", "127.0.0.1:0"];

#[test]
fn foreign_folders_are_left_as_they_are() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().to_str().unwrap();
    fs::write(place.path().join("photo.jpg"), "mine").unwrap();
    for verb in ["serve", "validate"] {
        let (code, out, said) = run(&[&[verb, "--quiet", "--dir", dir], &SMALL[..]].concat());
        assert_eq!((code, &*out), (12, ""), "{said}");
        assert!(said.contains("holds photo.jpg, but no run: give --dir"), "{said}");
    }
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 1, "nothing was written there");
    // A run inside its own text is refused before it begins, not at its second start.
    let text = place.path().join("text");
    fs::create_dir(&text).unwrap();
    fs::write(text.join("a.txt"), "some words ".repeat(9_000)).unwrap();
    let inside = text.join("run");
    let common = ["serve", "--quiet", "--data", text.to_str().unwrap(), "--dir", inside.to_str().unwrap()];
    let (code, _, said) = run(&[&common, &SMALL[..2], &SMALL[4..]].concat());
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("is inside --data"), "{said}");
    assert!(!inside.exists());
}

#[test]
fn missing_damaged_and_unreadable_runs_have_different_errors() {
    let place = tempfile::tempdir().unwrap();
    let check = |dir: &str, code: i32, part: &str| {
        let dir = place.path().join(dir);
        let verbs: [&[&str]; 5] = [
            &["status"],
            &["sample", "--prompt", "a"],
            &["replay"],
            &["invite", "list"],
            &["token", "rotate"],
        ];
        for verb in verbs {
            let (found, out, said) = run(&[verb, &["--dir", dir.to_str().unwrap()]].concat());
            assert_eq!((found, &*out), (code, ""), "{verb:?}: {said}");
            assert!(said.contains(part), "{said}");
        }
    };
    check("absent", 16, "no run is in ");
    fs::create_dir(place.path().join("empty")).unwrap();
    check("empty", 16, "no run is in ");
    fs::write(place.path().join("file"), "text").unwrap();
    check("file", 16, "no run is in ");
    let damaged = place.path().join("damaged");
    fs::create_dir(&damaged).unwrap();
    fs::write(damaged.join("run.json"), "{").unwrap();
    check("damaged", 14, "not a description of a run");
    #[cfg(unix)]
    {
        // A link to itself acts as an unreadable file, since tests may run as root.
        let closed = place.path().join("closed");
        fs::create_dir(&closed).unwrap();
        std::os::unix::fs::symlink("run.json", closed.join("run.json")).unwrap();
        check("closed", 15, "run.json");
    }
}

/// Goal: environment variables for `serve` do not affect commands that inspect a run.
#[test]
fn inspection_ignores_variables_of_serve() {
    for verb in ["status", "history", "learners", "events"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncer-server"));
        command.args([verb, "--url", "http://127.0.0.1:1"]).env_clear();
        command.env("ARCHIPELAGO_DIR", "elsewhere").env("ARCHIPELAGO_NAME", "somebody");
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(20), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Starts a run, waits until it is open, and stops it with signals. Returns its log.
#[cfg(unix)]
fn open_once(arguments: &[&str]) -> String {
    use std::io::{BufRead, BufReader, Read};
    use std::process::Stdio;
    let mut program = Command::new(env!("CARGO_BIN_EXE_syncer-server"));
    program.args([&["serve", "--json", "--listen", "127.0.0.1:0"], arguments].concat()).env_clear();
    let mut program = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(program.stdout.as_mut().unwrap()).read_line(&mut first).unwrap();
    // Two signals at once, as from a terminal and a supervisor, count as one request, and the run is saved.
    for _ in 0..2 {
        let pid = program.id().to_string();
        drop(Command::new("kill").args(["-TERM", &pid]).status());
    }
    let mut said = String::new();
    program.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let status = program.wait().unwrap();
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(first.contains("listening"), "{first}{said}");
    said
}

#[cfg(unix)]
#[test]
fn a_classroom_run_keeps_its_text() {
    let place = tempfile::tempdir().unwrap();
    let dir = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    let text = |dir: &str| -> serde_json::Value {
        serde_json::from_str(&fs::read_to_string(format!("{dir}/run.json")).unwrap()).unwrap()
    };
    let (novel, grammar) = (dir("novel"), dir("grammar"));
    open_once(&["--classroom", "--no-eval", "--dir", &novel]);
    assert_eq!(text(&novel)["text"], "Pride and Prejudice, volume one");
    // With and without --classroom, the folder's settings apply.
    for again in [&["--classroom", "--dir", &novel][..], &["--dir", &novel]] {
        assert!(open_once(again).contains("resumed=true"), "{again:?}");
    }
    let (code, _, said) = run(&["validate", "--dir", &novel, "--data", "builtin:grammar"]);
    assert!(code == 12 && said.contains("--data"), "{said}");
    // A class whose run began with the grammar continues with the grammar.
    open_once(&["--preset", "tiny", "--no-eval", "--corpus-bytes", "60kB", "--dir", &grammar]);
    assert!(open_once(&["--classroom", "--dir", &grammar]).contains("resumed=true"));
    assert_eq!(text(&grammar)["text"], "built-in grammar");
}

#[cfg(unix)]
#[test]
fn a_run_goes_on_with_its_own_settings() {
    let place = tempfile::tempdir().unwrap();
    let dir = place.path().join("run");
    let dir = dir.to_str().unwrap();
    let begun =
        ["--preset", "tiny", "--corpus-bytes", "60kB", "--sync-every", "7", "--no-eval", "--dir", dir];
    open_once(&begun);
    // The folder alone is enough, and settings that may change between starts are accepted.
    let said = open_once(&["--dir", dir, "--min-quorum", "2", "--seed", "1"]);
    assert!(said.contains("resumed=true"), "{said}");
    // Only settings that differ from their defaults are shown.
    let shown = said.lines().find(|line| line.contains("settings other than the defaults: ")).unwrap();
    assert!(shown.contains("min-quorum=2") && shown.contains("sync-every=7"), "{shown}");
    assert!(!said.contains("grace-ratio"), "{said}");
    let kept = fs::read_to_string(place.path().join("run/settings.toml")).unwrap();
    for line in
        ["preset = \"tiny\"", "corpus-bytes = \"60kB\"", "sync-every = 7", "no-eval = true", "min-quorum = 2"]
    {
        assert!(kept.lines().any(|found| found == line), "{line}: {kept}");
    }
    let (code, said, _) = run(&["validate", "--json", "--dir", dir]);
    assert!(code == 0 && said.contains("\"resumes\":true"), "{said}");
    // An equal value in other notation is accepted, and a contradiction names the setting.
    assert_eq!(run(&["validate", "--dir", dir, "--corpus-bytes", "60000"]).0, 0);
    for (flag, value, was) in
        [("--preset", "small", "tiny"), ("--sync-every", "8", "7"), ("--held-out", "0.1", "0.05")]
    {
        let (code, _, said) = run(&["validate", "--dir", dir, flag, value]);
        assert_eq!(code, 12, "{said}");
        assert!(said.contains(&format!("it began with {flag} {was}, not {flag} {value}")), "{said}");
    }
    let fork = place.path().join("fork");
    let fork = fork.to_str().unwrap();
    assert_eq!(run(&["fork", "--dir", dir, "--to", fork]).0, 0);
    assert!(open_once(&["--dir", fork]).contains("resumed=true"));
    // The fork's log begins with its origin.
    let events = run(&["events", "--dir", fork]).1;
    let from = events.lines().last().unwrap_or_default();
    assert!(
        from.contains("The run began from the state of run ") && from.contains(" after decision "),
        "{events}"
    );
}

/// Goal: `validate` and the start of a run warn about a text whose format may be unintended, and an error says that the
/// text of a run has changed.
#[cfg(unix)]
#[test]
fn ambiguous_and_changed_texts_are_reported() {
    let place = tempfile::tempdir().unwrap();
    let write = |name: &str, line: &str, times: usize| {
        let path = place.path().join(name);
        fs::write(&path, line.repeat(times)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let line = "{\"prompt\": \"Who keeps the lamp? \", \"completion\": \"The keeper does.\"}\n";
    let (settings, lines) = (write("settings.json", "{\"lamp\": 1}", 1), write("chats.txt", line, 900));
    let code = write("code.txt", "the keeper of the lamp sees ships at night\n", 2_000);
    let dir = place.path().join("run");
    let dir = dir.to_str().unwrap();
    let common = ["--preset", "tiny", "--dir", dir];
    let validate = |data: &str, more: &[&str]| {
        run(&[&["validate", "--json", "--data", data], &common[..], more].concat())
    };

    // A folder with program code and JSON settings.
    let folder = place.path().join("folder");
    fs::create_dir(&folder).unwrap();
    fs::rename(&settings, folder.join("settings.json")).unwrap();
    fs::rename(&code, folder.join("code.txt")).unwrap();
    let folder = folder.to_str().unwrap();
    let named = "settings.json is JSON and trained on as plain text";
    let (code, told, said) = validate(folder, &["--batch", "2"]);
    assert!(code == 0 && said.starts_with("warning: ") && said.contains(named), "{said}");
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(told["warnings"][0].as_str().unwrap().contains("files that end in .jsonl"), "{told}");
    let (code, told, said) = validate(&lines, &["--batch", "2"]);
    assert!(code == 0 && said.is_empty() && told.contains("\"warnings\":[]"), "{told}{said}");

    let (code, _, said) = validate(&lines, &["--batch", "400"]);
    let few = "windows are few for batches of 400: a pass over the text is 1 step of one learner";
    assert!(code == 0 && said.contains(few) && said.contains("use a smaller --batch"), "{said}");
    let (code, _, said) = validate(&lines, &["--batch", "4000"]);
    assert!(code == 7 && said.contains("shorter windows with --context, or a smaller --batch"), "{said}");

    let said = open_once(&[&["--data", folder, "--batch", "300", "--no-eval"], &common[..]].concat());
    assert!(said.contains(named) && said.contains("windows are few for batches of 300"), "{said}");
    let (code, _, said) = validate(&lines, &["--batch", "300"]);
    assert!(code == 12 && said.contains("--data, --held-out"), "{said}");
    assert!(said.contains("gave another text") && !said.contains("masks"), "{said}");
}

/// Writes a small text into `folder` and returns its path.
fn words(folder: &Path) -> String {
    let path = folder.join("words.txt");
    fs::write(&path, "the keeper of the lamp sees ships at night. ".repeat(2_000)).unwrap();
    path.to_str().unwrap().to_owned()
}

/// Opens a device on which every write fails as on a full disk, if the system has one.
fn full() -> Option<fs::File> {
    fs::File::options().write(true).open("/dev/full").ok()
}

#[test]
fn serve_continues_if_its_log_cannot_be_written() {
    let Some(full) = full() else { return };
    let dir = tempfile::tempdir().unwrap();
    let run = dir.path().join("run");
    let data = words(dir.path());
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    for stderr in [Stdio::from(full), Stdio::from(closed)] {
        let mut served = Command::new(env!("CARGO_BIN_EXE_syncer-server"))
            .args([
                "serve",
                "--json",
                "--no-eval",
                "--listen",
                "127.0.0.1:0",
                "--preset",
                "tiny",
                "--data",
                &data,
            ])
            .args(["--dir", run.to_str().unwrap()])
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(stderr)
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(served.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ended = served.try_wait().unwrap();
        served.kill().unwrap();
        served.wait().unwrap();
        assert!(line.contains("listening") && ended.is_none(), "{ended:?}: {line}");
    }
}

#[test]
fn unwritable_results_fail_unless_the_pipe_is_closed() {
    let Some(full) = full() else { return };
    let dir = tempfile::tempdir().unwrap();
    let data = words(dir.path());
    let validate = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncer-server"));
        command.args(["validate", "--preset", "tiny", "--data", &data, "--dir", "none"]).env_clear();
        let output = command.current_dir(dir.path()).stdout(stdout).stderr(Stdio::piped()).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = validate(full.into());
    assert!(code == 15 && said.contains("error: cannot write to standard output"), "{code}: {said}");
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(validate(closed.into()).0, 0);
}

#[test]
fn secrets_may_end_in_a_newline() {
    let dir = tempfile::tempdir().unwrap();
    let data = words(dir.path());
    for (name, value) in
        [("ARCHIPELAGO_INVITE", " 'lamp-keeper-7'\r\n"), ("ARCHIPELAGO_ADMIN_TOKEN", "secret-of-the-owner\n")]
    {
        let mut command = Command::new(env!("CARGO_BIN_EXE_syncer-server"));
        command.args(["validate", "--preset", "tiny", "--data", &data, "--dir", "none"]).env_clear();
        let output = command.current_dir(dir.path()).env(name, value).output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
