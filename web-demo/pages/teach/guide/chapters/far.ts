import { milliseconds } from "../../../shared/format.js";
import { fixed } from "../../../shared/language.js";
import { chapterWords, phrase } from "../../../words/phrase.js";
import type { Chapter } from "../chapter.js";
import { perSecond } from "../measure.js";

const FAR = 4;
/** Extra delay of one way: 490 ms. */
const FACTOR = 50;

export const far: Chapter = {
  id: "far",
  ...chapterWords("far"),
  minutes: 6,
  stage: { islands: 5 },
  speed: 1,
  usual: 1,
  break: { kind: "deeds", label: phrase("chapters.far.break"), deeds: [{ island: FAR, deed: "far", factor: FACTOR }] },
  beforeMs: 6_000,
  afterMs: 12_000,
  // Messages in flight at the break still arrive, and the first answers from far away take their time.
  skipMs: 4_000,
  find: ({ before, after }) => {
    const shareOf = ({ shares, merges }: typeof after) => (merges > 0 ? (shares[FAR] ?? 0) / merges : 0);
    const [was, is] = [shareOf(before), shareOf(after)];
    const [often, since] = [perSecond(before, before.merges), perSecond(after, after.merges)];
    const twin = perSecond(after, after.twinSteps) / Math.max(1e-9, perSecond(before, before.twinSteps));
    return {
      answer: since < 0.6 * often ? 2 : is < 0.6 * was ? 0 : 1,
      text: phrase("chapters.far.finding", {
        was: fixed(100 * was, 0),
        is: fixed(100 * is, 0),
        often: fixed(often, 1),
        since: fixed(since, 1),
        trip: milliseconds(2 * 10 * (FACTOR - 1)),
        twin: Math.round(100 * twin),
      }),
    };
  },
};
