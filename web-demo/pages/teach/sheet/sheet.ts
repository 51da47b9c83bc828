/** The teacher's sheet: the chapters on paper, generated from the chapters themselves. */

import { find, make, setText } from "../../shared/dom.js";
import { phrase } from "../../words/phrase.js";
import { CHALLENGE, faultsInWords, GOAL } from "../challenge/challenge.js";
import type { Chapter } from "../guide/chapter.js";
import { CHAPTERS } from "../guide/chapters/index.js";
import { linkOf } from "../run/address.js";

/** Minutes for the challenge: one run, and the discussion. */
const CHALLENGE_MINUTES = 10;

/** Shows the sheet in place of the lesson. */
export function showSheet(): void {
  document.documentElement.classList.add("sheet");
  document.title = phrase("sheet.pageTitle", { page: document.title });
  find("sheet", HTMLElement).hidden = false;
  const minutes = CHAPTERS.reduce((sum, chapter) => sum + chapter.minutes, CHALLENGE_MINUTES);
  setText(find("sheet-lead", HTMLElement), phrase("sheet.lead", { chapters: CHAPTERS.length, minutes }));
  find("sheet-chapters", HTMLElement).append(...CHAPTERS.map(chapterOf));
  find("sheet-challenge", HTMLElement).append(
    make(
      "h2",
      {},
      CHALLENGE.title,
      make("span", { class: "minutes" }, phrase("sheet.minutes", { minutes: CHALLENGE_MINUTES })),
    ),
    make("p", {}, GOAL),
    make("ul", {}, ...faultsInWords().map((fault) => make("li", {}, fault))),
    make("p", {}, phrase("sheet.scores")),
    opens(CHALLENGE.id),
  );
  find("sheet-back", HTMLAnchorElement).href = location.pathname;
  find("sheet-print", HTMLButtonElement).addEventListener("click", () => print());
}

function chapterOf({ id, title, goal, minutes, question, answers, usual, break: todo, moral }: Chapter): HTMLElement {
  const options = answers.map((answer, at) =>
    make(
      "li",
      at === usual ? { class: "usual" } : {},
      answer,
      ...(at === usual ? [" ", make("strong", {}, phrase("sheet.right"))] : []),
    ),
  );
  return make(
    "li",
    {},
    make("h2", {}, title, make("span", { class: "minutes" }, phrase("sheet.minutes", { minutes }))),
    make("p", {}, make("strong", {}, phrase("sheet.goal")), " ", goal),
    make("p", {}, make("strong", {}, phrase("sheet.question")), " ", question),
    make("ol", { class: "options" }, ...options),
    make("p", {}, make("strong", {}, phrase("sheet.break")), " ", phrase("sheet.breakQuoted", { label: todo.label })),
    make("p", {}, make("strong", {}, phrase("sheet.moral")), " ", moral),
    opens(id),
  );
}

/** Returns a link into the lesson, written out for paper. */
function opens(id: string): HTMLElement {
  const url = new URL(location.href);
  // Other parts of the address, such as the file of words, apply to the lesson as well.
  url.searchParams.delete("sheet");
  url.hash = linkOf(id);
  return make("p", { class: "opens" }, make("a", { href: url.href }, url.href));
}
