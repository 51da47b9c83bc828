/** Type size of this page, for drawings. */

/** Ratio of the page's type size to the usual 16 pixels. */
export function typeScale(): number {
  return Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
}
