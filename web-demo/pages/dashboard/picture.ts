/** Exports a chart as a picture with its title, keys and run. */
import { color } from "../shared/palette.js";

/** Texts round the plot. */
export interface Picture {
  readonly title: string;
  /** Run and time. */
  readonly about: string;
  readonly keys: readonly { readonly label: string; readonly color: string; readonly dash: readonly number[] }[];
  /** Names of the scales. */
  readonly unit: string;
  readonly unitRight: string;
}

const EDGE_PX = 16;
const ROW_PX = 22;
const SWATCH_PX = 24;
const FONT = "system-ui, sans-serif";

/** Draws `plot` with its title, keys and scale names on a canvas of the same resolution. */
export function pictureOf(
  plot: HTMLCanvasElement,
  { title, about, keys, unit, unitRight }: Picture,
): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d")!;
  const ratio = plot.width / Math.max(1, Number.parseFloat(plot.style.width) || plot.clientWidth || plot.width);
  const [plotWidth, plotHeight] = [plot.width / ratio, plot.height / ratio];
  const width = plotWidth + 2 * EDGE_PX;
  context.font = `13px ${FONT}`;
  const rows = keyRows(
    keys.map(({ label }) => SWATCH_PX + 8 + context.measureText(label).width + 20),
    plotWidth,
  );
  const head = EDGE_PX + 26 + ROW_PX + rows.length * ROW_PX + ROW_PX;
  [canvas.width, canvas.height] = [width * ratio, (head + plotHeight + EDGE_PX) * ratio];
  context.scale(ratio, ratio);
  context.fillStyle = color("card");
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.textBaseline = "top";
  const write = (
    text: string,
    x: number,
    y: number,
    font: string,
    ink: "ink" | "ink-soft",
    align: CanvasTextAlign = "left",
  ) => {
    context.font = `${font} ${FONT}`;
    context.fillStyle = color(ink);
    context.textAlign = align;
    context.fillText(text, x, y, plotWidth);
  };
  write(title, EDGE_PX, EDGE_PX, "600 18px", "ink");
  write(about, EDGE_PX, EDGE_PX + 26, "13px", "ink-soft");
  rows.forEach((row, line) => {
    for (const { at, left } of row) {
      const key = keys[at]!;
      const [x, y] = [EDGE_PX + left, EDGE_PX + 26 + (line + 1) * ROW_PX];
      context.strokeStyle = key.color;
      context.lineWidth = 2.5;
      context.setLineDash([...key.dash]);
      context.beginPath();
      context.moveTo(x, y + 7);
      context.lineTo(x + SWATCH_PX, y + 7);
      context.stroke();
      write(key.label, x + SWATCH_PX + 8, y, "13px", "ink");
    }
  });
  write(unit, EDGE_PX, head - ROW_PX, "12px", "ink-soft");
  write(unitRight, width - EDGE_PX, head - ROW_PX, "12px", "ink-soft", "right");
  context.drawImage(plot, EDGE_PX, head, plotWidth, plotHeight);
  return canvas;
}

/** Lays out keys of these widths; returns the row and offset of each key. */
function keyRows(widths: readonly number[], room: number): { readonly at: number; readonly left: number }[][] {
  const rows: { at: number; left: number }[][] = [];
  let left = room;
  widths.forEach((width, at) => {
    if (left + width > room) {
      rows.push([]);
      left = 0;
    }
    rows.at(-1)!.push({ at, left });
    left += width;
  });
  return rows;
}
