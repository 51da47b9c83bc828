//! TypeScript's view of lessons, generated from the Rust types.

use std::{env, fs};

use archipelago::diloco::MergeRule;
use archipelago::wire::{Code, LateReason, Refusal};
use archipelago_sim::lesson::{
    Action, Apply, Deed, Frame, Island, IslandState, LESSON_MS_MAX, LessonSpec, Mark, ParcelKind, Share,
    Totals, TwinFrame, TwinMark,
};
use archipelago_sim::paper::bandwidth::LATENCY_S;
use ts_rs::{Config, TS};

use crate::{ClusterSpec, LinkNeed, Way, Yield};

/// Where they are kept.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../pages/shared/lesson.ts");

fn declarations() -> String {
    let config = Config::new().with_large_int("number");
    let mut text =
        "/** Generated from the Rust types of `web-demo/lesson`; see its `types.rs`. */\n".to_owned();
    let mut add = |declaration: String, docs: Option<String>| {
        text += "\n";
        text += &docs.unwrap_or_default();
        text += &format!("export {declaration}\n");
    };
    macro_rules! declare {
        ($($name:ty),*) => { $(add(<$name>::decl(&config), <$name>::docs());)* };
    }
    declare!(
        Code,
        MergeRule,
        Apply,
        LessonSpec,
        Deed,
        Action,
        IslandState,
        Island,
        Totals,
        ParcelKind,
        Share
    );
    declare!(LateReason, Refusal, Mark, Frame, TwinMark, TwinFrame, ClusterSpec, Yield, Way, LinkNeed);
    text += "\n/** Longest lesson, in milliseconds of its own time. */\n";
    text += &format!("export const LESSON_MS_MAX = {LESSON_MS_MAX};\n");
    text += "\n/** What each data centre adds to an exchange of Decoupled DiLoCo, in milliseconds. */\n";
    text += &format!("export const DATA_CENTRE_LATENCY_MS = {};\n", 1e3 * LATENCY_S);
    text
}

/// Renew the file with `RENEW_TYPES=1 cargo test -p lesson`.
#[test]
fn typescript_knows_every_type() {
    let expected = declarations();
    if env::var_os("RENEW_TYPES").is_some() {
        fs::write(FILE, &expected).unwrap();
    }
    let found = fs::read_to_string(FILE).unwrap_or_default();
    assert!(found == expected, "lesson.ts is old: renew it with `RENEW_TYPES=1 cargo test -p lesson`");
}
