/** Links to this run. An invite is in the fragment, which browsers do not send to servers. */

/** Returns the link to share, which lets its readers lend a machine. */
export function shareLink(): string {
  return new URL("./", location.href).href + invite();
}

/**
 * Returns the link to share, given the `links` that the syncer reports: this page's own, unless others could not
 * open it or the owner set another.
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

/** Remedy for a link that only this machine can open. */
export const LISTEN =
  "Only this machine can open this link. To let others in, start the syncer again with --listen 0.0.0.0:7700, " +
  "or name its address with --public-url.";

/** Whether a fragment names a part of this page, such as its content, and holds no settings. */
export function isPart(hash: string): boolean {
  return document.getElementById(hash.slice(1)) !== null;
}

let invited = "";

/** Returns `#invite=…` or an empty string; in-page links do not remove the invite. Never includes an owner's token. */
export function invite(): string {
  const { hash } = location;
  if (hash.startsWith("#invite=")) invited = hash.replace(/&token=[^&]*/g, "");
  return invited;
}

/** Adds the invite to links between pages. */
export function carryInvite(): void {
  for (const link of document.querySelectorAll<HTMLAnchorElement>("header.site a")) link.hash = invite();
}

/** Copies the text of `field`. Returns false if the browser forbids it, and selects the text for manual copying. */
export async function copyFrom(field: HTMLInputElement): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(field.value);
    return true;
  } catch {
    // Pages without HTTPS have no clipboard.
    field.select();
    return false;
  }
}
