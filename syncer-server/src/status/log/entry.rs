//! Events in the log of a run, as the tape's file stores them.

use archipelago_core::diloco::LearnerId;
use archipelago_core::diloco::syncer::{Event, LeaveCause, Syncer};
use archipelago_core::wire::{CloseCode, Fate, Refusal, Share};
use serde::{Deserialize, Serialize};

use super::super::AlertKind;

/// One line of the log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LogEntry {
    /// 1, 2, 3 …, over all starts of the syncer.
    pub seq: u64,
    /// Time of the event, in milliseconds since 1970, by the syncer machine's clock.
    pub at_ms: u64,
    /// The event.
    pub what: LogEvent,
}

/// An event that the owner of a run may want to see later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum LogEvent {
    /// A syncer began to lead the run; `resumed` is true if the run already existed.
    Started {
        resumed: bool,
        /// The run that this one was forked from, and the decision after which it was forked; reported once.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        forked: Option<(String, u64)>,
    },
    /// The syncer was told to stop.
    Stopped,
    Joined {
        learner: LearnerId,
        name: String,
        device: String,
        returning: bool,
    },
    Left {
        learner: LearnerId,
        name: String,
        why: LeaveCause,
    },
    /// The owner dropped a learner for `wait_ms`; 0 lets it come back.
    Dropped {
        learner: LearnerId,
        name: String,
        wait_ms: u32,
    },
    /// The owner set the share of its pace that a learner trains.
    Paced {
        learner: LearnerId,
        name: String,
        share: Share,
    },
    /// An update was refused. `times` counts this refusal and the same ones since the last such line.
    Refused {
        learner: LearnerId,
        name: String,
        why: Refusal,
        times: u32,
    },
    /// A peer could not join. `reason` is the message that it got. `times` counts this message and the same ones since
    /// the last such line.
    TurnedAway {
        reason: String,
        times: u32,
    },
    /// The owner paused or resumed the run.
    Held {
        held: bool,
    },
    /// The owner changed a setting during the run.
    Retuned {
        setting: String,
        from: String,
        to: String,
    },
    /// A learner's updates raised the held-out loss from the first of `losses` to the second, and they are rolled back:
    /// `without` them, the loss is that value. The learner may come back after a while, unless it is out `for_good`.
    Undone {
        learner: LearnerId,
        name: String,
        losses: (f32, f32),
        without: f32,
        for_good: bool,
    },
    /// A learner is suspected after `looks` loss checks that did not show training; 0 ends the suspicion.
    Doubted {
        learner: LearnerId,
        name: String,
        looks: u32,
    },
    /// The held-out loss rose from the first to the second, and attribution found no single learner.
    LossUnexplained {
        losses: (f32, f32),
    },
    Finishing,
    Finished,
    /// The disk does not accept decisions, or a snapshot could not be written.
    DiskFault {
        why: String,
        is_tape: bool,
    },
    DiskMended {
        is_tape: bool,
    },
    /// A service between the processes of a run failed.
    ServicesFault {
        why: String,
    },
    ServicesMended,
    /// A new certificate is in use, or cannot be used.
    Certificate {
        shown: bool,
    },
    /// An alert other than a disk fault was raised or cleared.
    Alert {
        alert: AlertKind,
        raised: bool,
        text: String,
    },
}

impl LogEvent {
    /// Returns the log event for `event`; `syncer` is the state after it. Returns `None` for events of each round or
    /// step, and for departures that the log covers with another line.
    #[must_use]
    pub fn of(syncer: &Syncer, event: &Event) -> Option<Self> {
        let name_of = |learner: LearnerId| {
            let account = syncer.ledger().account(learner);
            account.map(|account| account.name.clone()).unwrap_or_default()
        };
        Some(match event {
            Event::Joined { learner, name, device, returning } => Self::Joined {
                learner: *learner,
                name: name.clone(),
                device: device.clone(),
                returning: *returning,
            },
            Event::Left { why: LeaveCause::Closed { code, .. }, .. } if tells_nothing(*code) => return None,
            Event::Left { learner, why } => {
                Self::Left { learner: *learner, name: name_of(*learner), why: why.clone() }
            }
            Event::TurnedAway { code, .. } if tells_nothing(*code) => return None,
            Event::TurnedAway { reason, .. } => Self::TurnedAway { reason: reason.clone(), times: 1 },
            Event::Dropped { learner, wait_ms } => {
                Self::Dropped { learner: *learner, name: name_of(*learner), wait_ms: *wait_ms }
            }
            Event::Paced { learner, share } => {
                Self::Paced { learner: *learner, name: name_of(*learner), share: *share }
            }
            Event::Settled { learner, fate: Fate::Refused(why), .. } => {
                Self::Refused { learner: *learner, name: name_of(*learner), why: *why, times: 1 }
            }
            Event::Doubted { learner, doubt } => Self::Doubted {
                learner: *learner,
                name: name_of(*learner),
                looks: doubt.map_or(0, |doubt| doubt.looks),
            },
            Event::Held { held } => Self::Held { held: *held },
            _ => return None,
        })
    }

    /// Returns the learner that the event is about.
    #[must_use]
    pub fn learner(&self) -> Option<LearnerId> {
        match self {
            Self::Joined { learner, .. }
            | Self::Left { learner, .. }
            | Self::Dropped { learner, .. }
            | Self::Paced { learner, .. }
            | Self::Undone { learner, .. }
            | Self::Doubted { learner, .. }
            | Self::Refused { learner, .. } => Some(*learner),
            _ => None,
        }
    }

    /// Returns the name that the learner had.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        match self {
            Self::Joined { name, .. }
            | Self::Left { name, .. }
            | Self::Dropped { name, .. }
            | Self::Paced { name, .. }
            | Self::Undone { name, .. }
            | Self::Doubted { name, .. }
            | Self::Refused { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// Returns true if the log already has a line with this information for a connection closed with `code`: the run is
/// complete, or the owner dropped the learner.
fn tells_nothing(code: u16) -> bool {
    [CloseCode::Done, CloseCode::Dropped].map(u16::from).contains(&code)
}
