//! A part in a run on several machines: this process joins the others, leads rounds, and faces learners for them.

mod agreed;
mod herald;
mod order;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use archipelago_cluster::{
    Decrees, Facing, Findings, Health, OwnerSettings, Services, finished, front, new_process, own, watched,
};
use archipelago_core::cluster::{GatewayId, GatewayTerms, Orders, ProcessId};
use archipelago_core::diloco::syncer::{Input, Syncer, Upward};
use archipelago_core::wire::{Fingerprint, FragmentId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use crate::actor::{ActorHandle, Command};
use crate::config::{Part, Place, Role, ServeConfig};
use crate::errors::ServerError;
use crate::guests::Guests;
use crate::prepare::Shared;
pub(crate) use herald::Hearing;
pub use herald::Herald;
pub(crate) use order::Order;

/// A process that is silent for so long leads no more, in milliseconds.
const LEASE_MS: u64 = 3_000;
/// Owners look at their watch after so many milliseconds…
const OWNER_TICK_MS: u64 = 20;
/// …and gateways at the tape, if nobody told them of anything.
const GATEWAY_TICK_MS: u64 = 500;
/// How what stands between the processes does is looked at so often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// This process among the others.
pub(crate) struct Membership {
    role: Role,
    lead_max: usize,
    process: ProcessId,
    shared: Shared,
    services: Services,
    health: Health,
}

impl Membership {
    /// Joins the others of the run that they have as `shared`, and all of them the settings of `config`, and hears what
    /// its owner ordered.
    ///
    /// # Errors
    /// - `Cluster`: a service cannot be used.
    /// - `Config`: the others began with other settings, or the code of the run cannot be used.
    pub(crate) async fn join(
        part: Part,
        config: &ServeConfig,
        shared: Shared,
    ) -> Result<(Self, Hearing), ServerError> {
        let Part { role, place, lead_max } = part;
        let services = match place {
            Place::Here(within) => within.0,
            Place::There { bus, blobs, prefix } => connect(bus, blobs, prefix, &shared).await?,
        };
        let (process, (services, health)) = (new_process(), watched(services));
        let decrees = Decrees::of(&services);
        let mut ours = agreed::agreed(config);
        let first = shared.clone();
        let read = tokio::task::spawn_blocking(move || first.first()).await;
        ours.extend(read.map_err(|error| ServerError::Internal { what: error.to_string() })??);
        let theirs = decrees.agree(&ours).await;
        agreed::compare(&ours, &theirs.map_err(|error| ServerError::Cluster { why: error.to_string() })?)?;
        let terms = shared.owner_terms(process).and_then(|terms| terms.into_iter().next());
        let terms = terms.ok_or_else(no_code)?;
        let hearing = Hearing::begin(decrees, config, Orders::none(&terms.rounds, terms.cohort_max)).await?;
        tracing::info!(?role, process = process.0, run = %shared.run, "joined the cluster");
        Ok((Self { role, lead_max, process, shared, services, health }, hearing))
    }

    /// Leads rounds until `stop` is ready, if that is its part, by what `hearing` hears. Of the model it holds what it
    /// leads.
    pub(crate) fn lead(
        &self,
        hearing: &Hearing,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let fragments = self.shared.owner_terms(self.process).filter(|_| self.role.leads());
        let beginnings = self.shared.beginnings();
        let (process, services, orders) = (self.process, self.services.clone(), hearing.orders());
        let lead_max = self.lead_max;
        async move {
            if let Some(fragments) = fragments {
                let (lease_ms, tick_ms) = (LEASE_MS, OWNER_TICK_MS);
                let settings =
                    OwnerSettings { process, fragments, beginnings, lead_max, lease_ms, tick_ms, orders };
                own(services, settings, stop).await;
            }
        }
    }

    /// Resolves once the last round of each fragment is over, whoever led it.
    pub(crate) fn finished(&self) -> impl Future<Output = ()> + Send + 'static {
        finished(self.services.clone(), self.shared.fragments.ids().collect())
    }

    /// Has `syncer` face learners for those who lead, and hands `actor` what they say; none of `guests` who is banned
    /// stays in. Gives the way to them, and
    /// ends with that; and what says so if nothing is heard of them any more.
    ///
    /// # Errors
    /// `Internal`: the code of the run cannot be used.
    pub(crate) fn face(
        &self,
        syncer: Syncer,
        actor: ActorHandle,
        guests: Arc<Guests>,
    ) -> Result<(Syncer, mpsc::UnboundedSender<Upward>, oneshot::Receiver<()>), ServerError> {
        // Gateways are told apart by a number of 32 bits, which two have by chance once in billions of pairs.
        let gateway = GatewayId(self.process.0 as u32);
        let terms = GatewayTerms::of(&syncer, gateway);
        let terms = terms.ok_or_else(no_code)?;
        let initial = syncer.states().cloned().collect();
        let (front, Facing { said, mut inputs }) =
            front(self.services.clone(), terms, initial, GATEWAY_TICK_MS);
        tokio::spawn(front.run(std::future::pending()));
        // There is a first one in every run.
        let asks = self.health.clone().attend(self.services.clone(), FragmentId(0));
        let (tells, told) = (tell(self.health.clone(), actor.clone()), actor.clone());
        // Others may use what this process shares when its part is over.
        tokio::spawn(async move {
            tokio::select! {
                () = asks => {}
                () = tells => {}
                () = told.gone() => {}
            }
        });
        let (lost, is_lost) = oneshot::channel();
        tokio::spawn(async move {
            while let Some(input) = inputs.recv().await {
                let banned = banned(&guests, &input).await;
                if !actor.tell(Command::Input(input)).await {
                    return;
                }
                if let Some(fingerprint) = banned {
                    actor.tell(Command::Input(Input::Ban(fingerprint))).await;
                }
            }
            // Nobody waits for it if the actor has ended too.
            let _ = lost.send(());
        });
        Ok((syncer.led_elsewhere(self.process.0), said, is_lost))
    }
}

