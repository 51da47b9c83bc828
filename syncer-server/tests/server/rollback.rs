//! Tests of a server that detects, reports and rolls back harm to the held-out loss.

use std::fs;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::Duration;

use archipelago_core::wire::{CloseCode, LearnerId, Message};
use futures::FutureExt;
use serde_json::Value;
use syncer_server::{ServeConfig, ServerError, Store, replayed, serve_with_callback};
use tokio::net::TcpListener;

use crate::durability::args;
use crate::init::{from_folder, goes_on};
use crate::support::{Client, PATIENCE, ScriptedLearner, Server, config, hello};

/// Steps of an update. The rate of rounds follows the merged steps of the learners.
const STEPS: u32 = 8;
/// Change of each value by a harmful update.
const HARM: f32 = 0.03;
/// Change of each value by an honest update, whose sign alternates.
const LITTLE: f32 = 0.01;

/// Returns the settings of a run with frequent measurements and rounds of two learners.
fn measured(dir: &Path) -> ServeConfig {
    config(dir).with(|it| {
        it.live.min_quorum = 2.try_into().unwrap();
        it.identity.exchange.fragments = 2;
        // Text for thousands of steps of one learner, which may lease an eighth of it.
        it.identity.corpus_bytes = "12MB".parse().unwrap();
        it.no_eval = false;
        it.eval_every = "20ms".parse().unwrap();
        // A small held-out part keeps measurements short.
        it.identity.held_out = 0.001;
    })
}

async fn losses(server: &Server) -> Vec<f64> {
    let (code, _, body) = server.http("GET /v1/series").await;
    assert_eq!(code, 200);
    let series: Value = serde_json::from_slice(&body).unwrap();
    let evaluations = series["evaluations"].as_array().unwrap();
    evaluations.iter().map(|evaluation| evaluation["loss"].as_f64().unwrap()).collect()
}

