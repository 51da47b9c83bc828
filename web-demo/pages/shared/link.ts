/** Links to this run. The invite, if there is one, is in the fragment, which browsers send to nobody. */

/** The link to share: whoever opens it can lend a machine. */
export function shareLink(): string {
  return new URL("./", location.href).href + invite();
}

/**
 * The link to share when the syncer says under which `links` it is reached: this page's own, unless others could not
 * open that, or the owner gave another.
 */
export function linkFor(links: readonly string[]): string {
  const own = new URL("./", location.href).href;
  const [best] = links;
  return (best === undefined || links.includes(own) ? own : best) + invite();
}

/** Whether a link's fragment names a part of this page, as the one to its content does, and nothing that is set. */
export function isPart(hash: string): boolean {
  return document.getElementById(hash.slice(1)) !== null;
}

let invited = "";

/** `#invite=…`, or nothing; a link within the page does not take it away. */
export function invite(): string {
  if (location.hash.startsWith("#invite=")) invited = location.hash;
  return invited;
}

/** Lets the links between pages carry the invite along. */
export function carryInvite(): void {
  for (const link of document.querySelectorAll<HTMLAnchorElement>("header.site a")) link.hash = invite();
}

/** Copies the text of `field`; false if the browser lets nobody, and then it is selected for copying by hand. */
export async function copyFrom(field: HTMLInputElement): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(field.value);
    return true;
  } catch {
    // Pages that did not come over HTTPS have no clipboard.
    field.select();
    return false;
  }
}
