/** How old the last news from the syncer are, in red once they are old. */
import { find, setAttribute, setText } from "../shared/dom.js";
import type { EventLink } from "../shared/events.js";
import { ago } from "../shared/format.js";

/** News come each second; those of before this many seconds are old. */
const OLD_S = 10;

/** Keeps the age of the news of `link` current; of a complete run none are awaited. */
export function showNewsOf(link: EventLink, isComplete: () => boolean): void {
  const shown = find("news", HTMLElement);
  setInterval(() => {
    const ageS = link.newsAgeS();
    if (document.hidden || ageS === null) return;
    setText(shown, `Last news from the syncer: ${ago(ageS)}`);
    setAttribute(shown, "data-tone", ageS >= OLD_S && !isComplete() ? "trouble" : null);
  }, 1_000);
}
