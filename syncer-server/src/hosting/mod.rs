//! Several runs on one server. Each has its own folder, with its settings, its tape and its tokens.
//!
//! | file | concept |
//! |---|---|
//! | `settings` | the settings file in the folder of a run |
//! | `host` | the listener, and shutdown |
//! | `run_registry` | the registry of runs, started and stopped one by one |
//! | `routes` | routing of requests to runs, and the owner's orders |
//! | `view` | the JSON of `/v1/runs` |
//! | `run_commands` | the owner's orders about runs, given from a terminal |
//!
//! Runs share only the listener, the pages and the threads of the program. Each has its own actor, core, tape, folder,
//! sockets with their limits, invite and token. Merges, measurements and disk writes run on threads that the system
//! schedules, so that a run with many merges does not block the merges of another.

mod host;
mod routes;
mod run_commands;
mod run_registry;
mod settings;
mod view;

pub use host::host;
pub use run_commands::{order, runs};
pub use view::{RunFigures, RunState, RunView, RunsView};

pub(crate) use routes::single;
