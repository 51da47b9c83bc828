//! Tape, roster and bus on NATS 2.11 or newer, on one server or on a cluster of three.
//!
//! The tape of each fragment is a JetStream stream, whose sequence numbers are the record numbers. An append names
//! the expected last number, which is the fence. The roster is a key-value bucket. The bus uses core NATS messages.
//! All names begin with a prefix. The servers must write each record to disk before they acknowledge it: `jetstream {
//! sync_interval: always }`.

mod bus;
mod inspection;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use archipelago_core::cluster::{AsBytes, ProcessId, Record};
use archipelago_core::wire::FragmentId;
use async_nats::header::{IntoHeaderName, NATS_EXPECTED_LAST_SEQUENCE, NATS_EXPECTED_LAST_SUBJECT_SEQUENCE};
use async_nats::jetstream::context::{ContextBuilder, CreateStreamErrorKind, PublishError, PublishErrorKind};
use async_nats::jetstream::kv;
use async_nats::jetstream::stream::{self, DiscardPolicy, StorageType};
use async_nats::jetstream::{self, ErrorCode};
use async_nats::{
    Client, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, ServerAddr, StatusCode,
};
use bytes::Bytes;
use futures::StreamExt;
use tokio::time::{Instant, timeout};

use crate::ids::ClusterId;
use crate::retry::wait_for;
use crate::service::{Cell, Entry, Roster, ServiceError, ServiceFuture, Tape};

pub(crate) use inspection::inspect;

/// Time limit for an answer of a server.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// Interval of pings on a silent connection. After two unanswered pings the client switches to another server.
const PING_EVERY: Duration = Duration::from_secs(1);
/// Time limit for a connection to one server.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Time limit for the creation of streams. Servers that have just started must elect a leader first.
const MAKE_WITHIN: Duration = Duration::from_secs(30);
/// Maximum length of a prefix in bytes.
const PREFIX_BYTES_MAX: usize = 32;

/// Addresses of the servers, and the names and sizes for this cluster.
#[derive(Clone, Debug)]
pub struct NatsSettings {
    /// Addresses of the servers: `nats://[user:password@]host:port`, or `tls://…`. The first credentials are used for
    /// all.
    pub servers: Vec<String>,
    /// Prefix of all names: small letters, digits and `-`, 1 to 32 bytes.
    pub prefix: String,
    /// Number of servers that hold each record: 1, or 3 on a cluster of three, which survives the loss of one server.
    pub replicas: usize,
    /// Fragments of the run.
    pub fragments: Vec<FragmentId>,
}

/// Last message of a server about a missing permission.
type LastServerMessage = Arc<Mutex<Option<String>>>;
/// User and password.
type Credentials = (String, String);

/// Tape, roster and bus on NATS.
pub struct Nats {
    client: Client,
    jetstream: jetstream::Context,
    prefix: String,
    /// Addresses of the servers as shown to people, without credentials.
    place: String,
    /// Last message of the server about a missing permission.
    last_message: LastServerMessage,
    mark: ClusterId,
    numbers: bus::Numbers,
}

