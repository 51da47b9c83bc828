/** One chart: lines over the run, their values as text, and the same values as a table. */
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { fillRows, make, setAttribute, setText } from "../shared/dom.js";
import { count, duration, UNKNOWN } from "../shared/format.js";
import { painter } from "../shared/paint.js";
import { color, onThemeChange } from "../shared/palette.js";
import { type Choice, SMOOTHING } from "./choice.js";
import { type Axis, curveOf, moved, type Range, type Run, rangeOf, smoothed, wholeOf } from "./columns.js";
import { type Picture, pictureOf } from "./picture.js";
import { type ChartSpec, HEIGHT_PX, type Line, optionsOf, type Stroke, X_TITLES } from "./plot-options.js";

/** State shared by all charts. */
export interface Scene {
  readonly run: Run;
  readonly other: { readonly name: string; readonly run: Run } | null;
  readonly choice: Choice;
  /** Shows a range of the x axis, or all of it, in all charts. */
  readonly zoom: (range: Range | null) => void;
}

const TABLE_ROWS_MAX = 24;
const ZOOM_STEP = 2;

/** Formats a position on the x axis. */
export function placeOf(axis: Axis, x: number): string {
  return axis === "time" ? duration(x) : `${count(x)} tokens`;
}

/** A chart within a `<figure>`. */
export class Chart {
  /** Requests a redraw of the chart. */
  readonly refresh: () => void;
  readonly #spec: ChartSpec;
  readonly #scene: () => Scene;
  readonly #summary = make("p", { class: "quiet small" });
  readonly #keys = make("p", { class: "keys small number" });
  readonly #when = make("span", { class: "quiet" });
  // Each drawing sets a new label; a chart without a drawing has one too.
  readonly #plotHost = make("div", { class: "plot", tabindex: "0", role: "img", "aria-label": "Chart" });
  readonly #table = make("details");
  readonly #heads = make("tr");
  readonly #rows = make("tbody");
  /** Drawn lines, in the order of uPlot's series, without the x axis. */
  #strokes: readonly Stroke[] = [];
  /** The key of each line that has one, and the value in it. */
  #named: { readonly at: number; readonly key: HTMLElement; readonly value: HTMLElement }[] = [];
  /** Created at the first drawing, so that a chart out of view costs nothing. Recreated for other lines or scales. */
  #plot: uPlot | undefined;
  #shape = "";

