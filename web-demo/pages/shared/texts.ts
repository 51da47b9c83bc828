/** Texts that the model wrote. They are inserted as text only, never as markup. */
import { fillText, make, setAttribute } from "./dom.js";
import { legible } from "./format.js";

/** Returns the common beginning of all texts, which is the prompt; empty while all are the same. */
export function promptOf(texts: readonly string[]): string {
  const [first = "", ...others] = texts;
  if (others.every((text) => text === first)) return "";
  let prompt = first;
  for (const text of others) {
    let same = 0;
    while (same < prompt.length && prompt[same] === text[same]) same += 1;
    prompt = prompt.slice(0, same);
  }
  // Does not split a surrogate pair.
  return prompt.replace(/[\uD800-\uDBFF]$/, "");
}

/** Shows a text, with the `prompt` marked apart. */
export function writeText(node: Element, text: string, prompt: string): void {
  if (text === "") return fillText(node, "Nothing written yet.");
  setAttribute(node, "aria-busy", null);
  const given = text.startsWith(prompt) ? prompt : "";
  const [before, written] = [legible(given), legible(text.slice(given.length))];
  // Keeps the selection of a reader who copies the text.
  if (node.textContent === before + written && (node.firstElementChild !== null) === (before !== "")) return;
  const mark = before === "" ? [] : [make("span", { class: "prompt", title: "Given to the model" }, before)];
  node.replaceChildren(...mark, written);
}
