//! Links to this server, and the QR code of a link.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

use archipelago_core::wire::Invite;
use archipelago_core::wire::http::{INVITE_KEY, SOCKET};
use qrcodegen::{QrCode, QrCodeEcc};
use serde::Serialize;

use crate::config::ServeConfig;
use crate::errors::ServerError;

/// Addresses for which the system is asked for its route; nothing is sent to them. The first stands for the whole
/// internet (RFC 5737 reserves it for documentation). The others are typical networks of home routers, and of phones
/// and laptops that share their connection.
const PLACES: [Ipv4Addr; 7] = [
    Ipv4Addr::new(203, 0, 113, 1),
    Ipv4Addr::new(192, 168, 0, 1),
    Ipv4Addr::new(192, 168, 1, 1),
    Ipv4Addr::new(192, 168, 43, 1),
    Ipv4Addr::new(192, 168, 137, 254),
    Ipv4Addr::new(10, 42, 0, 254),
    Ipv4Addr::new(10, 0, 0, 1),
];

/// Width of the light border around a QR code, in modules. ISO/IEC 18004 requires 4.
const QUIET: i32 = 4;

/// Links to a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Links {
    /// URLs of the page for lending a machine, best first; each ends with `/`.
    pub pages: Vec<String>,
    /// True if only this machine can open the pages.
    pub local_only: bool,
}

impl Links {
    /// Returns the links to a server with the settings `config` that listens on `address`.
    #[must_use]
    pub fn of(address: SocketAddr, config: &ServeConfig) -> Self {
        Self::among(address, config, &own_addresses())
    }

    fn among(address: SocketAddr, config: &ServeConfig, own: &[IpAddr]) -> Self {
        // A link given by the owner takes precedence.
        if let Some(public) = &config.server.public_url {
            return Self { pages: vec![format!("{}/", public.trim_end_matches('/'))], local_only: false };
        }
        let port = address.port();
        let mut hosts = match address.ip() {
            ip if !ip.is_unspecified() => vec![ip],
            _ => own.to_vec(),
        };
        if hosts.is_empty() {
            hosts.push(Ipv4Addr::LOCALHOST.into());
        }
        let local_only = hosts.iter().all(IpAddr::is_loopback);
        let scheme = config.scheme();
        let pages = hosts.iter().map(|&ip| format!("{scheme}://{}/", SocketAddr::new(ip, port))).collect();
        Self { pages, local_only }
    }

    /// Returns the URL at which this machine reaches the server with the settings `config` that listens on `address`.
    /// It ends with `/`.
    #[must_use]
    pub fn here(address: SocketAddr, config: &ServeConfig) -> String {
        // A certificate is valid for the public name, not for an address of this machine.
        if let Some(public) = config.server.public_url.as_ref().filter(|_| config.server.tls_cert.is_some()) {
            return format!("{}/", public.trim_end_matches('/'));
        }
        let ip = if address.ip().is_unspecified() { IpAddr::from(Ipv4Addr::LOCALHOST) } else { address.ip() };
        format!("{}://{}/", config.scheme(), SocketAddr::new(ip, address.port()))
    }

    /// Returns the best URL of the page for lending a machine.
    #[must_use]
    pub fn best(&self) -> &str {
        self.pages.first().map_or("", String::as_str)
    }
}

/// Checks a link given by the owner, and returns its origin as browsers name it.
///
/// # Errors
/// `Config`: it is not an `http://` or `https://` link to a host.
pub fn origin(public: &str) -> Result<String, ServerError> {
    let rest = public.strip_prefix("https://").or(public.strip_prefix("http://"));
    let host = rest.map(|rest| rest.split('/').next().unwrap_or_default()).unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-.:[]".contains(c);
    let odd = public.contains(['#', '?', '@']) || public.chars().any(|c| c.is_whitespace() || c.is_control());
    if host.is_empty() || odd || !host.chars().all(plain) {
        let why = format!("--public-url {public} is not a link: give https://host/ or http://host:port/");
        return Err(ServerError::Config { why });
    }
    let scheme = public.split("://").next().unwrap_or_default();
    Ok(format!("{scheme}://{}", host.to_ascii_lowercase()))
}

/// Returns the allowed origins other than the server's own. Behind a proxy, the server may see another host name than
/// browsers do.
///
/// # Errors
/// `Config`: one of them is not a scheme with a host, or the public link is invalid.
pub fn allowed_origins(config: &ServeConfig) -> Result<Vec<String>, ServerError> {
    let public = config.server.public_url.as_deref().map(origin).transpose()?;
    let listed = config.server.allow_origin.iter().map(|listed| {
        let named =
            origin(listed).ok().filter(|origin| *origin == listed.trim_end_matches('/').to_ascii_lowercase());
        named.ok_or_else(|| ServerError::Config {
            why: format!(
                "--allow-origin {listed} is not an origin: give https://host or http://host:port, without a path"
            ),
        })
    });
    listed.chain(public.map(Ok)).collect()
}

/// Returns `#invite=…`, or an empty string without an invite. Browsers do not send the part after `#`.
#[must_use]
pub fn fragment(invite: Option<&Invite>) -> String {
    invite.map_or_else(String::new, |invite| format!("#{INVITE_KEY}{}", invite.expose()))
}

