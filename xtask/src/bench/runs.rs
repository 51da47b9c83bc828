//! Figures of whole runs: short demos over real sockets.

use std::{env, process::Command};

use serde_json::{Value, json};

/// Limit: bits on the socket per parameter and round, each way (design, section 10).
const BITS_MAX: f64 = 4.25;

/// Limits: bytes per parameter, as `f32` times the number of copies that each side needs.
const SYNCER_BYTES: u64 = 5 * 4;
const LEARNER_BYTES: u64 = 6 * 4;

/// Measures bits per parameter each way in a run of two learners.
pub fn wire() -> Result<Value, String> {
    let run = demo(&["--preset", "small", "--learners", "2", "--for", "20s"])?;
    let within =
        ["bits_per_param_up", "bits_per_param_down"].iter().all(|way| run[way].as_f64() <= Some(BITS_MAX));
    Ok(json!({
        "bits_per_param_up": run["bits_per_param_up"],
        "bits_per_param_down": run["bits_per_param_down"],
        "bits_per_param_max": BITS_MAX,
        "within": within,
        "bytes_up": run["bytes_up"],
        "bytes_down": run["bytes_down"],
        "rounds": run["rounds"],
        "params": run["params"],
    }))
}

/// Measures the memory of both programs for two sizes. The limit does not cover fragments in flight, activations, the
/// program itself and its data; `beyond` is the difference.
pub fn memory() -> Result<Value, String> {
    let mut rows = Vec::new();
    for preset in ["small", "medium"] {
        let run = demo(&["--preset", preset, "--learners", "1", "--for", "30s"])?;
        let params = run["params"].as_u64().unwrap_or(0);
        for (program, bar) in [("syncer", SYNCER_BYTES), ("learner", LEARNER_BYTES)] {
            let peak = run[format!("peak_rss_{program}_bytes")].as_u64().unwrap_or(0);
            rows.push(json!({
                "preset": preset,
                "params": params,
                "program": program,
                "peak_mb": peak as f64 / 1e6,
                "bar_mb": (bar * params) as f64 / 1e6,
                "beyond_mb": (peak as f64 - (bar * params) as f64) / 1e6,
            }));
        }
    }
    Ok(json!({ "memory": rows }))
}

/// Returns the figures of a demo with these flags, whether or not its loss fell.
fn demo(flags: &[&str]) -> Result<Value, String> {
    let mut command = Command::new(env::current_exe().map_err(|error| error.to_string())?);
    command.args(["demo", "--release", "--headless", "--json"]).args(flags);
    let run = super::last_line(command)?;
    if run["rounds"].as_u64().is_some_and(|rounds| rounds > 0) {
        Ok(run)
    } else {
        Err(format!("no round: {run}"))
    }
}
