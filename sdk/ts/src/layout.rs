//! Formatting of declarations.

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
