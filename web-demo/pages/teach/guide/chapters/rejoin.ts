import { milliseconds, nats } from "../../../shared/format.js";
import { fixed } from "../../../shared/language.js";
import { chapterWords, phrase } from "../../../words/phrase.js";
import type { Chapter } from "../chapter.js";
import { perSecond } from "../measure.js";

const GONE = 1;

export const rejoin: Chapter = {
  id: "rejoin",
  ...chapterWords("rejoin"),
  minutes: 5,
  stage: { islands: 5 },
  actions: [{ atMs: 2_000, island: GONE, deed: "kill", factor: 1 }],
  speed: 1,
  usual: 1,
  break: { kind: "deeds", label: phrase("chapters.rejoin.break"), deeds: [{ island: GONE, deed: "restart" }] },
  beforeMs: 5_000,
  afterMs: 9_000,
  find: ({ before, after }) => {
    const others = (steps: readonly number[]) => steps.reduce((sum, one, at) => sum + (at === GONE ? 0 : one), 0);
    const [was, is] = [perSecond(before, others(before.steps)), perSecond(after, others(after.steps))];
    const [live, merged] = [after.liveMs[GONE], after.mergedMs[GONE]];
    const since = (ms: number) => milliseconds(ms - after.fromMs);
    const back =
      live == null
        ? phrase("chapters.rejoin.notBack")
        : merged == null
          ? phrase("chapters.rejoin.back", { live: since(live) })
          : phrase("chapters.rejoin.backAndMerged", { live: since(live), merged: since(merged) });
    const pulled = (after.lossUntil ?? 0) > 1.02 * (after.lossFrom ?? Infinity);
    return {
      answer: pulled ? 2 : is < 0.85 * was ? 0 : 1,
      text: phrase("chapters.rejoin.finding", {
        back,
        was: fixed(was, 1),
        is: fixed(is, 1),
        lossFrom: nats(after.lossFrom),
        lossUntil: nats(after.lossUntil),
      }),
    };
  },
};
