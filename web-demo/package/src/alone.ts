/**
 * A lock between the pages of a browser: one learner per identity runs, and the next waits for it to end. Two learners
 * with one identity would replace each other at the syncer.
 *
 * Browsers with Web Locks use those. Pages over plain http have no Web Locks; there a database is the lock: a request
 * to raise its version waits until no page has the database open, and a page closes it however the page ends.
 */

/** Time after which a slow opening counts as waiting for another page, in milliseconds. */
const OPEN_MS = 1_000;

/** Runs `run` while no other page holds the lock `name`; calls `waits` once if it must wait for that. */
export async function alone(name: string, waits: () => void, run: () => Promise<void>): Promise<void> {
  const locks = (self.navigator as { locks?: LockManager }).locks;
  if (!locks) return aloneByDatabase(name, waits, run);
  const ran = await locks.request(name, { ifAvailable: true }, async (lock) => {
    if (lock) await run();
    return lock !== null;
  });
  if (ran) return;
  waits();
  await locks.request(name, run);
}

async function aloneByDatabase(name: string, waits: () => void, run: () => Promise<void>): Promise<void> {
  let told = false;
  const tell = () => {
    if (!told) waits();
    told = true;
  };
  const lock = await take(`lock of ${name}`, tell);
  try {
    await run();
  } finally {
    lock?.close();
  }
}

/** Takes the lock. Returns undefined where the browser has no storage: pages then share no identity. */
async function take(name: string, tell: () => void): Promise<IDBDatabase | undefined> {
  for (;;) {
    try {
      const timer = setTimeout(tell, OPEN_MS);
      const look = await open(name, undefined, tell).finally(() => clearTimeout(timer));
      const version = look.database.version + 1;
      look.database.close();
      const taken = await open(name, version, tell);
      // Only the page that raised the version holds the lock; a later page finds it already raised.
      if (taken.raised) return taken.database;
      taken.database.close();
    } catch (error) {
      // Another page raised the version by more than one in the meantime.
      if ((error as DOMException | null)?.name !== "VersionError") return undefined;
    }
  }
}

function open(name: string, version: number | undefined, blocked: () => void) {
  return new Promise<{ database: IDBDatabase; raised: boolean }>((resolve, reject) => {
    const opening = indexedDB.open(name, version);
    let raised = false;
    opening.onblocked = blocked;
    opening.onupgradeneeded = () => (raised = true);
    opening.onerror = () => reject(opening.error);
    // No `onversionchange` handler: closing on another page's request would give the lock away.
    opening.onsuccess = () => resolve({ database: opening.result, raised });
  });
}
