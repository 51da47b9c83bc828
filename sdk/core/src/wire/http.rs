//! HTTP interface of a syncer: paths and header names, shared by both sides.
//!
//! A path with `{…}` is a route; each pair of braces stands for one value. The server passes routes to its router
//! unchanged. A learner fills them in with [`fragment_path`], [`shard_path`] and similar functions.

use std::fmt::Display;

use super::{FragmentId, RunId, Version};

/// Dashboard of a run.
pub const DASHBOARD: &str = "/dashboard";
/// Lesson page, on which visitors damage a run on purpose.
pub const TEACH: &str = "/teach";
/// Lesson page under its file name, for static hosts and for links between pages.
pub const TEACH_FILE: &str = "/teach.html";
/// Page about large runs.
pub const SCALE: &str = "/scale";
/// Page about large runs under its file name, for static hosts and for links between pages.
pub const SCALE_FILE: &str = "/scale.html";
/// Paths of all pages except `/`. In a link to a page, the part before this path is the address of the run or the
/// server.
pub const PAGES: [&str; 5] = [DASHBOARD, TEACH, TEACH_FILE, SCALE, SCALE_FILE];

/// Liveness check: 200 while the process lives.
pub const HEALTH: &str = "/healthz";
/// Readiness check: 200 while learners may join.
pub const READY: &str = "/readyz";
/// Metrics for Prometheus.
pub const METRICS: &str = "/metrics";
/// Runs of this server, as JSON. Paths below it lead to a single run.
pub const RUNS: &str = "/v1/runs";
/// Current status of the run, as JSON.
pub const STATUS: &str = "/v1/status";
/// One page of the paginated list of learners, as JSON.
pub const LEARNERS: &str = "/v1/learners";
/// Time series of the run, as JSON.
pub const SERIES: &str = "/v1/series";
/// Most recent rounds, as JSON.
pub const ROUNDS: &str = "/v1/rounds";
/// Log of the run, as JSON: arrivals, departures and faults.
pub const LOG: &str = "/v1/log";
/// Settings of the run, as JSON, and which of them may change while it runs.
pub const SETTINGS: &str = "/v1/settings";
/// Live view of the run, as server-sent events.
pub const EVENTS: &str = "/v1/events";
/// Trained model, as a ZIP archive.
pub const EXPORT: &str = "/v1/export.zip";
/// Curves of the run, one line of JSON for each point.
pub const HISTORY: &str = "/v1/runs/{run}/history.jsonl";
/// Self-contained report page of the run.
pub const REPORT: &str = "/v1/runs/{run}/report.html";
/// WebSocket of the learners; `WIRE.md` defines the protocol.
pub const SOCKET: &str = "/v1/ws";
/// Θ̂ of one fragment: a 16-bit little-endian float for each value.
pub const FRAGMENT: &str = "/v1/runs/{run}/fragments/{fragment}/{version}";
/// The tokens of one shard.
pub const SHARD: &str = "/v1/runs/{run}/shards/{index}";
/// One part of the frozen weights.
pub const FROZEN: &str = "/v1/runs/{run}/frozen/{part}";
/// Held-out windows, for learners that measure the held-out loss: 4 bytes for each token.
pub const HELD_OUT: &str = "/v1/runs/{run}/held-out";
/// Shape of the model, as JSON: the settings needed to run it with the parameters.
pub const MODEL: &str = "/v1/runs/{run}/model";
/// Encodes the text in the body as a list of token numbers.
pub const TOKENS: &str = "/v1/runs/{run}/tokens";
/// Decodes the list of token numbers in the body to text.
pub const TEXT: &str = "/v1/runs/{run}/text";
/// Ends the run after the last progress of all learners is collected. Paths under `/v1/admin/` are for the owner
/// only.
pub const ADMIN_FINISH: &str = "/v1/admin/finish";
/// Pauses the run until [`ADMIN_RESUME`]: no new rounds, no leases, no training.
pub const ADMIN_PAUSE: &str = "/v1/admin/pause";
/// Resumes the run after [`ADMIN_PAUSE`].
pub const ADMIN_RESUME: &str = "/v1/admin/resume";
/// Changes settings of the run while it runs.
pub const ADMIN_SETTINGS: &str = "/v1/admin/settings";
/// Limits the part of the time in which one learner trains.
pub const ADMIN_PACE: &str = "/v1/admin/learners/{id}/pace";
/// Disconnects one learner for a while.
pub const ADMIN_DROP: &str = "/v1/admin/learners/{id}/drop";

