/** Links from pages that any host can serve to pages that only a syncer serves. */

/** Shows the run's links on a syncer, whose paths have no file ending. A static host has no run. */
export function showRunLinks(): void {
  if (location.pathname.endsWith(".html")) return;
  for (const link of document.querySelectorAll<HTMLElement>(".of-run")) link.hidden = false;
}