impl Nats {
    /// Connects, and creates missing streams and the bucket. `mark` is the mark for new streams. If streams exist,
    /// their mark is adopted: see [`Self::mark`].
    ///
    /// # Errors
    /// - [`ServiceError::Setting`]: an address, the prefix or the number of replicas is invalid.
    /// - [`ServiceError::Denied`]: user or password are wrong, or lack permissions.
    /// - [`ServiceError::Silent`]: there is no answer, or there are fewer servers than replicas.
    /// - [`ServiceError::Missing`]: the servers have no JetStream.
    /// - [`ServiceError::Full`]: there is no space for a stream.
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
        let last_message = Arc::default();
        let client = connect(&addresses, credentials(&addresses), &place, Arc::clone(&last_message)).await?;
        let jetstream = ContextBuilder::new().timeout(ANSWER_WITHIN).build(client.clone());
        let numbers = bus::Numbers::new();
        let mut nats = Self { client, jetstream, prefix, place, last_message, mark, numbers };
        let until = Instant::now() + MAKE_WITHIN;
        for fragment in fragments {
            let make = || -> ServiceFuture<'_, ClusterId> { Box::pin(nats.make_tape(fragment, replicas)) };
            let mark = nats.retry_until(until, make).await?;
            nats.adopt(mark)?;
        }
        nats.retry_until(until, || Box::pin(nats.make_roster(replicas))).await?;
        Ok(nats)
    }

    /// Returns the mark of the cluster: that of the process that created the streams.
    #[must_use]
    pub fn mark(&self) -> &ClusterId {
        &self.mark
    }

    /// Adopts the mark of existing streams if they belong to the same run.
    fn adopt(&mut self, found: ClusterId) -> Result<(), ServiceError> {
        if found.run != self.mark.run {
            let (place, detail) =
                (format!("{}, prefix {}", self.place, self.prefix), found.mismatch_with(&self.mark));
            return Err(ServiceError::Foreign { place, detail });
        }
        self.mark = found;
        Ok(())
    }

    /// Retries `what` until it succeeds, fails permanently, or the time is `until`.
    async fn retry_until<'a, T>(
        &'a self,
        until: Instant,
        what: impl Fn() -> ServiceFuture<'a, T>,
    ) -> Result<T, ServiceError> {
        let what = &what;
        wait_for(until, || async move {
            let done = timeout(2 * ANSWER_WITHIN, what()).await;
            done.unwrap_or_else(|_| Err(self.silent("no answer in time")))
        })
        .await
    }

    /// Returns the error for a missing answer: [`ServiceError::Denied`] if the server reported a missing permission.
    fn silent(&self, detail: &str) -> ServiceError {
        let place = self.place.clone();
        match self.last_message.lock().unwrap_or_else(PoisonError::into_inner).take() {
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
    last_message: LastServerMessage,
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
                    .filter(|last_message| last_message.to_lowercase().contains("permissions violation")),
                _ => None,
            };
            if denied.is_some() {
                *last_message.lock().unwrap_or_else(PoisonError::into_inner) = denied;
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

/// Returns the first credentials in the addresses.
fn credentials(addresses: &[ServerAddr]) -> Option<Credentials> {
    addresses.iter().find_map(|at| Some((at.username()?.to_owned(), at.password()?.to_owned())))
}

/// Returns the addresses as shown to people, without credentials.
fn hosts(addresses: &[ServerAddr]) -> String {
    let host = |at: &ServerAddr| format!("{}:{}", at.host(), at.port());
    addresses.iter().map(host).collect::<Vec<_>>().join(", ")
}

/// Checks that a prefix is valid.
///
/// # Errors
/// [`ServiceError::Setting`]: the prefix is invalid.
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

impl Nats {
    /// Stores `bytes` under `subject` if the last sequence number that the header `fence` refers to equals `expect`.
    /// Returns the message's number, or `None` if the numbers differ.
    async fn put(
        &self,
        subject: String,
        (fence, expect): (impl IntoHeaderName, u64),
        bytes: Vec<u8>,
    ) -> Result<Option<u64>, ServiceError> {
        let mut headers = HeaderMap::new();
        headers.insert(fence, expect.to_string());
        let result = match self.jetstream.publish_with_headers(subject, headers, bytes.into()).await {
            Ok(acknowledgement) => acknowledgement.await,
            Err(error) => Err(error),
        };
        match result {
            Ok(acknowledgement) => Ok(Some(acknowledgement.sequence)),
            Err(error) if error.kind() == PublishErrorKind::WrongLastSequence => Ok(None),
            Err(error) => match jetstream_error(&error) {
                Some(error) if error.error_code() == ErrorCode::STREAM_WRONG_LAST_SEQUENCE_CONSTANT => {
                    Ok(None)
                }
                Some(error) => Err(self.trouble(error)),
                None if error.kind() == PublishErrorKind::MaxPayloadExceeded => Err(ServiceError::Setting {
                    place: self.place.clone(),
                    detail: format!("raise max_payload of the servers: {error}"),
                }),
                None => Err(self.silent(&error.to_string())),
            },
        }
    }

    fn no_jetstream(&self, detail: &str) -> ServiceError {
        ServiceError::Missing { place: format!("JetStream on {}", self.place), detail: detail.to_owned() }
    }

    /// Converts an error of JetStream to a [`ServiceError`].
    fn trouble(&self, error: &jetstream::Error) -> ServiceError {
        let (place, detail) = (self.place.clone(), error.to_string());
        match error.error_code() {
            ErrorCode::JETSTREAM_NOT_ENABLED | ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT => {
                self.no_jetstream(&detail)
            }
            ErrorCode::INSUFFICIENT_RESOURCES
            | ErrorCode::STORAGE_RESOURCES_EXCEEDED
            | ErrorCode::ACCOUNT_RESOURCES_EXCEEDED
            | ErrorCode::MAXIMUM_STREAMS_LIMIT
            | ErrorCode::STREAM_STORE_FAILED
            | ErrorCode::STREAM_MAX_STREAM_BYTES_EXCEEDED => ServiceError::Full { place, detail },
            ErrorCode::STREAM_NOT_FOUND => ServiceError::Missing { place, detail },
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => ServiceError::Setting { place, detail },
            _ => ServiceError::Silent { place, detail },
        }
    }
}

fn jetstream_error(error: &PublishError) -> Option<&jetstream::Error> {
    std::error::Error::source(error)?.downcast_ref()
}

/// Message of a stream.
struct StreamMessage {
    /// Sequence number in the stream.
    seq: u64,
    /// Subject of the message.
    subject: String,
    /// Content of the message.
    payload: Bytes,
}

/// Sends a request to the direct-get API of `stream`. Returns the messages and the number of further ones.
///
/// # Errors
/// A description of the missing or failed answer.
async fn get(client: &Client, stream: &str, question: String) -> Result<(Vec<StreamMessage>, u64), String> {
    let inbox = client.new_inbox();
    let mut answers = client.subscribe(inbox.clone()).await.map_err(|error| error.to_string())?;
    let subject = format!("$JS.API.DIRECT.GET.{stream}");
    client.publish_with_reply(subject, inbox, question.into()).await.map_err(|error| error.to_string())?;
    let mut got = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer.status {
            None | Some(StatusCode::OK) => got.push(read(answer)?),
            // The status 204 ends a batch.
            Some(status) if status.as_u16() == 204 => {
                let headers = answer.headers.unwrap_or_default();
                return Ok((got, header_number(&headers, "Nats-Num-Pending").unwrap_or_default()));
            }
            Some(StatusCode::NOT_FOUND) => return Ok((got, 0)),
            Some(status) => return Err(refused(status, &answer)),
        }
    }
    Err("the connection ended".to_owned())
}

/// Reads one message of `stream`; `None` if it does not exist.
///
/// # Errors
/// A description of the missing or failed answer.
async fn one(client: &Client, stream: &str, question: String) -> Result<Option<StreamMessage>, String> {
    let subject = format!("$JS.API.DIRECT.GET.{stream}");
    let answer = client.request(subject, question.into()).await.map_err(|error| error.to_string())?;
    match answer.status {
        None | Some(StatusCode::OK) => read(answer).map(Some),
        Some(StatusCode::NOT_FOUND) => Ok(None),
        Some(status) => Err(refused(status, &answer)),
    }
}

fn read(answer: Message) -> Result<StreamMessage, String> {
    let headers = answer.headers.unwrap_or_default();
    let seq = header_number(&headers, "Nats-Sequence").ok_or("an answer without a number")?;
    let subject = headers.get("Nats-Subject").map(ToString::to_string).unwrap_or_default();
    Ok(StreamMessage { seq, subject, payload: answer.payload })
}

fn refused(status: StatusCode, answer: &Message) -> String {
    format!("{status} {}", answer.description.as_deref().unwrap_or_default())
}

fn header_number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.as_str().parse().ok()
}

