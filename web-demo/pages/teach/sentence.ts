/** What goes on, in a sentence or two. */
import { duration, milliseconds, plural } from "../shared/format.js";
import type { Island } from "../shared/lesson.js";
import type { Sentence } from "../shared/sentence.js";
import { extraOf } from "./islands/words.js";
import type { Live } from "./live.js";

/** "Island 3 is gone. 4 others train on; the run in lock-step has stood still for 6 s." */
export function sentenceOf(live: Live | null): Sentence {
  const frame = live?.frame;
  if (!live || !frame) return { tone: "waiting", text: "Setting the stage…" };
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
  if (arriving && frame.run.tokensTrained === 0)
    return { tone: "waiting", text: "The islands are fetching the model." };
  const parts = [
    gone.length > 0 && `${named(gone)} ${are(gone)} gone.`,
    expected.length > 0 && `${named(expected)} ${expected.length === 1 ? "comes" : "come"} later.`,
    lost.length > 0 && `${named(lost)} ${are(lost)} out of reach.`,
    sentAway.length > 0 &&
      `${named(sentAway)} ${sentAway.length === 1 ? "was" : "were"} sent away: ${frame.run.refused} forged updates were refused.`,
    alone.length > 0 && `${named(alone)} ${are(alone)} cut off, and ${alone.length === 1 ? "trains" : "train"} alone.`,
    idle.length > 0 &&
      `${named(idle)} ${are(idle)} cut off, and ${idle.length === 1 ? "has" : "have"} nothing to train on.`,
    joining.length > 0 && `${named(joining)} ${are(joining)} fetching the model.`,
    slow.length > 0 && `${named(slow)} ${are(slow)} slowed down.`,
    far.length > 0 &&
      `${named(far)} ${are(far)} far away: a round trip takes ${milliseconds(tripMsOf(frame.islands, far))}.`,
    poisoned.length > 0 &&
      `${named(poisoned)} ${poisoned.length === 1 ? "sends" : "send"} poison: ${frame.run.refused} refused so far.`,
    lying.length > 0 &&
      `${named(lying)} ${lying.length === 1 ? "lies" : "lie"}: the opposite of what was learnt is sent.`,
  ].filter((part) => part !== false);
  if (training === 0)
    return {
      tone: "trouble",
      text: `${parts.join(" ")} Nobody trains${gone.length > 0 && joining.length + lost.length === 0 ? ": start one again" : ""}.`,
    };
  if (parts.length === 0)
    return {
      tone: "going",
      text: `${plural(training, "island trains", "islands train")} one model, each at its own pace; ${ofTwin(live, false)}.`,
    };
  const away = gone.length + sentAway.length > 0;
  // Those that train alone have been named.
  const rest = training - alone.length;
  const others =
    away || alone.length > 0
      ? `${rest === 0 ? "no other trains" : plural(rest, "other trains", "others train")}${rest > 0 ? " on" : ""}`
      : plural(training, "island trains", "islands train");
  return {
    tone: away || poisoned.length + lying.length > 0 ? "held" : "going",
    text: `${parts.join(" ")} ${others[0]?.toUpperCase()}${others.slice(1)}; ${ofTwin(live, far.length > 0)}.`,
  };
}

function ofTwin(live: Live, isFar: boolean): string {
  const pace = isFar ? "waits for the farthest at each step" : "goes at the pace of the slowest";
  return live.stalledSinceMs === null
    ? `the run in lock-step ${pace}`
    : `the run in lock-step has stood still for ${duration(live.standstillMs / 1_000)}`;
}

/** The longest round trip of these islands, in milliseconds. */
function tripMsOf(islands: readonly Island[], which: readonly number[]): number {
  return Math.max(...which.map((at) => 2 * (islands[at]?.latencyMs ?? 0)));
}

function are(islands: readonly number[]): string {
  return islands.length === 1 ? "is" : "are";
}

/** "Island 3", "Islands 2 and 3". */
export function named(islands: readonly number[]): string {
  const names = islands.map((island) => String(island + 1));
  const last = names.pop() ?? "";
  return names.length === 0 ? `Island ${last}` : `Islands ${names.join(", ")} and ${last}`;
}
