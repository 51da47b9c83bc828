//! Blobs in S3 storage, or in a folder that all machines of the cluster share.
//!
//! Each state is one object. It is written once (with `If-None-Match: *`, or with a hard link that must not exist)
//! and removed some time after newer states exist, so any store with such a condition is suitable. Its key is
//! `<place>/<prefix>/state/<fragment>/<number>`. The object `<place>/<prefix>/cluster` has the cluster's mark.

use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path as Folder, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use archipelago_core::wire::FragmentId;
use bytes::Bytes;
use hyper::body::Body;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    ClientOptions, GetResult, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};
use tokio::time::timeout;
use ureq::Agent;

use crate::ids::ClusterId;
use crate::inspection::{Storage, StorageFindings};
use crate::service::{Blobs, ServiceError, ServiceFuture};
use crate::timestamp;

/// Time limit for an answer. Each [`SLOW_BYTES`] of a state extend it by the same time.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
const SLOW_BYTES: usize = 8 << 20;
/// Number of retries of one request, in addition to those of the state machines.
const RETRIES: usize = 1;

/// Location of states.
#[derive(Clone, Debug, Default)]
pub struct StoreSettings {
    /// `s3://bucket[/folder]` or `file:///folder`.
    pub place: String,
    /// S3 variables with their values, which override the environment: `AWS_ENDPOINT_URL`, `AWS_REGION`,
    /// `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and others.
    pub variables: Vec<(String, String)>,
}

/// Storage for states.
pub struct StateStore {
    store: Arc<dyn ObjectStore>,
    /// Prefix of all keys.
    root: Path,
    /// Location of the storage as shown to people.
    place: String,
}

impl StateStore {
    /// Opens the storage under `prefix`. Writes the mark of the cluster unless a mark exists.
    ///
    /// # Errors
    /// - [`ServiceError::Setting`]: the place or one of the variables is invalid.
    /// - [`ServiceError::Missing`]: the bucket does not exist.
    /// - [`ServiceError::Denied`]: the keys are wrong or lack permissions, or the folder denies access.
    /// - [`ServiceError::ReadOnly`], [`ServiceError::Full`]: the folder's disk is read-only or full.
    /// - [`ServiceError::Silent`]: there is no answer.
    /// - [`ServiceError::Foreign`]: the prefix belongs to another cluster.
    pub async fn open(
        settings: &StoreSettings,
        prefix: &str,
        mark: &ClusterId,
    ) -> Result<Self, ServiceError> {
        let StoreSettings { place, variables } = settings;
        if let Some(folder) = folder(place)? {
            std::fs::create_dir_all(&folder)
                .map_err(|error| by_disk(&error, place.clone(), error.to_string()))?;
        }
        let this = Self::at_place(place, variables, prefix, ClockOffset::default())?;
        let at = this.mark_at();
        let ours = Bytes::from(mark.to_string());
        if this.in_time(0, this.create(&at, ours)).await? {
            return Ok(this);
        }
        match this.in_time(0, this.mark()).await? {
            Some(found) if found == *mark => Ok(this),
            found => {
                let detail = found.map_or_else(
                    || "its mark disappeared a moment ago".to_owned(),
                    |it| it.mismatch_with(mark),
                );
                Err(ServiceError::Foreign { place: this.place, detail })
            }
        }
    }

    /// Opens the storage under `prefix` without writing to it.
    fn at_place(
        place: &str,
        variables: &[(String, String)],
        prefix: &str,
        ahead: ClockOffset,
    ) -> Result<Self, ServiceError> {
        let (store, folder) = store(place, variables, ahead)?;
        let root = folder.into_iter().chain([prefix]).collect::<Path>();
        Ok(Self { store, root, place: format!("{place}, prefix {prefix}") })
    }

    /// Reads the cluster's mark, if there is one.
    async fn mark(&self) -> Result<Option<ClusterId>, ServiceError> {
        let Some(found) = self.get(&self.mark_at()).await? else { return Ok(None) };
        let found = String::from_utf8_lossy(&found).into_owned();
        ClusterId::read(&found).map(Some).ok_or_else(|| {
            let (place, detail) = (self.place.clone(), format!("its mark is {found:?}"));
            ServiceError::Foreign { place, detail }
        })
    }

    fn mark_at(&self) -> Path {
        self.root.clone().join("cluster")
    }

    fn at(&self, fragment: FragmentId, key: u64) -> Path {
        self.root.clone().join("state").join(fragment.to_string()).join(format!("{key:020}"))
    }

