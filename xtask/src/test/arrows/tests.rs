//! Each rule refuses something, in a house of four rooms.

use std::collections::BTreeMap;

use super::judge_texts;

/// A house in which nothing is wrong.
const HOUSE: &[(&str, &str)] = &[
    (
        "ARCHITECTURE.md",
        "# Map\n\n| where | what | may use |\n|---|---|---|\n| `low/src` | a | nothing |\n\
         | `high/src/a` | b | `low/src` |\n\
         | `high/src/b` | c | `low/src`, `a` |\n| `high/src` | d | `b` |\n| `high/tests` | e | everything |\n",
    ),
    ("low/Cargo.toml", "[package]\nname = \"low\"\n"),
    ("low/src/lib.rs", "pub mod one;\npub mod two;\npub struct Low;\n"),
    ("low/src/one.rs", "use crate::two::Two;\npub struct One;\n"),
    ("low/src/two.rs", "pub struct Two;\n"),
    ("high/Cargo.toml", "[package]\nname = \"high\"\n\n[dependencies]\nlow.workspace = true\n"),
    ("high/src/lib.rs", "mod a;\nmod b;\nuse b::B;\n"),
    ("high/src/a/mod.rs", "use low::one::One;\npub struct A;\n"),
    ("high/src/b/mod.rs", "use crate::a::A;\npub struct B(low::Low);\n"),
    ("high/tests/whole.rs", "use low::two::Two;\n"),
];

/// The sentences about the house in which `file` has the text `text`.
fn with(file: &str, text: &str) -> Vec<String> {
    let mut house: BTreeMap<&str, &str> = HOUSE.iter().copied().collect();
    house.insert(file, text);
    let names: Vec<String> = house.keys().map(|name| (*name).to_owned()).collect();
    judge_texts(&names, &|name| house.get(name).map(|text| (*text).to_owned()))
}

/// With `text` in `file` there is one sentence, and it holds all of `parts`.
fn refused(file: &str, text: &str, parts: &[&str]) {
    let broken = with(file, text);
    assert_eq!(broken.len(), 1, "{file}: {text:?}: {broken:#?}");
    for part in parts {
        assert!(broken[0].contains(part), "{part:?} is not in {:?}", broken[0]);
    }
}

/// With `text` in `file` nothing is wrong.
fn accepted(file: &str, text: &str) {
    assert_eq!(with(file, text), Vec::<String>::new(), "{file}: {text:?}");
}

/// The map with one row in place of another.
fn map(row: &str, other: &str) -> String {
    let page = HOUSE[0].1;
    assert!(page.contains(row), "{row}");
    page.replace(row, other)
}

#[test]
fn the_house_itself_is_in_order() {
    accepted("low/src/two.rs", "pub struct Two;\n");
}

#[test]
fn an_import_against_the_map_is_refused() {
    let names = [
        "use super::b::h;",
        "use crate::{b::h};",
        "pub use crate::b as c;",
        "fn f() { crate::b::g(); }",
        "fn f() -> super::b::G {}",
    ];
    for named in names {
        let text = format!("use low::one::One;\npub struct A;\n{named}\n");
        let broken = with("high/src/a/mod.rs", &text);
        let begin =
            "high/src/a/mod.rs:3: `high/src/a` may not use `high/src/b` (ARCHITECTURE.md:6); move the code";
        assert!(broken[0].starts_with(begin), "{named}: {broken:?}");
        // It closes a circle as well, for `b` uses `a`.
        assert_eq!(broken.len(), 2, "{named}: {broken:?}");
    }
    let other = "use high::a::A;\nuse crate::two::Two;\npub struct One;\n";
    refused("low/src/one.rs", other, &["low/src/one.rs:1: `low/src` may not use `high/src/a`"]);
}

#[test]
fn comments_strings_and_tests_may_name_what_they_like() {
    let begin = "use low::one::One;\npub struct A;\n";
    accepted("high/src/a/mod.rs", &format!("{begin}// crate::b::g\n/// [`crate::b::g`]\n"));
    accepted("high/src/a/mod.rs", &format!("{begin}const C: &str = \"crate::b::g\";\n"));
    accepted("high/src/a/mod.rs", &format!("{begin}#[cfg(test)]\nmod tests {{ use crate::b::B; }}\n"));
}

