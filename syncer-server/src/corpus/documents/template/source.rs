//! Rewriting of a template's source before it is compiled.

/// Returns `source` with line feeds as its only line ends, as Jinja2 reads it.
pub fn normalized(source: &str) -> String {
    source.replace("\r\n", "\n").replace('\r', "\n")
}

/// Returns `source` with its `{% generation %}` blocks rewritten as filters named `filter`. Also returns whether it has
/// such blocks.
pub fn with_filters(source: &str, filter: &str) -> (String, bool) {
    let (mut out, mut rest, mut found) = (String::with_capacity(source.len()), source, false);
    while let Some(start) = rest.find("{") {
        let length = match rest.as_bytes().get(start + 1) {
            Some(b'#') => rest[start..].find("#}").map_or(rest.len() - start, |end| end + 2),
            Some(b'{' | b'%') => tag(&rest[start..]),
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
    (out, found)
}

/// Returns the content of a block without its delimiters; an empty text if `tag` is no block.
fn word(tag: &str) -> &str {
    let inside = tag.strip_prefix("{%").and_then(|tag| tag.strip_suffix("%}"));
    inside.unwrap_or_default().trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace())
}

/// Returns the length of the block or expression at the start of `text`. Strings in it may contain any characters.
fn tag(text: &str) -> usize {
    let end = if text.starts_with("{%") { "%}" } else { "}}" };
    let (mut quote, mut is_escaped, mut depth) = (None, false, 0_usize);
    for (at, c) in text.char_indices().skip(2) {
        match (quote, c) {
            (Some(_), _) if is_escaped => is_escaped = false,
            (Some(_), '\\') => is_escaped = true,
            (Some(begun), _) if begun == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, _) if depth == 0 && text[at..].starts_with(end) => return at + end.len(),
            (None, '{' | '[' | '(') => depth += 1,
            (None, '}' | ']' | ')') => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of verbatim text, up to the block that ends it.
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
        let with = |source: &str| with_filters(source, "f");
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
    fn lines_end_as_jinja_reads_them() {
        assert_eq!(normalized("a\r\nb\rc\n\r\nd"), "a\nb\nc\n\nd");
    }
}
