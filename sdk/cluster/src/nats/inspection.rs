//! Read-only inspection of NATS servers.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use archipelago_core::wire::{FragmentId, RunId};
use async_nats::jetstream::context::{
    AccountErrorKind, ContextBuilder, GetStreamErrorKind, RequestErrorKind,
};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Config, Info};
use async_nats::jetstream::{Context, ErrorCode};
use async_nats::{Client, ServerAddr};
use bytes::Bytes;
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use super::{
    ANSWER_WITHIN, Credentials, LastServerMessage, MARK, Nats, addresses, bus, check_prefix, connect,
    credentials, hosts,
};
use crate::ids::ClusterId;
use crate::inspection::{Node, Streams};
use crate::service::ServiceError;
use crate::timestamp;

/// Subject of a request for our user and the server's time. Every user may send it.
const USER_INFO: &str = "$SYS.REQ.USER.INFO";

/// Time limit for servers to elect another leader after a loss.
const LOOK_WITHIN: Duration = Duration::from_secs(15);
/// Interval between retries meanwhile.
const PAUSE: Duration = Duration::from_millis(500);

/// Findings about NATS servers.
pub(crate) struct NatsFindings {
    /// Each server's address and findings.
    pub(crate) nodes: Vec<(String, Result<Node, ServiceError>)>,
    /// Streams under the prefix; `None` if no server is accessible.
    pub(crate) streams: Option<Result<Streams, ServiceError>>,
}

/// Connection to an accessible server, with its findings.
struct Open {
    node: Node,
    client: Client,
    last_message: LastServerMessage,
}

/// Inspects each of `servers`, and the streams of `fragments` under `prefix` through the first accessible server.
pub(crate) async fn inspect(servers: &[String], prefix: &str, fragments: &[FragmentId]) -> NatsFindings {
    let known = match addresses(servers) {
        Ok(known) => known,
        Err(error) => return NatsFindings { nodes: vec![("NATS".to_owned(), Err(error))], streams: None },
    };
    let by = credentials(&known);
    let connections = join_all(known.iter().map(|address| connect_to(address, by.clone()))).await;
    let (mut nodes, mut first) = (Vec::new(), None);
    for (address, entered) in known.iter().zip(connections) {
        let node = entered.map(|Open { node, client, last_message }| {
            // A server without JetStream returns the same streams if it belongs to the cluster.
            if first.is_none() {
                first = Some((client, last_message));
            }
            node
        });
        nodes.push((hosts(std::slice::from_ref(address)), node));
    }
    let Some((client, last_message)) = first else { return NatsFindings { nodes, streams: None } };
    let jetstream = ContextBuilder::new().timeout(ANSWER_WITHIN).build(client.clone());
    let nats = Nats {
        client,
        jetstream,
        prefix: prefix.to_owned(),
        place: format!("NATS at {}", hosts(&known)),
        last_message,
        mark: ClusterId { run: RunId(0), nonce: 0 },
        numbers: bus::Numbers::new(),
    };
    let until = Instant::now() + LOOK_WITHIN;
    let streams = loop {
        match nats.streams(fragments).await {
            // The servers may be electing another leader.
            Err(ServiceError::Silent { .. }) if Instant::now() < until => sleep(PAUSE).await,
            done => break done,
        }
    };
    NatsFindings { nodes, streams: Some(streams) }
}

async fn connect_to(address: &ServerAddr, by: Option<Credentials>) -> Result<Open, ServiceError> {
    let place = format!("NATS at {}", hosts(std::slice::from_ref(address)));
    let last_message = LastServerMessage::default();
    let connected = connect(std::slice::from_ref(address), by, &place, Arc::clone(&last_message));
    let client = timeout(2 * ANSWER_WITHIN, connected).await.unwrap_or_else(|_| {
        let detail = "no connection in time".to_owned();
        Err(ServiceError::Silent { place, detail })
    })?;
    let ahead_ms = ahead_ms(&client).await;
    // If the request for the time was refused, that is not an error.
    last_message.lock().unwrap_or_else(PoisonError::into_inner).take();
    let info = client.server_info();
    let node = Node {
        name: info.server_name,
        version: info.version,
        cluster: info.cluster,
        known: info.connect_urls.len(),
        jetstream: info.jetstream,
        ahead_ms,
    };
    Ok(Open { node, client, last_message })
}

