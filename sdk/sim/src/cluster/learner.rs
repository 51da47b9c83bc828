//! Learners that make up their progress, and know what they told whom.

use std::collections::BTreeMap;

use archipelago_core::cluster::Unsettled;
use archipelago_core::wire::{LearnerId, Millis, Round, Serial, Version};

/// A way on which nothing overtakes anything.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line(Millis);

impl Line {
    /// When what would arrive at `at` arrives behind all that is on the way.
    pub(super) fn after(&mut self, at: Millis) -> Millis {
        self.0 = self.0.max(at);
        self.0
    }
}

/// A learner of a cluster.
#[derive(Debug)]
pub(super) struct Learner {
    pub(super) id: LearnerId,
    /// The gateway that it is connected to.
    pub(super) gateway: Option<usize>,
    /// Counts its connections.
    pub(super) epoch: u32,
    /// What it says arrives in its order, and so does what it is told.
    pub(super) says: Line,
    pub(super) hears: Line,
    /// What it sent and does not know the fate of.
    pub(super) unsettled: Option<Unsettled>,
    serial: u64,
    /// What it sent, for which round, by serial.
    pub(super) sent: BTreeMap<Serial, (Round, Vec<u8>)>,
    /// What it was told: the version that it was merged to, or `None`.
    pub(super) told: BTreeMap<Serial, Option<Version>>,
    /// It was told two things of one update.
    pub(super) is_confused: bool,
}

impl Learner {
    pub(super) fn new(id: LearnerId) -> Self {
        Self {
            id,
            gateway: None,
            epoch: 0,
            says: Line::default(),
            hears: Line::default(),
            unsettled: None,
            serial: 0,
            sent: BTreeMap::new(),
            told: BTreeMap::new(),
            is_confused: false,
        }
    }

    /// It sends this for `round`.
    pub(super) fn send(&mut self, round: Round, body: Vec<u8>) -> Serial {
        self.serial += 1;
        let serial = Serial(self.serial);
        self.unsettled = Some(Unsettled { round, serial });
        self.sent.insert(serial, (round, body));
        serial
    }

    /// It is told what became of an update.
    pub(super) fn hear(&mut self, serial: Serial, merged: Option<Version>) {
        let before = self.told.insert(serial, merged);
        self.is_confused |= before.is_some_and(|before| before != merged) || !self.sent.contains_key(&serial);
        self.unsettled.take_if(|unsettled| unsettled.serial == serial);
    }
}