    /// Stores `bytes` unless the key exists. Returns false if it does.
    async fn create(&self, at: &Path, bytes: Bytes) -> Result<bool, ServiceError> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.store.put_opts(at, PutPayload::from(bytes), options).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => {
                Ok(false)
            }
            Err(error) => Err(self.trouble(&error, "the bucket")),
        }
    }

    /// Returns the object at a key, whose bytes are still to be read, or `None` if the key does not exist.
    async fn find(&self, at: &Path) -> Result<Option<GetResult>, ServiceError> {
        match self.store.get(at).await {
            Ok(found) => Ok(Some(found)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.trouble(&error, "an object")),
        }
    }

    async fn bytes(&self, found: GetResult) -> Result<Bytes, ServiceError> {
        found.bytes().await.map_err(|error| self.trouble(&error, "an object"))
    }

    async fn get(&self, at: &Path) -> Result<Option<Bytes>, ServiceError> {
        let Some(found) = self.find(at).await? else { return Ok(None) };
        self.bytes(found).await.map(Some)
    }

    async fn remove(&self, at: &Path) -> Result<(), ServiceError> {
        match self.store.delete(at).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.trouble(&error, "an object")),
        }
    }

    async fn put(&self, at: Path, bytes: Arc<Vec<u8>>) -> Result<bool, ServiceError> {
        let bytes = Bytes::from_owner(SharedBytes(bytes));
        if self.create(&at, bytes.clone()).await? {
            return Ok(true);
        }
        Ok(self.get(&at).await?.is_some_and(|there| there == bytes))
    }

    /// Runs `what` with the time limit for an answer of `bytes` bytes.
    async fn in_time<T>(
        &self,
        bytes: usize,
        what: impl Future<Output = Result<T, ServiceError>> + Send,
    ) -> Result<T, ServiceError> {
        let within =
            ANSWER_WITHIN.saturating_mul(1 + u32::try_from(bytes / SLOW_BYTES).unwrap_or(u32::MAX - 1));
        timeout(within, what).await.unwrap_or_else(|_| {
            let (place, detail) = (self.place.clone(), "no answer in time".to_owned());
            Err(ServiceError::Silent { place, detail })
        })
    }

    /// Converts an error of the store to a [`ServiceError`].
    fn trouble(&self, error: &object_store::Error, what: &str) -> ServiceError {
        let (place, detail) = (self.place.clone(), error.to_string());
        match error {
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                ServiceError::Denied { place, detail }
            }
            object_store::Error::NotFound { .. } => {
                ServiceError::Missing { place: format!("{what} of {place}"), detail }
            }
            error => by_disk(error, place, detail),
        }
    }
}

/// Converts `error`, according to the disk error that caused it, if there is one.
fn by_disk(error: &(dyn std::error::Error + 'static), place: String, detail: String) -> ServiceError {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => ServiceError::Full { place, detail },
                ErrorKind::ReadOnlyFilesystem => ServiceError::ReadOnly { place, detail },
                ErrorKind::PermissionDenied => ServiceError::Denied { place, detail },
                ErrorKind::NotFound => ServiceError::Missing { place, detail },
                ErrorKind::NotADirectory | ErrorKind::AlreadyExists => {
                    ServiceError::Setting { place, detail }
                }
                _ => ServiceError::Silent { place, detail },
            };
        }
        cause = error.source();
    }
    ServiceError::Silent { place, detail }
}

/// Returns the folder that `place` names, or `None` if it does not name a folder.
fn folder(place: &str) -> Result<Option<PathBuf>, ServiceError> {
    let Some(folder) = place.strip_prefix("file://").map(PathBuf::from) else { return Ok(None) };
    if !folder.is_absolute() {
        let detail = "give file:///folder".to_owned();
        return Err(ServiceError::Setting { place: place.to_owned(), detail });
    }
    Ok(Some(folder))
}

