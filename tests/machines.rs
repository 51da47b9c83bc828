//! End-to-end test of a run on several machines: owner and gateway processes over NATS and a folder, and real learners.
//! Each is killed in turn, and the others go on.
#![cfg(unix)]

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use archipelago_test_servers::{ClusterServers, ServerProcess, Start};
use archipelago_tests::processes::program;
use archipelago_tests::processes::{SMALL_RUN, SyncerProcess, number, of_learner, whole_machine};
use archipelago_tests::small_disk::{self, SmallDisk};
use archipelago_tests::socket::{get_bytes, order};
use serde_json::Value;
use tempfile::TempDir;

/// Services that connect the processes.
struct Between {
    folder: TempDir,
    bus: String,
    _nats: ServerProcess,
}

impl Between {
    fn start() -> Self {
        let bin =
            std::env::var_os("ARCHIPELAGO_TEST_SERVERS").expect("set by `cargo xtask test --only cluster`");
        let folder = tempfile::tempdir().expect("a folder");
        let crew =
            ClusterServers::lay(&PathBuf::from(bin), folder.path(), 1, 1 << 30).expect("a place for it");
        let nats = ServerProcess::start(&crew.node(0)).expect("a server of NATS");
        crew.begin_nodes().expect("it answers");
        Self { folder, bus: crew.nats().join(","), _nats: nats }
    }

    /// Returns the flags of a process with this role.
    fn flags(&self, role: &str) -> Vec<String> {
        self.flags_with(role, &self.folder.path().join("blobs"))
    }

    /// Returns the flags of a process with this role that stores states in the folder `blobs`.
    fn flags_with(&self, role: &str, blobs: &Path) -> Vec<String> {
        let blobs = format!("file://{}", blobs.display());
        let part = ["--role", role, "--bus", &self.bus, "--blobs", &blobs, "--cluster", "test"];
        SMALL_RUN.iter().copied().chain(part).map(str::to_owned).collect()
    }

    fn owner(&self, name: &str) -> ServerProcess {
        let flags = ["serve", "--json", "--exit-when-finished", "--dir"];
        let mut args: Vec<OsString> = flags.map(OsString::from).to_vec();
        args.push(self.folder.path().join(name).into());
        args.extend(self.flags("owner").into_iter().map(OsString::from));
        let log = self.folder.path().join(format!("{name}-said"));
        ServerProcess::start(&Start { program: program("syncer-server"), args, log }).expect("an owner")
    }

