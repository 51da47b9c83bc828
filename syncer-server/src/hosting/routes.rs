//! Routing of requests to runs, and the owner's orders about runs.

use std::sync::Arc;

use archipelago_core::wire::http as path;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::{delete, get, post};
use axum::{Extension, Router};
use serde::Deserialize;
use tower_service::Service;

use super::run_registry::{Refused, RunRegistry};
use super::view::{RunState, RunView, RunsView};
use crate::config::RunName;
use crate::http::{self, App, page, shows_token};
use crate::listener::WrongSecret;

/// Largest order about runs, in bytes; settings take some lines.
const ORDER_BYTES_MAX: usize = 16 << 10;

/// Returns the routes of a server with one run.
pub(crate) fn single(app: Arc<App>) -> Router {
    let list = |State(app): State<Arc<App>>| async move {
        match app.context.actor.status().await {
            Some(status) => {
                let runs = vec![RunView::served(String::new(), String::new(), *status)];
                json(&RunsView { runs, several: false })
            }
            None => (StatusCode::SERVICE_UNAVAILABLE, "the server stops\n").into_response(),
        }
    };
    let list = Router::new().route(path::RUNS, get(list)).with_state(Arc::clone(&app));
    list.merge(http::router(app))
}

/// Returns the routes of a server with several runs.
pub(super) fn router(registry: Arc<RunRegistry>) -> Router {
    Router::new()
        .route("/", get(runs_page))
        .route("/runs", get(runs_page))
        .route(path::TEACH, get(teach))
        .route(path::TEACH_FILE, get(teach))
        .route(path::SCALE, get(scale))
        .route(path::SCALE_FILE, get(scale))
        .route("/assets/{name}", get(asset))
        .route(path::HEALTH, get(|| async { "ok\n" }))
        .route(path::READY, get(ready))
        .route(path::METRICS, get(metrics))
        .route(path::RUNS, get(list).post(create))
        .route("/v1/runs/{name}", delete(remove))
        .route("/v1/runs/{name}/start", post(start))
        .route("/v1/runs/{name}/archive", post(archive))
        .route("/runs/{name}", get(to_run))
        .fallback(pass_on)
        .layer(DefaultBodyLimit::max(ORDER_BYTES_MAX))
        .layer(middleware::from_fn(guard))
        .with_state(registry)
}

