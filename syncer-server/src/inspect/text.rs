//! Formats of numbers, aligned tables, and comma-separated values.

pub use archipelago_core::text::plain;

/// Placeholder for an unknown value.
pub const UNKNOWN: &str = "–";

/// Formats 1234567 as "1,234,567".
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats 0.9512 as "95.1 %".
pub fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Formats `share`, the merged share of trained tokens. A share of 1 without merged tokens means that nothing is
/// trained yet; it is shown as unknown.
pub fn participation(share: f64, tokens_merged: u64) -> String {
    if tokens_merged == 0 && share >= 1.0 { UNKNOWN.into() } else { percent(share) }
}

/// Formats a loss in nats per token; [`UNKNOWN`] for `None`.
pub fn nats(loss: Option<f32>) -> String {
    loss.map_or_else(|| UNKNOWN.into(), |loss| format!("{loss:.3}"))
}

/// Formats a duration with at most two units, as in 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h.
pub fn duration(seconds: f64) -> String {
    // The cast saturates.
    let whole = seconds.max(0.0).round() as u64;
    let units = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];
    let first = units.iter().position(|(size, _)| whole >= *size).unwrap_or(units.len() - 1);
    let mut rest = whole;
    let mut parts = Vec::new();
    for (size, unit) in units.iter().skip(first).take(2) {
        let number = rest / size;
        rest %= size;
        if number > 0 || parts.is_empty() {
            parts.push(format!("{number} {unit}"));
        }
    }
    parts.join(" ")
}

/// Formats an age in seconds, as in 45 s ago.
pub fn ago(seconds: f64) -> String {
    format!("{} ago", duration(seconds))
}

/// A column of a table or CSV file with rows of type `T`.
pub struct Column<T> {
    head: &'static str,
    is_number: bool,
    cell: fn(&T) -> String,
}

/// Creates a column of texts, which is aligned to the left.
pub const fn text<T>(head: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { head, is_number: false, cell }
}

/// Creates a column of numbers, which is aligned to the right.
pub const fn number<T>(head: &'static str, cell: fn(&T) -> String) -> Column<T> {
    Column { head, is_number: true, cell }
}

/// Returns the cells of each line: the column heads, then one line per row.
fn lines<T>(columns: &[Column<T>], rows: &[T]) -> Vec<Vec<String>> {
    let heads = columns.iter().map(|column| column.head.to_owned()).collect();
    let cells = rows.iter().map(|row| columns.iter().map(|column| (column.cell)(row)).collect());
    std::iter::once(heads).chain(cells).collect()
}

/// Formats rows below their column heads, in aligned columns.
pub fn table<T>(columns: &[Column<T>], rows: &[T]) -> String {
    let lines = lines(columns, rows);
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let aligned = |line: &Vec<String>| {
        let cells = line.iter().zip(columns).zip(&widths).map(|((cell, column), &width)| {
            if column.is_number { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    lines.iter().map(aligned).collect::<Vec<_>>().join("\n")
}

/// Formats rows as comma-separated values below their column heads, in the format that the dashboard saves and reads.
/// The last line has no line break.
pub fn csv<T>(columns: &[Column<T>], rows: &[T]) -> String {
    let lines = lines(columns, rows);
    let lines = lines.iter().map(|line| line.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(","));
    lines.collect::<Vec<_>>().join("\r\n")
}

/// Quotes a CSV cell where necessary, and puts `'` before text that a spreadsheet would take for a formula.
fn quoted(cell: &str) -> String {
    let is_formula =
        cell.starts_with(['=', '@', '+', '\t']) || (cell.starts_with('-') && cell.parse::<f64>().is_err());
    let cell = if is_formula { format!("'{cell}") } else { cell.to_owned() };
    match cell.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_for_people() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        let times = [0.0, 59.4, 200.0, 3_600.0, 7_500.0, 273_600.0];
        assert_eq!(times.map(duration), ["0 s", "59 s", "3 min 20 s", "1 h", "2 h 5 min", "3 d 4 h"]);
        assert_eq!(
            [participation(1.0, 0), participation(0.0, 0), participation(1.0, 9)],
            ["–", "0.0 %", "100.0 %"]
        );
    }

    #[test]
    fn columns_line_up() {
        let columns: [Column<(&str, u64)>; 2] =
            [text("name", |row| row.0.into()), number("merged", |row| count(row.1))];
        let table = table(&columns, &[("anna", 7), ("Ångström", 1_000)]);
        assert_eq!(table, "name      merged\nanna           7\nÅngström   1,000");
    }

    #[test]
    fn cells_stay_cells() {
        let cells = ["a,b", "say \"x\"", "=1+1", "-1.5"];
        let csv = csv(&[text("w", |cell: &&str| (*cell).to_owned())], &cells);
        assert_eq!(csv, "w\r\n\"a,b\"\r\n\"say \"\"x\"\"\"\r\n'=1+1\r\n-1.5");
    }
}