/// Time without a write after which an entry of the roster is deleted. Leases are much shorter.
const FORGET_AFTER: Duration = Duration::from_hours(1);

impl Nats {
    fn bucket(&self) -> String {
        format!("{}_roster", self.prefix)
    }

    /// Creates the bucket of the roster unless it exists.
    async fn make_roster(&self, replicas: usize) -> Result<(), ServiceError> {
        if self.jetstream.get_key_value(self.bucket()).await.is_ok() {
            return Ok(());
        }
        let config = kv::Config {
            bucket: self.bucket(),
            history: 1,
            max_age: FORGET_AFTER,
            num_replicas: replicas,
            ..kv::Config::default()
        };
        let made = self.jetstream.create_key_value(config).await;
        made.map(drop).map_err(|error| self.silent(&error.to_string()))
    }

    async fn all(&self) -> Result<Vec<Entry>, ServiceError> {
        let question = format!("{{\"multi_last\":[\"$KV.{}.>\"]}}", self.bucket());
        let got = get(&self.client, &format!("KV_{}", self.bucket()), question).await;
        let (got, _) = got.map_err(|detail| self.silent(&detail))?;
        let entry = |message: StreamMessage| {
            let cell = cell(message.subject.splitn(3, '.').nth(2)?)?;
            let holder = std::str::from_utf8(&message.payload).ok().and_then(parse_number).map(ProcessId);
            Some(Entry { cell, holder, revision: message.seq })
        };
        // Keys of other programs are ignored.
        Ok(got.into_iter().filter_map(entry).collect())
    }
}

