//! HTTP and WebSocket server around the pure core. One actor task owns `Syncer`, the core's state machine.
//!
//! To embed it, fill in a [`ServeConfig`], bind it with [`bind`], and pass the listener to [`serve`]:
//!
//! ```no_run
//! use syncer_server::{ServeConfig, ServerError, bind, serve};
//!
//! # async fn example() -> Result<(), ServerError> {
//! let config = ServeConfig::default().with(|it| it.identity.preset = "tiny".into());
//! let listener = bind(&config).await?;
//! let stop = async { drop(tokio::signal::ctrl_c().await) };
//! let status = serve(listener, config, stop).await?;
//! println!("{} tokens were merged", status.core.tokens_merged);
//! # Ok(())
//! # }
//! ```
//!
//! The other verbs of the program `syncer-server` are public too: [`validate`], [`backup`], [`export`], [`report`],
//! [`sample`], [`replayed`], [`fork`], [`examine`], [`inspect`], [`steer`], [`invite_commands`], [`demo`]. The types of
//! the server's JSON are in [`status`]. The files:
//!
//! | file | concept |
//! |---|---|
//! | `config/` | settings: flag over environment over file over default |
//! | `corpus/` | the text: read, tokenised, cut into shards |
//! | `prepare/`, `initial_model` | start or resumption of a run, from a preset or the model of a folder |
//! | `llama/` | Hugging Face folders of Llama models: validating reader, and writer |
//! | `progress` | progress and cancellation of long work |
//! | `open_run` | one served run: its routes, and the work behind them |
//! | `cluster_node/` | one process of a run on several machines |
//! | `hosting/` | several runs on one server, each in its own folder |
//! | `actor/` | the task that owns the core |
//! | `listener/` | accepted connections: limits, timeouts, host names, proxies, TLS |
//! | `admission`, `identity` | admission of learners by key, ban and invite |
//! | `invites/`, `invite_commands` | invites and bans on disk; the verbs that change them |
//! | `connection/`, `outbox`, `meters` | one WebSocket, with bounded queues both ways; its traffic counters |
//! | `http/` | routes: parameters, shards, status, events, pages |
//! | `admin_token` | authentication of the owner; comparison of secrets |
//! | `links`, `announce` | addresses of the server, and their announcement |
//! | `evaluate/` | held-out loss and text samples, measured in the background |
//! | `webhook` | alerts posted to an address of the owner |
//! | `status/` | the run as JSON: now, over time, round by round |
//! | `tape/` | every decision of the core, on disk before it is published |
//! | `inspect/` | views of a run for the terminal |
//! | `demo/` | a whole run on one machine, in several processes |
//! | `steer` | the owner's orders to one run, sent from a terminal |
//! | `doctor` | checks of the machine, and of the services of a cluster |
//! | `store/`, `export`, `sample` | snapshots; the model as a folder; text that it generates |
//! | `replay/`, `fork` | replay of a run's merges; a new run from a decision of another run |
//! | `backup` | copy of the run's folder while the run goes on |
//! | `report/` | report files of a run: curves and a page |
//! | `clock`, `errors` | the only clocks; errors with their exit codes |

#![forbid(unsafe_code)]

mod actor;
mod admin_token;
mod admission;
mod announce;
mod backup;
mod clock;
mod cluster_node;
mod config;
mod connection;
mod corpus;
mod demo;
mod doctor;
mod errors;
mod evaluate;
mod export;
mod fork;
mod gguf;
mod hosting;
mod http;
mod identity;
mod initial_model;
pub mod inspect;
pub mod invite_commands;
mod invites;
mod links;
mod listener;
mod llama;
mod meters;
mod open_run;
mod outbox;
mod prepare;
mod progress;
mod replay;
mod report;
mod sample;
pub mod status;
pub mod steer;
mod store;
mod tape;
mod webhook;

