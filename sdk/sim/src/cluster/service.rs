//! Services between the state machines: transport, replicated tape, and execution of leaders' requests.

use std::sync::Arc;

use archipelago_core::cluster::{GatewayInput, LeaderInput, LeaderOutput, Record};
use archipelago_core::wire::Millis;

use super::{Cluster, ClusterEvent, LEASE_MS, round_trip};

/// Appended record whose commit is awaited.
#[derive(Debug)]
pub(super) struct PendingAppend {
    turn: u64,
    seq: u64,
    view: u64,
    record: Record,
}

/// Process at the other end of a message to or from a service.
#[derive(Clone, Copy, Debug)]
pub(super) enum Service {
    FragmentLeader(usize),
    Gateway(usize),
}

impl Cluster {
    /// Delivers `what` after a random delay, unless it is lost or the process is disconnected. State machines repeat
    /// unanswered requests.
    pub(super) fn ship(&mut self, who: Service, what: ClusterEvent) {
        let apart = match who {
            Service::FragmentLeader(at) => self.leaders[at].apart,
            Service::Gateway(at) => self.gateways[at].apart,
        };
        if apart <= self.now && !self.rng.chance(self.faults.loss) {
            let ms = self.rng.between(1, self.faults.delay_ms);
            self.plan_in(ms, what);
        }
    }

    /// Delivers a bus message after a random delay. It may be lost or arrive twice.
    pub(super) fn ship_between(&mut self, gateway: usize, leader: usize, what: ClusterEvent) {
        if self.gateways[gateway].apart > self.now || self.leaders[leader].apart > self.now {
            return;
        }
        if self.rng.chance(self.faults.twice) {
            let again = match &what {
                ClusterEvent::FragmentLeader(at, life, input) => {
                    ClusterEvent::FragmentLeader(*at, *life, input.clone())
                }
                ClusterEvent::Gateway(at, life, input) => ClusterEvent::Gateway(*at, *life, input.clone()),
                _ => return,
            };
            let ms = self.rng.between(1, 3 * self.faults.delay_ms);
            self.plan_in(ms, again);
        }
        if !self.rng.chance(self.faults.loss) {
            let ms = self.rng.between(1, self.faults.delay_ms);
            self.plan_in(ms, what);
        }
    }

    /// Executes a request of a leader.
    pub(super) fn execute(&mut self, at: usize, life: u32, order: LeaderOutput) {
        match order {
            LeaderOutput::Append { turn, expect, record } => {
                match self.tape.append(expect, round_trip(&record)) {
                    AppendReply::Silence => {}
                    AppendReply::Refused => self.answer_leader(at, life, LeaderInput::Refused),
                    AppendReply::At(seq, view) => {
                        self.copy_to_all();
                        self.await_commit(at, life, PendingAppend { turn, seq, view, record });
                    }
                }
            }
            LeaderOutput::Read(after) => {
                if let Some(records) = self.tape.read(after) {
                    self.answer_leader(at, life, LeaderInput::Records(after, records));
                }
            }
            LeaderOutput::Store(key, bytes) => {
                let there = self.blobs.entry(key).or_insert_with(|| Arc::clone(&bytes));
                let is_ours = *there == bytes;
                self.archive.entry(key).or_insert(bytes);
                self.answer_leader(at, life, LeaderInput::Stored(key, is_ours));
            }
            LeaderOutput::Load(key) => {
                let bytes = self.blobs.get(&key).map(|bytes| bytes.to_vec());
                self.answer_leader(at, life, LeaderInput::Loaded(key, bytes));
            }
            LeaderOutput::Begin => {
                let initial = self.run.initial.clone();
                self.answer_leader(at, life, LeaderInput::Begun(initial));
            }
            LeaderOutput::Forget(keys) => keys.for_each(|key| drop(self.blobs.remove(&key))),
            LeaderOutput::Tell(_) => {}
        }
    }

    /// Acknowledges the record once it is committed. If its view has ended, there is no acknowledgement.
    pub(super) fn await_commit(&mut self, at: usize, life: u32, awaited: PendingAppend) {
        let PendingAppend { turn, seq, view, .. } = awaited;
        if self.tape.has(seq, view) {
            self.acknowledged.insert(seq, awaited.record);
            self.answer_leader(at, life, LeaderInput::Appended { turn, seq });
        } else if self.tape.is_of(view) {
            self.plan_in(5, ClusterEvent::Await(at, life, awaited));
        }
    }

    /// Schedules copies of the leader replica's log to all replicas.
    pub(super) fn copy_to_all(&mut self) {
        for replica in 0..REPLICAS {
            let ms = self.rng.between(1, self.faults.disk_ms);
            self.plan_in(ms, ClusterEvent::Copied(replica));
        }
    }

    /// Claims or renews the lease for a leader process.
    pub(super) fn claim(&mut self, at: usize) {
        let process = &self.leaders[at];
        let (life, late_ms) = (process.life, process.late_ms);
        if process.paused > self.now || process.apart > self.now {
            return;
        }
        let is_free =
            self.lease.is_none_or(|(holder, its, until)| until < self.now || (holder, its) == (at, life));
        if is_free {
            let until = Millis(self.now.0 + LEASE_MS);
            self.lease = Some((at, life, until));
            self.answer_leader(at, life, LeaderInput::Leased(Millis(until.0 + late_ms)));
        } else if late_ms == 0 {
            self.answer_leader(at, life, LeaderInput::NotLeased);
        }
    }

    pub(super) fn answer_leader(&mut self, at: usize, life: u32, input: LeaderInput) {
        self.ship(Service::FragmentLeader(at), ClusterEvent::FragmentLeader(at, life, input));
    }

