/** The look of a parcel: a block of its codes. */
import { type ColorName, color } from "../../shared/palette.js";
import type { Parcel } from "./history.js";

/** Size of a code's cell in pixels, and codes in a row. */
const CELL_PX = 3.5;
const CELLS = 8;

/** A colour for each kind of parcel. */
export const COLORS: Readonly<Record<Parcel["what"], ColorName>> = {
  collect: "line-quiet",
  update: "line-1",
  merged: "line-2",
  whole: "line-3",
};

/** Draws a parcel's codes as cells round a point, enlarged by `scale`; a parcel without codes is a plain block. */
export function drawCells(
  context: CanvasRenderingContext2D,
  parcel: Parcel,
  x: number,
  y: number,
  alpha: number,
  scale = 1,
): void {
  const cell = CELL_PX * scale;
  const rows = Math.max(2, Math.ceil(parcel.glimpse.length / CELLS));
  const [width, height] = [CELLS * cell, rows * cell];
  const [left, top] = [x - width / 2, y - height / 2];
  context.globalAlpha = alpha;
  context.fillStyle = color("card");
  context.strokeStyle = color(COLORS[parcel.what]);
  context.lineWidth = parcel.up ? 1.5 : 2.5;
  context.fillRect(left - 2, top - 2, width + 4, height + 4);
  context.strokeRect(left - 2, top - 2, width + 4, height + 4);
  parcel.glimpse.forEach((code, at) => {
    if (code === 0) return;
    context.fillStyle = color(code > 0 ? "line-2" : "line-1");
    context.globalAlpha = alpha * Math.min(1, 0.2 + (0.8 * Math.abs(code)) / 7);
    context.fillRect(left + (at % CELLS) * cell, top + Math.floor(at / CELLS) * cell, cell - 0.5, cell - 0.5);
  });
}
