//! What a syncer offers over HTTP: paths and header names, once for both sides.
//!
//! A path with `{…}` in it is a route: each brace stands for one value. The server gives routes to its router as they
//! are; a learner fills them in with [`fragment_path`], [`shard_path`] and their like.

use std::fmt::Display;

use super::{FragmentId, RunId, Version};

/// The page on which a run is watched.
pub const DASHBOARD: &str = "/dashboard";
/// The page on which a run is broken on purpose.
pub const TEACH: &str = "/teach";
/// The same, as files on a static host are called and pages call each other.
pub const TEACH_FILE: &str = "/teach.html";
/// The page on large machines.
pub const SCALE: &str = "/scale";
/// The same, as [`TEACH_FILE`] is.
pub const SCALE_FILE: &str = "/scale.html";
/// The pages beside `/`: what is before them in a link is the address of the run or of the server.
pub const PAGES: [&str; 5] = [DASHBOARD, TEACH, TEACH_FILE, SCALE, SCALE_FILE];

/// Answers 200 while the process lives.
pub const HEALTH: &str = "/healthz";
/// Answers 200 while learners may join.
pub const READY: &str = "/readyz";
/// Figures for Prometheus.
pub const METRICS: &str = "/metrics";
/// The runs of this server, as JSON. What is below it leads to the run that is named next.
pub const RUNS: &str = "/v1/runs";
/// The run as it is now, as JSON.
pub const STATUS: &str = "/v1/status";
/// Some learners of all, as JSON.
pub const LEARNERS: &str = "/v1/learners";
/// How the run went, as JSON.
pub const SERIES: &str = "/v1/series";
/// The last rounds, as JSON.
pub const ROUNDS: &str = "/v1/rounds";
/// The run's log: who came and went, and what went wrong, as JSON.
pub const LOG: &str = "/v1/log";
/// The run's settings, and which of them may change while it goes, as JSON.
pub const SETTINGS: &str = "/v1/settings";
/// The run as it goes, as server-sent events.
pub const EVENTS: &str = "/v1/events";
/// The model to take home, as a ZIP archive.
pub const EXPORT: &str = "/v1/export.zip";
/// The curves of the run, a line of JSON for each of their points.
pub const HISTORY: &str = "/v1/runs/{run}/history.jsonl";
/// The run on one page that needs nothing but itself.
pub const REPORT: &str = "/v1/runs/{run}/report.html";
/// The learners' WebSocket; `WIRE.md` says what is spoken there.
pub const SOCKET: &str = "/v1/ws";
/// Θ̂ of one fragment, two bytes a value: little-endian 16-bit floats.
pub const FRAGMENT: &str = "/v1/runs/{run}/fragments/{fragment}/{version}";
/// The tokens of one shard.
pub const SHARD: &str = "/v1/runs/{run}/shards/{index}";
/// A part of the weights that nobody trains.
pub const FROZEN: &str = "/v1/runs/{run}/frozen/{part}";
/// The windows that nobody trains on, for whoever measures the held-out loss: tokens of 4 bytes each.
pub const HELD_OUT: &str = "/v1/runs/{run}/held-out";
/// The model's shape, as JSON: what it takes to compute with the parameters.
pub const MODEL: &str = "/v1/runs/{run}/model";
/// The tokens of the text in the body, as a list of numbers.
pub const TOKENS: &str = "/v1/runs/{run}/tokens";
/// The text of the tokens in the body, a list of numbers.
pub const TEXT: &str = "/v1/runs/{run}/text";
/// Collects everyone's last progress, then ends the run. Like everything under `/v1/admin/`, for the owner only.
pub const ADMIN_FINISH: &str = "/v1/admin/finish";
/// Begins no round and grants no lease until [`ADMIN_RESUME`].
pub const ADMIN_PAUSE: &str = "/v1/admin/pause";
/// Goes on after [`ADMIN_PAUSE`].
pub const ADMIN_RESUME: &str = "/v1/admin/resume";
/// Changes settings of the run while it goes.
pub const ADMIN_SETTINGS: &str = "/v1/admin/settings";
/// Lets one learner train for a part of its time only.
pub const ADMIN_PACE: &str = "/v1/admin/learners/{id}/pace";
/// Sends one learner away for a while.
pub const ADMIN_DROP: &str = "/v1/admin/learners/{id}/drop";

/// The personal invites of the run, for its owner only, who makes them here too.
pub const INVITES: &str = "/v1/invites";
/// Revokes one invite.
pub const INVITE_REVOKE: &str = "/v1/invites/{id}/revoke";
/// The banned, for the owner only, who bans here too.
pub const BANS: &str = "/v1/bans";
/// Lifts one ban.
pub const BAN_LIFT: &str = "/v1/bans/{fingerprint}/lift";

/// The request header that shows the invite when parameters and data are fetched.
pub const INVITE_HEADER: &str = "x-archipelago-invite";
/// The request header that shows the nonce of a connection that stands, in place of the invite.
pub const PASS_HEADER: &str = "x-archipelago-pass";
/// The response header that names the version of the fragment in the body.
pub const VERSION_HEADER: &str = "x-archipelago-version";

/// What an invite begins with in the part of a link after `#`, which no request carries.
pub const INVITE_KEY: &str = "invite=";

/// The path of Θ̂ of `fragment`, at `version` or later.
#[must_use]
pub fn fragment_path(run: RunId, fragment: FragmentId, version: Version) -> String {
    fill(FRAGMENT, &[&run, &fragment, &version])
}

/// The entity tag of Θ̂ of `fragment` at `version`, quotes included; `run` as in paths.
#[must_use]
pub fn fragment_tag(run: impl Display, fragment: FragmentId, version: Version) -> String {
    format!("\"{run}-{fragment}-{version}\"")
}

/// The path of the shard with this index.
#[must_use]
pub fn shard_path(run: RunId, index: u32) -> String {
    fill(SHARD, &[&run, &index])
}

/// The path of a part of the frozen weights.
#[must_use]
pub fn frozen_path(run: RunId, part: u32) -> String {
    fill(FROZEN, &[&run, &part])
}

/// The path of the held-out windows.
#[must_use]
pub fn held_out_path(run: RunId) -> String {
    fill(HELD_OUT, &[&run])
}

/// `route` with each `{…}` replaced by the next of `values`.
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

    /// Learners and caches out there know these; see `WIRE.md` before you change one.
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
