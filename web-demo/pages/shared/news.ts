/** The age of the last news from the syncer. Figures of before are dimmed and carry it once it is long. */
import { find, setAttribute, setText } from "./dom.js";
import { ago } from "./format.js";

/** News come each few seconds; those of before this many seconds are old. */
const OLD_S = 10;

/**
 * Keeps the age of the news current, `null` before the first. Once they are old, the page has the class `stale`, which dims
 * its figures, and each `.age` says from when they are. Of a complete run no news are awaited. `told` hears the age each
 * second while somebody looks.
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
