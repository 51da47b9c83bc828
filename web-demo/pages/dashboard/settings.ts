/** The run's settings: all are readable, and the owner can change some during the run. */
import type { SettingsView, SettingView } from "../shared/api.js";
import { find, make, setText } from "../shared/dom.js";
import type { Owner } from "./owner.js";

type Field = HTMLInputElement | HTMLSelectElement;

/** The panel; it fetches nothing while folded. */
export class Settings {
  readonly #owner: Owner;
  readonly #details = find("settings-details", HTMLDetailsElement);
  readonly #form = find("settings-form", HTMLFormElement);
  readonly #rows = find("settings-changeable", HTMLElement);
  readonly #fixed = find("settings-fixed", HTMLElement);
  readonly #actions = find("settings-actions", HTMLElement);
  readonly #hint = find("settings-hint", HTMLElement);
  readonly #said = find("settings-said", HTMLElement);
  readonly #fields = new Map<string, Field>();
  /** Values of the fields before any typing. */
  #values = new Map<string, string>();
  #canChange = false;

  constructor(owner: Owner) {
    this.#owner = owner;
    this.#details.addEventListener("toggle", () => void this.refresh());
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      void this.#change();
    });
    owner.onToken((has) => {
      this.#canChange = has;
      this.#actions.hidden = !has;
      this.#hint.hidden = has;
      for (const field of this.#fields.values()) field.disabled = !has;
    });
  }

  /** Fetches the settings again if they are visible. */
  async refresh(): Promise<void> {
    if (!this.#details.open) return;
    try {
      const answer = await fetch("./v1/settings");
      if (!answer.ok) throw new Error(`the syncer answered ${answer.status}`);
      this.#show((await answer.json()) as SettingsView);
    } catch {
      this.#say("The settings could not be fetched; close this section and open it again.", "trouble");
    }
  }

  #show(view: SettingsView): void {
    const typed = new Map([...this.#fields].filter(([key, field]) => field.value !== this.#values.get(key)));
    const [changeable, fixed] = [true, false].map((is) => view.settings.filter((one) => one.changeable === is));
    this.#values = new Map((changeable ?? []).map((one) => [one.key, one.value ?? ""]));
    if (this.#fields.size === 0) this.#rows.replaceChildren(...(changeable ?? []).map((one) => this.#field(one)));
    for (const [key, field] of this.#fields) {
      // Keeps a value that is being typed.
      if (!typed.has(key)) field.value = this.#values.get(key) ?? "";
    }
    const groups = [...new Set((fixed ?? []).map((one) => one.group))];
    this.#fixed.replaceChildren(
      ...groups.flatMap((group) => [
        make("h3", {}, group),
        make("dl", { class: "settings" }, ...(fixed ?? []).filter((one) => one.group === group).map(row)),
      ]),
    );
  }

  #field(setting: SettingView): HTMLElement {
    const id = `setting-${setting.key}`;
    const described = { id, name: setting.key, "aria-describedby": `${id}-about` };
    const field: Field =
      setting.choices.length > 0
        ? make("select", described, ...setting.choices.map((choice) => make("option", { value: choice }, choice)))
        : make("input", { ...described, type: "number", min: "0", step: "any", required: "" });
    field.disabled = !this.#canChange;
    this.#fields.set(setting.key, field);
    return make(
      "div",
      { class: "field" },
      make("label", { for: id }, make("code", {}, setting.key)),
      field,
      make("p", { id: `${id}-about`, class: "hint" }, setting.about),
    );
  }

  async #change(): Promise<void> {
    const changed = [...this.#fields].filter(([key, field]) => field.value !== this.#values.get(key));
    if (changed.length === 0) return this.#say("Nothing is changed yet.", "held");
    this.#say("Asking the syncer…", "waiting");
    const answer = await this.#owner.order(
      "settings",
      Object.fromEntries(changed.map(([key, field]) => [key, field.value])),
    );
    if (!answer.ok) return this.#say(answer.text, answer.tone);
    this.#values = new Map([...this.#fields].map(([key, field]) => [key, field.value]));
    this.#say(`From now on: ${changed.map(([key, field]) => `${key} ${field.value}`).join(", ")}.`, "done");
    await this.refresh();
  }

  #say(text: string, tone: string): void {
    this.#said.hidden = false;
    this.#said.dataset["tone"] = tone;
    setText(this.#said, text);
  }
}

/** A setting that is fixed for this run. */
function row({ key, value, about }: SettingView): HTMLElement {
  const said = value === null ? make("span", { class: "quiet" }, "not given") : make("span", {}, value);
  return make(
    "div",
    {},
    make("dt", {}, make("code", {}, key)),
    make("dd", { class: "number" }, said),
    make("dd", { class: "quiet small" }, about),
  );
}
