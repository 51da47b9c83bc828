import { fixed } from "../../../shared/language.js";
import { chapterWords, phrase } from "../../../words/phrase.js";
import { bin, type Chapter } from "../chapter.js";
import { answersPerMerge } from "../measure.js";

export const grace: Chapter = {
  id: "grace",
  ...chapterWords("grace"),
  minutes: 5,
  stage: { islands: 5, quorum: 1, grace: 0.8, spread: 0.3 },
  speed: 2,
  usual: 1,
  break: { kind: "setting", label: phrase("chapters.grace.break"), change: { grace: 0 } },
  beforeMs: 6_000,
  afterMs: 8_000,
  find: ({ before, after }) => {
    const [was, is] = [answersPerMerge(before), answersPerMerge(after)];
    return {
      answer: 2 - bin(is, 2, 4.25),
      text: phrase("chapters.grace.finding", { was: fixed(was, 1), is: fixed(is, 1), early: after.early }),
    };
  },
};
