//! `report.html`: a self-contained page about a run.

use std::fmt::Write;

use archipelago_cli::plot::{Axis, Plot, Scale, Series, SeriesStyle, escape, figure};
use serde_json::Value;

use super::RunReport;
use crate::inspect::{count, duration};
use crate::store::readable;

/// Maximum number of learners in the table. One row sums up the others.
const CONTRIBUTORS_MAX: usize = 200;
/// Maximum number of generated texts on the page, spread over the run.
const TEXTS_MAX: usize = 8;

/// Beginning of a page, up to its title. Its content security policy keeps the browser from loading anything.
pub(crate) const HEAD: &str = concat!(
    "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n",
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n",
    "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<style>\n",
    include_str!("page.css"),
    "</style>\n"
);

/// Renders the page of a run.
#[must_use]
pub fn page(report: &RunReport) -> String {
    let mut html = Html::default();
    let title = format!("Run {}", report.run);
    html.raw(HEAD).element("title", &format!("{title} of Archipelago")).raw("</head>\n<body>\n<header>\n");
    html.element("h1", &title).element("p", &sentence(report)).raw("</header>\n<main>\n");
    figures(&mut html, report);
    curves(&mut html, report);
    contributors(&mut html, report);
    texts(&mut html, report);
    model(&mut html, report);
    settings(&mut html, report);
    html.raw("</main>\n</body>\n</html>\n");
    html.into_text()
}

/// Describes the run in a few sentences.
fn sentence(report: &RunReport) -> String {
    let learners = match report.contributors.len() {
        1 => "one learner".to_owned(),
        many => format!("{} learners, none of which waited for another", count(many as u64)),
    };
    let text = match &*report.statistics.corpus {
        "" => String::new(),
        name => format!(" Its text: {name}."),
    };
    let rest = if report.is_over { "The run is complete." } else { "The run was not complete at that time." };
    format!("A language model with {} parameters, trained by {learners}.{text} {rest}", count(report.params))
}

fn figures(html: &mut Html, report: &RunReport) {
    let history = &report.statistics.history;
    let loss = |loss: Option<f32>| loss.map_or_else(|| "not measured".to_owned(), |loss| figure(loss.into()));
    let tokens = report.spec.data.shards.iter().map(|shard| shard.tokens).sum();
    let all = [
        ("Held-out loss at first, nats per token", loss(history.first())),
        ("Held-out loss at last, nats per token", loss(history.last())),
        ("Tokens merged", count(report.tokens_merged)),
        ("Tokens in the text", count(tokens)),
        ("Rounds", count(report.rounds)),
        ("Participation", figure(report.participation)),
        ("Uptime of the syncer", duration(report.statistics.run_s)),
    ];
    html.raw("<dl>\n");
    for (name, value) in all {
        html.raw("<div>").element("dt", name).element("dd", &value).raw("</div>\n");
    }
    html.raw("</dl>\n");
}

fn curves(html: &mut Html, report: &RunReport) {
    let statistics = &report.statistics;
    let measured = statistics.history.evaluations.iter();
    let held_out = measured.map(|found| (found.tokens_merged as f64, found.loss.into())).collect();
    let points = || statistics.series.points();
    let trained =
        points().filter_map(|point| Some((point.tokens_merged as f64, point.train_loss?.into()))).collect();
    let live = points().map(|point| (point.time_s, point.live.into())).collect();
    html.raw("<section>\n").element("h2", "The course of the run");
    let losses = [("training loss", 1, trained), ("held-out loss", 0, held_out)];
    curve(html, "Loss", ["tokens merged", "nats per token"], losses);
    let axes = ["uptime of the syncer, seconds", "learners"];
    curve(html, "Learners in rounds", axes, [("learners", 2, live)]);
    html.raw("</section>\n");
}

/// A curve: its name, colour and points.
type Curve<'a> = (&'a str, u8, Vec<(f64, f64)>);

/// Draws `curves` in one plot. `axes` are the labels of x and y.
pub(crate) fn curve<const N: usize>(html: &mut Html, title: &str, axes: [&str; 2], curves: [Curve<'_>; N]) {
    let [x, y] = axes.map(|label| Axis { label: label.into(), scale: Scale::Linear });
    let line = |(name, colour, points): Curve<'_>| Series {
        name: name.into(),
        colour,
        mark: SeriesStyle::Line,
        points,
    };
    let plot = Plot { name: title.into(), title: title.into(), x, y, series: curves.map(line).into() };
    html.raw("<div class=\"wide plot\">\n").raw(&plot.svg()).raw("</div>\n");
}

fn contributors(html: &mut Html, report: &RunReport) {
    html.raw("<section>\n").element("h2", "Contributors");
    if report.contributors.is_empty() {
        html.element("p", "No learner yet.").raw("</section>\n");
        return;
    }
    let (shown, others) = report.contributors.split_at(report.contributors.len().min(CONTRIBUTORS_MAX));
    let share = |tokens: u64| match report.tokens_merged {
        0 => "–".to_owned(),
        all => format!("{:.1} %", 100.0 * tokens as f64 / all as f64),
    };
    let row = |name: String, device: String, tokens, updates| {
        vec![name, device, count(tokens), share(tokens), count(updates)]
    };
    let mut rows: Vec<Vec<String>> = shown
        .iter()
        .map(|one| row(one.name.clone(), one.device.clone(), one.tokens_merged, one.updates))
        .collect();
    if !others.is_empty() {
        let (tokens, updates) = others
            .iter()
            .fold((0, 0), |(tokens, updates), one| (tokens + one.tokens_merged, updates + one.updates));
        rows.push(row(format!("{} more", count(others.len() as u64)), String::new(), tokens, updates));
    }
    html.table(&["Learner", "Device", "Tokens merged", "Share", "Updates"], 2, &rows).raw("</section>\n");
}

