//! Learner for browsers: functions that a module Worker calls through `wasm-bindgen`.
//!
//! The TypeScript package in `package/` calls all of them, and pages use that package. 64-bit numbers are passed as
//! JavaScript numbers, because no count in a run comes near 2⁵³.
//!
//! - `cargo xtask web` builds this crate twice, with `simd128` and with `relaxed-simd`, and the pages into
//!   `web-demo/dist`. The syncer's `build.rs` embeds that folder; with `--pages` the syncer serves files from a folder
//!   instead.
//! - The Worker loads the build that the browser supports, keeps key and moments in IndexedDB, and runs the same loop
//!   as a native learner. The page's own thread only displays.
//! - A Web Lock permits one learner per browser and syncer; a second tab waits. Pages over plain http have no Web
//!   Locks. They use an open database as the lock: raising its version waits until the other tab has closed it.
//! - After a stop, the learner has 400 ms to leave the run; then the Worker ends.
//! - No timer paces training. The Worker returns to the event loop through a message channel, which browsers do not
//!   slow down in hidden pages.

#![forbid(unsafe_code)]

mod failure;
mod helper;
mod learner;
mod measure;
mod options;
#[cfg(feature = "parity")]
mod parity;
mod writer;

use wasm_bindgen::prelude::wasm_bindgen;

pub use failure::Failure;
pub use helper::Differentiator;
pub use learner::{Learner, LearnerNotice};
pub use measure::measure;
pub use options::{JoinOptions, MeasureOptions, Measured, PresetFacts};
#[cfg(feature = "parity")]
pub use parity::Parity;
pub use writer::TextGenerator;

/// Sets the panic hook when the module is loaded. A panic, which is a bug of this program, then ends the Worker with
/// its message instead of a trap.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| wasm_bindgen::throw_str(&panic.to_string())));
}

/// TypeScript types of the data exchanged with pages: `web-demo/package/src/generated.ts`.
#[cfg(test)]
mod types {
    use archipelago::run::{Doing, Event, Offline, Report};
    use archipelago_core::model::ModelView;
    use archipelago_core::wire::{Fate, FragmentId, LateReason, LearnerId, Refusal, Round, Version};
    use archipelago_ts::Module;

    use crate::{JoinOptions, LearnerNotice, MeasureOptions, Measured, PresetFacts};

    #[test]
    fn types_of_the_package_are_current() {
        let heading = "Settings and messages of a learner.";
        let module = Module::new("web-demo/package/src/generated.ts", heading)
            .declare::<LearnerId>()
            .declare::<FragmentId>()
            .declare::<Round>()
            .declare::<Version>()
            .declare::<LateReason>()
            .declare::<Refusal>()
            .declare::<Fate>();
        let module = module.declare::<Doing>().declare::<Offline>().declare::<Report>().declare::<Event>();
        let module = module.declare::<JoinOptions>().declare::<MeasureOptions>();
        let module = module.declare::<ModelView>();
        module.declare::<PresetFacts>().declare::<Measured>().declare::<LearnerNotice>().check();
    }
}
