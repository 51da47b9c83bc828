/** This page in a classroom, which usually serves it over plain http. */
import { find, make } from "../shared/dom.js";
import { say } from "./say.js";

/** Moves the name field to the button: classmates find each other by name. */
export function showClassroom(classroom: boolean): void {
  const [who, name] = [find("who", HTMLElement), find("name", HTMLInputElement)];
  if (!classroom || !who.hidden) return;
  who.append(find("name-field", HTMLElement));
  // The field still belongs to the form.
  name.setAttribute("form", "rules");
  name.placeholder = "such as Ada";
  who.hidden = false;
}

/** Names the features that pages without https lack, and the reason. */
export function showInsecure(): void {
  if (isSecureContext) return;
  say(
    "insecure",
    "This page came over plain http, where browsers offer no WebGPU: this machine trains on its processor.",
  );
  find("insecure", HTMLElement).hidden = false;
  const lock = find("rules", HTMLFormElement).elements.namedItem("wakeLock") as HTMLInputElement;
  lock.disabled = true;
  lock.parentElement?.append(
    make("span", { class: "quiet small" }, "(over plain http the system's own setting decides)"),
  );
  const gpu = find("engine", HTMLSelectElement).querySelector<HTMLOptionElement>("[value=gpu]");
  if (gpu) gpu.disabled = true;
}