#[test]
fn a_room_is_used_by_its_door() {
    // `b` may use `low` through `a`, and passes nothing on that its users would need a row for.
    accepted("high/src/lib.rs", "mod a;\nmod b;\nuse b::A;\n");
    // A root that passes on what lies below it does not use it, and else it does.
    let page = map("| `high/src` | d | `b` |", "| `high/src` | d | nothing |");
    let mut house: BTreeMap<&str, &str> = HOUSE.iter().copied().collect();
    house.insert("ARCHITECTURE.md", &page);
    for (root, count) in [("mod a;\nmod b;\npub use b::B;\n", 0), ("mod a;\nmod b;\nuse b::B;\n", 1)] {
        house.insert("high/src/lib.rs", root);
        let names: Vec<String> = house.keys().map(|name| (*name).to_owned()).collect();
        let broken = judge_texts(&names, &|name| house.get(name).map(|text| (*text).to_owned()));
        assert_eq!(broken.len(), count, "{root}: {broken:?}");
    }
    // The root of a crate is no door: what it passes on counts as what it is.
    let root = "pub mod one;\npub mod two;\npub struct Low;\npub use high::a::A;\n";
    let broken = with("low/src/lib.rs", root);
    assert!(broken.iter().any(|broken| broken.contains("`low/src` may not use `high/src/a`")), "{broken:?}");
}

#[test]
fn circles_are_refused() {
    refused(
        "low/src/two.rs",
        "use super::one::One;\npub struct Two;\n",
        &["a circle", "low/src/two.rs:1", "low/src/one.rs:1"],
    );
    let page = map("| `low/src` | a | nothing |", "| `low/src` | a | `high/src` |");
    let broken = with("ARCHITECTURE.md", &page);
    assert!(broken[0].contains("the map allows a circle"), "{broken:?}");
}

#[test]
fn the_map_says_no_more_than_is_there() {
    let b = "| `high/src` | d | `b` |";
    let idle = map(b, "| `high/src` | d | `a`, `b` |");
    refused("ARCHITECTURE.md", &idle, &["`high/src` may use `high/src/a` and does not"]);
    let gone = map(b, "| `high/src` | d | `b` |\n| `high/src/c` | f | nothing |");
    refused("ARCHITECTURE.md", &gone, &["`high/src/c` is not there"]);
    let unknown = map(b, "| `high/src` | d | `c` |");
    refused("ARCHITECTURE.md", &unknown, &["ARCHITECTURE.md:8", "there is no room `c`"]);
    let prose = map(b, "| `high/src` | d | all but `a` |");
    refused("ARCHITECTURE.md", &prose, &["`may use` holds rooms in backticks"]);
    let homeless = map("| `high/tests` | e | everything |\n", "");
    refused("ARCHITECTURE.md", &homeless, &["high/tests/whole.rs: in no room"]);
}

#[test]
fn packages_obey_the_map() {
    let manifest = "[package]\nname = \"low\"\n[dependencies]\nhigh = { path = \"../high\" }\n";
    refused("low/Cargo.toml", manifest, &["low/Cargo.toml:4", "no room of `low` may use one of `high`"]);
    accepted("low/Cargo.toml", "[package]\nname = \"low\"\n[dev-dependencies]\nhigh.workspace = true\n");
}

#[test]
fn a_file_without_a_module_is_refused() {
    refused("low/src/three.rs", "pub struct Three;\n", &["low/src/three.rs: no `mod` leads here"]);
    accepted("low/src/two.rs", "pub struct Two;\n#[cfg(test)]\nmod tests;\n");
}

#[test]
fn pages_obey_the_map() {
    let page = map(
        "| `high/src` | d | `b` |",
        "| `high/src` | d | `b` |\n| `web/x` | f | nothing |\n| `web/y` | g | nothing |",
    );
    let mut house: BTreeMap<&str, &str> = HOUSE.iter().copied().collect();
    house.insert("ARCHITECTURE.md", &page);
    house.insert("web/x/a.ts", "import {\n  b,\n} from \"../y/b\";\n// import \"../y/c\"\n");
    house.insert("web/y/b.ts", "import \"./c\";\nexport const b = 1;\n");
    let names: Vec<String> = house.keys().map(|name| (*name).to_owned()).collect();
    let broken = judge_texts(&names, &|name| house.get(name).map(|text| (*text).to_owned()));
    assert_eq!(broken.len(), 1, "{broken:?}");
    assert!(broken[0].starts_with("web/x/a.ts:3: `web/x` may not use `web/y`"), "{broken:?}");
}
