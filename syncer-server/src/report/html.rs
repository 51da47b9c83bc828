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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_no_markup() {
        let mut html = Html::default();
        html.element("p class=\"x\"", "<b a='\"'>&");
        assert_eq!(html.into_text(), "<p class=\"x\">&lt;b a='\"'&gt;&amp;</p>\n");
    }
}
