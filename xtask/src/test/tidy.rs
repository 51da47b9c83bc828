//! Style rules that no compiler checks.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{commands, documents, limits};

/// Maximum number of lines of a Rust file.
const LINES_MAX: usize = 800;

/// Maximum number of columns of a line of code.
const COLUMNS_MAX: usize = 120;

/// File types with a column limit.
const NARROW: &[&str] = &["rs", "wgsl", "css"];

/// File types that begin with a heading, and the forms of the heading.
const HEADED: &[(&str, &[&str])] = &[("rs", &["//! ", "#![doc = include_str!("]), ("wgsl", &["// "])];

/// Folders without our code.
pub const SKIPPED: &[&str] = &["target", "node_modules", "dist", "runs", ".git"];

/// File types that are read.
const READ: &[&str] = &["rs", "md", "toml", "wgsl", "ts", "js", "mjs", "html", "css", "py", "sh", "yml"];

/// Modules that take time, bytes and seeds as arguments.
const PURE: &[&str] = &[
    "sdk/core/src/",
    "sdk/sim/src/lesson/",
    "sdk/sim/src/scale/",
    "sdk/sim/src/world/",
    "tests/experiments/src/lab/",
];

/// Names that pure modules must not use.
const IMPURE: &[&str] =
    &["HashMap", "HashSet", "std::time", "std::net", "std::fs", "std::thread", "std::env", "std::process"];

/// The only place that may depend on the target.
const PLATFORM: &str = "sdk/runtime/src/platform/";