    pub(super) fn answer_gateway(&mut self, at: usize, life: u32, input: GatewayInput) {
        self.ship(Service::Gateway(at), ClusterEvent::Gateway(at, life, input));
    }
}

/// Number of replicas of a tape.
pub(super) const REPLICAS: usize = 3;
const MAJORITY: usize = 2;

#[derive(Debug, Default)]
struct Replica {
    view: u64,
    log: Vec<Record>,
    is_down: bool,
}

/// Tape of one fragment on three replicas. Acknowledged records are on at least two of them. If the leader replica is
/// lost, records that only it has are lost too.
///
/// One replica leads a view and copies its log to the others. A record is committed when two replicas have it in this
/// view. Once two replicas are up, the one with the newest view and then the longest log becomes the next leader
/// (Viewstamped Replication, Liskov and Cowling 2012). Any two replicas together have all committed records.
#[derive(Debug, Default)]
pub(super) struct ReplicatedTape {
    replicas: [Replica; REPLICAS],
    leader: Option<usize>,
    view: u64,
    /// All records that were committed.
    committed: Vec<Record>,
    /// Whether a committed record has changed.
    pub(super) is_broken: bool,
}

/// Result of appending a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppendReply {
    /// There is no leader replica.
    Silence,
    /// The log does not have the expected length.
    Refused,
    /// The record is in the leader replica's log. The fields are its number and the view.
    At(u64, u64),
}

impl ReplicatedTape {
    pub(super) fn append(&mut self, expect: u64, record: Record) -> AppendReply {
        let Some(leader) = self.leader else { return AppendReply::Silence };
        let log = &mut self.replicas[leader].log;
        if log.len() as u64 != expect {
            return AppendReply::Refused;
        }
        log.push(record);
        AppendReply::At(expect + 1, self.view)
    }

    /// Returns true if the record that was appended with number `seq` in `view` is committed.
    pub(super) fn has(&self, seq: u64, view: u64) -> bool {
        self.is_of(view) && self.committed.len() as u64 >= seq
    }

    /// Returns true if `view` is the current view and has a leader replica.
    pub(super) fn is_of(&self, view: u64) -> bool {
        self.view == view && self.leader.is_some()
    }

    /// Returns the committed records after number `after`, or `None` without a leader replica.
    pub(super) fn read(&self, after: u64) -> Option<Vec<Record>> {
        self.leader.map(|_| self.committed.iter().skip(after as usize).cloned().collect())
    }

    pub(super) fn committed(&self) -> &[Record] {
        &self.committed
    }

    /// Copies the leader replica's log to replica `to`, and commits the records that two replicas have.
    pub(super) fn copy(&mut self, to: usize) {
        let Some(leader) = self.leader.filter(|leader| *leader != to && !self.replicas[to].is_down) else {
            return;
        };
        let log = self.replicas[leader].log.clone();
        self.replicas[to] = Replica { view: self.view, log, is_down: false };
        let lens = self.replicas.iter().filter(|replica| replica.view == self.view);
        let mut lens: Vec<usize> = lens.map(|replica| replica.log.len()).collect();
        lens.sort_unstable();
        let Some(&len) = lens.len().checked_sub(MAJORITY).and_then(|at| lens.get(at)) else { return };
        let log = &self.replicas[leader].log[..len];
        let known = self.committed.len().min(len);
        self.is_broken |= log[..known] != self.committed[..known];
        self.committed.extend_from_slice(&log[known..]);
    }

    /// Stops the leader replica, or replica `other` without one. Does nothing if a replica is down already.
    pub(super) fn crash(&mut self, other: usize) {
        if self.replicas.iter().any(|replica| replica.is_down) {
            return;
        }
        let down = self.leader.take().unwrap_or(other);
        self.replicas[down].is_down = true;
    }

    /// Restarts all stopped replicas.
    pub(super) fn restart(&mut self) {
        self.replicas.iter_mut().for_each(|replica| replica.is_down = false);
    }

    /// If there is no leader replica, makes the one with the newest view and longest log the leader.
    pub(super) fn elect(&mut self) {
        if self.leader.is_some() {
            return;
        }
        let up = (0..REPLICAS).filter(|&at| !self.replicas[at].is_down);
        self.leader = up.max_by_key(|&at| (self.replicas[at].view, self.replicas[at].log.len()));
        self.view += 1;
        if let Some(leader) = self.leader {
            self.replicas[leader].view = self.view;
        }
    }
}

#[cfg(test)]
mod tests {
    use archipelago_core::cluster::ProcessId;

    use super::*;

    fn record(of: u64) -> Record {
        Record::Took(ProcessId(of))
    }

    #[test]
    fn record_on_two_replicas_survives_a_leader_crash() {
        let mut tape = ReplicatedTape::default();
        assert_eq!(tape.append(0, record(1)), AppendReply::Silence);
        tape.elect();
        assert_eq!(tape.append(0, record(1)), AppendReply::At(1, 1));
        assert!(!tape.has(1, 1));
        let first = tape.leader.unwrap();
        tape.copy((first + 1) % 3);
        assert!(tape.has(1, 1) && tape.committed() == [record(1)]);
        assert_eq!(tape.append(0, record(9)), AppendReply::Refused);
        assert_eq!(tape.append(1, record(2)), AppendReply::At(2, 1));
        tape.crash(0);
        assert_eq!(tape.read(0), None);
        tape.elect();
        assert_eq!(tape.read(0).unwrap(), [record(1)]);
        assert_eq!(tape.append(1, record(3)), AppendReply::At(2, 2), "what only the first one had is gone");
        tape.restart();
        tape.copy(first);
        assert_eq!((tape.committed(), tape.is_broken), (&[record(1), record(3)][..], false));
        assert!(!tape.has(2, 1), "what was taken in an earlier view may be another record");
    }
}
