//! The listener: limits on connections and timeouts, permitted host names, and TLS.
//!
//! | file | concept |
//! |---|---|
//! | `auth_throttle` | rate limit for checks of tokens and invites |
//! | `connection_limits` | limits on connections, in all and from one address |
//! | `descriptors` | the system's limit on files and sockets |
//! | `host` | host names of this server |
//! | `listen` | accepting and serving connections |
//! | `pending` | sockets that belong to no learner |
//! | `proxy` | trusted proxies that name their clients |
//! | `shares` | long-lived connections of each run of one server |
//! | `slow` | requests that show secrets |
//! | `stall_timeout` | timeouts for stalled peers |
//! | `tls` | the certificate and its renewal |

mod auth_throttle;
mod connection_limits;
mod connection_shares;
pub mod descriptors;
mod host;
mod listen;
mod pending;
mod proxy;
mod slow;
mod stall_timeout;
mod tls;

pub use auth_throttle::TooMany;
pub use connection_limits::Place;
pub use connection_shares::{ConnectionPermit, ConnectionShare, Shares};
pub use listen::{Door, answer};
pub use pending::Socket;
pub use slow::WrongSecret;

use crate::config::ServeConfig;
use crate::errors::ServerError;

/// Creates the checks that `config` asks for, and raises the system's limit on sockets.
///
/// # Errors
/// - `Config`: a host name or a proxy address is invalid, or only one of certificate and key is given.
/// - `Certificate`: they cannot be used.
pub fn open(config: &ServeConfig) -> Result<Door, ServerError> {
    let names = host::Names::new(&config.server.allow_host, config.server.public_url.as_deref());
    let names = names.map_err(|why| ServerError::Config { why: format!("--allow-host: {why}") })?;
    let proxies = proxy::Proxies::new(&config.server.trusted_proxy);
    let proxies = proxies.map_err(|why| ServerError::Config { why: format!("--trusted-proxy: {why}") })?;
    let tls = certificate(config)?;
    let connections_max = descriptors::connections(descriptors::raise(), config.server.connections_max);
    let crowd =
        connection_limits::ConnectionLimits::new(connections_max, config.server.connections_per_address);
    Ok(Door { crowd, names, proxies, tls })
}

/// Checks the certificate that `config` names, if it names one.
///
/// # Errors
/// Those of [`open`].
pub fn check_certificate(config: &ServeConfig) -> Result<(), ServerError> {
    certificate(config).map(drop)
}

fn certificate(config: &ServeConfig) -> Result<Option<tls::Tls>, ServerError> {
    let wrong = |why: &str| Err(ServerError::Config { why: why.into() });
    let is_plain = config.server.public_url.as_deref().is_some_and(|url| url.starts_with("http://"));
    match (&config.server.tls_cert, &config.server.tls_key) {
        (None, None) => Ok(None),
        (Some(_), Some(_)) if is_plain => {
            wrong("--public-url begins with http://, and with --tls-cert the server accepts only https")
        }
        (Some(cert), Some(key)) => tls::Tls::open(cert, key).map(Some),
        (Some(_), None) => wrong("--tls-cert needs the key of the certificate: give --tls-key too"),
        (None, Some(_)) => wrong("--tls-key needs its certificate: give --tls-cert too"),
    }
}
