/** The run's activity, in a sentence or two. */
import { duration, milliseconds } from "../shared/format.js";
import type { Island } from "../shared/lesson.js";
import type { Sentence } from "../shared/sentence.js";
import { type Key, listed, phrase, type Values } from "../words/phrase.js";
import { extraOf } from "./islands/words.js";
import type { Live } from "./live.js";

/** Returns "Island 3 is gone. 4 others train on; the run in lock-step has stood still for 6 s." */
export function sentenceOf(live: Live | null): Sentence {
  const frame = live?.frame;
  if (!live || !frame) return { tone: "waiting", text: phrase("stage.waiting") };
  const by = (test: (island: Island, at: number) => boolean) =>
    frame.islands.flatMap((island, at) => (test(island, at) ? [at] : []));
  const gone = by(({ state }) => state === "dead");
  const expected = by(({ state }) => state === "expected");
  const isHere = ({ state, stopped }: Island) => state !== "dead" && state !== "expected" && stopped === null;
  const sentAway = by(({ stopped, state }) => stopped !== null && state !== "dead");
  const lost = by((island) => isHere(island) && island.state === "offline" && !island.partitioned);
  const joining = by((island) => isHere(island) && island.state === "joining" && !island.partitioned);
  const alone = by((island) => isHere(island) && island.partitioned && island.state === "training");
  const idle = by((island) => isHere(island) && island.partitioned && island.state !== "training");
  const slow = by((island) => isHere(island) && island.slow > 1);
  const far = by((island) => isHere(island) && extraOf(island, live.spec.latencyMs) > 0);
  const poisoned = by((island) => isHere(island) && island.poisoned);
  const lying = by((island) => isHere(island) && island.lies);
  const training = by(({ state }) => state === "training").length;
  const arriving = joining.length + lost.length + expected.length === frame.islands.length;
  if (arriving && frame.run.tokensTrained === 0) return { tone: "waiting", text: phrase("sentence.fetching") };
  const { refused } = frame.run;
  const parts = [
    said("sentence.gone", gone),
    said("sentence.later", expected),
    said("sentence.lost", lost),
    said("sentence.sentAway", sentAway, { refused }),
    said("sentence.alone", alone),
    said("sentence.idle", idle),
    said("sentence.joining", joining),
    said("sentence.slow", slow),
    said("sentence.far", far, { time: milliseconds(tripMsOf(frame.islands, far)) }),
    said("sentence.poisoned", poisoned, { refused }),
    said("sentence.lying", lying),
  ].filter((part) => part !== null);
  if (training === 0) {
    const nobody = gone.length > 0 && joining.length + lost.length === 0 ? "sentence.nobodyStart" : "sentence.nobody";
    return { tone: "trouble", text: [...parts, phrase(nobody)].join(" ") };
  }
  if (parts.length === 0)
    return { tone: "going", text: phrase("sentence.all", { count: training, twin: ofTwin(live, false) }) };
  const away = gone.length + sentAway.length > 0;
  const twin = ofTwin(live, far.length > 0);
  // Islands that train alone have been named.
  const rest = training - alone.length;
  const others =
    !away && alone.length === 0
      ? phrase("sentence.training", { count: training, twin })
      : rest === 0
        ? phrase("sentence.noOther", { twin })
        : phrase("sentence.others", { count: rest, twin });
  return { tone: away || poisoned.length + lying.length > 0 ? "held" : "going", text: [...parts, others].join(" ") };
}

/** Returns the sentence about these islands; empty for none. */
function said(key: Key, islands: readonly number[], values: Values = {}): string | null {
  if (islands.length === 0) return null;
  return phrase(key, { ...values, count: islands.length, islands: numbers(islands) });
}

function ofTwin(live: Live, isFar: boolean): string {
  if (live.stalledSinceMs !== null) return phrase("sentence.twinStill", { time: duration(live.standstillMs / 1_000) });
  return phrase(isFar ? "sentence.twinFarthest" : "sentence.twinSlowest");
}

/** Returns the longest round trip of these islands, in milliseconds. */
function tripMsOf(islands: readonly Island[], which: readonly number[]): number {
  return Math.max(0, ...which.map((at) => 2 * (islands[at]?.latencyMs ?? 0)));
}

/** Lists the islands' displayed numbers: "3", "2 and 3". */
export function numbers(islands: readonly number[]): string {
  return listed(islands.map((island) => island + 1));
}
