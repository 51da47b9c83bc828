//! One casing for all TypeScript names.

use crate::AS_ON_THE_WIRE;
use crate::layout::words;

/// Checks every key and every value of `text`, except comments.
///
/// # Panics
/// A name is not in camelCase.
pub(crate) fn check(text: &str) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_camel_case_and_the_reasons_of_the_wire() {
        check("/** A snake_case word in a comment. */");
        check("export type Way = { stepMs: number, \"kind\": \"dataParallel\", };");
        check("export type Refusal = \"not_invited\" | \"empty\";\nexport const LESSON_MS_MAX = 1;");
    }

    #[test]
    #[should_panic(expected = "step_ms is not in camelCase")]
    fn refuses_keys_in_snake_case() {
        check("export type Way = {\n  step_ms: number,\n};");
    }

    #[test]
    #[should_panic(expected = "data_parallel is not in camelCase")]
    fn refuses_values_in_snake_case() {
        check("export type Way = \"data_parallel\";");
    }
}
