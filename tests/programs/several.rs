//! Test of several runs on one server: actions on one run do not affect the others.
#![cfg(unix)]

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use archipelago_tests::processes;
use archipelago_tests::processes::{SyncerProcess, number, whole_machine};
use serde_json::Value;

/// Settings of a small run without loss measurements.
const SETTINGS: &str = r#"
preset = "tiny"
corpus-bytes = "256KiB"
sync-every = 8
fragments = 4
no-eval = true
"#;

/// Returns the figures of the run `name` in a list, or null if it has no figures.
fn figures(list: &Value, name: &str) -> Value {
    view(list, name)["figures"].clone()
}

fn view(list: &Value, name: &str) -> Value {
    let runs = list["runs"].as_array().into_iter().flatten();
    runs.into_iter().find(|run| run["name"] == name).cloned().unwrap_or_default()
}

fn merged(list: &Value, name: &str) -> f64 {
    number(&figures(list, name), "tokensMerged")
}

/// Runs `syncer-server run` with the verb `what` for the run `name`. Returns the program's output.
fn order(syncer: &SyncerProcess, what: &str, name: &str, flags: &[&OsStr]) -> String {
    let url = format!("http://{}", syncer.address);
    let runs = syncer.folder();
    let words: [&OsStr; 7] = [
        "run".as_ref(),
        what.as_ref(),
        name.as_ref(),
        "--url".as_ref(),
        url.as_ref(),
        "--runs".as_ref(),
        runs.as_ref(),
    ];
    let output = processes::run(&[&words[..], flags].concat());
    assert!(output.status.success(), "{what} {name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn settings(folder: &Path) -> std::path::PathBuf {
    let file = folder.join("new.toml");
    fs::write(&file, SETTINGS).expect("a file");
    file
}

#[test]
fn actions_on_one_run_do_not_affect_another() {
    let _alone = whole_machine();
    let mut syncer = SyncerProcess::start_several(&[]);
    let file = settings(&syncer.folder());
    for name in ["a", "b", "c"] {
        let said = order(&syncer, "create", name, &["--settings".as_ref(), file.as_ref()]);
        assert!(said.starts_with(&format!("the run {name} is open: http://")), "{said}");
    }
    let [mut in_a, mut in_b, mut in_c] =
        ["a", "b", "c"].map(|name| syncer.learner_at(&format!("/runs/{name}"), &format!("in-{name}")));
    let all = ["a", "b", "c"];
    syncer.wait_until("all three merge", |list| all.iter().all(|name| merged(list, name) > 20_000.0));

    // A run is deleted: its learner is released, and its folder is removed.
    order(&syncer, "delete", "a", &["--yes".as_ref()]);
    assert!(in_a.wait().success(), "whose run is deleted goes home in order");
    assert!(!syncer.folder().join("a").exists());
    // The server is killed, and learners of the third run notice only the restart.
    let before = syncer
        .wait_until("the others go on", |list| view(list, "a").is_null() && merged(list, "c") > 40_000.0);
    syncer.kill();
    syncer.restart();
    let after = syncer.wait_until("both are there again", |list| {
        ["b", "c"].iter().all(|name| merged(list, name) >= merged(&before, name))
    });
    assert!(view(&after, "a").is_null());
    syncer.wait_until("both go on", |list| {
        ["b", "c"].iter().all(|name| merged(list, name) > merged(&after, name) + 10_000.0)
    });
    // A run is archived and started again, while the third one trains on.
    order(&syncer, "archive", "b", &[]);
    assert!(in_b.wait().success(), "whose run is put away goes home in order");
    let away = syncer.wait_until("it is away", |list| view(list, "b")["state"] == "archived");
    syncer.wait_until("the third goes on", |list| merged(list, "c") > merged(&away, "c") + 10_000.0);
    order(&syncer, "start", "b", &[]);
    let back = syncer.wait_until("it is back", |list| view(list, "b")["state"] == "open");
    assert!(merged(&back, "b") >= merged(&after, "b"), "nothing of it is lost");
    let last = syncer.wait_until("the third goes on", |list| merged(list, "c") > merged(&back, "c"));
    // The run contains only the training of its one learner, and nearly all of it was merged.
    assert!(number(&figures(&last, "c"), "participation") > 0.8, "{last}");
    assert_eq!(number(&figures(&last, "c"), "learnersTotal"), 1.0);
    assert!(in_c.interrupt().0.success());
    syncer.kill();
    // Each run has its own tape.
    for name in ["b", "c"] {
        let found = processes::replay(&syncer.folder().join(name));
        assert!(number(&found, "merges") > 0.0, "{name}: {found}");
    }
}
