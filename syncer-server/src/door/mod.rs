//! The front door: who may connect, how many at once, how long they may take to say what they want, and by which name
//! they must call this server.
//!
//! | file | concept |
//! |---|---|
//! | `crowd` | connections at once, in all and from one address |
//! | `descriptors` | how many files and sockets the system allows |
//! | `guess` | tokens and invites that are wrong |
//! | `host` | the names that this server answers to |
//! | `listen` | accepting connections, and answering them |
//! | `patience` | peers that stop in the middle |
//! | `shares` | how many of them the runs of one server may hold for long |
//! | `slow` | requests that show secrets |

mod crowd;
pub mod descriptors;
mod guess;
mod host;
mod listen;
mod patience;
mod shares;
mod slow;

pub use crowd::Place;
pub use listen::{Door, answer};
pub use shares::{Share, Shares, Taken};

use crate::config::ServeConfig;
use crate::errors::ServerError;

/// The door that `config` asks for. The system is asked for as many sockets as it allows.
///
/// # Errors
/// `Config`: a name is no name of a host.
pub fn open(config: &ServeConfig) -> Result<Door, ServerError> {
    let names = host::Names::new(&config.allow_host, config.public_url.as_deref());
    let names = names.map_err(|why| ServerError::Config { why: format!("--allow-host: {why}") })?;
    let connections_max = descriptors::connections(descriptors::raise(), config.connections_max);
    Ok(Door::new(connections_max, config.connections_per_address, names))
}
