//! Page routes. Pages are files of `web-demo`, built into the program or read from a folder.

use std::path::Path as FilePath;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::App;
use super::packed::{PageFile, page_file};
use super::work_limit::WorkError;

/// Content security policy: everything, WebAssembly included, comes from this server; no inline code, no framing.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; style-src 'self'; \
     connect-src 'self'; img-src 'self' data:; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'",
);

/// Cache policy of files whose names contain a hash of their content.
const IMMUTABLE: HeaderValue = HeaderValue::from_static("public, max-age=31536000, immutable");

/// Message of a program that was built without pages, logged at its start and sent in answers.
const WITHOUT: &str = "this syncer was built without its pages: run `cargo xtask web`, then either build it again or \
                       start it with `--pages web-demo/dist`";

/// Page shown until the folder contains pages; it reloads by itself.
const WAITING: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
     <meta name=\"viewport\" content=\"width=device-width\">\n<meta http-equiv=\"refresh\" content=\"2\">\n\
     <title>Archipelago: one moment</title>\n<p>The pages are still being built, which takes a minute or two. The run \
     trains meanwhile, and this page looks again by itself.</p>\n</html>\n";

/// A built-in file, plain and compressed.
struct Asset {
    /// Path within the pages' folder.
    name: &'static str,
    etag: &'static str,
    bytes: &'static [u8],
    gzip: &'static [u8],
}

/// Built-in files, sorted by name.
static ASSETS: &[Asset] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// A file to send.
struct File {
    etag: HeaderValue,
    bytes: Bytes,
    gzip: Option<Bytes>,
}

/// Returns a warning for the owner if there are no pages. `folder` is the value of `--pages`.
pub fn missing_pages_warning(folder: Option<&FilePath>) -> Option<&'static str> {
    (folder.is_none() && ASSETS.is_empty()).then_some(WITHOUT)
}

/// `/`.
pub async fn index(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    page(&app, "index.html", &headers).await
}

/// `/dashboard`.
pub async fn dashboard(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    page(&app, "dashboard.html", &headers).await
}

/// `/teach` and `/teach.html`. Links in pages use the second name, because a static host needs it.
pub async fn teach(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    page(&app, "teach.html", &headers).await
}

/// `/scale` and `/scale.html`.
pub async fn scale(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    page(&app, "scale.html", &headers).await
}

/// `/assets/…`: files that pages load.
pub async fn asset(State(app): State<Arc<App>>, Path(name): Path<String>, headers: HeaderMap) -> Response {
    asset_of(app.pages.as_deref(), &name, &headers).await
}

/// Answers with a file that pages load, read from `folder` if one is given.
pub async fn asset_of(folder: Option<&FilePath>, name: &str, headers: &HeaderMap) -> Response {
    let file = if is_plain(name) { find(folder, &format!("assets/{name}")).await } else { Ok(None) };
    match file {
        Ok(Some(file)) => answer(file, name, IMMUTABLE, headers),
        Err(error) => error.into_response(),
        Ok(None) => (StatusCode::NOT_FOUND, "there is no such file\n").into_response(),
    }
}

async fn page(app: &App, name: &str, headers: &HeaderMap) -> Response {
    file(app.pages.as_deref(), name, headers).await
}

/// Answers with the page `name`, read from `folder` if one is given.
pub async fn file(folder: Option<&FilePath>, name: &str, headers: &HeaderMap) -> Response {
    match find(folder, name).await {
        Ok(Some(file)) => answer(file, name, HeaderValue::from_static("no-cache"), headers),
        Err(error) => error.into_response(),
        Ok(None) if folder.is_some() => {
            let common = [
                (header::CONTENT_TYPE, HeaderValue::from_static(kind(name))),
                (header::CONTENT_SECURITY_POLICY, POLICY),
                (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
                (header::RETRY_AFTER, HeaderValue::from_static("2")),
            ];
            (StatusCode::SERVICE_UNAVAILABLE, common, WAITING).into_response()
        }
        Ok(None) => (StatusCode::NOT_FOUND, format!("{WITHOUT}\n")).into_response(),
    }
}

/// Texts of the answer for an address without content.
pub struct Missing<'a> {
    /// HTTP status of the answer.
    pub status: StatusCode,
    /// Reason as a line of text, for programs.
    pub line: &'a str,
    /// Reason as a sentence, for people. It is inserted as markup, so it must contain no text from the request.
    pub sentence: &'a str,
    /// Text of the link to the start page.
    pub home: &'a str,
}

