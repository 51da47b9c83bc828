//! Dispatch of timed events, and their obstruction by faults.

use super::World;
use super::happening::Happening;
use archipelago_core::wire::ConnId;

impl World {
    pub(super) fn happen(&mut self, happening: Happening) {
        let Some(happening) = self.hold_up(happening) else { return };
        match happening {
            Happening::Fault(fault) => self.inject(fault),
            Happening::Knock { machine, life, attempt } => self.knock(machine, life, attempt),
            Happening::Dialled { machine, life, attempt, conn } => {
                self.dialled(machine, life, attempt, conn);
            }
            Happening::ToSyncer { conn, payload } => self.deliver_up(conn, payload),
            Happening::ToLearner { conn, payload } => self.deliver_down(conn, payload),
            Happening::LostAtSyncer { conn } => self.lost_at_syncer(conn),
            Happening::LostAtLearner { conn } => self.lost_at_learner(conn),
            Happening::PingDue { conn } => self.ping_due(conn),
            Happening::Ping { conn } => self.ping(conn),
            Happening::Pong { conn } => self.pong(conn),
            Happening::StepDone { machine, life, step_ms } => self.step_done(machine, life, step_ms),
            Happening::WakeLearner { machine, life, at } => self.wake_learner(machine, life, at),
            Happening::WakeSyncer { generation, at } => self.wake_syncer(generation, at),
            Happening::MergeDone { generation, result } => self.merge_done(generation, result),
            Happening::AskFragment { machine, life, downloads, fragment } => {
                self.answer_fragment(machine, life, downloads, fragment);
            }
            Happening::FragmentCame { machine, life, downloads, fragment, answer } => {
                self.fragment_came(machine, life, downloads, fragment, answer);
            }
            Happening::AskShard { machine, life, shard } => self.ask_shard(machine, life, shard),
            Happening::ShardCame { machine, life, shard, here } => {
                self.shard_came(machine, life, shard, here)
            }
            Happening::Snapshot { generation } => self.take_snapshot(generation),
            Happening::Saved { generation, snapshot } => self.saved(generation, *snapshot),
            Happening::Taped { generation, seq } => self.taped(generation, seq),
            Happening::RetryTape { generation } => self.retry_tape(generation),
            Happening::Started { generation } => self.go_on(generation),
            Happening::LinkFree { machine, way, at } => self.link_free(machine, way, at),
            Happening::Read { generation, input } => {
                if generation == self.generation {
                    self.tell_syncer(*input);
                }
            }
            Happening::ActorFree { generation, at } => self.actor_free(generation, at),
            Happening::Look => self.look(),
        }
    }

    /// Delays an event that a frozen process or a cut link cannot take now, and drops one on a swallowed connection;
    /// returns any other.
    fn hold_up(&mut self, happening: Happening) -> Option<Happening> {
        if happening.conn().and_then(|conn| self.conns.get(&conn)).is_some_and(|conn| conn.swallowed) {
            return None;
        }
        let Some((machine, passes_link, reaches_process)) = self.involved(&happening) else {
            return Some(happening);
        };
        let machine = &mut self.machines[machine as usize];
        if passes_link && machine.cut {
            machine.cut_off.push(happening);
        } else if reaches_process && machine.frozen {
            machine.frozen_out.push(happening);
        } else {
            return Some(happening);
        }
        None
    }

    /// Returns the machine of `happening`, whether the event passes the link, and whether it reaches the process.
    fn involved(&self, happening: &Happening) -> Option<(u32, bool, bool)> {
        let of = |conn: &ConnId| self.conns.get(conn).map(|conn| conn.machine);
        match happening {
            Happening::Knock { machine, .. } => Some((*machine, true, false)),
            Happening::Dialled { machine, .. } => Some((*machine, true, true)),
            Happening::ToSyncer { conn, .. }
            | Happening::LostAtSyncer { conn }
            | Happening::Pong { conn } => Some((of(conn)?, true, false)),
            Happening::ToLearner { conn, .. }
            | Happening::LostAtLearner { conn }
            | Happening::Ping { conn } => Some((of(conn)?, true, true)),
            Happening::StepDone { machine, .. } | Happening::WakeLearner { machine, .. } => {
                Some((*machine, false, true))
            }
            Happening::AskFragment { machine, .. } | Happening::AskShard { machine, .. } => {
                Some((*machine, true, false))
            }
            Happening::FragmentCame { machine, .. } | Happening::ShardCame { machine, .. } => {
                Some((*machine, true, true))
            }
            Happening::Fault(_)
            | Happening::PingDue { .. }
            | Happening::WakeSyncer { .. }
            | Happening::MergeDone { .. }
            | Happening::Snapshot { .. }
            | Happening::Saved { .. }
            | Happening::Taped { .. }
            | Happening::RetryTape { .. }
            | Happening::Started { .. }
            | Happening::LinkFree { .. }
            | Happening::Read { .. }
            | Happening::ActorFree { .. }
            | Happening::Look => None,
        }
    }
}
