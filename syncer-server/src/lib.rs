//! The syncer as a server: WebSockets and HTTP around the pure core, one actor in the middle.
//!
//! Whoever embeds it fills in a [`ServeConfig`], binds it with [`bind`] and gives the listener to [`serve`]:
//!
//! ```no_run
//! use syncer_server::{ServeConfig, ServerError, bind, serve};
//!
//! # async fn example() -> Result<(), ServerError> {
//! let config = ServeConfig { preset: "tiny".into(), ..ServeConfig::default() };
//! let listener = bind(&config).await?;
//! let stop = async { drop(tokio::signal::ctrl_c().await) };
//! let status = serve(listener, config, stop).await?;
//! println!("{} tokens were merged", status.core.tokens_merged);
//! # Ok(())
//! # }
//! ```
//!
//! The verbs of the program `syncer-server` stand beside them: [`validate`], [`export`], [`examine`]. What the server
//! tells as JSON is in [`status`]. All else is private:
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
//! | `status/` | the run as JSON: now, over time, round by round |
//! | `store/`, `export` | snapshots, and the model as a Hugging Face folder |

mod actor;
mod announce;
mod clock;
mod config;
mod connection;
mod corpus;
mod doctor;
mod errors;
mod evaluate;
mod export;
mod http;
mod links;
mod memory;
mod meters;
mod outbox;
mod prepare;
mod secret;
pub mod status;
mod store;

pub use announce::Announcement;
pub use config::{Cli, ExportArgs, ServeConfig, Verb, moved, parse};
pub use doctor::{Finding, examine, judge};
pub use errors::{Exit, ServerError};
pub use export::{Exported, export};
pub use http::WATCHERS_MAX;
pub use prepare::{PlanFacts, invite, validate};
pub use status::ServerStatus;
pub use store::Store;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};

use actor::{Actor, ActorHandle, Ended};
use clock::Clock;
use connection::Context;
use links::Links;
use meters::Meters;
use prepare::{Plan, Prepared};
use status::Board;

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
/// Those of [`validate`]; `Disk` if the folder or the last snapshot cannot be written; `Internal` or `System` if the
/// program or the system fails.
pub async fn serve(
    listener: TcpListener,
    config: ServeConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<ServerStatus, ServerError> {
    let clock = Clock::start();
    let for_preparing = config.clone();
    let mut prepared = blocking(move || Plan::of(&for_preparing, Store::open)?.open()).await??;
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
        hats: http::Hats::new(syncer.fragments().count().into(), http::Terms::default()),
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
    store: &Store,
    corpus: &corpus::Corpus,
    measure: Option<&archipelago::wire::ModelSpec>,
) -> Result<ServerStatus, ServerError> {
    let actor::Final { subject, mut snapshot, mut status } = last;
    if let Some(model) = measure
        && let Some(mut evaluator) =
            evaluate::Evaluator::new(model, subject.params() as u64, corpus, snapshot.record.spec.seed)?
    {
        let (evaluation, sample) = evaluate::measure(&mut evaluator, &subject, true)?;
        let evaluation = status::Evaluation { time_s: snapshot.carried.run_s, ..evaluation };
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
