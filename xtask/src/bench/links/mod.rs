//! Learners over far and thin links: real processes, connected through a link of a given rate and delay.
//!
//! Each cell of the grid is a separate run with a syncer, a near learner, and the same learner behind the link.

mod cell;
mod figures;
mod grid;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use self::cell::measure;
use self::grid::{Cell, Only, grid};
use super::processes::Programs;

/// What to measure, and with what.
#[derive(clap::Args)]
// The flags of `bench` already have a group of the default name.
#[group(skip)]
pub struct Args {
    /// Links: these cells alone, as PRESET, PRESET,MBIT/S or PRESET,MBIT/S,ROUND-TRIP-MS; `unlimited` is a rate too;
    /// may be repeated.
    #[arg(long, value_name = "CELL")]
    only: Vec<Only>,
    /// Links: seconds that both learners of a cell live [default: 45].
    #[arg(long)]
    seconds: Option<u32>,
    /// Links: text to train on, a file or a folder [default: the built-in grammar].
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Links, crash, storm, soak, load, scale, tape and trust: takes syncer-server and native-learner, and for scale
    /// islets if it is there, from here instead of building them.
    #[arg(long, value_name = "DIR")]
    prebuilt: Option<PathBuf>,
}

/// Seconds of a cell: enough for some hundred rounds with a near learner.
const SECONDS: u32 = 45;

impl Args {
    /// Returns true if any flag specific to `links` was given.
    pub fn any(&self) -> bool {
        !self.only.is_empty() || self.seconds.is_some() || self.data.is_some()
    }

    /// Returns true if a folder of programs was given.
    pub fn is_prebuilt(&self) -> bool {
        self.prebuilt.is_some()
    }

    /// Returns the folder of programs, if one was given.
    pub fn prebuilt(&self) -> Option<&Path> {
        self.prebuilt.as_deref()
    }

    /// Returns the programs to measure.
    ///
    /// # Errors
    /// A message if they could not be built, or are missing.
    pub fn programs(&self) -> Result<Programs, String> {
        self.prebuilt.as_deref().map_or_else(Programs::build, Programs::in_folder)
    }

    /// Returns the selected cells: the whole grid, or those of `--only`.
    fn cells(&self) -> Vec<Cell> {
        match self.only.is_empty() {
            true => grid(),
            false => self.only.iter().flat_map(Only::cells).collect(),
        }
    }
}

/// Measures the cells one by one, and prints each result at once.
///
/// # Errors
/// A message if the programs could not be built, or no cell could be measured.
pub fn run(args: &Args) -> Result<Value, String> {
    let seconds = args.seconds.unwrap_or(SECONDS);
    let programs = args.programs()?;
    let (cells, mut rows, mut failed) = (args.cells(), Vec::new(), Vec::new());
    for (number, cell) in cells.iter().enumerate() {
        println!("   {} of {}: {cell}, {seconds} s", number + 1, cells.len());
        match measure(cell, seconds, args.data.as_deref(), &programs) {
            Ok(row) => {
                println!("   {row}");
                rows.push(row);
            }
            // The other cells are still useful.
            Err(reason) => failed.push(format!("{cell}: {reason}")),
        }
    }
    match failed.is_empty() || !rows.is_empty() {
        true => Ok(json!({ "seconds": seconds, "cells": rows, "failed": failed })),
        false => Err(failed.join("; ")),
    }
}
