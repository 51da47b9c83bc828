/** Line plots in SVG. Each line has its name at its end, so that readers need not tell colours apart. */

/** One line. */
export interface PlotLine {
  readonly label: string;
  /** Number of the colour, 1 to 3, or the muted colour. */
  readonly tone: "1" | "2" | "3" | "quiet";
  readonly dash?: string;
  /** Points `[x, y]`, ordered by x. */
  readonly points: readonly (readonly [number, number])[];
  /** Whether it is drawn in front of all others. */
  readonly strong?: boolean;
  /** Separate marks, such as figures from the paper. */
  readonly marks?: readonly (readonly [number, number])[];
}

/** A scale: its range, whether it is logarithmic, and its tick labels. */
export interface Axis {
  readonly min: number;
  readonly max: number;
  readonly log?: boolean;
  readonly ticks: readonly number[];
  readonly say: (value: number) => string;
  /** Measured quantity and its unit. */
  readonly title?: string;
}

export interface PlotSpec {
  readonly x: Axis;
  readonly y: Axis;
  readonly lines: readonly PlotLine[];
  readonly width: number;
  readonly height: number;
  /** Least room for the names of the lines. */
  readonly right: number;
  /** A marked moment on the x axis. */
  readonly at?: number;
  /** Shaded stretches of the x axis, each with its name. */
  readonly bands?: readonly { readonly from: number; readonly until: number; readonly label: string }[];
  /** Events on the x axis, each with its name. */
  readonly moments?: readonly { readonly at: number; readonly label: string }[];
}

const SVG = "http://www.w3.org/2000/svg";
const [LEFT, TOP, BOTTOM] = [48, 10, 26];
/** Room for a title above the y axis, and for one below the x axis. */
const TITLE_PX = 18;
/** Least width of a band with a name, in pixels. */
const BAND_NAME_PX = 44;
/** Least distance between two names, in pixels. */
const NAME_PX = 15;
/** Gap between the end of a line and its name, in pixels. */
const NAME_GAP_PX = 6;

function add<Tag extends keyof SVGElementTagNameMap>(
  parent: Element,
  tag: Tag,
  attributes: Readonly<Record<string, string | number>>,
  text?: string,
): SVGElementTagNameMap[Tag] {
  const element = document.createElementNS(SVG, tag) as SVGElementTagNameMap[Tag];
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
}

function share(axis: Axis, value: number): number {
  if (!axis.log) return (value - axis.min) / (axis.max - axis.min);
  return Math.log(value / axis.min) / Math.log(axis.max / axis.min);
}

/** Geometry of a drawn plot. */
export interface Plotted {
  /** Distance from the left of a value of the x axis, in pixels. */
  readonly px: (value: number) => number;
}

