//! One process of a run on several machines: joins the others, leads rounds, and serves learners.

mod admin_broadcast;
mod agreed;
mod owner_command;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use archipelago_cluster::{
    AdminCommandLog, BridgeHandle, Findings, Health, LeaderSettings, Services, finished, front, new_process,
    own, watched,
};
use archipelago_core::cluster::{AdminCommands, GatewayId, GatewayTerms, ProcessId};
use archipelago_core::diloco::syncer::{Input, LeaderRequest, Syncer};
use archipelago_core::wire::{Fingerprint, FragmentId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::actor::{ActorHandle, Command};
use crate::config::{Part, Place, Role, ServeConfig};
use crate::errors::ServerError;
use crate::invites::InviteStore;
use crate::prepare::Shared;
pub use admin_broadcast::AdminBroadcast;
pub(crate) use admin_broadcast::CommandReader;
pub(crate) use owner_command::OwnerCommand;

/// Lease of a leader: time without contact after which a process loses its leadership, in milliseconds.
const LEASE_MS: u64 = 3_000;
/// Interval at which owner processes check their timers, in milliseconds.
const OWNER_TICK_MS: u64 = 20;
/// Interval at which gateways read the tape if no notice arrives, in milliseconds.
const GATEWAY_TICK_MS: u64 = 500;
/// Interval between checks of the health of the services that the processes share.
const HEALTH_EVERY: Duration = Duration::from_secs(1);

/// Membership of this process in the cluster.
pub(crate) struct Membership {
    role: Role,
    lead_max: usize,
    process: ProcessId,
    shared: Shared,
    services: Services,
    health: Health,
}

impl Membership {
    /// Joins the other processes of the run, checks that they agree on `shared` and the settings of `config`, and
    /// reads the owner's past commands.
    ///
    /// # Errors
    /// - `Cluster`: a service cannot be used.
    /// - `Config`: the others started with other settings.
    /// - `Init`, `Internal`: the initial parameters cannot be read, or the codec of the run cannot be used.
    pub(crate) async fn join(
        part: Part,
        config: &ServeConfig,
        shared: Shared,
    ) -> Result<(Self, CommandReader), ServerError> {
        let Part { role, place, lead_max } = part;
        let services = match place {
            Place::Here(within) => within.0,
            Place::There { bus, blobs, prefix } => connect(bus, blobs, prefix, &shared).await?,
        };
        let (process, (services, health)) = (new_process(), watched(services));
        let log = AdminCommandLog::of(&services);
        let mut ours = agreed::agreed(config);
        let first = shared.clone();
        let read = tokio::task::spawn_blocking(move || first.first()).await;
        ours.extend(read.map_err(|error| ServerError::Internal { what: error.to_string() })??);
        let theirs = log.agree(&ours).await;
        agreed::compare(&ours, &theirs.map_err(|error| ServerError::Cluster { why: error.to_string() })?)?;
        let terms = shared.owner_terms(process).and_then(|terms| terms.into_iter().next());
        let terms = terms.ok_or_else(no_code)?;
        let commands =
            CommandReader::begin(log, config, AdminCommands::none(&terms.rounds, terms.cohort_max)).await?;
        tracing::info!(?role, process = process.0, run = %shared.run, "joined the cluster");
        Ok((Self { role, lead_max, process, shared, services, health }, commands))
    }

    /// Leads rounds under the owner's `commands` until `stop` resolves, if that is this process's role. Only the
    /// fragments that it leads are in memory.
    pub(crate) fn lead(
        &self,
        commands: &CommandReader,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let fragments = self.shared.owner_terms(self.process).filter(|_| self.role.leads());
        let initial_states = self.shared.initial_states();
        let (process, services, orders) = (self.process, self.services.clone(), commands.orders());
        let lead_max = self.lead_max;
        async move {
            if let Some(fragments) = fragments {
                let (lease_ms, tick_ms) = (LEASE_MS, OWNER_TICK_MS);
                let settings = LeaderSettings {
                    process,
                    fragments,
                    initial_states,
                    lead_max,
                    lease_ms,
                    tick_ms,
                    orders,
                };
                own(services, settings, stop).await;
            }
        }
    }

    /// Resolves once the last round of each fragment is over, whichever process led it.
    pub(crate) fn finished(&self) -> impl Future<Output = ()> + Send + 'static {
        finished(self.services.clone(), self.shared.fragments.ids().collect())
    }

    /// Makes `syncer` a gateway, which serves learners for the leaders of rounds, and passes the leaders' messages to
    /// `actor`. Learners whose keys are banned in `invite_store` are removed. Returns the syncer, the channel to the
    /// leaders, and a receiver that resolves when contact with the leaders is lost. Dropping the channel ends the
    /// exchange.
    ///
    /// # Errors
    /// `Internal`: the codec of the run cannot be used.
    pub(crate) fn connect_gateway(
        &self,
        syncer: Syncer,
        actor: ActorHandle,
        invite_store: Arc<InviteStore>,
    ) -> Result<(Syncer, mpsc::UnboundedSender<LeaderRequest>, oneshot::Receiver<()>), ServerError> {
        // Gateway numbers have 32 bits; two collide by chance once in billions of pairs.
        let gateway = GatewayId(self.process.0 as u32);
        let terms = GatewayTerms::of(&syncer, gateway);
        let terms = terms.ok_or_else(no_code)?;
        let initial = syncer.states().cloned().collect();
        let (front, BridgeHandle { said, mut inputs }) =
            front(self.services.clone(), terms, initial, GATEWAY_TICK_MS);
        tokio::spawn(front.run(std::future::pending()));
        // Every run has a fragment 0.
        let asks = self.health.clone().attend(self.services.clone(), FragmentId(0));
        let (reports, ending) = (report_health(self.health.clone(), actor.clone()), actor.clone());
        // The tasks end with the actor, since others may use the shared services afterwards.
        tokio::spawn(async move {
            tokio::select! {
                () = asks => {}
                () = reports => {}
                () = ending.closed() => {}
            }
        });
        let (lost, is_lost) = oneshot::channel();
        tokio::spawn(async move {
            while let Some(input) = inputs.recv().await {
                let banned = banned(&invite_store, &input).await;
                if !actor.send(Command::Input(input)).await {
                    return;
                }
                if let Some(fingerprint) = banned {
                    actor.send(Command::Input(Input::Ban(fingerprint))).await;
                }
            }
            // Fails only if the actor has ended too.
            let _ = lost.send(());
        });
        Ok((syncer.into_gateway(self.process.0), said, is_lost))
    }
}

