//! A cluster on real servers: three of NATS and one that speaks S3, in an environment of Python's below `target`.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use super::python::Environment;
use crate::cargo::{TEST_PROGRAMS, cargo, root};
use crate::web::call;

/// The crate, with what it has of servers.
const CRATE: [&str; 5] = ["--locked", "-p", "archipelago-cluster", "--features", "nats-s3"];
/// The programs, and what starts them together.
const MACHINES: [&str; 5] = ["--locked", "-p", "archipelago-tests", "--features", "cluster"];
/// The servers.
const SERVERS: &str = "sdk/cluster/tests/requirements.txt";
/// The settings of one, as people are given them.
const SETTINGS: &str = "syncer-server/deploy/cluster/nats.conf";

/// Lints and tests what is behind the feature, if `CLUSTER_TESTS=yes` asks for it. `CLUSTER_FAULTS` and `CLUSTER_SEED`
/// say how many faults the storm has, a dozen if nothing is said, and which.
///
/// # Errors
/// A sentence: what failed.
pub fn test() -> Result<String, String> {
    if env::var("CLUSTER_TESTS").map_or(true, |value| value != "yes") {
        return Ok("left out: CLUSTER_TESTS=yes adds it".to_owned());
    }
    let bin = servers()?;
    let mut lint = cargo(&["clippy", "--all-targets"]);
    lint.args(CRATE).args(["--", "-D", "warnings"]);
    call(&mut lint)?;
    let mut settings = Command::new(bin.join("nats-server"));
    settings.args(["-t", "-c"]).arg(root().join(SETTINGS)).env("NATS_PASSWORD", "secret");
    call(&mut settings)?;
    let mut test = cargo(&["test"]);
    test.args(CRATE).env("CLUSTER_BIN", &bin);
    // Each test starts servers of its own.
    test.env("RUST_TEST_THREADS", "2");
    call(&mut test)?;
    let mut build = cargo(&["build"]);
    build.args(TEST_PROGRAMS).args(["--features", "syncer-server/cluster"]);
    call(&mut build)?;
    let mut machines = cargo(&["test", "--test", "machines"]);
    machines.args(MACHINES).env("CLUSTER_BIN", bin);
    call(&mut machines)?;
    Ok(String::new())
}

/// The folder of the servers' programs: `nats-server` and `moto_server`, which pip fetches once.
///
/// # Errors
/// A sentence: there is no Python, or nothing could be fetched.
pub fn servers() -> Result<PathBuf, String> {
    super::python::setup()?;
    let environment = Environment::make("cluster", false)?;
    environment.install(&["-r", &root().join(SERVERS).to_string_lossy()])?;
    let server = environment.program("nats-server");
    Ok(server.parent().ok_or("the environment has no folder of programs")?.to_owned())
}
