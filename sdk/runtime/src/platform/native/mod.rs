//! Operating-system platform: separate threads for the network, so that a long step never makes a peer wait; secrets on
//! disk, signals, and trusted certificate authorities.

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

use super::RandomError;
#[cfg(unix)]
use super::hears_hangup;

pub use http::fetch;
pub use socket::Socket;

/// A monotonic clock that starts at [`Clock::start`].
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

/// Waits `ms` milliseconds. Must be polled within a Tokio runtime with an enabled timer.
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

/// Returns `N` unpredictable bytes, for identities and for jitter.
///
/// # Errors
/// [`RandomError`]: the operating system provided no random bytes.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], RandomError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| RandomError { reason: error.to_string() })?;
    Ok(bytes)
}

/// Variable, and a value with which a layer of the graphics driver finds no display and stays silent. On machines
/// without a display it complains on standard error that the variable is not set, although the program draws nothing.
#[cfg(target_os = "linux")]
const RUNTIME_FOLDER: (&str, &str) = ("XDG_RUNTIME_DIR", "/nonexistent");

/// Replaces this process by the same program with the same arguments and the variable set, if it is not set. A process
/// cannot safely change its own environment. If the restart fails, the program goes on unchanged. Call this function
/// first in `main`.
#[cfg(target_os = "linux")]
pub fn silence_display() {
    use std::os::unix::process::CommandExt;
    use std::{env, process};

    let (name, value) = RUNTIME_FOLDER;
    // The layer accepts only an absolute path.
    if env::var_os(name).is_some_and(|folder| folder.as_encoded_bytes().starts_with(b"/")) {
        return;
    }
    let mut arguments = env::args_os();
    let Some(own) = arguments.next() else { return };
    let _failed = process::Command::new("/proc/self/exe").arg0(own).args(arguments).env(name, value).exec();
}

/// Does nothing: other systems have no such layer.
#[cfg(not(target_os = "linux"))]
pub fn silence_display() {}

/// Opens `path` to read and write, and creates it for its owner alone if it is not there.
///
/// # Errors
/// The errors of the operating system.
pub fn open_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Waits for a request to end this process: Ctrl+C, SIGTERM, or a terminal that closes (see [`hears_hangup`]). From the
/// first poll on, none of these signals ends the process by itself.
///
/// # Errors
/// The errors of the operating system, if it does not let us listen for signals.
#[cfg(unix)]
pub async fn interrupted() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    // Read before the handler is installed, since the handler changes the mask.
    static HEARS_HANGUP: LazyLock<bool> = LazyLock::new(hears_hangup);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = if *HEARS_HANGUP { Some(signal(SignalKind::hangup())?) } else { None };
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

/// Waits for a request to end this process: Ctrl+C, or SIGTERM where it exists. From the first poll on, neither ends
/// the process by itself.
///
/// # Errors
/// The errors of the operating system, if it does not let us listen for signals.
#[cfg(not(unix))]
pub async fn interrupted() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}

/// Authorities passed to [`trust_only`].
static TRUSTED: OnceLock<TrustStores> = OnceLock::new();

#[derive(Debug)]
struct TrustStores {
    sockets: Arc<ClientConfig>,
    transfers: Arc<Vec<Certificate<'static>>>,
}

/// Reason why authorities cannot be trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrustError {
    /// The text contains no certificate.
    #[error("it holds no certificate: give certificates of authorities in PEM form")]
    NoCertificate,
    /// A certificate is not usable as an authority.
    #[error("certificate {number} is invalid: {why}")]
    Unusable {
        /// Position of the certificate, from 1.
        number: usize,
        /// Reason.
        why: String,
    },
    /// Other authorities were set before.
    #[error("this program already trusts other certificates")]
    Late,
}

/// Makes every connection of this program trust only the authorities whose certificates are in `pem`, and no public
/// ones. Must be called once, before the first connection.
///
/// # Errors
/// - [`TrustError::NoCertificate`], [`TrustError::Unusable`]: the text is no list of usable certificates.
/// - [`TrustError::Late`]: it was called before.
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
        Ok(Self { sockets: believing(roots), transfers: Arc::new(certificates) })
    }
}

/// Returns the TLS connector for sockets, or `None` if the public authorities are trusted.
fn connector() -> Option<Connector> {
    TRUSTED.get().map(|trusted| Connector::Rustls(Arc::clone(&trusted.sockets)))
}

/// Returns the TLS configuration for the connection to a proxy.
fn sockets() -> Arc<ClientConfig> {
    match TRUSTED.get() {
        Some(trusted) => Arc::clone(&trusted.sockets),
        None => believing(TLS_SERVER_ROOTS.iter().cloned().collect()),
    }
}

fn believing(roots: RootCertStore) -> Arc<ClientConfig> {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has suites for both versions");
    Arc::new(config.with_root_certificates(roots).with_no_client_auth())
}

/// Returns the TLS configuration for transfers, or `None` if the public authorities are trusted.
fn authorities() -> Option<TlsConfig> {
    let trusted = TRUSTED.get()?;
    Some(TlsConfig::builder().root_certs(RootCerts::Specific(Arc::clone(&trusted.transfers))).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_authority_is_said() {
        let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(TrustStores::read(b"my words").unwrap_err(), TrustError::NoCertificate);
        let error = TrustStores::read(junk.as_bytes()).unwrap_err();
        assert!(matches!(error, TrustError::Unusable { number: 1, .. }), "{error:?}");
        let torn = TrustStores::read(b"-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap_err();
        assert!(matches!(torn, TrustError::Unusable { .. }), "{torn:?}");
    }
}