/// Adds headers to the server's own answers; a run adds its own.
async fn guard(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let plain = [(header::X_CONTENT_TYPE_OPTIONS, "nosniff"), (header::REFERRER_POLICY, "no-referrer")];
    for (name, value) in plain {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

async fn runs_page(State(registry): State<Arc<RunRegistry>>, headers: HeaderMap) -> Response {
    page::file(registry.server().pages.as_deref(), "runs.html", &headers).await
}

async fn teach(State(registry): State<Arc<RunRegistry>>, headers: HeaderMap) -> Response {
    page::file(registry.server().pages.as_deref(), "teach.html", &headers).await
}

async fn scale(State(registry): State<Arc<RunRegistry>>, headers: HeaderMap) -> Response {
    page::file(registry.server().pages.as_deref(), "scale.html", &headers).await
}

async fn asset(
    State(registry): State<Arc<RunRegistry>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    page::asset_of(registry.server().pages.as_deref(), &name, &headers).await
}

/// `/readyz`: succeeds once every unarchived run is served.
async fn ready(State(registry): State<Arc<RunRegistry>>) -> Response {
    let runs = registry.views(false).await;
    let missing = runs.iter().find(|run| matches!(run.state, RunState::Starting | RunState::Failed));
    match missing {
        None => "ready\n".into_response(),
        Some(run) => {
            let why = format!("the run {} is {}\n", run.name, run.state.words());
            (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
        }
    }
}

/// `/metrics`: the metrics of all served runs, with the name of the run as a label.
async fn metrics(State(registry): State<Arc<RunRegistry>>) -> Response {
    http::metrics_of(&registry.statuses().await)
}

/// `/v1/runs`: the list of runs; with the owner's token, it includes the links for lending a machine.
async fn list(State(registry): State<Arc<RunRegistry>>, headers: HeaderMap) -> Response {
    let is_owner = shows_token(&headers, [&*registry.token]);
    // The answer is the same with a wrong token, but the request is still rate limited as a guess.
    let is_wrong = !is_owner && headers.contains_key(header::AUTHORIZATION);
    let wrong = is_wrong.then_some(Extension(WrongSecret));
    (wrong, json(&RunsView { runs: registry.views(is_owner).await, several: true })).into_response()
}

/// Body of `POST /v1/runs`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Creation {
    name: RunName,
    /// TOML, with the keys of the flags of `serve`.
    #[serde(default)]
    settings: String,
}

async fn create(State(registry): State<Arc<RunRegistry>>, headers: HeaderMap, body: Bytes) -> Response {
    if let Err(refused) = check_owner(&registry, &headers) {
        return refused;
    }
    let order = match serde_json::from_slice::<Creation>(&body) {
        Ok(order) => order,
        Err(error) => {
            let example = r#"{"name": "poems", "settings": "preset = \"tiny\""}"#;
            let why = format!("the body is not a valid order ({error}): send JSON such as {example}\n");
            return (StatusCode::BAD_REQUEST, why).into_response();
        }
    };
    // The order is completed even if the client hangs up.
    let made = tokio::spawn(async move {
        let made = registry.create(&order.name, &order.settings).await;
        made.map(|()| format!("the run {} is open\n", order.name))
    });
    done(made.await)
}

async fn start(
    State(registry): State<Arc<RunRegistry>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    carry_out(
        registry,
        &headers,
        name,
        "is open",
        |registry, name| async move { registry.start(&name).await },
    )
    .await
}

async fn archive(
    State(registry): State<Arc<RunRegistry>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let archive = |registry: Arc<RunRegistry>, name: RunName| async move { registry.archive(&name).await };
    carry_out(registry, &headers, name, "is archived", archive).await
}

async fn remove(
    State(registry): State<Arc<RunRegistry>>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Response {
    let remove = |registry: Arc<RunRegistry>, name: RunName| async move { registry.delete(&name).await };
    carry_out(registry, &headers, name, "is deleted", remove).await
}

/// Carries out an order about the run `name`, if the request shows the owner's token.
async fn carry_out<F: Future<Output = Result<(), Refused>> + Send + 'static>(
    registry: Arc<RunRegistry>,
    headers: &HeaderMap,
    name: String,
    words: &'static str,
    order: impl FnOnce(Arc<RunRegistry>, RunName) -> F,
) -> Response {
    if let Err(refused) = check_owner(&registry, headers) {
        return refused;
    }
    let Ok(name) = name.parse::<RunName>() else { return done(Ok(Err(Refused::NoSuchRun))) };
    let carried_out = order(registry, name.clone());
    // The order is completed even if the client hangs up.
    done(tokio::spawn(async move { carried_out.await.map(|()| format!("the run {name} {words}\n")) }).await)
}

fn done(outcome: Result<Result<String, Refused>, tokio::task::JoinError>) -> Response {
    match outcome {
        Ok(Ok(words)) => words.into_response(),
        Ok(Err(Refused::NoSuchRun)) => no_such_run(),
        Ok(Err(Refused::State(why))) => (StatusCode::CONFLICT, why + "\n").into_response(),
        Ok(Err(Refused::Order(why))) => (StatusCode::BAD_REQUEST, why + "\n").into_response(),
        Ok(Err(Refused::Failed(error))) => {
            (StatusCode::UNPROCESSABLE_ENTITY, format!("{error}\n")).into_response()
        }
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "a part of the program panicked\n").into_response(),
    }
}

const NO_SUCH_RUN: &str = "there is no such run here: /v1/runs lists them";

fn no_such_run() -> Response {
    (StatusCode::NOT_FOUND, format!("{NO_SUCH_RUN}\n")).into_response()
}

#[expect(clippy::result_large_err, reason = "it is the answer, and made at once")]
fn check_owner(registry: &RunRegistry, headers: &HeaderMap) -> Result<(), Response> {
    if shows_token(headers, [&*registry.token]) {
        return Ok(());
    }
    let why = "send the token from admin.token in the folder of the runs, as `Authorization: Bearer …`\n";
    Err((StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], why).into_response())
}

