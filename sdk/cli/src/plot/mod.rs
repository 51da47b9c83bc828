//! Plots as SVG: our results with filled marks, the paper's with hollow ones, legible on light and dark backgrounds.
//!
//! Coordinates are rounded to a tenth, so that the same figures give the same bytes.

mod scale;

use std::fmt::Write;

use scale::Map;

/// A plot of several series.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Name of its file, without `.svg`.
    pub name: String,
    /// Title above the plot.
    pub title: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Series, in drawing order.
    pub series: Vec<Series>,
}

/// One axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Label, with the unit.
    pub label: String,
    /// Scale of the axis.
    pub scale: Scale,
}

/// Mapping from numbers to an axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic; numbers up to 0 are omitted.
    Log,
    /// Names at 0, 1, 2, …
    Names(Vec<String>),
}

/// A set of points with one style.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend; empty for no entry.
    pub name: String,
    /// Colour and shape of its marks. Our results and the paper's for the same quantity share one.
    pub colour: u8,
    /// Style of the series.
    pub mark: Mark,
    /// Points (x, y); points with NaN are omitted.
    pub points: Vec<(f64, f64)>,
}

/// Style of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Filled marks joined by a line, for our results.
    Line,
    /// Filled marks without a line, for unordered results of ours.
    Dot,
    /// Bars from the bottom; bars at the same x are side by side.
    Bar,
    /// Hollow marks without a line, for reference values, mostly the paper's.
    Hollow,
}

/// Width of the drawing, in its own units.
const WIDTH: f64 = 720.0;
/// Space on the left for numbers and the axis label.
const LEFT: f64 = 64.0;
const TOP: f64 = 40.0;
/// Right edge of the frame; the legend is to its right.
const RIGHT: f64 = 520.0;
const BOTTOM: f64 = 350.0;
/// Maximum number of points of a line with marks.
const MARKS_MAX: usize = 20;
/// Height of a line of text.
const LINE: f64 = 18.0;
/// Approximate width of a letter.
const LETTER: f64 = 7.0;
/// Vertical extent of each letter in a name turned by 35 degrees.
const DROP: f64 = 4.0;
/// Colours of marks, each with a shape. They repeat after the last one.
const COLOURS: [(&str, &str); 6] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8c42"),
    ("#00805c", "#2fc79b"),
    ("#a64f86", "#e39cc7"),
    ("#8a6d00", "#f0c84b"),
    ("#555f6b", "#aab4bf"),
];

