//! The vocabulary of ARCHITECTURE.md, as far as names can be checked: one word for each thing.

/// Words that are not said, as the parts of a name, and what is said instead.
const INSTEAD: &[(&[&str], &str)] = &[
    (&["trained", "tokens"], "tokens_trained"),
    (&["merged", "tokens"], "tokens_merged"),
    (&["fellow"], "helper"),
];

/// The first name in `line` that another word should stand for, and that word. What stands in quotes is not a name of
/// ours to change: snapshots and metrics have it.
pub fn wrong(line: &str) -> Option<(&str, &'static str)> {
    let mut names = line
        .split('"')
        .step_by(2)
        .flat_map(|code| code.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .filter(|name| !name.is_empty());
    names.find_map(|name| {
        let parts = parts(name);
        let said = |words: &[&str]| parts.windows(words.len()).any(|some| *some == *words);
        INSTEAD.iter().find(|(words, _)| said(words)).map(|(_, instead)| (name, *instead))
    })
}

/// The parts of a name in lower case: `merged_tokens` and `mergedTokens` have the same two.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut before = '_';
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && before.is_lowercase()) {
            parts.push(String::new());
        }
        if c != '_' {
            parts.last_mut().expect("one from the start").extend(c.to_lowercase());
        }
        before = c;
    }
    parts.retain(|part| !part.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Option<&str>) {
        assert_eq!(wrong(line).map(|(name, _)| name), expected, "{line}");
    }

    #[test]
    fn names_are_told_by_their_parts() {
        check("let x = account.merged_tokens(1);", Some("merged_tokens"));
        check("status.mergedTokensTotal", Some("mergedTokensTotal"));
        check("class FellowWorker {}", Some("FellowWorker"));
        check("#[serde(rename = \"merged_tokens\")]", None);
        check("the merged tokens; tokens_merged; bedfellows", None);
    }
}
