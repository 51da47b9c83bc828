/** The words of the pages in the chosen language, from `pages/words/en.json` or a translation of it. */

import { plain, speak } from "../shared/language.js";
import { choose } from "./kept.js";
import { type ChapterKey, isPlural, type Key, type ListKey, type Text } from "./texts.js";

export type { ChapterKey, Key } from "./texts.js";

/** The words in use. Code that shows words must wait for them. */
export const WORDS = await choose();
speak(WORDS.language);
const plurals = new Intl.PluralRules(WORDS.language);
const lists = new Intl.ListFormat(WORDS.language, { type: "conjunction" });

/** Values for the names in braces. */
export type Values = Readonly<Record<string, string | number>>;

/** Returns the filled text of a key. For a plural it is the form for the number `count`. */
export function phrase(key: Key, values: Values = {}): string {
  return fill(formOf(WORDS.texts.get(key)!, Number(values["count"] ?? 0)), values);
}

/** Returns the texts of a list. */
export function phrases(key: ListKey): readonly string[] {
  return WORDS.texts.get(key) as readonly string[];
}

/** Returns "2, 3 and 4". */
export function listed(items: readonly (string | number)[]): string {
  return lists.format(items.map(String));
}

/** Texts that every chapter of the lesson has. */
export function chapterWords(chapter: ChapterKey) {
  return {
    title: phrase(`chapters.${chapter}.title`),
    goal: phrase(`chapters.${chapter}.goal`),
    text: phrases(`chapters.${chapter}.text`),
    question: phrase(`chapters.${chapter}.question`),
    answers: phrases(`chapters.${chapter}.answers`),
    moral: phrase(`chapters.${chapter}.moral`),
  };
}

function formOf(text: Text, count: number): string {
  return isPlural(text) ? (text[plurals.select(count)] ?? text["other"]!) : (text as string);
}

function fill(text: string, values: Values): string {
  return text.replace(/\{(\w+)\}/g, (braced, name: string) => {
    const value = values[name];
    return typeof value === "number" ? plain(value) : (value ?? braced);
  });
}
