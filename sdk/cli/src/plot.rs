//! Plots as SVG: our results with filled marks, those of the paper with hollow ones, legible on light and dark
//! backgrounds.
//!
//! Coordinates are rounded to a tenth, so that the same numbers give the same bytes.

use std::fmt::Write;

/// A plot of several series.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Name of the file, without `.svg`.
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

/// Mapping of numbers to positions on an axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Scale {
    /// Linear.
    Linear,
    /// Logarithmic; points at 0 or below are omitted.
    Log,
    /// Names of the positions, which are integers from 0.
    Names(Vec<String>),
}

/// A set of points with one style.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend; empty for a series without an entry.
    pub name: String,
    /// Index of colour and mark shape. Our results and the paper's for the same quantity have the same index.
    pub colour: u8,
    /// Style of the series.
    pub mark: SeriesStyle,
    /// Points (x, y); points with NaN are omitted.
    pub points: Vec<(f64, f64)>,
}

/// Style of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeriesStyle {
    /// Filled marks connected by a line, for our results.
    Line,
    /// Filled marks without a line, for our results if they have no order.
    Dot,
    /// Bars from the bottom; bars at the same x are side by side.
    Bar,
    /// Hollow marks without a line, for reference values, mostly those of the paper.
    Hollow,
}

/// Width of the drawing, in SVG units.
const WIDTH: f64 = 720.0;
/// Left edge of the frame, after tick labels and the axis label.
const LEFT: f64 = 64.0;
const TOP: f64 = 40.0;
/// Right edge of the frame, before the legend.
const RIGHT: f64 = 520.0;
const BOTTOM: f64 = 350.0;
/// Maximum number of points for which a line has marks.
const MARKS_MAX: usize = 20;
/// Height of a line of text.
const LINE: f64 = 18.0;
/// Approximate width of a letter.
const LETTER: f64 = 7.0;
/// Vertical extent of each letter in a label that is turned by 35 degrees.
const DROP: f64 = 4.0;
/// Colours of marks on light and dark backgrounds. Each index also has a shape. They repeat after the last one.
const COLOURS: [(&str, &str); 6] = [
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8c42"),
    ("#00805c", "#2fc79b"),
    ("#a64f86", "#e39cc7"),
    ("#8a6d00", "#f0c84b"),
    ("#555f6b", "#aab4bf"),
];

