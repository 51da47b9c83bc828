//! HTTP proxies from environment variables, with the same rules for sockets and HTTP requests.
//!
//! `https_proxy` applies to `https` and `wss` addresses, and `http_proxy` to `http` and `ws` addresses. `all_proxy`
//! applies where neither is set. Names in capital letters have the same effect. `no_proxy` lists exceptions. Loopback
//! addresses are never reached through a proxy.

use std::error::Error;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use rustls::CertificateError;
use ureq::ProxyProtocol;
use ureq::http::Uri;

/// Variables that name the proxy for addresses with TLS, highest precedence first.
const HTTPS: &[&str] = &["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"];
const HTTP: &[&str] = &["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"];
/// Variables that list addresses to reach without a proxy.
const EXCEPTIONS: &[&str] = &["no_proxy", "NO_PROXY"];

/// HTTP proxy for connections to one server. `Display` omits its password.
#[derive(Clone, Debug)]
pub struct Proxy {
    variable: &'static str,
    target: Target,
    proxy: ureq::Proxy,
}

/// Reason why the proxy that an environment variable names cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyError {
    /// The value of the variable is not an address.
    #[error(
        "{variable} is not the address of a proxy: give it the form http://HOST:PORT, or name {host} in NO_PROXY"
    )]
    Malformed {
        /// Name of the variable.
        variable: &'static str,
        /// Host that the proxy was to reach.
        host: String,
    },
    /// The variable names a SOCKS proxy.
    #[error(
        "{variable} names a SOCKS proxy, but only HTTP proxies are supported: name an HTTP proxy, or name {host} in \
         NO_PROXY"
    )]
    Socks {
        /// Name of the variable.
        variable: &'static str,
        /// Host that the proxy was to reach.
        host: String,
    },
}

impl Proxy {
    /// Returns the proxy for `url`, which has the scheme `http`, `https`, `ws` or `wss`. Returns `None` if no proxy is
    /// set for its server.
    ///
    /// # Errors
    /// [`ProxyError`] if the variable that applies is unusable.
    pub fn for_url(url: &str) -> Result<Option<Self>, ProxyError> {
        Self::from_variables(url, |name| std::env::var(name).ok())
    }

    /// Returns the proxy for `url` as [`Self::for_url`] does, with environment variables from `variable`.
    fn from_variables(
        url: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, ProxyError> {
        let Some((target, is_secure)) = Target::of(url) else { return Ok(None) };
        let first = |names: &'static [&'static str]| {
            names.iter().find_map(|&name| {
                let value = variable(name)?.trim().to_owned();
                (!value.is_empty()).then_some((name, value))
            })
        };
        let Some((variable, value)) = first(if is_secure { HTTPS } else { HTTP }) else { return Ok(None) };
        let exceptions = first(EXCEPTIONS).map(|(_, list)| list).unwrap_or_default();
        if target.is_local() || target.matches_any(&exceptions) {
            return Ok(None);
        }
        let host = target.host.clone();
        let proxy = ureq::Proxy::new(&value).ok().filter(|_| !has_unusable_port(&value));
        let Some(proxy) = proxy else {
            return Err(ProxyError::Malformed { variable, host });
        };
        match proxy.protocol() {
            ProxyProtocol::Http | ProxyProtocol::Https => Ok(Some(Self { variable, target, proxy })),
            _ => Err(ProxyError::Socks { variable, host }),
        }
    }

    /// Returns the proxy in the HTTP client's type.
    #[must_use]
    pub fn for_transfers(&self) -> ureq::Proxy {
        self.proxy.clone()
    }

    /// Returns an error message for a connection through the proxy that failed because of `why`, with a remedy.
    #[must_use]
    pub fn explain(&self, why: &str) -> String {
        let Target { host, port } = &self.target;
        format!(
            "{self} does not lead to {host}:{port}: {why}; make it allow that, or name {host} in NO_PROXY"
        )
    }

    /// Returns `HOST:PORT` of the server, as a `CONNECT` request needs it.
    #[cfg(feature = "platform")]
    pub(super) fn target(&self) -> String {
        self.target.to_string()
    }

    /// Returns host and port of the proxy. An IPv6 address has no brackets.
    #[cfg(feature = "platform")]
    pub(super) fn host_and_port(&self) -> (&str, u16) {
        (bare(self.proxy.host()), self.proxy.port())
    }

    /// Returns true if the connection to the proxy uses TLS.
    #[cfg(feature = "platform")]
    pub(super) fn is_secure(&self) -> bool {
        self.proxy.protocol() == ProxyProtocol::Https
    }

    /// Returns `NAME:PASSWORD` for the proxy, if its address contains either.
    #[cfg(feature = "platform")]
    pub(super) fn credentials(&self) -> Option<String> {
        let (name, password) = (self.proxy.username(), self.proxy.password());
        name.or(password)?;
        Some(format!("{}:{}", name.unwrap_or_default(), password.unwrap_or_default()))
    }
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { variable, proxy, .. } = self;
        write!(f, "the proxy {}:{} of {variable}", proxy.host(), proxy.port())
    }
}

