//! Settings of the server process, and of its alerts.

use std::path::PathBuf;
use std::time::Duration;

use archipelago_cli::{Span, secret};
use serde::Serialize;

use super::ClusterArgs;
use super::inspect::DEFAULT_FOLDER;

/// Settings of the server, which apply to all of its runs.
#[derive(Clone, Debug, clap::Args, Serialize)]
// They precede the settings of runs under the heading "Server".
#[command(next_display_order = 0)]
#[serde(rename_all = "kebab-case")]
pub struct ServerSettings {
    /// For a class: print a code to scan with phones, and by default listen on 0.0.0.0:7700, train the preset tiny and
    /// ask for an invite
    #[arg(long, help_heading = "Server")]
    pub classroom: bool,
    /// Public link of this server, such as https://host/ behind a proxy with TLS; by default this machine's addresses
    #[arg(long, value_name = "URL", help_heading = "Server")]
    pub public_url: Option<String>,
    /// Certificate chain of this server, PEM, its own certificate first; the server then answers only https, and reads
    /// the file again when it changes
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM; read again when it changes
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    pub tls_key: Option<PathBuf>,
    /// Folder of the run: snapshots, tokenizer, admin token; a run that is already there resumes
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_FOLDER, help_heading = "Server")]
    pub dir: PathBuf,
    /// Serve every run in this folder; each has a folder of its own with a settings.toml whose keys are these flags,
    /// and the flags for data, training and learners belong there
    #[arg(long, value_name = "FOLDER", help_heading = "Server", conflicts_with = "dir")]
    pub runs: Option<PathBuf>,
    /// Serve the pages that `cargo xtask web` writes to this folder instead of the embedded ones; until they exist,
    /// browsers wait
    #[arg(long, value_name = "FOLDER", help_heading = "Server")]
    pub pages: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7700", help_heading = "Server")]
    pub listen: String,
    /// Web origin that is allowed in addition to the server's own, such as https://host or https://host:port; may be
    /// given several times
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', help_heading = "Server")]
    pub allow_origin: Vec<String>,
    /// Host name of this server, such as lab.example.org, in addition to its addresses, --public-url and names of the
    /// local network; requests for other names are refused. May be given several times
    #[arg(long, value_name = "NAME", value_delimiter = ',', help_heading = "Server")]
    pub allow_host: Vec<String>,
    /// Address of a proxy in front of this server, or a network of proxies such as 172.16.0.0/12; the client that it
    /// names in Forwarded or X-Forwarded-For counts as the sender. May be given several times
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = "Server")]
    pub trusted_proxy: Vec<String>,
    /// Maximum number of connections at once, of learners and others; fewer if the system allows fewer
    #[arg(long, value_name = "COUNT", default_value_t = 8192, help_heading = "Server")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub connections_max: u32,
    /// Maximum number of connections at once from one address or one IPv6 network; those from this machine and from a
    /// --trusted-proxy do not count
    #[arg(long, value_name = "COUNT", default_value_t = 256, help_heading = "Server")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub connections_per_address: u32,
    /// Exit with 0 once the run is complete; by default the server keeps serving the pages, the figures and the model
    /// of a complete run
    #[arg(long, help_heading = "Server")]
    pub exit_when_finished: bool,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    // For `cargo xtask bench tape`: a new run has no tape and cannot be resumed.
    #[arg(long, hide = true, help_heading = "Server")]
    #[serde(skip)]
    pub without_tape_for_benchmarks: bool,
    /// Role of this process in a run on several machines.
    #[command(flatten)]
    #[serde(flatten)]
    pub cluster: ClusterArgs,
    /// JSON lines on standard output: the address first, the final status last
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Log only warnings and errors (RUST_LOG overrides this)
    #[arg(long, short, help_heading = "Output")]
    pub quiet: bool,
}

/// Settings of one start of a server, or of one start of a run in its folder. They are never stored.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StartSettings {
    /// TOML file whose keys are these flags
    // Without a heading of its own, it would get the one of the group before.
    #[arg(long, value_name = "FILE", help_heading = None::<&'static str>)]
    pub config: Option<PathBuf>,
    /// Token of the admin routes, 16 characters or more; by default one is generated in the run's folder
    #[arg(long, value_name = "TOKEN", hide_env_values = true, help_heading = "Server", value_parser = secret)]
    #[serde(skip)]
    pub admin_token: Option<String>,
}

/// Conditions of alerts, and their destination.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct AlertArgs {
    /// Alert if no learner has taken part for this time; 0 turns it off
    #[arg(long, value_name = "TIME", default_value = "10m", help_heading = "Alerts")]
    pub alert_no_learner: Span,
    /// Alert if the held-out loss exceeds its best value by this factor, above 1; 0 turns it off
    #[arg(long, value_name = "TIMES", default_value_t = 1.2, help_heading = "Alerts")]
    pub alert_loss: f64,
    /// Alert if the newest snapshot is older than this time and than twice --snapshot-every; 0 turns it off
    #[arg(long, value_name = "TIME", default_value = "10m", help_heading = "Alerts")]
    pub alert_snapshot: Span,
    /// Post each alert as JSON to this address, such as https://HOST/PATH
    #[arg(long, value_name = "URL", hide_env_values = true, help_heading = "Alerts")]
    #[serde(skip)]
    pub webhook: Option<String>,
}

impl AlertArgs {
    /// Turns off snapshot alerts for a process without snapshots. Such a process merges into the storage of its
    /// cluster.
    pub(crate) fn expect_no_snapshots(&mut self) {
        self.alert_snapshot = Span(Duration::ZERO);
    }
}
