//! `/v1/runs/{run}/history.jsonl` and `/v1/runs/{run}/report.html`: report files on the current state of a run.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::App;
use super::coalesce::Coalesced;
use super::work_limit::WorkError;
use crate::report::{RunReport, history_lines, page};

/// Time for which all requests share a file. The status in it is renewed each second as well.
const SHARED_FOR: Duration = Duration::from_secs(1);

/// The newest report files. Simultaneous requests share one computation.
pub struct Reports {
    history: Report,
    page: Report,
}

type Report = Coalesced<Bytes, WorkError>;

impl Default for Reports {
    fn default() -> Self {
        let [history, page] = [(); 2].map(|()| Coalesced::new(SHARED_FOR));
        Self { history, page }
    }
}

/// `history.jsonl`.
pub async fn history(State(app): State<Arc<App>>, Path(run): Path<String>) -> Response {
    let report = &app.reports.history;
    download(&app, &run, report, ("history.jsonl", "application/jsonl"), |report| {
        history_lines(&report.statistics)
    })
    .await
}

/// `report.html`.
pub async fn report(State(app): State<Arc<App>>, Path(run): Path<String>) -> Response {
    download(&app, &run, &app.reports.page, ("report.html", "text/html; charset=utf-8"), page).await
}

/// Answers with a report as a download; `render` makes its text. Names and texts in the report come from strangers, so
/// a browser must not load or run anything in it.
async fn download(
    app: &Arc<App>,
    run: &str,
    report: &Report,
    (name, kind): (&str, &'static str),
    render: fn(&RunReport) -> String,
) -> Response {
    if run != app.run {
        let why = format!("this is run {}\n", app.run);
        return (StatusCode::NOT_FOUND, why).into_response();
    }
    let rendered = report.get(
        |_| true,
        || {
            let app = Arc::clone(app);
            async move {
                let permit = app.work.permit().await?;
                let report = app.context.actor.report().await.ok_or(WorkError::Failed)?;
                // Sorting many learners and drawing a thousand points would block the thread that answers other
                // requests.
                permit.run(move |_| Bytes::from(render(&report))).await
            }
        },
    );
    let body = match rendered.await {
        Ok(body) => body,
        Err(error) => return error.into_response(),
    };
    let disposition = format!("attachment; filename=\"archipelago-{run}-{name}\"");
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'; sandbox"),
        ),
        (header::CONTENT_DISPOSITION, disposition.try_into().expect("digits and hyphens")),
    ];
    (headers, body).into_response()
}
