//! The server's first output: its address and, with `--classroom`, instructions for joining.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use archipelago_core::wire::Invite;
use serde::{Deserialize, Serialize};

use crate::config::ServeConfig;
use crate::links::{Links, code, fragment, socket};

/// First output of a server: one line of JSON with `--json`, lines of text without it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Announcement {
    /// Always "listening".
    event: &'static str,
    /// The listening address.
    pub address: SocketAddr,
    /// URL of the page for lending a machine, with the invite.
    pub url: String,
    /// WebSocket URL for native learners, with the invite.
    pub join: String,
    /// URL of the server for programs on this machine, ending with `/`.
    #[serde(skip)]
    here: String,
    /// Links for a class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classroom: Option<Classroom>,
}

/// Links for a class.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Classroom {
    /// URLs of the page for lending a machine, best first, with the invite.
    pub links: Vec<String>,
    /// True if only this machine can open `links`.
    pub local_only: bool,
    /// URL of the dashboard for the owner, on this machine.
    pub dashboard: String,
    /// Instructions for joining, one line of text each, to show next to the QR code.
    pub words: Vec<String>,
    /// File with the owner's token, which the dashboard asks for.
    pub token_file: PathBuf,
    /// The first link as a QR code: lines of half-block characters, to be printed light on dark.
    pub code: Vec<String>,
    /// True if the terminal shows colours.
    #[serde(skip)]
    pub coloured: bool,
}

impl Announcement {
    /// Creates the announcement of a server that listens on `address` and asks for `invite`.
    #[must_use]
    pub fn new(config: &ServeConfig, address: SocketAddr, invite: Option<&Invite>, coloured: bool) -> Self {
        let links = Links::of(address, config);
        let invite = fragment(invite);
        let here = Links::here(address, config);
        let url = format!("{}{invite}", links.best());
        let join = socket(&url);
        let classroom = config.server.classroom.then(|| {
            let pages: Vec<String> = links.pages.iter().map(|page| format!("{page}{invite}")).collect();
            let dashboard = format!("{here}dashboard{invite}");
            Classroom {
                words: words(&pages, links.local_only, &dashboard),
                links: pages,
                local_only: links.local_only,
                dashboard,
                token_file: config.server.dir.join("admin.token"),
                code: code(&url),
                coloured,
            }
        });
        Self { event: "listening", address, url, join, here, classroom }
    }

    /// Returns the link to the dashboard on this machine, with the owner's token. It is for the owner only. Browsers do
    /// not send the part after `#` to any server.
    #[must_use]
    pub fn owner_link(&self, token: &str) -> String {
        let invite = self.url.split_once('#').map_or_else(String::new, |(_, invite)| format!("{invite}&"));
        format!("{}dashboard#{invite}token={token}", self.here)
    }
}

/// Returns the instructions for [`Classroom::words`].
fn words(links: &[String], local_only: bool, dashboard: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (number, link) in links.iter().enumerate() {
        words.push(format!("{:15} {link}", if number == 0 { "students open" } else { "if not, try" }));
    }
    if local_only {
        words.push(
            "only this machine can open that: no network was found, or --listen names only this machine; --public-url \
             sets the link for others"
                .into(),
        );
    }
    words.push(format!("{:15} {dashboard}", "you watch at"));
    words
}

impl fmt::Display for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "listening on {} (learners join {})", self.url, self.join)?;
        self.classroom.as_ref().map_or(Ok(()), |classroom| write!(f, "\n{classroom}"))
    }
}

impl fmt::Display for Classroom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // White on black, regardless of the terminal's colours.
        let (before, after) = if self.coloured { ("\x1b[38;5;231;48;5;16m", "\x1b[0m") } else { ("", "") };
        for line in &self.code {
            writeln!(f, "{before}{line}{after}")?;
        }
        for line in &self.words {
            writeln!(f, "{line}")?;
        }
        write!(f, "the token to slow down and drop learners there is in {}", self.token_file.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announce(listen: &str, change: impl FnOnce(&mut ServeConfig)) -> Announcement {
        let mut config = ServeConfig::default().with(|it| it.server.dir = "run".into());
        change(&mut config);
        Announcement::new(&config, listen.parse().unwrap(), Some(&Invite::new("open-sesame")), false)
    }

    #[test]
    fn owner_link_has_invite_and_token() {
        let said = announce("0.0.0.0:7700", |_| {});
        assert_eq!(said.owner_link("abc"), "http://127.0.0.1:7700/dashboard#invite=open-sesame&token=abc");
        let open = Announcement::new(&ServeConfig::default(), "127.0.0.1:80".parse().unwrap(), None, false);
        assert_eq!(open.owner_link("abc"), "http://127.0.0.1:80/dashboard#token=abc");
    }

    #[test]
    fn classroom_announcement_has_links_and_code() {
        let said = announce("0.0.0.0:7700", |config| {
            config.server.classroom = true;
            config.server.public_url = Some("https://class.example/a".into());
        });
        assert_eq!(said.url, "https://class.example/a/#invite=open-sesame");
        assert_eq!(said.join, "wss://class.example/a/v1/ws#invite=open-sesame");
        let text = said.to_string();
        for part in [
            "students open   https://class.example/a/#invite=open-sesame\n",
            "you watch at    http://127.0.0.1:7700/dashboard#invite=open-sesame\n",
            "run/admin.token",
            &said.classroom.as_ref().unwrap().code.join("\n"),
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
        assert!(!text.contains("only this machine"));
        let json = serde_json::to_value(&said).unwrap();
        assert_eq!(json["classroom"]["links"][0], "https://class.example/a/#invite=open-sesame");
        assert!(json["classroom"]["code"][0].as_str().unwrap().starts_with("███"));
        for line in &said.classroom.as_ref().unwrap().words {
            assert!(text.contains(&format!("\n{line}\n")), "{line} is not in\n{text}");
        }

        let said = announce("127.0.0.1:7700", |config| config.server.classroom = true).to_string();
        assert!(said.contains("only this machine can open that"), "{said}");
    }

    #[test]
    fn links_use_tls_with_a_certificate() {
        let with = |public: Option<&str>| {
            let said = announce("127.0.0.1:7700", |config| {
                (config.server.tls_cert, config.server.classroom) = (Some("cert.pem".into()), true);
                config.server.public_url = public.map(str::to_owned);
            });
            let watch = said.classroom.clone().unwrap().dashboard;
            [said.url.clone(), said.join.clone(), said.owner_link("abc"), watch].map(|link| {
                let (place, _) = link.split_once('#').unwrap();
                place.to_owned()
            })
        };
        let here = "https://127.0.0.1:7700";
        let expected = ["/", "/v1/ws", "/dashboard", "/dashboard"].map(|path| format!("{here}{path}"));
        assert_eq!(
            with(None),
            expected.map(|link| link.replace("https://127.0.0.1:7700/v1", "wss://127.0.0.1:7700/v1"))
        );
        let [url, join, owner, watch] = with(Some("https://class.example"));
        assert_eq!((&*url, &*join), ("https://class.example/", "wss://class.example/v1/ws"));
        assert_eq!(
            [owner, watch],
            ["https://class.example/dashboard"; 2],
            "the certificate is for that name"
        );
    }

    #[test]
    fn plain_announcement_has_only_the_address() {
        let said = announce("127.0.0.1:7700", |_| {});
        let expected = "listening on http://127.0.0.1:7700/#invite=open-sesame \
                        (learners join ws://127.0.0.1:7700/v1/ws#invite=open-sesame)";
        assert_eq!(said.to_string(), expected);
        assert!(serde_json::to_value(&said).unwrap().get("classroom").is_none());
    }
}
