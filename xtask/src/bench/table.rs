//! Figures in a human-readable form.

use serde_json::Value;

/// Formats `value`: one line for each scalar, and a table for each list of objects.
pub fn render(value: &Value) -> String {
    let Value::Object(fields) = value else { return format!("{}\n", cell(value)) };
    let mut text = String::new();
    for (key, value) in fields {
        match value.as_array() {
            Some(rows) if rows.iter().all(Value::is_object) => text.push_str(&table(rows)),
            _ => text.push_str(&format!("{key}: {}\n", cell(value))),
        }
    }
    text
}

fn table(rows: &[Value]) -> String {
    let Some(first) = rows.first().and_then(Value::as_object) else { return String::new() };
    let columns: Vec<&String> = first.keys().collect();
    let mut lines = vec![columns.iter().map(|column| column.to_string()).collect::<Vec<_>>()];
    lines.extend(rows.iter().map(|row| columns.iter().map(|column| cell(&row[column.as_str()])).collect()));
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let line = |cells: &Vec<String>| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
        cells.collect::<Vec<_>>().join("  ") + "\n"
    };
    lines.iter().map(line).collect()
}

/// Formats a value with three significant digits, the precision of a noisy machine.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => match number.as_f64().unwrap_or(f64::NAN) {
            large if large.abs() >= 100.0 => format!("{large:.0}"),
            middle if middle.abs() >= 1.0 => format!("{middle:.2}"),
            small => format!("{small:.3}"),
        },
        Value::Null => "–".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn scalars_are_lines_and_lists_are_tables() {
        let rows = json!([{ "a": 1, "b": 1234.5 }, { "a": 200, "b": 0.25 }, { "a": null, "b": null }]);
        let value = json!({ "copy": 12.345, "rows": rows });
        assert_eq!(render(&value), "copy: 12.35\n  a      b\n  1   1234\n200  0.250\n  –      –\n");
    }
}
