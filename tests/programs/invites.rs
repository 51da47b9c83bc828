//! Tests of admission with real programs: moved keys, personal invites, bans, a rotated token.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use archipelago_tests::processes::program;
use archipelago_tests::processes::{SyncerProcess, number, of_learner, whole_machine};
use archipelago_tests::socket::order;
use serde_json::Value;

const SMALL: [&str; 6] = ["--preset", "tiny", "--sync-every", "8", "--corpus-bytes", "512KiB"];

/// Returns true if the learner called `name` is live.
fn is_live(status: &Value, name: &str) -> bool {
    let learners = status["learners"].as_array().map(Vec::as_slice).unwrap_or_default();
    learners.iter().any(|learner| learner["name"] == name && learner["live"] == true)
}

/// Runs a program with `input`. Returns its output if it succeeds.
fn run(name: &str, arguments: &[&str], input: &str) -> Result<String, Output> {
    let mut child = Command::new(program(name))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() { Ok(String::from_utf8(output.stdout.clone()).unwrap()) } else { Err(output) }
}

fn json(name: &str, arguments: &[&str]) -> Value {
    serde_json::from_str(&run(name, &[arguments, &["--json"]].concat(), "").unwrap()).unwrap()
}

/// Goal: an invite is valid once, even if the syncer is killed; the account moves with the key; a ban ends access.
#[test]
fn an_invite_is_used_once_a_key_moves_and_a_ban_holds() {
    let _machine = whole_machine();
    let mut syncer = SyncerProcess::start(&[&SMALL[..], &["--invite", "personal"]].concat());
    let folder = syncer.folder();
    let dir = folder.to_str().unwrap();
    let made =
        json("syncer-server", &["invite", "create", "--dir", dir, "--note", "anne", "--expires", "1d"]);
    let link = format!("/#invite={}", made["invite"].as_str().unwrap());
    let mut anne = syncer.learner_at(&link, "anne");
    // A status may be ahead of the disk by the merges in progress, which a kill may revert, but not by eight rounds.
    syncer.wait_until("anne is merged", |status| {
        of_learner(status, "anne", "tokensMerged") > 0.0 && number(status, "rounds") >= 8.0
    });
    // After an immediate kill, the syncer still knows anne, and the invite is used up.
    syncer.kill();
    syncer.restart();
    let before = syncer.wait_until("anne is back", |status| is_live(status, "anne"));
    let before = of_learner(&before, "anne", "tokensMerged");
    assert!(before > 0.0, "the account is there");
    let mut bert = syncer.learner_at(&link, "bert");
    assert_eq!(bert.wait().code(), Some(10), "the invite is used up");
    let listed = json("syncer-server", &["invite", "list", "--dir", dir]);
    assert_eq!((&listed[0]["used"], &listed[0]["uses"]), (&1.into(), &1.into()), "{listed}");

    // The key on another machine, without an invite, is the same learner.
    anne.interrupt();
    let from = folder.parent().unwrap().join("anne.identity");
    let to = folder.parent().unwrap().join("carl.identity");
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    let line = run("native-learner", &["identity", "export", "--identity", from], "").unwrap();
    fs::remove_file(to).unwrap_or_default();
    run("native-learner", &["identity", "import", "--identity", to], &line).unwrap();
    let refused = run("native-learner", &["identity", "import", "--identity", to], &line).unwrap_err();
    assert_eq!(refused.status.code(), Some(7));
    let mut carl = syncer.learner("carl");
    let status =
        syncer.wait_until("carl goes on", |status| of_learner(status, "carl", "tokensMerged") > before);
    assert_eq!(number(&status, "learnersTotal"), 1.0, "it is the same learner: {status:#}");

    let shown = json("native-learner", &["identity", "show", "--identity", to]);
    let key = shown["fingerprint"].as_str().unwrap();
    run("syncer-server", &["ban", "add", "--key", key, "--dir", dir], "").unwrap();
    assert_eq!(carl.wait().code(), Some(5), "it is told that it is banned");
    let mut again = syncer.learner("carl");
    assert_eq!(again.wait().code(), Some(5));
    run("syncer-server", &["ban", "lift", "--key", key, "--dir", dir], "").unwrap();
    let _carl = syncer.learner("carl");
    syncer.wait_until("carl is back", |status| is_live(status, "carl"));
}

/// Goal: a rotated token is no longer valid.
#[test]
fn a_rotated_token_is_invalid() {
    let _machine = whole_machine();
    let syncer = SyncerProcess::start(&SMALL);
    let folder = syncer.folder();
    let token = || fs::read_to_string(folder.join("admin.token")).unwrap().trim().to_owned();
    let order = |token: &str| order(syncer.address, "/v1/admin/pause", token).unwrap();
    let before = token();
    let said = run("syncer-server", &["token", "rotate", "--dir", folder.to_str().unwrap()], "").unwrap();
    let after = token();
    assert!(!said.contains(&after) && !said.contains(&before), "{said}");
    assert_eq!((order(&before), order(&after)), (401, 202));
    let log = fs::read_to_string(folder.parent().unwrap().join("log")).unwrap();
    assert!(!log.contains(&after) && !log.contains(&before), "no token is in the log");
}
