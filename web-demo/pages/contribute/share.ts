/** The link for inviting others, as text and as a QR code for phones. */
import { find, setText } from "../shared/dom.js";
import { copyFrom, isLocal, LISTEN } from "../shared/link.js";
import { drawCode } from "../shared/qr.js";
import { say } from "./say.js";

/** Shows the link to this run, with a QR code unless phones could not open the link. */
export function showLink(link: string): void {
  const field = find("link", HTMLInputElement);
  if (field.value === link) return;
  field.value = link;
  const local = isLocal(link);
  const [code, note] = [find("qr", HTMLCanvasElement), find("link-local", HTMLElement)];
  code.hidden = local;
  note.hidden = !local;
  setText(note, local ? LISTEN : "");
  if (!local) drawCode(code, link);
}

/** Lets the button copy the link. */
export function bindCopy(): void {
  const field = find("link", HTMLInputElement);
  find("copy", HTMLElement).addEventListener("click", async () => {
    const copied = await copyFrom(field);
    say("copied", copied ? "Copied." : "The link is selected: copy it by hand.");
  });
}