impl Plot {
    /// Returns the complete file.
    #[must_use]
    pub fn svg(&self) -> String {
        let x = Map::new(&self.x.scale, self.values(|point| point.0, false), LEFT, RIGHT);
        let y = Map::new(&self.y.scale, self.values(|point| point.1, self.has_bars()), BOTTOM, TOP);
        // One line of the legend for each named series; otherwise the frame sets the height.
        let named = self.series.iter().filter(|series| !series.name.is_empty()).count();
        let height = (BOTTOM + 54.0 + self.drop()).max(TOP + LINE * (named + 1) as f64);
        let mut svg = head(height, &self.title);
        self.draw_axes(&mut svg, &x, &y);
        let mut legend = 0.5;
        for (i, series) in self.series.iter().enumerate() {
            let colour = usize::from(series.colour) % COLOURS.len();
            let _ = writeln!(svg, r#"<g class="c{colour}">"#);
            self.draw_series(&mut svg, i, &x, &y);
            if series.name.is_empty() {
                svg.push_str("</g>\n");
                continue;
            }
            let at = (RIGHT + 24.0, TOP + LINE * legend);
            legend += 1.0;
            draw_mark(&mut svg, series.mark, colour, at);
            svg.push_str("</g>\n");
            text(&mut svg, at.0 + 14.0, at.1 + 4.0, "start", &series.name);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn has_bars(&self) -> bool {
        self.series.iter().any(|series| series.mark == Mark::Bar)
    }

    fn values(&self, of: impl Fn(&(f64, f64)) -> f64, with_zero: bool) -> Vec<f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points.map(of).chain(with_zero.then_some(0.0)).filter(|value| value.is_finite()).collect()
    }

    fn draw_axes(&self, svg: &mut String, x: &Map, y: &Map) {
        let _ = writeln!(
            svg,
            r#"<rect class="frame" x="{LEFT}" y="{TOP}" width="{:.0}" height="{:.0}"/>"#,
            RIGHT - LEFT,
            BOTTOM - TOP
        );
        for (at, label) in x.ticks() {
            let _ =
                writeln!(svg, r#"<path class="grid" d="M{at:.1} {BOTTOM}V{TOP}"/>"#, at = positive_zero(at));
            if self.drop() > 0.0 {
                let _ = writeln!(
                    svg,
                    r#"<text transform="translate({:.1} {}) rotate(-35)" text-anchor="end">{}</text>"#,
                    at + 4.0,
                    BOTTOM + LINE,
                    escape(&label)
                );
            } else {
                text(svg, at, BOTTOM + LINE, "middle", &label);
            }
        }
        for (at, label) in y.ticks() {
            let _ = writeln!(svg, r#"<path class="grid" d="M{LEFT} {at:.1}H{RIGHT}"/>"#);
            text(svg, LEFT - 6.0, at + 4.0, "end", &label);
        }
        text(svg, f64::midpoint(LEFT, RIGHT), BOTTOM + 2.4 * LINE + self.drop(), "middle", &self.x.label);
        let middle = f64::midpoint(TOP, BOTTOM);
        let _ = writeln!(
            svg,
            r#"<text transform="translate(14 {middle:.1}) rotate(-90)" text-anchor="middle">{}</text>"#,
            escape(&self.y.label)
        );
    }

    /// Returns the extra height for names that do not fit side by side and are turned; 0 if they fit.
    fn drop(&self) -> f64 {
        let Scale::Names(names) = &self.x.scale else { return 0.0 };
        let longest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0) as f64 * LETTER;
        let has_room = longest <= (RIGHT - LEFT) / names.len().max(1) as f64;
        if has_room { 0.0 } else { longest / LETTER * DROP }
    }

    fn draw_series(&self, svg: &mut String, index: usize, x: &Map, y: &Map) {
        let series = &self.series[index];
        let colour = usize::from(series.colour) % COLOURS.len();
        let shift = self.bar_shift(index);
        let places = series.points.iter().filter_map(|point| {
            let name = if series.name.is_empty() { String::new() } else { format!("{}: ", series.name) };
            let title = format!("{name}{}, {}", self.x_name(point.0), figure(point.1));
            Some((x.place(point.0)?, y.place(point.1)?, title))
        });
        let places: Vec<(f64, f64, String)> = places.collect();
        if series.mark == Mark::Line && places.len() > 1 {
            let path: Vec<String> = places.iter().map(|(x, y, _)| format!("{x:.1} {y:.1}")).collect();
            let _ = writeln!(svg, r#"<path class="line" d="M{}"/>"#, path.join("L"));
        }
        let unmarked = series.mark == Mark::Line && places.len() > MARKS_MAX;
        for (left, top, title) in places.into_iter().filter(|_| !unmarked) {
            let _ = write!(svg, "<g><title>{}</title>", escape(&title));
            match series.mark {
                Mark::Bar => {
                    let (width, left) = (self.bar_width(), left + shift);
                    let height = BOTTOM - top;
                    let _ = write!(
                        svg,
                        r#"<rect x="{left:.1}" y="{top:.1}" width="{width:.1}" height="{height:.1}"/>"#
                    );
                }
                mark => draw_mark(svg, mark, colour, (left, top)),
            }
            svg.push_str("</g>\n");
        }
    }

    fn x_name(&self, x: f64) -> String {
        match &self.x.scale {
            // The cast saturates, and names are never out of range.
            Scale::Names(names) => names.get(x.max(0.0) as usize).cloned().unwrap_or_default(),
            Scale::Linear | Scale::Log => figure(x),
        }
    }

    fn bars(&self) -> f64 {
        self.series.iter().filter(|series| series.mark == Mark::Bar).count() as f64
    }

    fn bar_width(&self) -> f64 {
        let places = match &self.x.scale {
            Scale::Names(names) => names.len(),
            Scale::Linear | Scale::Log => {
                self.series.iter().map(|series| series.points.len()).max().unwrap_or(1)
            }
        };
        0.8 * (RIGHT - LEFT) / places.max(1) as f64 / self.bars().max(1.0)
    }

    /// Returns the offset from x to the left edge of the bar of series `index`.
    fn bar_shift(&self, index: usize) -> f64 {
        let before = self.series[..index].iter().filter(|series| series.mark == Mark::Bar).count() as f64;
        self.bar_width() * (before - self.bars() / 2.0)
    }
}

fn head(height: f64, title: &str) -> String {
    let mut svg =
        format!(r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" role="img">"#);
    let title = escape(title);
    let _ = writeln!(svg, "\n<title>{title}</title>\n<style>");
    svg.push_str(
        "svg{color:#1b1f24;font:13px system-ui,sans-serif}text{fill:currentColor}.h{font-weight:600}\n",
    );
    svg.push_str(".frame,.grid,.line,.hollow{fill:none;stroke:currentColor}.frame{stroke-opacity:.5}\n");
    svg.push_str(".grid{stroke-opacity:.15}.line,.hollow{stroke-width:2}g{fill:currentColor}\n");
    for (i, (light, _)) in COLOURS.iter().enumerate() {
        let _ = write!(svg, ".c{i}{{color:{light}}}");
    }
    svg.push_str("\n@media(prefers-color-scheme:dark){svg{color:#e6e8eb}");
    for (i, (_, dark)) in COLOURS.iter().enumerate() {
        let _ = write!(svg, ".c{i}{{color:{dark}}}");
    }
    let _ = writeln!(svg, "}}\n</style>\n<text class=\"h\" x=\"{LEFT}\" y=\"24\">{title}</text>");
    svg
}

/// Draws a mark at `(x, y)`, with a shape for each colour, so that colour alone carries no information.
fn draw_mark(svg: &mut String, mark: Mark, colour: usize, (x, y): (f64, f64)) {
    let class = if mark == Mark::Hollow { r#" class="hollow""# } else { "" };
    let _ = match colour {
        _ if mark == Mark::Bar => {
            write!(svg, r#"<rect x="{:.1}" y="{:.1}" width="10" height="10"/>"#, x - 5.0, y - 5.0)
        }
        0 => write!(svg, r#"<circle{class} cx="{x:.1}" cy="{y:.1}" r="4.5"/>"#),
        1 => write!(svg, r#"<rect{class} x="{:.1}" y="{:.1}" width="8" height="8"/>"#, x - 4.0, y - 4.0),
        2 => write!(svg, r#"<path{class} d="M{x:.1} {:.1}l5 9h-10z"/>"#, y - 5.0),
        3 => write!(svg, r#"<path{class} d="M{x:.1} {:.1}l5.5 5.5-5.5 5.5-5.5-5.5z"/>"#, y - 5.5),
        4 => write!(svg, r#"<path{class} d="M{x:.1} {:.1}l5-9h-10z"/>"#, y + 5.0),
        _ => write!(svg, r#"<path{class} d="M{:.1} {:.1}h10v5h-10z"/>"#, x - 5.0, y - 2.5),
    };
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let text = escape(text);
    let _ = writeln!(svg, r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{text}</text>"#);
}

/// Escapes a text for the content of an SVG or HTML element. It is not for attributes, since quotes are unchanged.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Formats a number with four significant digits, at most three of them after the point.
#[must_use]
pub fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 1_000.0 => 0,
        size if size >= 100.0 => 1,
        size if size >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

/// Removes the sign of −0.0, which would be printed.
fn positive_zero(value: f64) -> f64 {
    value + 0.0
}

#[cfg(test)]
mod tests;
