/** What the model wrote as it learned. It is shown as text only: what a model writes is nobody's markup. */
import type { TextSample } from "../shared/api.js";
import { find, make, setText } from "../shared/dom.js";
import { count, duration, legible, nats } from "../shared/format.js";
import { painter } from "../shared/paint.js";
import type { Course } from "./course.js";

/** The section with the texts; the function asks for it to be written anew. */
export function makeSamples(course: Course): () => void {
  const slider = find("sample-slider", HTMLInputElement);
  const [moment, text] = [find("sample-moment", HTMLOutputElement), find("sample-text", HTMLElement)];
  const [firstMoment, firstText] = [find("first-moment", HTMLElement), find("first-text", HTMLElement)];
  const field = find("sample-field", HTMLElement);
  const show = () => {
    const { samples } = course.view;
    const chosen = samples[Math.min(Number(slider.value), samples.length - 1)];
    setText(moment, chosen ? momentOf(chosen) : "");
    slider.setAttribute("aria-valuetext", chosen ? momentOf(chosen) : "nothing written yet");
    writeText(text, chosen?.text ?? "", promptOf(course.view.samples));
  };
  const refresh = painter(find("samples", HTMLElement), () => {
    const { samples } = course.view;
    const [first] = samples;
    // Who looks at the newest goes on looking at the newest.
    const atEnd = slider.value === slider.max;
    slider.max = String(Math.max(0, samples.length - 1));
    if (atEnd) slider.value = slider.max;
    field.hidden = samples.length < 2;
    setText(firstMoment, first ? momentOf(first) : "");
    writeText(firstText, first?.text ?? "", promptOf(course.view.samples));
    show();
  });
  slider.addEventListener("input", show);
  return refresh;
}

/** What all texts begin with, which is what the model was given; nothing as long as all are the same. */
export function promptOf(samples: readonly TextSample[]): string {
  const [first = "", ...others] = samples.map(({ text }) => text);
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
  if (text === "") return setText(node, "Nothing written yet.");
  const given = text.startsWith(prompt) ? prompt : "";
  const [before, written] = [legible(given), legible(text.slice(given.length))];
  // Who selects a text to copy it keeps the selection.
  if (node.textContent === before + written && (node.firstElementChild !== null) === (before !== "")) return;
  const mark = before === "" ? [] : [make("span", { class: "prompt", title: "Given to the model" }, before)];
  node.replaceChildren(...mark, written);
}

function momentOf(sample: TextSample): string {
  return `After ${duration(sample.timeS)} and ${count(sample.tokensMerged)} merged tokens, held-out loss ${nats(sample.loss)}`;
}
