//! Parity tests of the GPU engine, for a page to run.

use archipelago_runtime::engine::gpu::parity::{Gpus, tests};
use wasm_bindgen::prelude::wasm_bindgen;

use crate::Failure;

/// The tests, with the device on which they run.
#[wasm_bindgen]
#[derive(Debug)]
pub struct Parity {
    gpus: Gpus,
}

#[wasm_bindgen]
impl Parity {
    /// Opens the device.
    ///
    /// # Errors
    /// [`Failure::NoGpu`] or [`Failure::Gpu`]: there is no usable GPU.
    pub async fn open() -> Result<Self, Failure> {
        Ok(Self { gpus: Gpus::open_as_a_page().await? })
    }

    /// Returns the name of each test.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        tests().map(|test| test.name.to_owned()).collect()
    }

    /// Runs the test at `index` in [`Self::names`]. If it fails, it panics, and nothing catches the panic: the Worker
    /// gets an `error` event, the promise stays pending, and this module is no longer usable.
    pub async fn run(&self, index: usize) {
        let test = tests().nth(index).expect("the page counts the names");
        (test.run)(&self.gpus).await;
    }
}
