//! TypeScript types of the data exchanged with pages: `web-demo/package/src/generated.ts`.

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
