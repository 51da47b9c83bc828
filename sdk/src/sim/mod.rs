//! A seeded world in virtual time around the real syncer and learner cores.
//!
//! Nothing of the method is written twice here: a [`World`] is the shells' part only, with machines,
//! links and clocks that obey a seed instead of physics. It drives `diloco::Syncer` and
//! `diloco::Learner` exactly as the server and the native learner do, through encoded messages, and
//! watches from outside that what must never happen does not: see [`Violation`].
//!
//! ```
//! use archipelago::sim::{MachineSpec, World};
//!
//! let mut world = World::of_toys(1, vec![MachineSpec::default(); 3]);
//! world.run_for(10_000);
//! world.kill(2);
//! world.run_for(10_000);
//! world.check()?;
//! let status = world.status().expect("the syncer is up");
//! assert_eq!(status.live, 2);
//! assert!(status.participation > 0.9);
//! # Ok::<(), archipelago::sim::Violation>(())
//! ```

mod audit;
pub mod bandwidth;
mod books;
mod drift;
mod drive;
mod fault;
mod faults;
pub mod goodput;
mod host;
mod link;
mod machine;
mod net;
mod process;
mod queue;
pub mod regions;
mod rng;
pub mod scavenging;
mod spec;
mod status;
mod toy;
mod trace;
mod trial;
mod violation;
mod world;

pub use fault::{Fault, Poison, Storm};
pub use link::LinkSpec;
pub use process::MakeTrainer;
pub use rng::Rng;
pub use spec::{MachineSpec, ShellSpec, WorldSpec};
pub use status::MachineStatus;
pub use toy::Toy;
pub use trace::{Cargo, Parcel, Trace};
pub use trial::TrialError;
pub use violation::Violation;
pub use world::World;

#[cfg(test)]
mod tests {
    use super::*;

    fn world(seed: u64, machines: usize) -> World {
        World::of_toys(seed, vec![MachineSpec::default(); machines])
    }

    #[test]
    fn a_world_without_faults_trains_and_merges() {
        let mut world = world(1, 3);
        world.run_for(60_000);
        world.check().unwrap();
        let status = world.status().unwrap();
        assert!(status.participation > 0.97, "{status:#?}");
        assert!(status.rounds > 250, "{status:#?}");
        let loss = Toy::loss(&world.syncer().unwrap().theta().unwrap());
        assert!(loss < 0.05, "{loss}");
    }

    #[test]
    fn one_seed_leads_to_one_history() {
        let digest = |seed| {
            let mut world = world(seed, 3);
            world.run_for(5_000);
            world.kill(1);
            world.run_for(5_000);
            world.digest()
        };
        assert_eq!(digest(5), digest(5));
        assert_ne!(digest(5), digest(6));
    }
}
