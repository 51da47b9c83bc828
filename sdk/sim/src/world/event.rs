//! Scheduled events of a world, their dispatch, and their delay by faults.

use std::sync::Arc;

use archipelago_core::diloco::syncer::Input;
use archipelago_core::diloco::{MergeFailure, MergeOutcome};
use archipelago_core::wire::{ConnId, FragmentId, Millis, Version};

use super::disk::DiskSnapshot;
use super::link::LinkDirection;
use super::net::Payload;
use super::{Fault, World};

/// Scheduled event of a world.
#[derive(Debug)]
pub(super) enum WorldEvent {
    Fault(Fault),
    /// Connection request number `attempt` of a process reaches the syncer.
    Knock {
        machine: u32,
        life: u32,
        attempt: u32,
    },
    /// The response to a connection request reaches the process: a connection, or a refusal.
    Dialled {
        machine: u32,
        life: u32,
        attempt: u32,
        conn: Option<ConnId>,
    },
    ToSyncer {
        conn: ConnId,
        payload: Payload,
    },
    ToLearner {
        conn: ConnId,
        payload: Payload,
    },
    /// One end notices that the connection is closed.
    LostAtSyncer {
        conn: ConnId,
    },
    LostAtLearner {
        conn: ConnId,
    },
    /// The syncer's end must send a ping.
    PingDue {
        conn: ConnId,
    },
    /// A ping reaches the learner's machine, which answers it.
    Ping {
        conn: ConnId,
    },
    Pong {
        conn: ConnId,
    },
    StepDone {
        machine: u32,
        life: u32,
        step_ms: u64,
    },
    WakeLearner {
        machine: u32,
        life: u32,
        at: Millis,
    },
    WakeSyncer {
        generation: u32,
        at: Millis,
    },
    MergeDone {
        generation: u32,
        result: Box<Result<MergeOutcome, Box<MergeFailure>>>,
    },
    /// A request for a fragment reaches the syncer.
    AskFragment {
        machine: u32,
        life: u32,
        downloads: u32,
        fragment: FragmentId,
    },
    /// The response to a request for a fragment reaches the process.
    FragmentCame {
        machine: u32,
        life: u32,
        downloads: u32,
        fragment: FragmentId,
        answer: Option<(Version, Arc<Vec<f32>>)>,
    },
    /// A request for a shard reaches the syncer.
    AskShard {
        machine: u32,
        life: u32,
        shard: u32,
    },
    ShardCame {
        machine: u32,
        life: u32,
        shard: u32,
        here: bool,
    },
    Snapshot {
        generation: u32,
    },
    /// A snapshot has been written to the disk.
    Saved {
        generation: u32,
        snapshot: Box<DiskSnapshot>,
    },
    /// The tape is on the disk up to row `seq`.
    Taped {
        generation: u32,
        seq: u64,
    },
    /// A failed write is to be retried.
    RetryTape {
        generation: u32,
    },
    /// A starting syncer has read its disk.
    Started {
        generation: u32,
    },
    /// A loss measurement is due.
    MeasureLoss,
    /// A link has finished its current transmission.
    LinkFree {
        machine: u32,
        way: LinkDirection,
        at: Millis,
    },
    /// The reader of a connection has verified an input.
    Read {
        generation: u32,
        input: Box<Input>,
    },
    /// The syncer's actor has finished its current work.
    ActorFree {
        generation: u32,
        at: Millis,
    },
}

impl WorldEvent {
    /// Returns the connection over which the event happens, if any.
    pub(super) fn conn(&self) -> Option<ConnId> {
        match self {
            Self::ToSyncer { conn, .. }
            | Self::ToLearner { conn, .. }
            | Self::LostAtSyncer { conn }
            | Self::LostAtLearner { conn }
            | Self::Ping { conn }
            | Self::Pong { conn } => Some(*conn),
            _ => None,
        }
    }
}

