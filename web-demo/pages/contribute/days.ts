/** The card's summary of this machine's contributions to all runs, by day. */
import { fillRows, find, make, setText } from "../shared/dom.js";
import { count, duration, plural } from "../shared/format.js";
import { type Book, readBook } from "./given.js";

/** Returns "On 4 days this browser has given 1 h 12 min and 2.30 M tokens, to 2 runs.", or "" for one day and run. */
export function allOf({ all }: Book): string {
  if (all.tokens === 0 || (all.days < 2 && all.runs < 2)) return "";
  const time = all.trainMs > 0 ? `${duration(all.trainMs / 1_000)} and ` : "";
  return `On ${plural(all.days, "day")} this browser has given ${time}${count(all.tokens)} tokens, to ${plural(all.runs, "run")}.`;
}

/** Whether this browser ever contributed. */
export function hasGiven(): boolean {
  return readBook().all.tokens > 0;
}

/** Shows the sum of all runs, and the days, newest first. */
export function showDays(): void {
  const book = readBook();
  const all = find("thanks-all", HTMLElement);
  setText(all, allOf(book));
  all.hidden = all.textContent === "";
  find("thanks-days", HTMLElement).hidden = book.days.length === 0;
  fillRows(find("thanks-rows", HTMLElement), book.days.toReversed(), blank, (row, { day, tokens, trainMs }) => {
    const [name, time, merged] = row.children;
    if (!name || !time || !merged) return;
    setText(name, day);
    setText(time, duration(trainMs / 1_000));
    setText(merged, count(tokens));
  });
}

function blank(): HTMLElement {
  const right = () => make("td", { class: "right" });
  return make("tr", {}, make("th", { scope: "row" }), right(), right());
}
