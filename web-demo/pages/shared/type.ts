/** How large type is on this page, for what is drawn. */

/** Size of the page's type over the usual 16 pixels. */
export function typeScale(): number {
  return Number.parseFloat(getComputedStyle(document.documentElement).fontSize) / 16;
}