fn texts(html: &mut Html, report: &RunReport) {
    let kept = report.statistics.history.samples.kept();
    if kept.is_empty() {
        return;
    }
    html.raw("<section>\n").element("h2", "Texts of the model over the run");
    // The first text, the newest, and evenly spaced ones between them.
    let last = kept.len() - 1;
    let shown = TEXTS_MAX.min(kept.len());
    let mut places: Vec<usize> = (0..shown).map(|i| i * last / (shown - 1).max(1)).collect();
    places.dedup();
    for sample in places.iter().filter_map(|place| kept.get(*place)) {
        let (tokens, loss) = (count(sample.tokens_merged), figure(sample.loss.into()));
        html.element("h3", &format!("After {tokens} tokens, at a held-out loss of {loss}"));
        html.element("pre", &sample.text);
    }
    html.raw("</section>\n");
}

fn model(html: &mut Html, report: &RunReport) {
    html.raw("<section>\n").element("h2", "The model");
    let place =
        "“syncer-server export” writes the model to a folder, and the dashboard offers it as an archive.";
    if report.is_decoder {
        html.element("p", &format!("{place} The transformers of Hugging Face load it as a Llama:"));
    } else {
        html.element(
            "p",
            &format!("{place} Its tensors have their original names, which its own program knows."),
        );
    }
    let load = "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n\
                tokenizer = AutoTokenizer.from_pretrained(\"my-model\")\n\
                model = AutoModelForCausalLM.from_pretrained(\"my-model\")\n\
                tokens = tokenizer(\"Once upon a time\", return_tensors=\"pt\")\n\
                print(tokenizer.decode(model.generate(**tokens, max_new_tokens=100, do_sample=True)[0]))";
    if report.is_decoder {
        html.element("pre", load);
    }
    let sha = report.spec.data.shards.iter().map(|shard| archipelago_core::bytes::hex(&shard.sha256));
    let sums: Vec<Vec<String>> = sha.enumerate().map(|(i, sum)| vec![format!("Shard {i}"), sum]).collect();
    html.raw("<details>\n").element("summary", "SHA-256 of the text's shards, as tokens");
    html.table(&[], usize::MAX, &sums).raw("</details>\n</section>\n");
}

/// Adds all settings that learners received, under their names in the run's spec.
fn settings(html: &mut Html, report: &RunReport) {
    html.raw("<section>\n").element("h2", "Settings");
    // The spec is parsed from text, so that 32-bit floats keep their short decimal form.
    let spec = serde_json::to_string(&report.spec).unwrap_or_default();
    let mut spec: Value = serde_json::from_str(&spec).unwrap_or_default();
    spec["model"] = readable(&report.spec.model);
    if let Some(data) = spec.get_mut("data").and_then(Value::as_object_mut) {
        data.remove("shards");
    }
    let mut rows = Vec::new();
    leaves("", &spec, &mut rows);
    html.table(&["Setting", "Value"], 1, &rows).raw("</section>\n");
}

/// Adds a row for each leaf of `value`: its path, which begins with `name`, and its value.
fn leaves(name: &str, value: &Value, rows: &mut Vec<Vec<String>>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
                leaves(&name, value, rows);
            }
        }
        Value::String(text) => rows.push(vec![name.to_owned(), text.clone()]),
        other => rows.push(vec![name.to_owned(), other.to_string()]),
    }
}

/// HTML under construction. Texts are escaped when they are added. Names of elements and classes are trusted.
#[derive(Default)]
pub(crate) struct Html(String);

impl Html {
    /// Adds trusted HTML unchanged.
    pub(crate) fn raw(&mut self, html: &str) -> &mut Self {
        self.0.push_str(html);
        self
    }

    /// Adds an element with escaped text. `name` may be followed by attributes.
    pub(crate) fn element(&mut self, name: &str, text: &str) -> &mut Self {
        let _ = writeln!(self.0, "<{name}>{}</{}>", escape(text), name.split(' ').next().unwrap_or(name));
        self
    }

    /// Adds a table. Columns from the index `numbers_from` on hold numbers.
    pub(crate) fn table(&mut self, columns: &[&str], numbers_from: usize, rows: &[Vec<String>]) -> &mut Self {
        self.raw("<div class=\"wide\"><table>\n");
        if !columns.is_empty() {
            self.raw("<thead><tr>");
            for (i, column) in columns.iter().enumerate() {
                let class = if i >= numbers_from { " class=\"number\"" } else { "" };
                self.element(&format!("th scope=\"col\"{class}"), column);
            }
            self.raw("</tr></thead>\n");
        }
        self.raw("<tbody>\n");
        for row in rows {
            self.raw("<tr>");
            for (i, cell) in row.iter().enumerate() {
                let name = match i {
                    0 => "th scope=\"row\"",
                    i if i >= numbers_from => "td class=\"number\"",
                    _ => "td",
                };
                self.element(name, cell);
            }
            self.raw("</tr>\n");
        }
        self.raw("</tbody></table></div>\n")
    }

    /// Returns the HTML.
    pub(crate) fn into_text(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_no_markup() {
        let mut html = Html::default();
        html.element("p class=\"x\"", "<b a='\"'>&");
        assert_eq!(html.into_text(), "<p class=\"x\">&lt;b a='\"'&gt;&amp;</p>\n");
    }
}
