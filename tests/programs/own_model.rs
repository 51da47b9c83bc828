//! End-to-end test of a model other than the built-in decoder, as described in `docs/developer.md`. The syncer serves
//! its file, and the learners are processes of the example `custom_model`.
#![cfg(unix)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use archipelago_tests::processes::cargo;
use archipelago_tests::processes::run;
use archipelago_tests::processes::{SyncerProcess, number, whole_machine};
use serde_json::Value;

/// Builds the example with the features that the tests use for all crates; otherwise the whole SDK would be compiled
/// again.
fn example() -> PathBuf {
    let test = std::env::current_exe().expect("this test has a path");
    let folder = test.ancestors().nth(2).expect("target/PROFILE/deps/test");
    let mut cargo = cargo();
    cargo.args(["build", "--quiet", "--workspace", "--example", "custom_model"]);
    if folder.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo can be started").success(), "the example cannot be built");
    folder.join("examples/custom_model")
}

/// Returns the losses that a learner printed, in order, and the number of its merged updates.
fn printed_results(learner: &Output) -> (Vec<f32>, u64) {
    let said = String::from_utf8_lossy(&learner.stdout);
    assert!(learner.status.success(), "{said}\n{}", String::from_utf8_lossy(&learner.stderr));
    let losses = said.lines().filter_map(|line| line.split_once(", loss ")?.1.parse::<f32>().ok());
    let merged = said.lines().filter_map(|line| line.strip_suffix(" updates merged")?.parse::<u64>().ok());
    (losses.collect(), merged.sum())
}

fn words(said: &Output) -> String {
    String::from_utf8_lossy(&said.stderr).into_owned()
}

/// Goal: two learners made from the docs train a custom model in one run: updates of both are merged, and the loss
/// falls. The run resumes after a restart, and its model is exported under its own names.
#[test]
fn a_custom_model_is_trained_over_the_network() {
    let _machine = whole_machine();
    let example = example();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bigrams.safetensors");
    assert!(Command::new(&example).arg("--write").arg(&file).status().unwrap().success());

    let flags = ["--preset", "tiny", "--lr", "20", "--corpus-bytes", "512KiB", "--learners-start", "2"];
    let own = ["--params", file.to_str().unwrap(), "--architecture", "bigrams", "--evaluator", "bigrams"];
    let flags = [&flags[..], &own, &["--eval-every", "1s", "--stop-at-tokens", "3000000"]].concat();
    let mut syncer = SyncerProcess::start(&flags);
    // Before any training, the run resumes from the folder alone, without the file.
    syncer.kill();
    std::fs::remove_file(&file).unwrap();
    syncer.restart_with(&["--learners-start", "2"]);

    let join = || {
        let mut learner = Command::new(&example);
        learner.arg(syncer.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
        learner.spawn().unwrap()
    };
    let learners = [join(), join()];
    // The built-in decoder is another model; its learner reports that and leaves.
    let mut stranger = syncer.learner("decoder");
    assert!(!stranger.wait().success());
    // The initial parameters give equal scores to all bytes.
    let untrained = 256_f32.ln();
    for learner in learners {
        let (losses, merged) = printed_results(&learner.wait_with_output().unwrap());
        assert!(losses.last().is_some_and(|last| *last < untrained - 1.5), "{losses:?}");
        assert!(merged > 0, "nothing of it was merged");
    }
    let status = syncer.interrupt();
    assert!(status["finished"] == true && number(&status, "tokensMerged") >= 3_000_000.0, "{status:#}");
    measured(&syncer.folder(), &status);

    exported(&syncer.folder(), &folder.path().join("out"));
    assert!(syncer.replay()["merges"].as_u64().is_some_and(|merges| merges > 0));
}

/// Checks that the series of the run in `dir` has held-out losses, attributed to one learner, that fall far below those
/// of guessing.
fn measured(dir: &Path, status: &Value) {
    let told = run(&["history".as_ref(), "--json".as_ref(), "--dir".as_ref(), dir.as_ref()]);
    let series: Value = serde_json::from_slice(&told.stdout).expect("it is JSON");
    let losses = series["evaluations"].as_array().expect("a list");
    let last = losses.last().unwrap_or_else(|| panic!("none: {series:#}"));
    let (loss, guessing) = (number(last, "loss"), f64::from(256_f32.ln()));
    assert!(0.5 < loss && loss < guessing - 1.5, "{losses:#?}");
    let names = status["learners"].as_array().expect("a list").iter();
    let by: Vec<&Value> = names.filter(|one| one["name"] == "bigrams").map(|one| &one["learner"]).collect();
    assert!(losses.iter().all(|loss| by.contains(&&loss["measuredBy"])), "{by:?} {losses:#?}");
    assert_eq!(status["valMeasuredBy"], last["measuredBy"]);
}

/// Exports the run in `dir` to `out`, and checks that commands that need the decoder explain why they cannot run.
fn exported(dir: &Path, out: &Path) {
    let verb = |words: &[&OsStr]| run(&[words, &["--dir".as_ref(), dir.as_ref()]].concat());
    let export = verb(&["export".as_ref(), "--out".as_ref(), out.as_ref()]);
    assert!(export.status.success(), "{}", words(&export));
    let bytes = std::fs::read(out.join("model.safetensors")).expect("it is there");
    let header_bytes = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header_bytes]).expect("it is JSON");
    assert_eq!(header["bigrams"]["shape"], serde_json::json!([256, 256]), "{header}");
    assert!(bytes[8 + header_bytes..].iter().any(|&byte| byte != 0), "it was trained");
    assert!(!out.join("config.json").exists(), "it is no Llama");
    assert!(out.join("report.html").exists());
    for refused in [&["sample".as_ref()][..], &["replay".as_ref(), "--losses".as_ref()]] {
        let said = verb(refused);
        assert_eq!(said.status.code(), Some(3), "{}", words(&said));
        assert!(words(&said).contains("not the built-in decoder"), "{}", words(&said));
    }
}
