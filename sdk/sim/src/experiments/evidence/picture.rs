//! Plots of figures in tables of pages.

use std::fs;
use std::ops::Range;
use std::path::Path;

use super::page::{Table, numbers};
use crate::experiments::{Axis, Mark, Plot, Scale, Series, SimulateError};

/// A picture.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Name of its file, without `.svg`.
    pub name: &'static str,
    pub title: &'static str,
    pub x: (&'static str, Scale),
    pub y: (&'static str, Scale),
    /// Lines of the plot. A named x axis takes the first line's `x` cells, each up to a comma, as names.
    pub lines: Vec<Line>,
}

/// One series: a selection of cells from a table.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: &'static str,
    pub colour: u8,
    pub mark: Mark,
    /// Page of the evidence.
    pub page: &'static str,
    pub heading: &'static str,
    /// A filter for rows: each of these columns equals or begins with that word.
    pub rows: Vec<(&'static str, &'static str)>,
    /// Column of x; the first number counts.
    pub x: &'static str,
    /// Column of y.
    pub y: &'static str,
    /// Indices of the plotted numbers in a y cell.
    pub numbers: Range<usize>,
}

impl Picture {
    /// Plots the figures from the pages in `folder`.
    ///
    /// # Errors
    /// - `Disk`: a page cannot be read.
    /// - `Refused`: a table is missing, or has no numbers to plot.
    pub fn draw(&self, folder: &Path) -> Result<Plot, SimulateError> {
        let is_named = matches!(self.x.1, Scale::Names(_));
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
                let ys = numbers(y).into_iter().enumerate().filter(|(i, _)| line.numbers.contains(i));
                points.extend(ys.filter_map(|(_, y)| Some((x?, y))));
            }
            if points.is_empty() {
                return Err(line.missing(folder, &format!("number in the column `{}`", line.y)));
            }
            series.push(Series { name: line.name.into(), colour: line.colour, mark: line.mark, points });
        }
        let axis = |(label, scale): (&str, Scale)| Axis { label: label.into(), scale };
        let x = (self.x.0, if is_named { Scale::Names(names) } else { self.x.1.clone() });
        Ok(Plot {
            name: self.name.into(),
            title: self.title.into(),
            x: axis(x),
            y: axis(self.y.clone()),
            series,
        })
    }
}

impl Line {
    /// Returns the cells of x and y in its rows.
    fn cells(&self, folder: &Path) -> Result<Vec<(String, String)>, SimulateError> {
        let path = folder.join(self.page);
        let disk = |source| SimulateError::Disk { what: "read", path: path.clone(), source };
        let page = fs::read_to_string(&path).map_err(disk)?;
        let table = Table::find(&page, self.heading, &[self.x, self.y]).ok_or_else(|| {
            self.missing(folder, &format!("table with the columns `{}` and `{}`", self.x, self.y))
        })?;
        let column = |name| table.column(name, &self.rows).into_iter().map(str::to_owned);
        Ok(column(self.x).zip(column(self.y)).collect())
    }

    fn missing(&self, folder: &Path, what: &str) -> SimulateError {
        let path = folder.join(self.page);
        SimulateError::refused(format!(
            "{} has no {what} under the heading `{}`",
            path.display(),
            self.heading
        ))
    }
}
