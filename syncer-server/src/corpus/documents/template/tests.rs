//! Tests: templates render as in `transformers`, and templates that exceed a limit are refused.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use archipelago_core::token;
use serde::Deserialize;
use serde_json::Value as Json;

use super::super::conversation::Conversation;
use super::super::renderer::{Limits, Renderer};
use super::super::{Ends, line, tokens};
use super::*;
use crate::corpus::vocabulary::Vocabulary;

/// Limits of time that none of these templates reaches, even on a busy machine.
const PATIENT: Limits = Limits {
    fuel: Fuel { each: 50_000, all: 500_000 },
    each: Duration::from_secs(100),
    all: Duration::from_secs(1_000),
};

const TALK: &str =
    r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;

/// Templates of one file, as `make.py` writes them.
#[derive(Deserialize)]
struct Expected {
    template: String,
    cases: BTreeMap<String, Json>,
}

fn file(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/chat").join(name);
    fs::read_to_string(path).unwrap()
}

fn chat(template: &str) -> Chat {
    let tokens = [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(key, text)| (key.into(), text.into()));
    Chat { template: Some(template.to_owned()), tokens: tokens.into(), ..Chat::default() }
}

fn start(template: &str, limits: Limits) -> Renderer {
    Renderer::start(&chat(template), limits).unwrap()
}

fn document(renderer: &Renderer, json: &str) -> Result<Document, String> {
    let mut write = |conversation: &Conversation| renderer.document(Dialogue::new(conversation)?);
    line::document(json, None, Some(&mut write)).map(|(_, document)| document)
}

/// Returns a document as `make.py` writes it: the number of tokens, and alternately masked and target texts.
fn case(document: Document, vocabulary: &Vocabulary, ends: &Ends) -> Json {
    let mut tokens = Vec::new();
    tokens::each(&[document], vocabulary, ends, &mut |_, found| tokens = found.to_vec()).unwrap();
    let mut groups: Vec<Vec<u32>> = vec![Vec::new()];
    for &one in &tokens {
        if token::is_target(one) != groups.len().is_multiple_of(2) {
            groups.push(Vec::new());
        }
        groups.last_mut().unwrap().push(token::id(one));
    }
    let text = |group: &Vec<u32>| vocabulary.decode(group);
    serde_json::json!({ "tokens": tokens.len(), "texts": groups.iter().map(text).collect::<Vec<_>>() })
}

