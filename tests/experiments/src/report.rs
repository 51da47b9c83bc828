//! Results of a simulation, compared with the paper's.

use archipelago_cli::plot::{Plot, figure};
use serde::Serialize;

/// The results of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulationReport {
    /// The subject, in one line.
    pub title: String,
    /// Unit of all cases. With `%`, differences are in points; with any other unit, in percent.
    pub unit: &'static str,
    /// Rows of the table.
    pub cases: Vec<Case>,
    /// Points of the curves in notes and plots. They are rows of the JSON, but not of the table.
    pub points: Vec<Case>,
    /// Sentences below the table.
    pub notes: Vec<String>,
    /// Plots of the results.
    pub plots: Vec<Plot>,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Case {
    /// Description of the figure, unique in its report.
    pub case: String,
    /// Our result.
    pub ours: f64,
    /// The paper's figure, if it has one.
    pub paper: Option<f64>,
    /// A remark on this row.
    #[serde(skip)]
    pub note: Option<String>,
}

impl Case {
    /// Creates a figure without a remark.
    #[must_use]
    pub fn new(case: impl Into<String>, ours: f64, paper: Option<f64>) -> Self {
        Self { case: case.into(), ours, paper, note: None }
    }

    /// Returns the figure with a remark.
    #[must_use]
    pub fn noted(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }
}

impl SimulationReport {
    /// Returns the cases, followed by the points, as one line of JSON: `[{"case":…, "ours":…, "paper":…}, …]`.
    #[must_use]
    pub fn json(&self) -> String {
        let rows: Vec<&Case> = self.cases.iter().chain(&self.points).collect();
        serde_json::to_string(&rows).expect("plain data")
    }

    /// Returns the report as text: a table, notes, and the `constants` behind it.
    #[must_use]
    pub fn text(&self, constants: &[(String, String)]) -> String {
        let points = self.unit == "%";
        let heads = ["case", "ours", "paper", "difference", ""].map(String::from).to_vec();
        let rows = self.cases.iter().map(|case| {
            let difference = case.paper.map(|paper| match points {
                true => format!("{:+.1} points", case.ours - paper),
                false => format!("{:+.1} %", 100.0 * (case.ours / paper - 1.0)),
            });
            vec![
                case.case.clone(),
                figure(case.ours),
                case.paper.map_or_else(|| "none".into(), figure),
                difference.unwrap_or_default(),
                case.note.clone().unwrap_or_default(),
            ]
        });
        let rows: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
        let mut text = format!("{} [{}]\n\n{}\n", self.title, self.unit, aligned(&rows));
        for note in &self.notes {
            text.push_str(&format!("\n{note}"));
        }
        let constants: Vec<String> =
            constants.iter().map(|(flag, value)| format!("--{flag} {value}")).collect();
        text.push_str(&format!("\nconstants: {}", constants.join(", ")));
        text
    }
}

/// Formats rows in aligned columns: the first to the left, figures to the right, the last unchanged.
fn aligned(rows: &[Vec<String>]) -> String {
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

    fn report(unit: &'static str) -> SimulationReport {
        let cases = vec![
            Case::new("one", 41.0, Some(40.0)),
            Case::new("two", 7.0, None).noted("nobody published it"),
        ];
        SimulationReport {
            title: "Something".into(),
            unit,
            cases,
            points: vec![Case::new("point", 1.0, None)],
            notes: vec!["A note.".into()],
            plots: vec![],
        }
    }

    #[test]
    fn json_is_a_list_of_cases() {
        let json: serde_json::Value = serde_json::from_str(&report("s").json()).unwrap();
        let expected = serde_json::json!([
            { "case": "one", "ours": 41.0, "paper": 40.0 }, { "case": "two", "ours": 7.0, "paper": null },
            { "case": "point", "ours": 1.0, "paper": null },
        ]);
        assert_eq!(json, expected);
    }

    #[test]
    fn differences_suit_the_unit() {
        let constants = [("seed".to_owned(), "1".to_owned())];
        let text = report("%").text(&constants);
        assert!(text.contains("+1.0 points") && text.contains("nobody published it"), "{text}");
        assert!(text.ends_with("A note.\nconstants: --seed 1") && !text.contains("point "), "{text}");
        assert!(report("s").text(&constants).contains("+2.5 %"));
    }

    #[test]
    fn columns_stand_below_each_other() {
        let rows = [vec!["case", "ours", ""], vec!["é", "1", "why"], vec!["long one", "22.5", ""]];
        let rows = rows.map(|row| row.into_iter().map(String::from).collect());
        assert_eq!(aligned(&rows), "case      ours\né            1  why\nlong one  22.5");
        assert_eq!(aligned(&[]), "");
    }
}
