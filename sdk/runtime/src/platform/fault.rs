//! Error messages for failed transfers: rejected certificates, and proxies that block the transfer.

use std::error::Error;

use rustls::CertificateError;

use super::Proxy;

/// Returns a message with the cause of a failed transfer and the remedy. `proxy` is the proxy of the transfer, if any.
#[must_use]
pub fn transfer_fault(error: &ureq::Error, proxy: Option<&Proxy>) -> String {
    let why = match error {
        ureq::Error::Rustls(error) => certificate_fault(error),
        ureq::Error::Io(error) => error.get_ref().and_then(|error| tls_fault(error)),
        _ => None,
    };
    let why = why.unwrap_or_else(|| error.to_string());
    match proxy {
        Some(proxy) => proxy.explain(&why),
        None => why,
    }
}

/// Returns a message with the cause and the remedy if `error` is about a rejected certificate.
pub(super) fn tls_fault(error: &(dyn Error + 'static)) -> Option<String> {
    error.downcast_ref().and_then(certificate_fault)
}

fn certificate_fault(error: &rustls::Error) -> Option<String> {
    let rustls::Error::InvalidCertificate(why) = error else { return None };
    Some(match why {
        CertificateError::UnknownIssuer => {
            "its certificate was issued by an authority that is not trusted here: if it is a private one, name its \
             certificate with --ca FILE"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!("its certificate is for another name ({why}): use a name that the certificate covers")
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!(
                "its certificate has expired ({why}): renew it, and check that the clock of this machine is right")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!(
                "its certificate is not valid yet ({why}): check that the clocks of both machines are right")
        }
        // The library has no variant for this error.
        CertificateError::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "its certificate is an authority's (CA:TRUE), which no server can use: make one for the server, with \
             `openssl req -x509 … -addext basicConstraints=critical,CA:FALSE`"
                .to_owned()
        }
        why => format!(
            "its certificate is not trusted ({why}): name the authority that issued it with --ca FILE"),
    })
}
