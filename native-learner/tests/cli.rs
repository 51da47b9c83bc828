//! Tests of the engine's selection and its output, of exit codes, and of proxies.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

const NO_SUCH_GPU: [&str; 2] = ["--adapter", "no such gpu"];
const TINY: [&str; 5] = ["--preset", "tiny", "--seconds", "0.1", "--json"];

/// Runs the program with its state in `state`. Returns its exit code, standard output and standard error.
fn run(state: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_native-learner"));
    let diverts = |name: &str| name.starts_with("ARCHIPELAGO_") || name.to_lowercase().ends_with("_proxy");
    for (name, _) in std::env::vars().filter(|(name, _)| diverts(name)) {
        command.env_remove(name);
    }
    command.env("XDG_STATE_HOME", state).envs(environment.iter().copied());
    let output = command.args(arguments).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

/// Runs the program, which must succeed. Returns the JSON in its last line of output.
fn figures(state: &Path, environment: &[(&str, &str)], arguments: &[&str]) -> Value {
    let (code, said, complained) = run(state, environment, arguments);
    assert_eq!(code, 0, "{arguments:?}: {said}{complained}");
    serde_json::from_str(said.lines().last().unwrap()).unwrap()
}

/// Returns true if tests that need a GPU must be skipped.
fn without_gpu() -> bool {
    let off = std::env::var("ARCHIPELAGO_TEST_GPU").is_ok_and(|value| value == "no");
    if off {
        eprintln!("skipped: ARCHIPELAGO_TEST_GPU=no");
    }
    off
}

fn number(figures: &Value, field: &str) -> f64 {
    figures[field].as_f64().unwrap_or_else(|| panic!("no {field} in {figures}"))
}

#[test]
fn auto_takes_the_cpu_and_says_why() {
    let state = tempfile::tempdir().unwrap();
    let found = figures(state.path(), &[], &[&["bench"], &TINY[..], &NO_SUCH_GPU].concat());
    assert_eq!(found["engine"], "cpu");
    let notes = found["notes"].as_array().unwrap();
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].as_str().unwrap().starts_with("training on the CPU: no GPU "), "{notes:?}");

    // A learner reports the selection before it connects to its syncer.
    let join = ["join", "127.0.0.1:1", "--json", "--max-contact", "1ms"];
    let (code, said, _) = run(state.path(), &[], &[&join[..], &NO_SUCH_GPU].concat());
    assert_eq!(code, 3, "{said}");
    let events: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events[0]["event"], "start");
    assert!(events[0]["device"].as_str().unwrap().starts_with("cpu"), "{said}");
    assert_eq!((&events[1]["event"], &events[1]["sentence"]), (&"note".into(), &notes[0]));

    let doctor = figures(state.path(), &[], &[&["doctor", "--json"], &NO_SUCH_GPU[..]].concat());
    assert_eq!(
        (&doctor["well"], &doctor["asked"], &doctor["engine"]),
        (&true.into(), &"auto".into(), &"cpu".into())
    );
    let models = doctor["models"].as_array().unwrap();
    let named: Vec<&Value> = models.iter().map(|model| &model["preset"]).collect();
    assert_eq!(named, ["tiny", "small", "medium", "base", "llama-135m", "llama-360m"]);
    let speeds: Vec<f64> = models.iter().map(|model| number(model, "tokens_per_s")).collect();
    assert!(speeds.is_sorted_by(|faster, slower| faster > slower && *slower > 0.0), "{speeds:?}");
    assert!(models[0]["unfit"].is_null(), "{models:?}");
}

#[test]
fn a_gpu_that_must_be_is_not_replaced() {
    let state = tempfile::tempdir().unwrap();
    let check = |code: i32, arguments: &[&str]| {
        let (found, _, said) =
            run(state.path(), &[], &[arguments, &["--engine", "gpu"], &NO_SUCH_GPU].concat());
        assert_eq!(found, code, "{arguments:?}: {said}");
        // Drivers may write to standard error first. The last line is from the program.
        let own = said.lines().last().unwrap();
        assert!(own.starts_with("error: ") && own.contains("no GPU "), "{said}");
        assert_eq!(said.matches("no GPU ").count(), 1, "one sentence: {said}");
    };
    check(8, &["bench", "--preset", "tiny"]);
    check(8, &["join", "127.0.0.1:1"]);
    check(9, &["doctor"]);
}