/// Goal: a conversation with tools is rendered by the template for tools, as in `transformers`.
#[test]
fn tools_choose_the_template() {
    let answer = "{% generation %}{{ messages[-1].content }}{% endgeneration %}";
    let both = Chat { tool_use: Some(format!("{{{{ tools|length }}}} tools: {answer}")), ..chat(answer) };
    let with = |tools: &str| TALK.replacen('{', &format!(r#"{{"tools": {tools}, "#), 1);
    let text = |chat: &Chat, json: &str| {
        document(&Renderer::start(chat, PATIENT).unwrap(), json).map(|document| document.text)
    };
    assert_eq!(text(&both, TALK).unwrap(), "b");
    assert_eq!(text(&both, &with("null")).unwrap(), "b");
    assert_eq!(text(&both, &with("[]")).unwrap(), "0 tools: b");
    assert_eq!(text(&both, &with(r#"[{"name": "f"}]"#)).unwrap(), "1 tools: b");
    let alone = Chat { template: None, ..both };
    assert!(text(&alone, TALK).unwrap_err().contains("only for tools"));
}

/// Goal: each template renders each conversation with the right tokens, and the right ones are targets.
#[test]
fn renders_and_masks_like_transformers() {
    let vocabulary = Vocabulary::from_json(file("tokenizer.json").as_bytes()).unwrap();
    let ends = Ends::new(&vocabulary, vocabulary.token("</s>")).unwrap();
    let records = file("conversations.jsonl");
    let (mut others, mut count) = (Vec::new(), 0);
    for expected in file("expected.jsonl").lines() {
        let Expected { template, cases } = serde_json::from_str(expected).unwrap();
        let renderer =
            start(&file(&format!("templates/{template}.jinja")), Limits { fuel: Fuel::default(), ..PATIENT });
        for record in records.lines() {
            let name = serde_json::from_str::<Json>(record).unwrap()["name"].as_str().unwrap().to_owned();
            let found = document(&renderer, record);
            let why = found.as_ref().err().cloned().unwrap_or_default();
            let found = found.map_or_else(|_| "refused".into(), |found| case(found, &vocabulary, &ends));
            count += 1;
            if found != cases[&name] {
                others.push(format!("{template}, {name}:\n  {}\n  {found} {why}", cases[&name]));
            }
        }
    }
    assert!(others.is_empty(), "{} of {count} are others:\n{}", others.len(), others.join("\n"));
    assert!(count >= 40 * 12);
}

/// Goal: the limit for one rendering stops every way of growing a value.
#[test]
fn a_template_that_asks_for_too_much_is_refused() {
    let grow = |start: &str, step: &str, end: &str| {
        format!(
            "{{% set ns = namespace(x={start}) %}}{{% for i in range(99999) %}}{{% set ns.x = {step} %}}\
             {{% endfor %}}{{{{ {end} }}}}"
        )
    };
    let deep =
        |start: &str, step: &str, end: &str| grow(start, step, end).replace("range(99999)", "range(60)");
    let hostile = [
        grow("[1]", "ns.x + ns.x", "ns.x | length"),
        grow("(1, 2)", "ns.x + ns.x", "ns.x | length"),
        grow("[1]", "ns.x * 2", "ns.x | length"),
        grow("[1]", "[ns.x, ns.x] | sum(start=[])", "ns.x | length"),
        grow("'a'", "ns.x + ns.x", "ns.x | length"),
        grow("'a'", "ns.x ~ ns.x", "ns.x | length"),
        grow("'a'", "ns.x * 2", "ns.x | length"),
        grow("'aa'", "ns.x | replace('a', 'aa')", "ns.x | length"),
        grow("'aa'", "ns.x.replace('a', 'aa')", "ns.x | length"),
        grow("'a'", "'%s%s' % (ns.x, ns.x)", "ns.x | length"),
        grow("'a'", "'{0}{0}'.format(ns.x)", "ns.x | length"),
        grow("'a'", "[ns.x, ns.x] | join(ns.x)", "ns.x | length"),
        grow("'a'", "ns.x.join([ns.x, ns.x])", "ns.x | length"),
        grow("'a'", "ns.x | indent(i * i, true)", "ns.x | length"),
        grow("'\n'", "(ns.x ~ 'a\n') | indent(ns.x)", "ns.x | length"),
        grow("'<'", "(ns.x ~ ns.x) | e", "ns.x | length"),
        // Values whose text is much larger than their memory.
        deep("[1]", "[ns.x, ns.x]", "ns.x"),
        deep("[1]", "[ns.x, ns.x]", "ns.x | tojson"),
        deep("{}", "{'a': ns.x, 'b': ns.x}", "ns.x | upper"),
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns.x }}".into(),
        grow("[1]", "[ns.x]", "ns.x"),
        // Large widths.
        "{{ '%999999999d' % 1 }}".into(),
        "{{ '%9999999999999999999999d' | format(1) }}".into(),
        "{{ '{:999999999}'.format(1) }}".into(),
        "{{ 'a'.ljust(9999999999) }}".into(),
        "{{ 'a'.zfill(999999999) }}".into(),
        "{{ 'a' | center(9999999999) }}".into(),
        "{{ 'a' | indent(9999999999, true) }}".into(),
        "{{ 'a' * 10 ** 10 }}".into(),
        "{{ [1] * 10 ** 10 }}".into(),
        "{{ [1] * 10 ** 8 }}".into(),
        "{{ [messages] | tojson(indent=10 ** 9) }}".into(),
        "{{ range(10 ** 9) | list }}".into(),
        // Many steps.
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}.{% endfor %}{% endfor %}\
         {% endfor %}"
            .into(),
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}".into(),
        "{% macro f(n) %}{{ f(n) ~ f(n) }}{% endmacro %}{{ f(1) }}".into(),
        "{% for a in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}".into(),
        "{% for a in [[1], [1]] recursive %}{{ loop([[1], [1]]) }}{% endfor %}".into(),
    ];
    for template in hostile {
        let renderer = start(&format!("{template}{{% generation %}}a{{% endgeneration %}}"), PATIENT);
        let why = document(&renderer, TALK).expect_err(&template);
        assert!(why.contains("the chat template") && !why.contains('\n'), "{template}: {why}");
    }
}

/// Goal: the limit for all renderings together grows with the size of the conversations.
#[test]
fn a_template_that_takes_long_for_each_conversation_is_refused() {
    let slow = "{% for a in range(5000) %}{% set x = a %}{% endfor %}{% generation %}a{% endgeneration %}";
    let renderer = start(slow, PATIENT);
    let written = (0..400).take_while(|_| document(&renderer, TALK).is_ok()).count();
    assert!((5..40).contains(&written), "{written}");
    let why = document(&renderer, TALK).unwrap_err();
    assert!(
        why.contains("steps for the conversations up to this one") && why.contains("--chat-template"),
        "{why}"
    );
}

/// Goal: the time limits stop a template that compares deeply nested values, because a comparison uses no fuel.
#[test]
fn slow_template_reaches_the_time_limits() {
    let slow = "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(26) %}{% set ns.x = [ns.x, ns.x] %}\
                {% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}";
    let short = |limits: Limits| document(&start(slow, limits), TALK).unwrap_err();
    let each = short(Limits { each: Duration::from_millis(1), ..Limits::default() });
    assert!(each.contains("did not render it within"), "{each}");
    let all = short(Limits { all: Duration::ZERO, ..Limits::default() });
    assert!(all.contains("has used up the time for all conversations"), "{all}");
}

#[test]
fn missing_template_features_are_named() {
    let refused = |template: &str, why: &str| {
        let renderer = start(template, PATIENT);
        let found = document(&renderer, TALK).unwrap_err();
        assert!(found.contains(why), "{template}: {found}");
    };
    refused("{{ strftime_now('%d') }}", "asks for today's date with strftime_now");
    refused("{{ 1 | shuffle }}", "filter shuffle is unknown (line 1 of the template): give --chat-template");
    refused("{{ 'a' + 1 }}", "+ of a string and a number is not possible");
    refused("{% for a in none %}{% endfor %}", "none has no items");
    refused("{{ messages | length < 'a' }}", "is not possible");
}
