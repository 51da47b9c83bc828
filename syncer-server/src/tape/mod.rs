//! The tape on disk: every decision of the core, recorded before any learner receives its effect.
//!
//! `TAPE.md` next to this file specifies the layout byte by byte. Parts that do not depend on the storage are in
//! [`archipelago_core::diloco::tape`].
//!
//! | file | concept |
//! |---|---|
//! | `rows` | decisions as rows of an SQLite file, with a checksum over all earlier rows; server statistics |
//! | `wal` | integrity check of SQLite's write-ahead log, before SQLite opens it |
//! | `log` | lines of the run's log, in the same file |
//! | `bodies` | bodies of updates, in append-only files |
//! | `writer` | the thread that writes rows and bodies in batches |
//! | `recover` | recovery from a snapshot to the end of the tape |
//! | `copy` | online copy of a run's folder |
//! | `replay` | verified replay of the whole tape; replay of a part without some learners, for rollbacks |

mod bodies;
mod copy;
mod log;
mod recover;
mod replay;
mod rows;
mod wal;
mod writer;

pub use archipelago_core::diloco::tape::{Place, Row};
pub use bodies::Bodies;
pub use copy::{CopySummary, copy};
pub use recover::{broken as rows_error, has_bodies, later_figures, recover};
pub use replay::{
    MergedSender, Recording, Replayed, ReplayedMerge, RolledBackFragment, rollback, senders_between,
};
pub use rows::{Rows, RowsError};
pub use writer::{State, Writer};
