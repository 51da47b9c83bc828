/**
 * One at a time among the pages of a browser. Two learners with one identity would take each other's place, so that
 * the second waits for the first to end.
 *
 * Where browsers have Web Locks those do it. Pages that came over plain http have none; there a database is the lock:
 * whoever would raise its version waits until nobody has it open any more, and a page that ends, however it ends,
 * closes it.
 */

/** How long a database may take to open before somebody is taken to wait for it, in milliseconds. */
const OPEN_MS = 1_000;

/** Runs `run` while nobody else of this `name` does; calls `waits` once if it must wait for that. */
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

/** The lock, open; nothing where the browser has no storage: it keeps no identity then that two could share. */
async function take(name: string, tell: () => void): Promise<IDBDatabase | undefined> {
  for (;;) {
    try {
      const timer = setTimeout(tell, OPEN_MS);
      const look = await open(name, undefined, tell).finally(() => clearTimeout(timer));
      const version = look.database.version + 1;
      look.database.close();
      const taken = await open(name, version, tell);
      // Only who raised the version was alone; who came second found it raised.
      if (taken.raised) return taken.database;
      taken.database.close();
    } catch (error) {
      // Somebody else was faster by more than one.
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
    // Nobody is to close it because another asks: that would give the lock away.
    opening.onsuccess = () => resolve({ database: opening.result, raised });
  });
}
