//! Continuation of a text, or answer to a question, by the model of a run's newest snapshot.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use archipelago_cli::range;
use archipelago_core::data::pictures::{Picture, SIDE};
use archipelago_runtime::engine::cpu::Writer;
use serde::Serialize;
use serde_json::json;

use crate::clock::Clock;
use crate::config::SampleArgs;
use crate::corpus::{Stops, Template, Vocabulary};
use crate::errors::ServerError;
use crate::export::flat;
use crate::llama::Chat;
use crate::store::{Store, disk};

/// The generated text and its speed.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GeneratedText {
    /// The prompt, or the conversation as rendered by the chat template.
    pub prompt: String,
    /// The continuation.
    pub text: String,
    /// Tokens of the text.
    pub tokens: u32,
    /// True if the model ended the text itself.
    pub stopped: bool,
    /// Generated tokens per second, including the time to read the prompt.
    pub tokens_per_s: f64,
    /// Tokens merged into the model.
    pub tokens_merged: u64,
}

/// Number of pending tokens after which the decoder returns their text and starts again without tokens.
const PENDING_MAX: usize = 256;

/// Continues `args.prompt`, or answers `args.chat`, with the model of the newest snapshot in `args.folder`. The model
/// stops at the tokens of `Stops`, which are not part of the text. `show` gets the text in pieces of whole characters.
/// An error of `show` ends the text.
///
/// # Errors
/// - `Setting`: the temperature is negative, or no number.
/// - `NoRun`, `NoSnapshot`: there is no run, or no snapshot of it.
/// - `DirCorrupt`: no snapshot is intact.
/// - `Disk`, `Tokenizer`: a file of the run cannot be read, or the picture cannot be written.
/// - `Config`: the prompt is empty or contains text outside the model's vocabulary; the model is not a decoder; the run
///   has no chat template that takes the question; or the text has no picture, or the file for it already exists.
/// - `Internal`: the stored model is invalid.
pub fn sample(
    args: &SampleArgs,
    mut show: impl FnMut(&str) -> std::io::Result<()>,
) -> Result<GeneratedText, ServerError> {
    let temperature = args.temperature;
    range(
        "temperature",
        temperature.into(),
        temperature.is_finite() && temperature >= 0.0,
        "a number of 0 or more",
    )?;
    let dir: &Path = args.folder.path();
    let store = Store::open_read_only(dir);
    let none = || ServerError::NoSnapshot { dir: dir.to_owned() };
    let manifest = store.begun()?;
    let Some(spec) = manifest.decoder()? else {
        let why = "the model of this run is not the built-in decoder: only the program that trains it can sample from \
             it";
        return Err(ServerError::Config { why: why.to_owned() });
    };
    let snapshot = store.latest(manifest.run)?.ok_or_else(none)?;
    let path = store.tokenizer_path();
    let vocabulary = Vocabulary::from_json(&std::fs::read(&path).map_err(disk("read", &path))?)?;
    let theta = flat(&snapshot.states, &manifest.spec, &manifest.layout()?)?;
    let theta = store.whole(&manifest.spec, &spec, theta)?;

    let no_model = |error| ServerError::Internal { what: format!("the snapshot holds no model: {error}") };
    let mut writer = Writer::new(&spec.base(), theta).map_err(no_model)?;
    let clock = Clock::start();
    let prompt = prompt(args, &manifest.chat)?;
    let special = manifest.init.as_ref().map(|initial| initial.special.stops());
    let stops = Stops::new(special.unwrap_or_default(), &manifest.chat, &vocabulary).tokens;
    let unread = |error| ServerError::Config { why: format!("the prompt cannot be used: {error}") };
    writer.begin(&vocabulary.encode(&prompt)?, args.temperature, args.seed).map_err(unread)?;
    if let Some(path) = &args.picture
        && path.exists()
    {
        let why = format!("--picture: {} already exists; name a new file", path.display());
        return Err(ServerError::Config { why });
    }
    let mut decoder = TextDecoder::new(&vocabulary, args.chat.is_some());
    let (mut text, mut tokens, mut stopped) = (String::new(), 0, false);
    for token in writer.take(args.tokens as usize) {
        stopped = stops.contains(&token);
        if stopped {
            break;
        }
        tokens += 1;
        let more = decoder.add(token);
        text.push_str(&more);
        if show(&more).is_err() {
            break;
        }
    }
    let rest = decoder.rest();
    text.push_str(&rest);
    // If the reader has closed the pipe, the rest is not needed.
    show(&rest).ok();
    if let Some(path) = &args.picture {
        let why = "--picture: the text that was written holds no picture of eight lines of eight pixels";
        let picture = Picture::find(&text).ok_or_else(|| ServerError::Config { why: why.to_owned() })?;
        let mut file = File::create_new(path).map_err(disk("write", path))?;
        file.write_all(svg(&picture).as_bytes()).map_err(disk("write", path))?;
    }
    Ok(GeneratedText {
        prompt,
        text,
        tokens,
        stopped,
        tokens_per_s: f64::from(tokens) / clock.elapsed().max(Duration::from_micros(1)).as_secs_f64(),
        tokens_merged: snapshot.record.ledger.clock_tokens(),
    })
}

