//! What a learner says that speaks the protocol well and lies.

use archipelago_core::wire::{Message, Progress};
use serde::{Deserialize, Serialize};

/// How a learner lies. Its messages are well-formed, and nothing of it is refused for its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lie {
    /// It says that its step takes an hour, and answers nothing.
    Crawls,
    /// It says that its step takes a hundredth of a millisecond, and answers nothing.
    Boasts,
    /// It answers nothing.
    Mute,
    /// It says that it has trained on all tokens that there can be, and answers nothing.
    Inflates,
    /// It sends zeros as the fruit of all steps that there can be, and says that all it was leased is done.
    Rides,
    /// The values of its updates are so many times as large; below 0 they point the other way.
    Times(i32),
    /// Its updates are turned around, and as long as a syncer believes their steps can have made them.
    Reaches,
    /// Its updates are noise, on each segment as long as what it trained.
    Noise,
    /// After its first few updates of each fragment it sends the last of them again and again, as if it were new.
    Stale,
    /// It sends what an honest learner sent last of the same fragment.
    Copies,
    /// Its updates are noise, and it says that they are the fruit of all steps that there can be.
    Claims,
    /// Its updates are made as long as those of an honest learner, however little it trained. In the lab it takes one
    /// step in ten.
    Sandbags,
    /// Its updates are as long as what it trained, and lean half towards a direction that all who lie like this share.
    Drifts,
    /// On each segment the scale of the first block is so large that the update is as long as is believed; all codes
    /// stay. Nothing where values travel as they are.
    Scales,
}

/// The step of one that boasts, in milliseconds.
const BOAST_MS: f32 = 0.011;
/// The step of one that says that it crawls, in milliseconds.
const CRAWL_MS: f32 = 3_600_000.0;

impl Lie {
    /// Whether a learner that lies like this sends nothing in place of `message`.
    pub(super) fn swallows(self, message: &Message) -> bool {
        matches!(message, Message::Update(_) | Message::Pass { .. })
            && matches!(self, Self::Crawls | Self::Boasts | Self::Mute | Self::Inflates)
    }

    /// Whether its updates are the fruit of all steps that there can be, by what it says.
    pub(super) fn boasts_of_steps(self) -> bool {
        matches!(self, Self::Rides | Self::Claims)
    }

    /// What it reports in place of `progress`.
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
