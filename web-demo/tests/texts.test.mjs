// Goal: every word of the lesson and of the data-centre page is in one file, under a key in use, with all its values.
import assert from "node:assert/strict";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { load, root } from "./support.mjs";

const pages = join(root, "pages");
const english = JSON.parse(await readFile(join(pages, "words/en.json"), "utf8"));
const { filled } = await load("../words-in-pages.ts");
const { ENGLISH, isPlural, placeholdersOf } = await load("words/texts.ts");
const whole = await Promise.all(["teach.html", "scale.html"].map((name) => readFile(join(pages, name), "utf8")));
const html = whole.join("\n");
const folders = await Promise.all(["teach", "scale", "words"].map(scripts));
const sources = await Promise.all(folders.flat().map(read));

async function scripts(folder) {
  const names = await readdir(join(pages, folder), { recursive: true });
  return names.filter((name) => name.endsWith(".ts")).map((name) => join(folder, name));
}

/** Returns a script without its comments and imports. */
async function read(name) {
  const whole = await readFile(join(pages, name), "utf8");
  const code = whole.replace(/^import [^;]+;$/gm, "").replace(/\/\*[\s\S]*?\*\/|^\s*\/\/.*$/gm, "");
  return { name, code };
}

/** Returns quoted texts, with `*` for computed parts of templates. */
function quoted(code) {
  const found = [...code.matchAll(/"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`/g)];
  return found.map(([, plain, template]) => plain ?? template.replace(/\$\{[^}]*\}/g, "*"));
}

/** Returns the keys of a quoted text: one, several for a `*`, or none if it is not a key. */
function keysOf(text) {
  if (!/^\w+(\.[\w*]+)+$/.test(text) || !(text.split(".")[0] in english)) return [];
  const pattern = new RegExp(`^${text.replaceAll(".", "\\.").replaceAll("*", "\\w+")}$`);
  const keys = [...ENGLISH.keys()].filter((key) => pattern.test(key));
  assert.ok(keys.length > 0, `"${text}" is no key of en.json`);
  return keys;
}

function inHtml() {
  return [...html.matchAll(/\bdata-words(?:-[a-z-]+)?="([^"]+)"/g)].map(([, key]) => key);
}

function namesOf(text) {
  const all = isPlural(text) ? Object.values(text) : [text].flat();
  return new Set(all.flatMap((one) => [...placeholdersOf(one)]));
}

test("each key that is used is there, and each that is there is used", () => {
  for (const key of inHtml()) assert.ok(ENGLISH.has(key), `"${key}" of a page is no key of en.json`);
  const used = new Set([...inHtml(), ...sources.flatMap(({ code }) => quoted(code).flatMap(keysOf))]);
  assert.deepEqual(
    [...ENGLISH.keys()].filter((key) => !used.has(key)),
    [],
  );
});

/** Returns the arguments between commas, from an opening parenthesis to its closing one. */
function partsOf(code, from) {
  const parts = [""];
  let depth = 0;
  let quote = "";
  for (let at = from; at < code.length; at += 1) {
    const c = code[at];
    if (quote) quote = c === quote ? "" : quote;
    else if (c === '"' || c === "`") quote = c;
    else if ("([{".includes(c)) depth += 1;
    else if (")]}".includes(c)) depth -= 1;
    if (depth === 0) return parts;
    if (depth === 1 && c === "," && !quote) parts.push("");
    else if (at > from) parts[parts.length - 1] += c;
  }
  throw new Error("a call that does not end");
}

/** Returns the value of a constant of this name, the last before `at`. */
function constant(code, name, at) {
  const begin = code.lastIndexOf(`const ${name} = `, at);
  return begin === -1 ? "" : code.slice(begin, code.indexOf(";\n", begin)).replace(/^[^=]*= /, "");
}

/** Returns the names that an argument gives values to. */
function given(code, argument, at) {
  const text = argument.trim();
  if (/^\w+$/.test(text)) return given(code, constant(code, text, at), at);
  if (!text.startsWith("{")) return [];
  return partsOf(text, 0).flatMap((part) => {
    const spread = /^\s*\.\.\.(\w+)$/.exec(part);
    return spread ? given(code, spread[1], at) : [/^\s*(\w+)/.exec(part)?.[1]].filter(Boolean);
  });
}

test("each text gets all that it names in braces, and none is told apart from a number that it does not get", () => {
  const filledKeys = new Set();
  for (const { name, code } of sources) {
    for (const call of code.matchAll(/\b(phrase|said)(?=\()/g)) {
      const [first, ...rest] = partsOf(code, call.index + call[0].length);
      const isWhole = call[1] === "phrase";
      const said = /^\w+$/.test(first.trim()) ? constant(code, first.trim(), call.index) : first;
      // `said` of the sentence supplies the islands and their number itself.
      const names = isWhole
        ? given(code, rest[0] ?? "", call.index)
        : ["count", "islands", ...given(code, rest[1] ?? "", 0)];
      for (const key of quoted(said).flatMap(keysOf)) {
        const text = ENGLISH.get(key);
        for (const needed of [...namesOf(text), ...(isPlural(text) ? ["count"] : [])])
          assert.ok(names.includes(needed), `${name}: "${key}" needs {${needed}}, and gets ${names}`);
        filledKeys.add(key);
      }
    }
  }
  for (const [, , key, inside] of html.matchAll(/<(\w+)[^<>]*\bdata-words="([^"]+)"[^<>]*>([\s\S]*?)<\/\1>/g)) {
    for (const needed of namesOf(ENGLISH.get(key)))
      assert.ok(inside.includes(`data-slot="${needed}"`), `a page: "${key}" needs a child for {${needed}}`);
    filledKeys.add(key);
  }
  const unfilled = [...ENGLISH].filter(([key, text]) => namesOf(text).size > 0 && !filledKeys.has(key));
  assert.deepEqual(
    unfilled.map(([key]) => key),
    [],
  );
});

/** Quoted texts that no visitor reads. */
const UNREAD =
  /\bclass: "[^"]*"|(?:matchMedia|closest|querySelector(?:All)?)(?:<\w+>)?\([^)]*\)|\.font = .*|`\$\{px\}px .*|event\.key === "\w+"|Arrow\w+|Page\w+/g;

