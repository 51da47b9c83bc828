//! Formats of figures, and aligned tables.

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

/// Returns the share of trained tokens that is merged, as text. `tokens_merged` is the number merged so far. While
/// nothing is trained, the share is unknown; a share of 1 with no merged tokens indicates this.
pub fn participation(share: f64, tokens_merged: u64) -> String {
    if tokens_merged == 0 && share >= 1.0 { UNKNOWN.into() } else { percent(share) }
}

/// Formats a loss in nats per token.
pub fn nats(loss: Option<f64>) -> String {
    loss.map_or_else(|| UNKNOWN.into(), |loss| format!("{loss:.3}"))
}

/// Formats a duration: 45 s, 3 min 20 s, 2 h 5 min, 3 d 4 h.
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

/// Formats an age.
pub fn ago(seconds: f64) -> String {
    format!("{} ago", duration(seconds))
}

/// Alignment of a column.
#[derive(Clone, Copy)]
pub enum Side {
    /// Left aligned, for texts.
    Left,
    /// Right aligned, for numbers.
    Right,
}

/// Formats rows below their heads, in aligned columns.
pub fn table(heads: &[(&str, Side)], rows: &[Vec<String>]) -> String {
    let width = |at: usize, head: &str| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        cells.chain([head.chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = heads.iter().enumerate().map(|(at, (head, _))| width(at, head)).collect();
    let line = |cells: Vec<&str>| {
        let padded = cells.iter().zip(heads).zip(&widths).map(|((cell, (_, side)), width)| match side {
            Side::Left => format!("{cell:<width$}"),
            Side::Right => format!("{cell:>width$}"),
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let head = line(heads.iter().map(|(head, _)| *head).collect());
    let rows = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(head).chain(rows).collect::<Vec<_>>().join("\n")
}

/// Formats comma-separated values, in the format that the dashboard saves and reads.
pub fn csv(heads: &[&str], rows: &[Vec<String>]) -> String {
    let line =
        |cells: Vec<&str>| cells.iter().map(|cell| quoted(cell)).collect::<Vec<_>>().join(",") + "\r\n";
    let rows = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    std::iter::once(line(heads.to_vec())).chain(rows).collect()
}

/// Formats a cell: doubles quotes, and prefixes text that a spreadsheet would take for a formula.
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
        let rows = [vec!["anna".into(), "7".into()], vec!["Ångström".into(), "1,000".into()]];
        let table = table(&[("name", Side::Left), ("merged", Side::Right)], &rows);
        assert_eq!(table, "name      merged\nanna           7\nÅngström   1,000");
    }

    #[test]
    fn cells_stay_cells() {
        let rows = [vec!["a,b".into(), "say \"x\"".into(), "=1+1".into(), "-1.5".into()]];
        assert_eq!(csv(&["w", "x", "y", "z"], &rows), "w,x,y,z\r\n\"a,b\",\"say \"\"x\"\"\",'=1+1,-1.5\r\n");
    }
}
