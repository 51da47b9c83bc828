//! The listener: limits on connections, timeouts, host names, and TLS.
//!
//! | file | concept |
//! |---|---|
//! | `auth_throttle` | rate limit for checks of tokens and invites |
//! | `connection_limits` | limits on connections, in total and per address |
//! | `connection_shares` | long-lived connections of each run of a server |
//! | `host` | check of host names |
//! | `listen` | accepting and serving connections |
//! | `pending` | sockets that belong to no learner |
//! | `proxy` | trusted proxies that name their clients |
//! | `slow` | rate limit for requests with secrets |
//! | `stall_timeout` | timeouts for stalled peers |
//! | `tls` | the certificate and its renewal |

mod auth_throttle;
mod connection_limits;
mod connection_shares;
mod host;
mod listen;
mod pending;
mod proxy;
mod slow;
mod stall_timeout;
mod tls;

pub use auth_throttle::TooMany;
pub use connection_limits::{ConnectionGuard, connections_within, descriptor_limit};
pub use connection_shares::{ConnectionPermit, ConnectionShare, Shares};
pub use listen::{AcceptPolicy, answer};
pub use pending::Socket;
pub use slow::WrongSecret;

use std::net::ToSocketAddrs;

use crate::config::ServeConfig;
use crate::errors::ServerError;

/// Sets up the listener's limits and certificate by `config`, and raises the system's limit on open sockets.
///
/// # Errors
/// - `Config`: a host name or a proxy address is invalid, only one of certificate and key is given, or `--public-url`
///   is an http address although there is a certificate.
/// - `Certificate`: certificate or key cannot be used.
/// - `Internal`: TLS cannot be set up.
pub fn open(config: &ServeConfig) -> Result<AcceptPolicy, ServerError> {
    let (names, proxies, tls) = parts(config)?;
    let connections_max =
        connections_within(connection_limits::raise_descriptors(), config.server.connections_max);
    let limits =
        connection_limits::ConnectionLimits::new(connections_max, config.server.connections_per_address);
    Ok(AcceptPolicy { limits, names, proxies, tls })
}

/// Checks the settings of the listener as a start does, without listening and without a change to this process.
///
/// # Errors
/// Those of [`open`]; `Address` if `--listen` is malformed, or its name is unknown.
pub fn check(config: &ServeConfig) -> Result<(), ServerError> {
    let wrong = |source| ServerError::Address { address: config.server.listen.clone(), source };
    config.server.listen.to_socket_addrs().map(drop).map_err(wrong)?;
    parts(config).map(drop)
}

type Parts = (host::Names, proxy::Proxies, Option<tls::Tls>);

fn parts(config: &ServeConfig) -> Result<Parts, ServerError> {
    let names = host::Names::new(&config.server.allow_host, config.server.public_url.as_deref());
    let names = names.map_err(|why| ServerError::Config { why: format!("--allow-host: {why}") })?;
    let proxies = proxy::Proxies::new(&config.server.trusted_proxy);
    let proxies = proxies.map_err(|why| ServerError::Config { why: format!("--trusted-proxy: {why}") })?;
    Ok((names, proxies, certificate(config)?))
}

/// Checks the certificate in `config`, if there is one.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: `validate` refuses what a start refuses.
    #[test]
    fn settings_of_the_listener_are_checked_without_a_start() {
        assert!(check(&ServeConfig::default()).is_ok());
        let code = |change: fn(&mut ServeConfig)| {
            let mut config = ServeConfig::default();
            change(&mut config);
            check(&config).unwrap_err().exit_code()
        };
        assert_eq!(code(|config| config.server.listen = "127.0.0.1:99999".into()), 11);
        assert_eq!(code(|config| config.server.tls_cert = Some("nope".into())), 3);
        assert_eq!(
            code(|config| (config.server.tls_cert, config.server.tls_key) =
                (Some("nope".into()), Some("nope".into()))),
            21
        );
        assert_eq!(code(|config| config.server.trusted_proxy = vec!["foo".into()]), 3);
        assert_eq!(code(|config| config.server.allow_host = vec!["http://x".into()]), 3);
    }
}