/// Returns the offset of the server's clock from ours in milliseconds, positive if ahead; `None` if unknown.
async fn ahead_ms(client: &Client) -> Option<i64> {
    let asked = timestamp::now_ms();
    let answer = timeout(ANSWER_WITHIN, client.request(USER_INFO, Bytes::new())).await.ok()?.ok()?;
    let answered = timestamp::now_ms();
    let there = timestamp::of_stamp(time_of(std::str::from_utf8(&answer.payload).ok()?)?)?;
    Some(there - asked.midpoint(answered))
}

/// Returns the first `time` in an answer, which is the server's: its data come before the user's, and quotes in names
/// are escaped.
fn time_of(answer: &str) -> Option<&str> {
    answer.split_once("\"time\":\"")?.1.split_once('"').map(|(time, _)| time)
}

impl Nats {
    async fn streams(&self, fragments: &[FragmentId]) -> Result<Streams, ServiceError> {
        check_prefix(&self.prefix)?;
        let (bytes, bytes_max) = self.storage_use().await?;
        if bytes_max.is_some_and(|most| bytes >= most) {
            let (place, detail) =
                (self.place.clone(), format!("its streams have {bytes} bytes, the most allowed"));
            return Err(ServiceError::Full { place, detail });
        }
        if let Some(first) = fragments.first() {
            self.check_create_permission(&self.stream(*first)).await?;
        }
        let mut found = Streams { mark: None, records: 0, replicas: 0, bytes, bytes_max };
        for &fragment in fragments {
            let name = self.stream(fragment);
            let Some(info) = self.info(&name).await? else { continue };
            let mark = self.mark_of(&name, info.config.metadata.get(MARK).map(String::as_str))?;
            if let Some(first) = found.mark.as_ref().filter(|first| first.run != mark.run) {
                let place = format!("{}, stream {name}", self.place);
                return Err(ServiceError::Foreign { place, detail: mark.mismatch_with(first) });
            }
            let replicas = info.config.num_replicas;
            found.replicas = if found.mark.is_some() { found.replicas.min(replicas) } else { replicas };
            found.records += info.state.messages;
            found.mark = Some(mark);
        }
        Ok(found)
    }

    /// Returns the size in bytes of all streams of this account, and its limit if there is one.
    async fn storage_use(&self) -> Result<(u64, Option<u64>), ServiceError> {
        let account = self.jetstream.query_account().await.map_err(|error| match error.kind() {
            AccountErrorKind::JetStream(error) => self.trouble(&error),
            AccountErrorKind::JetStreamUnavailable => self.no_jetstream(&error.to_string()),
            _ => self.silent(&error.to_string()),
        })?;
        let most = account.limits.max_storage.and_then(|most| u64::try_from(most).ok());
        Ok((account.storage, most))
    }

    /// Checks the permission to create the stream `name`. The request's body names another stream, so no server
    /// creates a stream, but a missing permission is reported before that mismatch.
    async fn check_create_permission(&self, name: &str) -> Result<(), ServiceError> {
        let nothing = Config { name: format!("{}_look", self.prefix), ..Config::default() };
        let subject = format!("STREAM.CREATE.{name}");
        let answer: Result<Response<Info>, _> = Context::request(&self.jetstream, subject, &nothing).await;
        match answer {
            Ok(Response::Err { error }) if error.error_code() != ErrorCode::STREAM_MISMATCH => {
                Err(self.trouble(&error))
            }
            Ok(_) => Ok(()),
            Err(error) if error.kind() == RequestErrorKind::NoResponders => {
                Err(self.no_jetstream(&error.to_string()))
            }
            Err(error) => Err(self.silent(&error.to_string())),
        }
    }

    /// Returns the description of a stream, or `None` if it does not exist.
    async fn info(&self, name: &str) -> Result<Option<Info>, ServiceError> {
        match self.jetstream.get_stream(name).await {
            Ok(stream) => Ok(Some(stream.cached_info().clone())),
            Err(error) => match error.kind() {
                GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND => {
                    Ok(None)
                }
                GetStreamErrorKind::JetStream(error) => Err(self.trouble(&error)),
                _ => Err(self.silent(&error.to_string())),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_answer_is_the_servers() {
        let answer =
            r#"{"server":{"name":"\"time\":\"x","time":"1970-01-01T00:00:01Z"},"data":{"time":"y"}}"#;
        assert_eq!(time_of(answer), Some("1970-01-01T00:00:01Z"));
        assert_eq!(time_of("{}"), None);
    }
}
