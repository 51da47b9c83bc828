//! Prompts for text samples: whole words, from the beginning of a line if there is one nearby.

use archipelago_core::token;

/// Maximum number of tokens in a prompt from plain text.
const TOKENS_MAX: usize = 16;
/// Maximum number of tokens in a prompt from a question.
const QUESTION_MAX: usize = 256;
/// Number of tokens at the start of the held-out text that are searched for a prompt.
const REACH: usize = 512;

/// Returns the prompt from `held_out`. If the text starts with a question, which is masked, the prompt is the question
/// or its last tokens. Otherwise it is an [`excerpt`].
pub(super) fn of(held_out: &[u32], decode: impl Fn(&[u32]) -> String) -> Vec<u32> {
    let question: Vec<u32> = held_out
        .iter()
        .take_while(|&&token| !token::is_target(token))
        .map(|&token| token::id(token))
        .collect();
    // A single masked token that begins every text is not a question.
    if question.len() > 1 {
        return question[question.len().saturating_sub(QUESTION_MAX)..].to_vec();
    }
    let text: Vec<u32> = held_out.iter().take(REACH).map(|&token| token::id(token)).collect();
    excerpt(&text, decode).to_vec()
}

/// Returns an excerpt of `held_out`, a text that may start within a word. It starts at the first line that begins in
/// the text, or at its first word, and ends with its last complete word. If there is no such line or word, returns the
/// beginning of the text unchanged.
fn excerpt(held_out: &[u32], decode: impl Fn(&[u32]) -> String) -> &[u32] {
    let near = &held_out[..held_out.len().min(REACH)];
    let texts: Vec<String> = near.iter().map(|&token| decode(&[token])).collect();
    let opens = |at: usize| texts[at].starts_with(char::is_whitespace);
    let closes = |at: usize| texts[at].ends_with(char::is_whitespace);
    let begins_line = |&at: &usize| texts[at - 1].ends_with('\n') && !opens(at);
    let begins_word = |&at: &usize| (closes(at - 1) && !opens(at)) || (opens(at) && !closes(at));
    let positions = || 1..texts.len();
    let start = positions().find(begins_line).or_else(|| positions().find(begins_word)).unwrap_or(0);
    let most = texts.len().min(start + TOKENS_MAX);
    let is_whole = |&end: &usize| end < texts.len() && opens(end) && !closes(end - 1);
    let end = (start + 1..=most).rev().find(is_whole).unwrap_or(most);
    &held_out[start..end]
}

#[cfg(test)]
mod tests {
    use archipelago_core::data::{bytes_to_tokens, tokens_to_text};

    use super::*;

    fn of_bytes(text: &str) -> String {
        tokens_to_text(&of(&bytes_to_tokens(text.as_bytes()), tokens_to_text))
    }

    /// Byte-level BPE tokens: the blank precedes the word.
    fn of_words(words: &[&str]) -> String {
        let ids: Vec<u32> = (0..).take(words.len()).collect();
        let decode = |tokens: &[u32]| tokens.iter().map(|&token| words[token as usize]).collect::<String>();
        decode(&of(&ids, decode))
    }

    #[test]
    fn a_question_is_asked_whole() {
        let given = |text: &str| text.bytes().map(|byte| u32::from(byte) | token::MASKED).collect::<Vec<_>>();
        let held_out = [given("Who is it?\n"), bytes_to_tokens(b"It is I.\n")].concat();
        assert_eq!(tokens_to_text(&of(&held_out, tokens_to_text)), "Who is it?\n");
        let long = [given(&"?".repeat(300)), vec![7]].concat();
        assert_eq!(of(&long, tokens_to_text), [u32::from(b'?'); QUESTION_MAX]);
        let begun = [given("<"), bytes_to_tokens(b"\nfour five sixteen and more")].concat();
        assert_eq!(tokens_to_text(&of(&begun, tokens_to_text)), "four five");
    }

    #[test]
    fn it_begins_with_a_line() {
        assert_eq!(of_bytes("ance ta'en\nAs shall with either part's agreement stand?"), "As shall with");
        assert_eq!(
            of_words(&["ance", " ta", "'en", "\n", "As", " shall", " wi", "th", "\n"]),
            "As shall with"
        );
    }

    #[test]
    fn a_text_without_lines_begins_with_a_word() {
        assert_eq!(of_bytes("ance ta'en as shall with either"), "ta'en as shall");
        assert_eq!(of_words(&["an", "ce", " ta", "'en", " as"]), " ta'en");
    }

    #[test]
    fn it_ends_with_a_word() {
        // The sixteenth byte is within the third word, where the second text also ends.
        assert_eq!(of_bytes("\nfour five sixteen and more"), "four five");
        assert_eq!(of_bytes("\nfour five sixtee"), "four five");
    }

    #[test]
    fn a_text_without_words_is_taken_as_it_is() {
        assert_eq!(of_bytes("0123456789abcdefghij"), "0123456789abcdef");
        assert_eq!(of_bytes("x"), "x");
        assert_eq!(of_bytes("\n\n\n"), "\n\n\n");
        assert_eq!(of_bytes(""), "");
    }
}
