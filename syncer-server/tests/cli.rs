//! What the program says and how it ends when it cannot do what it was asked.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::net::TcpListener;
use std::process::Command;

/// Runs the program: exit code, standard output, standard error.
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
        let (found, _, said) =
            run(&[&["serve", "--quiet", "--dir", runs, "--listen", "127.0.0.1:0"], arguments].concat());
        assert_eq!(found, code, "{arguments:?}: {said}");
        assert!(said.contains(part), "{arguments:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "one sentence: {said}");
    };
    check(3, &["--config", &settings], "unknown key `sinc-every`");
    check(3, &["--block", "12"], "--block 12");
    check(3, &["--alert-loss", "0.9"], "--alert-loss 0.9 is out of range");
    check(3, &["--webhook", "chat.example"], "--webhook is no address");
    check(3, &["--public-url", "class.example"], "--public-url class.example is no link");
    check(4, &["--data", none.to_str().unwrap()], "none.txt");
    check(5, &["--data", &empty], "is empty");
    check(6, &["--data", &binary], "is not UTF-8 text (byte 4");
    check(7, &["--data", &short], "needs at least");
    check(8, &["--preset", "huge"], "choose tiny, small, medium or base");
    check(9, &["--tokenizer", &empty], "tokenizer");
    check(3, &["--licence", "two words"], "--licence \"two words\" is no name of a licence");
    check(3, &["--context", "100000"], "--context 100000");
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/init/model");
    check(
        19,
        &["--init", model, "--context", "25"],
        "max_position_embeddings = 24: give --context 24 or less",
    );
    check(19, &["--init", none.to_str().unwrap()], "cannot read config.json");
    assert_eq!(run(&["serve", "--init", model, "--vocab", "300"]).0, 2);
    check(11, &["--listen", "256.0.0.1:1"], "256.0.0.1:1");
    let (code, _, said) = run(&["serve", "--quiet", "--dir", runs, "--listen", &taken]);
    assert_eq!(code, 10, "{said}");
    let (code, _, said) = run(&["export", "--dir", runs, "--out", runs, "--licence", "a: x"]);
    assert_eq!(code, 3, "{said}");
    assert_eq!(run(&["export", "--dir", runs, "--out", runs, "--dtype", "f64"]).0, 2);
    let (code, _, said) = run(&["status", "--dir", runs]);
    assert_eq!(code, 16, "{said}");
    let (code, _, said) = run(&["export", "--dir", runs, "--out", runs]);
    assert_eq!(code, 16, "{said}");
    for verb in ["status", "history", "learners", "events"] {
        let (code, out, said) = run(&[verb, "--url", "http://127.0.0.1:1"]);
        assert_eq!((code, &*out), (20, ""), "{said}");
        assert!(said.contains("no syncer answers at http://127.0.0.1:1"), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "one sentence: {said}");
    }
    assert_eq!(run(&["status", "--url", "http://127.0.0.1:1", "--dir", runs]).0, 2);
    assert_eq!(run(&["serve", "--no-such-flag"]).0, 2);
}

#[test]
fn whoever_reads_no_more_has_read_enough() {
    let (reader, answers) = std::io::pipe().unwrap();
    drop(reader);
    let dir = tempfile::tempdir().unwrap();
    let mut validate = Command::new(env!("CARGO_BIN_EXE_syncer-server"));
    validate.args(["validate", "--preset", "tiny", "--corpus-bytes", "60kB", "--dir"]).arg(dir.path());
    assert!(validate.env_clear().stdout(answers).status().unwrap().success());
}

#[test]
fn doctor_and_validate_tell_what_holds() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("run");
    let place = place.to_str().unwrap();
    let common = ["--dir", place, "--listen", "127.0.0.1:0", "--preset", "tiny", "--corpus-bytes", "60kB"];
    let (code, said, _) = run(&[&["doctor"], &common[..]].concat());
    assert_eq!(code, 0, "{said}");
    assert_eq!(said.lines().filter(|line| line.starts_with("ok")).count(), 6, "{said}");
    let (code, said, _) = run(&[&["doctor", "--data", "no-such-file"], &common[..]].concat());
    assert_eq!(code, 17, "{said}");

    let (code, said, _) = run(&[&["validate", "--json"], &common[..]].concat());
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!((code, &said["valid"], &said["params"]), (0, &true.into(), &117_056.into()));
    assert!(!dir.path().join("run").exists(), "validate changes nothing");
}
