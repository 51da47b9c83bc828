//! Trusted proxies, whose headers name their clients.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::http::{HeaderMap, header};
use hyper::body::{Body, Frame, SizeHint};

use super::connection_limits::ConnectionGuard;

/// Header in which Caddy, nginx and most other proxies name clients.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// The addresses of trusted proxies.
#[derive(Clone, Debug, Default)]
pub(super) struct Proxies(Arc<[Network]>);

/// An address, or the network of all addresses with the same first `bits`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Network {
    address: IpAddr,
    bits: u8,
}

/// Error: two headers of a request name different clients, so one was not written by the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contradiction;

impl Proxies {
    /// Parses `listed`, whose entries are addresses or networks.
    ///
    /// # Errors
    /// A sentence: an entry is no address and no network.
    pub(super) fn new(listed: &[String]) -> Result<Self, String> {
        let network = |text: &String| {
            Network::parse(text.trim()).ok_or_else(|| {
                format!(
                    "{text:?} is not an address: give one such as 192.168.7.5, or a network such as 172.16.0.0/12")
            })
        };
        Ok(Self(listed.iter().map(network).collect::<Result<_, _>>()?))
    }

    /// Returns true if the proxy at `address` is trusted.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.has(address))
    }

    /// Returns the client that a trusted proxy names in these headers: the last address that is not a trusted proxy.
    /// Earlier entries were written by that client and may be false. Returns `None` if there is no such address.
    ///
    /// # Errors
    /// [`Contradiction`]: the two headers name different clients.
    pub(super) fn client(&self, headers: &HeaderMap) -> Result<Option<IpAddr>, Contradiction> {
        let named = |name: &str, of: fn(&str) -> Option<IpAddr>| {
            let lines: Vec<_> = headers.get_all(name).iter().collect();
            // Clients may send any bytes before the proxy's entry.
            let elements = lines.iter().rev().flat_map(|line| line.as_bytes().rsplit(|byte| *byte == b','));
            let mut addresses = elements.map(|element| of(std::str::from_utf8(element).ok()?));
            let last = addresses.find(|address| address.is_none_or(|address| !self.has(address)));
            (!lines.is_empty()).then_some(last.flatten())
        };
        match (named(FORWARDED_FOR, node), named(header::FORWARDED.as_str(), forwarded)) {
            (Some(one), Some(other)) if one != other => Err(Contradiction),
            (Some(one), _) | (None, Some(one)) => Ok(one),
            (None, None) => Ok(None),
        }
    }
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().ok()?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok().filter(|bits| *bits <= most))?;
        Some(Self { address, bits })
    }

    fn has(self, address: IpAddr) -> bool {
        let differ = match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => u128::from(ours.to_bits() ^ theirs.to_bits()) << 96,
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => ours.to_bits() ^ theirs.to_bits(),
            _ => return false,
        };
        differ.leading_zeros() >= self.bits.into()
    }
}

/// Parses the address in an element of `X-Forwarded-For`, with or without a port.
fn node(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().ok().or_else(|| text.parse().ok().map(|socket: SocketAddr| socket.ip()))?;
    Some(IpAddr::to_canonical(&address))
}

/// Parses the address in an element of `Forwarded` (RFC 7239).
fn forwarded(element: &str) -> Option<IpAddr> {
    let value = element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then(|| value.trim().trim_matches('"'))
    });
    node(value?)
}

/// The body of a response, which keeps its client's request counted until it is sent.
pub(super) struct ConnectionBody<B> {
    pub(super) body: B,
    pub(super) _guard: Arc<ConnectionGuard>,
}

impl<B: Body + Unpin> Body for ConnectionBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};

    use super::*;

    fn proxies() -> Proxies {
        Proxies::new(&["127.0.0.1", "10.1.0.0/16", "2001:db8::/32"].map(str::to_owned)).unwrap()
    }

    fn client(lines: &[(&'static str, &str)]) -> Result<Option<String>, Contradiction> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        proxies().client(&headers).map(|address| address.map(|address| address.to_string()))
    }

    #[test]
    fn only_listed_addresses_and_networks_are_trusted() {
        let proxies = proxies();
        for (address, is_trusted) in [
            ("127.0.0.1", true),
            ("::ffff:127.0.0.1", true),
            ("127.0.0.2", false),
            ("10.1.255.255", true),
            ("10.2.0.0", false),
            ("2001:db8:ffff::1", true),
            ("2001:db9::1", false),
            ("::1", false),
        ] {
            assert_eq!(proxies.has(address.parse().unwrap()), is_trusted, "{address}");
        }
        let everybody = Proxies::new(&["0.0.0.0/0".to_owned()]).unwrap();
        assert!(everybody.has("192.0.2.1".parse().unwrap()) && !everybody.has("::2".parse().unwrap()));
        for wrong in ["", "caddy", "10.0.0.0/33", "10.0.0.0/", "10.0.0.0/-1", "2001:db8::/129", "1.2.3.4:80"]
        {
            let why = Proxies::new(&[wrong.to_owned()]).unwrap_err();
            assert!(why.contains("is not an address"), "{why}");
        }
    }

    #[test]
    fn the_client_is_the_last_address_that_is_no_proxy() {
        let is = |lines: &[_], expected: Option<&str>| {
            assert_eq!(client(lines), Ok(expected.map(str::to_owned)), "{lines:?}");
        };
        let xff = "x-forwarded-for";
        is(&[], None);
        is(&[(xff, "192.0.2.7")], Some("192.0.2.7"));
        is(&[(xff, "192.0.2.7:4711")], Some("192.0.2.7"));
        is(&[(xff, "[2001:db9::1]:80")], Some("2001:db9::1"));
        is(&[(xff, "::ffff:192.0.2.7")], Some("192.0.2.7"));
        // Entries of a stranger precede the proxy's entry.
        is(&[(xff, "127.0.0.1, 198.51.100.1,192.0.2.7")], Some("192.0.2.7"));
        is(&[(xff, "\u{e9}\", 192.0.2.7")], Some("192.0.2.7"));
        is(&[(xff, "198.51.100.1"), (xff, "192.0.2.7, 10.1.2.3")], Some("192.0.2.7"));
        is(&[(xff, "192.0.2.7, unknown")], None);
        is(&[(xff, "192.0.2.7, ")], None);
        is(&[(xff, "10.1.2.3, 127.0.0.1")], None);
        is(&[("forwarded", "for=192.0.2.7;proto=https;by=10.1.2.3")], Some("192.0.2.7"));
        is(&[("forwarded", "for=198.51.100.1, Proto=https; For=\"[2001:db9::1]:80\"")], Some("2001:db9::1"));
        // A quote that a stranger leaves open does not hide the proxy's entry.
        is(&[("forwarded", "for=\"198.51.100.1, for=192.0.2.7")], Some("192.0.2.7"));
        is(&[("forwarded", "for=_hidden")], None);
        is(&[("forwarded", "for=192.0.2.7"), (xff, "192.0.2.7")], Some("192.0.2.7"));
        assert_eq!(client(&[("forwarded", "for=198.51.100.1"), (xff, "192.0.2.7")]), Err(Contradiction));
        assert_eq!(client(&[("forwarded", "for=unknown"), (xff, "192.0.2.7")]), Err(Contradiction));
    }
}
