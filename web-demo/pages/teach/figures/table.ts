/** Figures of the decoupled run next to those of the lock-step run. */

import { find, setText } from "../../shared/dom.js";
import { bytes, count, duration, nats, percent, UNKNOWN } from "../../shared/format.js";
import { phrase } from "../../words/phrase.js";
import type { Live } from "../live.js";

type Row = readonly [id: string, ours: string, twin: string];

/** Formats the figures of both runs. */
export function rowsOf(live: Live): readonly Row[] {
  const { frame, twin } = live;
  if (!frame || !twin) return [];
  const { run } = frame;
  return [
    ["held-out", nats(run.heldOut), nats(twin.heldOut)],
    ["goodput", percent(live.goodput), percent(live.twinGoodput)],
    ["trained", count(run.tokensTrained), count(twin.tokens)],
    ["participation", percent(run.participation), twin.tokens > 0 ? phrase("figures.all") : UNKNOWN],
    ["bytes", bytes(run.bytesUp + run.bytesDown), bytes(twin.bytes)],
    ["still", duration(live.idleMs / 1_000), duration((live.stalledMs + live.standstillMs) / 1_000)],
  ];
}

export class FiguresTable {
  readonly #floor = find("floor", HTMLElement);
  readonly #more = find("run-more", HTMLElement);

  show(live: Live): void {
    for (const [id, ours, twin] of rowsOf(live)) {
      setText(find(`${id}-ours`, HTMLElement), ours);
      setText(find(`${id}-twin`, HTMLElement), twin);
    }
    const run = live.frame?.run;
    if (!run) return;
    setText(this.#floor, nats(run.floor));
    setText(
      this.#more,
      phrase("figures.more", {
        rounds: count(run.rounds),
        late: count(run.late),
        refused: count(run.refused),
        grace: Math.round(run.graceMs),
      }),
    );
  }
}
