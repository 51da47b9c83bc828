//! What lies on the desk for people.

use archipelago::run::Event;

use super::Desk;

/// Sentences that wait for the program; the oldest go first.
const NOTES_MAX: usize = 64;

/// Something for the program's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Whether it is more than news.
    pub is_warning: bool,
    /// A sentence.
    pub text: String,
}

impl Desk {
    /// What was worth a sentence since the last call.
    #[must_use]
    pub fn take_notes(&self) -> Vec<Note> {
        self.state().notes.drain(..).collect()
    }

    /// Keeps what the program may want to show.
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
                    "taken in by run {run} as learner {learner}: {params} parameters, {batch} windows a step"
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
