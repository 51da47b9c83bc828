/** Validates a translation file; nothing in it is trusted before that. */
import { ENGLISH, isPlural, type Plural, placeholdersOf, type Text, type Texts } from "./texts.js";

/** Size limit of a translation in bytes: several times the size of the English words. */
export const WORDS_BYTES_MAX = 200_000;

/** Reason for a refused file, and the keys at fault. */
export type Why =
  | "large"
  | "notJson"
  | "notWords"
  | "language"
  | "unknown"
  | "kind"
  | "plural"
  | "markup"
  | "placeholders";

export type Checked =
  | {
      readonly ok: true;
      readonly language: string;
      /** Every key, translated or in English. */
      readonly texts: Texts;
      /** Keys that are missing in the file and stay English. */
      readonly missing: readonly string[];
    }
  | { readonly ok: false; readonly why: Why; readonly keys: readonly string[] };

const CATEGORIES = new Set(["zero", "one", "two", "few", "many", "other"]);
/** Tags, entities, and characters that reverse a text or are invisible. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for.
const MARKUP = /<[a-z!/?]|&#?\w+;|[\u0000-\u001f\u007f-\u009f\u200b\u202a-\u202e\u2066-\u2069\ufeff\ufffd]/i;
/** Keys that contain other keys. */
const SECTIONS = new Set([...ENGLISH.keys()].flatMap(aboveOf));

/** Returns the words of a file, or the reason for its refusal. */
export function check(file: string): Checked {
  if (new Blob([file]).size > WORDS_BYTES_MAX) return refuse("large");
  let words: unknown;
  try {
    words = JSON.parse(file);
  } catch {
    return refuse("notJson");
  }
  if (!isObject(words)) return refuse("notWords");
  const language = languageOf(words["language"]);
  if (language === null) return refuse("language");
  const given = new Map<string, unknown>();
  const unknown = collect(words, "", given);
  if (unknown.length > 0) return refuse("unknown", unknown);
  for (const why of ["kind", "plural", "markup", "placeholders"] as const) {
    const keys = [...given].filter(([key, value]) => faultOf(ENGLISH.get(key)!, value) === why).map(([key]) => key);
    if (keys.length > 0) return refuse(why, keys);
  }
  given.set("language", language);
  const texts = new Map([...ENGLISH].map(([key, text]) => [key, (given.get(key) as Text | undefined) ?? text]));
  return { ok: true, language, texts, missing: [...ENGLISH.keys()].filter((key) => !given.has(key)) };
}

function refuse(why: Why, keys: readonly string[] = []): Checked {
  return { ok: false, why, keys };
}

/** Returns the ancestors of a key: `a` and `a.b` for `a.b.c`. */
function aboveOf(key: string): string[] {
  const parts = key.split(".");
  return parts.slice(1).map((_, at) => parts.slice(0, at + 1).join("."));
}

function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Returns the canonical form of a language tag, or `null`. */
function languageOf(tag: unknown): string | null {
  try {
    return typeof tag === "string" ? (Intl.getCanonicalLocales(tag)[0] ?? null) : null;
  } catch {
    return null;
  }
}

/** Puts the file's values into `given` by full key; returns unknown keys. Descends no deeper than the English words. */
function collect(words: Readonly<Record<string, unknown>>, before: string, given: Map<string, unknown>): string[] {
  return Object.entries(words).flatMap(([name, value]) => {
    const key = before + name;
    if (ENGLISH.has(key)) {
      given.set(key, value);
      return [];
    }
    return SECTIONS.has(key) && isObject(value) ? collect(value, `${key}.`, given) : [key];
  });
}

/** Returns the fault of `value` as a translation of `english`. */
function faultOf(english: Text, value: unknown): Why | null {
  if (typeof english === "string") return textFault(value, placeholdersOf(english), true);
  if (isPlural(english)) return pluralFault(english, value);
  if (!Array.isArray(value) || value.length !== english.length) return "kind";
  return value.map((text, at) => textFault(text, placeholdersOf(english[at]!), true)).find(Boolean) ?? null;
}

/** In a plural, the singular form may omit the number. */
function pluralFault(english: Plural, value: unknown): Why | null {
  if (!isObject(value)) return "kind";
  if (!("other" in value) || !Object.keys(value).every((category) => CATEGORIES.has(category))) return "plural";
  const names = placeholdersOf(english["other"]!);
  return (
    Object.values(value)
      .map((text) => textFault(text, names, false))
      .find(Boolean) ?? null
  );
}

function textFault(text: unknown, names: ReadonlySet<string>, withCount: boolean): Why | null {
  if (typeof text !== "string" || text.trim() === "") return "kind";
  if (MARKUP.test(text)) return "markup";
  const has = placeholdersOf(text);
  const needs = [...names].filter((name) => withCount || name !== "count");
  return needs.every((name) => has.has(name)) && [...has].every((name) => names.has(name)) ? null : "placeholders";
}