async fn log(server: &Server) -> Vec<String> {
    let (_, _, body) = server.http("GET /v1/log").await;
    let log: Value = serde_json::from_slice(&body).unwrap();
    log["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["text"].as_str().unwrap().to_owned())
        .collect()
}

/// Checks that the second learner is rejected.
async fn assert_turned_away(server: &Server) {
    let mut client = Client::connect(server).await;
    let hello = client.signed(hello(2));
    client.send(&Message::Hello(hello)).await;
    assert_eq!(client.end().await.bye, u16::from(CloseCode::Dropped));
}

/// Returns the last good loss, the raised loss, and the loss without the culprit, from a line of the log.
fn losses_in(line: &str) -> [f64; 3] {
    let words = line.split([' ', ',']).filter_map(|word| word.parse().ok());
    words.filter(|loss: &f64| loss.fract() != 0.0).collect::<Vec<_>>().try_into().expect("three losses")
}

async fn trust(server: &Server, learner: usize) -> String {
    server.status().await["learners"][learner]["trust"].as_str().unwrap().to_owned()
}

/// Makes `learner` answer the next request with an update of [`STEPS`] steps that changes each value by `delta`, in a
/// fixed pattern of signs.
async fn answer(learner: &mut ScriptedLearner, delta: f32) {
    learner.steps += u64::from(STEPS);
    learner.report().await;
    let asked = learner.collect().await;
    // Without a pattern the values would move together, which does not raise the loss.
    let mut update =
        learner.update_of(asked, |at| if (at * at / 7).is_multiple_of(2) { delta } else { -delta });
    (update.steps, update.tokens) = (STEPS, update.tokens * u64::from(STEPS));
    learner.client.send(&Message::Update(update)).await;
}

/// Runs a round: the honest learner changes its values by [`LITTLE`] with alternating sign, the other one by `delta`.
async fn round(honest: &mut ScriptedLearner, other: &mut ScriptedLearner, delta: f32) {
    // Each sign is used twice in a row, because two fragments alternate.
    let little = if honest.steps / u64::from(STEPS) % 4 < 2 { LITTLE } else { -LITTLE };
    // Without this wait, the text would run out before the loss is measured often enough.
    tokio::time::sleep(Duration::from_millis(100)).await;
    answer(other, delta).await;
    answer(honest, little).await;
    let is_receipt = |message| matches!(message, Message::Receipt { .. }).then_some(());
    tokio::time::timeout(PATIENCE, honest.until(is_receipt)).await.expect("a receipt");
}

/// Goal: a harmful learner is identified from the tape and dropped, and its updates are rolled back. The owner reads a
/// sentence about it, the tape records it, and the next process remembers it.
#[tokio::test]
async fn harm_is_rolled_back_and_reported() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(measured(dir.path())).await;
    let mut honest = ScriptedLearner::join(&server, 1).await;
    let mut other = ScriptedLearner::join(&server, 2).await;
    let patience = tokio::time::Instant::now() + 5 * PATIENCE;
    while losses(&server).await.len() < 9 {
        round(&mut honest, &mut other, 0.0).await;
        assert!(tokio::time::Instant::now() < patience, "it is measured");
    }

    // "Nothing was rolled back" is another line.
    let is_of_harm = |line: &String| line.contains("those were rolled back");
    let was_undone = |log: &[String]| log.iter().any(is_of_harm);
    while !was_undone(&log(&server).await) {
        let turn = AssertUnwindSafe(round(&mut honest, &mut other, HARM)).catch_unwind();
        // Once the other learner is dropped, it is asked no more and cannot answer.
        if !matches!(tokio::time::timeout(Duration::from_secs(10), turn).await, Ok(Ok(()))) {
            break;
        }
        assert!(tokio::time::Instant::now() < patience, "{:?}", losses(&server).await);
    }
    let lines = log(&server).await;
    assert!(was_undone(&lines), "{lines:?}, {:?}", losses(&server).await);
    let line = lines.into_iter().find(is_of_harm).unwrap();
    assert!(line.contains("without the updates of learner 2"), "{line}");
    assert_turned_away(&server).await;
    assert_eq!((trust(&server, 0).await, trust(&server, 1).await), ("trusted".into(), "out".into()));
    // The loss returns to about the value in the line; the number of rounds in between varies.
    let [good, bad, without] = losses_in(&line);
    assert!(good < bad && without < bad, "{line}");
    while losses(&server).await.last().is_none_or(|&loss| loss > without + 0.5 * (bad - without)) {
        assert!(tokio::time::Instant::now() < patience, "{line} → {:?}", losses(&server).await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    server.stop().await;

    // Rollbacks are recomputed and compared like merges, reported, and measured.
    let found = replayed(&args(dir.path(), Some(4)), |_| {}).unwrap();
    assert!(found.merges > 0 && !found.undone.is_empty(), "{found:?}");
    assert!(found.undone.iter().all(|undone| undone.without == [LearnerId(2)]), "{found:?}");
    assert!(found.to_string().contains("was recomputed without the updates of learner 2"), "{found}");
    let last = f64::from(found.losses.unwrap().last);
    assert!(last <= without + 0.5 * (bad - without), "{line} → {last}");
    let server = Server::start(measured(dir.path())).await;
    // The next process still rejects the learner.
    assert_turned_away(&server).await;
    server.stop().await;
}

/// Goal: with `no_undo`, nothing is rolled back.
#[tokio::test]
async fn no_undo_disables_rollback() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(ServeConfig { no_undo: true, ..measured(dir.path()) }).await;
    let mut honest = ScriptedLearner::join(&server, 1).await;
    let mut other = ScriptedLearner::join(&server, 2).await;
    let patience = tokio::time::Instant::now() + 5 * PATIENCE;
    let is_worse = |losses: &[f64]| losses.first().zip(losses.last()).is_some_and(|(a, b)| *b > 1.05 * a);
    while !is_worse(&losses(&server).await) {
        round(&mut honest, &mut other, HARM).await;
        assert!(tokio::time::Instant::now() < patience, "{:?}", losses(&server).await);
    }
    assert!(!log(&server).await.iter().any(|line| line.contains("rolled back")));
    server.stop().await;
}

/// Number of changed bytes for each file. Each change is made in its own copy.
const FLIPS: usize = 12;
const MERGES: usize = 9;

/// Last decision, merges and merged tokens of a replay; or rounds, merged updates and merged tokens after a start. All
/// other figures follow from these and the states of the fragments.
type Outcome = (u64, u64, u64);

/// Seeded random numbers.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        // Knuth's MMIX generator; its upper half is uniform enough.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Replays the tape in `dir`. Returns its result, and a message about damaged snapshots.
fn replay(dir: &Path) -> Result<(Outcome, String), ServerError> {
    let found = replayed(&args(dir, None), |_| {})?;
    Ok(((found.last, found.merges, found.tokens_merged), found.damaged.join("\n")))
}

/// Starts the run and stops it at once. Returns its rounds, merged updates and merged tokens.
async fn start(config: ServeConfig) -> Result<Outcome, ServerError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (tell, opened) = tokio::sync::oneshot::channel();
    let stop = async { _ = opened.await };
    let core = serve_with_callback(listener, config, move || _ = tell.send(()), stop).await?.core;
    Ok((core.rounds, core.fates.merged, core.tokens_merged))
}

/// Returns the relative paths of all files below `dir` with data of the run.
fn files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for sub in ["", "bodies", "snapshots"] {
        for entry in fs::read_dir(dir.join(sub)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_file() && name != "lock" && !name.ends_with("-shm") {
                found.push(Path::new(sub).join(name));
            }
        }
    }
    found.sort();
    found
}

fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for name in files(from) {
        fs::create_dir_all(to.path().join(name.parent().unwrap())).unwrap();
        fs::copy(from.join(&name), to.path().join(&name)).unwrap();
    }
    to
}

/// Flips a random bit in byte `at` of a file.
fn flip(path: &Path, at: usize, chance: &mut Chance) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 1 << chance.below(8);
    fs::write(path, bytes).unwrap();
}

