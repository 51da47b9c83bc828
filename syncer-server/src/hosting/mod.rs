//! Several runs on one server, each in a folder of its own below one folder: its settings, its tape, its tokens.
//!
//! | file | concept |
//! |---|---|
//! | `settings` | the file that makes a folder a run |
//! | `host` | what listens, and the end of it all |
//! | `house` | the runs that are there, started and stopped one by one |
//! | `routes` | the way from a request to its run, and the owner's orders |
//! | `view` | what `/v1/runs` tells |
//! | `orders` | the same orders from a terminal |
//!
//! Runs share the listener, the pages and the threads of the program, and nothing else: each has its actor, core, tape
//! and folder, its sockets and their limits, its invite and its token. Merges, measurements and the disk are worked on
//! by threads that the system shares out, so that a run that merges much does not keep another from merging.

mod host;
mod house;
mod orders;
mod routes;
mod settings;
mod view;

pub use host::host;
pub use orders::{order, runs};
pub use view::{RunFigures, RunState, RunView, RunsView};

pub(crate) use routes::single;
