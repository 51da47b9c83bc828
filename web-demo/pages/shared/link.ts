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

/** Whether only this machine can open a link. */
export function isLocal(link: string): boolean {
  const { hostname } = new URL(link);
  return hostname === "localhost" || hostname === "[::1]" || /^127(\.\d+){3}$/.test(hostname);
}

/** What to do about a link that nobody else can open. */
export const LISTEN =
  "Only this machine can open this link. To let others in, start the syncer again with --listen 0.0.0.0:7700, " +
  "or name its address with --public-url.";

/** Whether a link's fragment names a part of this page, as the one to its content does, and nothing that is set. */
export function isPart(hash: string): boolean {
  return document.getElementById(hash.slice(1)) !== null;
}

let invited = "";

/** `#invite=…`, or nothing; a link within the page does not take it away. An owner's token is no part of it, ever. */
export function invite(): string {
  const { hash } = location;
  if (hash.startsWith("#invite=")) invited = hash.replace(/&token=[^&]*/g, "");
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
