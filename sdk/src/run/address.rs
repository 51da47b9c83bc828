//! Address of a syncer: one text from people, and the two URLs that the learner derives from it.

use std::fmt;
use std::str::FromStr;

use archipelago_core::text::link_of;
use archipelago_core::wire::http::{INVITE_KEY, PAGES, REPORT, SOCKET};
use archipelago_core::wire::{INVITE_BYTES_MAX, Invite};

/// Address of a syncer, optionally with an invite: `ws://`, `wss://`, `http://` or `https://`, or just `host:port`.
///
/// A link to any page of a run is also an address: the name of the page, the query (`?…`) and all of the fragment
/// (`#…`) except an invite are ignored.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    secure: bool,
    /// Host, port if present, and path without a trailing slash.
    place: String,
    /// Invite from the fragment of a link. It is never displayed, and the URLs that this type returns omit it.
    invite: Option<Invite>,
}

/// Reason why a text is not the address of a syncer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The text is empty.
    #[error("the syncer's address is empty: give one such as ws://192.0.2.7:7700")]
    Empty,
    /// The scheme is not one of the four.
    #[error("{scheme}:// does not lead to a syncer: use ws://, wss://, http:// or https://")]
    Scheme {
        /// Scheme in the text.
        scheme: String,
    },
    /// The address has neither a scheme nor a port.
    #[error("{text:?} names no port: write host:port, or put http:// or https:// before it")]
    NoPort {
        /// The text.
        text: String,
    },
    /// The port is not a number from 1 to 65535.
    #[error("{port:?} is not a port: give a number from 1 to 65535")]
    Port {
        /// Port in the text.
        port: String,
    },
    /// The host is missing, or the text has characters that are not allowed in addresses.
    #[error("{text:?} is not an address: give host:port or a link to the syncer")]
    Host {
        /// Text that was given as an address.
        text: String,
    },
    /// The invite is malformed.
    #[error(
        "the invite is malformed: it has 1 to 64 letters, digits, - and _; copy it whole, or the whole link with what \
         follows #"
    )]
    Invite,
}

impl Address {
    /// Returns the URL of the WebSocket.
    #[must_use]
    pub fn socket_url(&self) -> String {
        format!("{}://{}{SOCKET}", if self.secure { "wss" } else { "ws" }, self.place)
    }

    /// Returns the URL of the HTTP route `path`, which begins with a slash.
    #[must_use]
    pub fn http_url(&self, path: &str) -> String {
        format!("{}://{}{path}", if self.secure { "https" } else { "http" }, self.place)
    }

    /// Returns the invite to the run, if the address contains one.
    #[must_use]
    pub fn invite(&self) -> Option<&Invite> {
        self.invite.as_ref()
    }

    /// Returns the same address with the invite in `text`, which may have blanks or quotes around it.
    ///
    /// # Errors
    /// [`AddressError::Invite`].
    pub fn with_invite(self, text: &str) -> Result<Self, AddressError> {
        let text = link_of(text);
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let fits = (1..=INVITE_BYTES_MAX as usize).contains(&text.len()) && text.chars().all(plain);
        match fits {
            true => Ok(Self { invite: Some(Invite::new(text)), ..self }),
            false => Err(AddressError::Invite),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.secure { "wss" } else { "ws" }, self.place)
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let text = link_of(text);
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => (Some(scheme.to_ascii_lowercase()), rest),
            None => (None, text),
        };
        let secure = match scheme.as_deref() {
            None | Some("ws" | "http") => false,
            Some("wss" | "https") => true,
            Some(scheme) => return Err(AddressError::Scheme { scheme: scheme.to_owned() }),
        };
        // A link from a browser may have a fragment, which is never sent to a server.
        let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
        // In a link to a page, the query selects its contents. Socket addresses have no query.
        let rest = match scheme.as_deref() {
            Some("ws" | "wss") => rest,
            _ => rest.split_once('?').map_or(rest, |(rest, _)| rest),
        };
        let rest = of_run(rest.trim_end_matches('/')).trim_end_matches('/');
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let wrong = || AddressError::Host { text: text.to_owned() };
        let (host, port) = split_port(authority).ok_or_else(wrong)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:[]/%".contains(c);
        if host.is_empty() || !rest.chars().all(plain) {
            return Err(wrong());
        }
        match port {
            None if scheme.is_none() => return Err(AddressError::NoPort { text: text.to_owned() }),
            Some(port) if !port.parse::<u16>().is_ok_and(|port| port > 0) => {
                return Err(AddressError::Port { port: port.to_owned() });
            }
            _ => {}
        }
        let place = format!("{}{path}", authority.to_ascii_lowercase());
        let address = Self { secure, place, invite: None };
        match fragment.split('&').find_map(|part| part.strip_prefix(INVITE_KEY)) {
            Some(invite) => address.with_invite(invite),
            None => Ok(address),
        }
    }
}

/// Returns the part of `rest` before the name of a page, the socket or a report at its end, or all of `rest` without
/// such an end.
fn of_run(rest: &str) -> &str {
    let named = PAGES.iter().chain([&SOCKET]).find_map(|name| rest.strip_suffix(name));
    named.or_else(|| of_report(rest)).unwrap_or(rest)
}

