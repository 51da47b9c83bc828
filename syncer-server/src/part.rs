//! A part in a run on several machines: this process joins the others, leads rounds, and faces learners for them.

use std::future::Future;

use archipelago_cluster::{Facing, Findings, OwnerSettings, Services, front, new_process, own};
use archipelago_core::cluster::{GatewayId, GatewayTerms, OwnerTerms, ProcessId};
use archipelago_core::diloco::syncer::{Syncer, Upward};
use archipelago_core::wire::FragmentId;
use tokio::sync::mpsc;

use crate::actor::{ActorHandle, Command};
use crate::config::{Part, Place, Role};
use crate::errors::ServerError;

/// A process that is silent for so long leads no more, in milliseconds.
const LEASE_MS: u64 = 3_000;
/// Owners look at their watch after so many milliseconds…
const OWNER_TICK_MS: u64 = 20;
/// …and gateways at the tape, if nobody told them of anything.
const GATEWAY_TICK_MS: u64 = 500;

/// This process among the others.
pub(crate) struct Membership {
    role: Role,
    process: ProcessId,
    services: Services,
}

impl Membership {
    /// Joins the others of the run of `syncer`.
    ///
    /// # Errors
    /// `Cluster`: a service cannot be used.
    pub(crate) async fn join(part: Part, syncer: &Syncer) -> Result<Self, ServerError> {
        let Part { role, place } = part;
        let services = match place {
            Place::Here(within) => within.0,
            Place::There { bus, blobs, prefix } => connect(bus, blobs, prefix, syncer).await?,
        };
        let process = new_process();
        tracing::info!(?role, process = process.0, run = %syncer.run(), "joined the cluster");
        Ok(Self { role, process, services })
    }

    /// Leads rounds until `stop` is ready, if that is its part, from the states that `syncer` begins in.
    pub(crate) fn lead(
        &self,
        syncer: &Syncer,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let fragments = OwnerTerms::of(syncer, self.process).filter(|_| self.role.leads());
        let (process, services) = (self.process, self.services.clone());
        async move {
            if let Some(fragments) = fragments {
                let settings =
                    OwnerSettings { process, fragments, lease_ms: LEASE_MS, tick_ms: OWNER_TICK_MS };
                own(services, settings, stop).await;
            }
        }
    }

    /// Has `syncer` face learners for those who lead, and hands `actor` what they say. Gives the way to them, and
    /// ends with that.
    ///
    /// # Errors
    /// `Internal`: the code of the run cannot be used.
    pub(crate) fn face(
        &self,
        syncer: Syncer,
        actor: ActorHandle,
    ) -> Result<(Syncer, mpsc::UnboundedSender<Upward>), ServerError> {
        // Gateways are told apart by a number of 32 bits, which two have by chance once in billions of pairs.
        let gateway = GatewayId(self.process.0 as u32);
        let terms = GatewayTerms::of(&syncer, gateway);
        let terms = terms.ok_or_else(|| ServerError::Internal { what: "no code for the run".to_owned() })?;
        let initial = syncer.states().cloned().collect();
        let (front, Facing { said, mut inputs }) =
            front(self.services.clone(), terms, initial, GATEWAY_TICK_MS);
        tokio::spawn(front.run(std::future::pending()));
        tokio::spawn(async move {
            while let Some(input) = inputs.recv().await {
                if !actor.tell(Command::Input(input)).await {
                    return;
                }
            }
            tracing::error!("nothing is heard of the other processes any more: start this one anew");
        });
        Ok((syncer.led_elsewhere(self.process.0), said))
    }
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
    syncer: &Syncer,
) -> Result<Services, ServerError> {
    let fragments = syncer.fragments().ids().collect();
    let opened = archipelago_cluster::open(servers(bus, blobs, prefix), syncer.run(), fragments).await;
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
async fn connect(_: Vec<String>, _: String, _: String, _: &Syncer) -> Result<Services, ServerError> {
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
