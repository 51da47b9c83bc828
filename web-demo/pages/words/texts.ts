/** Types of the words: the content of `en.json`, and the keys of its texts. */
import english from "./en.json";

/** Forms of a plural, by the categories of `Intl.PluralRules`. */
export type Plural = { readonly [category: string]: string };
/** Value of a key: a text, a plural, or a list of texts. */
export type Text = string | Plural | readonly string[];
/** Texts by full key, such as `guide.hints.now`. */
export type Texts = ReadonlyMap<string, Text>;

type Words = typeof english;
/** Full keys of values that extend `Kind`. */
type KeysOf<Kind, T> = {
  [K in keyof T & string]: T[K] extends Kind
    ? K
    : T[K] extends string | readonly string[]
      ? never
      : `${K}.${KeysOf<Kind, T[K]>}`;
}[keyof T & string];

/** Keys of texts, and of plurals. */
export type Key = KeysOf<string | { other: string }, Words>;
/** Keys of lists of texts. */
export type ListKey = KeysOf<readonly string[], Words>;
/** Chapters with words. */
export type ChapterKey = keyof Words["chapters"];

export const ENGLISH: Texts = new Map(flat(english, ""));
/** The file as saved for translators. */
export const ENGLISH_FILE = `${JSON.stringify(english, null, 2)}\n`;

/** Whether a value has the form of a plural. */
export function isPlural(value: unknown): value is Plural {
  return typeof value === "object" && value !== null && "other" in value;
}

/** Returns the names in braces of a text. */
export function placeholdersOf(text: string): ReadonlySet<string> {
  return new Set([...text.matchAll(/\{(\w+)\}/g)].map(([, name]) => name!));
}

function flat(words: object, before: string): [string, Text][] {
  return Object.entries(words).flatMap(([name, value]: [string, Text | object]) => {
    const isText = typeof value === "string" || Array.isArray(value) || isPlural(value);
    return isText ? [[before + name, value as Text]] : flat(value, `${before}${name}.`);
  });
}