/// Personal invites of the run: list and creation, for the owner only.
pub const INVITES: &str = "/v1/invites";
/// Revokes one invite.
pub const INVITE_REVOKE: &str = "/v1/invites/{id}/revoke";
/// Banned keys: list and creation, for the owner only.
pub const BANS: &str = "/v1/bans";
/// Lifts one ban.
pub const BAN_LIFT: &str = "/v1/bans/{fingerprint}/lift";

/// Request header with the invite, for downloads of parameters and data.
pub const INVITE_HEADER: &str = "x-archipelago-invite";
/// Request header with the nonce of an open connection, instead of the invite.
pub const PASS_HEADER: &str = "x-archipelago-pass";
/// Response header with the version of the fragment in the body.
pub const VERSION_HEADER: &str = "x-archipelago-version";

/// Prefix of an invite in the fragment of a link, the part after `#`, which browsers never send.
pub const INVITE_KEY: &str = "invite=";

/// Returns the path of Θ̂ of `fragment`, at `version` or later.
#[must_use]
pub fn fragment_path(run: RunId, fragment: FragmentId, version: Version) -> String {
    fill(FRAGMENT, &[&run, &fragment, &version])
}

/// Returns the entity tag of Θ̂ of `fragment` at `version`, quotes included. `run` is formatted as in paths.
#[must_use]
pub fn fragment_tag(run: impl Display, fragment: FragmentId, version: Version) -> String {
    format!("\"{run}-{fragment}-{version}\"")
}

/// Returns the path of the shard with this index.
#[must_use]
pub fn shard_path(run: RunId, index: u32) -> String {
    fill(SHARD, &[&run, &index])
}

/// Returns the path of a part of the frozen weights.
#[must_use]
pub fn frozen_path(run: RunId, part: u32) -> String {
    fill(FROZEN, &[&run, &part])
}

/// Returns the path of the held-out windows.
#[must_use]
pub fn held_out_path(run: RunId) -> String {
    fill(HELD_OUT, &[&run])
}

/// Replaces each `{…}` in `route` with the next of `values`.
fn fill(route: &str, values: &[&dyn Display]) -> String {
    let mut parts = route.split('{');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for (part, value) in parts.zip(values) {
        let rest = part.split_once('}').map_or("", |(_, rest)| rest);
        path.push_str(&format!("{value}{rest}"));
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deployed learners and caches depend on these paths; see `WIRE.md` before you change one.
    #[test]
    fn paths_are_frozen() {
        let run = RunId(0xab);
        assert_eq!(
            fragment_path(run, FragmentId(7), Version(12)),
            "/v1/runs/00000000000000ab/fragments/7/12"
        );
        assert_eq!(fragment_tag(run, FragmentId(7), Version(12)), "\"00000000000000ab-7-12\"");
        assert_eq!(shard_path(run, 3), "/v1/runs/00000000000000ab/shards/3");
        assert_eq!(frozen_path(run, 5), "/v1/runs/00000000000000ab/frozen/5");
        assert_eq!(held_out_path(run), "/v1/runs/00000000000000ab/held-out");
        assert_eq!(SOCKET, "/v1/ws");
        assert_eq!((INVITE_HEADER, VERSION_HEADER), ("x-archipelago-invite", "x-archipelago-version"));
    }
}
