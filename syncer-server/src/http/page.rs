//! The status page: three small files, nothing from elsewhere.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

/// Everything comes from this server; nothing is inline; nobody frames it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

/// `/`.
pub async fn index() -> Response {
    file("text/html; charset=utf-8", include_str!("page/index.html"))
}

/// `/page.js`.
pub async fn script() -> Response {
    file("text/javascript; charset=utf-8", include_str!("page/page.js"))
}

/// `/page.css`.
pub async fn style() -> Response {
    file("text/css; charset=utf-8", include_str!("page/page.css"))
}

fn file(kind: &'static str, text: &'static str) -> Response {
    let headers: [(HeaderName, HeaderValue); 3] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text).into_response()
}
