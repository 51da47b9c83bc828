//! Plots of figures in tables of pages, as specified by `plots.toml` in the folder of the evidence.

use std::fs;
use std::path::Path;

use serde::Deserialize;

use super::page::{Table, numbers};
use crate::{Axis, Plot, Scale, Series, SeriesStyle, SimulateError};

/// All plots of a folder.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plots {
    plot: Vec<Picture>,
}

/// Plot of table cells.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Picture {
    /// Name of its file, without `.svg`.
    name: String,
    title: String,
    /// Label and kind of the x axis. `y` has those of the y axis.
    x: (String, Kind),
    y: (String, Kind),
    /// Lines of the plot. If the x axis has names, they are the `x` cells of the first line, each up to a comma.
    lines: Vec<SeriesSelection>,
}

/// One series: a selection of cells from a table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SeriesSelection {
    name: String,
    colour: u8,
    #[serde(default)]
    mark: LineMark,
    /// Page of the evidence.
    page: String,
    heading: String,
    /// Filter for rows, as pairs of a column and a word: the cell equals the word or begins with it.
    #[serde(default)]
    rows: Vec<(String, String)>,
    /// Column of x. The first number of a cell is used.
    x: String,
    /// Column of y.
    y: String,
    /// First index and end of the plotted numbers in a cell of y.
    #[serde(default = "first")]
    numbers: (usize, usize),
}

/// Kind of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Linear,
    Log,
    Names,
}

/// Style of a line.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum LineMark {
    #[default]
    Line,
    Dot,
    Hollow,
    Bar,
}

impl From<LineMark> for SeriesStyle {
    fn from(mark: LineMark) -> Self {
        match mark {
            LineMark::Line => Self::Line,
            LineMark::Dot => Self::Dot,
            LineMark::Hollow => Self::Hollow,
            LineMark::Bar => Self::Bar,
        }
    }
}

fn first() -> (usize, usize) {
    (0, 1)
}

/// Draws all plots of `folder`.
///
/// # Errors
/// - `Disk`: a file cannot be read.
/// - `Refused`: `plots.toml` is malformed, a table is missing, or it has no numbers to plot.
pub fn draw(folder: &Path) -> Result<Vec<Plot>, SimulateError> {
    let path = folder.join("plots.toml");
    let disk = |source| SimulateError::Disk { what: "read", path: path.clone(), source };
    let text = fs::read_to_string(&path).map_err(disk)?;
    let plots: Plots = toml::from_str(&text).map_err(|error| {
        SimulateError::refused(format!("{} does not describe plots: {}", path.display(), error.message()))
    })?;
    plots.plot.iter().map(|picture| picture.draw(folder)).collect()
}

impl Picture {
    /// Plots the figures from the pages in `folder`.
    ///
    /// # Errors
    /// - `Disk`: a page cannot be read.
    /// - `Refused`: a table is missing, or has no numbers to plot.
    fn draw(&self, folder: &Path) -> Result<Plot, SimulateError> {
        let is_named = self.x.1 == Kind::Names;
        let mut names: Vec<String> = Vec::new();
        let mut series = Vec::new();
        for line in &self.lines {
            let cells = line.cells(folder)?;
            if names.is_empty() {
                let name = |x: &str| x.split(',').next().unwrap_or_default().to_owned();
                names = cells.iter().map(|(x, _)| name(x)).collect();
            }
            let mut points = Vec::new();
            for (row, (x, y)) in cells.iter().enumerate() {
                let x = if is_named { Some(row as f64) } else { numbers(x).first().copied() };
                let ys = numbers(y)
                    .into_iter()
                    .enumerate()
                    .filter(|(i, _)| (line.numbers.0..line.numbers.1).contains(i));
                points.extend(ys.filter_map(|(_, y)| Some((x?, y))));
            }
            if points.is_empty() {
                return Err(line.missing(folder, &format!("number in the column `{}`", line.y)));
            }
            series.push(Series {
                name: line.name.clone(),
                colour: line.colour,
                mark: line.mark.into(),
                points,
            });
        }
        let axis = |(label, kind): &(String, Kind)| {
            let scale = match kind {
                Kind::Linear => Scale::Linear,
                Kind::Log => Scale::Log,
                Kind::Names => Scale::Names(names.clone()),
            };
            Axis { label: label.clone(), scale }
        };
        Ok(Plot {
            name: self.name.clone(),
            title: self.title.clone(),
            x: axis(&self.x),
            y: axis(&self.y),
            series,
        })
    }
}

impl SeriesSelection {
    /// Returns the cells of x and y in the selected rows.
    fn cells(&self, folder: &Path) -> Result<Vec<(String, String)>, SimulateError> {
        let path = folder.join(&self.page);
        let disk = |source| SimulateError::Disk { what: "read", path: path.clone(), source };
        let page = fs::read_to_string(&path).map_err(disk)?;
        let table = Table::find(&page, &self.heading, &[&self.x, &self.y]).ok_or_else(|| {
            self.missing(folder, &format!("table with the columns `{}` and `{}`", self.x, self.y))
        })?;
        let rows: Vec<(&str, &str)> = self.rows.iter().map(|(column, word)| (&**column, &**word)).collect();
        let column =
            |name: &str| table.column(name, &rows).into_iter().map(str::to_owned).collect::<Vec<_>>();
        Ok(column(&self.x).into_iter().zip(column(&self.y)).collect())
    }

    fn missing(&self, folder: &Path, what: &str) -> SimulateError {
        let path = folder.join(&self.page);
        SimulateError::refused(format!(
            "{} has no {what} under the heading `{}`",
            path.display(),
            self.heading
        ))
    }
}
