//! Rewriting of a template's source before it is compiled.

/// Returns `source` with line feeds as its only line ends, as Jinja2 reads it.
pub fn normalized(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// Maximum number of blocks and expressions in a template. Templates of models have some hundreds.
const TAGS_MAX: usize = 10_000;

/// Maximum number of characters outside of strings in one block or expression. Each operator in a row nests the
/// compiler deeper, and its time grows with the square of their number.
const TAG_CHARS_MAX: usize = 4_096;

/// Returns `source` with its `{% generation %}` blocks rewritten as filters named `filter`, and true if it has such
/// blocks.
///
/// # Errors
/// A sentence: `source` has more than [`TAGS_MAX`] blocks and expressions, or one of more than [`TAG_CHARS_MAX`]
/// characters.
pub fn with_filters(source: &str, filter: &str) -> Result<(String, bool), String> {
    let (mut out, mut rest, mut found) = (String::with_capacity(source.len()), source, false);
    let mut tags = 0;
    while let Some(start) = rest.find("{") {
        let length = match rest.as_bytes().get(start + 1) {
            Some(b'#') => rest[start..].find("#}").map_or(rest.len() - start, |end| end + 2),
            Some(b'{' | b'%') => {
                let (length, chars) = tag(&rest[start..]);
                tags += 1;
                check(tags, chars)?;
                length
            }
            _ => 1,
        };
        let (before, tag) = (&rest[..start], &rest[start..start + length]);
        rest = &rest[start + length..];
        out.push_str(before);
        match word(tag) {
            "generation" => {
                found = true;
                out.push_str(&tag.replacen("generation", &format!("filter {filter}"), 1));
            }
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endfilter", 1)),
            "raw" => {
                let length = raw(rest);
                out.push_str(tag);
                out.push_str(&rest[..length]);
                rest = &rest[length..];
            }
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    Ok((out, found))
}

fn check(tags: usize, chars: usize) -> Result<(), String> {
    let why = match () {
        () if tags > TAGS_MAX => format!("has more than {TAGS_MAX} blocks and expressions"),
        () if chars > TAG_CHARS_MAX => {
            format!("has an expression of more than {TAG_CHARS_MAX} characters outside of strings")
        }
        () => return Ok(()),
    };
    Err(format!("the chat template {why}: give --chat-template a simpler file"))
}

/// Returns the content of a block without its delimiters; an empty text if `tag` is not a block.
fn word(tag: &str) -> &str {
    let inside = tag.strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}"));
    inside.unwrap_or_default().trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace())
}

/// Returns the length of the block or expression at the start of `text`, and its number of characters outside of
/// strings. A string may contain any characters.
fn tag(text: &str) -> (usize, usize) {
    let end = if text.starts_with("{%") { "%}" } else { "}}" };
    let (mut quote, mut is_escaped, mut depth, mut chars) = (None, false, 0_usize, 0);
    for (at, c) in text.char_indices().skip(2) {
        chars += usize::from(quote.is_none() && !c.is_whitespace());
        match (quote, c) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(begun), _) if begun == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, _) if depth == 0 && text[at..].starts_with(end) => return (at + end.len(), chars),
            (None, '{' | '[' | '(') => depth += 1,
            (None, '}' | ']' | ')') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    (text.len(), chars)
}

/// Returns the length of the verbatim text at the start of `text`, up to its `endraw` block.
fn raw(text: &str) -> usize {
    let ends = text.match_indices("{%").map(|(at, _)| at);
    let is_end = |&at: &usize| {
        let length = text[at..].find("%}").map_or(text.len() - at, |end| end + 2);
        word(&text[at..at + length]) == "endraw"
    };
    ends.into_iter().find(is_end).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_is_a_filter_only_where_it_is_a_block() {
        let with = |source: &str| with_filters(source, "f").unwrap();
        assert_eq!(with("a{%- generation -%}b{% endgeneration %}").0, "a{%- filter f -%}b{% endfilter %}");
        for other in [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{% if x == '{% generation %}' %}",
            "{% raw %}{% generation %}{% endraw %}",
            "{{ {'a': {}} }}{",
        ] {
            assert_eq!(with(other), (other.to_owned(), false));
        }
    }

    #[test]
    fn deep_nesting_is_refused() {
        let with = |source: &str| with_filters(source, "f").map(|_| ());
        assert_eq!(with(&format!("{{{{ '{}' }}}}", "a.".repeat(100_000))), Ok(()), "a long string");
        for source in
            [format!("{{{{ a{} }}}}", ".a".repeat(2_100)), format!("{{{{ 'a'{} }}}}", "~'a'".repeat(2_100))]
        {
            assert!(with(&source).unwrap_err().contains("more than 4096 characters outside of strings"));
        }
        assert!(with(&"{{ a }}".repeat(10_001)).unwrap_err().contains("more than 10000 blocks"));
    }

    #[test]
    fn lines_end_as_jinja_reads_them() {
        assert_eq!(normalized("a\r\nb\rc\n\r\nd"), "a\nb\nc\n\nd");
    }
}
