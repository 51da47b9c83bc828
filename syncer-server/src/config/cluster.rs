//! Settings of a run on several machines: the role of this process, and the addresses of shared services.

use archipelago_cluster::Services;
use archipelago_core::diloco::checksum;
use archipelago_core::wire::{RunId, RunSpec};
use serde::Serialize;

use crate::errors::ServerError;

/// Role of a process in a run on several machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Serves learners, and leads no fragments.
    Gateway,
    /// Leads rounds of fragments, and serves no learners.
    Owner,
    /// Serves learners, and leads rounds of fragments.
    All,
}

/// Role of this process in a run on several machines.
#[derive(Clone, Debug, clap::Args, Serialize)]
#[command(next_help_heading = "Cluster")]
#[serde(rename_all = "kebab-case")]
pub struct ClusterArgs {
    /// Role of this process in a run on several machines: a gateway serves learners, an owner leads rounds, all does
    /// both. All processes need the same settings and the same data; by default one process is the whole run
    #[arg(long, value_name = "ROLE", value_enum)]
    pub role: Option<Role>,
    /// NATS servers that connect these processes, as nats://HOST:4222, separated by commas; with three or more, three
    /// of them store each record
    #[arg(long, value_name = "URLS", value_delimiter = ',', hide_env_values = true)]
    #[serde(skip)]
    pub bus: Vec<String>,
    /// Storage for parameters, shared by these processes: s3://BUCKET/FOLDER with the usual AWS_ variables, or
    /// file:///FOLDER that all of them can reach
    #[arg(long, value_name = "PLACE")]
    pub blobs: Option<String>,
    /// Prefix of all names that this run uses on the bus and in the storage: lower-case letters, digits and -, at most
    /// 32 characters
    #[arg(long, value_name = "NAME", default_value = "archipelago")]
    pub cluster: String,
    /// Maximum number of fragments that this process leads at once, for a machine with little memory; by default there
    /// is no limit
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u16).range(1..))]
    pub lead_max: Option<u16>,
    #[allow(missing_docs, reason = "clap would take the words for help")]
    // Services that replace the servers, for programs that contain a whole cluster.
    #[arg(skip)]
    #[serde(skip)]
    pub within: Option<InProcessServices>,
}

/// In-process services that connect the processes of a cluster.
#[derive(Clone)]
pub struct InProcessServices(pub Services);

impl std::fmt::Debug for InProcessServices {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("within this program")
    }
}

/// Checked cluster settings of a process.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Role of the process.
    pub(crate) role: Role,
    /// Location of the shared services.
    pub(crate) place: Place,
    /// Largest number of fragments that the process leads at once.
    pub(crate) lead_max: usize,
}

/// Location of the services that connect the processes of a cluster.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// Services inside this program.
    Here(InProcessServices),
    /// External servers.
    There {
        /// Addresses of the NATS servers.
        bus: Vec<String>,
        /// Location of the parameters.
        blobs: String,
        /// Prefix of all names.
        prefix: String,
    },
}

impl Role {
    /// Returns true if the process serves learners.
    #[must_use]
    pub fn faces(self) -> bool {
        self != Self::Owner
    }

    /// Returns true if the process leads rounds.
    #[must_use]
    pub fn leads(self) -> bool {
        self != Self::Gateway
    }
}

impl ClusterArgs {
    /// Returns the number of the run that all processes with this cluster name and this `spec` share. Returns `None` if
    /// this process is a whole run.
    pub(crate) fn run(&self, spec: &RunSpec) -> Option<RunId> {
        let text = serde_json::to_string(spec).expect("plain data");
        self.role.map(|_| RunId(checksum(format!("{}\n{text}", self.cluster).as_bytes())))
    }

    /// Returns the cluster settings, or `None` if this process is a whole run.
    ///
    /// # Errors
    /// `Config`: the settings are incomplete.
    pub(crate) fn part(&self) -> Result<Option<Part>, ServerError> {
        let wrong = |why: &str| Err(ServerError::Config { why: why.to_owned() });
        let Some(role) = self.role else {
            return match self.bus.is_empty() && self.blobs.is_none() && self.lead_max.is_none() {
                true => Ok(None),
                false => {
                    wrong("--bus, --blobs and --lead-max are for a run on several machines: give --role too")
                }
            };
        };
        let place = match (&self.within, &self.blobs) {
            (Some(within), _) => Place::Here(within.clone()),
            (None, Some(blobs)) if !self.bus.is_empty() => {
                let (bus, blobs, prefix) = (self.bus.clone(), blobs.clone(), self.cluster.clone());
                Place::There { bus, blobs, prefix }
            }
            (None, _) => {
                return wrong(
                    "--role needs --bus with NATS servers and --blobs with a storage for parameters",
                );
            }
        };
        if !role.leads() && self.lead_max.is_some() {
            return wrong("--lead-max is for processes that lead: a gateway leads no fragments");
        }
        Ok(Some(Part { role, place, lead_max: self.lead_max.map_or(usize::MAX, usize::from) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_asked_for_as_a_whole() {
        let asked = |arguments: &[&str]| {
            let mut args = ["syncer-server", "serve"].to_vec();
            args.extend(arguments);
            match crate::config::parse(args.into_iter().map(Into::into)).unwrap().verb {
                crate::config::Verb::Serve(config) => {
                    config.server.cluster.part().map(|part| part.map(|it| it.role))
                }
                verb => panic!("{verb:?}"),
            }
        };
        assert_eq!(asked(&[]).unwrap(), None);
        let whole = ["--bus", "nats://one:4222,nats://two:4222", "--blobs", "file:///x"];
        for (name, role) in [("gateway", Role::Gateway), ("owner", Role::Owner), ("all", Role::All)] {
            let arguments = [&["--role", name], &whole[..]].concat();
            assert_eq!(asked(&arguments).unwrap(), Some(role), "{name}");
        }
        for (arguments, said) in [
            (&whole[..], "--role"),
            (&["--role", "all"], "--bus"),
            (&["--role", "all", "--bus", "nats://one"], "--blobs"),
            (&["--role", "all", "--blobs", "file:///x"], "--bus"),
            (&["--lead-max", "2"], "--role"),
            (
                &["--role", "gateway", "--bus", "nats://one", "--blobs", "file:///x", "--lead-max", "2"],
                "a gateway",
            ),
        ] {
            let error = asked(arguments).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
