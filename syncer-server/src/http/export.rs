//! `/v1/export.zip`: the model to take home, as it is now.

use std::fs::File;
use std::io::Read;
use std::sync::Arc;
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
use crate::actor::Subject;
use crate::errors::ServerError;
use crate::export::{Form, Model};
use crate::store::{Store, disk};

/// Bytes sent at once.
const PIECE_BYTES: usize = 256 << 10;

/// Pieces read ahead.
const PIECES_AHEAD: usize = 2;

/// Time that a peer may take for one piece.
const PIECE_WITHIN: Duration = Duration::from_secs(30);

/// Downloads at once.
const EXPORTS_MAX: usize = 1;

/// Seconds after which one who was turned away may try again.
const RETRY_S: &str = "30";

/// What archives are made of.
pub struct Exports {
    spec: RunSpec,
    decoder: Option<ModelSpec>,
    store: Arc<Store>,
    licence: Option<String>,
    turn: Arc<Semaphore>,
}

impl Exports {
    /// Archives of a run like `spec`, whose model is this `decoder` or no built-in one, in the folder of `store`, under
    /// the licence that its owner chose.
    #[must_use]
    pub fn new(
        spec: RunSpec,
        decoder: Option<ModelSpec>,
        store: Arc<Store>,
        licence: Option<String>,
    ) -> Self {
        Self { spec, decoder, store, licence, turn: Arc::new(Semaphore::new(EXPORTS_MAX)) }
    }

    /// What the run is.
    #[must_use]
    pub fn spec(&self) -> &RunSpec {
        &self.spec
    }

    /// The built-in decoder that the model is, if it is one.
    #[must_use]
    pub fn decoder(&self) -> Option<ModelSpec> {
        self.decoder
    }

    /// A part of the weights that the run does not train; `None` if there is no such part.
    ///
    /// # Errors
    /// `Disk`: it cannot be read.
    pub fn frozen_part(&self, part: u32) -> Result<Option<Vec<u8>>, ServerError> {
        self.spec.frozen.as_ref().map_or(Ok(None), |said| self.store.frozen_part(said, part))
    }

    fn make(&self, subject: &Subject, name: &str) -> Result<(File, u64), ServerError> {
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
        let file = model.archive(self.store.dir(), name)?;
        let len = file.metadata().map_err(disk("read", self.store.dir()))?.len();
        Ok((file, len))
    }
}

/// `/v1/export.zip`. One at a time: it takes as much disk, and for a while memory, as the model.
pub async fn export(State(app): State<Arc<App>>) -> Response {
    let Ok(turn) = Arc::clone(&app.exports.turn).try_acquire_owned() else {
        let why = "somebody else is downloading the model: try again in a while\n";
        return (StatusCode::TOO_MANY_REQUESTS, [(header::RETRY_AFTER, RETRY_S)], why).into_response();
    };
    let Some(subject) = app.context.actor.subject().await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response();
    };
    let name = format!("archipelago-{}-{}", app.run, subject.tokens_merged);
    let disposition = format!("attachment; filename=\"{name}.zip\"");
    let for_making = Arc::clone(&app);
    let made = tokio::task::spawn_blocking(move || for_making.exports.make(&subject, &name)).await;
    let (file, len) = match made {
        Ok(Ok(made)) => made,
        Ok(Err(error)) => return failed(&error),
        Err(error) => return failed(&error),
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/zip")),
        (header::CONTENT_LENGTH, len.into()),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::CONTENT_DISPOSITION, disposition.try_into().expect("digits and hyphens")),
    ];
    (headers, Body::from_stream(pieces(file, turn))).into_response()
}

fn failed(error: &dyn std::fmt::Display) -> Response {
    tracing::error!(%error, "no archive of the model");
    let why = "the model could not be packed: the server's log says why\n";
    (StatusCode::INTERNAL_SERVER_ERROR, why).into_response()
}

type Piece = std::io::Result<Bytes>;

/// The bytes of `file`, read by a task of its own that gives up on a peer that takes none, and with it `turn`.
fn pieces(mut file: File, turn: OwnedSemaphorePermit) -> impl stream::Stream<Item = Piece> {
    let (sender, receiver) = mpsc::channel::<Piece>(PIECES_AHEAD);
    tokio::spawn(async move {
        let _turn = turn;
        loop {
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = Vec::with_capacity(PIECE_BYTES);
                let read = file.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece);
                (file, read.map(|_| Bytes::from(piece)))
            });
            let Ok((back, piece)) = read.await else { return };
            file = back;
            let broken = piece.is_err();
            let over = piece.as_ref().is_ok_and(Bytes::is_empty);
            if over || sender.send_timeout(piece, PIECE_WITHIN).await.is_err() || broken {
                return;
            }
        }
    });
    stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) })
}
