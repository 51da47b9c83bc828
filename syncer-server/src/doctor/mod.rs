//! Checks of this machine, and of the services that the processes of a cluster share, one line each.

mod cluster;

use std::path::Path;

use archipelago_cli::{Bytes, available_bytes};

use crate::config::{Role, ServeConfig};
use crate::errors::ServerError;
use crate::listener;
use crate::{bind, corpus, prepare};

/// Memory below which no run works, in bytes.
const MEMORY_MIN: u64 = 64 << 20;

/// The result of one check.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Name of the check.
    pub what: &'static str,
    /// True if the check succeeded.
    pub works: bool,
    /// Result in words; if the check failed, with a remedy.
    pub found: String,
}

/// Checks everything that `serve` with these settings needs.
pub async fn examine(config: &ServeConfig) -> Vec<Finding> {
    let mut findings = vec![cores(), memory()];
    // Learners do not connect to an owner process.
    if config.server.cluster.role.is_none_or(Role::faces) {
        findings.extend([sockets(config), address(config).await]);
    }
    findings.extend([data(config), disk(config)]);
    findings.extend(adapters(config));
    findings.extend(cluster::examine(config).await);
    if config.server.tls_cert.is_some() || config.server.tls_key.is_some() {
        let found = listener::check_certificate(config)
            .map(|()| "the certificate and its key belong together".into());
        findings.push(finding("tls", found));
    }
    findings
}

/// Returns an error if one of `findings` failed.
///
/// # Errors
/// `Unhealthy`.
pub fn judge(findings: &[Finding]) -> Result<(), ServerError> {
    let failed = findings.iter().filter(|finding| !finding.works).count() as u32;
    match failed {
        0 => Ok(()),
        _ => Err(ServerError::Unhealthy { failed, checks: findings.len() as u32 }),
    }
}

fn cores() -> Finding {
    let cores = std::thread::available_parallelism();
    let found = cores.map_or_else(|error| format!("unknown ({error})"), |cores| cores.to_string());
    Finding { what: "cores", works: true, found }
}

fn memory() -> Finding {
    match available_bytes() {
        Some(bytes) => {
            let found = format!("{} available", Bytes(bytes));
            Finding { what: "memory", works: bytes >= MEMORY_MIN, found }
        }
        None => Finding { what: "memory", works: true, found: "unknown on this system".into() },
    }
}

/// Checks the limit on sockets. At least 64 connections are needed, or `learners_max` if that is less; excess learners
/// are asked to come later.
fn sockets(config: &ServeConfig) -> Finding {
    let limit = listener::descriptor_limit();
    let allowed = listener::connections_within(limit, config.server.connections_max);
    let learners_max = config.live.learners_max;
    let found = match limit {
        Some(limit) if allowed < learners_max => format!(
            "{allowed} connections at once, because the system's limit is {limit} open files: raise that (ulimit -n, \
             or LimitNOFILE= of systemd) above --learners-max {learners_max}"
        ),
        _ => format!("{allowed} connections at once"),
    };
    Finding { what: "sockets", works: allowed >= learners_max.min(64), found }
}

async fn address(config: &ServeConfig) -> Finding {
    finding("address", bind(config).await.map(|_| format!("{} is free", config.server.listen)))
}

fn data(config: &ServeConfig) -> Finding {
    let found = corpus::read(config).map(|source| format!("{} of text", Bytes(source.bytes())));
    finding("data", found)
}

/// Describes the trained adapters, if any.
fn adapters(config: &ServeConfig) -> Option<Finding> {
    prepare::adapters(config).transpose().map(|found| finding("model", found))
}

fn disk(config: &ServeConfig) -> Finding {
    let dir = &config.server.dir;
    let probe = || {
        // The folder may not exist yet; then its nearest existing ancestor is checked.
        let parent = dir.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("."));
        crate::store::temporary().tempfile_in(parent).map_err(crate::store::disk("write", parent))?;
        Ok(format!("{} is writable", dir.display()))
    };
    let written = finding("disk", probe());
    // If the run itself is faulty, `validate` reports it.
    let room = if written.works { prepare::room(config).ok() } else { None };
    match room {
        Some(room) => Finding {
            works: room.is_enough(),
            found: format!("{}; {}", written.found, room.describe()),
            ..written
        },
        None => written,
    }
}

fn finding(what: &'static str, found: Result<String, ServerError>) -> Finding {
    match found {
        Ok(found) => Finding { what, works: true, found },
        Err(error) => Finding { what, works: false, found: error.to_string() },
    }
}
