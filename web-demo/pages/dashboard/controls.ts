/** Controls of the charts: visible range, display, comparison with an earlier run, and downloads. */
import { make, setAttribute, setText } from "../shared/dom.js";
import { dayOf, save, savePicture } from "../shared/save.js";
import { type Chart, placeOf, type Scene } from "./chart.js";
import type { Choice } from "./choice.js";
import { moved, type Range, rangeOf, type Shown, wholeOf } from "./columns.js";
import { FILE_BYTES_MAX, readRun, toCsv } from "./table.js";

/** Actions of the controls. */
export interface Acts {
  /** The run, as 16 hex digits. */
  readonly run: () => string;
  readonly choose: (choice: Choice) => void;
  readonly compare: (other: Scene["other"]) => void;
}

const RANGES: readonly (readonly [string, Shown])[] = [
  ["All", null],
  ["Last hour", { lastS: 3_600 }],
  ["Last 5 min", { lastS: 300 }],
];
const MOVES = [
  ["Zoom in", { factor: 0.5 }],
  ["Zoom out", { factor: 2 }],
  ["Earlier", { steps: -0.5 }],
  ["Later", { steps: 0.5 }],
] as const;
/** Limit of letters in a displayed file name. */
const NAME_MAX = 24;

export class Controls {
  readonly #acts: Acts;
  #scene: Scene | undefined;
  readonly #ranges = RANGES.map(([name, shown]) => ({ shown, button: make("button", { type: "button" }, name) }));
  readonly #said = make("span", { id: "charts-range", class: "quiet small number", role: "status" });
  readonly #axis = choices("charts-axis", [
    ["time", "Time"],
    ["tokens", "Merged tokens"],
  ]);
  readonly #scale = choices("charts-scale", [
    ["linear", "Linear"],
    ["log", "Logarithmic"],
  ]);
  readonly #smoothing = choices("charts-smoothing", [
    ["none", "None"],
    ["light", "A little"],
    ["strong", "Much"],
  ]);
  readonly #file = make("input", {
    id: "charts-file",
    type: "file",
    accept: ".csv,.json",
    "aria-describedby": "charts-file-hint",
  });
  readonly #fileSaid = make("p", { id: "charts-file-said", class: "small", role: "status" });
  readonly #remove = make("button", { id: "charts-remove", type: "button", hidden: "" }, "Take it away");

  constructor(host: HTMLElement, charts: readonly Chart[], acts: Acts) {
    this.#acts = acts;
    for (const { shown, button } of this.#ranges) button.addEventListener("click", () => this.#choose({ shown }));
    this.#axis.addEventListener("change", () =>
      // A range of one axis has no meaning on the other.
      this.#choose({ axis: this.#axis.value as Choice["axis"], ...(this.#isOwnRange() ? { shown: null } : {}) }),
    );
    this.#scale.addEventListener("change", () => this.#choose({ log: this.#scale.value === "log" }));
    this.#smoothing.addEventListener("change", () =>
      this.#choose({ smoothing: this.#smoothing.value as Choice["smoothing"] }),
    );
    this.#file.addEventListener("change", () => void this.#load());
    this.#remove.addEventListener("click", () => this.#compare(null));
    const buttons = this.#ranges.map(({ button }) => button);
    host.append(
      make(
        "div",
        { class: "actions", role: "group", "aria-label": "Part of the run in all charts" },
        ...buttons,
        this.#said,
      ),
      make("details", {}, make("summary", {}, "Zoom, compare and save"), this.#panel(charts)),
    );
  }

  /** Shows the current choices. */
  show(scene: Scene): void {
    this.#scene = scene;
    const { run, choice } = scene;
    for (const { shown, button } of this.#ranges)
      setAttribute(button, "aria-pressed", String(JSON.stringify(shown) === JSON.stringify(choice.shown)));
    [this.#axis.value, this.#smoothing.value] = [choice.axis, choice.smoothing];
    this.#scale.value = choice.log ? "log" : "linear";
    // A range that follows the newest point changes each second; only fixed ranges are announced.
    const range = this.#isOwnRange() ? rangeOf(choice.shown, run, choice.axis) : null;
    const place = (x: number) => placeOf(choice.axis, x);
    setText(this.#said, range ? `${place(range.from)} to ${place(range.to)}` : "");
  }

  #panel(charts: readonly Chart[]): HTMLElement {
    const moves = MOVES.map(([name, by]) => {
      const button = make("button", { type: "button" }, name);
      button.addEventListener("click", () => this.#move(by));
      return button;
    });
    const csv = make("button", { type: "button" }, "All columns as CSV");
    csv.addEventListener("click", () => this.#saveTable());
    const pictures = charts.map((chart) => {
      const button = make("button", { type: "button" }, `${chart.spec.name} as PNG`);
      button.addEventListener("click", () => this.#savePicture(chart));
      return button;
    });
    const hint = "Or drag over a chart; a double click, Escape or All shows the whole run again.";
    const fileHint = "A CSV saved here, or the JSON of /v1/series. It stays in this browser.";
    return make(
      "div",
      { class: "stack panel" },
      make(
        "div",
        { class: "stack", role: "group", "aria-label": "Zoom" },
        make("div", { class: "actions" }, ...moves),
        make("p", { class: "hint" }, hint),
      ),
      make(
        "div",
        { class: "actions" },
        field("Along the x axis", this.#axis),
        field("Scale of the loss", this.#scale),
        field("Smoothing", this.#smoothing),
      ),
      make(
        "div",
        { class: "field" },
        make("label", { for: "charts-file" }, "Compare with an earlier run"),
        make("div", { class: "actions" }, this.#file, this.#remove),
        make("p", { id: "charts-file-hint", class: "hint" }, fileHint),
        this.#fileSaid,
      ),
      make("div", { class: "actions", role: "group", "aria-label": "Save" }, csv, ...pictures),
    );
  }

  #isOwnRange(): boolean {
    const { shown } = this.#scene?.choice ?? { shown: null };
    return shown !== null && "from" in shown;
  }

  #choose(change: Partial<Choice>): void {
    if (this.#scene) this.#acts.choose({ ...this.#scene.choice, ...change });
  }

  #move(by: (typeof MOVES)[number][1]): void {
    if (!this.#scene) return;
    const { run, choice } = this.#scene;
    const whole = wholeOf(run, choice.axis);
    const shown: Range = rangeOf(choice.shown, run, choice.axis) ?? whole;
    this.#choose({ shown: moved(shown, whole, by) });
  }

  async #load(): Promise<void> {
    const [file] = this.#file.files ?? [];
    if (!file) return;
    const name = file.name.replace(/\.(csv|json)$/i, "");
    try {
      if (file.size > FILE_BYTES_MAX) throw new Error(`It has more than ${FILE_BYTES_MAX >> 20} MiB.`);
      const run = readRun(await file.text());
      this.#compare({ name: name.length > NAME_MAX ? `${name.slice(0, NAME_MAX)}…` : name, run });
      setText(this.#fileSaid, `${file.name} is the dotted line.`);
    } catch (error) {
      this.#compare(null);
      setText(this.#fileSaid, `${file.name} cannot be shown. ${error instanceof Error ? error.message : error}`);
    }
  }

  #compare(other: Scene["other"]): void {
    const hadFocus = document.activeElement === this.#remove;
    this.#remove.hidden = other === null;
    this.#file.value = "";
    setText(this.#fileSaid, "");
    if (hadFocus) this.#file.focus();
    this.#acts.compare(other);
  }

  #saveTable(): void {
    if (!this.#scene) return;
    const { run } = this.#scene;
    save(new Blob([toCsv(run)], { type: "text/csv" }), this.#nameOf("csv"));
  }

  #savePicture(chart: Chart): void {
    const about = `Run ${this.#acts.run()} · ${dayOf(new Date())}`;
    savePicture(chart.picture(about), this.#nameOf("png", chart.spec.name));
  }

  #nameOf(kind: string, what = ""): string {
    const parts = ["archipelago", this.#acts.run(), what.toLowerCase(), dayOf(new Date())];
    return `${parts.filter((part) => part !== "").join("-")}.${kind}`;
  }
}

function choices(id: string, options: readonly (readonly [string, string])[]): HTMLSelectElement {
  return make("select", { id }, ...options.map(([value, name]) => make("option", { value }, name)));
}

function field(name: string, select: HTMLSelectElement): HTMLElement {
  return make("div", { class: "field" }, make("label", { for: select.id }, name), select);
}
