//! The names that this server answers to.
//!
//! A page of somebody else can have its name lead to this machine once it is open in a browser here (DNS rebinding).
//! Then the browser takes this server for a part of that page. What it cannot do is lie about the name: it stands in
//! `Host`.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{StatusCode, header, uri::Authority};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

/// Endings that nobody can have for a public page: this machine, the local network (RFC 6762, RFC 8375), and what is
/// reserved for private use.
const PRIVATE: [&str; 5] = [".localhost", ".local", ".home.arpa", ".internal", ".lan"];

/// Names that are answered to beside those of this machine and its network.
#[derive(Clone, Debug, Default)]
pub struct Names(Arc<[String]>);

impl Names {
    /// The hosts of `allowed`, and that of the `public` link.
    ///
    /// # Errors
    /// A sentence: one of them is no name of a host.
    pub fn new(allowed: &[String], public: Option<&str>) -> Result<Self, String> {
        let public = public.and_then(|link| link.split_once("://")).map(|(_, rest)| rest);
        let public = public.and_then(|rest| rest.split('/').next()).filter(|host| !host.is_empty());
        let mut names = Vec::new();
        for name in allowed.iter().map(String::as_str).chain(public) {
            let host = host_of(name).filter(|host| is_plain(host));
            names.push(
                host.ok_or_else(|| format!("{name:?} is no name of a host: give it as lab.example.org"))?,
            );
        }
        Ok(Self(names.into()))
    }

    /// Whether somebody who asks for `host` means this server.
    fn has(&self, host: &str) -> bool {
        let Some(name) = host_of(host) else { return false };
        let address = name.trim_start_matches('[').trim_end_matches(']');
        // An address leads where it leads, and a name without a dot is nobody's in public.
        address.parse::<IpAddr>().is_ok()
            || !name.contains('.')
            || PRIVATE.iter().any(|ending| name.ends_with(ending))
            || self.0.contains(&name)
    }
}

/// The host in `authority`, in small letters, without its port; `None` if it is no authority.
fn host_of(authority: &str) -> Option<String> {
    let authority: Authority = authority.parse().ok()?;
    let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
    (!host.is_empty() && !authority.as_str().contains('@')).then_some(host)
}

fn is_plain(host: &str) -> bool {
    host.chars().all(|letter| letter.is_ascii_alphanumeric() || "-.[]:".contains(letter))
}

/// Refuses whoever asks for another server. Programs that name none are answered: browsers always do.
pub async fn check(State(names): State<Names>, request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
    match host {
        Some(host) if !names.has(host) => {
            let shown: String = host.chars().filter(|letter| letter.is_ascii_graphic()).take(80).collect();
            let why = format!(
                "this server does not answer to the name {shown:?}: if it is yours, start it with --allow-host NAME, \
                 or with --public-url and the link that others use\n"
            );
            (StatusCode::MISDIRECTED_REQUEST, why).into_response()
        }
        _ => next.run(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_others_are_refused() {
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
            assert!(names.has(host), "{host}");
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
            assert!(!names.has(host), "{host}");
        }
    }

    #[test]
    fn what_is_no_name_is_said() {
        for name in ["https://lab.example.org", "a b", "", "x@y"] {
            let why = Names::new(&[name.to_owned()], None).unwrap_err();
            assert!(why.contains("no name of a host"), "{why}");
        }
    }
}
