/** Held-out loss of both runs over virtual time, above the lowest possible loss. */

import { find, setAttribute, setText } from "../../shared/dom.js";
import { nats } from "../../shared/format.js";
import { fixed, plain } from "../../shared/language.js";
import { painter } from "../../shared/paint.js";
import { type PlotLine, type PlotSpec, plot, steps } from "../../shared/plot.js";
import { typeScale } from "../../shared/type.js";
import { phrase } from "../../words/phrase.js";
import { breachInWords, NOTHING, type Watched } from "../guide/watched.js";
import type { HeldOut, Live } from "../live.js";

const HEIGHT_PX = 200;
/** Curve of another run, for comparison. */
export interface Before {
  readonly label: string;
  readonly heldOut: readonly HeldOut[];
}

/** Factor of the initial loss at which the chart ends: the model is spoilt. */
const SPOILT = 1.25;
/** Difference in nats below which the runs count as equal. */
const AHEAD = 0.02;

/** Describes the figures; if the lock-step run has the lower loss, gives a possible reason. */
export function noteOf({
  heldOut,
  twinHeldOut,
  stalledSinceMs,
}: Pick<Live, "heldOut" | "twinHeldOut" | "stalledSinceMs">): string {
  const [ours, twin] = [heldOut.at(-1)?.loss, twinHeldOut.at(-1)?.loss];
  if (ours === undefined || twin === undefined || ours - twin < AHEAD) return phrase("figures.meaning");
  return phrase(stalledSinceMs === null ? "figures.twinAhead" : "figures.twinStopped");
}

/** Returns the chapter's measured stretches and its break, on the axis of the chart, which ends at `endMs`. */
export function marksOf({ breaches, stretches }: Watched, endMs: number): Pick<PlotSpec, "bands" | "moments"> {
  const bands = stretches.flatMap(({ of, fromMs, untilMs }) => {
    const [from, until] = [fromMs / 1_000, Math.min(untilMs ?? endMs, endMs) / 1_000];
    return until > from
      ? [{ from, until, label: phrase(of === "before" ? "figures.beforeBand" : "figures.afterBand") }]
      : [];
  });
  const [first] = breaches;
  const moments =
    first && first.island !== null && first.atMs <= endMs
      ? [{ at: first.atMs / 1_000, label: breachInWords(first) }]
      : [];
  return { bands, moments };
}

export class LossChart {
  before: Before | null = null;
  /** The chapter's marks. */
  watched: Watched = NOTHING;
  readonly #host = find("loss-chart", HTMLElement);
  readonly #svg = find("loss-plot", SVGSVGElement);
  readonly #note = find("loss-note", HTMLElement);
  readonly #ask: () => void;
  #live: Live | null = null;
  /** Width of the host, in the picture's own pixels. */
  #width = 0;
  #drawn: string | null = null;

  constructor() {
    this.#ask = painter(this.#host, () => this.#draw());
    // Observes the size: reading it while drawing would force another layout.
    new ResizeObserver((entries) => {
      this.#width = (entries.at(-1)?.contentRect.width ?? 0) / typeScale();
      this.#drawn = null;
      this.#ask();
    }).observe(this.#host);
  }

  show(live: Live): void {
    if (live !== this.#live) this.#drawn = null;
    this.#live = live;
    this.#ask();
  }

  #draw(): void {
    const live = this.#live;
    const [width, floor] = [this.#width, live?.frame?.run.floor];
    if (!live || floor === undefined || width === 0) return;
    const endMs = Math.max(10_000, live.heldOut.at(-1)?.atMs ?? 0, live.twinHeldOut.at(-1)?.atMs ?? 0);
    // A curve changes only with its measurements.
    const state = [
      live.heldOut.length,
      live.twinHeldOut.length,
      endMs,
      this.before?.label,
      live.stalledSinceMs === null,
      ...this.watched.breaches.map(({ atMs }) => atMs),
      ...this.watched.stretches.map(({ fromMs, untilMs }) => `${fromMs}-${untilMs}`),
    ].join();
    if (state === this.#drawn) return;
    this.#drawn = state;
    const points = (all: readonly HeldOut[]) =>
      all.filter((one) => one.atMs <= endMs).map(({ atMs, loss }) => [atMs / 1_000, loss] as const);
    const before = this.before ? points(this.before.heldOut) : [];
    const [ours, twin] = [points(live.heldOut), points(live.twinHeldOut)];
    const losses = [...ours, ...twin, ...before].map(([, loss]) => loss);
    // A run that a liar spoils leaves the chart at its upper edge, so that the other curves stay distinct.
    const most = SPOILT * (ours[0]?.[1] ?? Infinity);
    const highest = Math.min(most, Math.max(floor + 1, ...losses));
    const [min, max] = [Math.min(floor, ...losses) - 0.1, highest + 0.1];
    const lines: PlotLine[] = [
      { label: phrase("figures.decoupledLine"), tone: "1", points: ours },
      { label: phrase("figures.lockstepLine"), tone: "2", dash: "7 4", points: twin },
      {
        label: phrase("figures.floorLine"),
        tone: "quiet",
        dash: "2 4",
        points: [
          [0, floor],
          [endMs / 1_000, floor],
        ],
      },
    ];
    if (before.length > 0) lines.push({ label: this.before?.label ?? "", tone: "3", dash: "1 4", points: before });
    plot(this.#svg, {
      width,
      height: HEIGHT_PX,
      right: 92,
      lines,
      ...marksOf(this.watched, endMs),
      x: {
        min: 0,
        max: endMs / 1_000,
        ticks: steps(0, endMs / 1_000),
        say: (s) => `${plain(s)} s`,
        title: phrase("figures.timeAxis"),
      },
      y: { min, max, ticks: steps(min, max), say: (loss) => fixed(loss, 1), title: phrase("figures.lossAxis") },
    });
    setText(this.#note, noteOf(live));
    const last = (all: readonly (readonly [number, number])[]) => nats(all.at(-1)?.[1] ?? null);
    const read = phrase("figures.read", { ours: last(ours), twin: last(twin), floor: nats(floor) });
    setAttribute(this.#svg, "aria-label", read);
  }
}
