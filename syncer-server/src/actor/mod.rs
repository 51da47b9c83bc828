//! The one task that owns the `Syncer`; everybody else talks to it through a bounded channel.

mod handle;
mod host;
mod shell;
mod subject;

pub use handle::{ActorHandle, Command, News, View};
pub use shell::{Actor, Ended, Final};
pub use subject::Subject;
