//! Rendering of conversations on a thread of its own, with a time limit.

use std::cell::Cell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use super::conversation::Conversation;
use super::template::{Dialogue, Fuel, Template};
use super::{Document, json};
use crate::clock::Clock;
use crate::llama::Chat;

/// Limits on an untrusted template. Fuel limits the work that the engine counts; time limits the rest.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Step limits of the template.
    pub fuel: Fuel,
    /// Time limit for one conversation.
    pub each: Duration,
    /// Time limit for all conversations together, beyond [`MESSAGE_TIME`] per message and [`BYTE_TIME`] per byte.
    pub all: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { fuel: Fuel::default(), each: Duration::from_secs(20), all: Duration::from_secs(60) }
    }
}

/// Time that each message adds to the limit for all conversations.
const MESSAGE_TIME: Duration = Duration::from_millis(20);

/// Time that each byte of a conversation adds to the limit for all conversations.
const BYTE_TIME: Duration = Duration::from_micros(1);

/// Stack size of the thread in bytes. Template values can nest as deep as the step limit allows.
const STACK_BYTES: usize = 256 << 20;

/// Request to the rendering thread.
enum Request {
    /// Render a document.
    Document(Dialogue),
    /// Render text only; if the flag is true, it ends with the prompt for the assistant's turn.
    Text(Dialogue, bool),
}

impl Request {
    fn dialogue(&self) -> &Dialogue {
        let (Self::Document(dialogue) | Self::Text(dialogue, _)) = self;
        dialogue
    }
}

/// Renderer of conversations with the templates of one model.
pub struct Renderer {
    requests: SyncSender<Request>,
    answers: Receiver<Result<Document, String>>,
    limits: Limits,
    /// Time left for all conversations.
    left: Cell<Duration>,
}

impl Renderer {
    /// Starts a renderer with the templates of `chat` and the default limits.
    ///
    /// # Errors
    /// A sentence: the template is missing or cannot be used.
    pub fn new(chat: &Chat) -> Result<Self, String> {
        Self::start(chat, Limits::default())
    }

    /// Starts a renderer with the templates of `chat` and `limits`. The fuel is for each template.
    ///
    /// # Errors
    /// A sentence: there is no template or no thread, or a template is too large.
    pub fn start(chat: &Chat, limits: Limits) -> Result<Self, String> {
        if !chat.has_template() {
            return Err(
                "it is a conversation, but the model has no chat template: give --chat-template a file with one, or \
                 lines with \"prompt\" and \"completion\""
                    .into(),
            );
        }
        let new = |source: &Option<String>| {
            source.as_deref().map(|source| Template::new(source, chat, limits.fuel)).transpose()
        };
        let (default, tool_use) = (new(&chat.template)?, new(&chat.tool_use)?);
        let (requests, asked) = sync_channel::<Request>(0);
        let (answer, answers) = sync_channel(1);
        let write = move || {
            let default = default.as_ref().map(Template::compile);
            let tool_use = tool_use.as_ref().map(Template::compile);
            for request in asked {
                let for_tools = tool_use.as_ref().filter(|_| request.dialogue().has_tools());
                let compiled =
                    for_tools.or(default.as_ref()).map_or_else(
                        || {
                            Err("the model has a chat template only for tools: give --chat-template a file"
                                .into())
                        },
                        |compiled| compiled.as_ref().map_err(Clone::clone),
                    );
                let written = compiled.and_then(|compiled| match request {
                    Request::Document(dialogue) => compiled.document(&dialogue),
                    Request::Text(dialogue, is_prompt) => compiled.text(&dialogue, is_prompt),
                });
                if answer.send(written).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("chat-template".into()).stack_size(STACK_BYTES);
        thread
            .spawn(write)
            .map_err(|error| format!("cannot start a thread for the chat template: {error}"))?;
        Ok(Self { requests, answers, limits, left: Cell::new(limits.all) })
    }

    /// Returns `dialogue` as a document.
    ///
    /// # Errors
    /// A sentence with the reason why it cannot be rendered, or not in time, and a remedy.
    pub fn document(&self, dialogue: Dialogue) -> Result<Document, String> {
        self.ask(dialogue.size(), Request::Document(dialogue))
    }

    /// Returns `messages` as text. With `add_generation_prompt`, the text ends with the prompt for the assistant's
    /// turn.
    ///
    /// # Errors
    /// A sentence with the reason why they cannot be rendered, and a remedy.
    pub fn text(
        &self,
        messages: &[serde_json::Value],
        add_generation_prompt: bool,
    ) -> Result<String, String> {
        let messages = messages.iter().map(json::Value::deserialize).collect::<Result<Vec<_>, _>>();
        let messages = messages.map_err(|error| error.to_string())?;
        let is_target = vec![true; messages.len()];
        let dialogue = Dialogue::new(&Conversation { messages, is_target, others: json::Map::new() })?;
        let answer = self.ask(dialogue.size(), Request::Text(dialogue, add_generation_prompt));
        answer.map(|document| document.text)
    }

    fn ask(&self, (messages, bytes): (u32, u32), request: Request) -> Result<Document, String> {
        let left = self.left.get() + MESSAGE_TIME * messages + BYTE_TIME * bytes;
        // Requests and answers alternate: the thread waits for this request, or has ended.
        let failed = "the chat template crashed its engine: give --chat-template a simpler file";
        let clock = Clock::start();
        self.requests.send(request).map_err(|_| failed)?;
        let answer = self.answers.recv_timeout(self.limits.each.min(left));
        self.left.set(left.saturating_sub(clock.elapsed()));
        answer.unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout if left < self.limits.each => Err(
                "the chat template has used up the time for all conversations: give --chat-template a simpler file"
                    .into(),
            ),
            RecvTimeoutError::Timeout => Err(format!(
                "the chat template did not render it within {} s: give --chat-template a simpler file",
                self.limits.each.as_secs()
            )),
            RecvTimeoutError::Disconnected => Err(failed.into()),
        })
    }
}
