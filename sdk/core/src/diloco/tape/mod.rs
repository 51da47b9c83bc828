//! Storage of a run's tape, independent of the medium: a server's disk or a simulated one.
//!
//! | file | concept |
//! |---|---|
//! | `gate` | output that waits until earlier decisions are stored |
//! | `held` | write order of bodies and rows, several decisions at once |
//! | `store` | interface of the medium |
//! | `chain` | checksum of a row and of all before it |
//! | `taking` | snapshot that is taken while merges go on |

mod chain;
mod gate;
mod held;
mod store;
mod taking;

use super::Entry;

pub use chain::{Chain, Links, RowDamage, link};
pub use gate::Gate;
pub use held::{Held, TapeJob};
pub use store::{Blobs, Tape};
pub use taking::Taking;

/// One decision on the tape.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Number: 1, 2, 3 …, without gaps.
    pub seq: u64,
    /// Time of the decision by the machine's clock, in milliseconds since 1970.
    pub at_ms: u64,
    /// The decision.
    pub entry: Entry,
    /// Location of the bodies of a merge.
    pub place: Option<Place>,
}

/// Start of the bodies of a merge, which are stored one after another in the order of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the file.
    pub segment: u32,
    /// Offset of the first byte, which belongs to the length of the first body.
    pub offset: u64,
}
