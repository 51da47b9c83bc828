//! What is the same wherever a run's tape is kept, on a server's disk or a simulated one.
//!
//! | file | concept |
//! |---|---|
//! | `gate` | what waits until the decisions before it are kept |
//! | `held` | in which order bodies and rows are written, several decisions at once |
//! | `store` | where both are kept |
//! | `chain` | the checksum of a row and of all before it |
//! | `taking` | a snapshot, taken while merging goes on |

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
    /// 1, 2, 3 …, without gaps.
    pub seq: u64,
    /// When it was taken, in milliseconds since 1970, as far as the machine knew.
    pub at_ms: u64,
    /// The decision.
    pub entry: Entry,
    /// Where the bodies of a merge are.
    pub place: Option<Place>,
}

/// Where the bodies of a merge begin; they stand one after another, in the order of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The number of the file.
    pub segment: u32,
    /// The first byte, of the length of the first body.
    pub offset: u64,
}
