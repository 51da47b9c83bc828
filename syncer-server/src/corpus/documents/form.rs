//! Forms of a document.

/// Forms of a document, as reports name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// `messages`.
    Messages,
    /// `conversations`.
    ShareGpt,
    /// Lists of messages as `prompt` and `completion`.
    Trl,
    /// Strings as `prompt` and `completion`.
    Completion,
    /// `instruction`, `input` and `output`, as a conversation.
    AlpacaConversation,
    /// The same, as a prompt and a completion.
    AlpacaCompletion,
    /// `text`.
    Text,
}

impl Form {
    /// Describes documents of this form.
    pub fn title(self) -> &'static str {
        match self {
            Self::Messages => "\"messages\"",
            Self::ShareGpt => "\"conversations\"",
            Self::Trl => "lists of messages as \"prompt\" and \"completion\"",
            Self::Completion => "\"prompt\" and \"completion\"",
            Self::AlpacaConversation => "\"instruction\" and \"output\" as conversations",
            Self::AlpacaCompletion => {
                "\"instruction\" and \"output\" with Alpaca's prompt, since the model has no chat template"
            }
            Self::Text => "\"text\"",
        }
    }
}
