//! TLS: the current certificate, and its renewal when the files change.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use archipelago_cli::Bytes;
use sha2::{Digest, Sha256};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, InconsistentKeys, ServerConfig};
use tokio_rustls::server::TlsStream;

use super::stall_timeout::{STALL_MAX, WriteTimeoutStream};
use crate::errors::{CertificateError, ServerError};

/// Time limit for the handshake of a connection.
pub(crate) const HANDSHAKE_WAIT: Duration = Duration::from_secs(10);
/// Interval between reads of the files. A change is used once two reads have found the same content, because a renewal
/// writes one file after the other.
pub(crate) const CHECK_EVERY: Duration = Duration::from_secs(2);
/// Maximum size of a file, in bytes; a certificate chain has a few kilobytes.
pub(crate) const FILE_BYTES_MAX: u64 = 256 << 10;
/// First byte of a TLS connection (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;
/// Response to a connection without TLS.
const PLAIN: &str = "this server accepts only https: begin the address with https:// or wss://\n";

/// TLS acceptor. Cheap to clone; all clones use the same certificate.
#[derive(Clone)]
pub(super) struct Tls {
    acceptor: TlsAcceptor,
    shown: Arc<CurrentKey>,
    files: Arc<Files>,
    /// Hash of the files at the start.
    first: ContentHash,
}

impl Tls {
    /// Creates an acceptor from the PEM files `cert` and `key`.
    ///
    /// # Errors
    /// - `Certificate`: a file cannot be used.
    /// - `Internal`: TLS cannot be set up.
    pub(super) fn open(cert: &Path, key: &Path) -> Result<Self, ServerError> {
        let files = Files { cert: cert.to_owned(), key: key.to_owned() };
        let read = files.read()?;
        let first = ContentHash::of(&Ok(read.clone()));
        let shown = Arc::new(CurrentKey(RwLock::new(Arc::new(files.certified(&read)?))));
        let provider = Arc::new(default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config =
            config.map_err(|error| ServerError::Internal { what: format!("cannot set up TLS: {error}") })?;
        let mut config = config.with_no_client_auth().with_cert_resolver(Arc::clone(&shown) as _);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)), shown, files: Arc::new(files), first })
    }

    /// Performs the handshake on `stream`.
    pub(super) async fn handshake(
        &self,
        stream: TcpStream,
    ) -> io::Result<TlsStream<WriteTimeoutStream<TcpStream>>> {
        let finished = timeout(HANDSHAKE_WAIT, async {
            let mut first = [HANDSHAKE];
            stream.peek(&mut first).await?;
            if first != [HANDSHAKE] {
                refuse_plain(&stream);
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not use TLS"));
            }
            // The stall timeout is below TLS, so it also covers the handshake.
            self.acceptor.accept(WriteTimeoutStream::new(stream, STALL_MAX)).await
        });
        finished
            .await
            .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, "TLS handshake timed out")))
    }

    /// Reads the files repeatedly until `stopping` is true. Calls `on_result` for each new pair: true if it is now in
    /// use, false if it is unusable.
    pub(super) async fn renew<F: Future<Output = ()>>(
        self,
        mut stopping: watch::Receiver<bool>,
        on_result: impl Fn(bool) -> F,
    ) {
        let mut changes = ChangeDetector::new(self.first);
        loop {
            tokio::select! {
                () = sleep(CHECK_EVERY) => {}
                _ = stopping.wait_for(|stopped| *stopped) => return,
            }
            let files = Arc::clone(&self.files);
            let Ok(read) = tokio::task::spawn_blocking(move || files.read()).await else { continue };
            if !changes.is_new(ContentHash::of(&read)) {
                continue;
            }
            match read.and_then(|read| self.files.certified(&read)) {
                Ok(certified) => {
                    *self.shown.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(certified);
                    tracing::info!(file = %self.files.cert.display(), "new certificate in use");
                    on_result(true).await;
                }
                Err(error) => {
                    tracing::error!(%error, "the new certificate cannot be used; the old one stays in use");
                    on_result(false).await;
                }
            }
        }
    }
}

/// Tells a client without TLS to use https, without waiting.
fn refuse_plain(stream: &TcpStream) {
    // Unread input would turn the close into a reset, which could overtake the response.
    let _ = stream.try_read(&mut [0; 4_096]);
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain; charset=utf-8\r\n\
         content-length: {}\r\n\r\n{PLAIN}",
        PLAIN.len()
    );
    // Nothing has been sent on this connection yet, so its buffer has room for a few bytes.
    let _ = stream.try_write(answer.as_bytes());
}

/// The certificate and key for new connections.
#[derive(Debug)]
struct CurrentKey(RwLock<Arc<CertifiedKey>>);

impl ResolvesServerCert for CurrentKey {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner)))
    }
}

