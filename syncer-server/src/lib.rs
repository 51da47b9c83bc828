//! The syncer as a server: WebSockets and HTTP around the pure core, one actor in the middle.
//!
//! | file | concept |
//! |---|---|
//! | `config/` | settings: flag over environment over file over default |
//! | `corpus/` | the text: read, tokenised, cut into shards |
//! | `prepare` | a run begun or gone on with |
//! | `actor/` | the one task that owns the core |
//! | `connection`, `outbox` | one WebSocket ⇄ messages, bounded both ways |
//! | `http/` | parameters, shards, status, events, the page |
//! | `links`, `announce` | where people reach the server, and how they are told |
//! | `evaluate` | held-out loss and a text sample in the background |
//! | `store/`, `export` | snapshots, and the model as a Hugging Face folder |

pub mod actor;
pub mod announce;
pub mod clock;
pub mod config;
pub mod connection;
pub mod corpus;
pub mod doctor;
pub mod errors;
pub mod evaluate;
pub mod export;
pub mod http;
pub mod links;
pub mod memory;
pub mod meters;
pub mod outbox;
pub mod prepare;
pub mod secret;
pub mod status;
pub mod store;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use actor::{Actor, ActorHandle, Ended};
use clock::Clock;
use config::ServeConfig;
use connection::Context;
use errors::ServerError;
use links::Links;
use meters::Meters;
use prepare::{Prepared, prepare};
use status::{Board, ServerStatus};

/// Sockets at once beside the learners: those that have yet to introduce themselves.
const STRANGERS_MAX: u32 = 256;

/// Time for connections to say goodbye at the end.
const GOODBYE_WITHIN: Duration = Duration::from_secs(5);

/// Listens on the address that `config` names.
///
/// # Errors
/// - `AddressInUse`: somebody listens there.
/// - `Address`: it is no address of this machine, or may not be listened on.
pub async fn bind(config: &ServeConfig) -> Result<TcpListener, ServerError> {
    TcpListener::bind(&config.listen).await.map_err(|source| match source.kind() {
        std::io::ErrorKind::AddrInUse => ServerError::AddressInUse { address: config.listen.clone() },
        _ => ServerError::Address { address: config.listen.clone(), source },
    })
}

