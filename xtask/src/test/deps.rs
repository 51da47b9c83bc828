//! Rules for dependencies: allowed sources and licences, one version of each crate, and denied crates.
//!
//! `deny.toml` holds the rules in the form of `cargo deny`. This module checks them with cargo alone, because compiling
//! that tool takes minutes on a fresh machine. Advisories need a database from elsewhere and are checked on demand.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use serde_json::Value;
use toml::Table;

use crate::cargo::{cargo, root};
use crate::tools::program;
use crate::web::call;

/// The file with the rules.
const RULES: &str = "deny.toml";

/// Parsed rules, as far as this module checks them.
#[derive(Debug, Default)]
struct Rules {
    licences: Vec<String>,
    registries: Vec<String>,
    /// Names of denied crates.
    denied: Vec<String>,
    /// Skipped crates as `name@version`.
    skipped: Vec<String>,
}

/// Third-party crate.
#[derive(Clone, Debug, Default)]
struct Package {
    name: String,
    version: String,
    source: String,
    licence: String,
}

/// Checks the crates of the lock file against the rules. Returns a remark, or the violations, one a line.
pub fn check() -> Result<String, String> {
    let text = fs::read_to_string(root().join(RULES)).map_err(|error| format!("{RULES}: {error}"))?;
    let output = cargo(&[
        "metadata",
        "--locked",
        "--features",
        "archipelago-cluster/nats-s3",
        "--format-version",
        "1",
    ])
    .output();
    let output = output.map_err(|error| format!("cargo did not start: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages: Vec<Package> =
        metadata["packages"].as_array().into_iter().flatten().filter_map(package).collect();
    let rules = Rules::read(&text).map_err(|why| format!("{RULES}: {why}"))?;
    let broken = judge(&rules, &packages);
    if broken.is_empty() { Ok(format!("{} crates", packages.len())) } else { Err(broken.join("\n  ")) }
}

/// Checks for known vulnerabilities, with the tools that are installed.
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

/// Returns true if a tool is installed.
fn answers(mut tool: Command) -> bool {
    tool.output().is_ok_and(|output| output.status.success())
}

/// Parses a package of cargo's metadata. Returns `None` for a package without a source, such as one of this workspace.
fn package(told: &Value) -> Option<Package> {
    let text = |field: &str| told[field].as_str().unwrap_or_default().to_owned();
    let source = told["source"].as_str()?.to_owned();
    Some(Package { name: text("name"), version: text("version"), source, licence: text("license") })
}

impl Rules {
    /// Parses the rules.
    ///
    /// # Errors
    /// A message if the text is not TOML, or a rule has an unsupported form.
    fn read(text: &str) -> Result<Self, String> {
        let table: Table = text.parse().map_err(|error: toml::de::Error| error.message().to_owned())?;
        let list = |section: &str, name: &str| -> Result<Vec<String>, String> {
            let found =
                table.get(section).and_then(|section| section.get(name)).and_then(toml::Value::as_array);
            let found = found.ok_or_else(|| format!("[{section}] lacks the list `{name}`"))?;
            let text = |item: &toml::Value| item.get("crate").unwrap_or(item).as_str().map(str::to_owned);
            let texts = found.iter().map(text).collect::<Option<_>>();
            texts.ok_or_else(|| {
                format!("`{name}` in [{section}] is not a list of texts or of `crate = \"…\"`")
            })
        };
        Ok(Self {
            licences: list("licenses", "allow")?,
            registries: list("sources", "allow-registry")?,
            denied: list("bans", "deny")?,
            skipped: list("bans", "skip")?,
        })
    }
}

/// Returns the violations of `rules` among `packages`.
fn judge(rules: &Rules, packages: &[Package]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Package { name, version, source, licence } in packages {
        let from = source.strip_prefix("registry+").unwrap_or_default();
        if !rules.registries.iter().any(|registry| registry == from) {
            broken.push(format!("{name} comes from {source}; {RULES} does not allow this registry"));
        }
        if !is_allowed(licence, &rules.licences) {
            broken.push(format!("{name} has the licence {licence:?}, which {RULES} does not allow"));
        }
        if rules.denied.contains(name) {
            broken.push(format!("{name} is denied by {RULES}; `cargo tree -i {name}` shows its dependents"));
        }
        if !rules.skipped.contains(&format!("{name}@{version}")) {
            versions.entry(name).or_default().push(version);
        }
    }
    for (name, versions) in versions.iter().filter(|(_, versions)| versions.len() > 1) {
        let versions = versions.join(" and ");
        broken.push(format!(
            "{name} has the versions {versions}; use one, or skip the older one in {RULES} with its dependent"
        ));
    }
    let is_there = |skipped: &str| {
        packages.iter().any(|package| skipped == format!("{}@{}", package.name, package.version))
    };
    let gone = rules.skipped.iter().filter(|skipped| !is_there(skipped));
    broken.extend(gone.map(|skipped| format!("{skipped} is no longer a dependency; remove it from {RULES}")));
    broken
}

/// Returns true if an SPDX licence expression can be satisfied with `allowed` licences only. A slash is an old form of
/// OR. A crate for all of SPDX would slow down each first `cargo xtask` for these few lines.
fn is_allowed(licence: &str, allowed: &[String]) -> bool {
    let spaced = licence.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words: Vec<&str> = spaced.split_whitespace().rev().collect();
    let holds = any(&mut words, allowed);
    holds && words.is_empty()
}

/// Parses alternatives up to the end or a closing bracket. Returns true if one of them is allowed. `words` are in
/// reverse.
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
        let rules = Rules::read(TEXT).unwrap();
        assert_eq!(rules.licences, ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]);
        assert_eq!((&*rules.registries[0], rules.registries.len()), ("https://ours", 1));
        assert_eq!((&*rules.denied[0], rules.denied.len()), ("bad", 1));
        assert_eq!(rules.skipped, ["two@1.0.0"]);
        // Rules in another notation are not skipped silently.
        let one_line =
            TEXT.replace("    { crate = \"bad\", reason = \"so\" },\n", "    \"bad\", { crate = \"worse\" }");
        assert_eq!(Rules::read(&one_line).unwrap().denied, ["bad", "worse"]);
        let unlike = [("\"MIT\",", "7,"), ("skip = [", "skips = ["), ("[bans]", "[bans")];
        for ((from, to), part) in
            unlike.into_iter().zip(["`allow` in [licenses]", "lacks the list `skip`", ""])
        {
            let why = Rules::read(&TEXT.replace(from, to)).unwrap_err();
            assert!(why.contains(part), "{why}");
        }
    }

    #[test]
    fn each_rule_bites() {
        let source = "registry+https://ours";
        let check = |more: Package, part: Option<&str>| {
            let broken = judge(&Rules::read(TEXT).unwrap(), &[package("two", "1.0.0", source, "MIT"), more]);
            assert_eq!(broken.len(), part.map_or(0, |_| 1), "{broken:?}");
            assert!(part.is_none_or(|part| broken[0].contains(part)), "{broken:?}");
        };
        check(package("two", "2.0.0", source, "MIT"), None);
        check(package("a", "1.0.0", "git+https://ours", "MIT"), Some("comes from git"));
        check(package("a", "1.0.0", "registry+https://theirs", "MIT"), Some("comes from"));
        check(package("a", "1.0.0", source, "GPL-3.0"), Some("licence \"GPL-3.0\""));
        check(package("a", "1.0.0", source, ""), Some("licence \"\""));
        check(package("bad", "1.0.0", source, "MIT"), Some("is denied"));
        let twins = ["1.0.0", "2.0.0"].map(|version| package("a", version, source, "MIT"));
        let broken = judge(&Rules::read(TEXT).unwrap(), &twins);
        assert!(broken.len() == 2 && broken[0].contains("1.0.0 and 2.0.0"), "{broken:?}");
        assert!(broken[1].contains("two@1.0.0 is no longer"), "{broken:?}");
    }

    #[test]
    fn a_licence_is_taken_if_one_way_is_allowed() {
        let licences = Rules::read(TEXT).unwrap().licences;
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