/// Paths of the certificate and its key.
#[derive(Debug)]
struct Files {
    cert: PathBuf,
    key: PathBuf,
}

/// Contents of both files.
#[derive(Clone)]
struct Pair {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl Files {
    fn read(&self) -> Result<Pair, CertificateError> {
        Ok(Pair { cert: bytes_of("tls-cert", &self.cert)?, key: bytes_of("tls-key", &self.key)? })
    }

    fn certified(&self, pair: &Pair) -> Result<CertifiedKey, CertificateError> {
        let chain: Result<Vec<CertificateDer<'static>>, _> =
            CertificateDer::pem_slice_iter(&pair.cert).collect();
        let chain = chain.ok().filter(|chain| !chain.is_empty());
        let chain = chain.ok_or_else(|| CertificateError::NoCertificate { path: self.cert.clone() })?;
        let key = PrivateKeyDer::from_pem_slice(&pair.key);
        let key = key.map_err(|_| CertificateError::NoKey { path: self.key.clone() })?;
        CertifiedKey::from_der(chain, key, &default_provider()).map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                CertificateError::Mismatch { key: self.key.clone(), cert: self.cert.clone() }
            }
            error => CertificateError::Unusable { cert: self.cert.clone(), why: error.to_string() },
        })
    }
}

fn bytes_of(flag: &'static str, path: &Path) -> Result<Vec<u8>, CertificateError> {
    let failed = |source| CertificateError::Unreadable { flag, path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(failed)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(CertificateError::TooLarge { flag, path: path.to_owned(), most: Bytes(FILE_BYTES_MAX) });
    }
    Ok(bytes)
}

/// Hash of both files, so that reads can be compared without a copy of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ContentHash([u8; 32]);

impl ContentHash {
    fn of(read: &Result<Pair, CertificateError>) -> Self {
        let mut hash = Sha256::new();
        match read {
            Ok(Pair { cert, key }) => {
                hash.update((cert.len() as u64).to_le_bytes());
                hash.update(cert);
                hash.update(key);
            }
            Err(error) => hash.update(error.to_string()),
        }
        Self(hash.finalize().into())
    }
}

/// Decides which contents of the files are both new and stable.
#[derive(Debug)]
struct ChangeDetector {
    used: ContentHash,
    last: ContentHash,
}

impl ChangeDetector {
    fn new(first: ContentHash) -> Self {
        Self { used: first, last: first }
    }

    /// Returns true if `seen` equals the previous read and differs from the contents used last.
    fn is_new(&mut self, seen: ContentHash) -> bool {
        let is_still = std::mem::replace(&mut self.last, seen) == seen;
        let is_new = is_still && self.used != seen;
        if is_new {
            self.used = seen;
        }
        is_new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_is_used_once_both_files_have_come() {
        let [old, half, new, bad] = [1, 2, 3, 4].map(|byte| ContentHash([byte; 32]));
        let mut changes = ChangeDetector::new(old);
        let looks = [old, half, new, new, new, bad, bad, bad, new, new];
        let found: Vec<bool> = looks.into_iter().map(|seen| changes.is_new(seen)).collect();
        assert_eq!(found, [false, false, false, true, false, false, true, false, false, true]);
    }

    #[test]
    fn unusable_files_yield_a_sentence_with_a_remedy() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let [one, two] =
            ["one", "two"].map(|_| rcgen::generate_simple_self_signed(["localhost".into()]).unwrap());
        let (cert, key) =
            (put("cert.pem", &one.cert.pem()), put("key.pem", &one.signing_key.serialize_pem()));
        let other = put("other.pem", &two.signing_key.serialize_pem());
        let torn = put("torn.pem", &one.cert.pem().replace("-----END", "----END"));
        let junk = put("junk.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let (text, large) = (put("text", "my words"), put("large", &"x".repeat(1 << 20)));
        let none = dir.path().join("none");
        assert!(Tls::open(&cert, &key).is_ok());
        for (cert, key, part) in [
            (&none, &key, "none: No such file or directory (os error 2); give --tls-cert"),
            (&cert, &none, "none: No such file or directory (os error 2); give --tls-key"),
            (&text, &key, "text holds no certificate: give --tls-cert the chain"),
            (&key, &key, "key.pem holds no certificate"),
            (&torn, &key, "torn.pem holds no certificate"),
            (&cert, &cert, "cert.pem holds no private key: give --tls-key"),
            (&cert, &other, "other.pem does not belong to the certificate in"),
            (&junk, &key, "junk.pem cannot be used"),
            (&large, &key, "large is larger than 256.0KiB"),
        ] {
            let error = Tls::open(cert, key).err().unwrap();
            assert!(matches!(error, ServerError::Certificate(_)), "{error:?}");
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }
}