impl Plot {
    /// Returns the content of the SVG file.
    #[must_use]
    pub fn svg(&self) -> String {
        let x = Map::new(&self.x.scale, self.values(|point| point.0, false), LEFT, RIGHT);
        let y = Map::new(&self.y.scale, self.values(|point| point.1, self.has_bars()), BOTTOM, TOP);
        // The legend has one line for each named series. A long legend sets the height, otherwise the frame does.
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
        self.series.iter().any(|series| series.mark == SeriesStyle::Bar)
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

    /// Returns the extra height for names that do not fit next to each other and are turned; 0 if they fit.
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
        if series.mark == SeriesStyle::Line && places.len() > 1 {
            let path: Vec<String> = places.iter().map(|(x, y, _)| format!("{x:.1} {y:.1}")).collect();
            let _ = writeln!(svg, r#"<path class="line" d="M{}"/>"#, path.join("L"));
        }
        let unmarked = series.mark == SeriesStyle::Line && places.len() > MARKS_MAX;
        for (left, top, title) in places.into_iter().filter(|_| !unmarked) {
            let _ = write!(svg, "<g><title>{}</title>", escape(&title));
            match series.mark {
                SeriesStyle::Bar => {
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
            // The cast saturates, and every x is the index of a name.
            Scale::Names(names) => names.get(x.max(0.0) as usize).cloned().unwrap_or_default(),
            Scale::Linear | Scale::Log => figure(x),
        }
    }

    fn bars(&self) -> f64 {
        self.series.iter().filter(|series| series.mark == SeriesStyle::Bar).count() as f64
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

    /// Returns the offset of the left edge of a bar of series `index` from its x.
    fn bar_shift(&self, index: usize) -> f64 {
        let before =
            self.series[..index].iter().filter(|series| series.mark == SeriesStyle::Bar).count() as f64;
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

/// Draws a mark at `(x, y)`. Each colour has its own shape, so that the plot does not depend on colour alone.
fn draw_mark(svg: &mut String, mark: SeriesStyle, colour: usize, (x, y): (f64, f64)) {
    let class = if mark == SeriesStyle::Hollow { r#" class="hollow""# } else { "" };
    let _ = match colour {
        _ if mark == SeriesStyle::Bar => {
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

/// Escapes text for the content of an SVG or HTML element. It is not for attributes, because quotes stay unchanged.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Formats a number with four significant digits, at most three of them after the decimal point.
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

/// Returns 0.0 for −0.0, whose sign would be printed.
fn positive_zero(value: f64) -> f64 {
    value + 0.0
}

/// Approximate number of ticks on a linear axis.
const TICKS: f64 = 6.0;

/// Mapping of numbers to coordinates between the two ends of an axis.
struct Map<'a> {
    scale: &'a Scale,
    /// Smallest and largest number on the axis, or their logarithms.
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl<'a> Map<'a> {
    /// Returns a mapping to coordinates `from` to `to` whose range includes all `values`.
    fn new(scale: &'a Scale, values: Vec<f64>, from: f64, to: f64) -> Self {
        let (low, high) = match scale {
            Scale::Names(names) => (-0.5, names.len().max(1) as f64 - 0.5),
            Scale::Linear | Scale::Log => {
                let values: Vec<f64> = values.into_iter().filter_map(|value| to_axis(scale, value)).collect();
                let low = values.iter().copied().reduce(f64::min);
                let high = values.iter().copied().reduce(f64::max);
                let (low, high) = low.zip(high).unwrap_or((0.0, 1.0));
                // A single number is in the middle. Several numbers get a margin, which does not extend below zero.
                let margin = if high > low { 0.04 * (high - low) } else { 0.5 };
                let bottom = if *scale == Scale::Linear && low >= 0.0 {
                    0.0_f64.max(low - margin)
                } else {
                    low - margin
                };
                (bottom, high + margin)
            }
        };
        Self { scale, low, high, from, to }
    }

    /// Returns the coordinate of `value`, or `None` if the axis cannot show it.
    fn place(&self, value: f64) -> Option<f64> {
        let at = to_axis(self.scale, value)?;
        Some(self.from + (at - self.low) / (self.high - self.low) * (self.to - self.from))
    }

    /// Returns positions and labels of the ticks.
    fn ticks(&self) -> Vec<(f64, String)> {
        let values: Vec<(f64, String)> = match self.scale {
            Scale::Names(names) => {
                names.iter().enumerate().map(|(i, name)| (i as f64, name.clone())).collect()
            }
            Scale::Linear => {
                let step = nice_step((self.high - self.low) / TICKS);
                // The small term keeps a tick that rounding would move beyond the edge.
                let first = (self.low / step - 1e-9).ceil();
                let ticks = (0..).map(|i| (first + f64::from(i)) * step);
                ticks
                    .take_while(|tick| *tick <= self.high + 1e-9 * step)
                    .map(|tick| (tick, label(tick)))
                    .collect()
            }
            Scale::Log => {
                let dense = self.high - self.low < 2.0;
                let decades = (self.low.floor() as i32)..=(self.high.ceil() as i32);
                let digits: &[f64] = if dense { &[1.0, 2.0, 5.0] } else { &[1.0] };
                let ticks =
                    decades.flat_map(|decade| digits.iter().map(move |digit| digit * 10_f64.powi(decade)));
                let shown = |tick: &f64| (self.low..=self.high).contains(&tick.log10());
                ticks.filter(shown).map(|tick| (tick, label(tick))).collect()
            }
        };
        values.into_iter().filter_map(|(value, label)| Some((self.place(value)?, label))).collect()
    }
}

fn to_axis(scale: &Scale, value: f64) -> Option<f64> {
    match scale {
        Scale::Log => (value.is_finite() && value > 0.0).then(|| value.log10()),
        Scale::Linear | Scale::Names(_) => value.is_finite().then_some(value),
    }
}

/// Returns the smallest number of at least `rough` that is 1, 2 or 5 times a power of ten.
fn nice_step(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.log10().floor());
    let digit = [1.0, 2.0, 5.0].into_iter().find(|digit| digit * power >= rough * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

/// Returns a short label of a tick: 150 k instead of 150000.
fn label(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, " G"),
        size if size >= 1e6 => (value / 1e6, " M"),
        size if size >= 1e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    // Four digits after the decimal point hide binary rounding errors.
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let text = if text.is_empty() || text == "-0" { "0" } else { text };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(series: Vec<Series>) -> Plot {
        let axis = |label: &str, scale| Axis { label: label.into(), scale };
        Plot {
            name: "plot".into(),
            title: "a < b & c".into(),
            x: axis("chips", Scale::Log),
            y: axis("goodput [%]", Scale::Linear),
            series,
        }
    }

    fn series(mark: SeriesStyle, points: &[(f64, f64)]) -> Series {
        Series { name: "M = 2".into(), colour: 0, mark, points: points.to_vec() }
    }

    #[test]
    fn draws_lines_and_marks_at_their_points() {
        let points = [(1.0, 0.0), (10.0, 50.0), (100.0, 100.0)];
        let svg = plot(vec![series(SeriesStyle::Line, &points), series(SeriesStyle::Hollow, &points)]).svg();
        // The middle of the frame is halfway between 64 and 520 and between 350 and 40, with a small margin at the top.
        assert!(svg.contains(r#"<path class="line" d="M80.9 350.0L292.0 201.0L503.1 51.9"/>"#), "{svg}");
        let mark = r#"<g><title>M = 2: 10.00, 50.00</title><circle class="hollow" cx="292.0" cy="201.0" r="4.5"/></g>"#;
        assert!(svg.contains(mark), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 2 * (3 + 1), "three marks and one in the legend, each");
        assert_eq!(
            svg,
            plot(vec![series(SeriesStyle::Line, &points), series(SeriesStyle::Hollow, &points)]).svg()
        );
    }

    #[test]
    fn long_lines_go_without_marks() {
        let points: Vec<(f64, f64)> = (1..=50).map(|x| (f64::from(x), 1.0)).collect();
        let svg = plot(vec![series(SeriesStyle::Line, &points), series(SeriesStyle::Hollow, &points)]).svg();
        assert_eq!(svg.matches("<circle").count(), 1 + (50 + 1), "the line has one, in the legend");
    }

    #[test]
    fn text_is_escaped() {
        let svg = plot(vec![]).svg();
        assert!(svg.contains("<title>a &lt; b &amp; c</title>"), "{svg}");
        assert!(!svg.contains("a < b"), "{svg}");
    }

    #[test]
    fn nothing_and_no_numbers_leave_a_frame() {
        for series in [
            vec![],
            vec![series(SeriesStyle::Line, &[])],
            vec![series(SeriesStyle::Line, &[(f64::NAN, 1.0)])],
        ] {
            let svg = plot(series).svg();
            assert!(!svg.contains("NaN") && !svg.contains("inf") && svg.contains("class=\"frame\""), "{svg}");
        }
    }

    #[test]
    fn bars_stand_side_by_side_on_the_ground() {
        let bars = |name: &str| Series {
            name: name.into(),
            ..series(SeriesStyle::Bar, &[(0.0, 10.0), (1.0, 20.0)])
        };
        let mut plot = plot(vec![bars("one"), bars("two")]);
        plot.x.scale = Scale::Names(vec!["a".into(), "b".into()]);
        let svg = plot.svg();
        // There are two positions 228 apart. Two bars take 80 % of each.
        for left in ["86.8", "178.0", "314.8", "406.0"] {
            assert!(svg.contains(&format!(r#"<rect x="{left}" "#)), "{left} in {svg}");
        }
        assert!(svg.contains(r#"width="91.2" height="149.0""#), "{svg}");
    }

    #[test]
    fn names_without_room_are_turned_and_a_series_without_a_name_has_no_legend() {
        let mut plot =
            plot(vec![Series { name: String::new(), ..series(SeriesStyle::Dot, &[(0.0, 1.0), (1.0, 2.0)]) }]);
        let names = |length: usize| Scale::Names(vec!["a".repeat(length), "b".into()]);
        plot.x.scale = names(32);
        let level = plot.svg();
        assert!(!level.contains("rotate(-35)") && level.contains(r#"viewBox="0 0 720 404""#), "{level}");
        plot.x.scale = names(33);
        let turned = plot.svg();
        // 33 letters extend downwards by four units each.
        assert!(turned.contains(r#"viewBox="0 0 720 536""#), "{turned}");
        assert!(
            turned.contains(r#"<text transform="translate(182.0 368) rotate(-35)" text-anchor="end">aaa"#),
            "{turned}"
        );
        assert_eq!(turned.matches("<circle").count(), 2, "the marks, and no legend");
        assert!(
            !turned.contains(r#"class="line" d"#) && turned.contains("<title>b, 2.000</title>"),
            "{turned}"
        );
    }

    #[test]
    fn figures_keep_four_digits() {
        let figures = [0.4301, 1.72, 18.62, 103.64, 1_999.6, f64::NAN].map(figure);
        assert_eq!(figures, ["0.430", "1.720", "18.62", "103.6", "2000", "NaN"]);
    }

    fn ticks(scale: &Scale, values: &[f64]) -> Vec<String> {
        Map::new(scale, values.to_vec(), 0.0, 100.0).ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(ticks(&Scale::Linear, &[0.0, 100.0]), ["0", "20", "40", "60", "80", "100"]);
        assert_eq!(ticks(&Scale::Linear, &[1.52, 1.74]), ["1.55", "1.6", "1.65", "1.7"]);
        assert_eq!(ticks(&Scale::Log, &[1.5e5, 2.4e6]), ["200 k", "500 k", "1 M", "2 M"]);
        assert_eq!(ticks(&Scale::Log, &[0.1, 1_000.0]), ["0.1", "1", "10", "100", "1000"]);
        assert_eq!(ticks(&Scale::Names(vec!["a".into(), "b".into()]), &[]), ["a", "b"]);
        assert_eq!(ticks(&Scale::Linear, &[-0.02, 0.02]), ["-0.02", "-0.01", "0", "0.01", "0.02"]);
    }

    #[test]
    fn every_value_has_its_place() {
        let linear = Map::new(&Scale::Linear, vec![3.0], 0.0, 100.0);
        assert_eq!(linear.place(3.0), Some(50.0));
        assert_eq!(linear.place(f64::NAN), None);
        let log = Map::new(&Scale::Log, vec![1.0, 100.0], 0.0, 100.0);
        assert!((log.place(10.0).unwrap() - 50.0).abs() < 1e-9);
        assert_eq!(log.place(0.0), None);
        // An axis exists even without values.
        assert!(Map::new(&Scale::Log, vec![-1.0], 0.0, 1.0).place(3.0).is_some());
    }
}
