/** Links from the pages that any host can have to those that only a syncer serves. */

/** Shows the links to the run where a syncer serves this page, which it does without an ending: a static host has no run. */
export function showRunLinks(): void {
  if (location.pathname.endsWith(".html")) return;
  for (const link of document.querySelectorAll<HTMLElement>(".of-run")) link.hidden = false;
}
