//! Commands that the owner gives at any process of a run, carried out at this one.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use archipelago_cluster::{AdminCommandLog, Reader, ServiceError};
use archipelago_core::cluster::{AdminCommand, AdminCommands};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::{Changed, ServeConfig, changed, given, syncer_config};
use crate::errors::ServerError;

/// Longest wait for an order given here to take effect here; the answer does not wait longer.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// Handle for orders to all processes of a run.
#[derive(Clone)]
pub struct AdminBroadcast {
    decrees: AdminCommandLog,
    /// Number of the newest decree that holds here.
    obeyed: watch::Receiver<u64>,
}

impl AdminBroadcast {
    /// Stores `decree` for all processes; usually returns once it holds at this one.
    ///
    /// # Errors
    /// Those of [`AdminCommandLog::give`].
    pub(crate) async fn proclaim(&self, decree: AdminCommand) -> Result<(), ServiceError> {
        let seq = self.decrees.give(decree).await?;
        let mut obeyed = self.obeyed.clone();
        // The decree holds in any case; the owner may only see it a little later.
        drop(timeout(SEEN_WITHIN, obeyed.wait_for(|newest| *newest >= seq)).await);
        Ok(())
    }
}

/// Past and future decrees of a run.
pub(crate) struct Hearing {
    decrees: AdminCommandLog,
    /// Decrees from before this process started, which the leaders already know.
    past: VecDeque<AdminCommand>,
    reader: Reader,
    /// The current settings.
    config: ServeConfig,
    orders: watch::Sender<AdminCommands>,
    obeyed: watch::Sender<u64>,
}

impl Hearing {
    /// Reads the decrees of a run that started with the settings of `config` and these `orders`.
    ///
    /// # Errors
    /// - `Cluster`: they cannot be read.
    /// - `Config`: a decree makes no sense to this program.
    pub(crate) async fn begin(
        decrees: AdminCommandLog,
        config: &ServeConfig,
        orders: AdminCommands,
    ) -> Result<Self, ServerError> {
        let past = decrees.past().await;
        let past = past.map_err(|error| ServerError::Cluster { why: error.to_string() })?;
        let last = past.len() as u64;
        let mut hearing = Self {
            reader: decrees.after(last),
            decrees,
            past: VecDeque::new(),
            config: config.clone(),
            orders: watch::channel(orders).0,
            obeyed: watch::channel(0).0,
        };
        for decree in &past {
            hearing.lead_by(decree).map_err(|why| ServerError::Config { why })?;
        }
        hearing.past = past.into();
        Ok(hearing)
    }

    /// Returns the settings of the run after all past decrees. A process must start with them: with older ones, it
    /// might take the run for complete.
    pub(crate) fn config(&self) -> &ServeConfig {
        &self.config
    }

    /// Returns the current orders for the leaders of rounds at this process.
    pub(crate) fn orders(&self) -> watch::Receiver<AdminCommands> {
        self.orders.subscribe()
    }

    /// Returns the handle to all processes.
    pub(crate) fn herald(&self) -> AdminBroadcast {
        AdminBroadcast { decrees: self.decrees.clone(), obeyed: self.obeyed.subscribe() }
    }

    /// Applies each decree to the leaders, and then calls `obey` for the learners of this process, if it serves any.
    /// Never ends.
    pub(crate) async fn run<F: Future<Output = ()>>(mut self, obey: impl Fn(AdminCommand) -> F) {
        let mut seq = 0;
        while let Some(decree) = self.past.pop_front() {
            seq += 1;
            // The settings hold already, in their newest form: see [`Self::config`].
            if !matches!(decree, AdminCommand::Settings(_)) {
                obey(decree).await;
            }
            self.obeyed.send_replace(seq);
        }
        loop {
            let (seq, decree) = self.reader.next().await;
            if let Err(why) = self.lead_by(&decree) {
                tracing::error!("an order of the owner is not valid here: {why}");
            }
            obey(decree).await;
            self.obeyed.send_replace(seq);
        }
    }

    /// Applies `decree` to the leaders.
    ///
    /// # Errors
    /// A sentence: this program knows no such setting.
    fn lead_by(&mut self, decree: &AdminCommand) -> Result<(), String> {
        match decree {
            AdminCommand::Settings(words) => {
                let Changed { config, .. } = changed(&self.config, &given(words))?;
                let core = syncer_config(&config).map_err(|error| error.to_string())?;
                self.config = config;
                let (quorum, merge, cohort_max) = (core.quorum, core.merge, core.cohort_max);
                self.orders
                    .send_modify(|orders| *orders = AdminCommands { quorum, merge, cohort_max, ..*orders });
            }
            AdminCommand::Hold(held) => self.orders.send_modify(|orders| orders.is_held = *held),
            AdminCommand::Finish => self.orders.send_modify(|orders| orders.is_ending = true),
            AdminCommand::Agreed(_)
            | AdminCommand::Pace(..)
            | AdminCommand::Drop(..)
            | AdminCommand::Ban(..)
            | AdminCommand::Lift(_) => {}
        }
        Ok(())
    }
}
