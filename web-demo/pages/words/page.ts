/**
 * Inserts words into a page. `data-words` is the key of an element's text, and `data-words-title`
 * that of its `title`. A child with `data-slot` replaces its name in braces. The build inserts the
 * English words (`words-in-pages.ts`), so this only acts for other languages.
 */
import { type Key, phrase, WORDS } from "./phrase.js";

const ATTRIBUTE = "data-words-";

/** Fills the whole page with another language. */
export function fillPage(): void {
  if (!WORDS.isTranslated) return;
  for (const element of document.querySelectorAll("*")) {
    for (const { name, value } of [...element.attributes]) {
      if (name === "data-words") fillText(element, phrase(value as Key));
      else if (name.startsWith(ATTRIBUTE)) element.setAttribute(name.slice(ATTRIBUTE.length), phrase(value as Key));
    }
  }
}

/** Inserts the text as text, with the element's own children between its parts. */
function fillText(element: Element, text: string): void {
  const slots = new Map<string, Element>();
  for (const child of element.children) slots.set(child.getAttribute("data-slot") ?? "", child);
  element.replaceChildren(
    ...text.split(/\{(\w+)\}/).map((part, at) => (at % 2 === 0 ? part : (slots.get(part) ?? ""))),
  );
}
