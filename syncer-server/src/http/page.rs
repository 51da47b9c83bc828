//! The pages: files of `web-demo`, built into the program; nothing comes from elsewhere.

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Everything comes from this server, WebAssembly too; nothing is inline; nobody frames it.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self' data:; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'",
);

/// A name with a hash in it never changes its content.
const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// One file, in two forms.
struct Asset {
    /// Its path below the pages' folder.
    name: &'static str,
    etag: &'static str,
    bytes: &'static [u8],
    gzip: &'static [u8],
}

/// Sorted by name.
static ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// `/`.
pub async fn index(headers: HeaderMap) -> Response {
    page("index.html", &headers)
}

/// `/dashboard`.
pub async fn dashboard(headers: HeaderMap) -> Response {
    page("dashboard.html", &headers)
}

/// `/teach`, and `/teach.html`, as files on a static host are called and those pages call each other.
pub async fn teach(headers: HeaderMap) -> Response {
    page("teach.html", &headers)
}

/// `/scale` and `/scale.html`.
pub async fn scale(headers: HeaderMap) -> Response {
    page("scale.html", &headers)
}

/// `/assets/…`: what pages load.
pub async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match find(&format!("assets/{name}")) {
        Some(asset) => answer(asset, IMMUTABLE, &headers),
        None => (StatusCode::NOT_FOUND, "there is no such file\n").into_response(),
    }
}

fn page(name: &str, headers: &HeaderMap) -> Response {
    match find(name) {
        Some(asset) => answer(asset, HeaderValue::from_static("no-cache"), headers),
        None => {
            let why = "this syncer was built without its pages: run `cargo xtask web`, then build it again\n";
            (StatusCode::NOT_FOUND, why).into_response()
        }
    }
}

fn find(name: &str) -> Option<&'static Asset> {
    ASSETS.binary_search_by(|asset| asset.name.cmp(name)).ok().map(|index| &ASSETS[index])
}

fn answer(asset: &'static Asset, cache: HeaderValue, request: &HeaderMap) -> Response {
    let common: [(HeaderName, HeaderValue); 8] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind(asset.name))),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, cache),
        (header::ETAG, HeaderValue::from_static(asset.etag)),
        (header::VARY, HeaderValue::from_static("accept-encoding, origin")),
        // Nothing of other origins is loaded, so isolation costs nothing and gives finer clocks.
        (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
        (HeaderName::from_static("cross-origin-embedder-policy"), HeaderValue::from_static("require-corp")),
        (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    ];
    if lists(request, &header::IF_NONE_MATCH, asset.etag) {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    if lists(request, &header::ACCEPT_ENCODING, "gzip") {
        let encoding = [(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))];
        return (common, encoding, asset.gzip).into_response();
    }
    (common, asset.bytes).into_response()
}

/// Whether the list in header `name` has `wanted`, not weighted with 0.
fn lists(request: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    let values = request.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|item| {
        let mut parts = item.split(';').map(str::trim);
        parts.next() == Some(wanted) && !parts.any(|part| matches!(part, "q=0" | "q=0.0"))
    })
}

fn kind(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("wasm") => "application/wasm",
        Some("svg") => "image/svg+xml",
        Some("webmanifest") => "application/manifest+json",
        Some("png") => "image/png",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lists() {
        let check = |value: &'static str, expected| {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, HeaderValue::from_static(value))]);
            assert_eq!(lists(&headers, &header::ACCEPT_ENCODING, "gzip"), expected, "{value}");
        };
        check("gzip", true);
        check("br, gzip;q=0.5", true);
        check("gzip;q=0", false);
        check("br", false);
        assert!(!lists(&HeaderMap::new(), &header::ACCEPT_ENCODING, "gzip"));
    }

    #[test]
    fn names_are_sorted_for_the_search() {
        assert!(ASSETS.is_sorted_by_key(|asset| asset.name));
    }
}
