//! Settings of alerts: their conditions, and the webhook.

use std::time::Duration;

use archipelago_cli::Span;
use serde::Serialize;

/// When there is an alert, and where it is told.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct AlertArgs {
    /// Alert once no learner has taken part for so long; 0 is never
    #[arg(long, value_name = "TIME", default_value = "10m", help_heading = "Alerts")]
    pub alert_no_learner: Span,
    /// Alert once the held-out loss is more than so many times its best, above 1; 0 is never
    #[arg(long, value_name = "TIMES", default_value_t = 1.2, help_heading = "Alerts")]
    pub alert_loss: f64,
    /// Alert once the newest snapshot is so old, twice --snapshot-every at least; 0 is never
    #[arg(long, value_name = "TIME", default_value = "10m", help_heading = "Alerts")]
    pub alert_snapshot: Span,
    /// Post each alert as JSON to this address, as https://HOST/PATH
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
