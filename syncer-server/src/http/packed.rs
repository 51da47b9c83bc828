//! Files of a folder of pages, compressed once for all who load them: a class on one access point loads the same ones
//! within a minute.

use std::collections::BTreeMap;
use std::io::Write as _;

use axum::body::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::Mutex;

/// Files that are kept compressed: more than all pages have together.
const FILES_MAX: usize = 128;
/// Largest file that is compressed, in bytes, several times the engine.
const FILE_BYTES_MAX: usize = 16 << 20;

/// By the tag of their content; nothing for those that do not become smaller. Whoever compresses holds it, so that the
/// others wait for that instead of doing the same.
static KEPT: Mutex<BTreeMap<String, Option<Bytes>>> = Mutex::const_new(BTreeMap::new());

/// `bytes`, whose content has the tag `etag`, compressed; nothing if that is of no use.
pub(super) async fn packed(etag: &str, bytes: &Bytes) -> Option<Bytes> {
    if bytes.len() > FILE_BYTES_MAX {
        return None;
    }
    let mut kept = KEPT.lock().await;
    if let Some(found) = kept.get(etag) {
        return found.clone();
    }
    if kept.len() >= FILES_MAX {
        kept.clear();
    }
    let plain = bytes.clone();
    let gzip = tokio::task::spawn_blocking(move || compress(&plain)).await.ok()?;
    let useful = (gzip.len() < bytes.len()).then(|| Bytes::from(gzip));
    kept.insert(etag.to_owned(), useful.clone());
    useful
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory takes everything")
}