/// `/runs/NAME`: redirects to the folder, because pages use relative links.
async fn to_run(
    State(registry): State<Arc<RunRegistry>>,
    Path(name): Path<String>,
    request: Request,
) -> Response {
    let asked = page::Asked::of(&request);
    match name.parse::<RunName>() {
        Ok(run) if !matches!(registry.router(&name), Err(None)) => {
            Redirect::permanent(&format!("/runs/{run}/")).into_response()
        }
        _ => missing_run(&registry, &asked).await,
    }
}

/// Forwards requests to runs: `/runs/NAME/…` to `/…` of the run, and `/v1/runs/NAME/…` to its `/v1/…`.
async fn pass_on(State(registry): State<Arc<RunRegistry>>, mut request: Request) -> Response {
    let asked = page::Asked::of(&request);
    let Some((name, rest)) = of_run(request.uri().path()) else {
        let (line, sentence) = (which_run(&registry.names()), "There is no page at this address.");
        return missing(&registry, &asked, StatusCode::NOT_FOUND, &line, sentence).await;
    };
    let mut router = match registry.router(name) {
        Ok(router) => router,
        Err(None) => return missing_run(&registry, &asked).await,
        Err(Some(state)) => {
            let (line, status) = (
                format!("the run {name} is {}: come back later", state.words()),
                StatusCode::SERVICE_UNAVAILABLE,
            );
            let sentence = format!("The run {name} is {}. Come back later.", state.words());
            let mut response = missing(&registry, &asked, status, &line, &sentence).await;
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
            return response;
        }
    };
    let asked = request.uri().query().map_or_else(|| rest.clone(), |query| format!("{rest}?{query}"));
    let Ok(uri) = asked.parse::<Uri>() else { return no_such_run() };
    *request.uri_mut() = uri;
    // The router is always ready and never fails.
    router.call(request).await.unwrap_or_else(|never| match never {})
}

/// Answers with a page for browsers, and with a line of text for others.
async fn missing(
    registry: &RunRegistry,
    asked: &page::Asked,
    status: StatusCode,
    line: &str,
    sentence: &str,
) -> Response {
    let missing = page::Missing { status, line: line.trim_end(), sentence, home: "To the runs" };
    missing.answer(registry.server().pages.as_deref(), asked).await
}

/// Answers a request for a run that does not exist.
async fn missing_run(registry: &RunRegistry, asked: &page::Asked) -> Response {
    let sentence = "There is no such run here. It may have another name, or its owner has deleted it.";
    missing(registry, asked, StatusCode::NOT_FOUND, NO_SUCH_RUN, sentence).await
}

/// Returns the answer to a request at the server's own address for a path that only runs have.
fn which_run(names: &[String]) -> String {
    match names.first() {
        None => "this server has no run yet; / shows its runs\n".to_owned(),
        Some(first) => {
            let all = names.join(", ");
            format!(
                "this server has several runs ({all}): add the path of one to its address, such as /runs/{first}\n"
            )
        }
    }
}

/// Returns the name of the run in `path`, and the path within the run.
fn of_run(path: &str) -> Option<(&str, String)> {
    if let Some(rest) = path.strip_prefix("/runs/") {
        let (name, _) = rest.split_once('/')?;
        return Some((name, rest[name.len()..].to_owned()));
    }
    let rest = path.strip_prefix("/v1/runs/")?;
    let (name, rest) = rest.split_once('/')?;
    Some((name, format!("/v1/{rest}")))
}

fn json(body: &RunsView) -> Response {
    let body = serde_json::to_vec(body).expect("plain data");
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")];
    (headers, body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_runs() {
        let check = |path: &str, expected: Option<(&str, &str)>| {
            let found = of_run(path);
            assert_eq!(found.as_ref().map(|(name, rest)| (*name, &**rest)), expected, "{path}");
        };
        check("/runs/a/", Some(("a", "/")));
        check("/runs/a/dashboard", Some(("a", "/dashboard")));
        check("/runs/a/v1/ws", Some(("a", "/v1/ws")));
        check("/v1/runs/a/status", Some(("a", "/v1/status")));
        check("/v1/runs/a/runs/0123456789abcdef/model", Some(("a", "/v1/runs/0123456789abcdef/model")));
        check("/runs/a", None);
        check("/v1/runs/a", None);
        check("/v1/status", None);
        check("/runs//x", Some(("", "/x")));
    }
}
