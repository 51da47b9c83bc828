import { count, duration } from "../../../shared/format.js";
import { chapterWords, phrase } from "../../../words/phrase.js";
import { bin, type Chapter } from "../chapter.js";
import { perSecond, seconds } from "../measure.js";

export const lockstep: Chapter = {
  id: "lockstep",
  ...chapterWords("lockstep"),
  minutes: 6,
  stage: {},
  speed: 1,
  usual: 2,
  break: { kind: "deeds", label: phrase("chapters.lockstep.break"), deeds: [{ island: 2, deed: "kill" }] },
  beforeMs: 3_000,
  afterMs: 8_000,
  find: ({ before, after }) => {
    const ours = perSecond(after, after.tokens) / Math.max(1e-9, perSecond(before, before.tokens));
    const twin = perSecond(after, after.twinSteps) / Math.max(1e-9, perSecond(before, before.twinSteps));
    return {
      answer: 2 - bin(twin, 0.2, 0.7),
      text: phrase("chapters.lockstep.finding", {
        time: duration(seconds(after)),
        tokens: count(after.tokens),
        ours: Math.round(ours * 100),
        count: after.twinSteps,
        twin: Math.round(twin * 100),
      }),
    };
  },
  more: { label: phrase("chapters.lockstep.more"), href: "./scale.html" },
};
