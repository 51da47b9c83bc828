/** A link as a QR code. */
import { generate } from "lean-qr";

/** Draws the QR code of `link`, dark on light in any theme, as readers require. */
export function drawCode(canvas: HTMLCanvasElement, link: string): void {
  generate(link).toCanvas(canvas, { on: [17, 38, 46, 255], off: [255, 255, 255, 255], pad: 4 });
}
