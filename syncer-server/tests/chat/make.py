"""Writes expected.jsonl: each template of templates/ with each conversation, as transformers writes them, and what is learnt of it.

    python make.py [--check]

It needs the packages of requirements.txt. With --check it writes nothing, and exits with 1 if expected.jsonl is another.

A case is "refused" where transformers or the template refuses the conversation, or where nobody can tell what the assistant says. Otherwise it is a
list of texts, which are given and learnt in turns, with the number of tokens. What is learnt is what return_assistant_tokens_mask says of templates
with {% generation %}, and what a turn adds to its prompt for others. Two things differ from transformers on purpose: there is no strftime_now, and
contents in parts are given as strings to templates that know strings alone.
"""

import json
import re
import sys
from pathlib import Path

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = Path(__file__).parent
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def tokenizer():
    """A tokenizer of bytes with some merges, and the tokens of TOKENS."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_file(str(HERE / "tokenizer.json")), **TOKENS)


def render(tokenizer, template, record, messages, prompt=False):
    options = record.get("chat_template_kwargs") or {}
    compiled = chat_template_utils._compile_jinja_template(template)
    compiled.environment.globals.pop("strftime_now", None)
    compiled.globals.pop("strftime_now", None)
    if messages:
        return tokenizer.apply_chat_template(
            messages, tools=record.get("tools"), documents=record.get("documents"), chat_template=template,
            add_generation_prompt=prompt, tokenize=False, **options,
        )  # fmt: skip
    # It takes no empty conversation, which a template may.
    texts, _ = chat_template_utils.render_jinja_template(
        [[]], tools=record.get("tools"), documents=record.get("documents"), chat_template=template,
        add_generation_prompt=prompt, **{**tokenizer.special_tokens_map, **options},
    )  # fmt: skip
    return texts[0]


def generated(tokenizer, template, record, messages):
    """What the template says that the assistant generates."""
    options = record.get("chat_template_kwargs") or {}
    _, spans = chat_template_utils.render_jinja_template(
        [chat_template_utils._normalize_chat_messages(messages)], tools=record.get("tools"),
        documents=record.get("documents"), chat_template=template, return_assistant_tokens_mask=True,
        **{**tokenizer.special_tokens_map, **options},
    )  # fmt: skip
    return spans[0]


def turn(text, before, turn_end, message):
    """Where a turn is in the text, or None."""
    begins = [begin for begin in (before, before.rstrip()) if turn_end.startswith(begin) and text.startswith(begin)]
    if not begins:
        return None
    before = begins[0]
    added, rest = turn_end[len(before) :], text[len(before) :]
    if rest.startswith(added):
        return len(before), len(turn_end)
    content = message.get("content")
    answer = content.split("</think>")[-1].strip() if isinstance(content, str) else ""
    if not answer or answer not in added:
        return None
    for start in range(added.rindex(answer) + 1):
        if rest.startswith(added[start:]):
            return len(before), len(before) + len(added) - start
    return None


def spans_of(tokenizer, template, record, messages, is_learnt, text):
    said = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if re.search(r"\{%-?\s*generation\s*-?%\}", template):
        spans = generated(tokenizer, template, record, messages)
        if all(is_learnt):
            return spans
        if len(spans) != len(said):
            return None
        return [span for span, index in zip(spans, said) if is_learnt[index]]
    spans = []
    for index in said:
        if not is_learnt[index]:
            continue
        before = render(tokenizer, template, record, messages[:index], prompt=True)
        after = render(tokenizer, template, record, messages[: index + 1])
        span = turn(text, before, after, messages[index])
        # Some templates end the whole text, and not each turn, with the token that ends texts.
        if span is None and after.endswith(TOKENS["eos_token"]):
            span = turn(text, before, after.removesuffix(TOKENS["eos_token"]), messages[index])
        spans.append(span)
    return None if None in spans else spans


def has_parts(messages):
    return any(isinstance(message.get("content"), list) for message in messages)


def flat(messages):
    text = lambda content: "".join(part["text"] for part in content) if isinstance(content, list) else content
    return [{**message, "content": text(message.get("content"))} for message in messages]


def written(tokenizer, template, record, messages, is_learnt):
    text = render(tokenizer, template, record, messages)
    if has_parts(messages) and "{'type': 'text'" in text:
        raise ValueError("it prints lists")
    spans = spans_of(tokenizer, template, record, messages, is_learnt, text)
    if spans is None or not any(end > start for start, end in spans):
        raise ValueError("nothing is learnt")
    return text, spans


def case(tokenizer, template, record):
    is_learnt = [message.get("weight", 1) == 1 for message in record["messages"]]
    messages = [{key: value for key, value in message.items() if key != "weight"} for message in record["messages"]]
    try:
        text, spans = written(tokenizer, template, record, messages, is_learnt)
    except Exception:
        if not has_parts(messages):
            return "refused"
        try:
            text, spans = written(tokenizer, template, record, flat(messages), is_learnt)
        except Exception:
            return "refused"
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    # A character may have several tokens: each is learnt if it is.
    learnt = [any(start < span[1] and max(end, start + 1) > span[0] for span in spans) for start, end in offsets]
    end = tokenizer.eos_token_id
    if ids[-1] != end:
        ids, learnt = ids + [end], learnt + [False]
    texts, groups = [], [[]]
    for token, is_learnt in zip(ids, learnt):
        if is_learnt != (len(groups) % 2 == 0):
            groups.append([])
        groups[-1].append(token)
    texts = [tokenizer.decode(group, skip_special_tokens=False, clean_up_tokenization_spaces=False) for group in groups]
    return {"tokens": len(ids), "texts": texts}


def main():
    records = [json.loads(line) for line in (HERE / "conversations.jsonl").read_text(encoding="utf-8").splitlines()]
    lines = []
    for path in sorted((HERE / "templates").iterdir()):
        template = path.read_bytes().decode("utf-8")
        cases = {record["name"]: case(tokenizer(), template, record) for record in records}
        lines.append(json.dumps({"template": path.stem, "cases": cases}, ensure_ascii=False) + "\n")
    expected = HERE / "expected.jsonl"
    if "--check" not in sys.argv:
        expected.write_text("".join(lines), encoding="utf-8")
    elif expected.read_text(encoding="utf-8") != "".join(lines):
        old = dict((json.loads(line)["template"], line) for line in expected.read_text(encoding="utf-8").splitlines(True))
        changed = [json.loads(line)["template"] for line in lines if old.get(json.loads(line)["template"]) != line]
        sys.exit(f"transformers writes other texts than expected.jsonl has, by these templates: {', '.join(changed)}")


main()
