//! What a learner says that speaks the protocol well and lies.

use archipelago::diloco::checksum;
use archipelago::wire::{Code, Message, Progress, Update};
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
    /// The values of its updates are so many times as large, where they travel as they are.
    Times(i32),
}

/// The step of one that boasts, in milliseconds.
const BOAST_MS: f32 = 0.011;
/// The step of one that says that it crawls, in milliseconds.
const CRAWL_MS: f32 = 3_600_000.0;

impl Lie {
    /// What is sent in place of `message`.
    pub(super) fn tell(self, message: Message, code: Code) -> Vec<Message> {
        vec![match message {
            Message::Progress(progress) => Message::Progress(self.report(progress)),
            Message::Update(update) => match self {
                Self::Rides | Self::Times(_) => Message::Update(self.update(update, code)),
                _ => return Vec::new(),
            },
            Message::Pass { .. } if !matches!(self, Self::Rides | Self::Times(_)) => return Vec::new(),
            other => other,
        }]
    }

    fn report(self, progress: Progress) -> Progress {
        let done = |leases: Vec<_>| leases.into_iter().map(|(lease, _)| (lease, u32::MAX)).collect();
        match self {
            Self::Crawls => Progress { step_ms: CRAWL_MS, ..progress },
            Self::Boasts => Progress { step_ms: BOAST_MS, ..progress },
            Self::Inflates => Progress { step_ms: BOAST_MS, tokens: u64::MAX, ..progress },
            Self::Rides => {
                let leases = done(progress.leases);
                Progress { step_ms: BOAST_MS, tokens: u64::MAX, leases, ..progress }
            }
            Self::Mute | Self::Times(_) => progress,
        }
    }

    fn update(self, mut update: Update, code: Code) -> Update {
        match self {
            Self::Times(factor) if code == Code::F32 => {
                for bytes in update.body.as_chunks_mut::<4>().0 {
                    *bytes = (f32::from_le_bytes(*bytes) * factor as f32).to_le_bytes();
                }
            }
            Self::Rides => {
                update.body.fill(0);
                (update.steps, update.tokens) = (u32::MAX, u64::MAX);
            }
            _ => {}
        }
        update.checksum = checksum(&update.body);
        update
    }
}