/// Returns the key for a cell of the roster.
fn key(cell: Cell) -> String {
    match cell {
        Cell::Lease(fragment) => format!("lease.{fragment}"),
        Cell::Present(process) => format!("present.{:016x}", process.0),
    }
}

/// Returns the cell for a key, or `None` if the key is invalid.
fn cell(key: &str) -> Option<Cell> {
    match key.split_once('.')? {
        ("lease", fragment) => fragment.parse().ok().map(FragmentId).map(Cell::Lease),
        ("present", process) => parse_number(process).map(ProcessId).map(Cell::Present),
        _ => None,
    }
}

fn parse_number(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

impl Roster for Nats {
    fn list(&self) -> ServiceFuture<'_, Vec<Entry>> {
        Box::pin(self.in_time(self.all()))
    }

    fn write(&self, cell: Cell, holder: Option<ProcessId>, expect: u64) -> ServiceFuture<'_, Option<u64>> {
        let value = holder.map(|process| format!("{:016x}", process.0)).unwrap_or_default();
        let subject = format!("$KV.{}.{}", self.bucket(), key(cell));
        let fence = (NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, expect);
        Box::pin(self.in_time(self.put(subject, fence, value.into_bytes())))
    }
}

/// Maximum number of records in the answer to one request.
const BATCH: u64 = 256;
/// Key of the cluster's mark in the metadata of a stream.
const MARK: &str = "archipelago-cluster";

impl Nats {
    fn stream(&self, fragment: FragmentId) -> String {
        format!("{}_tape_{fragment}", self.prefix)
    }

    fn subject(&self, fragment: FragmentId) -> String {
        format!("{}.tape.{fragment}", self.prefix)
    }

    /// Creates the stream of a fragment unless it exists. Returns the stream's mark.
    async fn make_tape(&self, fragment: FragmentId, replicas: usize) -> Result<ClusterId, ServiceError> {
        let name = self.stream(fragment);
        let config = stream::Config {
            name: name.clone(),
            subjects: vec![self.subject(fragment)],
            num_replicas: replicas,
            storage: StorageType::File,
            discard: DiscardPolicy::New,
            allow_direct: true,
            deny_delete: true,
            deny_purge: true,
            metadata: [(MARK.to_owned(), self.mark.to_string())].into(),
            ..stream::Config::default()
        };
        let made = match self.jetstream.create_stream(config).await {
            Ok(stream) => stream.cached_info().config.metadata.get(MARK).cloned(),
            Err(error) => match error.kind() {
                CreateStreamErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::STREAM_NAME_EXIST =>
                {
                    let there = self.jetstream.get_stream(&name).await;
                    let there = there.map_err(|error| self.silent(&error.to_string()))?;
                    there.cached_info().config.metadata.get(MARK).cloned()
                }
                CreateStreamErrorKind::JetStream(error) => return Err(self.trouble(&error)),
                CreateStreamErrorKind::JetStreamUnavailable => {
                    return Err(self.no_jetstream(&error.to_string()));
                }
                _ => return Err(self.silent(&error.to_string())),
            },
        };
        self.mark_of(&name, made.as_deref())
    }