/// Server to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    /// Host in lower case, without brackets and without a trailing dot.
    host: String,
    port: u16,
}

impl Target {
    /// Returns the server of `url`, and whether its scheme uses TLS. Returns `None` for other schemes.
    fn of(url: &str) -> Option<(Self, bool)> {
        let uri: Uri = url.parse().ok()?;
        let is_secure = match uri.scheme_str()? {
            "https" | "wss" => true,
            "http" | "ws" => false,
            _ => return None,
        };
        let host = plain_host(uri.host()?);
        Some((Self { host, port: uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 }) }, is_secure))
    }

    fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok().map(|address: IpAddr| address.to_canonical())
    }

    /// Returns true if the server is this machine.
    fn is_local(&self) -> bool {
        let is_named = self.host == "localhost" || self.host.ends_with(".localhost");
        is_named || self.address().is_some_and(|address| address.is_loopback() || address.is_unspecified())
    }

    /// Returns true if any exception in `list` matches. Commas or white space separate exceptions.
    fn matches_any(&self, list: &str) -> bool {
        list.split(|c: char| c == ',' || c.is_whitespace()).any(|exception| self.matches(exception))
    }

    /// Returns true if `exception` matches the server. It is `*`, a network such as 10.0.0.0/8, or an address or name
    /// with an optional port. A name includes its subdomains; `.` or `*.` may precede it.
    fn matches(&self, exception: &str) -> bool {
        if exception == "*" {
            return true;
        }
        if let Ok(network) = unbracketed(exception).parse::<IpNet>() {
            return self.address().is_some_and(|address| network.contains(&address));
        }
        let (host, port) = split_port(exception);
        if port.is_some_and(|port| port != self.port) {
            return false;
        }
        let host = plain_host(host);
        if let Ok(address) = host.parse::<IpAddr>() {
            return self.address() == Some(address.to_canonical());
        }
        let name = host.strip_prefix('*').unwrap_or(&host);
        let name = name.strip_prefix('.').unwrap_or(name);
        let below = self.host.strip_suffix(name).filter(|_| !name.is_empty() && self.address().is_none());
        below.is_some_and(|below| below.is_empty() || below.ends_with('.'))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Returns true if `address` has a port that is no valid number. `ureq` would use the default port instead.
fn has_unusable_port(address: &str) -> bool {
    let Ok(uri) = address.parse::<Uri>() else { return false };
    uri.authority().is_some_and(|authority| {
        let host_and_port = authority.as_str().rsplit('@').next().unwrap_or_default();
        host_and_port.len() > authority.host().len() && authority.port_u16().is_none()
    })
}

/// Splits an exception into its host and its port, if it has one. An IPv6 address without brackets has no port.
fn split_port(exception: &str) -> (&str, Option<u16>) {
    let split = exception.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']'));
    match split.and_then(|(host, port)| Some((host, port.parse().ok()?))) {
        Some((host, port)) => (host, Some(port)),
        None => (exception, None),
    }
}

/// Returns `host` in lower case, without brackets and without a trailing dot.
fn plain_host(host: &str) -> String {
    bare(host).trim_end_matches('.').to_ascii_lowercase()
}