/// Returns the WebSocket URL at which programs join, with the invite of `link`, the page for lending a machine. Its
/// scheme is ws for http, and wss for https.
#[must_use]
pub fn socket(link: &str) -> String {
    let (page, invite) = link.split_at(link.find('#').unwrap_or(link.len()));
    format!("{}{SOCKET}{invite}", page.trim_end_matches('/').replacen("http", "ws", 1))
}

/// Returns the addresses of this machine from which it would send to [`PLACES`], best first.
fn own_addresses() -> Vec<IpAddr> {
    let way = |to: &Ipv4Addr| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
        // A UDP connect only selects a route and sends nothing.
        socket.connect((*to, 9)).ok()?;
        let ip = socket.local_addr().ok()?.ip();
        (!ip.is_unspecified() && !ip.is_loopback()).then_some(ip)
    };
    let mut found = Vec::new();
    for ip in PLACES.iter().filter_map(way) {
        if !found.contains(&ip) {
            found.push(ip);
        }
    }
    found
}

/// Returns the QR code of `link` as lines of half-block characters, two modules to a character. Characters stand for
/// light modules, since terminals are dark. Empty if the link is too long for a code.
#[must_use]
pub fn code(link: &str) -> Vec<String> {
    let Ok(code) = QrCode::encode_text(link, QrCodeEcc::Low) else { return Vec::new() };
    let end = code.size() + QUIET;
    // The area outside the code is light.
    let light = |x, y| y < end && !code.get_module(x, y);
    let line = |y| {
        (-QUIET..end)
            .map(|x| match (light(x, y), light(x, y + 1)) {
                (true, true) => '█',
                (true, false) => '▀',
                (false, true) => '▄',
                (false, false) => ' ',
            })
            .collect()
    };
    (-QUIET..end).step_by(2).map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_where_the_server_listens() {
        let lan: Vec<IpAddr> = vec!["192.168.7.5".parse().unwrap(), "10.0.0.3".parse().unwrap()];
        let check = |address: &str, public: Option<&str>, own: &[IpAddr], pages: &[&str], local_only| {
            let config = ServeConfig::default().with(|it| it.server.public_url = public.map(str::to_owned));
            let links = Links::among(address.parse().unwrap(), &config, own);
            assert_eq!(links, Links { pages: pages.iter().map(ToString::to_string).collect(), local_only });
        };
        check("0.0.0.0:7700", None, &lan, &["http://192.168.7.5:7700/", "http://10.0.0.3:7700/"], false);
        check("[::]:7700", None, &lan[..1], &["http://192.168.7.5:7700/"], false);
        check("0.0.0.0:7700", None, &[], &["http://127.0.0.1:7700/"], true);
        check("127.0.0.1:80", None, &lan, &["http://127.0.0.1:80/"], true);
        check("10.1.2.3:80", None, &lan, &["http://10.1.2.3:80/"], false);
        check("[::1]:80", None, &lan, &["http://[::1]:80/"], true);
        check("127.0.0.1:80", Some("https://a.example/b"), &lan, &["https://a.example/b/"], false);
        let config = ServeConfig::default().with(|it| it.server.tls_cert = Some("cert.pem".into()));
        let links = Links::among("10.1.2.3:443".parse().unwrap(), &config, &lan);
        assert_eq!(links.pages, ["https://10.1.2.3:443/"]);
    }

    #[test]
    fn own_addresses_are_no_loopback_and_none_twice() {
        let found = own_addresses();
        assert!(found.iter().all(|ip| !ip.is_loopback() && !ip.is_unspecified()), "{found:?}");
        assert!(found.iter().enumerate().all(|(i, ip)| !found[..i].contains(ip)), "{found:?}");
    }

    #[test]
    fn public_links_are_checked() {
        let check =
            |link, expected: Option<&str>| assert_eq!(origin(link).ok().as_deref(), expected, "{link}");
        check("https://Class.example", Some("https://class.example"));
        check("http://a.example:8080/room/3/", Some("http://a.example:8080"));
        check("http://[fd00::2]:80/", Some("http://[fd00::2]:80"));
        for wrong in [
            "",
            "a.example",
            "ftp://a",
            "https://",
            "https:///x",
            "https://u@a/",
            "https://a/#b",
            "https://a b/",
        ] {
            check(wrong, None);
        }
    }

    /// Reads the code back module by module, with the light border around it.
    #[test]
    fn half_blocks_show_the_code() {
        let link = "http://192.168.7.5:7700/#invite=0123456789abcdef0123456789abcdef";
        let lines: Vec<Vec<char>> = code(link).iter().map(|line| line.chars().collect()).collect();
        let printed = |x: i32, y: i32| {
            let (row, column) = (((y + QUIET) / 2) as usize, (x + QUIET) as usize);
            let top = (y + QUIET) % 2 == 0;
            match lines[row][column] {
                '█' => true,
                '▀' => top,
                '▄' => !top,
                _ => false,
            }
        };
        let expected = QrCode::encode_text(link, QrCodeEcc::Low).unwrap();
        assert!(lines.iter().all(|line| line.len() as i32 == expected.size() + 2 * QUIET));
        for y in -QUIET..expected.size() + QUIET {
            for x in -QUIET..expected.size() + QUIET {
                assert_eq!(printed(x, y), !expected.get_module(x, y), "{x}, {y}");
            }
        }
        // Finder patterns at the corners.
        assert!(!printed(0, 0) && printed(1, 1) && !printed(3, 3) && printed(-1, 0));
        assert_eq!(code(&"x".repeat(5_000)), Vec::<String>::new());
    }
}
