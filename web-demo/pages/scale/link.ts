/** Required link rate of each method, by compute utilisation. */

import { fillRows, find, make, setAttribute, setText } from "../shared/dom.js";
import { count, milliseconds, percent } from "../shared/format.js";
import { fixed, plain, precise } from "../shared/language.js";
import { DATA_CENTRE_LATENCY_MS } from "../shared/lesson.js";
import { type PlotLine, plot } from "../shared/plot.js";
import { phrase } from "../words/phrase.js";
import { lineOf, type Result } from "./explorer.js";
import { LINK } from "./paper.js";
import { bitsOf, METHODS, UTILISATIONS } from "./questions.js";
import { Reader } from "./reader.js";
import { isAsPaper, type Settings } from "./settings.js";

/** Height of the chart, larger in wide windows. */
const HEIGHT_PX = { wide: 340, narrow: 250 } as const;
const TONES: readonly Pick<PlotLine, "tone" | "dash">[] = [
  { tone: "2", dash: "7 4" },
  { tone: "3", dash: "2 3" },
  { tone: "quiet" },
  { tone: "1" },
  { tone: "1", dash: "10 3" },
];

/** Formats as 0.42, 1.7, 104. */
function gbit(value: number): string {
  return value >= 99.5 ? fixed(value, 0) : precise(value, 2, 1);
}

export class LinkView {
  readonly #host = find("link-chart", HTMLElement);
  readonly #svg = find("link-plot", SVGSVGElement);
  readonly #reader = new Reader("link-reader");
  #last: readonly [Settings, readonly Result[]] | undefined;

  constructor() {
    new ResizeObserver(() => this.#last && this.show(...this.#last)).observe(this.#host);
    setText(find("link-latency", HTMLElement), milliseconds(DATA_CENTRE_LATENCY_MS));
  }

  show(settings: Settings, results: readonly Result[]): void {
    this.#last = [settings, results];
    // Without a sufficient rate there is no point.
    const lines = METHODS.map(
      ({ label }, line): PlotLine => ({
        label,
        ...TONES[line]!,
        points: lineOf(results, "link", line).filter(([, rate]) => Number.isFinite(rate) && rate > 0),
      }),
    );
    const rates = lines.flatMap(({ points }) => points.map(([, rate]) => rate));
    const width = this.#host.clientWidth;
    if (width > 0 && rates.length > 0) {
      const [low, high] = [
        Math.floor(Math.log10(Math.min(...rates))),
        Math.ceil(Math.log10(Math.max(...rates)) + 1e-9),
      ];
      const plotted = plot(this.#svg, {
        width,
        height: width < 560 ? HEIGHT_PX.narrow : HEIGHT_PX.wide,
        right: width < 560 ? 118 : 136,
        lines,
        at: settings.utilisation,
        x: {
          min: UTILISATIONS[0],
          max: 0.99,
          ticks: width < 560 ? [0.5, 0.7, 0.9] : [0.5, 0.6, 0.7, 0.8, 0.9],
          say: (value) => percent(value).replace(".0", ""),
          title: phrase("scale.links.xAxis"),
        },
        y: {
          min: 10 ** low,
          max: 10 ** Math.max(high, low + 1),
          log: true,
          ticks: Array.from({ length: Math.max(1, high - low) + 1 }, (_, at) => 10 ** (low + at)),
          say: (rate) => (rate < 1 ? precise(rate, 1) : count(rate)),
          title: phrase("scale.links.yAxis"),
        },
      });
      this.#reader.show({
        lines,
        plotted,
        sayX: (value) => phrase("scale.links.busy", { share: percent(value) }),
        sayY: (rate) => phrase("scale.links.rate", { rate: gbit(rate) }),
      });
    }
    this.#say(settings, results);
  }

  #say(settings: Settings, results: readonly Result[]): void {
    const rate = (line: number) =>
      results.find(
        ({ question }) => question.of === "link" && question.line === line && question.x === settings.utilisation,
      )?.value;
    const [parallel, int4] = [rate(0), rate(4)];
    if (parallel === undefined || int4 === undefined) return;
    const values = { share: percent(settings.utilisation), parallel: gbit(parallel) };
    const [decoupled, times] = [gbit(int4), Math.round(parallel / int4)];
    const text = Number.isFinite(int4)
      ? phrase("scale.links.reading", { ...values, decoupled, times })
      : phrase("scale.links.readingNone", { ...values, count: settings.roundsInFlight });
    setText(find("link-reading", HTMLElement), text);
    setAttribute(this.#svg, "aria-label", phrase("scale.links.read", { reading: text }));
    const asPaper = isAsPaper(settings);
    const blank = () =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }),
        make("td", { class: "right" }),
        make("td", { class: "right" }),
        make("td", { class: "right" }),
      );
    fillRows(find("link-rows", HTMLElement), METHODS, blank, (row, method) => {
      const [line, bits] = [METHODS.indexOf(method), bitsOf(method, settings)];
      const value = rate(line);
      const theirs = asPaper ? LINK.get(`${settings.dataCentres} ${method.method} ${bits}`) : undefined;
      [
        method.label,
        String(bits),
        value === undefined ? "–" : Number.isFinite(value) ? gbit(value) : phrase("scale.links.none"),
        theirs === undefined ? "" : plain(theirs),
      ].forEach((said, cell) => setText(row.cells[cell]!, said));
    });
  }
}
