//! TypeScript's view of what crosses to pages, generated from the Rust types.

use std::{env, fs};

use archipelago::run::{Doing, Event, Offline, Report};
use archipelago::wire::{Fate, FragmentId, LateReason, LearnerId, Refusal, Round, Version};
use ts_rs::{Config, TS};

use crate::{JoinOptions, MeasureOptions, Measured, Notice, PresetFacts};

/// Where they are kept.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/package/src/generated.ts");

fn declarations() -> String {
    let config = Config::new().with_large_int("number");
    let mut text =
        "/** Generated from the Rust types; see `types.rs`. Counts are numbers: none comes near 2⁵³. */\n"
            .to_owned();
    let mut add = |declaration: String, docs: Option<String>| {
        text += "\n";
        text += &docs.unwrap_or_default();
        text += &format!("export {declaration}\n");
    };
    macro_rules! declare {
        ($($name:ty),*) => { $(add(<$name>::decl(&config), <$name>::docs());)* };
    }
    declare!(LearnerId, FragmentId, Round, Version, LateReason, Refusal, Fate, Doing, Offline, Report, Event);
    declare!(JoinOptions, MeasureOptions, PresetFacts, Measured, Notice);
    text
}

/// Renew the file with `RENEW_TYPES=1 cargo test -p web-demo`.
#[test]
fn typescript_knows_every_type() {
    let expected = declarations();
    if env::var_os("RENEW_TYPES").is_some() {
        fs::write(FILE, &expected).unwrap();
    }
    let found = fs::read_to_string(FILE).unwrap_or_default();
    assert!(found == expected, "generated.ts is old: renew it with `RENEW_TYPES=1 cargo test -p web-demo`");
}
