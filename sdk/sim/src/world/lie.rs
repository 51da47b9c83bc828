//! Lies of a learner that speaks the protocol well.

use archipelago_core::wire::{Message, Progress};
use serde::{Deserialize, Serialize};

/// A way of lying. The messages are well-formed, and none of them is refused for its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lie {
    /// Reports a step time of one hour and answers nothing.
    Crawls,
    /// Reports a step time of a hundredth of a millisecond and answers nothing.
    Boasts,
    /// Answers nothing.
    Mute,
    /// Reports the largest possible number of trained tokens and answers nothing.
    Inflates,
    /// Sends zeros as the progress of the largest possible number of steps, and reports all its leases as done.
    Rides,
    /// Multiplies its updates by this factor; a negative one reverses them.
    Times(i32),
    /// Reverses its updates and scales them to the longest norm that the syncer accepts for their steps.
    Reaches,
    /// Sends noise with the norm of its real progress on each segment.
    Noise,
    /// Sends a few honest updates of each fragment, then repeats the last of them as if it were new.
    Stale,
    /// Sends the latest update of an honest learner for the same fragment.
    Copies,
    /// Sends noise and reports the largest possible number of steps for it.
    Claims,
    /// Scales its updates to the norm of an honest learner's, however little it trained. In the lab it takes one step
    /// in ten.
    Sandbags,
    /// Keeps the norm of its updates, but turns them to a cosine of ½ with a direction that all such liars share.
    Drifts,
    /// Raises the scale of each segment's first block until the update has the longest accepted norm; all codes stay.
    /// Has no effect on uncoded values.
    Scales,
}

/// Reported step time of a boasting learner, in milliseconds.
const BOAST_MS: f32 = 0.011;
/// Reported step time of a learner that pretends to crawl, in milliseconds.
const CRAWL_MS: f32 = 3_600_000.0;

impl Lie {
    /// Returns true if a learner with this lie sends nothing instead of `message`.
    pub(super) fn swallows(self, message: &Message) -> bool {
        matches!(message, Message::Update(_) | Message::NoUpdate { .. })
            && matches!(self, Self::Crawls | Self::Boasts | Self::Mute | Self::Inflates)
    }

    /// Returns true if its updates claim the largest possible number of steps.
    pub(super) fn boasts_of_steps(self) -> bool {
        matches!(self, Self::Rides | Self::Claims)
    }

    /// Returns the report that replaces `progress`.
    pub(super) fn report(self, progress: Progress) -> Progress {
        let done = |leases: Vec<_>| leases.into_iter().map(|(lease, _)| (lease, u32::MAX)).collect();
        match self {
            Self::Crawls => Progress { step_ms: CRAWL_MS, ..progress },
            Self::Boasts => Progress { step_ms: BOAST_MS, ..progress },
            Self::Inflates => Progress { step_ms: BOAST_MS, tokens: u64::MAX, ..progress },
            Self::Rides | Self::Claims => {
                let leases = done(progress.leases);
                Progress { step_ms: BOAST_MS, tokens: u64::MAX, leases, ..progress }
            }
            _ => progress,
        }
    }
}
