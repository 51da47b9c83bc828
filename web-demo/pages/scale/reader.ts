/** Reads a chart's values under the pointer, or with the arrow keys. */
import { fillRows, find, make, setAttribute, setText } from "../shared/dom.js";
import type { PlotLine, Plotted } from "../shared/plot.js";

/** A chart that can be read. */
export interface Readable {
  readonly lines: readonly PlotLine[];
  readonly plotted: Plotted;
  readonly sayX: (x: number) => string;
  readonly sayY: (y: number) => string;
}

/** The value of a line at one of its points, or `null`. */
function valueAt(line: PlotLine, x: number): number | null {
  return line.points.find(([at]) => at === x)?.[1] ?? null;
}

/** Every x with a point of any line, in order. */
export function stopsOf(lines: readonly PlotLine[]): readonly number[] {
  return [...new Set(lines.flatMap(({ points }) => points.map(([x]) => x)))].sort((a, b) => a - b);
}

export class Reader {
  readonly #host: HTMLElement;
  readonly #rule = make("span", { class: "reader-rule", hidden: "" });
  readonly #panel = make("div", { class: "reader-panel", hidden: "" });
  readonly #title = make("strong", { class: "number" });
  readonly #rows = make("ul");
  #readable: Readable | null = null;
  #at: number | null = null;

  /** `id` names the element that covers the chart. */
  constructor(id: string) {
    this.#host = find(id, HTMLElement);
    this.#panel.append(this.#title, this.#rows);
    this.#host.append(this.#rule, this.#panel);
    this.#host.addEventListener("pointermove", (event) => {
      const { left } = this.#host.getBoundingClientRect();
      this.#to(this.#nearest(event.clientX - left));
    });
    this.#host.addEventListener("pointerdown", (event) => {
      const { left } = this.#host.getBoundingClientRect();
      this.#to(this.#nearest(event.clientX - left));
    });
    for (const leave of ["pointerleave", "blur"]) this.#host.addEventListener(leave, () => this.#to(null));
    this.#host.addEventListener("focus", () => this.#to(this.#at ?? 0));
    this.#host.addEventListener("keydown", (event) => {
      const last = this.#stops.length - 1;
      const at = this.#at ?? 0;
      const to = { ArrowRight: at + 1, ArrowUp: at + 1, ArrowLeft: at - 1, ArrowDown: at - 1, Home: 0, End: last }[
        event.key
      ];
      if (event.key === "Escape") return this.#to(null);
      if (to === undefined) return;
      event.preventDefault();
      this.#to(Math.min(last, Math.max(0, to)));
    });
  }

  get #stops(): readonly number[] {
    return stopsOf(this.#readable?.lines ?? []);
  }

  /** Takes a new chart. */
  show(readable: Readable): void {
    this.#readable = readable;
    setAttribute(this.#host, "aria-valuemax", String(Math.max(0, this.#stops.length - 1)));
    this.#to(this.#at === null ? null : Math.min(this.#at, this.#stops.length - 1));
  }

  #nearest(px: number): number | null {
    const { plotted } = this.#readable ?? {};
    if (!plotted || this.#stops.length === 0) return null;
    const off = (x: number | undefined) => Math.abs(plotted.px(x ?? Infinity) - px);
    return this.#stops.reduce((best, x, at) => (off(x) < off(this.#stops[best]) ? at : best), 0);
  }

  /** Reads the stop with this index, or stops reading. */
  #to(at: number | null): void {
    this.#at = at;
    const [readable, x] = [this.#readable, at === null ? undefined : this.#stops[at]];
    this.#rule.hidden = this.#panel.hidden = readable === null || x === undefined;
    if (!readable || x === undefined) return;
    const said = readable.lines.flatMap((line) => {
      const value = valueAt(line, x);
      return value === null ? [] : [{ label: line.label, value: readable.sayY(value) }];
    });
    setText(this.#title, readable.sayX(x));
    fillRows(
      this.#rows,
      said,
      () => make("li", {}, make("span"), make("span", { class: "number" })),
      (row, { label, value }) => {
        setText(row.children[0]!, label);
        setText(row.children[1]!, value);
      },
    );
    const px = readable.plotted.px(x);
    this.#host.style.setProperty("--at", `${px}px`);
    setAttribute(this.#panel, "data-side", px > this.#host.clientWidth / 2 ? "left" : "right");
    setAttribute(this.#host, "aria-valuenow", String(at));
    const spoken = said.map(({ label, value }) => `${label} ${value}`).join(", ");
    setAttribute(this.#host, "aria-valuetext", `${readable.sayX(x)}: ${spoken}`);
  }
}
