/** The teacher's sheet: what the chapters are about, on paper. It is made of the chapters themselves. */
import { find, make, setText } from "../../shared/dom.js";
import { CHALLENGE, faultsInWords, GOAL } from "../challenge/challenge.js";
import type { Chapter } from "../guide/chapter.js";
import { CHAPTERS } from "../guide/chapters/index.js";
import { linkOf } from "../run/address.js";

/** Minutes for the challenge: one run, and the talk about it. */
const CHALLENGE_MINUTES = 10;

/** Shows the sheet in place of the lesson. */
export function showSheet(): void {
  document.documentElement.classList.add("sheet");
  document.title = `Teacher's sheet · ${document.title}`;
  find("sheet", HTMLElement).hidden = false;
  const minutes = CHAPTERS.reduce((sum, chapter) => sum + chapter.minutes, CHALLENGE_MINUTES);
  setText(
    find("sheet-lead", HTMLElement),
    `${CHAPTERS.length} chapters and a challenge, about ${minutes} minutes in all; each chapter stands by itself. A language model trains on several islands in the page, something breaks, and the class predicts what comes of it.`,
  );
  find("sheet-chapters", HTMLElement).append(...CHAPTERS.map(chapterOf));
  find("sheet-challenge", HTMLElement).append(
    make("h2", {}, CHALLENGE.title, make("span", { class: "minutes" }, `${CHALLENGE_MINUTES} min`)),
    make("p", {}, GOAL),
    make("ul", {}, ...faultsInWords().map((fault) => make("li", {}, fault))),
    make(
      "p",
      {},
      "Scores travel in the link: the class passes one link on, and whoever opens it can check each score.",
    ),
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
      ...(at === usual ? [" ", make("strong", {}, "✓ right")] : []),
    ),
  );
  return make(
    "li",
    {},
    make("h2", {}, title, make("span", { class: "minutes" }, `${minutes} min`)),
    make("p", {}, make("strong", {}, "Goal: "), goal),
    make("p", {}, make("strong", {}, "Question: "), question),
    make("ol", { class: "options" }, ...options),
    make("p", {}, make("strong", {}, "Break: "), `“${todo.label}”.`),
    make("p", {}, make("strong", {}, "To take along: "), moral),
    opens(id),
  );
}

/** A link that opens the lesson there, written out for paper. */
function opens(id: string): HTMLElement {
  const url = new URL(location.pathname + linkOf(id), location.href).href;
  return make("p", { class: "opens" }, make("a", { href: url }, url));
}
