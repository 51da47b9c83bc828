//! Tests of plots: drawn marks, escaped texts, and plots without numbers.

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

fn series(mark: Mark, points: &[(f64, f64)]) -> Series {
    Series { name: "M = 2".into(), colour: 0, mark, points: points.to_vec() }
}

#[test]
fn draws_what_it_is_given() {
    let points = [(1.0, 0.0), (10.0, 50.0), (100.0, 100.0)];
    let svg = plot(vec![series(Mark::Line, &points), series(Mark::Hollow, &points)]).svg();
    // The middle of the frame is halfway between 64 and 520 and between 350 and 40, with a small margin at the top.
    assert!(svg.contains(r#"<path class="line" d="M80.9 350.0L292.0 201.0L503.1 51.9"/>"#), "{svg}");
    let mark =
        r#"<g><title>M = 2: 10.00, 50.00</title><circle class="hollow" cx="292.0" cy="201.0" r="4.5"/></g>"#;
    assert!(svg.contains(mark), "{svg}");
    assert_eq!(svg.matches("<circle").count(), 2 * (3 + 1), "three marks and one in the legend, each");
    assert_eq!(svg, plot(vec![series(Mark::Line, &points), series(Mark::Hollow, &points)]).svg());
}

#[test]
fn long_lines_go_without_marks() {
    let points: Vec<(f64, f64)> = (1..=50).map(|x| (f64::from(x), 1.0)).collect();
    let svg = plot(vec![series(Mark::Line, &points), series(Mark::Hollow, &points)]).svg();
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
    for series in [vec![], vec![series(Mark::Line, &[])], vec![series(Mark::Line, &[(f64::NAN, 1.0)])]] {
        let svg = plot(series).svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf") && svg.contains("class=\"frame\""), "{svg}");
    }
}

#[test]
fn bars_stand_side_by_side_on_the_ground() {
    let bars = |name: &str| Series { name: name.into(), ..series(Mark::Bar, &[(0.0, 10.0), (1.0, 20.0)]) };
    let mut plot = plot(vec![bars("one"), bars("two")]);
    plot.x.scale = Scale::Names(vec!["a".into(), "b".into()]);
    let svg = plot.svg();
    // Two positions 228 apart, 80 % of each for two bars.
    for left in ["86.8", "178.0", "314.8", "406.0"] {
        assert!(svg.contains(&format!(r#"<rect x="{left}" "#)), "{left} in {svg}");
    }
    assert!(svg.contains(r#"width="91.2" height="149.0""#), "{svg}");
}

#[test]
fn names_without_room_are_turned_and_a_series_without_a_name_has_no_legend() {
    let mut plot = plot(vec![Series { name: String::new(), ..series(Mark::Dot, &[(0.0, 1.0), (1.0, 2.0)]) }]);
    let names = |length: usize| Scale::Names(vec!["a".repeat(length), "b".into()]);
    plot.x.scale = names(32);
    let level = plot.svg();
    assert!(!level.contains("rotate(-35)") && level.contains(r#"viewBox="0 0 720 404""#), "{level}");
    plot.x.scale = names(33);
    let turned = plot.svg();
    // 33 letters that reach down by four each.
    assert!(turned.contains(r#"viewBox="0 0 720 536""#), "{turned}");
    assert!(
        turned.contains(r#"<text transform="translate(182.0 368) rotate(-35)" text-anchor="end">aaa"#),
        "{turned}"
    );
    assert_eq!(turned.matches("<circle").count(), 2, "the marks, and no legend");
    assert!(!turned.contains(r#"class="line" d"#) && turned.contains("<title>b, 2.000</title>"), "{turned}");
}

#[test]
fn figures_keep_four_digits() {
    let figures = [0.4301, 1.72, 18.62, 103.64, 1_999.6, f64::NAN].map(figure);
    assert_eq!(figures, ["0.430", "1.720", "18.62", "103.6", "2000", "NaN"]);
}
