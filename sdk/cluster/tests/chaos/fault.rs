//! Random faults from a seed.

use std::time::Duration;

use archipelago_core::rng::Rng;
use rustix::process::{Pid, Signal, kill_process};

/// Fault of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An owner's process is killed, and another one starts after a while.
    KillOwner(usize),
    /// An owner's process is stopped for a while.
    PauseOwner(usize),
    KillGateway(usize),
    PauseGateway(usize),
    /// A NATS server is killed, and restarts with the data on its disk.
    KillNode(usize),
    PauseNode(usize),
    /// The server that leads the tape of this fragment is killed.
    KillLeader(usize),
    /// The server that leads the tape of this fragment is stopped for a while.
    PauseLeader(usize),
    /// The S3 server is stopped for a while.
    PauseStore,
}

impl Fault {
    /// Returns the quiet time before the next fault, the fault, and its duration.
    pub fn next(rng: &mut Rng, of: usize) -> (Duration, Self, Duration) {
        let at = rng.below(of as u32) as usize;
        let fault = match rng.below(13) {
            0 | 1 => Self::KillOwner(at),
            2 | 3 => Self::PauseOwner(at),
            4 => Self::KillGateway(at),
            5 => Self::PauseGateway(at),
            6 => Self::KillNode(at),
            7 => Self::PauseNode(at),
            8 | 9 => Self::KillLeader(at),
            10 | 11 => Self::PauseLeader(at),
            _ => Self::PauseStore,
        };
        let is_pause = matches!(
            fault,
            Self::PauseOwner(_) | Self::PauseGateway(_) | Self::PauseNode(_) | Self::PauseLeader(_)
        );
        let (least, more) = if is_pause { (2_000, 4_000) } else { (500, 2_500) };
        let ms =
            |least: u32, more: u32, rng: &mut Rng| Duration::from_millis((least + rng.below(more)).into());
        (ms(500, 3_500, rng), fault, ms(least, more, rng))
    }
}

/// Stops a process.
pub fn pause(process: u32) {
    signal(process, Signal::STOP);
}

/// Continues a stopped process.
pub fn resume(process: u32) {
    signal(process, Signal::CONT);
}

fn signal(process: u32, signal: Signal) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process has a number");
    // The process may have ended already.
    let _ = kill_process(process, signal);
}
