/** The age of the last news from the syncer. Old figures are dimmed and show their age. */
import { find, setAttribute, setText } from "./dom.js";
import { ago } from "./format.js";

/** Age in seconds from which news counts as old; it normally arrives every few seconds. */
const OLD_S = 10;

/**
 * Keeps the displayed age of the news current. `ageS` returns `null` before the first news. If the news is old, the
 * page gets the class `stale`, which dims its figures, and each `.age` shows their age. News of a complete run never
 * counts as old. `told` is called with the age each second while the page is visible.
 */
export function showNews(
  ageS: () => number | null,
  isComplete: () => boolean,
  told: (ageS: number, isOld: boolean) => void = () => {},
): void {
  const shown = find("news", HTMLElement);
  const show = () => {
    const exact = ageS();
    if (document.hidden || exact === null) return;
    const age = Math.floor(exact);
    const isOld = age >= OLD_S && !isComplete();
    setText(shown, `Last news from the syncer: ${ago(age)}`);
    setAttribute(shown, "data-tone", isOld ? "trouble" : null);
    document.body.classList.toggle("stale", isOld);
    for (const mark of document.querySelectorAll<HTMLElement>(".age")) {
      mark.hidden = !isOld;
      setText(mark, isOld ? `As of ${ago(age)}` : "");
    }
    told(age, isOld);
  };
  setInterval(show, 1_000);
}