  constructor(figure: HTMLElement, spec: ChartSpec, scene: () => Scene) {
    this.#spec = spec;
    this.#scene = scene;
    const caption = make("figcaption", {}, make("h3", {}, spec.title), this.#summary);
    // Both share one row of the charts' grid.
    const folded = make("div", {}, this.#tableOf(spec), ...moreOf(spec));
    figure.append(caption, this.#keys, this.#plotHost, folded);
    this.refresh = painter(figure, () => this.#paint());
    new ResizeObserver(() => this.#resize()).observe(this.#plotHost);
    this.#plotHost.addEventListener("keydown", (event) => this.#key(event));
    this.#table.addEventListener("toggle", () => this.#fillTable());
    onThemeChange(() => this.#plot?.redraw(false, true));
  }

  get spec(): ChartSpec {
    return this.#spec;
  }

  /** Returns the chart's current picture for saving; `about` names the run. */
  picture(about: string): HTMLCanvasElement {
    this.#paint();
    const keys = this.#named.map(({ at }): Picture["keys"][number] => {
      const { line, label, kind } = this.#strokes[at]!;
      return { label, color: color(line.color), dash: kind === "other" ? [2, 4] : line.dashed ? [6, 5] : [] };
    });
    const { title, unit, unitRight } = this.#spec;
    return pictureOf(this.#plot!.ctx.canvas, { title, about, keys, unit, unitRight: unitRight ?? "" });
  }

  #tableOf(spec: ChartSpec): HTMLElement {
    const table = make(
      "table",
      {},
      make("caption", { class: "hidden-text" }, spec.title),
      make("thead", {}, this.#heads),
      this.#rows,
    );
    const scroll = make(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": `${spec.title}, as a table` },
      table,
    );
    this.#table.append(make("summary", { class: "small" }, "As a table"), scroll);
    return this.#table;
  }

  #width(): number {
    return Math.max(200, this.#plotHost.clientWidth);
  }

  #resize(): void {
    if (this.#plot && this.#plot.width !== this.#width())
      this.#plot.setSize({ width: this.#width(), height: HEIGHT_PX });
  }

  /** Takes other lines, with their keys and table headings, and recreates the plot. */
  #reshape({ other, choice }: Scene): void {
    const smooth = choice.smoothing !== "none";
    const { lines } = this.#spec;
    const name = (line: Line) => (smooth && line.noisy ? `${line.label}, smoothed` : line.label);
    const raw = lines.filter((line) => smooth && line.noisy);
    const others = other ? lines.filter((line) => !line.alone) : [];
    // Later strokes lie on top.
    this.#strokes = [
      ...raw.map((line): Stroke => ({ line, label: line.label, kind: "raw" })),
      ...others.map((line): Stroke => ({ line, label: `${name(line)}, ${other?.name}`, kind: "other" })),
      ...lines.map((line): Stroke => ({ line, label: name(line), kind: "own" })),
    ];
    const of = (kind: Stroke["kind"]) => this.#strokes.flatMap((stroke, at) => (stroke.kind === kind ? [at] : []));
    this.#named = [...of("own"), ...of("other")].map((at) => {
      const { line, label, kind } = this.#strokes[at]!;
      const value = make("b", {}, UNKNOWN);
      const style = kind === "other" ? "key dotted" : line.dashed ? "key dashed" : "key";
      const key = make("span", { class: style }, `${label} `, value);
      key.style.setProperty("--swatch", `var(--${line.color})`);
      return { at, key, value };
    });
    this.#keys.replaceChildren(...this.#named.map(({ key }) => key), this.#when);
    const heads = [X_TITLES[choice.axis], ...this.#named.map(({ at }) => this.#strokes[at]!.label)];
    this.#heads.replaceChildren(...heads.map((head) => make("th", { scope: "col" }, head)));
    this.#rows.replaceChildren();
    this.#plot?.destroy();
    this.#plot = undefined;
  }

  #paint(): void {
    const scene = this.#scene();
    const { run, other, choice } = scene;
    const shape = JSON.stringify([choice.axis, choice.log, choice.smoothing === "none", other?.name]);
    if (shape !== this.#shape) this.#reshape(scene);
    this.#shape = shape;
    const whole = wholeOf(run, choice.axis);
    const reach = SMOOTHING[choice.smoothing] * (whole.to - whole.from);
    const curves = this.#strokes.map(({ line, kind }) => {
      const curve = curveOf(kind === "other" && other ? other.run : run, line, choice.axis);
      return kind !== "raw" && line.noisy ? smoothed(curve, reach) : curve;
    });
    // uPlot's type forbids `undefined` in a column that may have `null`, but its join produces such columns.
    const data = uPlot.join(curves.map(({ x, y }) => [x, y]) as uPlot.AlignedData[]);
    const range = rangeOf(choice.shown, run, choice.axis);
    this.#plot ??= new uPlot(
      optionsOf(this.#spec, this.#strokes, choice, {
        width: this.#width(),
        moved: () => this.#readOut(),
        selected: (plot) => this.#select(plot),
        whole: () => this.#whole(),
      }),
      data,
      this.#plotHost,
    );
    const plot = this.#plot;
    plot.batch(() => {
      plot.setData(data);
      if (range) plot.setScale("x", { min: range.from, max: range.to });
    });
    const summary = this.#spec.summary();
    setAttribute(this.#summary, "aria-busy", summary === "…" ? "true" : null);
    setText(this.#summary, summary);
    const keys = "Arrow keys read single moments, plus and minus zoom, Escape shows the whole run.";
    this.#plotHost.setAttribute("aria-label", `Chart: ${this.#spec.title}. ${summary} ${keys}`);
    this.#readOut();
    this.#fillTable();
  }

  /** Shows the values under the cursor, or the newest visible values. */
  #readOut(): void {
    const index = this.#plot?.cursor.idx ?? null;
    const place = index === null ? undefined : this.#places()[index];
    const { axis } = this.#scene().choice;
    const when = place === undefined ? "" : `${axis === "time" ? "after" : "at"} ${placeOf(axis, place)}`;
    setText(this.#when, when);
    for (const { at, key, value } of this.#named) {
      const text = this.#at(at, index ?? this.#ends()[1]);
      setText(value, text);
      key.hidden = (this.#strokes[at]?.line.optional ?? false) && text === UNKNOWN;
    }
  }

  #places(): ArrayLike<number> {
    return this.#plot?.data[0] ?? [];
  }

  /** Returns the first and last visible row. */
  #ends(): [number, number] {
    const places = this.#places();
    const { min, max } = this.#plot?.scales["x"] ?? {};
    let [first, last] = [0, places.length - 1];
    while (first < last && (places[first] ?? 0) < (min ?? 0)) first += 1;
    while (last > first && (places[last] ?? 0) > (max ?? Number.POSITIVE_INFINITY)) last -= 1;
    return [first, last];
  }

  /** Returns the value of a stroke at a row, or the last one before it. */
  #at(stroke: number, row: number): string {
    const column = this.#plot?.data[stroke + 1] ?? [];
    let at = row;
    while (at >= 0 && column[at] === undefined) at -= 1;
    const value = column[at];
    return typeof value === "number" ? (this.#strokes[stroke]?.line.format(value) ?? "") : UNKNOWN;
  }

  #fillTable(): void {
    if (!this.#table.open) return;
    const places = this.#places();
    const [first, last] = this.#ends();
    const step = Math.max(1, Math.ceil((last - first + 1) / TABLE_ROWS_MAX));
    const rows: number[] = [];
    for (let row = last; row >= first; row -= step) rows.push(row);
    const { axis } = this.#scene().choice;
    const blank = () => make("tr", {}, make("th", { scope: "row" }), ...this.#named.map(() => make("td")));
    fillRows(this.#rows, rows, blank, (element, row) => {
      setText(element.cells[0]!, placeOf(axis, places[row] ?? 0));
      this.#named.forEach(({ at }, cell) => setText(element.cells[cell + 1]!, this.#at(at, row)));
    });
  }

  #whole(): void {
    this.#scene().zoom(null);
  }

  /** Zooms to the range that was dragged. */
  #select(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width === 0) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    // uPlot repeats the selection on the other charts; only the dragged chart acts.
    if (!plot.cursor.event) return;
    this.#plotHost.focus({ preventScroll: true });
    const [from, to] = [plot.posToVal(left, "x"), plot.posToVal(left + width, "x")];
    this.#scene().zoom({ from: Math.max(0, from), to });
  }

  #key(event: KeyboardEvent): void {
    const plot = this.#plot;
    const places = this.#places();
    const [first, last] = this.#ends();
    if (!plot || last < 0) return;
    const now = plot.cursor.idx ?? last + 1;
    const page = Math.max(1, Math.round((last - first) / 10));
    const goals: Readonly<Record<string, number>> = {
      ArrowLeft: now - 1,
      ArrowRight: now + 1,
      PageUp: now - page,
      PageDown: now + page,
      Home: first,
      End: last,
    };
    const goal = goals[event.key];
    const zooms: Readonly<Record<string, number>> = { "+": 1 / ZOOM_STEP, "=": 1 / ZOOM_STEP, "-": ZOOM_STEP };
    const factor = zooms[event.key];
    if (factor !== undefined && !event.ctrlKey && !event.metaKey) {
      const whole = { from: places[0] ?? 0, to: places[places.length - 1] ?? 0 };
      const { min, max } = plot.scales["x"] ?? {};
      const shown = { from: min ?? whole.from, to: max ?? whole.to };
      const about = places[Math.min(last, now)] ?? shown.to;
      event.preventDefault();
      return this.#scene().zoom(moved(shown, whole, { factor, about }));
    }
    if (event.key === "Escape") {
      plot.setCursor({ left: -10, top: -10 });
      this.#whole();
    }
    if (goal === undefined) return;
    event.preventDefault();
    const place = places[Math.min(last, Math.max(first, goal))] ?? 0;
    plot.setCursor({ left: plot.valToPos(place, "x"), top: 0 });
  }
}

/** Returns a folded explanation of terms, if the chart has one. */
function moreOf({ more }: ChartSpec): HTMLElement[] {
  if (more === undefined) return [];
  const summary = make("summary", { class: "small" }, "More about this");
  return [make("details", {}, summary, make("p", { class: "small" }, more))];
}
