import { duration, milliseconds } from "../../../shared/format.js";
import { fixed } from "../../../shared/language.js";
import { chapterWords, phrase } from "../../../words/phrase.js";
import { bin, type Chapter } from "../chapter.js";
import { perSecond, seconds } from "../measure.js";

export const quorum: Chapter = {
  id: "quorum",
  ...chapterWords("quorum"),
  minutes: 6,
  stage: { islands: 5, quorum: 5, grace: 0, spread: 0.1 },
  speed: 2,
  usual: 1,
  break: { kind: "deeds", label: phrase("chapters.quorum.break"), deeds: [{ island: 4, deed: "slow", factor: 20 }] },
  beforeMs: 5_000,
  afterMs: 16_000,
  find: ({ before, after }) => {
    const [was, is] = [perSecond(before, before.merges), perSecond(after, after.merges)];
    const values = {
      was: fixed(was, 2),
      is: fixed(is, 2),
      time: duration(seconds(after)),
      steps: after.steps.slice(0, 4).join(", "),
    };
    const took = after.merges > 0 ? milliseconds(after.collectMs / after.merges) : null;
    return {
      answer: is >= 0.8 * was ? 0 : bin(after.merges, 1) === 0 ? 2 : 1,
      text:
        took === null
          ? phrase("chapters.quorum.findingNone", values)
          : phrase("chapters.quorum.finding", { ...values, took }),
    };
  },
};
