//! Commands of the owner to a run or to one learner, for one process or for all processes of a cluster.

use archipelago_core::cluster::AdminCommand;
use archipelago_core::diloco::LearnerId;
use archipelago_core::diloco::syncer::{DROP_MS_MAX, Input};
use archipelago_core::wire::Share;

/// A command of the owner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum OwnerCommand {
    /// Collect the last progress of all learners, then end the run.
    Finish,
    /// Pause the run, or resume it.
    Hold(bool),
    /// Limit a learner to a share of its pace.
    Pace(LearnerId, Share),
    /// Drop a learner for this time, in milliseconds; 0 lets it return at once.
    Drop(LearnerId, u32),
}

impl OwnerCommand {
    /// Returns the learner that the command concerns, if any.
    pub(crate) fn learner(self) -> Option<LearnerId> {
        match self {
            Self::Finish | Self::Hold(_) => None,
            Self::Pace(learner, _) | Self::Drop(learner, _) => Some(learner),
        }
    }

    /// Returns the input for the core.
    pub(crate) fn input(self) -> Input {
        match self {
            Self::Finish => Input::Finish,
            Self::Hold(held) => Input::Hold(held),
            Self::Pace(learner, share) => Input::Pace { learner, share },
            Self::Drop(learner, wait_ms) => Input::Drop { learner, wait_ms },
        }
    }

    /// Returns the command for all processes of a cluster. `now_ms` is the time in milliseconds since 1970.
    pub(crate) fn command(self, now_ms: u64) -> AdminCommand {
        match self {
            Self::Finish => AdminCommand::Finish,
            Self::Hold(held) => AdminCommand::Hold(held),
            Self::Pace(learner, share) => AdminCommand::Pace(learner, share),
            Self::Drop(learner, 0) => AdminCommand::Drop(learner, 0),
            Self::Drop(learner, wait_ms) => {
                AdminCommand::Drop(learner, now_ms.saturating_add(wait_ms.into()))
            }
        }
    }

    /// Returns the command of the owner in a cluster's `command` at the time `now_ms`, in milliseconds since 1970;
    /// `None` if it has expired or is of another kind.
    pub(crate) fn of(command: &AdminCommand, now_ms: u64) -> Option<Self> {
        Some(match *command {
            AdminCommand::Finish => Self::Finish,
            AdminCommand::Hold(held) => Self::Hold(held),
            AdminCommand::Pace(learner, share) => Self::Pace(learner, share),
            AdminCommand::Drop(learner, 0) => Self::Drop(learner, 0),
            AdminCommand::Drop(learner, until_ms) => {
                let wait_ms = until_ms.checked_sub(now_ms).filter(|wait_ms| *wait_ms > 0)?;
                // The clock of another machine may be ahead.
                Self::Drop(learner, u32::try_from(wait_ms).unwrap_or(DROP_MS_MAX).min(DROP_MS_MAX))
            }
            AdminCommand::Agreed(_)
            | AdminCommand::Settings(_)
            | AdminCommand::Ban(..)
            | AdminCommand::Lift(_) => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_command_keeps_the_remaining_time() {
        let learner = LearnerId(3);
        for order in [
            OwnerCommand::Finish,
            OwnerCommand::Hold(true),
            OwnerCommand::Pace(learner, Share::FULL),
            OwnerCommand::Drop(learner, 0),
            OwnerCommand::Drop(learner, 5_000),
        ] {
            assert_eq!(OwnerCommand::of(&order.command(1_000), 1_000), Some(order));
        }
        let away = OwnerCommand::Drop(learner, 5_000).command(1_000);
        assert_eq!(OwnerCommand::of(&away, 5_500), Some(OwnerCommand::Drop(learner, 500)));
        assert_eq!(OwnerCommand::of(&away, 6_000), None, "it may come back by now");
        assert_eq!(
            OwnerCommand::of(&AdminCommand::Drop(learner, u64::MAX), 0),
            Some(OwnerCommand::Drop(learner, DROP_MS_MAX))
        );
        assert_eq!(OwnerCommand::of(&AdminCommand::Settings(Vec::new()), 0), None);
    }
}
