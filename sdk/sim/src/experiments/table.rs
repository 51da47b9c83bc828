//! Text in columns.

/// Formats rows in aligned columns: the first to the left, figures to the right, the last unchanged.
#[must_use]
pub fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
            0 => format!("{cell:width$}"),
            column if column + 1 == columns => format!("  {cell}"),
            _ => format!("  {cell:>width$}"),
        });
        cells.collect::<String>().trim_end().to_owned()
    };
    rows.iter().map(line).collect::<Vec<String>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [vec!["case", "ours", ""], vec!["é", "1", "why"], vec!["long one", "22.5", ""]];
        let rows = rows.map(|row| row.into_iter().map(String::from).collect());
        assert_eq!(aligned(&rows), "case      ours\né            1  why\nlong one  22.5");
        assert_eq!(aligned(&[]), "");
    }
}