/// Opens the store at `place`. Returns it with the folder inside the bucket, if any. If answers have a date, the
/// offset of the store's clock is written to `ahead`.
fn store<'a>(
    place: &'a str,
    variables: &[(String, String)],
    ahead: ClockOffset,
) -> Result<(Arc<dyn ObjectStore>, Option<&'a str>), ServiceError> {
    let setting = |detail: String| ServiceError::Setting { place: place.to_owned(), detail };
    if let Some(folder) = folder(place)? {
        let store = LocalFileSystem::new_with_prefix(folder).map_err(|error| setting(error.to_string()))?;
        return Ok((Arc::new(store.with_fsync(true)), None));
    }
    let Some(bucket) = place.strip_prefix("s3://") else {
        return Err(setting("give s3://bucket/folder or file:///folder".to_owned()));
    };
    let (bucket, folder) =
        bucket.split_once('/').map_or((bucket, None), |(bucket, folder)| (bucket, Some(folder)));
    let retry = RetryConfig { max_retries: RETRIES, retry_timeout: ANSWER_WITHIN, ..RetryConfig::default() };
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
    for (name, value) in variables {
        let key: AmazonS3ConfigKey = name
            .to_ascii_lowercase()
            .parse()
            .map_err(|error: object_store::Error| setting(error.to_string()))?;
        builder = builder.with_config(key, value);
    }
    // If the address is without TLS, that is the operator's choice.
    let at = builder.get_config_value(&AmazonS3ConfigKey::Endpoint);
    let store = builder
        .with_allow_http(at.is_some_and(|at| at.starts_with("http://")))
        .with_http_connector(Connector(ahead))
        .build()
        .map_err(|error| setting(error.to_string()))?;
    Ok((Arc::new(store), folder.filter(|folder| !folder.is_empty())))
}

/// Shared bytes as a type that the store accepts.
struct SharedBytes(Arc<Vec<u8>>);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Blobs for StateStore {
    fn store(&self, fragment: FragmentId, key: u64, bytes: Arc<Vec<u8>>) -> ServiceFuture<'_, bool> {
        let (at, len) = (self.at(fragment, key), bytes.len());
        Box::pin(self.in_time(len, self.put(at, bytes)))
    }

    fn load(&self, fragment: FragmentId, key: u64) -> ServiceFuture<'_, Option<Vec<u8>>> {
        Box::pin(async move {
            let at = self.at(fragment, key);
            let Some(found) = self.in_time(0, self.find(&at)).await? else { return Ok(None) };
            let len = usize::try_from(found.meta.size).unwrap_or(usize::MAX);
            let bytes = self.in_time(len, self.bytes(found)).await?;
            Ok(Some(bytes.into()))
        })
    }

    fn forget(&self, fragment: FragmentId, keys: Range<u64>) -> ServiceFuture<'_, ()> {
        Box::pin(async move {
            for key in keys {
                let at = self.at(fragment, key);
                self.in_time(0, self.remove(&at)).await?;
            }
            Ok(())
        })
    }
}

/// Time limit for a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// Time without an answer after which a request fails.
const SILENCE: Duration = Duration::from_secs(5);
/// Maximum size of an answer in bytes: a state of 400 million values.
const ANSWER_BYTES_MAX: u64 = 4 << 30;

/// Offset of a server's clock from ours according to its last answer, in milliseconds, positive if ahead. It is
/// accurate to a second.
#[derive(Clone, Debug, Default)]
struct ClockOffset(Arc<Mutex<Option<i64>>>);

impl ClockOffset {
    /// Returns the offset, if the server has sent a date.
    fn ms(&self) -> Option<i64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the `date` of the answer to a request that was sent at `asked_ms`.
    fn note(&self, asked_ms: i64, date: &str) {
        if let Some(date_ms) = timestamp::of_header(date) {
            // The date is truncated to seconds; half a second more is the best estimate.
            let ahead_ms = date_ms + 500 - asked_ms.midpoint(timestamp::now_ms());
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(ahead_ms);
        }
    }
}

/// Factory of HTTP clients that record the offset of the server's clock.
#[derive(Debug)]
struct Connector(ClockOffset);

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let config = Agent::config_builder()
            .timeout_connect(Some(CONNECT_WITHIN))
            .timeout_recv_response(Some(SILENCE))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        Ok(HttpClient::new(Service(config.new_agent(), self.0.clone())))
    }
}

#[derive(Debug)]
struct Service(Agent, ClockOffset);

impl HttpService for Service {
    fn call<'a, 'b>(
        &'a self,
        request: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let (agent, ahead) = (self.0.clone(), self.1.clone());
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = whole(body).await?;
            let done = tokio::task::spawn_blocking(move || {
                let asked_ms = timestamp::now_ms();
                let answer = agent.run(ureq::http::Request::from_parts(head, &body[..]))?;
                let (head, mut body) = answer.into_parts();
                if let Some(date) = head.headers.get("date").and_then(|date| date.to_str().ok()) {
                    ahead.note(asked_ms, date);
                }
                let body = body.with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
                Ok(HttpResponse::from_parts(head, HttpResponseBody::from(body)))
            });
            match done.await {
                Ok(done) => done.map_err(trouble),
                Err(error) => Err(HttpError::new(HttpErrorKind::Unknown, error)),
            }
        })
    }
}

