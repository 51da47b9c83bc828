//! The run's tape on the disk: every decision of the core, before anybody is told of it.
//!
//! `TAPE.md` beside this file states the layout, byte by byte. What is the same wherever a tape is kept is in
//! [`archipelago_core::diloco::tape`].
//!
//! | file | concept |
//! |---|---|
//! | `rows` | the decisions, rows of an SQLite file, each with a checksum over all before it |
//! | `wal` | what SQLite wrote last, looked at before SQLite does |
//! | `log` | the lines of the run's log, in the same file |
//! | `figures` | what the server adds up over all starts, in the same file |
//! | `bodies` | what learners sent, in files that only grow |
//! | `writer` | the thread that brings both to the disk, several decisions at once |
//! | `recover` | from a snapshot to where the tape ends |
//! | `copy` | a run's folder once more, while the run goes on |
//! | `again` | a part of the tape once more, without some learners, while the run goes on |
//! | `replay` | the whole tape once more, to see that it leads where it did |

mod again;
mod bodies;
mod copy;
mod figures;
mod log;
mod recover;
mod replay;
mod rows;
mod wal;
mod writer;

pub use again::{remake, senders_between};
pub use archipelago_core::diloco::tape::{Place, Row};
pub use bodies::Bodies;
pub use copy::{Copied, copy};
pub use recover::{broken as rows_error, has_bodies, later_figures, recover};
pub use replay::{Member, Recording, Replayed, ReplayedMerge, Undone};
pub use rows::{Rows, RowsError};
pub use writer::{State, Writer};