pub use announce::Announcement;
pub use backup::{BackupResult, backup};
pub use config::{
    AgreedSettings, AlertArgs, BackupArgs, BanArgs, BanOrder, Cli, ClusterArgs, DemoSetup, DropArgs,
    EventsArgs, ExportArgs, FolderArgs, ForkArgs, InProcessServices, InitialFiles, InviteArgs, InviteOrder,
    LiveSettings, LoraArgs, OrderArgs, PaceArgs, PlaceArgs, ReplayArgs, Role, RunIdentity, RunName, RunOrder,
    RunsArgs, SampleArgs, ServeConfig, ServerSettings, SetArgs, StartSettings, SteerArgs, TableArgs,
    TokenArgs, TokenOrder, Verb, hides_names, moved, parse,
};
pub use demo::{DemoError, demo};
pub use doctor::{Finding, examine, judge};
pub use errors::{CertificateError, Exit, ServerError};
pub use export::{Exported, Form, Format, export};
pub use fork::{ForkResult, fork};
pub use gguf::TensorType;
pub use hosting::{RunFigures, RunState, RunView, RunsView, host, order, runs};
pub use http::WATCHERS_MAX;
pub use llama::Precision;
pub use prepare::{PlanFacts, invite, owner_token, validate};
pub use replay::{Losses, Replay, Rise, replayed};
pub use report::{Reports, report};
pub use sample::{GeneratedText, sample};
pub use status::{AdapterFacts, ServerStatus};
pub use store::Store;
pub use tape::{MergedSender, ReplayedMerge, RolledBackFragment};

use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpListener;

use links::Links;
use open_run::OpenRun;

/// Binds a listener to the address that `config` names.
///
/// # Errors
/// - `AddressInUse`: another program listens there.
/// - `Address`: the address does not belong to this machine, or the system does not permit listening on it.
pub async fn bind(config: &ServeConfig) -> Result<TcpListener, ServerError> {
    TcpListener::bind(&config.server.listen).await.map_err(|source| match source.kind() {
        std::io::ErrorKind::AddrInUse => ServerError::AddressInUse { address: config.server.listen.clone() },
        _ => ServerError::Address { address: config.server.listen.clone(), source },
    })
}

/// Serves the run of `config` on `listener` until `shutdown` resolves, and returns its last status. After the run is
/// complete the server keeps answering, unless `config` makes it exit then. Before this function returns, it sends the
/// learners a goodbye and saves the run.
///
/// # Errors
/// Those of [`validate`]; `Disk` if the folder or the last snapshot cannot be written; `Internal` or `System` if the
/// program or the system fails.
pub async fn serve(
    listener: TcpListener,
    config: ServeConfig,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<ServerStatus, ServerError> {
    serve_with_callback(listener, config, || {}, shutdown).await
}

/// Leads rounds of a run on several machines until `shutdown` resolves, without serving learners: the role of an owner
/// process. Calls `on_ready` once it has joined the other processes.
///
/// # Errors
/// Those of [`validate`]; `Cluster` if a service between the processes cannot be used; `Internal` or `System` if the
/// program or the system fails.
pub async fn lead(
    config: ServeConfig,
    on_ready: impl FnOnce(),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServerError> {
    open_run::lead(config, on_ready, shutdown).await
}

/// Serves like [`serve`], and calls `on_ready` once the run is open and requests to the announced address are
/// answered.
///
/// # Errors
/// Those of [`serve`].
pub async fn serve_with_callback(
    listener: TcpListener,
    config: ServeConfig,
    on_ready: impl FnOnce(),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<ServerStatus, ServerError> {
    let entrance = listener::open(&config)?;
    let address = listener.local_addr().ok();
    let links = address.map(|address| Links::of(address, &config));
    let restart = async {
        shutdown.await;
        open_run::restart()
    };
    let run =
        OpenRun::open(&config, links.map(|links| links.pages).unwrap_or_default(), None, restart).await?;
    if let Some(missing_pages_warning) = http::missing_pages_warning(config.server.pages.as_deref()) {
        tracing::warn!("{missing_pages_warning}");
    }
    let app = Arc::clone(&run.app);
    let on_renewal = move |shown| open_run::certificate(vec![Arc::clone(&app)], shown);
    tokio::spawn(entrance.clone().renew(run.stopping.clone(), on_renewal));
    let web = tokio::spawn(listener::answer(listener, entrance, hosting::single(run.app), run.stopping));
    let folder = Store::open_read_only(&config.server.dir);
    if let Some(address) = address {
        folder.note_address(&Links::here(address, &config));
    }
    on_ready();
    let ended = run.work.await;
    web.abort();
    folder.forget_address();
    ended
}
