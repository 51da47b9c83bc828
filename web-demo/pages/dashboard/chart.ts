/** One chart: lines over the run's time, their values in words, and the same as a table. */
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { fillRows, make, setText } from "../shared/dom.js";
import { duration, UNKNOWN } from "../shared/format.js";
import { painter } from "../shared/paint.js";
import { type ColorName, color, onThemeChange } from "../shared/palette.js";

/** One line. */
export interface Line {
  readonly label: string;
  readonly color: ColorName;
  /** The value in words. */
  readonly format: (value: number) => string;
  /** The same beside a scale, where steps are round. */
  readonly tick: (value: number) => string;
  /** The scale to its right instead of that to its left. */
  readonly right?: boolean;
  readonly dashed?: boolean;
  /** Marks each value while there are few. */
  readonly dots?: boolean;
  /** Not named while it has no value. */
  readonly optional?: boolean;
}

/** What a chart shows. */
export interface ChartSpec {
  readonly title: string;
  readonly lines: readonly Line[];
  /** Limits of the left scale and of the right one, of what its values span. */
  readonly range: (min: number, max: number) => [number, number];
  readonly rangeRight?: (min: number, max: number) => [number, number];
  /** Time in seconds, then a column for each line. `undefined` is no value of this line, `null` a gap. */
  readonly columns: () => readonly [number[], ...(number | null | undefined)[][]];
  /** What it shows, in a sentence or two. */
  readonly summary: () => string;
}

const HEIGHT_PX = 210;
const TABLE_ROWS_MAX = 24;
const DOTS_MAX = 60;
const FONT = "12px system-ui, sans-serif";
/** Steps of a scale that counts things. */
const WHOLE_STEPS = [1, 2, 5].flatMap((step) => [step, step * 10, step * 100, step * 1_000]).sort((a, b) => a - b);
/** Steps of the time axis, in seconds. */
const TIME_STEPS = [
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
];

/** A chart within a `<figure>`. */
export class Chart {
  /** Asks for the chart to be drawn with what `columns` gives then. */
  readonly refresh: () => void;
  readonly #spec: ChartSpec;
  readonly #summary = make("p", { class: "quiet small" });
  readonly #when = make("span", { class: "quiet" });
  readonly #values: HTMLElement[] = [];
  // Named anew with each drawing; what is never drawn has a name too.
  readonly #plotHost = make("div", { class: "plot", tabindex: "0", role: "img", "aria-label": "Chart" });
  readonly #table = make("details");
  readonly #rows = make("tbody");
  readonly #keys: HTMLElement[] = [];
  /** Made with the first picture: a chart that is never seen costs nothing. */
  #plot: uPlot | undefined;

