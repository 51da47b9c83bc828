//! Flags of the demo.

use std::{path::PathBuf, str::FromStr, time::Duration};

/// Trains on this machine: a syncer and learners as processes of their own, over WebSockets.
#[derive(clap::Args, Clone)]
pub struct Args {
    /// Text to train on, a UTF-8 file or a folder of them, or builtin:grammar, builtin:austen or
    /// builtin:pictures [default: builtin:grammar, with --classroom builtin:austen].
    #[arg(long, value_name = "FILE")]
    pub data: Option<PathBuf>,
    /// Learners on this machine, each a process; they share the cores [default: 2, with --classroom 0].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=64))]
    learners: Option<u32>,
    /// Size of the model: tiny, small, medium, base, llama-135m or llama-360m [default: small, with --classroom tiny].
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// For a class: listens to the network, asks for an invite, and shows a code that phones open; the class trains.
    #[arg(long, conflicts_with = "headless")]
    pub classroom: bool,
    /// Link under which the class reaches this machine, as https://host/ behind a proxy with TLS.
    #[arg(long, value_name = "URL", requires = "classroom")]
    pub public_url: Option<String>,
    /// Writes the model as a Hugging Face folder at the end.
    #[arg(long, value_name = "FOLDER")]
    pub export: Option<PathBuf>,
    /// Trains for so long, from the first trained token on; the learning rate is planned for it.
    #[arg(long = "for", value_name = "TIME", value_parser = Span::from_str)]
    pub span: Option<Span>,
    /// Trains until the held-out loss is at most so many nats per token.
    #[arg(long, value_name = "LOSS")]
    pub until_loss: Option<f64>,
    /// Opens the page in this machine's browser, with --classroom the dashboard.
    #[arg(long, conflicts_with = "headless")]
    pub open: bool,
    /// Plain lines, no pages and no question asked; runs 60 s unless told otherwise.
    #[arg(long)]
    pub headless: bool,
    /// Prints one JSON object as the last line.
    #[arg(long)]
    pub json: bool,
    /// Kills one learner without warning mid-run and starts it again later.
    #[arg(long)]
    pub kill_one: bool,
    /// Seed of the parameters and of the order of the data.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Port of the page on 127.0.0.1, with --classroom on every address of this machine; 0 takes a free one.
    #[arg(long, default_value_t = 0)]
    pub port: u16,
}

impl Args {
    /// Returns the number of learners on this machine.
    pub fn learners(&self) -> u32 {
        self.learners.unwrap_or(if self.classroom { 0 } else { 2 })
    }

    /// Returns true if the pages stay up until the user stops the demo, even after the end of the run.
    pub fn stays(&self) -> bool {
        !self.headless && self.span.is_none() && self.until_loss.is_none()
    }

    /// Returns the size of the model; for a class, one that phones can train.
    pub fn preset(&self) -> &str {
        self.preset.as_deref().unwrap_or(if self.classroom { "tiny" } else { "small" })
    }
}

/// Duration as people write it: `90`, `90s`, `1.5m`, `2h`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("`{text}` is no length of time; write 60s, 1.5m or 2h");
        let number = text.trim_end_matches(|unit: char| unit.is_ascii_lowercase());
        let unit = match &text[number.len()..] {
            "" | "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return Err(refused()),
        };
        let seconds = number.parse::<f64>().map_err(|_| refused())? * unit;
        let span = Duration::try_from_secs_f64(seconds).map_err(|_| refused())?;
        if span.is_zero() { Err(refused()) } else { Ok(Self(span)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Alone {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn a_class_trains_by_itself_unless_told_otherwise() {
        use clap::Parser;
        let args = |line: &str| Alone::try_parse_from(line.split(' ')).map(|alone| alone.args);
        let check = |line, learners, preset| {
            let args = args(line).unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!((args.learners(), args.preset()), (learners, preset), "{line}");
        };
        check("demo", 2, "small");
        check("demo --classroom", 0, "tiny");
        check("demo --classroom --learners 1 --preset small", 1, "small");
        assert!(args("demo --classroom --headless").is_err());
        assert!(args("demo --public-url https://a/").is_err());
    }

    #[test]
    fn reads_lengths_of_time() {
        let check =
            |text: &str, seconds| assert_eq!(text.parse(), Ok(Span(Duration::from_secs(seconds))), "{text}");
        check("60", 60);
        check("60s", 60);
        check("1.5m", 90);
        check("2h", 7_200);
        for bad in ["", "s", "0s", "-1s", "nan", "inf", "5d", "1e99h"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
    }
}
