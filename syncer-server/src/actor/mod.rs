//! The task that owns the `Syncer`; all other tasks talk to it through a bounded channel.

mod eval_snapshot;
mod event_loop;
mod handle;
mod host;
mod measuring;
mod record;
mod save;

pub use eval_snapshot::{EvalSnapshot, HarmVerdict};
pub use event_loop::{Actor, Final};
pub use handle::{ActorHandle, Command, Mailbox, News, OrderOutcome, View};
pub use measuring::Trusted;
