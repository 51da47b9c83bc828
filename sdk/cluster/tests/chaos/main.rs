//! A cluster of real processes and servers that are killed and stopped. Then all receipts and notices are compared with
//! the tape. `CLUSTER_TESTS=yes` enables it. `CLUSTER_FAULTS` is the number of faults, and `CLUSTER_SEED` selects them.
//!
//! Owners and gateways are this program, started again with a role. Learners run here, and reach gateways over TCP.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test that is a program of its own")]

mod fault;
mod meter;
mod note;
mod role;
mod storm;
#[path = "../support/mod.rs"]
mod support;

use std::env;
use std::process::ExitCode;

use tokio::runtime::Runtime;

/// Number of faults of the short run.
const FAULTS: u64 = 12;

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().unwrap_or_else(|_| panic!("{name} is no number")))
}

fn main() -> ExitCode {
    let runtime = Runtime::new().expect("a runtime");
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [name, orders] = &arguments[..]
        && name == role::FLAG
    {
        runtime.block_on(role::play(serde_json::from_str(orders).expect("orders of this program")));
        return ExitCode::SUCCESS;
    }
    let Some(bin) = support::servers::wanted() else { return ExitCode::SUCCESS };
    let (seed, faults) = (number("CLUSTER_SEED", 1), number("CLUSTER_FAULTS", FAULTS));
    match runtime.block_on(storm::run(&bin, seed, faults)) {
        Ok(figures) => {
            println!("{figures}");
            ExitCode::SUCCESS
        }
        Err(broken) => {
            eprintln!("seed {seed}, {faults} faults: {broken}");
            ExitCode::FAILURE
        }
    }
}
