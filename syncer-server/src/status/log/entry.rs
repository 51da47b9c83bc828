//! What the log of a run tells of, as the tape's file keeps it.

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
    /// When it was, in milliseconds since 1970, by the syncer's machine.
    pub at_ms: u64,
    /// What it was.
    pub what: Happening,
}

/// Something that the owner of a run may ask for later.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[allow(missing_docs, reason = "each variant names its fields; lines of their own would say it twice")]
pub enum Happening {
    /// A syncer began to lead the run; it `resumed` one that was there.
    Started {
        resumed: bool,
        /// The run that this one was forked from, and after which of its decisions; told once.
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
    /// The owner sent a learner away for so long, or with 0 lets it come back.
    Dropped {
        learner: LearnerId,
        name: String,
        wait_ms: u32,
    },
    /// The owner has a learner train for this part of its time.
    Paced {
        learner: LearnerId,
        name: String,
        share: Share,
    },
    /// An update was refused, and so many of the same kind since the last time that this was told.
    Refused {
        learner: LearnerId,
        name: String,
        why: Refusal,
        times: u32,
    },
    /// Somebody could not join: what they were told, and how many heard the same since this was told last.
    TurnedAway {
        reason: String,
        times: u32,
    },
    /// The owner holds the run, or lets it go on.
    Held {
        held: bool,
    },
    /// The owner changed a setting while the run went on.
    Retuned {
        setting: String,
        from: String,
        to: String,
    },
    /// The held-out loss rose from the first of `losses` to the second by what a learner sent, and is undone to what it
    /// is `without` that. It may come back after a while, unless it is out `for_good`.
    Undone {
        learner: LearnerId,
        name: String,
        losses: (f32, f32),
        without: f32,
        for_good: bool,
    },
    /// So many looks at updates of a learner did not show that it trains; with 0 they show it again.
    Doubted {
        learner: LearnerId,
        name: String,
        looks: u32,
    },
    /// The held-out loss rose from the first to the second, and by no single learner's doing.
    LossUnexplained {
        losses: (f32, f32),
    },
    Finishing,
    Finished,
    /// The disk takes no decisions any more, or a snapshot could not be written.
    DiskFault {
        why: String,
        is_tape: bool,
    },
    DiskMended {
        is_tape: bool,
    },
    /// What stands between the processes of a run does not do its part, or does again.
    ServicesFault {
        why: String,
    },
    ServicesMended,
    /// Another certificate came: it is shown from now on, or cannot be used.
    Certificate {
        shown: bool,
    },
    /// Another alert came on or went off.
    Alert {
        alert: AlertKind,
        raised: bool,
        text: String,
    },
}

impl Happening {
    /// What of `event` is kept; `syncer` is as it is after it. `None` for what comes with each round or step, and for
    /// what the end of a run tells once for all.
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

    /// The learner that it is about.
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

    /// What that learner was called.
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

/// Whether the log has a line that says the same to whoever closed with `code`: that the run is complete, or that the
/// owner sent them away.
fn tells_nothing(code: u16) -> bool {
    [CloseCode::Done, CloseCode::Dropped].map(u16::from).contains(&code)
}