test("no sentence is left in the scripts", () => {
  const left = sources
    .filter(({ name }) => !name.startsWith("words"))
    .flatMap(({ name, code }) => {
      const texts = quoted(code.replace(UNREAD, "")).filter((text) => keysOf(text).length === 0);
      const sentences = texts.filter((text) => /\p{L}{2,}[ ,.:…]+\p{L}{2,}|^\s*\p{Lu}\p{Ll}+/u.test(text));
      return sentences.filter((text) => !/^\.\.?\//.test(text)).map((text) => `${name}: ${text}`);
    });
  assert.deepEqual(left, []);
});

test("no sentence is left in the pages", () => {
  const named = html.replace(/\sdata-words(?:-[a-z-]+)?="[^"]*"/g, "");
  const read = [...named.matchAll(/\s(aria-label|title|placeholder|content|alt)="([^"]*\p{L}{3}[^"]*)"/gu)].map(
    ([, , text]) => text,
  );
  assert.deepEqual([...new Set(read)], ["width=device-width, initial-scale=1", "website"]);
  const texts = named
    .replace(/<kbd[^>]*>[^<]*<\/kbd>|&nbsp;/g, "")
    .split(/<[^>]*>/)
    .filter((text) => /\p{L}{2}/u.test(text));
  assert.deepEqual([...new Set(texts)], ["Archipelago"]);
});

test("pages are built with the words in them, in their places, and escaped", () => {
  const words = { a: 'Say "x" & <y>', b: "one {first} two {second}.", c: { d: "deep" } };
  const check = (page, built) => assert.equal(filled(page, words), built);
  check('<p data-words="a"></p>', '<p data-words="a">Say &quot;x&quot; &amp; &lt;y></p>');
  check('<p data-words-title="c.d">x</p>', '<p data-words-title="c.d" title="deep">x</p>');
  check(
    '<p data-words="b"><b data-slot="second" data-words="c.d"></b><input data-slot="first"></p>',
    '<p data-words="b">one <input data-slot="first"> two <b data-slot="second" data-words="c.d">deep</b>.</p>',
  );
  assert.throws(() => filled('<p data-words="c.e"></p>', words), /names the text "c.e"/);
  assert.ok(!filled(html, english).includes("undefined"));
});

/** Returns the English words with `change` applied, as a file. */
function file(change) {
  const words = structuredClone(english);
  change(words);
  return JSON.stringify(words);
}

test("a translation is taken, and what it lacks is named and English", async () => {
  const { check } = await load("words/check.ts");
  const whole = check(JSON.stringify({ ...english, language: "de-at" }));
  assert.deepEqual([whole.ok, whole.language, whole.missing], [true, "de-AT", []]);
  const partly = check(JSON.stringify({ language: "pl", time: { play: "Graj" } }));
  assert.equal(partly.texts.get("time.play"), "Graj");
  assert.equal(partly.texts.get("time.pause"), "Pause");
  assert.equal(partly.missing.length, ENGLISH.size - 2);
  assert.ok(partly.missing.includes("chapters.far.answers"));
  // Other languages have other plural forms, and the singular form may omit the number.
  const plural = check(file(({ ending }) => (ending.tried = { few: "{count} {came} {left}", other: "{came} {left}" })));
  assert.ok(plural.ok);
});

test("a file that is no translation is refused with the reason, and with what is at fault", async () => {
  const { check, WORDS_BYTES_MAX } = await load("words/check.ts");
  const refused = (text, why, ...keys) => assert.deepEqual(check(text), { ok: false, why, keys });
  refused(`"${"x".repeat(5_000_000)}"`, "large");
  refused(JSON.stringify({ language: "de", page: { title: "ü".repeat(WORDS_BYTES_MAX / 2) } }), "large");
  for (const text of ["", "{", "<!doctype html>", '{"language": "de",}', "[".repeat(150_000)]) refused(text, "notJson");
  for (const text of ["null", "1", '"de"', "[]"]) refused(text, "notWords");
  for (const language of [undefined, 1, "", "<b>", "a b"]) refused(JSON.stringify({ language }), "language");
  const deep = `{"language":"de","time":${'{"a":'.repeat(20_000)}1${"}".repeat(20_000)}}`;
  refused(deep, "unknown", "time.a");
  refused('{"language":"de","__proto__":{"polluted":"x"}}', "unknown", "__proto__");
  refused('{"language":"de","constructor":"x","time":[]}', "unknown", "constructor", "time");
  const changed = (change, why, ...keys) => refused(file(change), why, ...keys);
  changed(({ time }) => (time.play = 3), "kind", "time.play");
  changed(({ time }) => (time.play = null), "kind", "time.play");
  changed(({ time }) => (time.play = " "), "kind", "time.play");
  changed(({ time }) => (time.play = { other: "x" }), "kind", "time.play");
  changed(({ chapters }) => chapters.far.answers.pop(), "kind", "chapters.far.answers");
  changed(({ ending }) => (ending.left = "x"), "kind", "ending.left");
  changed(({ ending }) => (ending.left = { one: "x" }), "plural", "ending.left");
  changed(({ ending }) => (ending.left.some = "{count}"), "plural", "ending.left");
  for (const text of ["<b>x", "x</p>", "<!-- x", "&lt;x", "&#60;", "a\u202eb", "a\nb", "a\u0000"])
    changed(({ time }) => (time.play = text), "markup", "time.play");
  changed(({ chapters }) => (chapters.far.answers[1] = "<i>"), "markup", "chapters.far.answers");
  changed(({ time }) => (time.slow = "{pace}"), "placeholders", "time.slow");
  changed(({ time }) => (time.slow = "{pace} {speed} {toString}"), "placeholders", "time.slow");
  changed(({ ending }) => (ending.tried.one = "{count}"), "placeholders", "ending.tried");
  assert.equal({}.polluted, undefined);
});
