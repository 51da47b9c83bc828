/**
 * Puts the English words into pages during the build, for readers without JavaScript and for link
 * previews. `pages/words/page.ts` does the same in a browser, with the words of another language.
 */
import { readFile } from "node:fs/promises";
import type { Plugin } from "vite";

/** An element that names the key of its text: one without child elements, and one with some. */
const LEAF = /<(\w+)(\s[^<>]*?\bdata-words="([\w.]+)"[^<>]*)>\s*<\/\1>/g;
const BRANCH = /<(\w+)(\s[^<>]*?\bdata-words="([\w.]+)"[^<>]*)>\s*(<(?:(?!<\/\1>)[\s\S])*)<\/\1>/g;
/** An attribute that names the key of another attribute. */
const ATTRIBUTE = /\bdata-words-([a-z-]+)="([\w.]+)"/g;
const SLOT = /<(\w+)\b[^<>]*\bdata-slot="(\w+)"[^<>]*>(?:[\s\S]*?<\/\1>)?/g;

/** The plugin that fills pages from `en.json`. */
export function wordsInPages(): Plugin {
  return {
    name: "words-in-pages",
    transformIndexHtml: {
      order: "pre",
      handler: async (html) =>
        filled(html, JSON.parse(await readFile(new URL("pages/words/en.json", import.meta.url), "utf8"))),
    },
  };
}

/** Returns `html` with the texts of `words` at their keys. An unknown key is an error. */
export function filled(html: string, words: object): string {
  const text = (key: string): string => {
    const found = key.split(".").reduce<unknown>((in_, name) => (in_ as Record<string, unknown>)?.[name], words);
    if (typeof found !== "string") throw new Error(`a page names the text "${key}", which en.json does not have`);
    return found;
  };
  return html
    .replace(ATTRIBUTE, (named, name: string, key: string) => `${named} ${name}="${escaped(text(key))}"`)
    .replace(LEAF, (_, tag: string, rest: string, key: string) => `<${tag}${rest}>${escaped(text(key))}</${tag}>`)
    .replace(BRANCH, (_, tag: string, rest: string, key: string, inside: string) => {
      const slots = new Map([...inside.matchAll(SLOT)].map(([whole, , name]) => [name, whole]));
      const parts = text(key).split(/\{(\w+)\}/);
      const said = parts.map((part, at) => (at % 2 === 0 ? escaped(part) : slots.get(part)));
      return `<${tag}${rest}>${said.join("")}</${tag}>`;
    });
}

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll('"', "&quot;");
}
