//! Trusted certificate authorities.

use std::sync::{Arc, OnceLock};

use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio_tungstenite::Connector;
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};
use webpki_roots::TLS_SERVER_ROOTS;

/// Authorities passed to [`trust_only`].
static TRUSTED: OnceLock<Trusted> = OnceLock::new();

#[derive(Debug)]
struct Trusted {
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
    TRUSTED.set(Trusted::read(pem)?).map_err(|_| TrustError::Late)
}

impl Trusted {
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
pub(super) fn connector() -> Option<Connector> {
    TRUSTED.get().map(|trusted| Connector::Rustls(Arc::clone(&trusted.sockets)))
}

/// Returns the TLS configuration for the connection to a proxy.
pub(super) fn sockets() -> Arc<ClientConfig> {
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
pub(super) fn authorities() -> Option<TlsConfig> {
    let trusted = TRUSTED.get()?;
    Some(TlsConfig::builder().root_certs(RootCerts::Specific(Arc::clone(&trusted.transfers))).build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_names_no_authority_is_said() {
        let junk = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(Trusted::read(b"my words").unwrap_err(), TrustError::NoCertificate);
        let error = Trusted::read(junk.as_bytes()).unwrap_err();
        assert!(matches!(error, TrustError::Unusable { number: 1, .. }), "{error:?}");
        let torn = Trusted::read(b"-----BEGIN CERTIFICATE-----\nAAAA\n").unwrap_err();
        assert!(matches!(torn, TrustError::Unusable { .. }), "{torn:?}");
    }
}
