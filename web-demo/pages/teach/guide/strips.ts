/** Traffic of a link over time as bars, with a line at the mean, so that peaks stand out. */
import { fillRows, find, make, setAttribute, setText } from "../../shared/dom.js";
import type { Strip } from "./chapter.js";

/** Width and height of a strip, in its own units. */
const [WIDTH, HEIGHT] = [100, 28];

/** SVG paths of a strip's bars and mean line; `most` fills the strip's height. */
export function waysOf(bars: readonly number[], most: number): { readonly bars: string; readonly mean: string } {
  if (bars.length === 0 || most <= 0) return { bars: "", mean: "" };
  const wide = WIDTH / bars.length;
  const up = (value: number) => HEIGHT - (HEIGHT * value) / most;
  const bar = (value: number, at: number) =>
    value > 0
      ? `M${(at * wide).toFixed(2)} ${HEIGHT}V${up(value).toFixed(2)}h${(0.85 * wide).toFixed(2)}V${HEIGHT}z`
      : "";
  const mean = bars.reduce((sum, value) => sum + value, 0) / bars.length;
  return { bars: bars.map(bar).join(""), mean: `M0 ${up(mean).toFixed(2)}H${WIDTH}` };
}

/** The area for strips below a finding. */
export class Strips {
  readonly #host = make("ul", { id: "strips" });

  constructor() {
    find("arrows", HTMLElement).after(this.#host);
  }

  show(strips: readonly Strip[]): void {
    this.#host.hidden = strips.length === 0;
    // One scale for all, so that they can be compared.
    const most = Math.max(0, ...strips.flatMap(({ bars }) => bars));
    fillRows(this.#host, strips, blank, (row, { label, bars }) => {
      setText(row.children[1]!, label);
      const ways = waysOf(bars, most);
      const [filled, line] = row.querySelectorAll("path");
      if (filled) setAttribute(filled, "d", ways.bars);
      if (line) setAttribute(line, "d", ways.mean);
    });
  }
}

const SVG = "http://www.w3.org/2000/svg";

function blank(): HTMLElement {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  for (const name of ["strip-bars", "strip-mean"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", name);
    svg.append(path);
  }
  const row = make("li", {}, make("span", { class: "small" }));
  row.prepend(svg);
  return row;
}
