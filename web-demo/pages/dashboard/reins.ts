/** The owner's controls of one learner: its pace, and dropping it. */
import type { LearnerView } from "../shared/api.js";
import { make, setAttribute, setText } from "../shared/dom.js";
import type { Owner } from "./owner.js";

/** Factors by which a learner can be slowed. */
const PACES = [1, 2, 4, 8] as const;
/** Default time for which a learner is dropped, in seconds. */
const DROP_S = 20;

/** Controls for one learner at a time; without the owner's token they ask for it. */
export class Reins {
  readonly item: HTMLElement;
  readonly #owner: Owner;
  readonly #paces: readonly HTMLButtonElement[];
  readonly #group = make("div", { class: "controls", role: "group" });
  readonly #drop = make("button", { type: "button", class: "danger" }, "Drop");
  readonly #seconds = make("input", {
    type: "number",
    min: "1",
    max: "3600",
    step: "1",
    value: String(DROP_S),
    inputmode: "numeric",
    "aria-label": "Seconds that it is dropped for",
  });
  readonly #ask: HTMLFormElement;
  readonly #said = make("p", { class: "notice small", role: "status", hidden: "" });
  #learner: number | undefined;
  #away = false;

  constructor(owner: Owner) {
    this.#owner = owner;
    this.#paces = PACES.map((by) => {
      const words = by === 1 ? "Full speed" : `×${by} slower`;
      const button = make("button", { type: "button", "aria-pressed": "false" }, words);
      button.addEventListener("click", () => void this.#order("pace", { share: 1 / by }));
      return button;
    });
    this.#drop.addEventListener("click", () => void this.#sendAway());
    this.#group.append(...this.#paces, this.#drop, make("span", { class: "for" }, "for ", this.#seconds, " s"));
    this.#ask = askForToken(owner);
    this.item = make("div", { class: "reins" }, this.#group, this.#said, this.#ask);
    owner.onToken((has) => {
      this.#group.hidden = !has;
      this.#ask.hidden = has;
    });
  }

  /** Shows the controls for this learner. */
  show(view: LearnerView, name: string): void {
    if (this.#learner !== view.learner) this.#said.hidden = true;
    this.#learner = view.learner;
    this.#away = view.returnsS !== null || view.trust === "out";
    setAttribute(this.#group, "aria-label", `What ${name} may do`);
    setText(this.#drop, this.#away ? "Let it back" : "Drop");
    this.#paces.forEach((button, index) => {
      const by = PACES[index] ?? 1;
      setAttribute(button, "aria-pressed", String(Math.abs(view.share * by - 1) < 0.01));
    });
  }

  #sendAway(): Promise<void> {
    if (!this.#away && !this.#seconds.reportValidity()) return Promise.resolve();
    return this.#order("drop", { seconds: this.#away ? 0 : this.#seconds.valueAsNumber || DROP_S });
  }

  async #order(what: string, order: object): Promise<void> {
    const learner = this.#learner;
    if (learner === undefined) return;
    const answer = await this.#owner.order(`learners/${learner}/${what}`, order);
    if (learner !== this.#learner) return;
    this.#said.hidden = answer.ok;
    if (answer.ok) return;
    // A mistyped token can be typed again here.
    if (answer.denied) this.#ask.hidden = false;
    this.#said.dataset["tone"] = answer.tone;
    setText(this.#said, answer.text);
  }
}

/** A field for the token, next to the controls that need it. */
function askForToken(owner: Owner): HTMLFormElement {
  const field = make("input", { type: "password", autocomplete: "off", spellcheck: "false" });
  const form = make(
    "form",
    { class: "ask small" },
    make("label", {}, "The owner slows it down or drops it here, with the token of the run ", field),
    make("button", {}, "Use the token"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const token = field.value.trim();
    field.value = "";
    if (token !== "") owner.give(token);
  });
  return form;
}