/// Reports the health of the shared services to the actor whenever it changes.
async fn report_health(health: Health, actor: ActorHandle) {
    let mut reported = None;
    loop {
        let trouble = health.trouble();
        if trouble != reported {
            let fault = trouble.map(|trouble| trouble.to_string().into());
            if !actor.send(Command::Served(fault)).await {
                return;
            }
            reported = trouble;
        }
        sleep(HEALTH_EVERY).await;
    }
}

/// Returns the key of the learner that `input` introduces, if the key is banned or the bans cannot be read. It may
/// have been banned while `input` waited, after the check of connected learners.
async fn banned(invite_store: &Arc<InviteStore>, input: &Input) -> Option<Fingerprint> {
    let Input::Introduced { hello, .. } = input else { return None };
    let (invite_store, fingerprint) = (Arc::clone(invite_store), hello.identity.fingerprint());
    let asked = tokio::task::spawn_blocking(move || invite_store.is_banned(fingerprint)).await;
    (!matches!(asked, Ok(Ok(false)))).then_some(fingerprint)
}

fn no_code() -> ServerError {
    ServerError::Internal { what: "no code for the run".to_owned() }
}

/// Returns the number of servers in `bus` that store each record. With three servers, records survive the loss of one;
/// with two, they would survive no loss.
pub(crate) fn replicas(bus: &[String]) -> usize {
    if bus.len() >= 3 { 3 } else { 1 }
}

#[cfg(feature = "cluster")]
fn servers(bus: Vec<String>, blobs: String, prefix: String) -> archipelago_cluster::Servers {
    let blobs = archipelago_cluster::StoreSettings { place: blobs, variables: Vec::new() };
    archipelago_cluster::Servers { replicas: replicas(&bus), nats: bus, blobs, prefix }
}

#[cfg(feature = "cluster")]
async fn connect(
    bus: Vec<String>,
    blobs: String,
    prefix: String,
    shared: &Shared,
) -> Result<Services, ServerError> {
    let fragments = shared.fragments.ids().collect();
    let opened = archipelago_cluster::open(servers(bus, blobs, prefix), shared.run, fragments).await;
    opened.map_err(|error| ServerError::Cluster { why: error.to_string() })
}

/// Checks the services that the processes of a run with these fragments would share, without changing them.
///
/// # Errors
/// `Config`: this program cannot be part of a cluster.
#[cfg(feature = "cluster")]
pub(crate) async fn check_services(
    bus: Vec<String>,
    blobs: String,
    prefix: String,
    fragments: &[FragmentId],
) -> Result<Findings, ServerError> {
    Ok(archipelago_cluster::inspect(&servers(bus, blobs, prefix), fragments).await)
}

#[cfg(not(feature = "cluster"))]
async fn connect(_: Vec<String>, _: String, _: String, _: &Shared) -> Result<Services, ServerError> {
    Err(of_one_machine())
}

#[cfg(not(feature = "cluster"))]
#[expect(clippy::unused_async, reason = "the same as with the feature")]
pub(crate) async fn check_services(
    _: Vec<String>,
    _: String,
    _: String,
    _: &[FragmentId],
) -> Result<Findings, ServerError> {
    Err(of_one_machine())
}

#[cfg(not(feature = "cluster"))]
fn of_one_machine() -> ServerError {
    let why =
        "this program was built for one machine: build it with `--features cluster`, or leave out --role";
    ServerError::Config { why: why.to_owned() }
}
