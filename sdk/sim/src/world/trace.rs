//! Visible activity of a world: steps, messages in transit, and applied changes.

use super::World;
use archipelago_core::wire::{FragmentId, Message, Millis, Round};

/// Maximum number of traces kept for [`World::take_traces`]; older ones are discarded.
const TRACES_MAX: usize = 1 << 16;

/// Visible activity.
#[derive(Clone, Debug, PartialEq)]
pub enum Trace {
    /// A machine computes a step. If the process freezes or dies meanwhile, the step ends later or never.
    Step {
        /// Index of the machine.
        machine: u32,
        /// Start of the step.
        from: Millis,
        /// Scheduled end of the step.
        until: Millis,
    },
    /// A message about a fragment is in transit between a machine and the syncer.
    Parcel(Parcel),
    /// A machine's learner has applied a merged change.
    Applied {
        /// Index of the machine.
        machine: u32,
        /// Fragment of the change.
        fragment: FragmentId,
        /// Time of the application.
        at: Millis,
    },
}

/// Message about a fragment in transit.
#[derive(Clone, Debug, PartialEq)]
pub struct Parcel {
    /// Index of the machine that sends or receives it; the syncer is at the other end.
    pub machine: u32,
    /// Kind of message, which implies the direction.
    pub what: Cargo,
    /// The round of the message, if it has one.
    pub round: Option<Round>,
    /// Fragment of the message.
    pub fragment: FragmentId,
    /// Size on the link, in bytes.
    pub bytes: u64,
    /// Start of the transmission.
    pub from: Millis,
    /// Time of arrival, unless the link is cut.
    pub until: Millis,
    /// Body of an update or a merged change; otherwise empty.
    pub body: Vec<u8>,
}

/// Kind of message about a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cargo {
    /// Request for progress, from the syncer.
    Collect,
    /// Update, from a learner.
    Update,
    /// Merged change, from the syncer.
    Merged,
    /// Whole Θ̂ of a fragment, from the syncer, for a learner that joins.
    Whole,
}

impl World {
    /// Begins to keep traces for [`Self::take_traces`], which costs memory.
    pub fn trace(&mut self) {
        self.traces.get_or_insert_default();
    }

    /// Removes and returns the traces since the last call, oldest first, at most 65,536.
    pub fn take_traces(&mut self) -> Vec<Trace> {
        self.traces.as_mut().map(|traces| traces.drain(..).collect()).unwrap_or_default()
    }

    pub(super) fn note_trace(&mut self, trace: impl FnOnce() -> Option<Trace>) {
        let Some(traces) = &mut self.traces else { return };
        let Some(trace) = trace() else { return };
        if traces.len() == TRACES_MAX {
            traces.pop_front();
        }
        traces.push_back(trace);
    }
}

/// Content of a [`Parcel`], without machine and times.
#[derive(Debug)]
pub(super) struct ParcelContent {
    pub(super) what: Cargo,
    pub(super) round: Option<Round>,
    pub(super) fragment: FragmentId,
    pub(super) bytes: u64,
    pub(super) body: Vec<u8>,
}

impl ParcelContent {
    /// Returns the content of `message` for traces, or `None` if it is not about a fragment.
    pub(super) fn of(message: &Message, bytes: u64) -> Option<Self> {
        let (what, round, fragment, body) = match message {
            Message::Collect { fragment, .. } => (Cargo::Collect, None, *fragment, &[][..]),
            Message::Update(update) => (Cargo::Update, None, update.fragment, &*update.body),
            Message::Merged(merged) => {
                // A round has the number of the version to which it leads.
                (Cargo::Merged, Some(Round(merged.version.0)), merged.fragment, &*merged.body)
            }
            _ => return None,
        };
        Some(Self { what, round, fragment, bytes, body: body.to_vec() })
    }

    /// Returns the content of a whole fragment for traces.
    pub(super) fn whole(fragment: FragmentId, bytes: u64) -> Self {
        Self { what: Cargo::Whole, round: None, fragment, bytes, body: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::MachineSpec;

    #[test]
    fn every_update_that_is_sent_arrives_later_and_is_applied() {
        let mut world = World::of_toys(3, vec![MachineSpec::default(); 2]);
        world.run_for(1_000);
        assert!(world.take_traces().is_empty(), "nothing is noted down before it is asked for");
        world.trace();
        world.run_for(10_000);
        let traces = world.take_traces();
        let (mut steps, mut applied, mut cargos) = (0, 0, [0; 4]);
        for trace in &traces {
            match trace {
                Trace::Step { from, until, .. } => {
                    assert!(until > from);
                    steps += 1;
                }
                Trace::Applied { .. } => applied += 1,
                Trace::Parcel(parcel) => {
                    assert!(parcel.until >= parcel.from.after(20), "{parcel:?}");
                    assert_eq!(parcel.body.is_empty(), parcel.what == Cargo::Collect);
                    cargos[parcel.what as usize] += 1;
                }
            }
        }
        let [collects, updates, merged, whole] = cargos;
        assert!(steps > 180 && updates > 80 && merged > 80 && whole == 0, "{steps} {cargos:?}");
        assert!(collects >= updates && applied + 8 >= merged, "{cargos:?} {applied}");
        assert!(world.take_traces().is_empty());
    }
}
