//! Check of the host names in requests, against DNS rebinding.
//!
//! A page that is open in a browser on this machine belongs to a host name. The owner of that name can later point it
//! at this machine (DNS rebinding), and the browser then treats this server as a part of the page. But the browser
//! still sends that name in `Host`, so a check of `Host` prevents the attack.
//!
//! Any device in a local network can call itself `name.local` or `name`. Requests of programs, and of browsers on other
//! machines, may use such names, because those reach this server anyway. A browser on this machine must use a name of
//! this machine.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header, uri::Authority};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Suffixes of host names that cannot belong to a public page: names of this machine and of the local network (RFC
/// 6762, RFC 8375), and names for private use.
const PRIVATE: [&str; 5] = [".localhost", ".local", ".home.arpa", ".internal", ".lan"];

use super::connection_limits::ConnectionGuard;

/// Host names to which this server answers, in addition to those of its machine and its network.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Names that the owner allows.
    allowed: Arc<[String]>,
    /// Name of this machine, without a domain, if known.
    own: Option<Arc<str>>,
}

impl Names {
    /// Returns the names in `allowed`, and the host of the `public` link.
    ///
    /// # Errors
    /// A sentence: one of them is no host name.
    pub fn new(allowed: &[String], public: Option<&str>) -> Result<Self, String> {
        let public = public.and_then(|link| link.split_once("://")).map(|(_, rest)| rest);
        let public = public.and_then(|rest| rest.split('/').next()).filter(|host| !host.is_empty());
        let mut names = Vec::new();
        for name in allowed.iter().map(String::as_str).chain(public) {
            let host = host_of(name).filter(|host| is_plain(host));
            names.push(
                host.ok_or_else(|| format!("{name:?} is not a host name: give one such as lab.example.org"))?,
            );
        }
        Ok(Self { allowed: names.into(), own: own_name() })
    }

    /// Returns true if a request for `host` is meant for this server. `is_near`: the request comes from a browser on
    /// this machine.
    fn has(&self, host: &str, is_near: bool) -> bool {
        let Some(name) = host_of(host) else { return false };
        let address = name.trim_start_matches('[').trim_end_matches(']');
        let ending =
            PRIVATE.iter().find_map(|ending| name.strip_suffix(ending).map(|first| (first, *ending)));
        let (first, ending) = ending.unwrap_or((&name, ""));
        let is_private = !name.contains('.') || !ending.is_empty();
        let is_here = name == "localhost" || ending == PRIVATE[0] || self.own.as_deref() == Some(first);
        // DNS cannot redirect an IP address, and a private name has no owner in public DNS.
        address.parse::<IpAddr>().is_ok()
            || self.allowed.contains(&name)
            || is_private && (is_here || !is_near)
    }
}

/// Returns the name of this machine, in lower case and without a domain.
fn own_name() -> Option<Arc<str>> {
    let read = |path| std::fs::read_to_string(path).ok();
    let name = read("/proc/sys/kernel/hostname").or_else(|| read("/etc/hostname"))?;
    let first = name.trim().split('.').next()?.to_ascii_lowercase();
    (!first.is_empty()).then(|| first.into())
}

/// Returns true if a request comes from a browser on this machine. Pages cannot make a browser omit `Accept-Language`,
/// nor `Origin` in a request that does more than read.
fn is_near(headers: &HeaderMap, guard: Option<&Arc<ConnectionGuard>>) -> bool {
    let is_browser = headers.contains_key(header::ORIGIN) || headers.contains_key(header::ACCEPT_LANGUAGE);
    is_browser && guard.is_some_and(|guard| guard.is_local())
}

/// Returns the host in `authority`, in lower case and without its port; `None` if it is malformed.
fn host_of(authority: &str) -> Option<String> {
    let authority: Authority = authority.parse().ok()?;
    let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
    (!host.is_empty() && !authority.as_str().contains('@')).then_some(host)
}

fn is_plain(host: &str) -> bool {
    host.chars().all(|letter| letter.is_ascii_alphanumeric() || "-.[]:".contains(letter))
}

/// Refuses requests for other hosts. Requests without `Host` come from programs, because browsers always send it, and
/// are answered.
pub async fn check(State(names): State<Names>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    let is_near = is_near(request.headers(), request.extensions().get());
    match host {
        Some(host) if !names.has(host, is_near) => {
            let shown: String = host.chars().filter(|letter| letter.is_ascii_graphic()).take(80).collect();
            let why = format!(
                "this server does not answer to the name {shown:?}: if the name is yours, start the server with \
                 --allow-host NAME, or with --public-url and the public link\n"
            );
            (StatusCode::MISDIRECTED_REQUEST, why).into_response()
        }
        _ => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection_limits::ConnectionLimits;
    use super::*;

    #[test]
    fn foreign_host_names_are_refused() {
        let names = Names::new(&["Lab.Example.org".into()], Some("https://run.example.com:8443/x/")).unwrap();
        for host in [
            "127.0.0.1:7700",
            "[::1]:7700",
            "192.168.1.7",
            "localhost:7700",
            "a.localhost",
            "lab-7:7700",
            "lab-7.local",
            "lab.example.org",
            "LAB.example.org:7700",
            "run.example.com",
            "run.example.com.:8443",
        ] {
            assert!(names.has(host, false), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:7700",
            "lab.example.org.evil.example",
            "127.0.0.1.evil.example",
            "evil.example#localhost",
            "local.evil.example",
            "me@localhost",
            "",
            ":7700",
        ] {
            assert!(!names.has(host, false) && !names.has(host, true), "{host}");
        }
    }

    #[test]
    fn a_local_browser_must_use_a_name_of_this_machine() {
        let names = Names { allowed: ["lab".to_owned()].into(), own: Some("desk".into()) };
        for host in
            ["127.0.0.1:7700", "localhost", "a.localhost", "lab", "desk:7700", "Desk.local", "desk.lan"]
        {
            assert!(names.has(host, true), "{host}");
        }
        for host in ["evil", "evil.local", "evil.lan:7700", "desk.evil", "desk.evil.local", "local"] {
            assert!(!names.has(host, true), "{host}");
        }
        assert!(names.has("evil.local", false), "a program, or a browser elsewhere");
    }

    #[test]
    fn browsers_are_recognised_by_their_headers() {
        let here = ConnectionLimits::new(1, 1).acquire([127, 0, 0, 1].into(), false).ok().map(Arc::new);
        let there = ConnectionLimits::new(1, 1).acquire([192, 0, 2, 1].into(), false).ok().map(Arc::new);
        let sent = |name| HeaderMap::from_iter([(name, "de".parse().unwrap())]);
        assert!(is_near(&sent(header::ACCEPT_LANGUAGE), here.as_ref()));
        assert!(is_near(&sent(header::ORIGIN), here.as_ref()));
        assert!(
            !is_near(&sent(header::USER_AGENT), here.as_ref()) && !is_near(&HeaderMap::new(), here.as_ref())
        );
        assert!(!is_near(&sent(header::ORIGIN), there.as_ref()));
    }

    #[test]
    fn invalid_names_are_refused_with_a_sentence() {
        for name in ["https://lab.example.org", "a b", "", "x@y"] {
            let why = Names::new(&[name.to_owned()], None).unwrap_err();
            assert!(why.contains("is not a host name"), "{why}");
        }
    }
}
