/** How old the last news from the syncer are, in red once they are old. */
import { find, setAttribute, setText } from "./dom.js";
import { ago } from "./format.js";

/** News come each few seconds; those of before this many seconds are old. */
const OLD_S = 10;

/** Keeps the age of the news current, `null` before the first; of a complete run none are awaited. */
export function showNews(ageS: () => number | null, isComplete: () => boolean): void {
  const shown = find("news", HTMLElement);
  setInterval(() => {
    const exact = ageS();
    if (document.hidden || exact === null) return;
    const age = Math.floor(exact);
    setText(shown, `Last news from the syncer: ${ago(age)}`);
    setAttribute(shown, "data-tone", age >= OLD_S && !isComplete() ? "trouble" : null);
  }, 1_000);
}