/// Reads all of a body.
async fn whole(mut body: HttpRequestBody) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::with_capacity(body.content_length());
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        if let Some(part) = frame?.data_ref() {
            bytes.extend_from_slice(part);
        }
    }
    Ok(bytes)
}

fn trouble(error: ureq::Error) -> HttpError {
    let kind = match &error {
        ureq::Error::Timeout(_) => HttpErrorKind::Timeout,
        ureq::Error::ConnectionFailed | ureq::Error::HostNotFound => HttpErrorKind::Connect,
        ureq::Error::Io(error) if error.kind() == ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
        ureq::Error::Io(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}

/// Inspects the storage under `prefix`.
pub(crate) async fn inspect(settings: &StoreSettings, prefix: &str) -> Storage {
    let ahead = ClockOffset::default();
    let place = format!("{}, prefix {prefix}", settings.place);
    let made = match folder(&settings.place) {
        Ok(Some(at)) => CreatedFolders::below(&at, prefix, &settings.place),
        Ok(None) => Ok(CreatedFolders::default()),
        Err(error) => Err(error),
    };
    let mut written_ahead_ms = None;
    let found = match made.and_then(|made| {
        let store = StateStore::at_place(&settings.place, &settings.variables, prefix, ahead.clone())?;
        Ok((made, store))
    }) {
        Ok((_made, store)) => store.in_time(0, store.probe(&mut written_ahead_ms)).await,
        Err(error) => Err(error),
    };
    Storage { place, found, ahead_ms: ahead.ms().or(written_ahead_ms) }
}

/// Folders that the inspection created. Dropping this value removes those that are empty.
#[derive(Default)]
struct CreatedFolders(Vec<PathBuf>);

impl CreatedFolders {
    /// Creates the missing parts of `folder/prefix`.
    fn below(folder: &Folder, prefix: &str, place: &str) -> Result<Self, ServiceError> {
        let inner = folder.join(prefix);
        let missing = inner.ancestors().take_while(|part| !part.exists()).map(Folder::to_owned).collect();
        let made = Self(missing);
        std::fs::create_dir_all(&inner)
            .map_err(|error| by_disk(&error, place.to_owned(), error.to_string()))?;
        Ok(made)
    }
}

impl Drop for CreatedFolders {
    fn drop(&mut self) {
        for folder in &self.0 {
            // A folder that is not empty is in use and stays.
            let _ = std::fs::remove_dir(folder);
        }
    }
}

impl StateStore {
    /// Writes an object with a unique name, checks that a second write fails, reads the object, and removes it. The
    /// object's modification time determines `ahead_ms`.
    async fn probe(&self, ahead_ms: &mut Option<i64>) -> Result<StorageFindings, ServiceError> {
        let at = self.root.clone().join(format!("look-{:016x}", super::random()));
        let (first, second) = (Bytes::from_static(b"first"), Bytes::from_static(b"second"));
        let asked_ms = timestamp::now_ms();
        let is_new = self.create(&at, first.clone()).await?;
        let written_ms = asked_ms.midpoint(timestamp::now_ms());
        let checked = self.check(&at, is_new, (first, second), written_ms, ahead_ms).await;
        let removed = self.store.delete(&at).await;
        checked?;
        let left = removed.err().map(|_| at.to_string());
        Ok(StorageFindings { mark: self.mark().await?, left })
    }

    async fn check(
        &self,
        at: &Path,
        is_new: bool,
        (first, second): (Bytes, Bytes),
        written_ms: i64,
        ahead_ms: &mut Option<i64>,
    ) -> Result<(), ServiceError> {
        let is_twice = self.create(at, second).await?;
        let found = self.find(at).await?;
        if let Some(found) = &found {
            *ahead_ms = Some(found.meta.last_modified.timestamp_millis() - written_ms);
        }
        let there = match found {
            Some(found) => Some(self.bytes(found).await?),
            None => None,
        };
        if is_new && !is_twice && there.as_ref() == Some(&first) {
            return Ok(());
        }
        let detail = match is_twice {
            true => "it overwrites existing objects, although `If-None-Match: *` asked it not to: use a storage that \
                 honours that header"
                .to_owned(),
            false => format!("reading returned other bytes than were written: {there:?}"),
        };
        Err(ServiceError::Setting { place: self.place.clone(), detail })
    }
}
