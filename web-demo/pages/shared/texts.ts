/** Texts that the model wrote. They are shown as text only: what a model writes is nobody's markup. */
import { fillText, make, setAttribute } from "./dom.js";
import { legible } from "./format.js";

/** What all texts begin with, which is what the model was given; nothing as long as all are the same. */
export function promptOf(texts: readonly string[]): string {
  const [first = "", ...others] = texts;
  if (others.every((text) => text === first)) return "";
  let prompt = first;
  for (const text of others) {
    let same = 0;
    while (same < prompt.length && prompt[same] === text[same]) same += 1;
    prompt = prompt.slice(0, same);
  }
  // No half of a letter that takes two.
  return prompt.replace(/[\uD800-\uDBFF]$/, "");
}

/** Shows a text, and apart from what the model wrote the `prompt` that it went on from. */
export function writeText(node: Element, text: string, prompt: string): void {
  if (text === "") return fillText(node, "Nothing written yet.");
  setAttribute(node, "aria-busy", null);
  const given = text.startsWith(prompt) ? prompt : "";
  const [before, written] = [legible(given), legible(text.slice(given.length))];
  // Who selects a text to copy it keeps the selection.
  if (node.textContent === before + written && (node.firstElementChild !== null) === (before !== "")) return;
  const mark = before === "" ? [] : [make("span", { class: "prompt", title: "Given to the model" }, before)];
  node.replaceChildren(...mark, written);
}
