//! What this program is when it is started as a part of the cluster. It ends when its input does.

use std::path::PathBuf;
use std::sync::Arc;

use archipelago_cluster::{
    GatewaySettings, OwnerSettings, Servers, Services, StoreSettings, gateway, new_process, open, own,
};
use archipelago_core::cluster::GatewayId;
use archipelago_core::wire::RunId;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::note;
use crate::support::door;
use crate::support::run::Run;

/// Before the orders.
pub const FLAG: &str = "--play";
/// How long a lease lasts, in milliseconds.
pub const LEASE_MS: u64 = 3_000;

/// What a part plays, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Orders {
    pub part: Part,
    pub seed: u64,
    pub nats: Vec<String>,
    pub place: String,
    pub variables: Vec<(String, String)>,
}

/// A part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Part {
    /// Leads fragments, and notes what it is told in this file.
    Owner(PathBuf),
    /// Stands before learners, on this port.
    Gateway(u32, u16),
}

/// The run of a storm.
pub fn run(seed: u64) -> Run {
    Run::new(seed, 3, 200)
}

/// The services of a storm.
pub async fn services(orders: &Orders) -> Services {
    let Orders { nats, place, variables, seed, .. } = orders;
    loop {
        let blobs = StoreSettings { place: place.clone(), variables: variables.clone() };
        let servers = Servers { nats: nats.clone(), replicas: 3, blobs, prefix: "storm".to_owned() };
        match open(servers, RunId(*seed), run(*seed).ids()).await {
            Ok(services) => return services,
            Err(error) if error.is_passing() => eprintln!("{error}"),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Plays a part until its input ends.
pub async fn play(orders: Orders) {
    let (services, run) = (services(&orders).await, Arc::new(run(orders.seed)));
    let stop = input_ends();
    match orders.part {
        Part::Owner(notes) => {
            let services = note::noting(services, &notes);
            let (process, fragments, beginnings) = (new_process(), run.owner(), run.beginnings());
            let (lease_ms, tick_ms, orders) = (LEASE_MS, 50, run.orders());
            let settings = OwnerSettings {
                process,
                fragments,
                beginnings,
                lead_max: usize::MAX,
                lease_ms,
                tick_ms,
                orders,
            };
            own(services, settings, stop).await;
        }
        Part::Gateway(id, port) => {
            let listener = TcpListener::bind(("127.0.0.1", port)).await.expect("its port");
            let settings = GatewaySettings { fragments: run.gateway(GatewayId(id)), tick_ms: 200 };
            let (running, learners) = gateway(services, settings);
            tokio::select! {
                () = running.run(stop) => {}
                () = door::keep(run, listener, learners) => {}
            }
        }
    }
}

/// Whoever started this program has ended, or wants it to end.
async fn input_ends() {
    let (ended, end) = oneshot::channel::<()>();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        drop(ended);
    });
    let _ = end.await;
}
