//! Platform of native programs: network threads, so that a long step does not delay answers to a peer; files with
//! secrets; signals; and trusted certificate authorities.

mod http;
mod socket;

use std::fs::{File, OpenOptions};
use std::future::poll_fn;
use std::io;
use std::path::Path;
#[cfg(unix)]
use std::sync::LazyLock;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use archipelago_core::time::Millis;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::Connector;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use webpki_roots::TLS_SERVER_ROOTS;

#[cfg(unix)]
use super::handles_sighup;
use super::{Proxy, RandomError};

pub use http::fetch;
pub use socket::Socket;

/// Monotonic clock that starts at [`Clock::start`].
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts a clock at 0.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is where the clock is read")]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn now(&self) -> Millis {
        Millis(self.now_us() / 1_000)
    }

    /// Returns the time since the start in microseconds, for short intervals.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// Returns `why`, a description of the silence at `url`, with the name of the proxy on the way to it, if there is one.
#[must_use]
pub fn silence(url: &str, why: &str) -> String {
    let proxy = Proxy::for_url(url).ok().flatten();
    proxy.map_or_else(|| why.to_owned(), |proxy| proxy.explain(why))
}

/// Waits `ms` milliseconds. Requires a Tokio runtime with a timer.
pub async fn sleep(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// Lets other tasks on this thread run.
pub async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Returns `N` random bytes that are suitable for keys.
///
/// # Errors
/// [`RandomError`]: the operating system provided no random bytes.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], RandomError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| RandomError { reason: error.to_string() })?;
    Ok(bytes)
}

/// Environment variable and a value for it with which a Vulkan layer finds no display and reports nothing. Without a
/// display, the layer complains on standard error if the variable is not set, although this program draws nothing.
#[cfg(target_os = "linux")]
const RUNTIME_FOLDER: (&str, &str) = ("XDG_RUNTIME_DIR", "/nonexistent");

/// Restarts this program with the same arguments and the variable set, if it is not set. The process is replaced
/// because it cannot safely change its own environment. If the restart fails, the program continues. Call this function
/// first in `main`.
#[cfg(target_os = "linux")]
pub fn silence_display() {
    use std::os::unix::process::CommandExt;
    use std::{env, process};

    let (name, value) = RUNTIME_FOLDER;
    // The layer accepts only absolute paths.
    if env::var_os(name).is_some_and(|folder| folder.as_encoded_bytes().starts_with(b"/")) {
        return;
    }
    let mut arguments = env::args_os();
    let Some(own) = arguments.next() else { return };
    let _failed = process::Command::new("/proc/self/exe").arg0(own).args(arguments).env(name, value).exec();
}

/// Does nothing, because only Linux has this layer.
#[cfg(not(target_os = "linux"))]
pub fn silence_display() {}

/// Opens the file at `path` for reading and writing. If it does not exist, creates it so that only its owner has
/// access.
///
/// # Errors
/// Those of the operating system.
pub fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Waits for a signal to end this process: Ctrl+C, SIGTERM, or a closed terminal (see [`handles_sighup`]). From the
/// first poll on, these signals no longer end the process by themselves.
///
/// # Errors
/// Those of the operating system if it cannot install a handler.
#[cfg(unix)]
pub async fn interrupted() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    // The mask must be read before the handler is installed, because that changes it.
    static HANDLES_SIGHUP: LazyLock<bool> = LazyLock::new(handles_sighup);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = if *HANDLES_SIGHUP { Some(signal(SignalKind::hangup())?) } else { None };
    let hung_up = async {
        match &mut hangup {
            Some(hangup) => hangup.recv().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        interrupted = tokio::signal::ctrl_c() => interrupted,
        _ = terminate.recv() => Ok(()),
        _ = hung_up => Ok(()),
    }
}

/// Waits for Ctrl+C. From the first poll on, Ctrl+C no longer ends the process by itself.
///
/// # Errors
/// Those of the operating system if it cannot install a handler.
#[cfg(not(unix))]
pub async fn interrupted() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}

/// Certificate authorities set by [`trust_only`].
static TRUSTED: OnceLock<TrustStores> = OnceLock::new();

#[derive(Debug)]
struct TrustStores {
    sockets: Arc<ClientConfig>,
    transfers: Arc<Vec<Certificate<'static>>>,
}

/// Reason why certificate authorities cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The text contains no certificate.
    #[error("it holds no certificate: give certificates of authorities in PEM form")]
    NoCertificate,
    /// A certificate is not usable as an authority.
    #[error("certificate {number} is invalid: {why}")]
    Unusable {
        /// Position of the certificate in the text, from 1.
        number: usize,
        /// Reason.
        why: String,
    },
    /// Certificate authorities were set before.
    #[error("this program already trusts other certificates")]
    Late,
}

/// Makes every connection of this program trust only the certificate authorities in `pem`, and no public ones. Must be
/// called before the first connection, and only once.
///
/// # Errors
/// - [`TrustError::NoCertificate`], [`TrustError::Unusable`]: the text contains no certificate, or an unusable one.
/// - [`TrustError::Late`]: the function was called before.
pub fn trust_only(pem: &[u8]) -> Result<(), TrustError> {
    TRUSTED.set(TrustStores::read(pem)?).map_err(|_| TrustError::Late)
}

impl TrustStores {
    fn read(pem: &[u8]) -> Result<Self, TrustError> {
        let mut certificates = Vec::new();
        let mut roots = RootCertStore::empty();
        for item in parse_pem(pem) {
            let number = certificates.len() + 1;
            let unusable = |why: String| TrustError::Unusable { number, why };
            let PemItem::Certificate(certificate) = item.map_err(|error| unusable(error.to_string()))? else {
                continue;
            };
            let root = CertificateDer::from(certificate.der().to_vec());
            roots.add(root).map_err(|error| unusable(error.to_string()))?;
            certificates.push(certificate);
        }
        if certificates.is_empty() {
            return Err(TrustError::NoCertificate);
        }
        Ok(Self { sockets: client_config(roots), transfers: Arc::new(certificates) })
    }
}

/// Returns the TLS connector for sockets, or `None` if public authorities are trusted.
fn connector() -> Option<Connector> {
    TRUSTED.get().map(|trusted| Connector::Rustls(Arc::clone(&trusted.sockets)))
}

/// Returns the TLS configuration for the connection to a proxy.
fn sockets() -> Arc<ClientConfig> {
    match TRUSTED.get() {
        Some(trusted) => Arc::clone(&trusted.sockets),
        None => client_config(TLS_SERVER_ROOTS.iter().cloned().collect()),
    }
}

fn client_config(roots: RootCertStore) -> Arc<ClientConfig> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions");
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

/// Returns the TLS configuration for HTTP requests, or `None` if public authorities are trusted.
fn authorities() -> Option<TlsConfig> {
    let trusted = TRUSTED.get()?;
    Some(TlsConfig::builder().root_certs(RootCerts::Specific(Arc::clone(&trusted.transfers))).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_certificate_is_an_error() {
        let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(TrustStores::read(b"my words").unwrap_err(), TrustError::NoCertificate);
        let error = TrustStores::read(junk.as_bytes()).unwrap_err();
        assert!(matches!(error, TrustError::Unusable { number: 1, .. }), "{error:?}");
        let torn = TrustStores::read(b"-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap_err();
        assert!(matches!(torn, TrustError::Unusable { .. }), "{torn:?}");
    }
}
