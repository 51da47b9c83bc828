//! Join instructions for a class, from the syncer's output.

use std::{
    env,
    fmt::{self, Display, Formatter},
    io::{self, IsTerminal},
};

use serde_json::Value;

/// Escape codes for white on black, independent of the terminal's colours, and for a reset.
const COLOURS: (&str, &str) = ("\x1b[38;5;231;48;5;16m", "\x1b[0m");

/// Join instructions for a class.
#[derive(Clone, Debug, PartialEq)]
pub struct Classroom {
    /// Links and notes, in lines.
    words: Vec<String>,
    /// Link to the teacher's dashboard.
    pub dashboard: String,
    /// First link as a QR code, in lines of half blocks with light ink.
    code: Vec<String>,
}

impl Classroom {
    /// Reads the syncer's first line. Returns `None` if the run is not for a class.
    pub fn read(line: &Value) -> Option<Self> {
        let texts = |path| -> Option<Vec<String>> {
            line.pointer(path)?.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
        };
        Some(Self {
            words: texts("/classroom/words")?,
            dashboard: line.pointer("/classroom/dashboard")?.as_str()?.to_owned(),
            code: texts("/classroom/code")?,
        })
    }
}

impl Display for Classroom {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let coloured = io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none();
        let (before, after) = if coloured { COLOURS } else { ("", "") };
        for line in &self.code {
            writeln!(f, "{before}{line}{after}")?;
        }
        write!(f, "{}", self.words.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_first_line_says_how_to_join() {
        let line = json!({ "event": "listening", "classroom": {
            "words": ["students open   http://10.0.0.3:80/#invite=x", "you watch at    http://127.0.0.1:80/dashboard"],
            "dashboard": "http://127.0.0.1:80/dashboard", "code": ["█▀", "▄ "],
        }});
        let classroom = Classroom::read(&line).unwrap();
        let expected = "█▀\n▄ \nstudents open   http://10.0.0.3:80/#invite=x\n\
                        you watch at    http://127.0.0.1:80/dashboard";
        assert_eq!(classroom.to_string(), expected);
        assert_eq!(classroom.dashboard, "http://127.0.0.1:80/dashboard");
        assert_eq!(Classroom::read(&json!({ "event": "listening" })), None);
    }
}
