//! Tape, roster and bus on NATS 2.11 or newer, on one server or on a cluster of three.
//!
//! The tape of each fragment is a JetStream stream, with sequence numbers as record numbers. An append names the last
//! number, which is the fence. The roster is a key-value bucket. The bus is core NATS messages. All names begin with a
//! prefix. The servers must write each record to the disk before they acknowledge it:
//! `jetstream { sync_interval: always }`.

mod bus;
mod direct;
mod look;
mod put;
mod roster;
mod tape;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use archipelago_core::wire::FragmentId;
use async_nats::jetstream::{self, context::ContextBuilder};
use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event, ServerAddr};
use tokio::time::{Instant, timeout};

pub(crate) use self::look::look;
use crate::cluster_id::ClusterId;
use crate::error::ServiceError;
use crate::persist::wait_for;
use crate::service::Answer;

/// Time limit for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Interval of pings on a silent connection. After the second unanswered ping the client switches to another server.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Time limit for a connection to one server.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Time limit for the creation of streams; fresh servers must elect a leader first.
const MAKE_WITHIN: Duration = Duration::from_secs(30);
/// Maximum length of a prefix in bytes.
const PREFIX_BYTES_MAX: usize = 32;

/// Addresses of the servers, and this cluster's part of them.
#[derive(Clone, Debug)]
pub struct NatsSettings {
    /// Addresses of the servers: `nats://[user:password@]host:port`, or `tls://…`; the first credentials are used.
    pub servers: Vec<String>,
    /// Prefix of all names: small letters, digits and `-`, 1 to 32 bytes.
    pub prefix: String,
    /// Number of servers that hold each record: 1, or 3 on a cluster of three, which survives the loss of one.
    pub replicas: usize,
    /// Fragments of the run.
    pub fragments: Vec<FragmentId>,
}

/// Last unsolicited message of a server, such as a missing permission.
type Said = Arc<Mutex<Option<String>>>;
/// User and password.
type Credentials = (String, String);

/// Tape, roster and bus on NATS.
pub struct Nats {
    client: Client,
    jetstream: jetstream::Context,
    prefix: String,
    /// Addresses of the servers as shown to people, without credentials.
    place: String,
    /// Last unsolicited message of the server, such as a missing permission.
    said: Said,
    mark: ClusterId,
    numbers: bus::Numbers,
}

impl Nats {
    /// Connects, and creates missing streams and the bucket. `mark` is the mark of the cluster. Existing streams have a
    /// different mark if another cluster, or another process of this cluster, created them: see [`Self::mark`].
    ///
    /// # Errors
    /// - [`ServiceError::Setting`]: an address, the prefix or the replicas.
    /// - [`ServiceError::Denied`]: user or password, or their permissions.
    /// - [`ServiceError::Silent`]: no answer, or fewer servers than replicas.
    /// - [`ServiceError::Missing`]: the servers have no JetStream.
    /// - [`ServiceError::Full`]: there is no room for a stream.
    /// - [`ServiceError::Foreign`]: the prefix belongs to another run.
    pub async fn open(settings: NatsSettings, mark: ClusterId) -> Result<Self, ServiceError> {
        let NatsSettings { servers, prefix, replicas, fragments } = settings;
        let addresses = addresses(&servers)?;
        check_prefix(&prefix)?;
        if !matches!(replicas, 1 | 3) {
            let (place, detail) = (format!("{replicas} replicas"), "1 or 3".to_owned());
            return Err(ServiceError::Setting { place, detail });
        }
        let place = format!("NATS at {}", hosts(&addresses));
        let said = Arc::default();
        let client = connect(&addresses, credentials(&addresses), &place, Arc::clone(&said)).await?;
        let jetstream = ContextBuilder::new().timeout(ANSWER_WITHIN).build(client.clone());
        let numbers = bus::Numbers::new();
        let mut nats = Self { client, jetstream, prefix, place, said, mark, numbers };
        let until = Instant::now() + MAKE_WITHIN;
        for fragment in fragments {
            let make = || -> Answer<'_, ClusterId> { Box::pin(nats.make_tape(fragment, replicas)) };
            let mark = nats.insist(until, make).await?;
            nats.adopt(mark)?;
        }
        nats.insist(until, || Box::pin(nats.make_roster(replicas))).await?;
        Ok(nats)
    }

    /// Returns the mark of the cluster: the given one, or that of the process that created the streams.
    #[must_use]
    pub fn mark(&self) -> &ClusterId {
        &self.mark
    }

    /// Adopts the mark of existing streams if they belong to the same run.
    fn adopt(&mut self, found: ClusterId) -> Result<(), ServiceError> {
        if found.run != self.mark.run {
            let (place, detail) =
                (format!("{}, prefix {}", self.place, self.prefix), found.beside(&self.mark));
            return Err(ServiceError::Foreign { place, detail });
        }
        self.mark = found;
        Ok(())
    }

