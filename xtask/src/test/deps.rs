//! What we depend on: from where it comes, under which licence, how many versions of it, and what nobody may bring in.
//! `deny.toml` has the rules, in the form that `cargo deny` reads; here cargo alone is asked, so that no tool has to be
//! installed. Advisories need a database of others, and are looked at when somebody asks for them.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::cargo::{cargo, root};
use crate::tools::program;
use crate::web::call;

/// The file with the rules.
const RULES: &str = "deny.toml";

/// The rules, as far as they are checked here.
#[derive(Debug, Default)]
struct Rules {
    licences: Vec<String>,
    registries: Vec<String>,
    /// Names.
    denied: Vec<String>,
    /// Each as `name@version`.
    skipped: Vec<String>,
}

/// A crate of others.
#[derive(Clone, Debug, Default)]
struct Package {
    name: String,
    version: String,
    source: String,
    licence: String,
}

/// Compares the crates of the lock file with the rules; a remark, or what breaks them, one a line.
pub fn check() -> Result<String, String> {
    let text = fs::read_to_string(root().join(RULES)).map_err(|error| format!("{RULES}: {error}"))?;
    let output = cargo(&["metadata", "--locked", "--format-version", "1"]).output();
    let output = output.map_err(|error| format!("cargo did not start: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let told: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages: Vec<Package> =
        told["packages"].as_array().into_iter().flatten().filter_map(package).collect();
    let broken = judge(&Rules::read(&text), &packages);
    if broken.is_empty() { Ok(format!("{} crates", packages.len())) } else { Err(broken.join("\n  ")) }
}

/// Asks those who know of known faults, as far as their tools are here.
pub fn advisories() -> Result<String, String> {
    let mut skipped = Vec::new();
    if answers(cargo(&["deny", "--version"])) {
        call(&mut cargo(&["deny", "--all-features", "check"]))?;
    } else {
        skipped.push("cargo-deny is not installed: `cargo install --locked cargo-deny`");
    }
    let npm = |arguments: &[&str]| {
        let mut npm = program("npm");
        npm.args(arguments).current_dir(root().join("web-demo"));
        npm
    };
    if answers(npm(&["--version"])) {
        call(&mut npm(&["audit", "--audit-level", "high"]))?;
    } else {
        skipped.push("npm is not installed");
    }
    Ok(skipped.join("; "))
}

/// Whether a tool is there.
fn answers(mut tool: Command) -> bool {
    tool.output().is_ok_and(|output| output.status.success())
}

/// What `told` says, if it is no crate of ours.
fn package(told: &Value) -> Option<Package> {
    let text = |field: &str| told[field].as_str().unwrap_or_default().to_owned();
    let source = told["source"].as_str()?.to_owned();
    Some(Package { name: text("name"), version: text("version"), source, licence: text("license") })
}

impl Rules {
    fn read(text: &str) -> Self {
        let mut rules = Self::default();
        let (mut section, mut list) = ("", "");
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if line.starts_with('[') && line.ends_with(']') && !line.contains('"') {
                (section, list) = (line, "");
                continue;
            }
            let (head, values) = line.split_once(" = [").unwrap_or(("", line));
            if !head.is_empty() {
                list = head;
            }
            let to = match (section, list) {
                ("[licenses]", "allow") => &mut rules.licences,
                ("[sources]", "allow-registry") => &mut rules.registries,
                ("[bans]", "deny") => &mut rules.denied,
                ("[bans]", "skip") => &mut rules.skipped,
                _ => continue,
            };
            // Of a crate the first text is its name.
            to.extend(values.split('"').nth(1).map(str::to_owned));
            if line.ends_with(']') {
                list = "";
            }
        }
        rules
    }
}

/// What breaks the rules.
fn judge(rules: &Rules, packages: &[Package]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Package { name, version, source, licence } in packages {
        let from = source.strip_prefix("registry+").unwrap_or_default();
        if !rules.registries.iter().any(|registry| registry == from) {
            broken.push(format!("{name} comes from {source}: take it from a registry that {RULES} allows"));
        }
        if !is_allowed(licence, &rules.licences) {
            broken.push(format!("{name} is under {licence:?}: {RULES} does not allow that"));
        }
        if rules.denied.contains(name) {
            broken.push(format!("{name} is denied by {RULES}: `cargo tree -i {name}` says who asks for it"));
        }
        if !rules.skipped.contains(&format!("{name}@{version}")) {
            versions.entry(name).or_default().push(version);
        }
    }
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let versions = versions.join(" and ");
        broken.push(format!(
            "{name} is there as {versions}: take one, or skip the older in {RULES} and say who asks for it"
        ));
    }
    let is_there = |skipped: &str| {
        packages.iter().any(|package| skipped == format!("{}@{}", package.name, package.version))
    };
    let gone = rules.skipped.iter().filter(|skipped| !is_there(skipped));
    broken.extend(gone.map(|skipped| format!("{skipped} is not there any more: take it out of {RULES}")));
    broken
}

