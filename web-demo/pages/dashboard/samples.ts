/** Texts that the model wrote as it learned. */
import type { TextSample } from "../shared/api.js";
import { find, setText } from "../shared/dom.js";
import { count, duration, nats } from "../shared/format.js";
import { painter } from "../shared/paint.js";
import { promptOf, writeText } from "../shared/texts.js";
import type { Course } from "./course.js";

/** Creates the section with the texts; returns a function that refreshes it. */
export function makeSamples(course: Course): () => void {
  const slider = find("sample-slider", HTMLInputElement);
  const [moment, text] = [find("sample-moment", HTMLOutputElement), find("sample-text", HTMLElement)];
  const [firstMoment, firstText] = [find("first-moment", HTMLElement), find("first-text", HTMLElement)];
  const field = find("sample-field", HTMLElement);
  const show = () => {
    if (!course.isKnown) return;
    const { samples } = course.view;
    const chosen = samples[Math.min(Number(slider.value), samples.length - 1)];
    setText(moment, chosen ? momentOf(chosen) : "");
    slider.setAttribute("aria-valuetext", chosen ? momentOf(chosen) : "nothing written yet");
    writeText(text, chosen?.text ?? "", promptOf(textsOf(course)));
  };
  const refresh = painter(find("samples", HTMLElement), () => {
    if (!course.isKnown) return;
    const { samples } = course.view;
    const [first] = samples;
    // A slider at the newest text stays at the newest text.
    const atEnd = slider.value === slider.max;
    slider.max = String(Math.max(0, samples.length - 1));
    if (atEnd) slider.value = slider.max;
    field.hidden = samples.length < 2;
    setText(firstMoment, first ? momentOf(first) : "");
    writeText(firstText, first?.text ?? "", promptOf(textsOf(course)));
    show();
  });
  slider.addEventListener("input", show);
  return refresh;
}

/** Texts of the run. */
export function textsOf({ view }: Course): string[] {
  return view.samples.map(({ text }) => text);
}

function momentOf(sample: TextSample): string {
  return `After ${duration(sample.timeS)} and ${count(sample.tokensMerged)} merged tokens, held-out loss ${nats(sample.loss)}`;
}
