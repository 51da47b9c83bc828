//! TypeScript types of the JSON in answers, for the pages: `web-demo/pages/shared/api.ts`.

use archipelago_core::diloco::{FragmentId, LearnerId, Millis, Round, Version};
use archipelago_core::wire::{FrozenForm, LateReason, LearnerState, Refusal};
use archipelago_ts::Module;

use super::view::{AbandonCause, Decision, Evaluation, Fates, MergeCause, TextSample, Timing};
use super::*;
use crate::hosting::{RunFigures, RunState, RunView, RunsView};
use crate::http::settings::{SettingView, SettingsView};
use crate::invites::{BanView, InviteView, MadeInvite};

const HEADING: &str = "\
Answers of the syncer's routes.

GET /v1/runs                 RunsView
GET /v1/status               ServerStatus
GET /v1/learners?offset=&limit=&sort=   LearnersPage
GET /v1/series               SeriesView
GET /v1/rounds               RoundsView
GET /v1/log?name=&limit=     LogView
GET /v1/settings             SettingsView
GET /v1/invites              InviteView[], for the owner; POST makes one: MadeInvite
GET /v1/bans                 BanView[], for the owner
GET /v1/events               EventSource with the events of ServerEvents; their data is JSON";

const EVENTS: &str = "\
/** The events of /v1/events by name, and what their data is. */
export type ServerEvents = {
  /** Each second. */
  status: ServerStatus,
  /** The rounds that changed, at most four times a second. */
  rounds: RoundsView,
  /** A row for the columns of SeriesView; if spanS changed, fetch them again. */
  point: PointEvent,
  evaluation: Evaluation,
  sample: TextSample,
  /** Lines of the run's log that are new, the newest first. */
  log: LogView,
  /** The number of events that were missed, because they were read too slowly. */
  lagged: number,
};
";

#[test]
fn types_of_the_routes_are_current() {
    // The types of the protocol are declared with those of the learner.
    let module = Module::new("web-demo/pages/shared/api.ts", HEADING)
        .import::<LearnerId>("@archipelago-train/learner")
        .import::<FragmentId>("@archipelago-train/learner")
        .import::<Round>("@archipelago-train/learner")
        .import::<Version>("@archipelago-train/learner")
        .import::<LateReason>("@archipelago-train/learner")
        .import::<Refusal>("@archipelago-train/learner");
    // Flattened types have no name in TypeScript.
    let module = module
        .declare::<ServerStatus>()
        .declare::<AdapterFacts>()
        .declare::<FrozenForm>()
        .declare::<DiskView>()
        .declare::<LearnerView>()
        .declare::<DeviceKind>()
        .declare::<Trust>()
        .declare::<InviteView>()
        .declare::<MadeInvite>()
        .declare::<BanView>()
        .declare::<LearnerState>()
        .declare::<LearnersByState>()
        .declare::<Fates>()
        .declare::<Timing>()
        .declare::<LearnersPage>()
        .declare::<Sort>()
        .declare::<SeriesView>()
        .declare::<Evaluation>()
        .declare::<TextSample>()
        .declare::<PointEvent>()
        .declare::<RoundsView>()
        .declare::<RoundReport>()
        .declare::<Answer>()
        .declare::<AnswerFate>()
        .declare::<Decision>()
        .declare::<MergeCause>()
        .declare::<AbandonCause>()
        .declare::<MergedReport>()
        .declare::<Millis>()
        .declare::<LogView>()
        .declare::<LogEntryView>()
        .declare::<LogKind>()
        .declare::<AlertView>()
        .declare::<AlertKind>()
        .declare::<SettingsView>()
        .declare::<SettingView>()
        .declare::<RunsView>()
        .declare::<RunView>()
        .declare::<RunState>()
        .declare::<RunFigures>();
    module.text(EVENTS).check();
}
