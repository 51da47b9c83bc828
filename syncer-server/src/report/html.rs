//! HTML writer that escapes all foreign text.

use std::fmt::Write;

use archipelago_cli::plot::escape;

/// HTML under construction. Texts are escaped when they are added; names of elements and classes are our own.
#[derive(Default)]
pub(crate) struct Html(String);

impl Html {
    /// Adds our own HTML unchanged.
    pub(crate) fn raw(&mut self, html: &str) -> &mut Self {
        self.0.push_str(html);
        self
    }

    /// Adds foreign text in an element.
    pub(crate) fn element(&mut self, name: &str, text: &str) -> &mut Self {
        let _ = writeln!(self.0, "<{name}>{}</{}>", escape(text), name.split(' ').next().unwrap_or(name));
        self
    }

    /// Adds a table with the names of its columns and its rows. The columns from `numbers_from` on are numbers.
    pub(crate) fn table(&mut self, columns: &[&str], numbers_from: usize, rows: &[Vec<String>]) -> &mut Self {
        self.raw("<div class=\"wide\"><table>\n");
        if !columns.is_empty() {
            self.raw("<thead><tr>");
            for (i, column) in columns.iter().enumerate() {
                let class = if i >= numbers_from { " class=\"number\"" } else { "" };
                self.element(&format!("th scope=\"col\"{class}"), column);
            }
            self.raw("</tr></thead>\n");
        }
        self.raw("<tbody>\n");
        for row in rows {
            self.raw("<tr>");
            for (i, cell) in row.iter().enumerate() {
                let name = match i {
                    0 => "th scope=\"row\"",
                    i if i >= numbers_from => "td class=\"number\"",
                    _ => "td",
                };
                self.element(name, cell);
            }
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table></div>\n")
    }

    /// Returns the HTML.
    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

/// Formats a count with thin spaces between groups of three digits.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// Formats a duration in its two largest units.
pub(crate) fn span(seconds: f64) -> String {
    // Casting saturates, and a negative duration becomes 0.
    let seconds = seconds.round() as u64;
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let first = units.iter().position(|(unit, _)| seconds >= *unit).unwrap_or(3);
    let mut left = seconds;
    let mut words = Vec::new();
    for (unit, name) in units.iter().skip(first).take(2) {
        if left >= *unit || words.is_empty() {
            words.push(format!("{} {name}", left / unit));
        }
        left %= unit;
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(
            [0, 999, 1_000, 1_234_567].map(count),
            ["0", "999", "1\u{202f}000", "1\u{202f}234\u{202f}567"]
        );
        let spans = [0.0, 59.4, 60.0, 3_725.0, 90_000.0, f64::NAN].map(span);
        assert_eq!(spans, ["0 s", "59 s", "1 min", "1 h 2 min", "1 d 1 h", "0 s"]);
    }

    #[test]
    fn texts_are_no_marks() {
        let mut html = Html::default();
        html.element("p class=\"x\"", "<b a='\"'>&");
        assert_eq!(html.into_text(), "<p class=\"x\">&lt;b a='\"'&gt;&amp;</p>\n");
    }
}
