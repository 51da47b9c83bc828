//! The routes.

mod admin;
mod coalesce;
mod events;
mod export;
mod files;
mod guests;
mod hats;
mod metrics;
mod obey;
mod packed;
pub mod page;
mod report;
pub mod settings;
mod socket;
mod stats;
mod turns;
mod words;
mod work;

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

use crate::connection::Context;
use crate::corpus::Corpus;
use crate::door::{Share, Taken};
use crate::owner::Owner;
use crate::part::Herald;

pub use admin::shows_token;
pub use events::WATCHERS_MAX;
pub use export::Exports;
pub use files::frozen_bytes;
pub use hats::Hats;
pub use metrics::answer as metrics_of;
pub use obey::obey;
pub use page::remark;
pub use report::Reports;
pub use settings::Settings;
pub use stats::Unread;
pub use turns::{Terms, Turns};
pub use work::WorkLimit;

/// Largest body of a request, in bytes: the owner's orders, and texts to be made tokens.
const BODY_BYTES_MAX: usize = 4 << 10;

/// Pieces of work that requests ask for: those that run at once, and requests that wait for theirs.
const WORK_MAX: usize = 2;
const WORK_WAITING_MAX: usize = 64;

/// What the routes need.
pub struct App {
    /// What connections need.
    pub context: Context,
    /// The shards.
    pub corpus: Arc<Corpus>,
    /// The windows that the held-out loss is measured on, if anything is held out.
    pub held_out: Option<Bytes>,
    /// The run, as 16 hex digits.
    pub run: String,
    /// Folder of pages that are served instead of those inside the program.
    pub pages: Option<PathBuf>,
    /// Origins allowed beside our own.
    pub allow_origin: Vec<String>,
    /// What admin requests must show.
    pub owner: Owner,
    /// What the owner of a server with several runs may show instead.
    pub host_token: Option<String>,
    /// The run's settings, as they are now.
    pub settings: Settings,
    /// The way to the other processes that serve the run, if it has several.
    pub herald: Option<Herald>,
    /// What the run may hold of the connections of a server of several runs.
    pub share: Option<Share>,
    /// What archives of the model are made of.
    pub exports: Exports,
    /// Parameters on their way to learners.
    pub hats: Hats,
    /// Turns for transfers of these parameters.
    pub turns: Turns,
    /// Streams of events open.
    pub watchers: AtomicU32,
    /// Report files about the run.
    pub reports: Reports,
    /// Answers about the run that readers have yet to take.
    pub unread: Unread,
    /// Work that any peer may ask for: report files about the run, and tokens of texts.
    pub work: WorkLimit,
    /// Work that the owner orders.
    pub orders: WorkLimit,
    /// The weights that the run does not train, if it trains adapters on some.
    pub frozen: Option<Bytes>,
    /// Pages of other origins that were refused.
    pub foreign: AtomicU32,
    /// The number of the next connection.
    pub next_conn: AtomicU64,
    /// True once the server stops.
    pub stopping: watch::Receiver<bool>,
    /// Dropped by each connection as it ends.
    pub open: tokio::sync::mpsc::Sender<()>,
}

impl WorkLimit {
    /// Limit on work of one kind for the routes of a run.
    #[must_use]
    pub fn of_a_run() -> Self {
        Self::new(WORK_MAX, WORK_WAITING_MAX)
    }
}

impl App {
    /// A connection for long; `None` inside if the server has no other run, and outside if another run needs it.
    #[expect(clippy::option_option, reason = "whether there is one to be had, and whether one is needed")]
    fn take_share(&self) -> Option<Option<Taken>> {
        self.share.as_ref().map_or(Some(None), |share| share.take().map(Some))
    }
}

/// All routes.
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
        .route(path::MODEL, get(words::model))
        .route(path::TOKENS, post(words::tokens))
        .route(path::TEXT, post(words::text))
        .route(path::ADMIN_FINISH, post(admin::finish))
        .route(path::ADMIN_PAUSE, post(admin::pause))
        .route(path::ADMIN_RESUME, post(admin::resume))
        .route(path::ADMIN_SETTINGS, post(settings::change))
        .route(path::ADMIN_PACE, post(admin::pace))
        .route(path::ADMIN_DROP, post(admin::send_away))
        .route(path::INVITES, get(guests::invites).post(guests::invite))
        .route(path::INVITE_REVOKE, post(guests::revoke))
        .route(path::BANS, get(guests::bans).post(guests::ban))
        .route(path::BAN_LIFT, post(guests::lift))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .fallback(nothing)
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard))
        .with_state(app)
}

/// Answers a request for an address without content.
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

/// Headers for every answer, and those that let pages of allowed origins read it.
async fn guard(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let allowed = origin.filter(|origin| socket::is_listed(&app, origin));
    // Browsers ask before they show an invite to another origin than the page's.
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
