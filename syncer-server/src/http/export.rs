//! `/v1/export.zip`: the current model as an archive.
//!
//! One archive is made at a time. All requests that arrive while it is made, or within a minute afterwards, read the
//! same file. If all requests that wait for it hang up, the work is cancelled.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use archipelago_core::model::ModelSpec;
use archipelago_core::wire::RunSpec;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::App;
use super::coalesce::Coalesced;
use super::work_limit::{WorkError, WorkLimit};
use crate::actor::EvalSnapshot;
use crate::errors::ServerError;
use crate::export::{Form, Model};
use crate::progress::Cancellation;
use crate::store::{Store, disk};

/// Bytes sent at once.
const PIECE_BYTES: usize = 64 << 10;

/// Number of pieces read ahead of the peer.
const PIECES_AHEAD: usize = 2;

/// Time limit for a peer to take one piece.
const PIECE_WITHIN: Duration = Duration::from_secs(8);

/// Maximum number of simultaneous downloads.
const DOWNLOADS_MAX: usize = 64;

/// Maximum number of archives on disk: the newest one, and an older one that slow peers still download.
const ARCHIVES_MAX: usize = 2;

/// Time for which requests share a finished archive.
const SHARED_FOR: Duration = Duration::from_secs(60);

/// Retry delay of a refused request, in seconds.
const RETRY_S: &str = "30";

/// Source of model archives, and the newest archive.
pub struct Exports {
    spec: RunSpec,
    decoder: Option<ModelSpec>,
    store: Arc<Store>,
    licence: Option<String>,
    shared: Coalesced<Arc<Archive>, ExportError>,
    work: WorkLimit,
    archives: Arc<Semaphore>,
    downloads: Arc<Semaphore>,
    newest: Mutex<Weak<Archive>>,
}

/// An archive in an unnamed file on disk. The system deletes the file once no download reads it.
struct Archive {
    /// File name without the extension.
    name: String,
    /// Merged tokens and merged rounds of the model. They identify it.
    progress: (u64, u64),
    /// True if no more updates will be merged into the model.
    is_final: bool,
    /// Size in bytes.
    len: u64,
    file: Mutex<File>,
    _place: OwnedSemaphorePermit,
}

/// Reason why there is no archive.
#[derive(Clone, Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Work(#[from] WorkError),
    #[error("the server stops")]
    Stops,
    #[error("other clients still download an earlier model: try again later")]
    Full,
    #[error("the model could not be packed: the server's log says why")]
    Failed,
}

impl Archive {
    /// Returns the piece at byte `start`: at most [`PIECE_BYTES`], and empty at the end.
    fn piece(&self, start: u64) -> std::io::Result<Bytes> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(start))?;
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        (&mut *file).take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
        Ok(piece.into())
    }
}

impl Exports {
    /// Creates the source of archives for the run in the folder of `store`, described by `spec`. `licence` is the
    /// licence that the owner chose. `decoder` is the model if it is the built-in decoder.
    #[must_use]
    pub fn new(
        spec: RunSpec,
        decoder: Option<ModelSpec>,
        store: Arc<Store>,
        licence: Option<String>,
    ) -> Self {
        Self {
            spec,
            decoder,
            store,
            licence,
            shared: Coalesced::new(SHARED_FOR),
            work: WorkLimit::new(1, DOWNLOADS_MAX),
            archives: Arc::new(Semaphore::new(ARCHIVES_MAX)),
            downloads: Arc::new(Semaphore::new(DOWNLOADS_MAX)),
            newest: Mutex::default(),
        }
    }

    /// Returns the run's spec.
    #[must_use]
    pub fn spec(&self) -> &RunSpec {
        &self.spec
    }

    /// Returns the model if it is the built-in decoder.
    #[must_use]
    pub fn decoder(&self) -> Option<ModelSpec> {
        self.decoder
    }

    /// Makes the archive of the model in `subject`. Returns `None` if the work is cancelled.
    fn make(
        &self,
        subject: &EvalSnapshot,
        name: String,
        place: OwnedSemaphorePermit,
        cancellation: &Cancellation,
    ) -> Result<Option<Archive>, ServerError> {
        let path = self.store.tokenizer_path();
        let tokenizer = std::fs::read_to_string(&path).map_err(disk("read", &path))?;
        let missing = || ServerError::NoSnapshot { dir: self.store.dir().to_owned() };
        let manifest = self.store.manifest()?.ok_or_else(missing)?;
        let model = Model {
            theta: &subject.theta(),
            manifest: &manifest,
            tokenizer: &tokenizer,
            course: subject.course,
            form: Form { licence: self.licence.as_deref(), is_public: true, ..Form::default() },
        };
        let Some(file) = model.archive(self.store.dir(), &name, &|| cancellation.is_cancelled())? else {
            return Ok(None);
        };
        Ok(Some(Archive {
            name,
            progress: (subject.tokens_merged, subject.rounds),
            is_final: subject.is_final,
            len: file.metadata().map_err(disk("read", self.store.dir()))?.len(),
            file: Mutex::new(file),
            _place: place,
        }))
    }

