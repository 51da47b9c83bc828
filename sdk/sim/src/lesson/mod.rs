//! Lessons: runs of a few islands in virtual time that train a tiny model and can be observed and disturbed. A twin
//! trains the same islands with synchronous data parallelism.
//!
//! [`Lesson`] is a [`crate::world::World`], and so the real syncer and learner cores, presented as [`Frame`]s. [`Twin`]
//! trains in lockstep with the same islands, the same random numbers and the same faults. Both compute with
//! [`archipelago_runtime::engine::cpu::CpuTrainer::fixed`], so that one [`LessonSpec`] with one list of [`Action`]s has
//! one digest, natively and in browsers.
//!
//! ```
//! use archipelago_sim::lesson::{Action, Deed, Lesson, LessonSpec};
//!
//! let mut lesson = Lesson::new(LessonSpec::default())?;
//! lesson.act(Action { at_ms: 500, island: 2, deed: Deed::Kill, factor: 1.0 })?;
//! lesson.advance(1_500);
//! assert_eq!(lesson.frame().run.live, 4);
//! # Ok::<(), archipelago_sim::lesson::LessonError>(())
//! ```

mod change;
mod frame;
mod marks;
mod run;
mod spec;
mod stage;
#[cfg(test)]
mod tests;
mod twin;

pub use change::{Change, Setting};
pub use frame::{Frame, Island, IslandState, Mark, ParcelKind, Share, Totals, TwinFrame, TwinMark};
pub use run::Lesson;
pub use spec::{Action, Apply, Bounds, Deed, ISLANDS_MAX, LESSON_MS_MAX, LessonError, LessonSpec, Lockstep};
pub use twin::Twin;
