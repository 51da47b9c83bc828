//! Tests of records, templates and tokens.

use archipelago_core::token::{self, MASKED};

use super::*;

/// Template of a common form, with blocks that begin and end lines.
const CHATML: &str = "{%- for message in messages %}
    {{- '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
";

fn chat(template: &str) -> Chat {
    let tokens = [("eos_token".to_owned(), "<|end|>".to_owned())].into();
    Chat { template: Some(template.to_owned()), tokens, ..Chat::default() }
}

fn lines(text: &str) -> Vec<Lines> {
    vec![Lines { path: "chats.jsonl".into(), text: text.to_owned(), packed_by: None }]
}

/// Returns the first document in `text`.
fn first(text: &str, template: &str) -> Document {
    read(lines(text), &chat(template), None).unwrap().documents.remove(0)
}

/// Returns the target parts of a document.
fn targets(document: &Document) -> Vec<&str> {
    document.targets.iter().map(|span| &document.text[span.clone()]).collect()
}

const TALK: &str = concat!(
    r#"{"messages": [{"role": "user", "content": " Who? "}, {"role": "assistant", "content": "I."}, "#,
    r#"{"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}]}"#
);
const OTHER: &str = r#"{"text": "more"}"#;

#[test]
fn a_line_is_one_of_three_forms() {
    let read = |text: &str| read(lines(text), &Chat::default(), None).unwrap().documents;
    let found = read(
        "{\"text\": \"all\"}\n\n{\"id\": 7, \"prompt\": \"Q: é? \", \"completion\": \"A: ü\", \"text\": 3}\n",
    );
    assert_eq!(found.len(), 2);
    assert_eq!(found.iter().map(targets).collect::<Vec<_>>(), [["all"], ["A: ü"]]);
    assert_eq!((&*found[1].text, found[1].end), ("Q: é? A: ü", End::Target));
}

#[test]
fn assistant_turns_are_targets() {
    let found = first(&[TALK, OTHER].join("\n"), CHATML);
    assert_eq!(
        found.text,
        "<|user|>Who?<|end|><|assistant|>I.<|end|><|user|>Why?<|end|><|assistant|>So.<|end|>"
    );
    assert_eq!(targets(&found), ["I.<|end|>", "So.<|end|>"]);
}

/// Goal: marks of the template decide which parts are targets, even where other methods fail, and do not appear in the
/// text.
#[test]
fn generation_marks_define_targets() {
    let marked = "{% for m in messages %}\n{% if m.role == 'assistant' %}\n<{%- generation -%}\n {{ m.content }}!\n \
                  {%- endgeneration %}>{% else %}({{ m.content.strip() }}{{ eos_token }}){% endif %}\n{% endfor %}";
    let found = first(&[TALK, OTHER].join("\n"), marked);
    assert_eq!(found.text, "(Who?<|end|>)<I.!>(Why?<|end|>)<So.!>");
    assert_eq!(targets(&found), ["I.!", "So.!"]);
    let inside = "{% generation %}{% generation %}x{% endgeneration %}{% endgeneration %}";
    let error = read(lines(&[TALK, OTHER].join("\n")), &chat(inside), None).unwrap_err().to_string();
    assert!(error.contains("inside another"), "{error}");
}

/// Goal: each error is one sentence with the file and the line.
#[test]
fn invalid_record_is_reported_with_its_line() {
    let check = |line: &str, template: Option<&str>, why: &str| {
        let chat = Chat { template: template.map(str::to_owned), ..Chat::default() };
        let error = read(lines(&[OTHER, line, OTHER].join("\n")), &chat, None).unwrap_err();
        let said = error.to_string();
        assert_eq!(error.exit_code(), 22, "{said}");
        assert!(said.starts_with("line 2 of chats.jsonl: ") && said.contains(why), "{said}");
        assert!(!said.contains('\n'), "{said}");
    };
    check("{\"text\": \"a", None, "it is not valid JSON (EOF while parsing a string, near character 11)");
    check("[1]", None, "not a JSON object");
    check("{}", None, "it has no \"text\"");
    check(r#"{"text": 3}"#, None, "\"text\" is not a text");
    check(r#"{"text": ""}"#, None, "is empty");
    check(r#"{"prompt": "a"}"#, None, "it has no \"completion\"");
    check(r#"{"completion": "a"}"#, None, "it has no \"prompt\"");
    check(r#"{"messages": 1}"#, None, "\"messages\" is not a list");
    check(r#"{"messages": "[{'role': 'user'}]"}"#, None, "\"messages\" is a text that is no JSON list");
    check(r#"{"messages": [1]}"#, None, "message 1 is not a JSON object");
    check(r#"{"messages": [{"role": "user"}]}"#, None, "message 1: it has no \"content\"");
    check(r#"{"messages": [{"role": "user", "content": 3}]}"#, None, "message 1: \"content\" is not a text");
    let null = r#"{"messages": [{"role": "assistant", "content": null}]}"#;
    check(
        null,
        None,
        "message 1: \"content\" is null: give the text of the message, or leave the message out",
    );
    let parts = r#"{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "a"}]}]}"#;
    check(
        parts,
        None,
        "message 1: its \"content\" has a part of the type \"image_url\", but only text is learnt",
    );
    let asks = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
    check(asks, Some(CHATML), "there is nothing to learn; it has \"user\"");
    check(TALK, None, "the model has no chat template: give --chat-template");
    check(TALK, Some("{% for %}"), "the chat template cannot be used");
    check(TALK, Some("a\n{{ raise_exception('no system') }}"), "no system (line 2 of the template)");
    check(TALK, Some("{{ messages | length }}"), "differently than in the whole conversation");
    check(
        TALK,
        Some("{% for a in range(9999) %}{% for b in range(9999) %}.{% endfor %}{% endfor %}"),
        "the chat template takes more than 2000000 steps",
    );
    check(TALK, Some("{% generation %}{% endgeneration %}"), "does not render the assistant's messages");
    let marks = r#"{"messages": [{"role": "assistant", "content": "a\ufdd0"}]}"#;
    check(marks, Some(CHATML), "U+FDD0");
    let many =
        format!(r#"{{"messages": [{}]}}"#, vec![r#"{"role": "assistant", "content": "a"}"#; 1_001].join(","));
    check(&many, Some(CHATML), "it has 1001 messages, but at most 1000 are read");

    let one = read(lines(OTHER), &Chat::default(), None).unwrap_err();
    assert_eq!((one.exit_code(), one.to_string().contains("has 1 document, and")), (7, true), "{one}");
}

/// Reads `line` twice, and returns the first of the two documents, and its form.
fn twice(line: &str, template: Option<&str>) -> Result<(Form, Document), String> {
    let chat = template.map_or_else(Chat::default, chat);
    let read = read(lines(&[line, line].join("\n")), &chat, None).map_err(|error| error.to_string())?;
    let form = *read.forms.keys().next().unwrap();
    Ok((form, read.documents[0].clone()))
}

/// Goal: conversations of every form give the same document as those under `messages`.
#[test]
fn other_forms_of_conversations_are_read() {
    let messages = r#"{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "A"}]}"#
        .replace('\n', " ");
    let (_, expected) = twice(&messages, Some(CHATML)).unwrap();
    let same = [
        (
            concat!(
                r#"{"conversations": [{"from": "system", "value": "S"}, "#,
                r#"{"from": "human", "value": "Q"}, {"from": "gpt", "value": "A"}]}"#
            ),
            Form::ShareGpt,
        ),
        (
            concat!(
                r#"{"system": "S", "conversations": [{"from": "user", "value": "Q"}, "#,
                r#"{"from": "assistant", "value": "A"}], "messages": []}"#
            ),
            Form::ShareGpt,
        ),
        (
            concat!(
                r#"{"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}], "#,
                r#""completion": [{"role": "assistant", "content": "A"}]}"#
            ),
            Form::Trl,
        ),
        (
            r#"{"system": "S", "instruction": "Q", "input": "", "output": "A", "text": "Q and A"}"#,
            Form::AlpacaConversation,
        ),
        (
            r#"{"system": "S", "instruction": "Q", "context": "", "response": "A", "category": "c"}"#,
            Form::AlpacaConversation,
        ),
        (
            concat!(
                r#"{"conversations": " ", "messages": "[{\"role\": \"system\", \"content\": \"S\"}, "#,
                r#"{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\"}]"}"#
            ),
            Form::Messages,
        ),
        (
            concat!(
                r#"{"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "#,
                r#"[{"type": "input_text", "text": "Q"}]}, {"role": "assistant", "content": "#,
                r#"[{"type": "output_text", "text": "A"}]}]}"#
            ),
            Form::Messages,
        ),
    ];
    for (line, form) in same {
        assert_eq!(twice(line, Some(CHATML)), Ok((form, expected.clone())), "{line}");
        let why = twice(line, None).unwrap_err();
        assert!(why.contains("no chat template: give --chat-template"), "{why}");
    }
    let line = r#"{"instruction": "Q", "input": "I", "output": "A"}"#;
    let (form, alpaca) = twice(line, None).unwrap();
    assert!(
        form == Form::AlpacaCompletion && alpaca.text.starts_with("Below is an instruction"),
        "{}",
        alpaca.text
    );
    assert!(alpaca.text.ends_with("### Instruction:\nQ\n\n### Input:\nI\n\n### Response:\nA"));
    assert_eq!(targets(&alpaca), ["A"]);
    let (_, asked) = twice(line, Some(CHATML)).unwrap();
    assert_eq!(asked.text, "<|user|>Q\n\nI<|end|><|assistant|>A<|end|>");
}

/// Goal: function calls of OpenAI's older interface give the same document as tool calls.
#[test]
fn older_function_calls_are_tool_calls() {
    let newer = r#"{"tools": [{"type": "function", "function": {"name": "f"}}], "messages": [
        {"role": "user", "content": "Q"}, {"role": "assistant", "content": null, "tool_calls": [{"type": "function",
        "function": {"name": "f", "arguments": "{}"}}]}, {"role": "tool", "name": "f", "content": "R"},
        {"role": "assistant", "content": "A"}]}"#;
    let older = r#"{"functions": [{"name": "f"}], "messages": [
        {"role": "user", "content": "Q"}, {"role": "assistant", "content": null,
        "function_call": {"name": "f", "arguments": "{}"}}, {"role": "function", "name": "f", "content": "R"},
        {"role": "assistant", "content": "A", "function_call": null}]}"#;
    let template = "{{ tools | tojson }}{% for m in messages %}<{{ m | tojson }}>{% endfor %}";
    let read = |line: &str| twice(&line.replace('\n', " "), Some(template)).unwrap();
    assert_eq!(read(older), read(newer));
    assert!(read(older).1.text.contains(r#""tool_calls": [{"type": "function""#), "{}", read(older).1.text);
}

/// Goal: earlier turns are masked, not trained on, if their weight or a prompt says so.
#[test]
fn weights_and_prompts_define_targets() {
    let weighted = |weights: [&str; 2]| {
        let [a, b] = weights;
        let first = format!(
            r#"{{"role": "user", "content": "Q", "weight": null}}, {{"role": "assistant", "content": "A"{a}}}"#
        );
        let second =
            format!(r#"{{"role": "user", "content": "R"}}, {{"role": "assistant", "content": "B"{b}}}"#);
        format!(r#"{{"messages": [{first}, {second}]}}"#)
    };
    let marked = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}\
                  {% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}";
    let check = |line: &str, turns: &[&str], marks: &[&str]| {
        assert_eq!(targets(&twice(line, Some(CHATML)).unwrap().1), turns, "{line}");
        assert_eq!(targets(&twice(line, Some(marked)).unwrap().1), marks, "{line}");
    };
    check(&weighted([r#", "weight": 0"#, r#", "weight": 1"#]), &["B<|end|>"], &["B"]);
    check(&weighted([r#", "weight": 1.0"#, r#", "train": false"#]), &["A<|end|>"], &["A"]);
    check(&weighted([r#", "loss": true"#, r#", "loss": false"#]), &["A<|end|>"], &["A"]);
    check(&weighted([r#", "loss": 2.5"#, ""]), &["A<|end|>", "B<|end|>"], &["A", "B"]);
    check(&weighted(["", ""]), &["A<|end|>", "B<|end|>"], &["A", "B"]);
    let trl = weighted(["", ""]).replace("messages", "prompt").replace(
        "}]}",
        r#"}], "completion": [{"role": "user", "content": "T"}, {"role": "assistant", "content": "C"}]}"#,
    );
    check(&trl, &["C<|end|>"], &["C"]);
    let why = |line: &str, template: &str| twice(line, Some(template)).unwrap_err();
    let half = why(&weighted([r#", "weight": 0.5"#, ""]), CHATML);
    assert!(half.contains("message 2: its \"weight\" is 0.5: give 1 to learn it, or 0 not to"), "{half}");
    let none = why(&weighted([r#", "weight": 0"#, r#", "weight": 0"#]), CHATML);
    assert!(none.contains("no message of the assistant's is marked for learning"), "{none}");
    let one = "{% generation %}{{ messages[1].content }}{{ messages[3].content }}{% endgeneration %}";
    let unclear = why(&weighted([r#", "weight": 0"#, ""]), one);
    assert!(
        unclear.contains("has 1 parts between") && unclear.contains("leave the weights out"),
        "{unclear}"
    );
}

/// Goal: null in a row of a table is read as a missing key.
#[test]
fn null_is_read_as_a_missing_key() {
    let form = |line: &str| twice(line, Some(CHATML)).map(|(form, document)| (form, document.text));
    let text = Ok((Form::Text, "a".to_owned()));
    assert_eq!(form(r#"{"text": "a", "messages": null, "conversations": []}"#), text);
    assert_eq!(form(r#"{"text": "a", "prompt": null, "completion": null, "instruction": null}"#), text);
    assert_eq!(form(r#"{"text": "a", "prompt": "b"}"#), text);
    assert_eq!(
        form(r#"{"text": null, "prompt": "a", "completion": "b"}"#),
        Ok((Form::Completion, "ab".to_owned()))
    );
    let why = form(r#"{"text": null}"#).unwrap_err();
    assert!(why.contains("it has no \"text\""), "{why}");
}

/// Goal: the owner's key is learnt, whatever other keys a line has, and a change of the key is a change of the text.
#[test]
fn a_named_key_is_the_text() {
    let body = "{\"text\": \"no\", \"body\": \"one\"}\n{\"body\": \"two\", \"chosen\": 1}\n";
    let found = read(lines(body), &Chat::default(), Some("body")).unwrap();
    assert_eq!(found.documents.iter().map(targets).collect::<Vec<_>>(), [["one"], ["two"]]);
    assert_eq!(found.forms, [(Form::Text, 2)].into());
    let refused = |line: &str| {
        let text = format!("{body}{line}");
        read(lines(&text), &Chat::default(), Some("body")).unwrap_err().to_string()
    };
    let missing = "line 3 of chats.jsonl: it has no \"body\", which --column names; it has \"text\"";
    assert!(refused("{\"text\": \"a\", \"body\": null}").contains(missing));
    assert!(refused("{\"body\": \"\"}").contains("\"body\" is empty"));
    assert!(refused("{\"body\": [\"a\"]}").contains("\"body\""));
    let hash = |column| hash(&lines(body), &Chat::default(), column);
    assert!(hash(None) != hash(Some("text")) && hash(Some("body")) != hash(Some("text")));
}

#[test]
fn other_records_are_refused_with_their_keys() {
    let check = |line: &str, why: &str| {
        let said = twice(line, Some(CHATML)).unwrap_err();
        assert!(said.starts_with("line 1 of chats.jsonl: ") && said.contains(why), "{said}");
    };
    check(r#"{"q": "a", "a": "b"}"#, "it has \"q\", \"a\": name the one that is learnt with --column");
    check(
        r#"{"question": "a", "answer": "b"}"#,
        "it has \"question\" and \"answer\": rename \"question\" to \"instruction\" and \"answer\" to \"output\"",
    );
    check(
        r#"{"instruction": "a", "answer": "b"}"#,
        "it has \"instruction\" and \"answer\": rename \"answer\" to \"output\"",
    );
    check(
        r#"{"prompt": "a", "response": "b"}"#,
        "no \"completion\": rename \"response\" to that if it follows the prompt directly; for a question and its \
         answer, rename \"prompt\" to \"instruction\" and \"response\" to \"output\"",
    );
    check(r#"{"input_ids": [1, 2]}"#, "\"input_ids\", which are tokens and not text: give the text");
    check(
        r#"{"messages": [{"role": "user", "content": "<image>Who?"}, {"role": "assistant", "content": "b"}],
            "images": ["a.png"]}"#
            .replace('\n', " ")
            .as_str(),
        "it has <image> with \"images\", but only text is learnt",
    );
    check(r#"{"text": "", "question": "a", "answer": "b"}"#, "\"text\" is empty");
    check(
        r#"{"prompt": "a", "chosen": "b", "rejected": "c"}"#,
        "not from preferences: keep only the chosen answer",
    );
    check(r#"{"prompt": "a", "completion": "b", "label": false}"#, "its \"label\" is false");
    let rejected = r#"{"messages": [{"role": "assistant", "content": "a"}], "label": false}"#;
    check(rejected, "its \"label\" is false");
    check(r#"{"instruction": "a", "output": "b", "kto_tag": false}"#, "its \"kto_tag\" is false");
    check(
        r#"{"messages": [{"role": "user", "content": "a"}, {"role": "Assistant", "content": "b"}]}"#,
        "it has \"Assistant\", \"user\": call the role that is learnt \"assistant\"",
    );
    check(r#"{"prompt": [{"role": "user", "content": "a"}], "completion": "b"}"#, "write both as lists");
    check(
        r#"[{"role": "user", "content": "a"}]"#,
        "it is a list of messages: write it as {\"messages\": […]}",
    );
    check(r#"{"text": ["a", "b"]}"#, "\"text\" is a list, not a text");
    check(r#"{"messages": []}"#, "\"messages\" is empty");
    check(
        r#"{"conversations": [{"from": "function_call", "value": "a"}]}"#,
        "message 1: \"from\" is \"function_call\", not human",
    );
}

/// Goal: the system message of a record is used in every form, and a label of a text has no meaning.
#[test]
fn a_system_message_next_to_the_messages_is_given() {
    let talk = r#""messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]"#;
    let text = |line: &str| twice(line, Some(CHATML)).unwrap().1.text;
    let inside = talk.replacen('[', r#"[{"role": "system", "content": "s"}, "#, 1);
    assert_eq!(text(&format!(r#"{{"system": "s", {talk}}}"#)), text(&format!("{{{inside}}}")));
    assert_eq!(text(&format!(r#"{{"system": "other", {inside}}}"#)), text(&format!("{{{inside}}}")));
    assert_eq!(text(r#"{"text": "a", "label": false}"#), "a");
}

/// Goal: a lone half of a surrogate pair is accepted, as in Python, and becomes U+FFFD.
#[test]
fn half_of_a_surrogate_pair_is_replaced() {
    let text = |json: &str| twice(json, None).unwrap().1.text;
    assert_eq!(
        text(r#"{"text": "a\ud83d b\ude00\\ud83d \ud83d\ude00 é"}"#),
        "a\u{fffd} b\u{fffd}\\ud83d 😀 é"
    );
    assert_eq!(text(r#"{"text": "\ud83d\n\ud83d\u0041"}"#), "\u{fffd}\n\u{fffd}A");
}

#[test]
fn a_list_of_records_is_read_as_lines_are() {
    let list = "[\n  {\n    \"text\": \"a\"\n  },\n  {\"text\": \"b\"}, \"c\"\n]\n";
    let found = read(lines(list), &Chat::default(), None).unwrap().documents;
    assert_eq!(found.iter().map(|document| &*document.text).collect::<Vec<_>>(), ["a", "b", "c"]);
    let error =
        read(lines("[\n{\"text\": \"a\"},\n{\"q\": 1}]"), &Chat::default(), None).unwrap_err().to_string();
    assert!(error.starts_with("line 3 of chats.jsonl: it has no \"text\""), "{error}");
}

/// Returns a tokenizer with one merge across words, trimmed offsets, and an end-of-text token.
fn vocabulary() -> Vocabulary {
    let mut json: serde_json::Value = serde_json::from_str(&Vocabulary::Bytes.to_json()).unwrap();
    json["model"]["vocab"]["?A"] = 256.into();
    json["model"]["merges"] = serde_json::json!([["?", "A"]]);
    json["added_tokens"] = serde_json::json!([{"id": 257, "content": "<|end|>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}]);
    json["post_processor"] = json["pre_tokenizer"].clone();
    Vocabulary::from_json(json.to_string().as_bytes()).unwrap()
}

fn marked(tokens: &[u32]) -> String {
    let mark = |&token: &u32| {
        let text = match token::id(token) {
            257 => "$".to_owned(),
            id => vocabulary().decode(&[id]),
        };
        if token::is_target(token) { text } else { text.chars().map(|c| format!("{c}\u{332}")).collect() }
    };
    tokens.iter().map(mark).collect()
}

/// Goal: tokens that are partly targets are targets, blanks belong to the text around them, and each document has its
/// end.
#[test]
fn tokens_are_learnt_where_their_text_is() {
    let vocabulary = vocabulary();
    let ends = Ends::new(&vocabulary, vocabulary.token("<|end|>")).unwrap();
    let tokens = |text: &str| {
        let documents = read(lines(&[text, OTHER].join("\n")), &chat(CHATML), None).unwrap().documents;
        let mut first = Vec::new();
        let mut take = |index, tokens: &[u32]| first.extend(tokens.iter().filter(|_| index == 0));
        tokens::each(&documents, &vocabulary, &ends, &mut take).unwrap();
        marked(&first)
    };
    assert_eq!(tokens(r#"{"text": "a  b"}"#), "a  b$");
    assert_eq!(tokens(r#"{"prompt": "Q? ", "completion": "A "}"#), "Q\u{332}?\u{332} \u{332}A $");
    assert_eq!(tokens(r#"{"prompt": "Q ", "completion": "  A"}"#), "Q\u{332} \u{332}  A$");
    assert_eq!(tokens(r#"{"prompt": "Q?", "completion": "AB"}"#), "Q\u{332}?AB$");
    assert_eq!(tokens(r#"{"prompt": "Q", "completion": ""}"#), "Q\u{332}$");
    // The template writes the end itself, so it is not added again.
    let asked = "<|user|>Q".chars().map(|c| format!("{c}\u{332}")).collect::<String>();
    let answers = "<|assistant|>".chars().map(|c| format!("{c}\u{332}")).collect::<String>();
    assert_eq!(
        tokens(r#"{"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}"#),
        format!("{asked}$\u{332}{answers}A$")
    );
}

#[test]
fn a_model_without_an_end_ends_its_documents_with_lines() {
    let ends = Ends::new(&Vocabulary::Bytes, None).unwrap();
    let documents = read(lines(&[OTHER, OTHER].join("\n")), &Chat::default(), None).unwrap().documents;
    let found = cut(&documents, &Vocabulary::Bytes, &ends, 0.5, 1).unwrap();
    assert_eq!(
        (&*found.train, &*found.held_out),
        (&b"more\n".map(u32::from)[..], &b"more\n".map(u32::from)[..])
    );
}

#[test]
fn whole_documents_are_held_out() {
    let text: String =
        (0..100).map(|i| format!("{{\"prompt\": \"{i}=\", \"completion\": \"{}\"}}\n", i * i)).collect();
    let documents = read(lines(&text), &Chat::default(), None).unwrap().documents;
    let vocabulary = vocabulary();
    let ends = Ends::new(&vocabulary, Some(257)).unwrap();
    let cut = |ratio, seed| cut(&documents, &vocabulary, &ends, ratio, seed).unwrap();
    let found = cut(0.2, 1);
    let texts = |tokens: &[u32]| {
        let parts = tokens.split(|&token| token == 257).map(<[u32]>::to_vec);
        let text = |tokens: Vec<u32>| {
            vocabulary.decode(&tokens.iter().map(|&token| token::id(token)).collect::<Vec<_>>())
        };
        parts.map(text).filter(|text| !text.is_empty()).collect::<std::collections::BTreeSet<_>>()
    };
    let (train, held_out) = (texts(&found.train), texts(&found.held_out));
    assert_eq!((train.len(), held_out.len()), (80, 20));
    assert!(train.is_disjoint(&held_out));
    assert!(found.held_out == cut(0.2, 1).held_out && found.held_out != cut(0.2, 2).held_out);
    // Each digit is a token, and so is the end, which has no text.
    let targets = found.held_out.iter().filter(|&&token| token & MASKED == 0).count() as f64;
    assert!((found.bytes_per_token - (targets - 20.0) / targets).abs() < 1e-9);
    // Both sides have a document, whatever the share.
    assert_eq!(texts(&cut(0.001, 1).held_out).len(), 1);
    assert_eq!(texts(&cut(0.999, 1).train).len(), 1);
}

#[test]
fn hash_depends_on_the_template() {
    let hash = |text: &str, template: &str| hash(&lines(text), &chat(template), None);
    assert_eq!(hash(TALK, CHATML), hash(TALK, CHATML));
    assert_ne!(hash(TALK, CHATML), hash(OTHER, CHATML));
    assert_ne!(hash(TALK, CHATML), hash(TALK, "{{ messages }}"));
}
