//! Flags of the demo, which `syncer-server demo` and `cargo xtask demo` share.

use std::path::PathBuf;

use crate::{Span, some_time};

/// Settings of a demo run on this machine.
#[derive(clap::Args, Clone, Debug)]
pub struct DemoArgs {
    /// Text to train on, a UTF-8 file or a folder of them, or builtin:grammar, builtin:austen or builtin:pictures
    /// [default: builtin:grammar, with --classroom builtin:austen]
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Number of learners on this machine, each a process; they share the cores [default: 2, with --classroom 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=64))]
    learners: Option<u32>,
    /// Size of the model: tiny, small, medium, base, llama-135m or llama-360m [default: small, with --classroom tiny]
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Run for a class: listen on the network, require an invite, and show a code for phones; the class trains
    #[arg(long, conflicts_with = "headless")]
    pub classroom: bool,
    /// Public link of this machine for the class, such as https://host/ behind a proxy with TLS
    #[arg(long, value_name = "URL", requires = "classroom")]
    pub public_url: Option<String>,
    /// Write the model as a Hugging Face folder at the end
    #[arg(long, value_name = "FOLDER")]
    pub export: Option<PathBuf>,
    /// Training time from the first trained token on (e.g. 90s, 5m); the learning-rate schedule is planned for it
    #[arg(long = "for", value_name = "TIME", value_parser = some_time)]
    pub span: Option<Span>,
    /// Train until the held-out loss is at most this, in nats per token
    #[arg(long, value_name = "LOSS")]
    pub until_loss: Option<f64>,
    /// Open the page in this machine's browser, with --classroom the dashboard
    #[arg(long, conflicts_with = "headless")]
    pub open: bool,
    /// Serve no pages; without --for or --until-loss, train for 60 s
    #[arg(long)]
    pub headless: bool,
    /// Print one JSON object as the last line
    #[arg(long)]
    pub json: bool,
    /// Kill one learner without warning after a third of the run, and restart it later
    #[arg(long)]
    pub kill_one: bool,
    /// Seed of the parameters and of the order of the data
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Port of the page on 127.0.0.1, with --classroom on every address of this machine; 0 takes a free one
    #[arg(long, default_value_t = 0)]
    pub port: u16,
}

impl DemoArgs {
    /// Returns the number of learners on this machine.
    #[must_use]
    pub fn learners(&self) -> u32 {
        self.learners.unwrap_or(if self.classroom { 0 } else { 2 })
    }

    /// Returns the preset of the model. With `--classroom` it defaults to one that phones can train.
    #[must_use]
    pub fn preset(&self) -> &str {
        self.preset.as_deref().unwrap_or(if self.classroom { "tiny" } else { "small" })
    }

    /// Returns true if no setting ends the run, so that the page of a complete run is served until the program is
    /// stopped.
    #[must_use]
    pub fn is_open_ended(&self) -> bool {
        !self.headless && self.span.is_none() && self.until_loss.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_trains_by_itself_unless_learners_are_given() {
        let check = |flags: &[&str], learners, preset| {
            let args: DemoArgs = crate::defaults(flags);
            assert_eq!((args.learners(), args.preset()), (learners, preset), "{flags:?}");
        };
        check(&[], 2, "small");
        check(&["--classroom"], 0, "tiny");
        check(&["--classroom", "--learners", "1", "--preset", "small"], 1, "small");
    }
}
