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
//! The verbs of the program `syncer-server` stand beside them: [`validate`], [`backup`], [`export`], [`report`],
//! [`sample`], [`replayed`], [`fork`], [`examine`], [`glance`]. What the server tells as JSON is in [`status`]. The
//! rest is private:
//!
//! | file | concept |
//! |---|---|
//! | `config/` | settings: flag over environment over file over default |
//! | `corpus/` | the text: read, tokenised, cut into shards |
//! | `prepare`, `origin` | a run begun or gone on with, from a preset or the model of a folder |
//! | `llama/` | a Hugging Face folder of a Llama, read with care and written |
//! | `actor/` | the one task that owns the core |
//! | `connection`, `outbox` | one WebSocket ⇄ messages, bounded both ways |
//! | `http/` | parameters, shards, status, events, the page |
//! | `links`, `announce` | where people reach the server, and how they are told |
//! | `evaluate/` | held-out loss and a text sample in the background |
//! | `webhook` | alerts told to an address of the owner's |
//! | `status/` | the run as JSON: now, over time, round by round |
//! | `tape/` | every decision of the core, on the disk before anybody is told |
//! | `glance/` | a run looked at from a terminal |
//! | `store/`, `export`, `sample` | snapshots; the model as a folder, its texts |
//! | `replay/`, `fork` | a run's merges once more; a new run from the middle of another |
//! | `backup` | the run's folder once more, while the run goes on |
//! | `report/` | what a run was, to be kept: curves and a page |

mod actor;
mod announce;
mod backup;
mod clock;
mod config;
mod connection;
mod corpus;
mod doctor;
mod errors;
mod evaluate;
mod export;
mod fork;
pub mod glance;
mod http;
mod links;
mod llama;
mod memory;
mod meters;
mod origin;
mod outbox;
mod prepare;
mod replay;
mod report;
mod sample;
mod secret;
pub mod status;
mod store;
mod tape;
mod webhook;

pub use announce::Announcement;
pub use backup::{BackedUp, backup};
pub use config::{
    AlertArgs, BackupArgs, Cli, EventsArgs, ExportArgs, ForkArgs, PlaceArgs, ReplayArgs, SampleArgs,
    ServeConfig, StatusArgs, TableArgs, Verb, moved, parse,
};
pub use doctor::{Finding, examine, judge};
pub use errors::{Exit, ServerError};
pub use export::{Exported, export};
pub use fork::{Forked, fork};
pub use http::WATCHERS_MAX;
pub use llama::Precision;
pub use prepare::{PlanFacts, invite, owner_token, validate};
pub use replay::{Losses, Replay, Rise, replayed};
pub use report::{Reports, report};
pub use sample::{Written, sample};
pub use status::ServerStatus;
pub use store::Store;
pub use tape::{Member, ReplayedMerge};

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use axum::serve::ListenerExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use actor::{Actor, ActorHandle};
use clock::Clock;
use connection::Context;
use links::Links;
use meters::Meters;
use prepare::{Plan, Prepared};
use status::Board;
use webhook::Webhook;

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

/// Serves the run of `config` on `listener` until `shutdown` resolves, and gives its last status. A run that is
/// complete goes on being served to be looked at, unless `config` has the server exit then. Learners are told, and the
/// run is saved, before this returns.
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
    let prepared = prepared(&listener, &config).await?;
    let webhook = config.alerts.webhook.as_deref().map(Webhook::start).transpose()?;
    let terms = prepare::alert_terms(&config)?;
    let run = prepared.syncer.run();
    let complete = prepared.syncer.is_over();
    tracing::info!(%run, resumed = prepared.resumed, complete, dir = %config.dir.display(), "run is ready");

    if let Some(remark) = http::remark(config.pages.as_deref()) {
        tracing::warn!("{remark}");
    }

    let (handle, mailbox) = ActorHandle::new();
    let (stop, stopping) = watch::channel(false);
    let (open, mut all_closed) = mpsc::channel(1);
    let meters = Arc::new(Meters::from(prepared.carried.traffic));
    let context = context(&prepared, handle.clone(), &meters);
    let Prepared { syncer, corpus, store, carried, evaluator, facts, admin_token, mut tape, resumed, .. } =
        prepared;
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
        foreign: 0.into(),
        spelling: http::Spelling::default(),
        hats: http::Hats::new(syncer.fragments().count().into(), http::Terms::default()),
        exports: http::Exports::new(syncer.spec().clone(), Arc::clone(&store), config.licence.clone()),
        next_conn: AtomicU64::new(1),
        stopping: stopping.clone(),
        open,
    });
    let web = tokio::spawn(answer(listener, app, stopping));

    let measure = |evaluator| {
        let (actor, corpus, written) = (handle.clone(), Arc::clone(&corpus), carried.history.written());
        evaluate::run(evaluator, actor, corpus, config.eval_every.0, clock, written)
    };
    let mut measuring = evaluator.map(measure).map(tokio::spawn);
    let over = handle.over_watch();
    drop(handle);
    let actor = Actor {
        syncer,
        clock,
        meters,
        board: Board::new(facts, carried, tape.take_log(), terms),
        store: Arc::clone(&store),
        snapshot_every: config.snapshot_every.0,
        mailbox,
        tape,
        resumed,
        webhook,
    };
    let ended = actor.run(until(shutdown, over, &mut measuring, config.exit_when_finished)).await;
    stop.send_replace(true);
    // Every connection holds a sender; once none is left, all have said goodbye.
    drop(tokio::time::timeout(GOODBYE_WITHIN, all_closed.recv()).await);
    web.abort();
    if let Some(measuring) = measuring.filter(|measuring| !measuring.is_finished()) {
        drop(measuring.await);
    }
    let actor::Final { snapshot, status } = ended?;
    blocking(move || store.save(&snapshot)).await??;
    let (finished, tokens_merged) = (status.core.finished, status.core.tokens_merged);
    tracing::info!(finished, tokens_merged, "saved and stopped");
    Ok(status)
}

/// The run of `config`, to be served on `listener`.
async fn prepared(listener: &TcpListener, config: &ServeConfig) -> Result<Prepared, ServerError> {
    let for_preparing = config.clone();
    let mut prepared = blocking(move || Plan::of(&for_preparing, Store::open)?.open()).await??;
    if let Ok(address) = listener.local_addr() {
        prepared.facts.links = Links::of(address, config.public_url.as_deref()).pages;
    }
    Ok(prepared)
}

/// Resolves when the server is to stop: at `shutdown`, or once the run is `over` if that is a reason. The last
/// measurement of a complete run is waited for either way: it is part of what is kept.
async fn until(
    shutdown: impl Future<Output = ()>,
    over: watch::Receiver<bool>,
    measuring: &mut Option<JoinHandle<()>>,
    is_over_enough: bool,
) {
    let measured = async {
        // It never ends with an error: the actor, which tells of it, waits for this.
        drop(over.clone().wait_for(|over| *over).await);
        if let Some(measuring) = measuring {
            drop(measuring.await);
        }
    };
    let mut measured = std::pin::pin!(measured);
    tokio::select! {
        () = shutdown => {}
        () = &mut measured, if is_over_enough => return,
    }
    if *over.borrow() {
        measured.await;
    }
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

/// Runs `work` where it may take its time.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, ServerError> {
    let what = "a background task panicked";
    tokio::task::spawn_blocking(work).await.map_err(|_| ServerError::Internal { what: what.into() })
}