// Split, so that this file passes its own rules.
const TARGET_CFG: [&str; 2] = [concat!("cfg(tar", "get_"), concat!("cfg!(tar", "get_")];
const DEBTS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const MACHINE_PATHS: [&str; 4] =
    [concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

/// Checks every file under `root`. Returns a remark, or the violations, one a line.
pub fn check(root: &Path) -> Result<String, String> {
    let mut files = Vec::new();
    walk(root, &mut files)?;
    files.sort();
    let mut broken = Vec::new();
    let mut names = Vec::new();
    for file in &files {
        let name = file.strip_prefix(root).unwrap_or(file).to_string_lossy().replace('\\', "/");
        if READ.iter().any(|kind| name.ends_with(&format!(".{kind}"))) {
            let text = fs::read_to_string(file).map_err(|error| format!("{name}: {error}"))?;
            broken.extend(judge(&name, &text));
        }
        names.push(name);
    }
    let watched = commands::watched().chain(limits::WATCHED.iter().chain(PURE).copied()).chain([PLATFORM]);
    broken.extend(gone(&names, watched));
    let load = |name: &str| fs::read_to_string(root.join(name)).ok();
    broken.extend(documents::judge(&names, &load));
    broken.extend(commands::judge(&names, &load));
    broken.extend(limits::judge(&names, &load));
    if broken.is_empty() { Ok(format!("{} files", files.len())) } else { Err(broken.join("\n  ")) }
}

/// Returns a sentence for each of the `watched` path prefixes without a file. Otherwise a rule would silently stop
/// working when its file moves.
fn gone<'a>(names: &[String], watched: impl Iterator<Item = &'a str>) -> Vec<String> {
    let gone = watched.filter(|path| !names.iter().any(|name| name.starts_with(path)));
    gone.map(|path| format!("xtask/src/test has a rule for `{path}`, which does not exist; change the rule"))
        .collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    for entry in entries {
        let path = entry.map_err(|error| format!("{}: {error}", folder.display()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() {
            if !SKIPPED.contains(&name.as_ref()) {
                walk(&path, files)?;
            }
        } else {
            files.push(path);
        }
    }
    Ok(())
}

/// Returns the violations in `text`, each with the file's `name`, the line and the remedy.
fn judge(name: &str, text: &str) -> Vec<String> {
    let mut broken = Vec::new();
    let kind = name.rsplit_once('.').map_or("", |(_, kind)| kind);
    let lines = text.lines().count();
    if kind == "rs" && lines > LINES_MAX {
        broken.push(format!("{name}: {lines} lines, at most {LINES_MAX}; split it by concept"));
    }
    if let Some((_, begins)) = HEADED.iter().find(|(headed, _)| *headed == kind)
        && !begins.iter().any(|begin| text.starts_with(begin))
    {
        broken.push(format!("{name}:1: no heading; begin with `{}` and the subject of the file", begins[0]));
    }
    let mut tests = name.ends_with("/tests.rs") || name.contains("/tests/");
    for (number, line) in text.lines().enumerate() {
        tests |= line.trim() == "#[cfg(test)]";
        let mut say = |what: &str| broken.push(format!("{name}:{}: {what}", number + 1));
        judge_line(kind, line, &mut say);
        if kind == "rs" && !line.trim_start().starts_with("//") {
            judge_rust(name, line, tests, &mut say);
        }
    }
    broken
}

/// Checks a line of any file.
fn judge_line(kind: &str, line: &str, say: &mut impl FnMut(&str)) {
    let columns = line.chars().count();
    if NARROW.contains(&kind) && columns > COLUMNS_MAX {
        say(&format!("{columns} columns, at most {COLUMNS_MAX}; break the line"));
    }
    if let Some(debt) =
        DEBTS.iter().find(|debt| line.split(|c: char| !c.is_alphanumeric()).any(|w| w == **debt))
    {
        say(&format!("{debt}; do it now or open an issue"));
    }
    if MACHINE_PATHS.iter().any(|path| line.contains(path)) {
        say("names a folder of one machine; take it as an argument");
    }
}

/// Checks a line of Rust that is not a comment.
fn judge_rust(name: &str, line: &str, tests: bool, say: &mut impl FnMut(&str)) {
    if !name.starts_with(PLATFORM) && TARGET_CFG.iter().any(|cfg| line.contains(cfg)) {
        say("a condition on the target; only sdk/runtime/src/platform/ may have one");
    }
    let pure = PURE.iter().any(|folder| name.starts_with(folder));
    if pure
        && !tests
        && let Some(impure) = IMPURE.iter().find(|impure| line.contains(**impure))
    {
        say(&format!("{impure} in a pure module; take what it gives as an argument"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Asserts that `text` in the file `name` breaks `count` rules. A missing heading does not count.
    fn check_file(name: &str, text: &str, count: usize) {
        let text = &if name.ends_with(".rs") { format!("//! Heading.\n{text}") } else { text.to_owned() };
        assert_eq!(judge(name, text).len(), count, "{name}: {text:?}: {:?}", judge(name, text));
    }

    #[test]
    fn the_repository_is_tidy() {
        check(crate::cargo::root()).expect("house rules");
    }

    #[test]
    fn each_rule_bites() {
        check_file("sdk/src/lib.rs", &"\n".repeat(LINES_MAX - 1), 0);
        check_file("sdk/src/lib.rs", &"\n".repeat(LINES_MAX), 1);
        check_file("README.md", &"\n".repeat(LINES_MAX + 1), 0);
        check_file("sdk/src/run.rs", &format!("#[{}family = \"wasm\")]", TARGET_CFG[0]), 1);
        check_file("sdk/runtime/src/platform/mod.rs", &format!("#[{}family = \"wasm\")]", TARGET_CFG[0]), 0);
        check_file("tests/a.rs", &format!("// {}: later", DEBTS[0]), 1);
        check_file("tests/a.rs", &format!("let MAS{} = 1;", DEBTS[0]), 0);
        check_file("README.md", &format!("see {}x", MACHINE_PATHS[0]), 1);
    }

    #[test]
    fn files_have_headings_and_narrow_lines() {
        assert_eq!(judge("sdk/src/a.rs", "fn f() {}\n").len(), 1);
        assert_eq!(judge("sdk/src/a.rs", "#![doc = include_str!(\"A.md\")]\n").len(), 0);
        check_file("sdk/src/a.wgsl", "const A = 1;\n", 1);
        check_file("sdk/src/a.wgsl", "// A is 1.\nconst A = 1;\n", 0);
        check_file("sdk/src/a.rs", &format!("// {}", "Θ".repeat(COLUMNS_MAX - 3)), 0);
        check_file("sdk/src/a.rs", &format!("// {}", "Θ".repeat(COLUMNS_MAX - 2)), 1);
        check_file("README.md", &"a".repeat(COLUMNS_MAX + 1), 0);
    }

    #[test]
    fn a_watched_path_that_is_gone_is_reported() {
        let names = ["sdk/src/a/mod.rs", "sdk/src/b.rs"].map(str::to_owned);
        assert!(gone(&names, ["sdk/src/a/", "sdk/src/b.rs"].into_iter()).is_empty());
        assert_eq!(gone(&names, ["sdk/src/a.rs", "sdk/src/b.rs", "docs/"].into_iter()).len(), 2);
    }

    #[test]
    fn pure_modules_name_nothing_impure() {
        check_file("sdk/core/src/diloco/a.rs", "use std::collections::HashMap;", 1);
        check_file("sdk/src/run.rs", "use std::collections::HashMap;", 0);
        check_file("sdk/core/src/wire/a.rs", "/// Not a HashMap.", 0);
        check_file("sdk/core/src/wire/a.rs", "#[cfg(test)]\nuse std::fs;", 0);
        check_file("sdk/core/src/wire/a.rs", "use std::time::Instant;", 1);
    }
}
