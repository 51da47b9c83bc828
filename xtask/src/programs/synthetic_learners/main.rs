//! Thousands of synthetic learners in one process, for `cargo xtask bench scale`. Each is a real member of a run with
//! its own socket, and does everything except computing. A step is a wait. An update is noise of an honest length,
//! coded by the run's codec.

#![expect(clippy::print_stdout, reason = "a command line tool answers on standard output")]

mod learner;
mod pool;
mod replay;
mod socket;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use tokio::task::LocalSet;
use tokio::time::{Instant, interval, sleep};

use learner::SyntheticLearner;
use pool::LearnerPool;

/// Interval of the lines of figures.
const PRINT_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of learners that join at the same time.
const JOINING_MAX: usize = 128;
/// Polling interval for the next learner to join.
const POLL: Duration = Duration::from_millis(2);

/// Synthetic learners, which wait instead of computing.
#[derive(Parser)]
enum Verb {
    /// Takes part in a run with synthetic learners, until it ends.
    Run(Args),
    /// Recomputes the merges of a cluster that had only such learners, and compares them with the stored states.
    Replay(replay::Args),
}

#[derive(clap::Args)]
struct Args {
    /// Address of the syncer.
    #[arg(long)]
    address: SocketAddr,
    /// Number of learners.
    #[arg(long)]
    learners: u32,
    /// Number of the first learner; other processes have the ones before it.
    #[arg(long, default_value_t = 0)]
    first: u32,
    /// Milliseconds of a step.
    #[arg(long)]
    step_ms: u64,
}

fn main() -> ExitCode {
    let verb = Verb::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    match verb {
        Verb::Run(args) => LocalSet::new().block_on(&runtime, run(args)),
        Verb::Replay(args) => match runtime.block_on(replay::run(args)) {
            Ok(counts) => println!("{counts}"),
            Err(reason) => {
                eprintln!("error: {reason}");
                return ExitCode::FAILURE;
            }
        },
    }
    ExitCode::SUCCESS
}

/// Starts the learners, a few at a time, and prints figures each second.
async fn run(args: Args) {
    let pool = Rc::new(LearnerPool::new(args.address, Duration::from_millis(args.step_ms)));
    let joiner = Rc::clone(&pool);
    tokio::task::spawn_local(async move {
        for number in args.first..args.first.saturating_add(args.learners) {
            while joiner.stats.borrow().joining() >= JOINING_MAX {
                sleep(POLL).await;
            }
            joiner.stats.borrow_mut().start_join();
            tokio::task::spawn_local(SyntheticLearner::new(Rc::clone(&joiner), number).live());
        }
    });
    let mut tick = interval(PRINT_EVERY);
    loop {
        tick.tick().await;
        println!("{}", pool.stats.borrow_mut().line(Instant::now()));
    }
}
