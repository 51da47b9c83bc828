//! The HTTP routes of a run.

mod admin;
mod coalesce;
mod events;
mod export;
mod files;
mod hats;
mod invites;
mod metrics;
mod packed;
pub mod page;
mod report;
pub mod settings;
mod socket;
mod stats;
mod tokenizer_routes;
mod transfer_slots;
mod work_limit;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use archipelago_core::wire::http as path;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::watch;

use crate::admin_token::AdminToken;
use crate::cluster_node::AdminBroadcast;
use crate::connection::Context;
use crate::corpus::Corpus;
use crate::listener::{ConnectionPermit, ConnectionShare};

pub use admin::apply_admin_command;
pub use admin::shows_token;
pub use events::WATCHERS_MAX;
pub use export::Exports;
pub use files::frozen_bytes;
pub use hats::Hats;
pub use metrics::answer as metrics_of;
pub use page::missing_pages_warning;
pub use report::Reports;
pub use settings::Settings;
pub use stats::Unread;
pub use transfer_slots::{Terms, TransferSlots};
pub use work_limit::WorkLimit;

/// Maximum size of a request body, in bytes. Bodies are the owner's orders and texts to tokenise.
const BODY_BYTES_MAX: usize = 4 << 10;

/// Limits on one kind of blocking work: pieces that run at once, and requests that wait.
const WORK_MAX: usize = 2;
const WORK_WAITING_MAX: usize = 64;

/// Shared state of the routes.
pub struct App {
    /// State of connections.
    pub context: Context,
    /// The run's text as shards of tokens, and its vocabulary.
    pub corpus: Arc<Corpus>,
    /// The encoded windows of held-out text, if any text is held out.
    pub held_out: Option<Bytes>,
    /// The run's id, as 16 hex digits.
    pub run: String,
    /// Folder of pages to serve in place of the built-in ones.
    pub pages: Option<PathBuf>,
    /// Allowed origins other than the server's own.
    pub allow_origin: Vec<String>,
    /// The owner's token, which authenticates admin requests.
    pub owner: AdminToken,
    /// Token of the owner of a server with several runs, accepted like the run's own.
    pub host_token: Option<String>,
    /// The current settings of the run.
    pub settings: Settings,
    /// Publisher of orders to all processes that serve the run, if there are several.
    pub admin_broadcast: Option<AdminBroadcast>,
    /// The run's share of connections, on a server with several runs.
    pub share: Option<ConnectionShare>,
    /// Source of model archives.
    pub exports: Exports,
    /// Cache of Θ̂ in the form that learners fetch.
    pub hats: Hats,
    /// Transfer slots for downloads of parameters.
    pub slots: TransferSlots,
    /// Number of open event streams.
    pub watchers: AtomicU32,
    /// Cached report files about the run.
    pub reports: Reports,
    /// Limit on answers about the run that readers have not yet read.
    pub unread: Unread,
    /// Limit on work that any peer may request: report files and tokenisation.
    pub work: WorkLimit,
    /// Limit on work that the owner orders.
    pub orders: WorkLimit,
    /// The frozen weights, if the run trains adapters.
    pub frozen: Option<Bytes>,
    /// Number of requests refused because of the origin of their page.
    pub foreign: AtomicU32,
    /// Number for the next connection.
    pub next_conn: AtomicU64,
    /// True once the server shuts down.
    pub stopping: watch::Receiver<bool>,
    /// Sender that each connection holds until it ends, so that a shutdown can wait for all of them.
    pub open: tokio::sync::mpsc::Sender<()>,
}

impl WorkLimit {
    /// Returns the limit for one kind of work of a run's routes.
    #[must_use]
    pub fn of_a_run() -> Self {
        Self::new(WORK_MAX, WORK_WAITING_MAX)
    }
}

impl App {
    /// Takes a permit for a long-lived connection from the run's share. Returns `None` if the share has no free
    /// connection, and `Some(None)` if the server has only one run, which needs no permit.
    #[expect(clippy::option_option, reason = "whether there is one to be had, and whether one is needed")]
    fn take_share(&self) -> Option<Option<ConnectionPermit>> {
        self.share.as_ref().map_or(Some(None), |share| share.take().map(Some))
    }
}

/// Returns the router with all routes of a run.
pub fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/", get(page::index))
        .route(path::DASHBOARD, get(page::dashboard))
        .route(path::TEACH, get(page::teach))
        .route(path::TEACH_FILE, get(page::teach))
        .route(path::SCALE, get(page::scale))
        .route(path::SCALE_FILE, get(page::scale))
        .route("/assets/{name}", get(page::asset))
        .route(path::HEALTH, get(|| async { "ok\n" }))
        .route(path::READY, get(stats::ready))
        .route(path::METRICS, get(metrics::metrics))
        .route(path::STATUS, get(stats::status))
        .route(path::LEARNERS, get(stats::learners))
        .route(path::SERIES, get(stats::series))
        .route(path::ROUNDS, get(stats::rounds))
        .route(path::LOG, get(stats::log))
        .route(path::SETTINGS, get(settings::settings))
        .route(path::EVENTS, get(events::events))
        .route(path::EXPORT, get(export::export))
        .route(path::HISTORY, get(report::history))
        .route(path::REPORT, get(report::report))
        .route(path::SOCKET, get(socket::upgrade))
        .route(path::FRAGMENT, get(files::fragment))
        .route(path::SHARD, get(files::shard))
        .route(path::FROZEN, get(files::frozen))
        .route(path::HELD_OUT, get(files::held_out))
        .route(path::MODEL, get(tokenizer_routes::model))
        .route(path::TOKENS, post(tokenizer_routes::tokens))
        .route(path::TEXT, post(tokenizer_routes::text))
        .route(path::ADMIN_FINISH, post(admin::finish))
        .route(path::ADMIN_PAUSE, post(admin::pause))
        .route(path::ADMIN_RESUME, post(admin::resume))
        .route(path::ADMIN_SETTINGS, post(settings::change))
        .route(path::ADMIN_PACE, post(admin::pace))
        .route(path::ADMIN_DROP, post(admin::drop_learner))
        .route(path::INVITES, get(invites::invites).post(invites::invite))
        .route(path::INVITE_REVOKE, post(invites::revoke))
        .route(path::BANS, get(invites::bans).post(invites::ban))
        .route(path::BAN_LIFT, post(invites::lift))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .fallback(nothing)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}

/// Answers a request for an unknown address.
async fn nothing(State(app): State<Arc<App>>, request: Request) -> Response {
    let asked = page::Asked::of(&request);
    let missing = page::Missing {
        status: StatusCode::NOT_FOUND,
        line: "there is nothing here; / shows the run",
        sentence: "There is no page at this address.",
        home: "To the run",
    };
    missing.answer(app.pages.as_deref(), &asked).await
}

/// Adds the headers common to all responses, and the CORS headers for pages of allowed origins.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = origin.filter(|origin| socket::is_listed(&app, origin));
    // Browsers send a preflight request before they send an invite to another origin.
    let asks = request.method() == Method::OPTIONS && allowed.is_some();
    let mut response = if asks { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.entry(header::VARY).or_insert(HeaderValue::from_static("origin"));
    if let Some(origin) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        let exposed =
            HeaderValue::from_str(&format!("etag, content-range, retry-after, {}", path::VERSION_HEADER));
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed.expect("names of headers"));
        let asked = HeaderValue::from_str(&format!(
            "if-range, range, {}, {}",
            path::INVITE_HEADER,
            path::PASS_HEADER
        ));
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.expect("names of headers"));
    }
    response
}