    /// Parses the mark `found` of the stream `name`.
    ///
    /// # Errors
    /// [`ServiceError::Foreign`]: the stream has no valid mark.
    fn mark_of(&self, name: &str, found: Option<&str>) -> Result<ClusterId, ServiceError> {
        found.and_then(ClusterId::read).ok_or_else(|| ServiceError::Foreign {
            place: format!("{}, stream {name}", self.place),
            detail: "it was not made by the cluster of a run".to_owned(),
        })
    }

    /// Returns the name of the server that leads a fragment's stream, if the servers form a cluster and have elected
    /// one.
    ///
    /// # Errors
    /// [`ServiceError::Silent`], [`ServiceError::Denied`]: the server does not answer, or denies access.
    pub async fn leader(&self, fragment: FragmentId) -> Result<Option<String>, ServiceError> {
        let name = self.stream(fragment);
        let leader = async {
            let stream = self.jetstream.get_stream(&name).await;
            let stream = stream.map_err(|error| self.silent(&error.to_string()))?;
            Ok(stream.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone()))
        };
        self.in_time(leader).await
    }

    /// Returns the next records after number `after`, and whether there are more.
    async fn next(&self, fragment: FragmentId, after: u64) -> Result<(Vec<Record>, bool), ServiceError> {
        let question = format!("{{\"seq\":{},\"batch\":{BATCH}}}", after + 1);
        let got = get(&self.client, &self.stream(fragment), question).await;
        let (got, pending) = got.map_err(|detail| self.silent(&detail))?;
        let mut records = Vec::new();
        for (message, seq) in got.iter().zip(after + 1..) {
            let place = || format!("record {seq} of fragment {fragment} on {}", self.place);
            if message.seq != seq {
                let detail = format!("record {} follows {}", message.seq, seq - 1);
                return Err(ServiceError::Damaged { place: place(), detail });
            }
            let record = Record::of_bytes(&message.payload);
            records.push(
                record
                    .map_err(|error| ServiceError::Damaged { place: place(), detail: error.to_string() })?,
            );
        }
        let is_more = pending > 0 && !records.is_empty();
        Ok((records, is_more))
    }
}

impl Tape for Nats {
    fn append<'a>(
        &'a self,
        fragment: FragmentId,
        expect: u64,
        record: &'a Record,
    ) -> ServiceFuture<'a, Option<u64>> {
        let bytes = record.to_bytes();
        Box::pin(self.in_time(self.put(self.subject(fragment), (NATS_EXPECTED_LAST_SEQUENCE, expect), bytes)))
    }

    fn read(&self, fragment: FragmentId, after: u64) -> ServiceFuture<'_, Vec<Record>> {
        Box::pin(async move {
            let mut records: Vec<Record> = Vec::new();
            loop {
                let known = after + records.len() as u64;
                let (more, is_more) = self.in_time(self.next(fragment, known)).await?;
                records.extend(more);
                if !is_more {
                    return Ok(records);
                }
            }
        })
    }

    fn newest(&self, fragment: FragmentId) -> ServiceFuture<'_, u64> {
        Box::pin(self.in_time(async move {
            let question = format!("{{\"last_by_subj\":{:?}}}", self.subject(fragment));
            let got = one(&self.client, &self.stream(fragment), question).await;
            let got = got.map_err(|detail| self.silent(&detail))?;
            Ok(got.map_or(0, |newest| newest.seq))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_and_addresses_are_checked() {
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

    #[test]
    fn a_key_is_read_as_it_was_written() {
        for place in
            [Cell::Lease(FragmentId(0)), Cell::Lease(FragmentId(63)), Cell::Present(ProcessId(u64::MAX))]
        {
            assert_eq!(cell(&key(place)), Some(place));
        }
        for text in ["", "lease", "lease.x", "present.y", "other.1"] {
            assert_eq!(cell(text), None, "{text}");
        }
    }
}
