/** Goodput by number of chips, with the paper's points, and a reading for the current settings. */

import { fillRows, find, make, setAttribute, setText } from "../shared/dom.js";
import { duration, percent } from "../shared/format.js";
import { fixed } from "../shared/language.js";
import { type PlotLine, plot } from "../shared/plot.js";
import { phrase } from "../words/phrase.js";
import { lineOf, type Result } from "./explorer.js";
import { FaultsView } from "./faults.js";
import { CHIPS, ROWS } from "./paper.js";
import { SET_LINE } from "./questions.js";
import { Reader } from "./reader.js";
import { chips, type Settings } from "./settings.js";

/** Height of the chart, larger in wide windows. */
const HEIGHT_PX = { wide: 340, narrow: 250 } as const;
const YEAR_S = 365 * 86_400;
const TONES: readonly Pick<PlotLine, "tone" | "dash">[] = [
  { tone: "quiet", dash: "2 4" },
  { tone: "2", dash: "7 4" },
  { tone: "1" },
  { tone: "1" },
  { tone: "1" },
  { tone: "1" },
  { tone: "1" },
];

const whole = (share: number) => `${Math.round(share * 100)} %`;

/** Seconds between two failures: the chip's mean time between interruptions over the number of chips. */
export function everySOf({ mtbiYears, chips }: Pick<Settings, "mtbiYears" | "chips">): number {
  return (mtbiYears * YEAR_S) / chips;
}

export class GoodputView {
  readonly #host = find("goodput-chart", HTMLElement);
  readonly #svg = find("goodput-plot", SVGSVGElement);
  readonly #reader = new Reader("goodput-reader");
  readonly #faults = new FaultsView();
  #pictured = "";
  #last: readonly [Settings, readonly Result[]] | undefined;

  constructor() {
    new ResizeObserver(() => this.#last && this.show(...this.#last)).observe(this.#host);
  }

  show(settings: Settings, results: readonly Result[]): void {
    this.#last = [settings, results];
    const asPaper = settings.mtbiYears === 1;
    const lines = ROWS.map(
      (row, line): PlotLine => ({
        label: row.label,
        ...TONES[line]!,
        points: lineOf(results, "goodput", line),
        marks: asPaper ? row.goodput.map((theirs, column) => [CHIPS[column]!, theirs] as const) : [],
        strong: row.elastic && row.learners === settings.learners,
      }),
    );
    const width = this.#host.clientWidth;
    if (width > 0) {
      const ticks =
        width < 560 ? [10_000, 100_000, 1_000_000] : [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000];
      const plotted = plot(this.#svg, {
        width,
        height: width < 560 ? HEIGHT_PX.narrow : HEIGHT_PX.wide,
        // In narrow windows the line names are numbers only.
        right: width < 560 ? 92 : 136,
        lines: width < 560 ? lines.map((line) => ({ ...line, label: line.label.replace("M = ", "") })) : lines,
        at: settings.chips,
        x: { min: 10_000, max: 5_000_000, log: true, ticks, say: chips, title: phrase("scale.failures.xAxis") },
        y: {
          min: 0,
          max: 1,
          ticks: [0, 0.2, 0.4, 0.6, 0.8, 1],
          say: whole,
          title: phrase("scale.failures.yAxis"),
        },
      });
      this.#reader.show({
        lines,
        plotted,
        sayX: (at) => phrase("scale.failures.chips", { chips: chips(at) }),
        sayY: percent,
      });
    }
    setText(find("goodput-note", HTMLElement), phrase(asPaper ? "scale.failures.crosses" : "scale.failures.noCrosses"));
    this.#say(settings, results);
    this.#table(lines, asPaper);
  }

  #say(settings: Settings, results: readonly Result[]): void {
    const of = (line: number) =>
      results.find(({ question }) => question.of === "goodput" && question.line === line)?.view;
    const [set, one] = [of(SET_LINE), of(SET_LINE + 1)];
    if (!set || !one) return;
    const everyS = everySOf(settings);
    const every = everyS < 10 ? `${fixed(everyS, 1)} s` : duration(everyS);
    this.#show(settings, everyS);
    const alone = phrase("scale.failures.reading", { chips: chips(settings.chips), every, one: percent(one.goodput) });
    const cut = phrase("scale.failures.readingCut", {
      count: settings.learners,
      goodput: percent(set.goodput),
      uptime: percent(set.uptime),
    });
    const text = settings.learners === 1 ? alone : `${alone} ${cut}`;
    setText(find("reading", HTMLElement), text);
    setAttribute(this.#svg, "aria-label", phrase("scale.failures.read", { reading: text }));
  }

  /** Shows failures at the current rate, once for each setting. */
  #show(settings: Settings, everyS: number): void {
    const { chips, learners } = settings;
    const state = [chips, learners, everyS].join();
    if (state === this.#pictured) return;
    this.#pictured = state;
    this.#faults.show(settings, everyS);
  }

  /** Fills the table with our cells and the paper's. */
  #table(lines: readonly PlotLine[], asPaper: boolean): void {
    const blank = () =>
      make("tr", {}, make("th", { scope: "row" }), ...CHIPS.map(() => make("td", { class: "right" })));
    fillRows(find("goodput-rows", HTMLElement), lines, blank, (row, line) => {
      setText(row.cells[0]!, line.label);
      CHIPS.forEach((at, column) => {
        const ours = line.points.find(([x]) => x === at)?.[1] ?? null;
        const theirs = line.marks?.[column]?.[1];
        setText(
          row.cells[column + 1]!,
          ours === null
            ? "–"
            : `${Math.round(ours * 100)}${asPaper && theirs !== undefined ? ` (${Math.round(theirs * 100)})` : ""}`,
        );
      });
    });
  }
}
