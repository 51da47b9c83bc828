/** What the model wrote as it learned. It is shown as text only: what a model writes is nobody's markup. */
import type { TextSample } from "../shared/api.js";
import { find, setText } from "../shared/dom.js";
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
    setText(text, chosen ? legible(chosen.text) : "Nothing written yet.");
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
    setText(firstText, first ? legible(first.text) : "Nothing written yet.");
    show();
  });
  slider.addEventListener("input", show);
  return refresh;
}

function momentOf(sample: TextSample): string {
  return `After ${duration(sample.timeS)} and ${count(sample.tokensMerged)} merged tokens, held-out loss ${nats(sample.loss)}`;
}