/// Serves the run of `config` on `listener` until it is complete or `shutdown` resolves, and gives its
/// last status. Learners are told, and the run is saved, before this returns.
///
/// # Errors
/// Those of [`prepare()`]; `Disk` if the last snapshot cannot be written; `Internal` or `System` if the
/// program or the system fails.
pub async fn serve(
    listener: TcpListener,
    config: ServeConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<ServerStatus, ServerError> {
    let clock = Clock::start();
    let for_preparing = config.clone();
    let mut prepared = blocking(move || prepare(&for_preparing)).await??;
    if let Ok(address) = listener.local_addr() {
        prepared.facts.links = Links::of(address, config.public_url.as_deref()).pages;
    }
    let run = prepared.syncer.run();
    tracing::info!(%run, resumed = prepared.resumed, dir = %config.dir.display(), "run is ready");

    if let Some(remark) = http::remark(config.pages.as_deref()) {
        tracing::warn!("{remark}");
    }

    let (handle, mailbox) = ActorHandle::new();
    let (stop, stopping) = watch::channel(false);
    let (open, mut all_closed) = mpsc::channel(1);
    let meters = Arc::new(Meters::from(prepared.carried.traffic));
    let context = context(&prepared, handle.clone(), &meters);
    let Prepared { syncer, corpus, store, carried, evaluator, facts, admin_token, .. } = prepared;
    let app = Arc::new(http::App {
        context,
        corpus: Arc::clone(&corpus),
        run: run.to_string(),
        pages: config.pages.clone(),
        allow_origin: allowed_origins(&config)?,
        admin_token,
        sockets_max: config.learners_max.saturating_add(STRANGERS_MAX),
        sockets: 0.into(),
        watchers: 0.into(),
        exports: http::Exports::new(syncer.spec().clone(), Arc::clone(&store)),
        next_conn: AtomicU64::new(1),
        stopping: stopping.clone(),
        open,
    });
    let web = tokio::spawn(answer(listener, app, stopping));

    let model = syncer.spec().model;
    let measure =
        |evaluator| evaluate::run(evaluator, handle.clone(), Arc::clone(&corpus), config.eval_every.0, clock);
    let measuring = evaluator.map(measure).map(tokio::spawn);
    drop(handle);
    let actor = Actor {
        syncer,
        clock,
        meters,
        board: Board::new(facts, carried),
        store: Arc::clone(&store),
        snapshot_every: config.snapshot_every.0,
        mailbox,
    };
    let ended = actor.run(shutdown).await;
    stop.send_replace(true);
    // Every connection holds a sender; once none is left, all have said goodbye.
    drop(tokio::time::timeout(GOODBYE_WITHIN, all_closed.recv()).await);
    web.abort();
    if let Some(measuring) = measuring {
        drop(measuring.await);
    }
    let (ended, last) = ended?;
    let finished = ended == Ended::Finished && !config.no_eval;
    let last = blocking(move || wind_up(last, &store, &corpus, finished.then_some(&model))).await??;
    tracing::info!(?ended, tokens_merged = last.core.tokens_merged, "saved and stopped");
    Ok(last)
}

/// Origins beside the server's own: a proxy before it may tell it another host than browsers see.
fn allowed_origins(config: &ServeConfig) -> Result<Vec<String>, ServerError> {
    let public = config.public_url.as_deref().map(links::origin).transpose()?;
    Ok(config.allow_origin.iter().cloned().chain(public).collect())
}

fn context(prepared: &Prepared, actor: ActorHandle, meters: &Arc<Meters>) -> Context {
    let fragments = prepared.syncer.fragments();
    Context {
        actor,
        meters: Arc::clone(meters),
        verifier: prepared.syncer.verifier().clone(),
        fragment_lens: fragments.ids().map(|p| fragments.len(p) as u64).collect(),
        invite: prepared.invite.clone(),
        body_bytes_max: prepared.body_bytes_max,
    }
}

/// Answers requests until told to stop.
async fn answer(listener: TcpListener, app: Arc<http::App>, mut stopping: watch::Receiver<bool>) {
    let stopped = async move { drop(stopping.wait_for(|stopped| *stopped).await) };
    let listener = listener.tap_io(without_delay);
    let web = axum::serve(listener, http::router(app)).with_graceful_shutdown(stopped);
    if let Err(error) = web.await {
        tracing::error!(%error, "nothing listens any more");
    }
}

/// Short messages must not wait for the acknowledgement of those before (Nagle, delayed ACK).
fn without_delay(stream: &mut TcpStream) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "a connection stays slow");
    }
}

/// Measures the finished parameters, and saves the run.
fn wind_up(
    last: actor::Final,
    store: &store::Store,
    corpus: &corpus::Corpus,
    measure: Option<&archipelago::wire::ModelSpec>,
) -> Result<ServerStatus, ServerError> {
    let actor::Final { subject, mut snapshot, mut status } = last;
    if let Some(model) = measure
        && let Some(mut evaluator) =
            evaluate::Evaluator::new(model, subject.params() as u64, corpus, snapshot.record.spec.seed)?
    {
        let (evaluation, sample) = evaluate::measure(&mut evaluator, &subject, true)?;
        let evaluation = evaluate::Evaluation { time_s: snapshot.carried.run_s, ..evaluation };
        let history = &mut snapshot.carried.history;
        history.push(evaluation, sample.map(|tokens| corpus.vocabulary.decode(&tokens)));
        status.val_loss_first = history.first();
        status.val_loss_last = history.last();
        status.sample.clone_from(&history.sample);
    }
    store.save(&snapshot)?;
    Ok(status)
}

/// Runs `work` where it may take its time.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ServerError> {
    let what = "a background task panicked";
    tokio::task::spawn_blocking(work).await.map_err(|_| ServerError::Internal { what: what.into() })
}
