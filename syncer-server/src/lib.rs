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
//! | `progress` | progress and cancellation of long work |
//! | `running` | one run that is served: its routes, and the work behind them |
//! | `part` | a part in a run on several machines |
//! | `hosting/` | several runs on one server, each in a folder of its own |
//! | `actor/` | the one task that owns the core |
//! | `connection`, `outbox` | one WebSocket ⇄ messages, bounded both ways |
//! | `http/` | parameters, shards, status, events, the page |
//! | `links`, `announce` | where people reach the server, and how they are told |
//! | `evaluate/` | held-out loss and a text sample in the background |
//! | `webhook` | alerts told to an address of the owner's |
//! | `status/` | the run as JSON: now, over time, round by round |
//! | `tape/` | every decision of the core, on the disk before anybody is told |
//! | `glance/` | a run looked at from a terminal |
//! | `steer` | the owner's orders about one run from a terminal |
//! | `store/`, `export`, `sample` | snapshots; the model as a folder, its texts |
//! | `replay/`, `fork` | a run's merges once more; a new run from the middle of another |
//! | `backup` | the run's folder once more, while the run goes on |
//! | `report/` | what a run was, to be kept: curves and a page |

#![forbid(unsafe_code)]

mod actor;
mod admission;
mod announce;
mod backup;
mod clock;
mod config;
mod connection;
mod corpus;
mod doctor;
mod door;
mod errors;
mod evaluate;
mod export;
mod fork;
pub mod glance;
mod guests;
mod hosting;
mod http;
mod identity;
mod links;
mod llama;
mod meters;
mod origin;
mod outbox;
mod owner;
mod part;
mod prepare;
mod progress;
mod replay;
mod report;
mod running;
mod sample;
mod secret;
pub mod status;
pub mod steer;
mod store;
mod tape;
mod webhook;
pub mod welcome;

pub use announce::Announcement;
pub use backup::{BackedUp, backup};
pub use config::{
    AlertArgs, BackupArgs, BanArgs, BanOrder, Cli, ClusterArgs, DropArgs, EventsArgs, ExportArgs, FolderArgs,
    ForkArgs, InviteArgs, InviteOrder, LoraArgs, OrderArgs, PaceArgs, PlaceArgs, ReplayArgs, Role, RunName,
    RunOrder, RunsArgs, SampleArgs, ServeConfig, SetArgs, SteerArgs, TableArgs, TokenArgs, TokenOrder, Verb,
    Within, hides_names, moved, parse,
};
pub use doctor::{Finding, examine, judge};
pub use errors::{CertificateError, Exit, ServerError};
pub use export::{Exported, Form, export};
pub use fork::{Forked, fork};
pub use hosting::{RunFigures, RunState, RunView, RunsView, host, order, runs};
pub use http::WATCHERS_MAX;
pub use llama::Precision;
pub use prepare::{PlanFacts, invite, owner_token, validate};
pub use replay::{Losses, Replay, Rise, replayed};
pub use report::{Reports, report};
pub use sample::{Written, sample};
pub use status::{AdapterFacts, ServerStatus};
pub use store::Store;
pub use tape::{Member, ReplayedMerge, Undone};

use std::future::Future;
use std::sync::Arc;

use tokio::net::TcpListener;

use links::Links;
use running::Running;

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
    serve_and_tell(listener, config, || {}, shutdown).await
}

/// Leads rounds of a run on several machines until `shutdown` resolves, and serves nothing: the part of an owner. Calls
/// `tell` once it has joined the others.
///
/// # Errors
/// Those of [`validate`]; `Cluster` if a service between the processes cannot be used; `Internal` or `System` if the
/// program or the system fails.
pub async fn lead(
    config: ServeConfig,
    tell: impl FnOnce(),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), ServerError> {
    running::lead(config, tell, shutdown).await
}

/// As [`serve`]; calls `tell` once the run is open, so that whoever is told of the address is answered there.
///
/// # Errors
/// Those of [`serve`].
pub async fn serve_and_tell(
    listener: TcpListener,
    config: ServeConfig,
    tell: impl FnOnce(),
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<ServerStatus, ServerError> {
    let entrance = door::open(&config)?;
    let address = listener.local_addr().ok();
    let links = address.map(|address| Links::of(address, &config));
    let restart = async {
        shutdown.await;
        running::restart()
    };
    let run =
        Running::open(&config, links.map(|links| links.pages).unwrap_or_default(), None, restart).await?;
    if let Some(remark) = http::remark(config.pages.as_deref()) {
        tracing::warn!("{remark}");
    }
    let told = Arc::clone(&run.app);
    let tell_renewal = move |shown| running::certificate(vec![Arc::clone(&told)], shown);
    tokio::spawn(entrance.clone().renew(run.stopping.clone(), tell_renewal));
    let web = tokio::spawn(door::answer(listener, entrance, hosting::single(run.app), run.stopping));
    let folder = Store::look(&config.dir);
    if let Some(address) = address {
        folder.note_address(&Links::here(address, &config));
    }
    tell();
    let ended = run.work.await;
    web.abort();
    folder.forget_address();
    ended
}