/// Whether a licence in the terms of SPDX leaves a way that takes `allowed` ones alone. A slash is an old way to say
/// OR.
fn is_allowed(licence: &str, allowed: &[String]) -> bool {
    let spaced = licence.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words: Vec<&str> = spaced.split_whitespace().rev().collect();
    let holds = any(&mut words, allowed);
    holds && words.is_empty()
}

/// What stands before the end or a closing bracket; `words` are in reverse.
fn any(words: &mut Vec<&str>, allowed: &[String]) -> bool {
    let mut holds = all(words, allowed);
    while words.pop_if(|word| *word == "OR").is_some() {
        holds |= all(words, allowed);
    }
    holds
}

fn all(words: &mut Vec<&str>, allowed: &[String]) -> bool {
    let mut holds = one(words, allowed);
    while words.pop_if(|word| *word == "AND").is_some() {
        holds &= one(words, allowed);
    }
    holds
}

fn one(words: &mut Vec<&str>, allowed: &[String]) -> bool {
    match words.pop() {
        Some("(") => {
            let holds = any(words, allowed);
            words.pop() == Some(")") && holds
        }
        Some(name) => {
            let exception = words.pop_if(|word| *word == "WITH").and_then(|_| words.pop());
            let name =
                exception.map_or_else(|| name.to_owned(), |exception| format!("{name} WITH {exception}"));
            allowed.contains(&name)
        }
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
[graph]
all-features = true
[licenses]
# None of "GPL-3.0".
allow = [
    "MIT",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
]
[licenses.private]
ignore = true
[bans]
multiple-versions = "deny"
deny = [
    { crate = "bad", reason = "so" },
]
skip = [
    { crate = "two@1.0.0", reason = "x" },
]
[sources]
unknown-git = "deny"
allow-registry = ["https://ours"]
"#;

    fn package(name: &str, version: &str, source: &str, licence: &str) -> Package {
        let [name, version, source, licence] = [name, version, source, licence].map(str::to_owned);
        Package { name, version, source, licence }
    }

    #[test]
    fn rules_are_read() {
        let rules = Rules::read(TEXT);
        assert_eq!(rules.licences, ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]);
        assert_eq!((&*rules.registries[0], rules.registries.len()), ("https://ours", 1));
        assert_eq!((&*rules.denied[0], rules.denied.len()), ("bad", 1));
        assert_eq!(rules.skipped, ["two@1.0.0"]);
    }

    #[test]
    fn each_rule_bites() {
        let source = "registry+https://ours";
        let check = |more: Package, part: Option<&str>| {
            let broken = judge(&Rules::read(TEXT), &[package("two", "1.0.0", source, "MIT"), more]);
            assert_eq!(broken.len(), part.map_or(0, |_| 1), "{broken:?}");
            assert!(part.is_none_or(|part| broken[0].contains(part)), "{broken:?}");
        };
        check(package("two", "2.0.0", source, "MIT"), None);
        check(package("a", "1.0.0", "git+https://ours", "MIT"), Some("comes from git"));
        check(package("a", "1.0.0", "registry+https://theirs", "MIT"), Some("comes from"));
        check(package("a", "1.0.0", source, "GPL-3.0"), Some("under \"GPL-3.0\""));
        check(package("a", "1.0.0", source, ""), Some("under"));
        check(package("bad", "1.0.0", source, "MIT"), Some("is denied"));
        let twins = ["1.0.0", "2.0.0"].map(|version| package("a", version, source, "MIT"));
        let broken = judge(&Rules::read(TEXT), &twins);
        assert!(broken.len() == 2 && broken[0].contains("1.0.0 and 2.0.0"), "{broken:?}");
        assert!(broken[1].contains("two@1.0.0 is not there"), "{broken:?}");
    }

    #[test]
    fn a_licence_is_taken_if_one_way_is_allowed() {
        let licences = Rules::read(TEXT).licences;
        for (licence, holds) in [
            ("MIT", true),
            ("GPL-3.0 OR MIT", true),
            ("GPL-3.0/MIT", true),
            ("MIT AND GPL-3.0", false),
            ("(MIT OR GPL-3.0) AND Apache-2.0", true),
            ("GPL-3.0 OR MIT AND GPL-3.0", false),
            ("Apache-2.0 WITH LLVM-exception", true),
            ("Apache-2.0 WITH Other-exception", false),
            ("(MIT", false),
            ("MIT)", false),
            ("MIT Apache-2.0", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(licence, &licences), holds, "{licence}");
        }
    }
}