impl Missing<'_> {
    /// Returns the answer to `asked`. Browsers get a page, read from `folder` if one is given. Other programs get the
    /// line of text.
    pub async fn answer(self, folder: Option<&FilePath>, asked: &Asked) -> Response {
        let Self { status, line, sentence, home } = self;
        let page = match asked.wants_page {
            true => find(folder, "missing.html").await,
            false => Ok(None),
        };
        let Ok(Some(file)) = page else { return (status, format!("{line}\n")).into_response() };
        let page = String::from_utf8_lossy(&file.bytes)
            .replace("=\"./", &format!("=\"{}", asked.up))
            .replace("There is no page at this address.", sentence)
            .replace("Start page", home);
        let common = [
            (header::CONTENT_TYPE, HeaderValue::from_static(kind("missing.html"))),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            (header::VARY, HeaderValue::from_static("accept")),
        ];
        (status, common, page).into_response()
    }
}

/// Properties of a request for an address that has no content.
pub struct Asked {
    /// True if a browser asks for a page to show.
    wants_page: bool,
    /// Relative path from the requested address to the folder of the pages. Links in pages start there.
    up: String,
}

impl Asked {
    /// Returns the properties of `request` on which its answer depends.
    pub fn of(request: &Request) -> Self {
        let path = request.uri().path();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let wants_page =
            is_read && lists(request.headers(), &header::ACCEPT, "text/html") && !path.starts_with("/v1/");
        let up = match path.matches('/').count() {
            0 | 1 => "./".to_owned(),
            depth => "../".repeat(depth - 1),
        };
        Self { wants_page, up }
    }
}

/// Returns the file `name`, read from `folder` if one is given, otherwise a built-in file.
async fn find(folder: Option<&FilePath>, name: &str) -> Result<Option<File>, WorkError> {
    let Some(folder) = folder else {
        let Ok(index) = ASSETS.binary_search_by(|asset| asset.name.cmp(name)) else { return Ok(None) };
        let Asset { etag, bytes, gzip, .. } = &ASSETS[index];
        let (bytes, gzip) = (Bytes::from_static(bytes), Some(Bytes::from_static(gzip)));
        return Ok(Some(File { etag: HeaderValue::from_static(etag), bytes, gzip }));
    };
    let Some(PageFile { hash, bytes, gzip }) = page_file(folder.join(name)).await? else { return Ok(None) };
    let etag = HeaderValue::try_from(format!("\"{hash}\"")).expect("hex digits may stand in a header");
    Ok(Some(File { etag, bytes, gzip }))
}

/// Returns true if `name` is a plain file name, which cannot lead to another folder.
fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('.')
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_'))
}

fn answer(file: File, name: &str, cache: HeaderValue, request: &HeaderMap) -> Response {
    let File { etag, bytes, gzip } = file;
    let unchanged = etag.to_str().is_ok_and(|etag| lists(request, &header::IF_NONE_MATCH, etag));
    let common: [(HeaderName, HeaderValue); 8] = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind(name))),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::CACHE_CONTROL, cache),
        (header::ETAG, etag),
        (header::VARY, HeaderValue::from_static("accept-encoding, origin")),
        // The pages load nothing from other origins. So isolation costs nothing, and it makes clocks finer.
        (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
        (HeaderName::from_static("cross-origin-embedder-policy"), HeaderValue::from_static("require-corp")),
        (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    ];
    if unchanged {
        return (StatusCode::NOT_MODIFIED, common).into_response();
    }
    match gzip {
        Some(gzip) if takes_gzip(request) => {
            let encoding = [(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"))];
            (common, encoding, gzip).into_response()
        }
        _ => (common, bytes).into_response(),
    }
}

fn takes_gzip(request: &HeaderMap) -> bool {
    lists(request, &header::ACCEPT_ENCODING, "gzip")
}

/// Returns true if the comma-separated list in header `name` contains `wanted` with a weight other than 0.
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
    fn names_lead_to_no_other_folder() {
        for name in ["index-Bx_9.js", "archipelago_bg-a.wasm"] {
            assert!(is_plain(name), "{name}");
        }
        for name in ["", ".", "..", ".env", "../secret", "a/b", "a\\b", "a\0"] {
            assert!(!is_plain(name), "{name}");
        }
    }

    #[test]
    fn names_are_sorted_for_the_search() {
        assert!(ASSETS.is_sorted_by_key(|asset| asset.name));
    }
}
