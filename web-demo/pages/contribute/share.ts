/** The link that invites others, as text and as a code to point a phone at. */
import { find } from "../shared/dom.js";
import { copyFrom } from "../shared/link.js";
import { drawCode } from "../shared/qr.js";
import { say } from "./say.js";

/** Shows the link to this run. */
export function showLink(link: string): void {
  const field = find("link", HTMLInputElement);
  if (field.value === link) return;
  field.value = link;
  drawCode(find("qr", HTMLCanvasElement), link);
}

/** Lets the button copy it. */
export function bindCopy(): void {
  const field = find("link", HTMLInputElement);
  find("copy", HTMLElement).addEventListener("click", async () => {
    const copied = await copyFrom(field);
    say("copied", copied ? "Copied." : "The link is selected: copy it by hand.");
  });
}
