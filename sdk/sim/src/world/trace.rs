//! Visible activity of a running world: steps, messages in transit, applied fragments.

use super::World;
use archipelago_core::wire::{FragmentId, Message, Millis, Round};

/// Traces kept until they are taken; the oldest go first.
const TRACES_MAX: usize = 1 << 16;

/// One visible activity.
#[derive(Clone, Debug, PartialEq)]
pub enum Trace {
    /// A machine computes a step; if the machine dies or freezes meanwhile, the step ends later or never.
    Step {
        /// The machine.
        machine: u32,
        /// Beginning of the step.
        from: Millis,
        /// Expected end of the step.
        until: Millis,
    },
    /// A message about a fragment is in transit between a machine and the syncer.
    Parcel(Parcel),
    /// A machine's learner has applied a merged fragment.
    Applied {
        /// The machine.
        machine: u32,
        /// The fragment.
        fragment: FragmentId,
        /// Time of the application.
        at: Millis,
    },
}

/// A message about a fragment in transit.
#[derive(Clone, Debug, PartialEq)]
pub struct Parcel {
    /// The machine at the other end.
    pub machine: u32,
    /// The kind of message, which determines the direction too.
    pub what: Cargo,
    /// The round of the message, if it has one.
    pub round: Option<Round>,
    /// The fragment.
    pub fragment: FragmentId,
    /// Bytes on the link.
    pub bytes: u64,
    /// Beginning of the transmission.
    pub from: Millis,
    /// Time of arrival, unless the link is cut.
    pub until: Millis,
    /// The body of an update or a merged change; otherwise empty.
    pub body: Vec<u8>,
}

/// The kind of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cargo {
    /// Syncer → learner: request for progress.
    Collect,
    /// Learner → syncer: progress.
    Update,
    /// Syncer → learner: merged change.
    Merged,
    /// Syncer → learner: a fragment's whole Θ̂, for a joiner.
    Whole,
}

impl World {
    /// Begins to record traces, which costs memory until [`Self::take_traces`] is called.
    pub fn trace(&mut self) {
        self.traces.get_or_insert_default();
    }

    /// Takes the traces since the last call, oldest first; at most 65,536 are kept.
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

/// A [`Parcel`] without place and time.
#[derive(Debug)]
pub(super) struct ParcelContent {
    pub(super) what: Cargo,
    pub(super) round: Option<Round>,
    pub(super) fragment: FragmentId,
    pub(super) bytes: u64,
    pub(super) body: Vec<u8>,
}

impl ParcelContent {
    /// Returns the trace of `message`, if it is about a fragment.
    pub(super) fn of(message: &Message, bytes: u64) -> Option<Self> {
        let (what, round, fragment, body) = match message {
            Message::Collect { fragment, .. } => (Cargo::Collect, None, *fragment, &[][..]),
            Message::Update(update) => (Cargo::Update, None, update.fragment, &*update.body),
            Message::Merged(merged) => {
                // A round has the number of the version that it leads to.
                (Cargo::Merged, Some(Round(merged.version.0)), merged.fragment, &*merged.body)
            }
            _ => return None,
        };
        Some(Self { what, round, fragment, bytes, body: body.to_vec() })
    }

    /// Returns the trace of a whole fragment.
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
