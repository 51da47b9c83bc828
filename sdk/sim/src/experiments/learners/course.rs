//! Effect of the number of learners, at the end and on the way.

use crate::experiments::findings::Findings;
use crate::experiments::lines::Found;
use crate::experiments::{Axis, Case, Mark, Plot, Scale, Series};

/// The quantity that is equal for all numbers of learners.
pub(super) struct Equal {
    /// "equal steps".
    pub(super) what: &'static str,
    name: &'static str,
    title: &'static str,
}

/// The same steps for each learner.
pub(super) const STEPS: Equal =
    Equal { what: "equal steps", name: "learners-steps", title: "The same steps for each learner" };
/// The same tokens in total.
pub(super) const TOKENS: Equal =
    Equal { what: "equal tokens", name: "learners-tokens", title: "The same tokens in all" };

/// Training of M learners, compared with data-parallel training.
pub(super) struct Course {
    pub(super) equal: &'static Equal,
    /// M.
    pub(super) learners: u32,
    /// Tokens in a step of all of them.
    pub(super) step_tokens: u64,
    /// Name of the experiment.
    pub(super) ours: String,
    /// Name of the baseline.
    pub(super) base: String,
}

impl Course {
    /// Returns the excess of the loss over that of data-parallel training in percent, by steps.
    fn gaps(&self, found: &Found) -> Vec<(f64, f64)> {
        let gaps = found[&self.ours].course_above(&found[&self.base]);
        self.losses(&found[&self.ours]).into_iter().zip(gaps).map(|((steps, _), gap)| (steps, gap)).collect()
    }

    /// Returns the loss by steps.
    fn losses(&self, findings: &Findings) -> Vec<(f64, f64)> {
        let steps = |tokens: f64| tokens / self.step_tokens as f64;
        findings.course().into_iter().map(|(tokens, loss)| (steps(tokens), loss)).collect()
    }

    /// Returns a row for each loss measurement.
    pub(super) fn points(&self, found: &Found) -> Vec<Case> {
        let Self { learners, equal, .. } = self;
        let case =
            |steps: f64| format!("M = {learners} above data-parallel after {steps:.0} steps, {}", equal.what);
        self.gaps(found).into_iter().map(|(steps, gap)| Case::new(case(steps), gap, None)).collect()
    }

    /// Returns the same in one line, if there are measurements.
    pub(super) fn words(&self, found: &Found) -> Option<String> {
        let gaps = self.gaps(found);
        let list = |of: fn(&(f64, f64)) -> String| gaps.iter().map(of).collect::<Vec<String>>().join(" · ");
        let (steps, percent) = (list(|gap| format!("{:.0}", gap.0)), list(|gap| format!("{:+.2}", gap.1)));
        let Self { learners, equal, .. } = self;
        (!gaps.is_empty()).then(|| {
            format!("M = {learners} above data-parallel, {}, after {steps} steps: {percent} %", equal.what)
        })
    }
}

/// Plots the loss over M and, if measured on the way, over steps.
pub(super) fn plots(courses: &[Course], found: &Found) -> Vec<Plot> {
    let mut plots = Vec::new();
    for equal in [&STEPS, &TOKENS] {
        let courses: Vec<&Course> = courses.iter().filter(|course| course.equal.what == equal.what).collect();
        if !courses.is_empty() {
            plots.push(over_learners(equal, &courses, found));
        }
        if courses.iter().any(|course| !found[&course.ours].course().is_empty()) {
            plots.push(over_steps(equal, &courses, found));
        }
    }
    plots
}

fn over_learners(equal: &Equal, courses: &[&Course], found: &Found) -> Plot {
    let series = |name: &str, colour, of: fn(&Course) -> &String| {
        let points = courses.iter().map(|course| (f64::from(course.learners), found[of(course)].loss()));
        Series { name: name.into(), colour, mark: Mark::Line, points: points.collect() }
    };
    Plot {
        name: equal.name.into(),
        title: equal.title.into(),
        x: Axis { label: "M, learners".into(), scale: Scale::Log },
        y: loss_axis(),
        series: vec![
            series("decoupled", 0, |course| &course.ours),
            series("data-parallel", 1, |course| &course.base),
        ],
    }
}

fn over_steps(equal: &Equal, courses: &[&Course], found: &Found) -> Plot {
    let series = (0..).zip(courses).flat_map(|(colour, course)| {
        let m = course.learners;
        let (ours, base) = (course.losses(&found[&course.ours]), course.losses(&found[&course.base]));
        [
            Series { name: format!("M = {m}"), colour, mark: Mark::Line, points: ours },
            Series { name: format!("data-parallel of {m}"), colour, mark: Mark::Hollow, points: base },
        ]
    });
    Plot {
        name: format!("{}-course", equal.name),
        title: format!("{}: on the way", equal.title),
        x: Axis { label: "inner steps of each learner".into(), scale: Scale::Log },
        y: loss_axis(),
        series: series.collect(),
    }
}

fn loss_axis() -> Axis {
    Axis { label: "held-out loss, nats per byte".into(), scale: Scale::Linear }
}
