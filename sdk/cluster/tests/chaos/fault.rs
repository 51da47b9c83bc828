//! What goes wrong, by a seed.

use std::time::Duration;

use archipelago_core::rng::Rng;
use rustix::process::{Pid, Signal, kill_process};

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An owner's process ends, and another one begins after a while.
    KillOwner(usize),
    /// An owner's process does nothing for a while.
    PauseOwner(usize),
    KillGateway(usize),
    PauseGateway(usize),
    /// A server of NATS ends, and begins again with what is on its disk.
    KillNode(usize),
    PauseNode(usize),
    /// The server that leads the tape of this fragment ends.
    KillLeader(usize),
    /// The server that leads the tape of this fragment does nothing for a while.
    PauseLeader(usize),
    /// The server that speaks S3 does nothing for a while.
    PauseStore,
}

impl Fault {
    /// The next one: how long nothing happens before it, what it is, and how long it lasts.
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

/// Has a process do nothing from now on.
pub fn pause(process: u32) {
    signal(process, Signal::STOP);
}

/// Has a process go on as if nothing had been.
pub fn resume(process: u32) {
    signal(process, Signal::CONT);
}

fn signal(process: u32, signal: Signal) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw).expect("a process has a number");
    // One that has ended hears nothing.
    let _ = kill_process(process, signal);
}
