/** The link that invites others, as text and as a code to point a phone at. */
import { generate } from "lean-qr";
import { find } from "../shared/dom.js";
import { copyFrom, shareLink } from "../shared/link.js";
import { say } from "./say.js";

/** Shows the link to this run. */
export function showLink(): void {
  const field = find("link", HTMLInputElement);
  field.value = shareLink();
  generate(field.value).toCanvas(find("qr", HTMLCanvasElement), { on: [17, 38, 46, 255], off: [255, 255, 255, 255], pad: 3 });
  find("copy", HTMLElement).addEventListener("click", async () => {
    const copied = await copyFrom(field);
    say("copied", copied ? "Copied." : "The link is selected: copy it by hand.");
  });
}