/// Returns the part before the path of a report, or `None` if `rest` does not end in one.
fn of_report(rest: &str) -> Option<&str> {
    let (before, after) = REPORT.split_once("{run}")?;
    let run_at = rest.strip_suffix(after)?.rfind('/')? + 1;
    rest[..run_at].strip_suffix(before)
}

/// Splits off the port, if present. The host may be an IPv6 address in brackets. Returns `None` if the syntax is
/// invalid.
fn split_port(authority: &str) -> Option<(&str, Option<&str>)> {
    if authority.starts_with('[') {
        let (host, rest) = authority.split_at(authority.find(']')? + 1);
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    match authority.split_once(':') {
        Some((_, port)) if port.contains(':') => None,
        Some((host, port)) => Some((host, Some(port))),
        None => Some((authority, None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, socket: &str, http: &str) {
        let address: Address = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(address.socket_url(), socket, "{text}");
        assert_eq!(address.http_url("/v1/x"), http, "{text}");
    }

    #[test]
    fn takes_what_people_type() {
        for text in [
            "ws://host:7700",
            "http://host:7700/",
            "host:7700",
            "  HOST:7700 ",
            "ws://host:7700/v1/ws",
            "http://host:7700/#invite",
            "\"http://host:7700/\".",
            "<http://host:7700>,\n",
        ] {
            check(text, "ws://host:7700/v1/ws", "http://host:7700/v1/x");
        }
        check("https://a.example", "wss://a.example/v1/ws", "https://a.example/v1/x");
        check("wss://a.example/run/", "wss://a.example/run/v1/ws", "https://a.example/run/v1/x");
        check("[::1]:80", "ws://[::1]:80/v1/ws", "http://[::1]:80/v1/x");
        check("http://[::1]", "ws://[::1]/v1/ws", "http://[::1]/v1/x");
    }

    #[test]
    fn takes_the_link_to_any_page() {
        let pages = ["/", "/dashboard", "/dashboard/", "/teach", "/teach.html", "/scale", "/scale.html"];
        let report = "/v1/runs/00f1e2d3c4b5a697/report.html";
        for page in pages.into_iter().chain([report]) {
            for what in ["", "?sheet", "?words=de.json&x=/teach", "#invite=a-b", "?sheet#v=1&m=8&a=k2@900"] {
                check(
                    &format!("http://host:7700{page}{what}"),
                    "ws://host:7700/v1/ws",
                    "http://host:7700/v1/x",
                );
                let link = format!("https://a.example/runs/poems{page}{what}");
                check(&link, "wss://a.example/runs/poems/v1/ws", "https://a.example/runs/poems/v1/x");
            }
        }
        check("host:7700/dashboard?x", "ws://host:7700/v1/ws", "http://host:7700/v1/x");
        check("http://dashboard", "ws://dashboard/v1/ws", "http://dashboard/v1/x");
        check("http://host/my-dashboard", "ws://host/my-dashboard/v1/ws", "http://host/my-dashboard/v1/x");
        let address: Address = "http://host:7700/dashboard?x#invite=a-b&token=secret".parse().unwrap();
        assert_eq!(address.invite().map(Invite::expose), Some("a-b"));
    }

    #[test]
    fn an_invite_is_kept_and_never_shown() {
        let address: Address = "http://host:7700/#invite=a-b_C9".parse().unwrap();
        assert_eq!(address.invite().map(Invite::expose), Some("a-b_C9"));
        let shown =
            [address.socket_url(), address.http_url("/"), address.to_string(), format!("{address:?}")];
        assert!(shown.iter().all(|text| !text.contains("a-b_C9")), "{shown:?}");
        let other: Address = "host:7700/#page&invite=x".parse().unwrap();
        assert_eq!(other.invite().map(Invite::expose), Some("x"));
        assert_eq!(other.with_invite(" 'y'\r\n").unwrap().invite().map(Invite::expose), Some("y"));
        assert_eq!("host:7700/#other".parse::<Address>().unwrap().invite(), None);
    }

    #[test]
    fn says_what_is_wrong() {
        let refused = |text: &str| text.parse::<Address>().expect_err(text);
        assert_eq!(refused(" "), AddressError::Empty);
        for invite in ["", "a b", "caf\u{e9}", &"x".repeat(65)] {
            assert_eq!(refused(&format!("ws://a:1/#invite={invite}")), AddressError::Invite, "{invite}");
        }
        assert_eq!(refused("ftp://a:1"), AddressError::Scheme { scheme: "ftp".to_owned() });
        assert_eq!(refused("host"), AddressError::NoPort { text: "host".to_owned() });
        assert_eq!(refused("host:0"), AddressError::Port { port: "0".to_owned() });
        assert_eq!(refused("host:65536"), AddressError::Port { port: "65536".to_owned() });
        assert_eq!(refused("host:"), AddressError::Port { port: String::new() });
        for text in ["ws://", "ws://:1", "a b:1", "::1:80", "me@host:1", "ws://host:1?token=1", "[::1"] {
            assert_eq!(refused(text), AddressError::Host { text: text.to_owned() }, "{text}");
        }
    }
}