  constructor(figure: HTMLElement, spec: ChartSpec) {
    this.#spec = spec;
    const keys = make("p", { class: "keys small number" });
    for (const line of spec.lines) {
      const value = make("b", {}, UNKNOWN);
      const key = make("span", { class: line.dashed ? "key dashed" : "key" }, `${line.label} `, value);
      key.style.setProperty("--swatch", `var(--${line.color})`);
      this.#values.push(value);
      this.#keys.push(key);
    }
    keys.append(...this.#keys, this.#when);
    figure.append(
      make("figcaption", {}, make("h3", {}, spec.title), this.#summary),
      keys,
      this.#plotHost,
      this.#tableOf(spec),
    );
    this.refresh = painter(figure, () => this.#paint());
    new ResizeObserver(() => this.#resize()).observe(this.#plotHost);
    this.#plotHost.addEventListener("keydown", (event) => this.#key(event));
    this.#table.addEventListener("toggle", () => this.#fillTable());
    onThemeChange(() => this.#plot?.redraw(false, true));
  }

  #options(): uPlot.Options {
    const axis = (more: uPlot.Axis): uPlot.Axis => ({
      font: FONT,
      stroke: () => color("ink-soft"),
      grid: { stroke: () => color("line"), width: 1 },
      ticks: { show: false },
      ...more,
    });
    const side = (right: boolean) => this.#spec.lines.find((line) => (line.right ?? false) === right);
    const values = (right: boolean) => (_: uPlot, splits: number[]) =>
      splits.map((split) => side(right)?.tick(split) ?? "");
    const axes = [
      axis({ incrs: TIME_STEPS, space: 56, size: 30, values: (_, splits) => splits.map((split) => duration(split)) }),
      axis({ scale: "y", size: 58, space: 24, values: values(false) }),
    ];
    if (side(true))
      axes.push(
        axis({ scale: "right", side: 1, size: 44, incrs: WHOLE_STEPS, grid: { show: false }, values: values(true) }),
      );
    const range =
      (limits: ChartSpec["range"]): uPlot.Range.Function =>
      (_, min, max) =>
        limits(min ?? 0, max ?? 1);
    return {
      width: this.#width(),
      height: HEIGHT_PX,
      legend: { show: false },
      cursor: { drag: { x: false, y: false }, sync: { key: "run", scales: ["x", null] }, y: false },
      scales: {
        x: { time: false },
        y: { range: range(this.#spec.range) },
        right: { range: range(this.#spec.rangeRight ?? this.#spec.range) },
      },
      axes,
      series: [
        {},
        ...this.#spec.lines.map(
          (line): uPlot.Series => ({
            label: line.label,
            scale: line.right ? "right" : "y",
            stroke: () => color(line.color),
            width: 1.75,
            spanGaps: false,
            points: {
              show: (plot, index) => (line.dots ?? false) && isSparse(plot.data[index] ?? []),
              size: 4,
              fill: () => color(line.color),
            },
            ...(line.dashed ? { dash: [6, 5] } : {}),
          }),
        ),
      ],
      hooks: { setCursor: [() => this.#readOut()] },
    };
  }

  #tableOf(spec: ChartSpec): HTMLElement {
    const heads = ["Time", ...spec.lines.map((line) => line.label)].map((head) => make("th", { scope: "col" }, head));
    const table = make(
      "table",
      {},
      make("caption", { class: "hidden-text" }, spec.title),
      make("thead", {}, make("tr", {}, ...heads)),
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

  #paint(): void {
    // uPlot's type allows no `undefined` within a column that may have `null`; its join makes just those.
    const columns = this.#spec.columns() as unknown as uPlot.AlignedData;
    if (this.#plot) this.#plot.setData(columns);
    else this.#plot = new uPlot(this.#options(), columns, this.#plotHost);
    const summary = this.#spec.summary();
    setText(this.#summary, summary);
    this.#plotHost.setAttribute("aria-label", `Chart: ${this.#spec.title}. ${summary} Arrow keys read single moments.`);
    this.#readOut();
    this.#fillTable();
  }

  /** The values under the cursor, or the newest. */
  #readOut(): void {
    const times = this.#times();
    const index = this.#plot?.cursor.idx ?? null;
    const time = index === null ? undefined : times[index];
    setText(this.#when, time === undefined ? "" : `after ${duration(time)}`);
    this.#values.forEach((node, line) => {
      const value = this.#at(line, index ?? times.length - 1);
      setText(node, value);
      this.#keys[line]!.hidden = (this.#spec.lines[line]?.optional ?? false) && value === UNKNOWN;
    });
  }

  #times(): ArrayLike<number> {
    return this.#plot?.data[0] ?? [];
  }

  /** The value of a line at a row, or the last one before. */
  #at(line: number, row: number): string {
    const column = this.#plot?.data[line + 1] ?? [];
    let at = row;
    while (at >= 0 && column[at] === undefined) at -= 1;
    const value = column[at];
    return typeof value === "number" ? (this.#spec.lines[line]?.format(value) ?? "") : UNKNOWN;
  }

  #fillTable(): void {
    if (!this.#table.open) return;
    const times = this.#times();
    const step = Math.max(1, Math.ceil(times.length / TABLE_ROWS_MAX));
    const rows: number[] = [];
    for (let row = times.length - 1; row >= 0; row -= step) rows.push(row);
    const blank = () => make("tr", {}, make("th", { scope: "row" }), ...this.#spec.lines.map(() => make("td")));
    fillRows(this.#rows, rows, blank, (element, row) => {
      setText(element.cells[0]!, duration(times[row] ?? 0));
      this.#spec.lines.forEach((_, line) => setText(element.cells[line + 1]!, this.#at(line, row)));
    });
  }

  #key(event: KeyboardEvent): void {
    const plot = this.#plot;
    const times = this.#times();
    const last = times.length - 1;
    if (!plot || last < 0) return;
    const now = plot.cursor.idx ?? last + 1;
    const page = Math.max(1, Math.round(last / 10));
    const goals: Readonly<Record<string, number>> = {
      ArrowLeft: now - 1,
      ArrowRight: now + 1,
      PageUp: now - page,
      PageDown: now + page,
      Home: 0,
      End: last,
    };
    const goal = goals[event.key];
    if (event.key === "Escape") plot.setCursor({ left: -10, top: -10 });
    if (goal === undefined) return;
    event.preventDefault();
    const time = times[Math.min(last, Math.max(0, goal))] ?? 0;
    plot.setCursor({ left: plot.valToPos(time, "x"), top: 0 });
  }
}

function isSparse(column: ArrayLike<unknown>): boolean {
  let values = 0;
  for (let row = 0; row < column.length && values <= DOTS_MAX; row += 1)
    values += typeof column[row] === "number" ? 1 : 0;
  return values <= DOTS_MAX;
}
