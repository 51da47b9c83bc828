//! Cache of page files. Each file is read and compressed once for all readers, because a class behind one access point
//! loads the same files within a minute.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::SystemTime;

use axum::body::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use super::work_limit::{WorkError, WorkLimit};

/// Number of files kept in memory; more than all pages have together.
const FILES_MAX: usize = 128;
/// Maximum size of a compressed file, in bytes; several times the size of the WebAssembly engine.
const FILE_BYTES_MAX: usize = 16 << 20;
/// Maximum number of requests that wait for a file.
const WAITING_MAX: usize = 1_024;

/// Limit of one reader at a time, so that no file is read twice.
static WORK: LazyLock<WorkLimit> = LazyLock::new(|| WorkLimit::new(1, WAITING_MAX));

/// Cached files by path, with the modification time and length of each.
static KEPT: Mutex<BTreeMap<PathBuf, (Written, PageFile)>> = Mutex::new(BTreeMap::new());

type Written = (Option<SystemTime>, u64);

/// A cached file, shared by all answers.
#[derive(Clone, Debug)]
pub(super) struct PageFile {
    /// First 8 bytes of the content's SHA-256, in hexadecimal.
    pub(super) hash: String,
    /// Its content.
    pub(super) bytes: Bytes,
    /// The compressed content, if it is smaller.
    pub(super) gzip: Option<Bytes>,
}

/// Returns the current content of the file at `path`; `None` if there is no such file.
///
/// # Errors
/// Those of [`WorkLimit`].
pub(super) async fn page_file(path: PathBuf) -> Result<Option<PageFile>, WorkError> {
    WORK.permit().await?.run(move |_| look_up(&path)).await
}

fn look_up(path: &Path) -> Option<PageFile> {
    let metadata = fs::metadata(path).ok()?;
    let written = (metadata.modified().ok(), metadata.len());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, file)) = kept.get(path).filter(|(kept, _)| *kept == written) {
        return Some(file.clone());
    }
    let bytes = Bytes::from(fs::read(path).ok()?);
    let hash = Sha256::digest(&bytes)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let gzip = Some(&bytes).filter(|bytes| bytes.len() <= FILE_BYTES_MAX).map(|bytes| compress(bytes));
    let gzip = gzip.filter(|gzip| gzip.len() < bytes.len()).map(Bytes::from);
    let file = PageFile { hash, bytes, gzip };
    if kept.len() >= FILES_MAX {
        kept.clear();
    }
    kept.insert(path.to_owned(), (written, file.clone()));
    Some(file)
}

fn compress(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory takes everything")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: all readers share one copy of a file, and a changed file is read again.
    #[tokio::test]
    async fn answers_share_a_file_until_it_changes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("page.html");
        fs::write(&path, "let island;\n".repeat(100)).unwrap();
        let first = page_file(path.clone()).await.unwrap().unwrap();
        let second = page_file(path.clone()).await.unwrap().unwrap();
        assert_eq!((first.bytes.as_ptr(), &first.hash), (second.bytes.as_ptr(), &second.hash));
        assert!(first.gzip.is_some_and(|gzip| gzip.len() < 100));
        fs::write(&path, "short").unwrap();
        let third = page_file(path).await.unwrap().unwrap();
        assert_eq!((&*third.bytes, third.gzip), (&b"short"[..], None));
        assert!(page_file(dir.path().join("none")).await.unwrap().is_none());
    }
}