    fn newest(&self) -> Option<Arc<Archive>> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }
}

/// `/v1/export.zip`.
pub async fn export(State(app): State<Arc<App>>) -> Response {
    let Ok(download) = Arc::clone(&app.exports.downloads).try_acquire_owned() else {
        let why = "many others are downloading the model: try again later\n";
        return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, RETRY_S)], why).into_response();
    };
    // For a complete run, an archive from before its end is not reused, even if it is fresh.
    let is_over = *app.context.actor.over_watch().borrow();
    let shared = app.exports.shared.get(
        |archive| archive.is_final || !is_over,
        || {
            let app = Arc::clone(&app);
            async move { archive(&app).await }
        },
    );
    let archive = match shared.await {
        Ok(archive) => archive,
        Err(error) => return error.into_response(),
    };
    let disposition = format!("attachment; filename=\"{}.zip\"", archive.name);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/zip")),
        (header::CONTENT_LENGTH, archive.len.into()),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::CONTENT_DISPOSITION, disposition.try_into().expect("digits and hyphens")),
    ];
    (headers, Body::from_stream(pieces(archive, download))).into_response()
}

/// Makes an archive of the current model, or returns the newest archive if it has the same model.
async fn archive(app: &Arc<App>) -> Result<Arc<Archive>, ExportError> {
    let permit = app.exports.work.permit().await?;
    let subject = app.context.actor.subject().await.ok_or(ExportError::Stops)?;
    let place = Arc::clone(&app.exports.archives).try_acquire_owned().ok();
    let is_same = |archive: &Archive| archive.progress == (subject.tokens_merged, subject.rounds);
    // An archive of an older model may be sent instead while no new one is possible, unless the run is complete.
    let stands_in = |archive: &Archive| is_same(archive) || place.is_none() && !subject.is_final;
    if let Some(newest) = app.exports.newest().filter(|newest| stands_in(newest)) {
        return Ok(newest);
    }
    let place = place.ok_or(ExportError::Full)?;
    let name = format!("archipelago-{}-{}", app.run, subject.tokens_merged);
    let making = Arc::clone(app);
    let made = permit.run(move |cancellation| making.exports.make(&subject, name, place, cancellation));
    match made.await? {
        Ok(Some(archive)) => {
            let archive = Arc::new(archive);
            *app.exports.newest.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&archive);
            Ok(archive)
        }
        Ok(None) => Err(ExportError::Work(WorkError::Failed)),
        Err(error) => {
            tracing::error!(%error, "no archive of the model");
            Err(ExportError::Failed)
        }
    }
}

impl IntoResponse for ExportError {
    fn into_response(self) -> Response {
        let retry = [(header::RETRY_AFTER, RETRY_S)];
        let why = format!("{self}\n");
        match self {
            Self::Work(error) => error.into_response(),
            Self::Stops | Self::Full => (StatusCode::SERVICE_UNAVAILABLE, retry, why).into_response(),
            Self::Failed => (StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
        }
    }
}

type Piece = std::io::Result<Bytes>;

/// Streams the bytes of `archive`, which a separate task reads. The task ends if the peer stops reading.
fn pieces(archive: Arc<Archive>, download: OwnedSemaphorePermit) -> impl stream::Stream<Item = Piece> {
    let (sender, receiver) = mpsc::channel::<Piece>(PIECES_AHEAD);
    tokio::spawn(async move {
        let _download = download;
        let mut start = 0;
        loop {
            let reading = Arc::clone(&archive);
            let read = tokio::task::spawn_blocking(move || reading.piece(start));
            // The peer detects an incomplete body by the `Content-Length` header.
            let Ok(Ok(piece)) = read.await else { return };
            start += piece.len() as u64;
            if piece.is_empty() || sender.send_timeout(Ok(piece), PIECE_WITHIN).await.is_err() {
                return;
            }
        }
    });
    stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
}