/** Draws `spec` into `svg` and replaces the old content. */
export function plot(svg: SVGSVGElement, spec: PlotSpec): Plotted {
  const { x, y, width, height } = spec;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren();
  const right = Math.max(spec.right, roomForNames(svg, spec.lines));
  const top = TOP + (y.title === undefined ? 0 : TITLE_PX);
  const bottom = BOTTOM + (x.title === undefined ? 0 : TITLE_PX);
  const px = (value: number) => LEFT + share(x, value) * (width - LEFT - right);
  const py = (value: number) =>
    height - bottom - Math.min(1.02, Math.max(-0.02, share(y, value))) * (height - top - bottom);
  for (const { from, until, label } of spec.bands ?? []) {
    const [left, wide] = [px(from), px(until) - px(from)];
    add(svg, "rect", { class: "plot-band", x: left, y: top, width: wide, height: height - bottom - top });
    if (wide >= BAND_NAME_PX)
      add(
        svg,
        "text",
        { class: "plot-tick", x: left + wide / 2, y: height - bottom - 5, "text-anchor": "middle" },
        label,
      );
  }
  for (const tick of y.ticks) {
    add(svg, "line", { class: "plot-grid", x1: LEFT, x2: width - right, y1: py(tick), y2: py(tick) });
    add(svg, "text", { class: "plot-tick", x: LEFT - 6, y: py(tick) + 4, "text-anchor": "end" }, y.say(tick));
  }
  for (const tick of x.ticks)
    add(
      svg,
      "text",
      { class: "plot-tick", x: px(tick), y: height - bottom + 18, "text-anchor": "middle" },
      x.say(tick),
    );
  if (spec.at !== undefined)
    add(svg, "line", { class: "plot-at", x1: px(spec.at), x2: px(spec.at), y1: top, y2: height - bottom });
  for (const { at, label } of spec.moments ?? []) {
    add(svg, "line", { class: "plot-moment", x1: px(at), x2: px(at), y1: top, y2: height - bottom });
    // On the side with enough room.
    const isLate = px(at) > (LEFT + width - right) / 2;
    const place = { x: px(at) + (isLate ? -5 : 5), y: top + 9, "text-anchor": isLate ? "end" : "start" };
    add(svg, "text", { class: "plot-moment", ...place }, label);
  }
  if (y.title !== undefined) add(svg, "text", { class: "plot-title", x: 2, y: 13 }, y.title);
  if (x.title !== undefined) {
    const middle = { class: "plot-title", y: height - 7, "text-anchor": "middle" };
    const title = add(svg, "text", middle, x.title);
    // At the middle of the axis, or as near as the whole title fits.
    const length = title.getComputedTextLength();
    if (length > width) title.setAttribute("textLength", String(width));
    const half = Math.min(length, width) / 2;
    title.setAttribute("x", String(Math.max(half, Math.min(width - half, (LEFT + width - right) / 2))));
  }
  for (const line of spec.lines) {
    const way = line.points
      .map(([at, value], index) => `${index === 0 ? "M" : "L"}${px(at).toFixed(1)} ${py(value).toFixed(1)}`)
      .join("");
    add(svg, "path", {
      class: "plot-line",
      "data-tone": line.tone,
      d: way,
      ...(line.strong ? { "data-strong": "" } : {}),
      ...(line.dash ? { "stroke-dasharray": line.dash } : {}),
    });
    for (const [at, value] of line.marks ?? []) {
      const [cx, cy] = [px(at), py(value)];
      add(svg, "path", {
        class: "plot-mark",
        "data-tone": line.tone,
        d: `M${cx - 4} ${cy - 4}L${cx + 4} ${cy + 4}M${cx - 4} ${cy + 4}L${cx + 4} ${cy - 4}`,
      });
    }
  }
  const ends = spec.lines.flatMap((line) => {
    const end = line.points.at(-1);
    return end ? [{ line, y: py(end[1]) }] : [];
  });
  spreadNames(ends, top + 6, height - bottom);
  for (const { line, y } of ends) {
    const name = {
      class: "plot-name",
      x: width - right + NAME_GAP_PX,
      y: y + 4,
      ...(line.strong ? { "data-strong": "" } : {}),
    };
    add(svg, "text", name, line.label);
  }
  return { px };
}

/** Returns the width of the widest name, with its margins, in pixels. */
function roomForNames(svg: SVGSVGElement, lines: readonly PlotLine[]): number {
  const names = lines.map(({ label, strong }) =>
    add(svg, "text", { class: "plot-name", ...(strong ? { "data-strong": "" } : {}) }, label),
  );
  // Adds all names before measuring the first, so that the browser lays out the page once.
  const widths = names.map((name) => name.getComputedTextLength());
  for (const name of names) name.remove();
  return Math.ceil(Math.max(0, ...widths)) + NAME_GAP_PX + 2;
}

/** Separates overlapping names: moves them down first, and back up if they would leave the plot. */
function spreadNames(ends: { y: number }[], top: number, bottom: number): void {
  ends.sort((a, b) => a.y - b.y);
  let least = top;
  for (const end of ends) least = (end.y = Math.max(end.y, least)) + NAME_PX;
  let most = bottom;
  for (const end of ends.toReversed()) most = (end.y = Math.min(end.y, most)) - NAME_PX;
}

/** Round steps of a linear scale, four to six of them. */
export function steps(min: number, max: number): number[] {
  const raw = (max - min) / 5;
  const size = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((one) => one * size).find((one) => one >= raw) ?? raw;
  const all: number[] = [];
  for (let at = Math.ceil(min / step); at * step <= max + step * 1e-9; at += 1) all.push(at * step);
  return all;
}
