//! TypeScript of the Rust types that are sent to pages: one generator for every checked-in file.
//!
//! Each crate with such types has a test that lists them in a [`Module`]. [`Module::check`] compares the file with the
//! types, or rewrites it with `cargo xtask test --bless types`. A type is declared in one file only; others import it.
//!
//! Names are in camelCase throughout, keys and values alike. Only the reasons in [`AS_ON_THE_WIRE`] keep their names on
//! the wire, so that they are the same in `WIRE.md`, in ledgers and on pages.

use std::path::{Path, PathBuf};
use std::{env, fs};

use ts_rs::{Config, TS};

/// Variable that requests rewritten files.
const BLESS: &str = "ARCHIPELAGO_TEST_BLESS";
/// Command that rewrites the files.
const RENEW: &str = "cargo xtask test --bless types";

/// Types whose values keep their names on the wire.
pub const AS_ON_THE_WIRE: [&str; 2] = ["LateReason", "Refusal"];

/// One file of declarations.
pub struct Module {
    path: PathBuf,
    heading: Vec<String>,
    imports: Vec<(&'static str, Vec<String>)>,
    body: String,
}

impl Module {
    /// Returns an empty file at `path` from the root of the repository. `heading` describes its contents, in lines of a
    /// comment.
    #[must_use]
    pub fn new(path: &str, heading: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
        let heading = heading.lines().map(str::to_owned).collect();
        Self { path, heading, imports: Vec::new(), body: String::new() }
    }

    /// Declares `T`.
    #[must_use]
    pub fn declare<T: TS>(mut self) -> Self {
        let docs = T::docs().unwrap_or_default();
        let declaration = format!("{docs}export {}\n", T::decl(&config()));
        self.body.push('\n');
        self.body.push_str(&tidy(&declaration));
        self
    }

    /// Imports `T` from another file instead of declaring it.
    #[must_use]
    pub fn import<T: TS>(mut self, from: &'static str) -> Self {
        let name = T::ident(&config());
        match self.imports.iter_mut().find(|(module, _)| *module == from) {
            Some((_, names)) => names.push(name),
            None => self.imports.push((from, vec![name])),
        }
        self
    }

    /// Adds text other than a Rust type.
    #[must_use]
    pub fn text(mut self, text: &str) -> Self {
        self.body.push('\n');
        self.body.push_str(text);
        self
    }

    /// Compares the file with its types, or writes it if `ARCHIPELAGO_TEST_BLESS` is set.
    ///
    /// # Panics
    /// The file is outdated or cannot be written, or a name in it has another casing.
    pub fn check(self) {
        let current = self.contents();
        check_casing(&current);
        if env::var_os(BLESS).is_some() {
            fs::write(&self.path, &current).expect("the folder is there and can be written to");
        }
        let found = fs::read_to_string(&self.path).unwrap_or_default();
        let first = found.lines().zip(current.lines()).find(|(found, current)| found != current);
        assert!(
            found == current,
            "{} differs from the Rust types (first difference: {first:?}); renew it with `{RENEW}`",
            self.path.display()
        );
    }

    fn contents(&self) -> String {
        let mut text = String::new();
        for line in &self.heading {
            text.push_str(format!("// {line}").trim_end());
            text.push('\n');
        }
        text.push_str(&format!(
            "//\n// Generated from Rust types. Do not edit: change those, then run\n// {RENEW}\n"
        ));
        for (module, names) in &self.imports {
            for name in names {
                assert!(words(&self.body).any(|word| word == name), "{name} is imported but not used");
            }
            text.push_str(&format!("import type {{ {} }} from \"{module}\";\n", names.join(", ")));
        }
        text + &self.body
    }
}

/// Counts are numbers: none comes near 2⁵³.
fn config() -> Config {
    Config::default().with_large_int("number")
}

/// Checks every key and every value of `text`, except comments.
///
/// # Panics
/// A name is not in camelCase.
pub(crate) fn check_casing(text: &str) {
    for line in text.lines().map(str::trim) {
        let is_comment = ["/**", "*", "//"].iter().any(|start| line.starts_with(start));
        let is_wire = AS_ON_THE_WIRE.iter().any(|name| line.starts_with(&format!("export type {name} ")));
        // Constants are written in capitals.
        if is_comment || is_wire || line.starts_with("export const ") || line.starts_with("import ") {
            continue;
        }
        let line = line.split("/**").next().unwrap_or_default();
        for word in words(line) {
            assert!(!word.contains('_'), "{word} is not in camelCase: {line}");
        }
    }
}

/// Returns `declaration` with each doc on one line and its fields indented.
pub(crate) fn tidy(declaration: &str) -> String {
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
    // Text before a type, or at its end, is not one of its fields.
    let text = text.strip_prefix("  ").unwrap_or(&text);
    text.replace(", };\n", ",\n};\n").replace(", } | {", ",\n} | {").replace(", } } | {", ",\n} } | {")
}

/// Returns the words of `text`: names, keys and other runs of letters, digits and `_`.
pub(crate) fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The checked-in files.
    const FILES: [&str; 3] = [
        "web-demo/package/src/generated.ts",
        "web-demo/pages/shared/api.ts",
        "web-demo/pages/shared/lesson.ts",
    ];

    #[test]
    fn each_type_is_declared_once() {
        let mut declared = BTreeMap::new();
        for file in FILES {
            let text =
                fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(file)).unwrap();
            for name in text.lines().filter_map(|line| line.strip_prefix("export type ")) {
                let name = name.split_whitespace().next().unwrap_or_default().to_owned();
                if let Some(first) = declared.insert(name.clone(), file) {
                    panic!("{name} is declared in {first} and in {file}: import it");
                }
            }
        }
        assert!(declared.len() > 40, "{declared:?}");
    }

    #[test]
    fn takes_camel_case_and_the_reasons_of_the_wire() {
        check_casing("/** A snake_case word in a comment. */");
        check_casing("export type Way = { stepMs: number, \"kind\": \"dataParallel\", };");
        check_casing("export type Refusal = \"not_invited\" | \"empty\";\nexport const LESSON_MS_MAX = 1;");
    }

    #[test]
    #[should_panic(expected = "step_ms is not in camelCase")]
    fn refuses_keys_in_snake_case() {
        check_casing("export type Way = {\n  step_ms: number,\n};");
    }

    #[test]
    #[should_panic(expected = "data_parallel is not in camelCase")]
    fn refuses_values_in_snake_case() {
        check_casing("export type Way = \"data_parallel\";");
    }
}
