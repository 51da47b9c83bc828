//! Scenarios that consist of one call of another program: the program `bench`, a short demo, Chromium, the simulator.

use std::env;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::judge;
use crate::cargo::{RELEASE_PROGRAMS, build, cargo, command_line, program as built, root};

/// Limit of the bits on the socket per parameter and round, each way.
const BITS_MAX: f64 = 4.25;
/// Limit of the syncer's bytes per parameter: the size of an `f32` times the number of copies that it needs.
const SYNCER_BYTES: u64 = 5 * 4;
/// The same limit for a learner.
const LEARNER_BYTES: u64 = 6 * 4;

/// Runs the program `bench` for `name`. It is a separate program so that `cargo xtask` builds quickly.
pub fn program(name: &str) -> Result<Value, String> {
    let mut command =
        cargo(&["run", "--release", "--quiet", "-p", "xtask", "--features", "bench", "--bin", "bench"]);
    command.args(["--", name]).stderr(Stdio::inherit());
    last_line(command)
}

/// Measures bits per parameter each way in a run of two learners.
pub fn wire() -> Result<Value, String> {
    let run = demo(&["--preset", "small", "--learners", "2", "--for", "20s"])?;
    let [up, down] = ["bits_per_param_up", "bits_per_param_down"].map(|way| &run[way]);
    let figures = json!({
        "bits_per_param_up": up,
        "bits_per_param_down": down,
        "bits_per_param_max": BITS_MAX,
        "bytes_up": run["bytes_up"],
        "bytes_down": run["bytes_down"],
        "rounds": run["rounds"],
        "params": run["params"],
    });
    let is_met = |bits: &Value| bits.as_f64() <= Some(BITS_MAX);
    let limits = [("bits_per_param_up", is_met(up)), ("bits_per_param_down", is_met(down))];
    Ok(judge(figures, &limits))
}

/// Measures the memory of both programs for two model sizes. The limit `bar_mb` covers the copies of the parameters
/// only, not fragments in flight, activations, the program itself and its data; `beyond_mb` is the excess.
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
    let run = last_line(command)?;
    match run["rounds"].as_u64() {
        Some(1..) => Ok(run),
        _ => Err(format!("the demo merged no round: {run}")),
    }
}

/// Builds pages and programs for delivery, and measures them in Chromium.
pub fn browser() -> Result<Value, String> {
    crate::web::site()?;
    let syncer = built(&build(RELEASE_PROGRAMS)?, "syncer-server")?;
    let folder = syncer.parent().ok_or("the build has no folder of programs")?;
    let mut command = crate::tools::program("node");
    command.arg(root().join("web-demo/tests/bench.mjs")).env("ARCHIPELAGO_BIN", folder);
    command.stderr(Stdio::inherit());
    last_line(command)
}

/// Simulates hostile learners, with all randomness drawn from `seed`. Returns all cells of the table.
pub fn poison(seed: u64) -> Result<Value, String> {
    let package = ["--package", "archipelago-experiments", "--bin", "simulate"];
    let mut command = cargo(&["run", "--release", "--quiet"]);
    let plan = ["--", "run", "--config", "tests/experiments/plans/attack-arms.toml", "--json", "--seed"];
    command.args(package).args(plan).arg(seed.to_string()).stderr(Stdio::inherit());
    Ok(json!({ "cells": last_line(command)? }))
}

/// Parses the JSON in the last line that `command` prints.
fn last_line(mut command: Command) -> Result<Value, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(stdout.lines().last().unwrap_or_default())
        .map_err(|_| format!("`{}` printed no figures ({})", command_line(&command), output.status))
}
