/** A link as a code to point a phone at. */
import { generate } from "lean-qr";

/** Draws the code of `link`. Readers want dark on light, by night too. */
export function drawCode(canvas: HTMLCanvasElement, link: string): void {
  generate(link).toCanvas(canvas, { on: [17, 38, 46, 255], off: [255, 255, 255, 255], pad: 4 });
}