    /// Retries `what` until it succeeds, fails for good, or `until` has passed.
    async fn insist<'a, T>(
        &'a self,
        until: Instant,
        what: impl Fn() -> Answer<'a, T>,
    ) -> Result<T, ServiceError> {
        let what = &what;
        wait_for(until, || async move {
            let done = timeout(2 * ANSWER_WITHIN, what()).await;
            done.unwrap_or_else(|_| Err(self.silent("no answer in time")))
        })
        .await
    }

    /// Returns the error for a missing answer: the server's unsolicited message if it is about a permission.
    fn silent(&self, detail: &str) -> ServiceError {
        let place = self.place.clone();
        match self.said.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(detail) => ServiceError::Denied { place, detail },
            None => ServiceError::Silent { place, detail: detail.to_owned() },
        }
    }

    /// Runs `what` with the time limit of an answer.
    async fn in_time<T>(
        &self,
        what: impl Future<Output = Result<T, ServiceError>> + Send,
    ) -> Result<T, ServiceError> {
        match timeout(ANSWER_WITHIN, what).await {
            Ok(Err(ServiceError::Silent { detail, .. })) => Err(self.silent(&detail)),
            Ok(done) => done,
            Err(_) => Err(self.silent("no answer in time")),
        }
    }
}

async fn connect(
    addresses: &[ServerAddr],
    by: Option<Credentials>,
    place: &str,
    said: Said,
) -> Result<Client, ServiceError> {
    let mut options = ConnectOptions::new()
        .name("archipelago")
        .connection_timeout(CONNECT_WITHIN)
        .request_timeout(Some(ANSWER_WITHIN))
        .ping_interval(PING_EVERY)
        .reconnect_delay_callback(|attempts| Duration::from_millis(50 * attempts.min(20) as u64))
        .event_callback(move |event| {
            let denied = match &event {
                Event::ServerError(error) => Some(error.to_string())
                    .filter(|said| said.to_lowercase().contains("permissions violation")),
                _ => None,
            };
            if denied.is_some() {
                *said.lock().unwrap_or_else(PoisonError::into_inner) = denied;
            }
            tracing::debug!("NATS: {event}");
            async {}
        });
    if let Some((user, password)) = by {
        options = options.user_and_password(user, password);
    }
    options.connect(addresses).await.map_err(|error| {
        let (place, detail) = (place.to_owned(), error.to_string());
        match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                ServiceError::Denied { place, detail }
            }
            ConnectErrorKind::ServerParse => ServiceError::Setting { place, detail },
            _ => ServiceError::Silent { place, detail },
        }
    })
}

fn addresses(servers: &[String]) -> Result<Vec<ServerAddr>, ServiceError> {
    if servers.is_empty() {
        let (place, detail) = ("an empty list of servers".to_owned(), "name one at least".to_owned());
        return Err(ServiceError::Setting { place, detail });
    }
    let address = |server: &String| {
        server.parse::<ServerAddr>().map_err(|error| ServiceError::Setting {
            place: "an address of a server".to_owned(),
            detail: format!("{error}; give nats://host:port"),
        })
    };
    servers.iter().map(address).collect()
}

/// Returns the first credentials among the addresses.
fn credentials(addresses: &[ServerAddr]) -> Option<Credentials> {
    addresses.iter().find_map(|at| Some((at.username()?.to_owned(), at.password()?.to_owned())))
}

/// Returns the addresses as shown to people, without credentials.
fn hosts(addresses: &[ServerAddr]) -> String {
    let host = |at: &ServerAddr| format!("{}:{}", at.host(), at.port());
    addresses.iter().map(host).collect::<Vec<_>>().join(", ")
}

/// # Errors
/// [`ServiceError::Setting`].
pub(crate) fn check_prefix(prefix: &str) -> Result<(), ServiceError> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=PREFIX_BYTES_MAX).contains(&prefix.len()) && prefix.bytes().all(fits) {
        return Ok(());
    }
    Err(ServiceError::Setting {
        place: format!("the prefix {prefix:?}"),
        detail: format!("1 to {PREFIX_BYTES_MAX} small letters, digits and -"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_addresses_are_looked_at() {
        for (prefix, fits) in [
            ("run-7", true),
            ("", false),
            ("a.b", false),
            ("A", false),
            (&"a".repeat(33), false),
            ("a b", false),
        ] {
            assert_eq!(check_prefix(prefix).is_ok(), fits, "{prefix}");
        }
        assert!(addresses(&[]).is_err());
        let addresses = addresses(&["nats://me:secret@one:4222".into(), "two".into()]).unwrap();
        assert_eq!(hosts(&addresses), "one:4222, two:4222");
    }
}
