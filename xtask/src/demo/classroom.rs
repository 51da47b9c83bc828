//! How a class joins, as the syncer says it.

use std::{
    env,
    fmt::{self, Display, Formatter},
    io::{self, IsTerminal},
};

use serde_json::Value;

/// White on black, whatever the terminal's own colours are, and back.
const COLOURS: (&str, &str) = ("\x1b[38;5;231;48;5;16m", "\x1b[0m");

/// How a class joins.
#[derive(Clone, Debug, PartialEq)]
pub struct Classroom {
    /// Pages to lend a machine, best first.
    links: Vec<String>,
    /// Whether only this machine can open them.
    local_only: bool,
    /// Where the teacher watches and steers.
    pub dashboard: String,
    /// The first link as a QR code, in lines of half blocks whose ink is light.
    code: Vec<String>,
}

impl Classroom {
    /// Reads the syncer's first line; nothing if its run is for no class.
    pub fn read(line: &Value) -> Option<Self> {
        let texts = |path| -> Option<Vec<String>> {
            line.pointer(path)?.as_array()?.iter().map(|text| text.as_str().map(str::to_owned)).collect()
        };
        Some(Self {
            links: texts("/classroom/links")?,
            local_only: line.pointer("/classroom/local_only")?.as_bool()?,
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
        for (number, link) in self.links.iter().enumerate() {
            writeln!(f, "{:15} {link}", if number == 0 { "students open" } else { "if not, try" })?;
        }
        if self.local_only {
            writeln!(
                f,
                "only this machine can open that: no network was found; --public-url says where others reach it"
            )?;
        }
        write!(f, "{:15} {}", "you watch at", self.dashboard)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_first_line_says_how_to_join() {
        let line = json!({ "event": "listening", "classroom": {
            "links": ["http://10.0.0.3:80/#invite=x", "http://192.168.0.4:80/#invite=x"], "local_only": false,
            "dashboard": "http://127.0.0.1:80/dashboard#invite=x", "code": ["█▀", "▄ "],
        }});
        let said = Classroom::read(&line).unwrap().to_string();
        let expected = "█▀\n▄ \nstudents open   http://10.0.0.3:80/#invite=x\nif not, try     \
                        http://192.168.0.4:80/#invite=x\nyou watch at    http://127.0.0.1:80/dashboard#invite=x";
        assert_eq!(said, expected);
        assert_eq!(Classroom::read(&json!({ "event": "listening" })), None);
    }
}
