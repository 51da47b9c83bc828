//! What a learner says that speaks the protocol well and lies.

use std::num::NonZeroU16;

use archipelago::diloco::{Codec, Fragments, Layout, checksum};
use archipelago::wire::{Code, ExchangeSpec, Message, Progress, Update};
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
}

/// How the values of a run's fragments travel: a liar has to code what it makes up.
pub(super) struct Coding {
    codec: Codec,
    fragments: Fragments,
}

impl Coding {
    /// Of a run that a syncer accepted.
    pub(super) fn new(exchange: &ExchangeSpec, layout: &Layout) -> Self {
        let count = NonZeroU16::new(exchange.fragments).expect("a syncer accepted it");
        let codec = Codec::new(exchange).expect("a syncer accepted it");
        Self { codec, fragments: Fragments::plan(layout, count) }
    }

    pub(super) fn code(&self) -> Code {
        self.codec.code()
    }

    /// The body of `update` with values `factor` times as large; `None` if it is no body.
    fn times(&self, update: &Update, factor: i32) -> Option<Vec<u8>> {
        let segments = self.fragments.segments(update.fragment)?;
        let mut values = self.codec.decode(segments, &update.body).ok()?;
        values.iter_mut().for_each(|value| *value *= factor as f32);
        Some(self.codec.encode(segments, &values))
    }
}

/// The step of one that boasts, in milliseconds.
const BOAST_MS: f32 = 0.011;
/// The step of one that says that it crawls, in milliseconds.
const CRAWL_MS: f32 = 3_600_000.0;

impl Lie {
    /// What is sent in place of `message`.
    pub(super) fn tell(self, message: Message, coding: &Coding) -> Vec<Message> {
        vec![match message {
            Message::Progress(progress) => Message::Progress(self.report(progress)),
            Message::Update(update) => match self {
                Self::Rides | Self::Times(_) => Message::Update(self.update(update, coding)),
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

    fn update(self, mut update: Update, coding: &Coding) -> Update {
        match self {
            Self::Times(factor) => {
                if let Some(body) = coding.times(&update, factor) {
                    update.body = body;
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
