//! TypeScript types of lessons: `web-demo/pages/shared/lesson.ts`.

use archipelago_core::diloco::MergeRule;
use archipelago_core::wire::{Code, LateReason, Refusal};
use archipelago_sim::lesson::{
    Action, Apply, Bounds, Change, Deed, Frame, Island, IslandState, LESSON_MS_MAX, LessonSpec, Lockstep,
    Mark, ParcelKind, Setting, Share, Totals, TwinFrame, TwinMark,
};
use archipelago_sim::scale::bandwidth::LATENCY_S;
use archipelago_ts::Module;

use crate::{ClusterSpec, LinkNeed, Way, Yield};

#[test]
fn types_of_lessons_are_current() {
    let heading = "Inputs and results of lessons, and the figures of the paper's models.";
    let module = Module::new("web-demo/pages/shared/lesson.ts", heading)
        .import::<LateReason>("@archipelago-train/learner")
        .import::<Refusal>("@archipelago-train/learner");
    let module = module
        .declare::<Code>()
        .declare::<MergeRule>()
        .declare::<Bounds>()
        .declare::<Apply>()
        .declare::<Lockstep>()
        .declare::<LessonSpec>();
    let module = module
        .declare::<Deed>()
        .declare::<Action>()
        .declare::<Setting>()
        .declare::<Change>()
        .declare::<IslandState>()
        .declare::<Island>();
    let module = module.declare::<Totals>().declare::<ParcelKind>().declare::<Share>().declare::<Mark>();
    let module = module.declare::<Frame>().declare::<TwinMark>().declare::<TwinFrame>();
    let module = module.declare::<ClusterSpec>().declare::<Yield>().declare::<Way>().declare::<LinkNeed>();
    let longest = "/** Longest lesson, in milliseconds of its own time. */";
    let latency = "/** What each data centre adds to an exchange of Decoupled DiLoCo, in milliseconds. */";
    module
        .text(&format!("{longest}\nexport const LESSON_MS_MAX = {LESSON_MS_MAX};\n"))
        .text(&format!("{latency}\nexport const DATA_CENTRE_LATENCY_MS = {};\n", 1e3 * LATENCY_S))
        .check();
}
