//! Thousands of light learners in one process, for `cargo xtask bench scale`. Each is a real member of a run with its
//! own socket, and does everything except computing. A step is a wait. An update is noise of an honest length, coded by
//! the run's codec.

#![expect(clippy::print_stdout, reason = "a command line tool answers on standard output")]

mod again;
mod islet;
mod sea;
mod socket;
mod tally;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use tokio::task::LocalSet;
use tokio::time::{Instant, interval, sleep};

use islet::Islet;
use sea::Sea;

/// Interval of the lines of figures.
const SAY_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of learners that join at the same time.
const JOINING_MAX: usize = 128;
/// Polling interval for the next learner to join.
const LOOK: Duration = Duration::from_millis(2);

/// Light learners, and what became of their answers.
#[derive(Parser)]
enum Verb {
    /// Puts light learners on a run, until it is ended.
    Crowd(Args),
    /// Makes the merges of a cluster again, of which such learners were all there were.
    Again(again::Args),
}

#[derive(clap::Args)]
struct Args {
    /// Where the syncer is.
    #[arg(long)]
    address: SocketAddr,
    /// How many.
    #[arg(long)]
    learners: u32,
    /// The number of the first: other processes have those before it.
    #[arg(long, default_value_t = 0)]
    first: u32,
    /// Milliseconds that a step takes.
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
        Verb::Crowd(args) => LocalSet::new().block_on(&runtime, crowd(args)),
        Verb::Again(args) => match runtime.block_on(again::run(args)) {
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
async fn crowd(args: Args) {
    let sea = Rc::new(Sea::new(args.address, Duration::from_millis(args.step_ms)));
    let bring = Rc::clone(&sea);
    tokio::task::spawn_local(async move {
        for number in args.first..args.first.saturating_add(args.learners) {
            while bring.tally.borrow().joining() >= JOINING_MAX {
                sleep(LOOK).await;
            }
            bring.tally.borrow_mut().set_out();
            tokio::task::spawn_local(Islet::new(Rc::clone(&bring), number).live());
        }
    });
    let mut tick = interval(SAY_EVERY);
    loop {
        tick.tick().await;
        println!("{}", sea.tally.borrow_mut().line(Instant::now()));
    }
}