/// Returns `host` without the brackets of an IPv6 address.
fn bare(host: &str) -> &str {
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

/// Returns `network` without brackets around its address.
fn unbracketed(network: &str) -> String {
    network.replace(['[', ']'], "")
}

/// Returns a message with the cause of a failed HTTP request and a remedy. `proxy` is the request's proxy, if it has
/// one.
#[must_use]
pub fn transfer_fault(error: &ureq::Error, proxy: Option<&Proxy>) -> String {
    let why = match error {
        ureq::Error::Rustls(error) => certificate_fault(error).or_else(|| plain_fault(error)),
        ureq::Error::Io(error) => error
            .get_ref()
            .and_then(|error| tls_fault(error).or_else(|| error.downcast_ref().and_then(plain_fault))),
        _ => None,
    };
    let why = why.unwrap_or_else(|| error.to_string());
    match proxy {
        Some(proxy) => proxy.explain(&why),
        None => why,
    }
}

/// Returns a message with a remedy if `error` means that the server speaks without TLS, else `None`.
fn plain_fault(error: &rustls::Error) -> Option<String> {
    let is_plain = matches!(error, rustls::Error::InvalidMessage(_));
    is_plain.then(|| format!("TLS handshake failed ({error}): try http://"))
}

/// Returns a message with cause and remedy if `error` is a rejected certificate, else `None`.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns target and proxy for `url` as text, or the error message. `variables` is the environment.
    fn chosen(url: &str, variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name)?;
            Some(found.1.to_owned())
        };
        let found = Proxy::from_variables(url, value).map_err(|error| error.to_string())?;
        Ok(found.map(|proxy| format!("{} for {proxy}", proxy.target)))
    }

    #[test]
    fn each_scheme_has_its_variables() {
        let of = |url, variable| chosen(url, &[(variable, "http://p.lab:3128")]).unwrap();
        for variable in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
            let expected = format!("a.example:80 for the proxy p.lab:3128 of {variable}");
            assert_eq!(of("ws://a.example/v1/ws", variable).as_ref(), Some(&expected));
            assert_eq!(of("http://A.Example./x", variable).as_ref(), Some(&expected));
        }
        for variable in ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
            let expected = format!("[2001:db8::1]:7 for the proxy p.lab:3128 of {variable}");
            assert_eq!(of("wss://[2001:db8::1]:7/v1/ws", variable).as_ref(), Some(&expected));
            assert_eq!(of("https://[2001:db8::1]:7/", variable), Some(expected));
        }
        assert_eq!(of("http://a.example", "HTTPS_PROXY"), None);
        assert_eq!(of("https://a.example", "http_proxy"), None);
        let both = [("ALL_PROXY", "http://all"), ("HTTPS_PROXY", "\n"), ("https_proxy", " own:8080\n")];
        let expected = chosen("https://a.example", &both).unwrap().unwrap();
        assert_eq!(expected, "a.example:443 for the proxy own:8080 of https_proxy");
    }

    #[test]
    fn this_machine_is_never_proxied() {
        let hosts = [
            "localhost",
            "LOCALHOST.",
            "run.localhost",
            "127.0.0.1",
            "127.9.9.9",
            "[::1]",
            "[::ffff:127.0.0.1]",
        ];
        for host in hosts {
            let url = format!("ws://{host}:7700/v1/ws");
            assert_eq!(chosen(&url, &[("ALL_PROXY", "http://p")]), Ok(None), "{host}");
        }
        assert!(chosen("ws://localhost.example", &[("ALL_PROXY", "http://p")]).unwrap().is_some());
    }

    #[test]
    fn exceptions_have_many_forms() {
        let is_straight = |url: &str, list: &str| {
            let chosen = chosen(url, &[("ALL_PROXY", "http://p"), ("NO_PROXY", list)]);
            chosen.unwrap().is_none()
        };
        for list in [
            "*",
            "a.lab",
            "A.LAB.",
            ".lab",
            "lab",
            "*.lab",
            "x, a.lab",
            "x ,\ta.lab,",
            "x a.lab",
            "a.lab:7700",
            ".lab:7700",
            "10.0.0.0/8, a.lab",
            "lab.",
        ] {
            assert!(is_straight("ws://a.lab:7700/", list), "{list}");
        }
        for list in
            ["", ",", " ", "b.lab", "ab", "la", "xa.lab", "a.lab:80", "10.0.0.0/8", ".a.lab.x", "a.lab:x"]
        {
            assert!(!is_straight("ws://a.lab:7700/", list), "{list}");
        }
        for list in ["10.1.2.3", "10.0.0.0/8", "10.1.2.3:80", "x, 10.1.2.0/24", "10.1.2.3/32"] {
            assert!(is_straight("http://10.1.2.3/", list), "{list}");
        }
        for list in ["10.1.2.4", "10.1.3.0/24", "10.1.2.3:81", "2.3", ".3", "10.1.2.3/33"] {
            assert!(!is_straight("http://10.1.2.3/", list), "{list}");
        }
        for list in ["2001:db8::1", "[2001:db8::1]", "[2001:DB8::1]:80", "2001:db8::/32", "[2001:db8::]/32"] {
            assert!(is_straight("http://[2001:db8::1]/", list), "{list}");
        }
        for list in ["2001:db8::2", "[2001:db8::1]:81", "2001:db9::/32", "0.0.0.0/0"] {
            assert!(!is_straight("http://[2001:db8::1]/", list), "{list}");
        }
    }

    #[test]
    fn error_names_the_variable_without_its_secret() {
        let of = |value| chosen("https://a.lab", &[("HTTPS_PROXY", value)]);
        assert!(of("socks5://p:1").unwrap_err().starts_with("HTTPS_PROXY names a SOCKS proxy"));
        for wrong in ["http://", "ftp://me:secret@p", "http://me:secret@p:x"] {
            let error = of(wrong).unwrap_err();
            assert!(
                error.starts_with("HTTPS_PROXY is not the address of a proxy") && !error.contains("secret"),
                "{error}"
            );
            assert!(error.contains("a.lab in NO_PROXY"), "{error}");
        }
        let proxy = Proxy::from_variables("https://a.lab", |_| Some("http://me:sec%20ret@p:8/".to_owned()));
        let proxy = proxy.unwrap().unwrap();
        let message = proxy.explain("answered HTTP status 403");
        assert_eq!(
            message,
            "the proxy p:8 of https_proxy does not lead to a.lab:443: answered HTTP status 403; make it allow that, or \
             name a.lab in NO_PROXY"
        );
        assert!(!format!("{proxy:?}").contains("ret"), "{proxy:?}");
    }
}