/// Returns the offsets of the first and the last byte of a file, and of some in between.
fn offsets(path: &Path, chance: &mut Chance) -> Vec<usize> {
    let len = fs::metadata(path).unwrap().len();
    let mut offsets: Vec<usize> = (2..FLIPS).map(|_| chance.below(len) as usize).collect();
    offsets.extend([0, len as usize - 1]);
    offsets
}

/// Changes bytes of the file `name` in copies of the run in `whole`, which `config` resumes. Checks that a replay and a
/// start name the file or have an unchanged result. Returns the number of detected changes.
async fn count_detected(whole: &Path, name: &Path, config: impl Fn(&Path) -> ServeConfig) -> usize {
    let shown = name.file_name().unwrap().to_str().unwrap();
    let reference = copy(whole);
    let expected = replay(reference.path()).unwrap();
    let goes_on = start(config(reference.path())).await.unwrap();
    let states = |dir: &Path| {
        Store::open_read_only(dir).begun().and_then(|run| Store::open_read_only(dir).latest(run.run))
    };
    let stands = states(reference.path()).unwrap().unwrap().states;
    let (mut chance, mut count) = (Chance(0xf11b), 0);
    for at in offsets(&whole.join(name), &mut chance) {
        let dir = copy(whole);
        flip(&dir.path().join(name), at, &mut chance);
        let named = |error: &ServerError| {
            assert!([12, 14, 15].contains(&error.exit_code()), "{shown}, byte {at}: {error}");
            assert!(error.to_string().contains(shown), "{shown}, byte {at}: {error}");
        };
        let replayed = replay(dir.path());
        let mut is_found = match &replayed {
            Ok((outcome, damaged)) => {
                assert_eq!(*outcome, expected.0, "{shown}, byte {at}");
                assert!(damaged.is_empty() || damaged.contains(shown), "{shown}, byte {at}: {damaged}");
                !damaged.is_empty()
            }
            Err(error) => {
                named(error);
                true
            }
        };
        match start(config(dir.path())).await {
            Ok(outcome) => {
                assert_eq!(outcome, goes_on, "{shown}, byte {at}");
                let now = states(dir.path()).unwrap().unwrap().states;
                assert!(now == stands, "{shown}, byte {at}: it leads elsewhere");
            }
            Err(error) => {
                named(&error);
                is_found = true;
            }
        }
        count += usize::from(is_found);
    }
    count
}

/// Merges some updates in the run of `config`.
async fn train(config: ServeConfig) -> Server {
    let server = Server::start(config).await;
    let mut learner = ScriptedLearner::join(&server, 1).await;
    for _ in 0..MERGES {
        learner.merge().await;
    }
    server
}

/// Goal: for any changed byte in a run's folder, an error names the file, or the result is unchanged.
#[tokio::test]
async fn a_changed_byte_is_named_or_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    train(config(dir.path())).await.stop().await;
    for name in files(dir.path()) {
        let count = count_detected(dir.path(), &name, config).await;
        let least = match name.to_str().unwrap() {
            // SQLite files have unused space, and some changes to JSON keep its meaning.
            "tape.sqlite" | "guests.sqlite" => 1,
            "run.json" | "held-out.json" => FLIPS - 2,
            _ => FLIPS,
        };
        assert!(count >= least, "{}: only {count} of {FLIPS} were found", name.display());
    }
}

/// Goal: a changed byte in the initial parameters of a run that began with a folder is detected.
#[tokio::test]
async fn a_changed_byte_of_the_first_parameters_is_named() {
    let dir = tempfile::tempdir().unwrap();
    train(from_folder(dir.path())).await.stop().await;
    let name = Path::new("initial.safetensors");
    assert_eq!(count_detected(dir.path(), name, goes_on).await, FLIPS);
}

/// Goal: after a kill, the last decisions exist only in SQLite's write-ahead log, and are never dropped silently.
#[tokio::test]
async fn a_changed_byte_of_the_write_ahead_log_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let server = train(config(dir.path())).await;
    let killed = copy(dir.path());
    server.stop().await;
    let log = killed.path().join("tape.sqlite-wal");
    let len = fs::metadata(&log).unwrap().len() as usize;
    let mut chance = Chance(0x3a1);
    for at in (0..FLIPS).map(|nth| nth * len / 2 / FLIPS) {
        let dir = copy(killed.path());
        flip(&dir.path().join("tape.sqlite-wal"), at, &mut chance);
        for error in [
            replay(dir.path()).unwrap_err(),
            start(config(dir.path())).await.unwrap_err(),
            replay(dir.path()).unwrap_err(),
        ] {
            assert_eq!(error.exit_code(), 14, "byte {at}: {error}");
            assert!(
                error.to_string().contains("tape.sqlite-wal, is damaged from byte"),
                "byte {at}: {error}"
            );
        }
    }
    assert!(replay(killed.path()).unwrap().0.1 >= MERGES as u64);
}
