//! Tokens at which a model stops writing: those that its folder names, and the one that ends turns in its chat
//! template.

use archipelago_core::token::is_target;
use serde_json::json;

use super::cutting::Piece;
use super::documents::Template;
use super::vocabulary::Vocabulary;
use crate::llama::Chat;

/// Assistant's answer in the sample conversation that shows how turns end. No template contains this text itself.
const ANSWER: &str = "Yes, 4127.";

/// Tokens at which a model stops writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stops {
    /// All stop tokens without repeats, those of the folder first.
    pub tokens: Vec<u32>,
    /// The token that ends the assistant's turns, if the template ends them with a special token.
    turn_end: Option<u32>,
    /// True if the folder names `turn_end` too.
    is_known: bool,
}

impl Stops {
    /// Creates the stops of a model: the tokens `of_folder` that its folder names, and the token that ends turns in
    /// the template of `chat`. A template that cannot be used adds no stop.
    #[must_use]
    pub fn new(of_folder: Vec<u32>, chat: &Chat, vocabulary: &Vocabulary) -> Self {
        let turn_end = turn_end(chat, vocabulary);
        let is_known = turn_end.is_some_and(|end| of_folder.contains(&end));
        let mut tokens = of_folder;
        tokens.extend(turn_end.filter(|_| !is_known));
        Self { tokens, turn_end, is_known }
    }

    /// Returns a warning if the conversations in `train` teach the model to stop at none of its stop tokens, or only
    /// at one that its folder does not name. Masked tokens in `train` carry the mask bit.
    #[must_use]
    pub fn warning(&self, train: &[u32], vocabulary: &Vocabulary) -> Option<String> {
        let learns = |stop: &u32| train.iter().any(|token| is_target(*token) && token == stop);
        let names = |tokens: &[u32]| {
            let names: Vec<String> =
                tokens.iter().map(|&token| format!("`{}`", vocabulary.name(token))).collect();
            names.join(" and ")
        };
        let of_folder: Vec<u32> = self
            .tokens
            .iter()
            .copied()
            .filter(|&token| self.is_known || Some(token) != self.turn_end)
            .collect();
        if !self.tokens.iter().any(learns) {
            let stops = match &self.tokens[..] {
                [] => "the model has no token that ends its answers".to_owned(),
                tokens => {
                    format!("the model stops at {}, but the conversations do not teach that", names(tokens))
                }
            };
            return Some(format!(
                "{stops}: it continues after its answers; give --chat-template a file that ends the assistant's turns \
                 with such a token, inside {{% generation %}} if the template has that"
            ));
        }
        if self.is_known || of_folder.is_empty() || of_folder.iter().any(learns) {
            return None;
        }
        let (end, of_folder) = (names(self.turn_end.as_slice()), names(&of_folder));
        Some(format!(
            "the chat template ends turns with {end}, but the model's own end of text, {of_folder}, is never learnt: \
             exports name both as ends, and programs that stop only at {of_folder} continue after the answer"
        ))
    }
}

/// Returns the first added token after the assistant's words. Anything behind it, such as a line end or the end-of-text
/// token, comes after the model has stopped.
fn turn_end(chat: &Chat, vocabulary: &Vocabulary) -> Option<u32> {
    let template = Template::new(chat).ok()?;
    let turn = |role: &str, content: &str| json!({ "role": role, "content": content });
    let (question, answer) = (turn("user", "Is it?"), turn("assistant", ANSWER));
    let short = [question.clone(), answer.clone()];
    let long = [turn("system", "Answer."), question, answer];
    let text = template.text(&short, false).or_else(|_| template.text(&long, false)).ok()?;
    let end = text.rfind(ANSWER)? + ANSWER.len();
    let mut found = None;
    let mut take = |_, pieces: &[Piece]| {
        let mut after = pieces.iter().filter(|piece| piece.bytes.start >= end).map(|piece| piece.token);
        found = found.or_else(|| after.find(|&token| vocabulary.is_added(token)));
    };
    vocabulary.encode_each(&[&*text], &mut take).ok()?;
    found
}

#[cfg(test)]
mod tests {
    use archipelago_core::token::MASKED;

    use super::*;

    const NAMES: [&str; 4] = ["<s>", "</s>", "<|end|>", "<|user|>"];
    const TEXT_END: u32 = 257;
    const TURN_END: u32 = 258;

    fn vocabulary() -> Vocabulary {
        let mut json: serde_json::Value = serde_json::from_str(&Vocabulary::Bytes.to_json()).unwrap();
        let added = (256..).zip(NAMES).map(|(id, content)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        });
        json["added_tokens"] = added.collect();
        Vocabulary::from_json(json.to_string().as_bytes()).unwrap()
    }

    fn stops(of_folder: &[u32], template: &str) -> Stops {
        let chat = Chat { template: Some(template.into()), ..Chat::default() };
        Stops::new(of_folder.to_vec(), &chat, &vocabulary())
    }

    #[test]
    fn the_end_of_turns_is_read_off_a_conversation() {
        let turn = |after: &str| {
            format!("{{% for m in messages %}}<|user|>{{{{ m.content }}}}{after}{{% endfor %}}")
        };
        for after in ["<|end|>", "<|end|>\n", "\n<|end|></s>", " <|end|>"] {
            assert_eq!(stops(&[TEXT_END], &turn(after)).tokens, [TEXT_END, TURN_END], "{after:?}");
        }
        assert_eq!(stops(&[TURN_END, TEXT_END], &turn("<|end|>")).tokens, [TURN_END, TEXT_END]);
        // Only the end of the last turn counts, not the beginning of a next one.
        assert_eq!(stops(&[], &turn("\n")).tokens, [0_u32; 0]);
        let strict = "{% if messages[0].role != 'system' %}{{ raise_exception('no') }}{% endif %}".to_owned();
        assert_eq!(stops(&[], &(strict + &turn("</s>"))).tokens, [TEXT_END]);
        let marked =
            "{% for m in messages %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% endfor %}";
        assert_eq!(stops(&[], marked).tokens, [TURN_END]);
        for unusable in ["{% for", "", "{{ messages[0].content }}<|end|>"] {
            assert_eq!(stops(&[TEXT_END], unusable).tokens, [TEXT_END], "{unusable}");
        }
    }

    #[test]
    fn missing_stop_targets_are_warned_of() {
        let template = "{% for m in messages %}{{ m.content }}<|end|>{% endfor %}";
        let said = |of_folder: &[u32], train: &[u32]| {
            stops(of_folder, template).warning(train, &vocabulary()).unwrap_or_default()
        };
        assert!(said(&[TEXT_END], &[1, TURN_END | MASKED, TEXT_END | MASKED]).contains("do not teach that"));
        let second = said(&[TEXT_END], &[1, TURN_END, TEXT_END | MASKED]);
        assert!(second.contains("turns with `<|end|>`") && second.contains("only at `</s>`"), "{second}");
        assert_eq!(said(&[TEXT_END], &[TURN_END, TEXT_END]), "");
        assert_eq!(said(&[TEXT_END, TURN_END], &[TURN_END, TEXT_END | MASKED]), "");
        assert_eq!(said(&[], &[TURN_END]), "");
        assert!(
            stops(&[], "").warning(&[1], &vocabulary()).unwrap().contains("no token that ends its answers")
        );
    }
}
