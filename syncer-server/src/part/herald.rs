//! What the owner of the run orders at any process, carried out at this one.

use std::collections::VecDeque;
use std::future::Future;
use std::time::Duration;

use archipelago_cluster::{Decrees, Reader, ServiceError};
use archipelago_core::cluster::{Decree, Orders};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::config::{Changed, ServeConfig, changed, given, syncer_config};
use crate::errors::ServerError;

/// What is ordered here is seen here within that time, or the answer does not wait for it.
const SEEN_WITHIN: Duration = Duration::from_secs(5);

/// The way to all processes of a run.
#[derive(Clone)]
pub struct Herald {
    decrees: Decrees,
    /// The newest decree that holds here.
    obeyed: watch::Receiver<u64>,
}

impl Herald {
    /// Has all processes hear of `decree`, which is kept then; returns once this one has, as a rule.
    ///
    /// # Errors
    /// Those of [`Decrees::give`].
    pub(crate) async fn proclaim(&self, decree: Decree) -> Result<(), ServiceError> {
        let seq = self.decrees.give(decree).await?;
        let mut obeyed = self.obeyed.clone();
        // It holds in any case; whoever ordered it is shown so a little later.
        drop(timeout(SEEN_WITHIN, obeyed.wait_for(|newest| *newest >= seq)).await);
        Ok(())
    }
}

/// What was ordered so far, and is ordered from now on.
pub(crate) struct Hearing {
    decrees: Decrees,
    /// What was there when this process began, which those who lead know by now.
    past: VecDeque<Decree>,
    reader: Reader,
    /// The settings as they are by now.
    config: ServeConfig,
    orders: watch::Sender<Orders>,
    obeyed: watch::Sender<u64>,
}

impl Hearing {
    /// Hears what was ordered of a run that began with the settings of `config`, and by these `orders`.
    ///
    /// # Errors
    /// - `Cluster`: it cannot be read.
    /// - `Config`: what was ordered makes no sense to this program.
    pub(crate) async fn begin(
        decrees: Decrees,
        config: &ServeConfig,
        orders: Orders,
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

    /// The settings of the run as they were ordered so far. A process begins with them and not with older ones, by
    /// which it might take the run for one that has had its tokens.
    pub(crate) fn config(&self) -> &ServeConfig {
        &self.config
    }

    /// What those who lead rounds here go by.
    pub(crate) fn orders(&self) -> watch::Receiver<Orders> {
        self.orders.subscribe()
    }

    /// The way to all processes.
    pub(crate) fn herald(&self) -> Herald {
        Herald { decrees: self.decrees.clone(), obeyed: self.obeyed.subscribe() }
    }

    /// Has those who lead go by what is ordered, and then `obey` it for the learners of this process, if it faces any.
    /// It never ends.
    pub(crate) async fn run<F: Future<Output = ()>>(mut self, obey: impl Fn(Decree) -> F) {
        let mut seq = 0;
        while let Some(decree) = self.past.pop_front() {
            seq += 1;
            // Settings hold already, in the end as they are by now: see [`Self::config`].
            if !matches!(decree, Decree::Settings(_)) {
                obey(decree).await;
            }
            self.obeyed.send_replace(seq);
        }
        loop {
            let (seq, decree) = self.reader.next().await;
            if let Err(why) = self.lead_by(&decree) {
                tracing::error!("what the owner ordered makes no sense here: {why}");
            }
            obey(decree).await;
            self.obeyed.send_replace(seq);
        }
    }

    /// Has those who lead go by `decree`.
    ///
    /// # Errors
    /// A sentence: this program knows no such setting.
    fn lead_by(&mut self, decree: &Decree) -> Result<(), String> {
        match decree {
            Decree::Settings(words) => {
                let Changed { config, .. } = changed(&self.config, &given(words))?;
                let core = syncer_config(&config).map_err(|error| error.to_string())?;
                self.config = config;
                let (quorum, merge, cohort_max) = (core.quorum, core.merge, core.cohort_max);
                self.orders.send_modify(|orders| *orders = Orders { quorum, merge, cohort_max, ..*orders });
            }
            Decree::Hold(held) => self.orders.send_modify(|orders| orders.is_held = *held),
            Decree::Finish => self.orders.send_modify(|orders| orders.is_ending = true),
            Decree::Agreed(_) | Decree::Pace(..) | Decree::Drop(..) | Decree::Ban(..) | Decree::Lift(_) => {}
        }
        Ok(())
    }
}
