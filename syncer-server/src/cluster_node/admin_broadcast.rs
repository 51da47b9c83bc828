//! Commands of the owner in a cluster: sent at any process, and applied at this one.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use archipelago_cluster::{AdminCommandLog, Reader, ServiceError};
use archipelago_core::cluster::{AdminCommand, AdminCommands};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::{Changed, ServeConfig, changed, given, syncer_config};
use crate::errors::ServerError;

/// Longest wait for a command sent at this process to be applied here. The answer to the owner waits no longer.
const APPLIED_WITHIN: Duration = Duration::from_secs(5);

/// Handle for sending commands to all processes of a run.
#[derive(Clone)]
pub struct AdminBroadcast {
    log: AdminCommandLog,
    /// Number of the newest command that is applied here.
    applied: watch::Receiver<u64>,
}

impl AdminBroadcast {
    /// Stores `command` for all processes. Usually returns once it is applied at this one.
    ///
    /// # Errors
    /// Those of [`AdminCommandLog::append`].
    pub(crate) async fn broadcast(&self, command: AdminCommand) -> Result<(), ServiceError> {
        let seq = self.log.append(command).await?;
        let mut applied = self.applied.clone();
        // The command takes effect in any case; the owner may only see it a little later.
        drop(timeout(APPLIED_WITHIN, applied.wait_for(|newest| *newest >= seq)).await);
        Ok(())
    }
}

/// Reader of a run's past and future commands, which applies them.
pub(crate) struct CommandReader {
    log: AdminCommandLog,
    /// Commands from before this process started, which are already applied to the leaders.
    past: VecDeque<AdminCommand>,
    reader: Reader,
    /// Settings of the run after the commands so far.
    config: ServeConfig,
    orders: watch::Sender<AdminCommands>,
    applied: watch::Sender<u64>,
}

impl CommandReader {
    /// Reads the past commands of a run that started with the settings of `config` and with `orders` for its leaders.
    ///
    /// # Errors
    /// - `Cluster`: the commands cannot be read.
    /// - `Config`: a command is not valid for this program.
    pub(crate) async fn begin(
        log: AdminCommandLog,
        config: &ServeConfig,
        orders: AdminCommands,
    ) -> Result<Self, ServerError> {
        let past = log.past().await;
        let past = past.map_err(|error| ServerError::Cluster { why: error.to_string() })?;
        let last = past.len() as u64;
        let mut commands = Self {
            reader: log.after(last),
            log,
            past: VecDeque::new(),
            config: config.clone(),
            orders: watch::channel(orders).0,
            applied: watch::channel(0).0,
        };
        for command in &past {
            commands.apply_to_leaders(command).map_err(|why| ServerError::Config { why })?;
        }
        commands.past = past.into();
        Ok(commands)
    }

    /// Returns the settings of the run after all past commands. A process must start with them: with older ones, it
    /// might take the run for complete.
    pub(crate) fn config(&self) -> &ServeConfig {
        &self.config
    }

    /// Returns the commands in effect for the leaders of rounds at this process.
    pub(crate) fn orders(&self) -> watch::Receiver<AdminCommands> {
        self.orders.subscribe()
    }

    /// Returns a handle for sending commands to all processes.
    pub(crate) fn broadcast(&self) -> AdminBroadcast {
        AdminBroadcast { log: self.log.clone(), applied: self.applied.subscribe() }
    }

    /// Applies each command to the leaders, and then calls `apply` for the learners of this process, if it serves any.
    /// Never ends.
    pub(crate) async fn run<F: Future<Output = ()>>(mut self, apply: impl Fn(AdminCommand) -> F) {
        let mut seq = 0;
        while let Some(command) = self.past.pop_front() {
            seq += 1;
            // The settings are already applied, in their newest form: see [`Self::config`].
            if !matches!(command, AdminCommand::Settings(_)) {
                apply(command).await;
            }
            self.applied.send_replace(seq);
        }
        loop {
            let (seq, command) = self.reader.next().await;
            if let Err(why) = self.apply_to_leaders(&command) {
                tracing::error!("an order of the owner is not valid here: {why}");
            }
            apply(command).await;
            self.applied.send_replace(seq);
        }
    }

    /// Applies `command` to the leaders.
    ///
    /// # Errors
    /// A sentence: a setting is unknown to this program or has an invalid value.
    fn apply_to_leaders(&mut self, command: &AdminCommand) -> Result<(), String> {
        match command {
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
