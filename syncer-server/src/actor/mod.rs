//! The task that owns the `Syncer`; all other tasks talk to it through a bounded channel.

mod exams;
mod handle;
mod host;
mod measuring;
mod record;
mod save;
mod shell;
mod subject;

pub use handle::{ActorHandle, Command, News, Obeyed, View};
pub use measuring::Trusted;
pub use shell::{Actor, Final};
pub use subject::{Judgement, Subject};