/// Tells the actor how what stands between the processes does, whenever that changes.
async fn tell(health: Health, actor: ActorHandle) {
    let mut told = None;
    loop {
        let trouble = health.trouble();
        if trouble != told {
            let fault = trouble.map(|trouble| trouble.to_string().into());
            if !actor.tell(Command::Served(fault)).await {
                return;
            }
            told = trouble;
        }
        sleep(LOOK_EVERY).await;
    }
}

/// The key of whoever is taken in by `input`, if it was banned while it waited for that: so long that who looks for the
/// banned among those inside may have looked before.
async fn banned(guests: &Arc<Guests>, input: &Input) -> Option<Fingerprint> {
    let Input::Introduced { hello, .. } = input else { return None };
    let (guests, fingerprint) = (Arc::clone(guests), hello.identity.fingerprint());
    let asked = tokio::task::spawn_blocking(move || guests.is_banned(fingerprint)).await;
    (!matches!(asked, Ok(Ok(false)))).then_some(fingerprint)
}

fn no_code() -> ServerError {
    ServerError::Internal { what: "no code for the run".to_owned() }
}

/// On how many of `bus` each record is to be: it outlives one of three servers, and of two it would outlive none.
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

/// Looks at what stands between the processes of a run with these fragments, and leaves it as it is.
///
/// # Errors
/// `Config`: this program cannot.
#[cfg(feature = "cluster")]
pub(crate) async fn look(
    bus: Vec<String>,
    blobs: String,
    prefix: String,
    fragments: &[FragmentId],
) -> Result<Findings, ServerError> {
    Ok(archipelago_cluster::look(&servers(bus, blobs, prefix), fragments).await)
}

#[cfg(not(feature = "cluster"))]
async fn connect(_: Vec<String>, _: String, _: String, _: &Shared) -> Result<Services, ServerError> {
    Err(of_one_machine())
}

#[cfg(not(feature = "cluster"))]
#[expect(clippy::unused_async, reason = "the same as with the feature")]
pub(crate) async fn look(
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
