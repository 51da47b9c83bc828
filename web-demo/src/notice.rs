//! Notices of this crate, in addition to the events of the loop.

use serde::Serialize;

/// Something that a page may want to show. As JSON each has its name under `event`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(test, derive(ts_rs::TS))]
#[serde(tag = "event", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Notice {
    /// The engine is chosen.
    Engine {
        /// "gpu" or "cpu".
        engine: &'static str,
        /// What it computes with, for people.
        device: String,
        /// Why it is not the GPU, if one was wanted.
        fallback: Option<String>,
        /// Whether it goes on with moments from an earlier page.
        restored: bool,
    },
}