    fn gateway(&self) -> SyncerProcess {
        let flags = self.flags("gateway");
        SyncerProcess::start(&flags.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

fn rounds_after(syncer: &mut SyncerProcess, what: &str) -> Value {
    let before = number(&syncer.try_status().expect("it answers"), "rounds");
    syncer.wait_until(what, |status| number(status, "rounds") >= before + 16.0)
}

/// Goal: learners of two gateways train one model. The other owner process takes over from a killed one. A gateway that
/// is killed and restarted knows all merges, and its learner returns as the same one. At the end both gateways have the
/// same parameters to the bit.
#[test]
fn processes_of_one_run_are_killed_and_the_others_go_on() {
    let _machine = whole_machine();
    let between = Between::start();
    let owner = between.owner("first");
    let (mut one, mut other) = (between.gateway(), between.gateway());
    let (mut anne, mut bert) = (one.learner("anne"), other.learner("bert"));
    let status = one.wait_until("both are merged", |status| number(status, "rounds") >= 16.0);
    assert!(
        (number(&status, "learnersTotal") - 2.0).abs() < 0.5,
        "it knows of the other's learner: {status:#}"
    );

    let mut next = between.owner("second");
    drop(owner);
    rounds_after(&mut one, "the other owner leads");

    let seen = other.wait_until("bert is merged", |status| of_learner(status, "bert", "tokensMerged") > 0.0);
    other.kill();
    rounds_after(&mut one, "the other gateway goes on");
    other.restart();
    let back = other.wait_until("bert is back and merged", |status| {
        of_learner(status, "bert", "tokensMerged") > of_learner(&seen, "bert", "tokensMerged")
    });
    assert!(number(&back, "rounds") > number(&seen, "rounds"), "it knows what was merged before: {back:#}");
    assert!((number(&back, "learnersTotal") - 2.0).abs() < 0.5, "he is the same: {back:#}");

    // An order at one gateway applies at the other one, and ends the run for all.
    let token = fs::read_to_string(other.folder().join("admin.token")).expect("a token");
    assert_eq!(order(other.address, "/v1/admin/pause", token.trim()).expect("an answer"), 202);
    one.wait_until("it is held", |status| status["paused"] == true);
    assert_eq!(order(other.address, "/v1/admin/finish", token.trim()).expect("an answer"), 202);
    for learner in [&mut anne, &mut bert] {
        assert!(learner.wait().success(), "it is sent home");
    }
    assert!(next.wait().expect("it ends").success(), "there is nothing left to lead");
    let last = one.wait_until("it is complete", |status| status["finished"] == true);
    let same = other.wait_until("so it is at the other", |status| status["finished"] == true);
    assert_eq!(number(&last, "tokensMerged"), number(&same, "tokensMerged"));
    let run = last["run"].as_str().expect("a run");
    for fragment in 0..4 {
        let path = format!("/v1/runs/{run}/fragments/{fragment}/0");
        let [ours, theirs] = [&one, &other].map(|gateway| get_bytes(gateway.address, &path).expect("Θ̂"));
        assert!(ours.len() > 1_000 && ours == theirs, "fragment {fragment}");
        let states = between.folder.path().join(format!("blobs/test/state/{fragment}"));
        let kept = fs::read_dir(states).expect("a folder").count();
        assert!((1..=20).contains(&kept), "{kept} states of fragment {fragment} are left of some hundred");
    }
}

/// Goal: an unavailable service is reported in a sentence.
#[test]
fn a_missing_service_is_one_sentence() {
    let said = |flags: &[&str]| {
        let place = tempfile::tempdir().expect("a folder");
        let serve = Command::new(program("syncer-server"))
            .args(["serve", "--preset", "tiny", "--role", "owner", "--dir"])
            .arg(place.path().join("run"))
            .args(flags)
            .output()
            .expect("it starts");
        (serve.status.code(), String::from_utf8_lossy(&serve.stderr).into_owned())
    };
    let here = Path::new("/nowhere/at/all");
    let blobs = format!("file://{}", here.display());
    let (code, words) = said(&["--bus", "nats://127.0.0.1:1", "--blobs", &blobs]);
    assert!(code == Some(23) && words.contains("does not answer"), "{code:?} {words}");
    let (code, words) = said(&["--bus", "nonsense://x", "--blobs", &blobs]);
    assert!(code == Some(23), "{code:?} {words}");
}

/// Returns the exit code and the output of `doctor` for a process with these flags.
fn doctor(mut command: Command, flags: &[String]) -> (Option<i32>, String) {
    let said = command.args(["doctor", "--dir", "/nowhere/at/all"]).args(flags).output().expect("it starts");
    (said.status.code(), String::from_utf8_lossy(&said.stdout).into_owned())
}

/// Goal: `doctor` reports on the shared services, before a run and during it, and creates nothing there.
#[test]
fn doctor_checks_shared_services_without_changing_them() {
    let between = Between::start();
    let ask = |flags: &[String]| doctor(Command::new(program("syncer-server")), flags);
    let flags = between.flags("owner");
    let with = |flag: &str, value: &str| [&flags[..], &[flag.to_owned(), value.to_owned()]].concat();
    for _ in 0..2 {
        let (_, said) = ask(&flags);
        for part in [
            "ok   bus",
            "with JetStream",
            "ok   streams  this process may create them",
            "the prefix is empty",
            "ok   clocks",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!between.folder.path().join("blobs").exists(), "it leaves nothing behind");
    }
    let _owner = between.owner("first");
    let mut said = String::new();
    for _ in 0..600 {
        said = ask(&flags).1;
        if said.contains("ok   prefix   this run exists") {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(said.contains("ok   prefix   this run exists"), "{said}");
    let (code, said) = ask(&with("--seed", "77"));
    assert!(
        code == Some(17) && said.contains("FAIL prefix   the streams of this prefix belongs"),
        "{code:?} {said}"
    );
    let (code, said) = ask(&with("--data", "no-such-file"));
    assert!(code == Some(17) && said.contains("it cannot be compared with this one"), "{code:?} {said}");
    let away = flags.iter().map(|flag| flag.replace(&between.bus, "nats://127.0.0.1:1")).collect::<Vec<_>>();
    let (code, said) = ask(&away);
    assert!(code == Some(17) && said.contains("FAIL bus      NATS at 127.0.0.1:1 does not answer"), "{said}");
}

/// Goal: a folder that cannot be written is found before a run needs it.
#[test]
fn doctor_finds_full_and_read_only_folders() {
    if small_disk::is_left_out() {
        return;
    }
    let between = Between::start();
    let place = tempfile::tempdir().expect("a folder");
    let disk = SmallDisk::mount(&place.path().join("disk"), 1 << 20);
    let flags = between.flags_with("owner", &place.path().join("disk/blobs"));
    let ask = || doctor(disk.inside(program("syncer-server")), &flags);
    let (_, said) = ask();
    assert!(said.contains("ok   storage"), "{said}");
    disk.set_read_only(true);
    let (code, said) = ask();
    assert!(code == Some(17) && said.contains("FAIL storage") && said.contains("is read-only"), "{said}");
    disk.set_read_only(false);
    disk.fill();
    let (code, said) = ask();
    assert!(code == Some(17) && said.contains("FAIL storage") && said.contains("is full"), "{said}");
}
