//! Long versions of tests: more seeds, crashes, days or joiners than in the stage `test`. They run only if `--only`
//! names them.

use super::Args;
use super::stages::call;
use crate::cargo::{cargo, root};
use crate::tools::program;
use crate::web;

/// Long test.
struct LongTest {
    /// Name of its stage.
    name: &'static str,
    /// Arguments of cargo; empty for a test in JavaScript.
    cargo: &'static [&'static str],
    /// Environment variable with the size or the seeds of the test, and its default value.
    size: (&'static str, &'static str),
}

/// Environment variable with the seeds of a test.
const SEEDS: &str = "ARCHIPELAGO_TEST_SEEDS";
/// Environment variable with the size of a test.
const COUNT: &str = "ARCHIPELAGO_TEST_COUNT";

const TESTS: &[LongTest] = &[
    LongTest {
        name: "swarm",
        cargo: &["-p", "archipelago-tests", "--test", "worlds", "swarm::"],
        size: (SEEDS, "0..10000"),
    },
    LongTest {
        name: "proofs",
        cargo: &["-p", "archipelago-tests", "--test", "worlds", "proofs::"],
        size: (SEEDS, "0..20"),
    },
    LongTest {
        name: "cluster-sim",
        cargo: &["-p", "archipelago-sim", "--lib", "cluster::tests::no_storm"],
        size: (SEEDS, "0..10000"),
    },
    LongTest {
        name: "crashes",
        cargo: &["-p", "archipelago-tests", "--test", "worlds", "crashes::"],
        size: (COUNT, "12000"),
    },
    LongTest {
        name: "week",
        cargo: &["-p", "archipelago-tests", "--test", "worlds", "week::"],
        size: (COUNT, "28"),
    },
    LongTest {
        name: "joiners",
        cargo: &["-p", "syncer-server", "--test", "server", "crowd"],
        size: (COUNT, "400"),
    },
    LongTest { name: "morals", cargo: &[], size: (SEEDS, "1..21") },
];

/// Returns true if `name` is a long test.
pub fn is_long(name: &str) -> bool {
    TESTS.iter().any(|test| test.name == name)
}

/// Runs the long test `name`, optimised, and shows its output.
///
/// # Errors
/// A message about the failure.
pub fn run(name: &str, args: &Args) -> Result<String, String> {
    let test =
        TESTS.iter().find(|test| test.name == name).ok_or_else(|| format!("unknown long test `{name}`"))?;
    let mut command = if test.cargo.is_empty() {
        web::lesson()?;
        let mut node = program("node");
        node.arg("--test").arg(root().join("web-demo/tests/morals.test.mjs"));
        node
    } else {
        let mut command = cargo(&["test", "--locked", "--release"]);
        command.args(test.cargo).args(["--", "--nocapture"]);
        command
    };
    command.env(test.size.0, test.size.1);
    args.apply(&mut command);
    call(command)
}
