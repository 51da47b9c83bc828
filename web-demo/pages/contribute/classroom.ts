/** What this page says in a class, and where it came over plain http, as it does in most classes. */
import { find, make } from "../shared/dom.js";
import { say } from "./say.js";

/** In a class people find each other by name: the field for it goes to the button. */
export function showClassroom(classroom: boolean): void {
  const [who, name] = [find("who", HTMLElement), find("name", HTMLInputElement)];
  if (!classroom || !who.hidden) return;
  who.append(find("name-field", HTMLElement));
  // It stays one of the form's.
  name.setAttribute("form", "rules");
  name.placeholder = "such as Ada";
  who.hidden = false;
}

/** Says what is missing on pages that did not come over https, and why. */
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