#[test]
fn a_flag_wins_over_the_environment() {
    let state = tempfile::tempdir().unwrap();
    let gpu = [("ARCHIPELAGO_ENGINE", "gpu"), ("ARCHIPELAGO_ADAPTER", "no such gpu")];
    let bench = [&["bench"], &TINY[..]].concat();
    assert_eq!(run(state.path(), &gpu, &bench).0, 8);
    assert_eq!(figures(state.path(), &gpu, &[&bench[..], &["--engine", "cpu"]].concat())["engine"], "cpu");
    let (code, _, said) = run(state.path(), &[("ARCHIPELAGO_ENGINE", "tpu")], &bench);
    assert!(code == 2 && said.contains("choose auto, gpu or cpu"), "{code}: {said}");
    let (code, _, said) = run(state.path(), &[], &["bench", "--seconds", "0"]);
    assert!(code == 2 && said.contains("above 0"), "{code}: {said}");
}

#[test]
fn bench_measures_the_cpu() {
    let state = tempfile::tempdir().unwrap();
    let arguments = [&["bench", "--engine", "cpu", "--threads", "1"], &TINY[..]].concat();
    let found = figures(state.path(), &[], &arguments);
    assert_eq!(
        (&found["engine"], &found["preset"], &found["params"]),
        (&"cpu".into(), &"tiny".into(), &117_056.into())
    );
    assert_eq!((&found["adapter"], &found["bytes_read_back_per_round"]), (&Value::Null, &Value::Null));
    check_speed(&found);
}

/// Checks that the measured values are consistent.
fn check_speed(found: &Value) {
    let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 1e-6;
    let flops_per_s = number(found, "flops_per_s");
    assert!(near(flops_per_s, number(found, "tokens_per_s") * number(found, "flops_per_token")), "{found}");
    assert!(near(number(found, "share_of_peak"), flops_per_s / number(found, "peak_flops_per_s")), "{found}");
    // The first step includes all preparation.
    assert!(number(found, "first_step_ms") > 0.0 && number(found, "steps") >= 1.0, "{found}");
    assert!(number(found, "step_ms_p50") > 0.0, "{found}");
}

#[test]
fn bench_measures_the_gpu_and_keeps_what_it_chose() {
    if without_gpu() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let arguments = [&["bench", "--engine", "gpu", "--profile"], &TINY[..]].concat();
    let first = figures(state.path(), &[], &arguments);
    assert_eq!((&first["engine"], &first["kernels_known"]), (&"gpu".into(), &false.into()));
    assert!(!first["adapter"].as_str().unwrap().is_empty());
    check_speed(&first);
    // Each of the 117,056 values takes 4 bits, and each block of values a scale.
    let bytes = number(&first, "bytes_read_back_per_round");
    assert!((58_528.0..65_000.0).contains(&bytes), "{bytes}");
    if !first["profile"].is_null() {
        let kernels = first["profile"].as_object().unwrap();
        assert!(kernels.values().all(|time| number(time, "dispatches") >= 1.0), "{kernels:?}");
        assert!(kernels.values().map(|time| number(time, "flop")).sum::<f64>() > 0.0, "{kernels:?}");
    }

    let file = state.path().join("archipelago/learners/kernels.json");
    let kept: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(kept[0]["choice"]["adapter"], first["adapter"]);
    let again = figures(state.path(), &[], &arguments);
    assert_eq!(again["kernels_known"], true, "{again}");
    assert!(!again["matmul"].as_array().unwrap().is_empty());

    fs::write(&file, serde_json::to_vec(&kept).unwrap().split_last().unwrap().1).unwrap();
    let damaged = figures(state.path(), &[], &arguments);
    assert_eq!(damaged["kernels_known"], false);
    assert!(damaged["notes"].to_string().contains("is damaged or of another version, ignored"), "{damaged}");

    let mut other = kept;
    other[0]["choice"]["driver"] = "another".into();
    fs::write(&file, other.to_string()).unwrap();
    let updated = figures(state.path(), &[], &arguments);
    assert_eq!(updated["kernels_known"], false);
    assert!(updated["notes"].to_string().contains("another"), "{updated}");
}

#[test]
fn doctor_shows_adapters_and_how_kernels_were_chosen() {
    if without_gpu() {
        return;
    }
    let state = tempfile::tempdir().unwrap();
    let found = figures(state.path(), &[], &["doctor", "--engine", "gpu", "--json"]);
    assert_eq!((&found["well"], &found["engine"]), (&true.into(), &"gpu".into()));
    let adapters = found["adapters"].as_array().unwrap();
    assert!(adapters.iter().any(|adapter| adapter["unfit"].is_null()), "{adapters:?}");
    let trials = found["matmul"].as_array().unwrap();
    for form in ["nt", "nn", "tn"] {
        let own: Vec<&Value> = trials.iter().filter(|trial| trial["form"] == form).collect();
        assert!(own.len() >= 2 && own.iter().all(|trial| number(trial, "gflops") > 0.0), "{form}: {own:?}");
    }
    let real = |adapter: &Value| adapter["software"] == false && adapter["unfit"].is_null();
    let auto = figures(state.path(), &[], &["doctor", "--json"]);
    assert_eq!(auto["engine"] == "gpu", adapters.iter().any(real), "never a program on the CPU: {auto}");
    let (_, said, _) = run(state.path(), &[], &["doctor", "--engine", "gpu"]);
    for part in ["ok   adapter: ", "ok   compute: --engine gpu trains with gpu ", "ok   matmul: "] {
        assert!(said.contains(part), "{said}");
    }
}

