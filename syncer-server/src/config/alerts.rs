//! Settings of alerts: their conditions, and the webhook.

use std::time::Duration;

use archipelago_cli::Span;
use serde::Serialize;

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
