//! Rust source as words and signs, without comments, strings and test code.
//!
//! This is no parser: it knows just enough of the language to find modules, imports and paths.

/// A word or a sign of a source file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// The word, the sign, or `::`. A string or a character stands as `""`.
    pub text: &'a str,
    /// Where it stands, from 1.
    pub line: usize,
}

/// Cuts `text` into tokens and leaves comments out.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let (mut at, mut line) = (0, 1);
    while at < text.len() {
        let rest = &text[at..];
        let (length, shown) = next(rest);
        if let Some(shown) = shown {
            found.push(Token { text: shown, line });
        }
        line += rest[..length].matches('\n').count();
        at += length;
    }
    found
}

/// The length of what `rest` begins with, in bytes, and what stands for it, if anything.
fn next(rest: &str) -> (usize, Option<&str>) {
    let first = rest.chars().next().expect("not at the end");
    if first.is_whitespace() {
        (first.len_utf8(), None)
    } else if rest.starts_with("//") {
        (rest.find('\n').unwrap_or(rest.len()), None)
    } else if rest.starts_with("/*") {
        (block_comment(rest), None)
    } else if let Some(length) = raw_string(rest) {
        (length, Some("\"\""))
    } else if first == '"' {
        (1 + quoted(&rest[1..], '"'), Some("\"\""))
    } else if first == '\'' {
        match character(rest) {
            Some(length) => (length, Some("\"\"")),
            // A lifetime or a label.
            None => (1, None),
        }
    } else if first.is_alphanumeric() || first == '_' {
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        (length, Some(&rest[..length]))
    } else if rest.starts_with("::") {
        (2, Some("::"))
    } else {
        (first.len_utf8(), Some(&rest[..first.len_utf8()]))
    }
}

/// The length of a comment that may hold others.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0_u32, 0);
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// The length of `r"…"` or `r#"…"#`, with any prefix, or `None` if `rest` begins otherwise.
fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        rest.strip_prefix(prefix).is_some_and(|after| after.trim_start_matches('#').starts_with('"'))
    })?;
    let hashes = rest[prefix.len()..].find('"')?;
    let open = prefix.len() + hashes + 1;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(rest[open..].find(&close).map_or(rest.len(), |end| open + end + close.len()))
}

/// The length up to and with the closing `quote`.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices() {
        if !escaped && c == quote {
            return at + 1;
        }
        escaped = !escaped && c == '\\';
    }
    rest.len()
}

/// The length of a character such as `'a'`; `None` for a lifetime.
fn character(rest: &str) -> Option<usize> {
    let mut chars = rest[1..].char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        return Some(1 + quoted(&rest[1..], '\''));
    }
    let (at, second) = chars.next()?;
    (second == '\'').then_some(1 + at + 1)
}

/// `tokens` without what only tests compile: items under `#[cfg(test)]` or `#[cfg(all(test, …))]`.
pub fn without_tests<'a>(tokens: &[Token<'a>]) -> Vec<Token<'a>> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let attribute = is(tokens, at, "#") && is(tokens, at + 1, "[");
        if attribute && for_tests(tokens, at) {
            at = after_item(tokens, group_end(tokens, at + 1));
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// Whether the token `at` is `text`.
pub fn is(tokens: &[Token<'_>], at: usize, text: &str) -> bool {
    tokens.get(at).is_some_and(|token| token.text == text)
}

/// Whether the attribute that begins `at` keeps its item for tests.
fn for_tests(tokens: &[Token<'_>], at: usize) -> bool {
    let begins = |words: &[&str]| words.iter().enumerate().all(|(i, word)| is(tokens, at + 2 + i, word));
    begins(&["cfg", "(", "test", ")"]) || begins(&["cfg", "(", "all", "(", "test"])
}

/// The place after the bracket that closes the one `at`.
pub fn group_end(tokens: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0_usize;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return i + 1;
                }
            }
            _ => {}
        }
    }
    tokens.len()
}

/// The place after the item, statement or field that begins `at`, further attributes included.
fn after_item(tokens: &[Token<'_>], mut at: usize) -> usize {
    while is(tokens, at, "#") && is(tokens, at + 1, "[") {
        at = group_end(tokens, at + 1);
    }
    if is(tokens, at, "pub") {
        at = if is(tokens, at + 1, "(") { group_end(tokens, at + 1) } else { at + 1 };
    }
    let word = tokens.get(at).map_or("", |token| token.text);
    let to_semicolon = ["use", "const", "static", "type", "let"].contains(&word) && !is(tokens, at + 1, "fn");
    let field = is(tokens, at + 1, ":");
    while at < tokens.len() {
        match tokens[at].text {
            ";" => return at + 1,
            "," if field => return at + 1,
            // The end of what holds a last field without a comma.
            "}" | ")" => return at,
            "{" if !to_semicolon && !field => return group_end(tokens, at),
            "(" | "[" | "{" => at = group_end(tokens, at),
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of `text`, without those of tests.
    fn check(text: &str, expected: &str) {
        let found: Vec<&str> = without_tests(&tokens(text)).iter().map(|token| token.text).collect();
        assert_eq!(found.join(" "), expected, "{text}");
    }

    #[test]
    fn comments_strings_and_lifetimes_are_no_words() {
        check("a // crate::b\nc", "a c");
        check("a /* b /* c */ d */ e", "a e");
        check(r#"a("crate::b \" c")d"#, r#"a ( "" ) d"#);
        check(r###"r#"crate::b "quoted""# e"###, r#""" e"#);
        check("fn f<'a>(x: &'a u8) -> char { 'x' }", r#"fn f < a > ( x : & a u8 ) - > char { "" }"#);
        check(r"['\'', 'ü', b'\\']", r#"[ "" , "" , b "" ]"#);
    }

    #[test]
    fn code_for_tests_is_left_out() {
        check("a; #[cfg(test)] use crate::{b, c}; d;", "a ; d ;");
        check("#[cfg(test)] mod tests { use crate::b; fn f() {} } d;", "d ;");
        check("#[cfg(all(test, unix))] #[allow(x)] pub(crate) fn f<A, B>() -> C { d } e", "e");
        check("struct A { #[cfg(test)] b: C<D>, e: F }", "struct A { e : F }");
        check(
            "#[cfg(any(test, feature = \"x\"))] use b;",
            "# [ cfg ( any ( test , feature = \"\" ) ) ] use b ;",
        );
    }

    #[test]
    fn lines_are_counted_through_comments_and_strings() {
        let found = tokens("/* 1\n2 */ a\n\"x\ny\" b");
        let lines: Vec<usize> = found.iter().map(|token| token.line).collect();
        assert_eq!(lines, [2, 3, 4]);
    }
}
