/** The link that invites others, as text and as a code to point a phone at. */
import { generate } from "lean-qr";
import { byId, say } from "./dom.js";

/** Shows `link`. */
export function showLink(link: string): void {
  const field = byId<HTMLInputElement>("link");
  field.value = link;
  generate(link).toCanvas(byId<HTMLCanvasElement>("qr"), { on: [17, 38, 46, 255], off: [255, 255, 255, 255], pad: 3 });
  byId("copy").addEventListener("click", () => {
    field.select();
    navigator.clipboard?.writeText(link).then(
      () => say("copied", "Copied."),
      () => say("copied", "This browser does not let pages copy: the link is selected, copy it by hand."),
    ) ?? say("copied", "The link is selected: copy it by hand.");
  });
}
