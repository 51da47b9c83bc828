//! Learners that invent their progress and remember every update and receipt.

use std::collections::BTreeMap;

use archipelago_core::cluster::UnresolvedUpdate;
use archipelago_core::wire::{LearnerId, Millis, Round, Serial, Version};

/// A channel that preserves order.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line(Millis);

impl Line {
    /// Returns the arrival time of an item due at `at`, behind everything already on the channel.
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
    /// Number of its current connection.
    pub(super) epoch: u32,
    /// Its messages arrive in order, and so do those that it receives.
    pub(super) says: Line,
    pub(super) hears: Line,
    /// Its update without a known fate.
    pub(super) unsettled: Option<UnresolvedUpdate>,
    serial: u64,
    /// Sent updates by serial, with their rounds.
    pub(super) sent: BTreeMap<Serial, (Round, Vec<u8>)>,
    /// Receipts by serial: the version that the update was merged into, or `None`.
    pub(super) told: BTreeMap<Serial, Option<Version>>,
    /// Whether it got two different receipts for one update, or one for an update that it never sent.
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

    /// Sends an update for `round`.
    pub(super) fn send(&mut self, round: Round, body: Vec<u8>) -> Serial {
        self.serial += 1;
        let serial = Serial(self.serial);
        self.unsettled = Some(UnresolvedUpdate { round, serial });
        self.sent.insert(serial, (round, body));
        serial
    }

    /// Processes a receipt.
    pub(super) fn hear(&mut self, serial: Serial, merged: Option<Version>) {
        let before = self.told.insert(serial, merged);
        self.is_confused |= before.is_some_and(|before| before != merged) || !self.sent.contains_key(&serial);
        self.unsettled.take_if(|unsettled| unsettled.serial == serial);
    }
}
