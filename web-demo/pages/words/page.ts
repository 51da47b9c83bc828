/**
 * Puts words into a page. Its elements name them: `data-words` is the key of an element's text, and `data-words-title`
 * that of its `title`. A child that is a `data-slot` stands where the text has its name in braces. The page is built
 * with the English words in it (`words-in-pages.ts`), so this has work to do in another language alone.
 */
import { type Key, phrase, WORDS } from "./phrase.js";

const ATTRIBUTE = "data-words-";

/** Fills all of the page, in another language than it was built with. */
export function fillPage(): void {
  if (!WORDS.isTranslated) return;
  for (const element of document.querySelectorAll("*")) {
    for (const { name, value } of [...element.attributes]) {
      if (name === "data-words") fillText(element, phrase(value as Key));
      else if (name.startsWith(ATTRIBUTE)) element.setAttribute(name.slice(ATTRIBUTE.length), phrase(value as Key));
    }
  }
}

/** The text goes in as text, and the element's own children between its parts. */
function fillText(element: Element, text: string): void {
  const slots = new Map<string, Element>();
  for (const child of element.children) slots.set(child.getAttribute("data-slot") ?? "", child);
  element.replaceChildren(
    ...text.split(/\{(\w+)\}/).map((part, at) => (at % 2 === 0 ? part : (slots.get(part) ?? ""))),
  );
}