/// Reads an HTTP head to its end. Returns its first line.
fn head(reader: &mut impl BufRead) -> String {
    let lines: Vec<String> =
        reader.lines().map(|line| line.unwrap()).take_while(|line| !line.is_empty()).collect();
    lines.first().cloned().unwrap_or_default()
}

#[test]
fn socket_and_fetches_go_through_the_proxy_of_the_environment() {
    let state = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let proxy = format!("http://{}", listener.local_addr().unwrap());
    let proxied = thread::spawn(move || {
        let mut came = Vec::new();
        for stream in listener.incoming().take(2) {
            let mut reader = BufReader::new(stream.unwrap());
            let asked = head(&mut reader);
            reader.get_mut().write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").unwrap();
            let sent = head(&mut reader);
            reader.get_mut().write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n").unwrap();
            came.push((asked, sent));
        }
        came
    });
    let doctor = ["doctor", "--engine", "cpu", "http://train.invalid"];
    let (code, said, _) = run(state.path(), &[("HTTP_PROXY", &proxy)], &doctor);
    assert!(code == 9 && said.contains("ok   http: http://train.invalid/healthz answers 200"), "{said}");
    let through = |sent: &str| ("CONNECT train.invalid:80 HTTP/1.1".to_owned(), sent.to_owned());
    let expected = [through("GET /healthz HTTP/1.1"), through("GET /v1/ws HTTP/1.1")];
    assert_eq!(proxied.join().unwrap(), expected);

    // The proxy no longer listens.
    let environment = [("HTTP_PROXY", &*proxy), ("NO_PROXY", "other.invalid, 10.0.0.0/8")];
    let join = ["join", "--engine", "cpu", "http://train.invalid", "--max-contact", "1s"];
    let (code, _, said) = run(state.path(), &environment, &join);
    assert!(code == 3 && said.contains("of HTTP_PROXY does not lead to train.invalid:80"), "{code}: {said}");
}

#[test]
fn a_proxy_that_refuses_is_said_to() {
    let state = tempfile::tempdir().unwrap();
    let join = ["join", "--engine", "cpu", "--for", "1ms", "--max-contact", "1h"];
    let says = |environment: &[(&str, &str)], address: &str, part: &str| {
        let (code, _, said) = run(state.path(), environment, &[&join[..], &[address]].concat());
        assert!(code == 3 && said.contains(part), "{code}: {said}");
    };
    let socks = [("all_proxy", "socks5://127.0.0.1:1")];
    says(&socks, "https://train.invalid", "did not admit this learner");
    let (_, said, _) = run(state.path(), &socks, &["doctor", "--engine", "cpu", "https://train.invalid"]);
    assert_eq!(said.matches("all_proxy names a SOCKS proxy").count(), 2, "{said}");
}

/// Goal: no text from a peer can control the terminal, or reorder other text on it.
#[test]
fn a_peer_cannot_steer_the_terminal() {
    let state = tempfile::tempdir().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    // It refuses each attempt until the test ends.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut reader = BufReader::new(stream.unwrap());
            head(&mut reader);
            let body = "\u{202e}a riddle\x1b[2J";
            let answer = format!("HTTP/1.1 403 Forbidden\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
        }
    });
    let (_, said, complained) =
        run(state.path(), &[], &["join", "--engine", "cpu", "--max-contact", "3s", &address]);
    let shown = said + &complained;
    assert!(shown.contains("a riddle") && !shown.contains(['\u{202e}', '\u{1b}']), "{shown:?}");
}

#[test]
fn results_that_cannot_be_written_are_a_failure() {
    let Ok(full) = fs::File::options().write(true).open("/dev/full") else { return };
    let state = tempfile::tempdir().unwrap();
    let show = |stdout: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_native-learner"));
        let key = state.path().join("key");
        command.args(["identity", "show", "--identity", key.to_str().unwrap()]).stdout(stdout);
        command.stderr(Stdio::piped()).output().unwrap()
    };
    let key = state.path().join("key");
    let join = ["join", "127.0.0.1:1", "--engine", "cpu", "--max-contact", "1ms"];
    assert_eq!(run(state.path(), &[], &[&join[..], &["--identity", key.to_str().unwrap()]].concat()).0, 3);
    let output = show(full.into());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("cannot write to standard output"), "{said}");
    let (reader, closed) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(show(closed.into()).status.code(), Some(0));
}
