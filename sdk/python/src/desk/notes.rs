//! Notes for display.

use archipelago::run::Event;

use super::Desk;

/// Maximum number of notes kept for the program; the oldest are dropped.
const NOTES_MAX: usize = 64;

/// An entry for the program's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it is a warning.
    pub is_warning: bool,
    /// Text of one sentence.
    pub text: String,
}

impl Desk {
    /// Returns the notes since the last call.
    #[must_use]
    pub fn take_notes(&self) -> Vec<Note> {
        self.state().notes.drain(..).collect()
    }

    /// Records an event as a note or report, if it is worth showing.
    pub fn hear(&self, event: &Event) {
        let mut state = self.state();
        let (is_warning, text) = match event {
            Event::Progress(report) => {
                state.report = Some((**report).clone());
                return;
            }
            Event::Disconnected { reason, .. } => {
                state.lost = Some(reason.clone());
                return;
            }
            Event::Connecting { .. } => match state.lost.take() {
                Some(reason) => (true, format!("the connection was lost because {reason}; connecting again")),
                None => return,
            },
            Event::Welcomed { run, learner, params, batch, .. } => (
                false,
                format!(
                    "admitted to run {run} as learner {learner}: {params} parameters, {batch} windows a step"
                ),
            ),
            Event::Afresh { reason } => (true, format!("joining as a newcomer: {reason}")),
            Event::Trouble { reason } => (true, reason.clone()),
            _ => return,
        };
        if state.notes.len() == NOTES_MAX {
            state.notes.pop_front();
        }
        state.notes.push_back(Note { is_warning, text });
    }
}
