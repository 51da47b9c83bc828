//! Tape, roster and bus on NATS 2.11 or newer, on one server or on three of a cluster.
//!
//! The tape of a fragment is a JetStream stream of its own, whose sequence numbers are the records' numbers; an append
//! names the last one, which is the fence. The roster is a bucket of keys and values. The bus is messages of core NATS.
//! All names begin with a prefix. The servers are to write each record to the disk before they acknowledge it:
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
use crate::error::ServiceError;
use crate::mark::Mark;
use crate::persist::wait_for;
use crate::service::Answer;

/// A question has an answer after so long, or none.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// A connection on which nothing is heard is tried after so long; after the second time another server is.
const PING_EVERY: Duration = Duration::from_secs(1);
/// A connection to one server is made within that time.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Streams are made within that time: servers that have just begun elect somebody first.
const MAKE_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of a prefix at most.
const PREFIX_BYTES_MAX: usize = 32;

/// Where the servers are, and how much of them this cluster has.
#[derive(Clone, Debug)]
pub struct NatsSettings {
    /// Their addresses, `nats://[user:password@]host:port`, or `tls://…`; the credentials of the first count.
    pub servers: Vec<String>,
    /// What all names begin with: small letters, digits and `-`, 1 to 32 bytes.
    pub prefix: String,
    /// On how many servers each record is: 1, or 3 of a cluster of three, which outlives the loss of one.
    pub replicas: usize,
    /// The fragments of the run.
    pub fragments: Vec<FragmentId>,
}

/// What a server last said unasked, such as that something is not allowed.
type Said = Arc<Mutex<Option<String>>>;
/// User and password.
type Credentials = (String, String);

/// Tape, roster and bus on NATS.
pub struct Nats {
    client: Client,
    jetstream: jetstream::Context,
    prefix: String,
    /// Of the servers, as people know them, without credentials.
    place: String,
    /// What the server last said unasked, such as that something is not allowed.
    said: Said,
    mark: Mark,
    numbers: bus::Numbers,
}

impl Nats {
    /// Connects, and makes streams and bucket, unless they are there. `mark` is of the cluster; what is there has
    /// another one, if it belongs to another cluster, or was made by another process of this one: see [`Self::mark`].
    ///
    /// # Errors
    /// - [`ServiceError::Setting`]: an address, the prefix or the replicas.
    /// - [`ServiceError::Denied`]: user or password, or what they allow.
    /// - [`ServiceError::Silent`]: nobody is there, or fewer servers than replicas.
    /// - [`ServiceError::Missing`]: the servers have no JetStream.
    /// - [`ServiceError::Full`]: there is no room for a stream.
    /// - [`ServiceError::Foreign`]: the prefix is that of another run.
    pub async fn open(settings: NatsSettings, mark: Mark) -> Result<Self, ServiceError> {
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
            let make = || -> Answer<'_, Mark> { Box::pin(nats.make_tape(fragment, replicas)) };
            let mark = nats.insist(until, make).await?;
            nats.adopt(mark)?;
        }
        nats.insist(until, || Box::pin(nats.make_roster(replicas))).await?;
        Ok(nats)
    }

    /// The mark of the cluster: the one that was given, or that of the process that made the streams.
    #[must_use]
    pub fn mark(&self) -> &Mark {
        &self.mark
    }

    /// Takes over the mark of what is there, if it is of the same run.
    fn adopt(&mut self, found: Mark) -> Result<(), ServiceError> {
        if found.run != self.mark.run {
            let (place, detail) =
                (format!("{}, prefix {}", self.place, self.prefix), found.beside(&self.mark));
            return Err(ServiceError::Foreign { place, detail });
        }
        self.mark = found;
        Ok(())
    }

    /// Does `what` again until it is done, cannot be done, or it is `until`.
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

    /// Why there was no answer: what the server said unasked, if it was about something that is not allowed.
    fn silent(&self, detail: &str) -> ServiceError {
        let place = self.place.clone();
        match self.said.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(detail) => ServiceError::Denied { place, detail },
            None => ServiceError::Silent { place, detail: detail.to_owned() },
        }
    }

    /// `what`, within the time that an answer takes.
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
            detail: format!("{error}; nats://host:port is meant"),
        })
    };
    servers.iter().map(address).collect()
}

/// Those of the first server that has some.
fn credentials(addresses: &[ServerAddr]) -> Option<Credentials> {
    addresses.iter().find_map(|at| Some((at.username()?.to_owned(), at.password()?.to_owned())))
}

/// The addresses as people may see them: without credentials.
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
