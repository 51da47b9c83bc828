//! Tests of a changed byte in a run's folder: a replay or a start finds and names it, or it has no effect.

use std::fs;
use std::path::{Path, PathBuf};

use syncer_server::{ServeConfig, ServerError, Store, replayed, serve_and_tell};
use tokio::net::TcpListener;

use crate::init::{from_folder, goes_on};
use crate::replay::args;
use crate::support::{Learner, Server, config};

/// Changed bytes of each file, one at a time.
const FLIPS: usize = 12;
const MERGES: usize = 9;

/// Result of a folder. All figures follow from it and from the states of the fragments.
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

/// Replays the tape. Returns its result and the damaged snapshots.
fn replay(dir: &Path) -> Result<(Outcome, String), ServerError> {
    let found = replayed(&args(dir, None), |_| {})?;
    Ok(((found.last, found.merges, found.tokens_merged), found.damaged.join("\n")))
}

/// Starts the run and stops it at once. Returns its rounds, merged updates and merged tokens.
async fn start(config: ServeConfig) -> Result<Outcome, ServerError> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (tell, opened) = tokio::sync::oneshot::channel();
    let stop = async { _ = opened.await };
    let core = serve_and_tell(listener, config, move || _ = tell.send(()), stop).await?.core;
    Ok((core.rounds, core.fates.merged, core.tokens_merged))
}

/// Returns the files below `dir` with data of the run, by their relative names.
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

/// Returns the first byte of a file, the last one, and some in between.
fn places(path: &Path, chance: &mut Chance) -> Vec<usize> {
    let len = fs::metadata(path).unwrap().len();
    let mut places: Vec<usize> = (2..FLIPS).map(|_| chance.below(len) as usize).collect();
    places.extend([0, len as usize - 1]);
    places
}

/// Changes bytes of the file `name` of the run in `whole`, which `config` resumes. Returns the number of detected
/// changes.
async fn found(whole: &Path, name: &Path, config: impl Fn(&Path) -> ServeConfig) -> usize {
    let shown = name.file_name().unwrap().to_str().unwrap();
    let reference = copy(whole);
    let expected = replay(reference.path()).unwrap();
    let goes_on = start(config(reference.path())).await.unwrap();
    let states = |dir: &Path| Store::look(dir).begun().and_then(|run| Store::look(dir).latest(run.run));
    let stands = states(reference.path()).unwrap().unwrap().states;
    let (mut chance, mut count) = (Chance(0xf11b), 0);
    for at in places(&whole.join(name), &mut chance) {
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
    let mut learner = Learner::join(&server, 1).await;
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
        let count = found(dir.path(), &name, config).await;
        let least = match name.to_str().unwrap() {
            // SQLite files have unused space, and some changes to JSON keep its meaning.
            "tape.sqlite" | "guests.sqlite" => 1,
            "run.json" | "held-out.json" => FLIPS - 2,
            _ => FLIPS,
        };
        assert!(count >= least, "{}: only {count} of {FLIPS} were found", name.display());
    }
}

/// Goal: the same for the initial parameters of a run that began with a folder.
#[tokio::test]
async fn a_changed_byte_of_the_first_parameters_is_named() {
    let dir = tempfile::tempdir().unwrap();
    train(from_folder(dir.path())).await.stop().await;
    let name = Path::new("initial.safetensors");
    assert_eq!(found(dir.path(), name, goes_on).await, FLIPS);
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
