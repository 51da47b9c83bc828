//! Tables of a Markdown page, and the numbers in them.

/// A table of a page. Cells are without the marks of bold and code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    heads: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns the first table with all of `columns` under `heading` and before the next heading.
    #[must_use]
    pub fn find(page: &str, heading: &str, columns: &[&str]) -> Option<Self> {
        let is_heading = |line: &str| line.starts_with('#');
        let under = page
            .lines()
            .skip_while(|line| !is_heading(line) || line.trim_start_matches('#').trim() != heading);
        let mut lines = under.skip(1).take_while(|line| !is_heading(line)).peekable();
        while let Some(line) = lines.next() {
            let Some(heads) = cells(line) else { continue };
            let below = std::iter::from_fn(|| lines.next_if(|line| line.starts_with('|')));
            // The first line below the heads is the separator.
            let rows = below.skip(1).filter_map(cells).collect();
            if columns.iter().all(|column| heads.iter().any(|head| head == column)) {
                return Some(Self { heads, rows });
            }
        }
        None
    }

    /// Returns the cells of `column` in the matching rows. In a matching row, for each pair of a column and a word in
    /// `rows`, the cell equals the word or begins with it.
    #[must_use]
    pub fn column(&self, column: &str, rows: &[(&str, &str)]) -> Vec<&str> {
        let cell = |row: &'_ [String], column: &str| {
            let at = self.heads.iter().position(|head| head == column)?;
            row.get(at).cloned()
        };
        let says = |cell: &str, word: &str| {
            cell.strip_prefix(word).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let is_meant = |row: &&Vec<String>| {
            rows.iter().all(|(column, word)| cell(row, column).is_some_and(|cell| says(&cell, word)))
        };
        let at = self.heads.iter().position(|head| head == column);
        let its = self.rows.iter().filter(is_meant).filter_map(|row| row.get(at?));
        its.map(String::as_str).collect()
    }
}

fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.trim_end().strip_prefix('|')?.strip_suffix('|')?;
    Some(inner.split('|').map(|cell| cell.replace("**", "").replace('`', "").trim().to_owned()).collect())
}

/// Returns the numbers of a cell, in order. Numbers inside a word, as in `int4`, are skipped.
#[must_use]
pub fn numbers(cell: &str) -> Vec<f64> {
    let cell = cell.replace('−', "-");
    let words = cell.split(|c: char| !c.is_alphanumeric() && !".,+-".contains(c));
    let number = |word: &str| {
        let word = word.trim_end_matches(['.', ',']).replace(',', "");
        // Rust parses "inf" and "nan" as numbers.
        if word.contains(|c: char| c.is_alphabetic()) { None } else { word.parse().ok() }
    };
    words.filter_map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# One\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n| | `c`, in **s** |\n|---|---|\n| `x` y | **3** |\n| `x` | 4 |\n| xy | 5 |\n
## Two\n\n| a | b |\n|---|---|\n| 6 | 7 |\n";

    /// Checks a column of the first table under `heading` that has it.
    fn check(heading: &str, column: &str, rows: &[(&str, &str)], expected: &[&str]) {
        let table = Table::find(PAGE, heading, &[column]);
        assert_eq!(
            table.map(|table| table.column(column, rows).join(" ")),
            Some(expected.join(" ")),
            "{column}"
        );
    }

    #[test]
    fn tables_are_found_by_heading_and_columns() {
        check("One", "b", &[], &["2"]);
        check("Two", "b", &[], &["7"]);
        check("One", "c, in s", &[], &["3", "4", "5"]);
        check("One", "c, in s", &[("", "x")], &["3", "4"]);
        check("One", "c, in s", &[("", "x"), ("c, in s", "4")], &["4"]);
        assert_eq!(Table::find(PAGE, "Two", &["c, in s"]), None);
        assert_eq!(Table::find(PAGE, "Three", &["a"]), None);
    }

    #[test]
    fn numbers_are_read_as_people_write_them() {
        assert_eq!(numbers("+2.10 · −4.18 · +2.55 %, mean 1,955"), [2.1, -4.18, 2.55, 1_955.0]);
        assert_eq!(numbers("3.3 s and 16.2 s."), [3.3, 16.2]);
        assert_eq!(numbers("int4, nan, –, M = 8"), [8.0]);
        assert!(numbers("never").is_empty());
    }
}