impl World {
    pub(super) fn process_event(&mut self, event: WorldEvent) {
        let Some(event) = self.delay_or_drop(event) else { return };
        match event {
            WorldEvent::Fault(fault) => self.inject(fault),
            WorldEvent::Knock { machine, life, attempt } => self.begin_connection(machine, life, attempt),
            WorldEvent::Dialled { machine, life, attempt, conn } => {
                self.dialled(machine, life, attempt, conn);
            }
            WorldEvent::ToSyncer { conn, payload } => self.deliver_up(conn, payload),
            WorldEvent::ToLearner { conn, payload } => self.deliver_down(conn, payload),
            WorldEvent::LostAtSyncer { conn } => self.lost_at_syncer(conn),
            WorldEvent::LostAtLearner { conn } => self.lost_at_learner(conn),
            WorldEvent::PingDue { conn } => self.ping_due(conn),
            WorldEvent::Ping { conn } => self.ping(conn),
            WorldEvent::Pong { conn } => self.pong(conn),
            WorldEvent::StepDone { machine, life, step_ms } => self.step_done(machine, life, step_ms),
            WorldEvent::WakeLearner { machine, life, at } => self.wake_learner(machine, life, at),
            WorldEvent::WakeSyncer { generation, at } => self.wake_syncer(generation, at),
            WorldEvent::MergeDone { generation, result } => self.merge_done(generation, result),
            WorldEvent::AskFragment { machine, life, downloads, fragment } => {
                self.answer_fragment(machine, life, downloads, fragment);
            }
            WorldEvent::FragmentCame { machine, life, downloads, fragment, answer } => {
                self.fragment_came(machine, life, downloads, fragment, answer);
            }
            WorldEvent::AskShard { machine, life, shard } => self.ask_shard(machine, life, shard),
            WorldEvent::ShardCame { machine, life, shard, here } => {
                self.shard_came(machine, life, shard, here)
            }
            WorldEvent::Snapshot { generation } => self.take_snapshot(generation),
            WorldEvent::Saved { generation, snapshot } => self.saved(generation, *snapshot),
            WorldEvent::Taped { generation, seq } => self.taped(generation, seq),
            WorldEvent::RetryTape { generation } => self.retry_tape(generation),
            WorldEvent::Started { generation } => self.recover_and_serve(generation),
            WorldEvent::LinkFree { machine, way, at } => self.link_free(machine, way, at),
            WorldEvent::Read { generation, input } => {
                if generation == self.generation {
                    self.syncer_input(*input);
                }
            }
            WorldEvent::ActorFree { generation, at } => self.actor_free(generation, at),
            WorldEvent::MeasureLoss => self.measure_loss(),
        }
    }

    /// Returns an event that can happen now. Stores an event that a frozen process or a disconnected link delays, and
    /// drops an event on a connection that was swallowed.
    fn delay_or_drop(&mut self, event: WorldEvent) -> Option<WorldEvent> {
        if event.conn().and_then(|conn| self.conns.get(&conn)).is_some_and(|conn| conn.swallowed) {
            return None;
        }
        let Some((machine, passes_link, reaches_process)) = self.involved(&event) else {
            return Some(event);
        };
        let machine = &mut self.machines[machine as usize];
        if passes_link && machine.cut {
            machine.cut_off.push(event);
        } else if reaches_process && machine.frozen {
            machine.frozen_out.push(event);
        } else {
            return Some(event);
        }
        None
    }

    /// Returns the machine of `event`, whether the event uses the machine's link, and whether it needs the process to
    /// run.
    fn involved(&self, event: &WorldEvent) -> Option<(u32, bool, bool)> {
        let of = |conn: &ConnId| self.conns.get(conn).map(|conn| conn.machine);
        match event {
            WorldEvent::Knock { machine, .. } => Some((*machine, true, false)),
            WorldEvent::Dialled { machine, .. } => Some((*machine, true, true)),
            WorldEvent::ToSyncer { conn, .. }
            | WorldEvent::LostAtSyncer { conn }
            | WorldEvent::Pong { conn } => Some((of(conn)?, true, false)),
            WorldEvent::ToLearner { conn, .. }
            | WorldEvent::LostAtLearner { conn }
            | WorldEvent::Ping { conn } => Some((of(conn)?, true, true)),
            WorldEvent::StepDone { machine, .. } | WorldEvent::WakeLearner { machine, .. } => {
                Some((*machine, false, true))
            }
            WorldEvent::AskFragment { machine, .. } | WorldEvent::AskShard { machine, .. } => {
                Some((*machine, true, false))
            }
            WorldEvent::FragmentCame { machine, .. } | WorldEvent::ShardCame { machine, .. } => {
                Some((*machine, true, true))
            }
            WorldEvent::Fault(_)
            | WorldEvent::PingDue { .. }
            | WorldEvent::WakeSyncer { .. }
            | WorldEvent::MergeDone { .. }
            | WorldEvent::Snapshot { .. }
            | WorldEvent::Saved { .. }
            | WorldEvent::Taped { .. }
            | WorldEvent::RetryTape { .. }
            | WorldEvent::Started { .. }
            | WorldEvent::LinkFree { .. }
            | WorldEvent::Read { .. }
            | WorldEvent::ActorFree { .. }
            | WorldEvent::MeasureLoss => None,
        }
    }
}
