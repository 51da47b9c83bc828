//! A text that the newest snapshot of a run goes on with.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use archipelago_core::data::pictures::{Picture, SIDE};
use archipelago_runtime::engine::cpu::Writer;
use serde::Serialize;

use crate::clock::Clock;
use crate::config::SampleArgs;
use crate::corpus::Vocabulary;
use crate::errors::ServerError;
use crate::export::flat;
use crate::store::{Store, disk};

/// What was written, and how fast.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Written {
    /// The prompt.
    pub prompt: String,
    /// What follows it.
    pub text: String,
    /// Tokens of the text.
    pub tokens: u32,
    /// Tokens written in a second, the reading of the prompt included.
    pub tokens_per_s: f64,
    /// Tokens merged into the model.
    pub tokens_merged: u64,
}

/// Tokens after which those before them are not made text once more.
const SPELT_MAX: usize = 256;

/// Lets the model of the newest snapshot in `args.folder` go on with `args.prompt`. `show` gets the text piece by
/// piece, as soon as it is whole letters, and ends it with an error.
///
/// # Errors
/// - `NoRun`, `NoSnapshot`: there is no run, or no snapshot of it.
/// - `DirCorrupt`: there is no whole one.
/// - `Disk`, `Tokenizer`: something of it cannot be read, or the picture cannot be written.
/// - `Config`: the prompt is empty, or holds what the model's vocabulary does not, or the model is no decoder; or there
///   is no picture, or a file in its place.
/// - `Internal`: what was read is no model.
pub fn sample(
    args: &SampleArgs,
    mut show: impl FnMut(&str) -> std::io::Result<()>,
) -> Result<Written, ServerError> {
    let dir: &Path = args.folder.path();
    let store = Store::look(dir);
    let none = || ServerError::NoSnapshot { dir: dir.to_owned() };
    let manifest = store.begun()?;
    let Some(spec) = manifest.decoder()? else {
        let why = "the model of this run is not the built-in decoder: only the program that trains it can let it write";
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
    let prompt = vocabulary.encode(&args.prompt)?;
    let unread = |error| ServerError::Config { why: format!("--prompt: {error}") };
    writer.begin(&prompt, args.temperature, args.seed).map_err(unread)?;
    if let Some(path) = &args.picture
        && path.exists()
    {
        let why = format!("--picture: {} is there already; name a file that is not", path.display());
        return Err(ServerError::Config { why });
    }
    let (mut text, mut tokens, mut pending, mut told) = (String::new(), 0, Vec::new(), 0);
    for token in writer.take(args.tokens as usize) {
        tokens += 1;
        pending.push(token);
        let spelt = vocabulary.decode(&pending);
        // A letter of several bytes may not be whole yet.
        let last = tokens == args.tokens;
        if spelt.ends_with(char::REPLACEMENT_CHARACTER) && pending.len() < SPELT_MAX && !last {
            continue;
        }
        let more = spelt.get(told..).unwrap_or_default();
        text.push_str(more);
        if show(more).is_err() {
            break;
        }
        told = spelt.len();
        if pending.len() >= SPELT_MAX {
            (pending, told) = (Vec::new(), 0);
        }
    }
    if let Some(path) = &args.picture {
        let why = "--picture: what was written holds no picture of eight lines of eight pixels";
        let picture = Picture::find(&text).ok_or_else(|| ServerError::Config { why: why.to_owned() })?;
        let mut file = File::create_new(path).map_err(disk("write", path))?;
        file.write_all(svg(&picture).as_bytes()).map_err(disk("write", path))?;
    }
    Ok(Written {
        prompt: args.prompt.clone(),
        text,
        tokens,
        tokens_per_s: f64::from(tokens) / clock.elapsed().max(Duration::from_micros(1)).as_secs_f64(),
        tokens_merged: snapshot.record.ledger.clock_tokens(),
    })
}

/// A picture as an SVG, a square for each pixel.
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
    fn a_picture_has_a_square_for_each_pixel_in_its_place() {
        let text = "wwwwwwww\nwkwwwwww\nwwwwwwww\nwwwwwwww\nwwwwwwww\nwwwwwwww\nwwwwwwww\nwwwwwwrw\n";
        let svg = svg(&text.parse().unwrap());
        assert_eq!(svg.matches("<rect").count(), 64);
        assert_eq!(svg.matches("fill=\"white\"").count(), 62);
        assert!(svg.contains("<rect x=\"1\" y=\"1\" width=\"1\" height=\"1\" fill=\"black\"/>"), "{svg}");
        assert!(svg.contains("<rect x=\"6\" y=\"7\" width=\"1\" height=\"1\" fill=\"red\"/>"), "{svg}");
    }
}