/// Returns the text to continue. It is `--prompt` unchanged, or the conversation of `--chat` and `--system`, rendered
/// by the template of `chat` and ending with the prompt for the assistant's turn.
///
/// # Errors
/// `Config`: there is no template, or it does not take the conversation.
fn prompt(args: &SampleArgs, chat: &Chat) -> Result<String, ServerError> {
    let Some(question) = &args.chat else { return Ok(args.prompt.clone()) };
    if !chat.has_template() {
        let why =
            "--chat: the run has no chat template; give --prompt the text as the model was trained on it";
        return Err(ServerError::Config { why: why.to_owned() });
    }
    let turn = |role: &str, content: &String| json!({ "role": role, "content": content });
    let system = args.system.as_ref().map(|system| turn("system", system));
    let messages: Vec<_> = system.into_iter().chain([turn("user", question)]).collect();
    let text = Template::new(chat).and_then(|template| template.text(&messages, true));
    text.map_err(|why| ServerError::Config { why: format!("--chat: {why}") })
}

/// Incremental decoder of tokens to text.
struct TextDecoder<'a> {
    vocabulary: &'a Vocabulary,
    /// True if special tokens are left out of the text.
    is_plain: bool,
    /// Tokens that are decoded together with the next one.
    pending: Vec<u32>,
    /// Length of their text that was already returned, in bytes.
    returned: usize,
}

impl<'a> TextDecoder<'a> {
    fn new(vocabulary: &'a Vocabulary, is_plain: bool) -> Self {
        Self { vocabulary, is_plain, pending: Vec::new(), returned: 0 }
    }

    fn decoded(&self) -> String {
        match self.is_plain {
            true => self.vocabulary.decode_plain(&self.pending),
            false => self.vocabulary.decode(&self.pending),
        }
    }

    /// Returns the text that `token` completes; empty while a character of several bytes is incomplete.
    fn add(&mut self, token: u32) -> String {
        self.pending.push(token);
        let is_full = self.pending.len() >= PENDING_MAX;
        let decoded = self.decoded();
        if decoded.ends_with(char::REPLACEMENT_CHARACTER) && !is_full {
            return String::new();
        }
        let more = decoded.get(self.returned..).unwrap_or_default().to_owned();
        self.returned = decoded.len();
        if is_full {
            (self.pending, self.returned) = (Vec::new(), 0);
        }
        more
    }

    /// Returns the text that is left, with incomplete characters replaced.
    fn rest(&mut self) -> String {
        let more = self.decoded().get(self.returned..).unwrap_or_default().to_owned();
        (self.pending, self.returned) = (Vec::new(), 0);
        more
    }
}

/// Renders a picture as SVG, with a square for each pixel.
fn svg(picture: &Picture) -> String {
    let squares: String = (0..SIDE)
        .flat_map(|y| (0..SIDE).map(move |x| (x, y)))
        .map(|(x, y)| {
            let colour = picture.pixels()[y][x].word();
            format!("<rect x=\"{x}\" y=\"{y}\" width=\"1\" height=\"1\" fill=\"{colour}\"/>")
        })
        .collect();
    let head =
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {SIDE} {SIDE}\" width=\"256\"");
    format!("{head} shape-rendering=\"crispEdges\">{squares}</svg>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temperature_is_a_number_of_0_or_more() {
        for temperature in [-1.0, f32::NAN, f32::INFINITY] {
            let args = SampleArgs {
                folder: std::path::PathBuf::from("nowhere").into(),
                prompt: "a".into(),
                chat: None,
                system: None,
                tokens: 1,
                temperature,
                seed: 0,
                picture: None,
                json: false,
            };
            let why = sample(&args, |_| Ok(())).unwrap_err().to_string();
            assert!(why.starts_with("--temperature"), "{why}");
        }
    }

    #[test]
    fn a_picture_has_a_square_for_each_pixel_in_its_place() {
        let text = "wwwwwwww\nwkwwwwww\nwwwwwwww\nwwwwwwww\nwwwwwwww\nwwwwwwww\nwwwwwwww\nwwwwwwrw\n";
        let svg = svg(&text.parse().unwrap());
        assert_eq!(svg.matches("<rect").count(), 64);
        assert_eq!(svg.matches("fill=\"white\"").count(), 62);
        assert!(svg.contains("<rect x=\"1\" y=\"1\" width=\"1\" height=\"1\" fill=\"black\"/>"), "{svg}");
        assert!(svg.contains("<rect x=\"6\" y=\"7\" width=\"1\" height=\"1\" fill=\"red\"/>"), "{svg}");
    }
}
