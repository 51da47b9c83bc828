/** The knobs. A change applies to the running run if possible; other knobs announce that they start a new run. */

import { find, make, setText } from "../../shared/dom.js";
import type { LessonSpec } from "../../shared/lesson.js";
import { phrase } from "../../words/phrase.js";
import { GROUPS, type Knob, settled } from "../run/knobs.js";

export class Settings {
  readonly #shows: ((spec: LessonSpec) => void)[] = [];
  readonly #fields = new Map<keyof LessonSpec, HTMLInputElement | HTMLSelectElement>();
  readonly #said = find("settings-said", HTMLElement);
  /** The note on knobs that start a new run. */
  readonly #marks = new Map<keyof LessonSpec, HTMLElement>();
  #spec: LessonSpec | undefined;

  /** `change` gets the new settings, and the name of the changed one. */
  constructor(change: (spec: LessonSpec, key: keyof LessonSpec) => void) {
    const changed = (key: keyof LessonSpec, value: string | number) =>
      this.#spec && change(settled({ ...this.#spec, [key]: value }), key);
    find("knobs", HTMLElement).append(
      ...GROUPS.map(({ title, knobs }) =>
        make(
          "fieldset",
          { class: "stack" },
          make("legend", {}, title),
          ...knobs.map((knob) => this.#field(knob, changed)),
        ),
      ),
    );
  }

  #field(knob: Knob, changed: (key: keyof LessonSpec, value: string | number) => void): HTMLElement {
    const id = `knob-${knob.key}`;
    const mark = make("span", { class: "anew" }, phrase("settings.anew"));
    mark.hidden = true;
    this.#marks.set(knob.key, mark);
    const hint = make("span", { class: "hint", id: `${id}-hint` }, knob.hint, " ", mark);
    const label = make("label", { for: id }, knob.label);
    if (knob.kind === "choice") {
      const select = make(
        "select",
        { id, "aria-describedby": hint.id },
        ...knob.options.map(([value, text]) => make("option", { value }, text)),
      );
      select.addEventListener("change", () => changed(knob.key, select.value));
      this.#shows.push((spec) => (select.value = spec[knob.key]));
      this.#fields.set(knob.key, select);
      return make("div", { class: "field" }, label, select, hint);
    }
    const input = make("input", {
      id,
      type: "range",
      min: String(knob.min),
      max: String(knob.max),
      step: String(knob.step),
      "aria-describedby": hint.id,
    });
    this.#fields.set(knob.key, input);
    const output = make("output", { class: "number", for: id });
    const say = () => {
      setText(output, knob.say(Number(input.value)));
      input.setAttribute("aria-valuetext", output.textContent ?? "");
    };
    input.addEventListener("input", say);
    // Only the released value counts, not those in between.
    input.addEventListener("change", () => changed(knob.key, Number(input.value)));
    this.#shows.push((spec) => {
      input.value = String(spec[knob.key]);
      say();
    });
    return make("div", { class: "field" }, make("div", { class: "actions spread" }, label, output), input, hint);
  }

  /** Enables only these knobs; all, without a list. */
  allow(keys: readonly (keyof LessonSpec)[] | null): void {
    for (const [key, field] of this.#fields) field.disabled = keys !== null && !keys.includes(key);
    setText(this.#said, phrase(keys === null ? "settings.goesOn" : "settings.held"));
  }

  /** Marks the knobs that start a new run at present. */
  mark(beginsAnew: (key: keyof LessonSpec) => boolean): void {
    for (const [key, mark] of this.#marks) mark.hidden = !beginsAnew(key);
  }

  show(spec: LessonSpec): void {
    this.#spec = spec;
    for (const show of this.#shows) show(spec);
  }
}
