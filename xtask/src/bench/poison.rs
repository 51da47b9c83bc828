//! Effect of hostile learners on a run: the table of `simulate poison`, in virtual time.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::cargo::cargo;

/// Returns all cells of the table, with all randomness drawn from `seed`.
///
/// # Errors
/// A message if the program could not be built or run.
pub fn run(seed: u64) -> Result<Value, String> {
    let mut command = cargo(&["run", "--release", "--quiet", "-p", "archipelago-sim", "--bin", "simulate"]);
    command.args(["--", "poison", "--json", "--seed", &seed.to_string()]).stderr(Stdio::inherit());
    Ok(json!({ "cells": super::last_line(command)? }))
}
