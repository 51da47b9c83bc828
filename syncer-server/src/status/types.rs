//! The JSON of the routes as TypeScript, for the pages: `web-demo/pages/shared/api.ts`.

use std::path::Path;
use std::{env, fs};

use archipelago::diloco::{
    AbandonCause, Decision, FateCounts, FragmentId, LearnerId, MergeCause, Millis, Round, Timing, Version,
};
use archipelago::wire::{LateReason, LearnerState, Refusal};
use ts_rs::{Config, TS};

use super::*;
use crate::evaluate::Evaluation;

/// Set to write the file anew.
const RENEW: &str = "RENEW_API_TS";

const HEAD: &str = "\
// What the syncer's routes answer, generated from its Rust types. Do not edit: change those, then run
// RENEW_API_TS=1 cargo test -p syncer-server api_ts
//
// GET /v1/status               ServerStatus
// GET /v1/learners?offset=&limit=&sort=   LearnersPage
// GET /v1/series               SeriesView
// GET /v1/rounds               RoundsView
// GET /v1/events               EventSource with the events of ServerEvents; their data is JSON
";

const EVENTS: &str = "
/** The events of /v1/events by name, and what their data is. */
export type ServerEvents = {
  /** Each second. */
  status: ServerStatus,
  /** The rounds that changed, at most four times a second. */
  rounds: RoundsView,
  /** A row for the columns of SeriesView; if span_s changed, fetch them anew. */
  point: PointEvent,
  evaluation: Evaluation,
  sample: TextSample,
  /** So many events were missed, because they were read too slowly. */
  lagged: number,
};
";

/// Docs on one line each and fields indented, as people write it.
fn tidy(declaration: &str) -> String {
    let mut text = String::new();
    for line in declaration.lines().map(str::trim) {
        match line {
            "/**" => text.push_str("  /**"),
            "*/" => text.push_str(" */\n"),
            _ => match line.strip_prefix("* ") {
                Some(doc) => text.push_str(&format!(" {doc}")),
                None if line.starts_with("export ") => text.push_str(&format!("{line}\n")),
                None => text.push_str(&format!("  {line}\n")),
            },
        }
    }
    // What stands in front of a type, or ends it, is not one of its fields.
    let text = text.strip_prefix("  ").unwrap_or(&text);
    text.replace(", };\n", ",\n};\n").replace(", } | {", "\n} | {")
}

fn generated() -> String {
    let config = Config::default().with_large_int("number");
    let mut text = HEAD.to_owned();
    macro_rules! types {
        ($($name:ty),* $(,)?) => { $({
            let docs = <$name>::docs().unwrap_or_default();
            let declaration = tidy(&format!("{docs}export {}\n", <$name>::decl(&config)));
            text.push_str(&format!("\n{declaration}"));
        })* };
    }
    // Types that are flattened into others are not named.
    types![
        ServerStatus,
        LearnerView,
        LearnerKind,
        LearnerState,
        LearnersByState,
        FateCounts,
        LateReason,
        Refusal,
        Timing,
        LearnersPage,
        Sort,
        SeriesView,
        Evaluation,
        TextSample,
        PointEvent,
        RoundsView,
        RoundReport,
        Answer,
        AnswerFate,
        Decision,
        MergeCause,
        AbandonCause,
        MergedReport,
        LearnerId,
        FragmentId,
        Round,
        Version,
        Millis,
    ];
    text + EVENTS
}

#[test]
fn api_ts_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../web-demo/pages/shared/api.ts");
    let current = generated();
    if env::var_os(RENEW).is_some() {
        fs::create_dir_all(path.parent().expect("it is in a folder")).unwrap();
        fs::write(&path, &current).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    let first = found.lines().zip(current.lines()).find(|(found, current)| found != current);
    assert!(
        found == current,
        "{} is not what the Rust types say (first difference: {first:?}): renew it with \
         {RENEW}=1 cargo test -p syncer-server api_ts",
        path.display()
    );
}
