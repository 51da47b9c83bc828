/** Connects the page's forms with the settings, in both directions. */
import { find } from "../shared/dom.js";
import { clock } from "./rules.js";
import type { Hours, Mode, Settings } from "./settings.js";
import { DEFAULTS, MODES } from "./settings.js";

/** Fills the forms, and calls `changed` after each change. */
export function bindForms(settings: Settings, changed: (settings: Settings) => void): void {
  const form = find("rules", HTMLFormElement);
  const modes = find("modes", HTMLElement);
  for (const [mode, { label, says }] of Object.entries(MODES)) {
    const input = document.createElement("input");
    Object.assign(input, { type: "radio", name: "mode", value: mode, checked: mode === settings.mode });
    const small = document.createElement("small");
    small.textContent = says;
    const text = document.createElement("span");
    text.append(label, " ", small);
    const choice = document.createElement("label");
    choice.append(input, text);
    modes.append(choice);
  }
  const field = (name: string) => form.elements.namedItem(name) as HTMLInputElement;
  for (const name of ["restOnBattery", "restHidden", "wakeLock", "resume"] as const)
    field(name).checked = settings[name];
  field("megabytes").value = String(settings.bytesMax / 1e6);
  field("scheduled").checked = settings.hours !== null;
  if (settings.hours) {
    field("from").value = clock(settings.hours.from);
    field("to").value = clock(settings.hours.to % 24);
  }
  field("engine").value = settings.engine;
  field("name").value = settings.name;

  const read = (): Settings => ({
    name: field("name").value.trim(),
    engine: field("engine").value as Settings["engine"],
    mode: (modes.querySelector<HTMLInputElement>(":checked")?.value ?? DEFAULTS.mode) as Mode,
    restOnBattery: field("restOnBattery").checked,
    restHidden: field("restHidden").checked,
    bytesMax: Math.max(0, field("megabytes").valueAsNumber || 0) * 1e6,
    hours: field("scheduled").checked ? readHours(field("from").value, field("to").value) : null,
    wakeLock: field("wakeLock").checked,
    resume: field("resume").checked,
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  // A field of the form may be elsewhere on the page.
  for (const element of [form, modes, find("who", HTMLElement)])
    element.addEventListener("change", () => changed(read()));
}

function readHours(from: string, to: string): Hours | null {
  const hour = (text: string) => {
    const [hours = NaN, minutes = NaN] = text.split(":").map(Number);
    return hours + minutes / 60;
  };
  const read = { from: hour(from), to: hour(to) };
  return Number.isFinite(read.from) && Number.isFinite(read.to) && read.from !== read.to ? read : null;
}
