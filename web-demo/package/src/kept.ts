/** What a browser keeps of a learner: its identity and the optimiser's moments, in IndexedDB. */

/** The optimiser's state after `steps` steps; each vector is as long as the parameters. */
export interface OptimiserState {
  readonly steps: number;
  readonly vectors: readonly Float32Array[];
}

/** What is kept for one syncer. */
interface Kept {
  /** 64 hex digits: the public half of the learner's key if there is a `key`, else its secret. */
  readonly identity: string;
  /** What the browser signs with, where it can; no script can read it. */
  readonly key?: CryptoKey;
  readonly moments?: OptimiserState & { readonly run: string };
}

/** Hex digits of a key's half; former versions kept shorter secrets, which are no keys. */
const IDENTITY_DIGITS = 64;

/** Keeps things for one syncer; where storage is refused, only as long as it lives. */
export class Keeper {
  /** Why nothing is kept, if nothing is. */
  readonly refused: string | undefined;
  readonly #db: IDBDatabase | undefined;
  readonly #syncer: string;
  #kept: Kept;

  private constructor(syncer: string, kept: Kept, db: IDBDatabase | undefined, refused?: string) {
    this.#syncer = syncer;
    this.#kept = kept;
    this.#db = db;
    this.refused = refused;
  }

  /** What is kept for `syncer`; a fresh identity if that is nothing. Never fails. */
  static async open(syncer: string, remember: boolean): Promise<Keeper> {
    if (!remember) return new Keeper(syncer, await freshKey(), undefined);
    try {
      const db = await openDatabase();
      const found: Kept | undefined = await request(store(db, "readonly").get(syncer));
      const kept = found?.identity.length === IDENTITY_DIGITS ? found : undefined;
      const keeper = new Keeper(syncer, kept ?? (await freshKey()), db);
      if (!kept) await keeper.#write();
      return keeper;
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      return new Keeper(syncer, await freshKey(), undefined, reason);
    }
  }

  /** Whether the browser holds the secret and signs; where it cannot, a script of this page could read the secret. */
  get browserSigns(): boolean {
    return this.#kept.key !== undefined;
  }

  /** The Ed25519 signature of `text`, by the key that the browser holds. */
  async sign(text: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
    const { key } = this.#kept;
    if (!key) throw new Error("the browser holds no key");
    return new Uint8Array(await crypto.subtle.sign("Ed25519", key, text));
  }

  /** Whether other pages of this browser would find the same identity. */
  get shared(): boolean {
    return this.#db !== undefined;
  }

  /** Half of the learner's key as 64 hex digits: the public one if the browser signs, else the secret. */
  get identity(): string {
    return this.#kept.identity;
  }

  /** The moments of `run`, if they are of a model with `params` parameters. */
  moments(run: string, params: number): OptimiserState | undefined {
    const { moments } = this.#kept;
    // An earlier release kept them under other names.
    const fits = moments?.vectors?.every((vector) => vector.length === params) ?? false;
    return moments?.run === run && fits ? moments : undefined;
  }

  /** Keeps the moments of `run`, in the background. */
  keep(run: string, moments: OptimiserState): void {
    this.#kept = { ...this.#kept, moments: { ...moments, run } };
    // A disk that is full costs the moments, not the training.
    this.#write().catch(() => {});
  }

  async #write(): Promise<void> {
    if (this.#db) await request(store(this.#db, "readwrite").put(this.#kept, this.#syncer));
  }
}

const STORE = "learners";

function openDatabase(): Promise<IDBDatabase> {
  const opening = indexedDB.open("archipelago", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore(STORE);
  return request(opening);
}

function store(db: IDBDatabase, mode: IDBTransactionMode): IDBObjectStore {
  return db.transaction(STORE, mode).objectStore(STORE);
}

function request<T>(asked: IDBRequest<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error ?? new Error("the browser's storage failed"));
  });
}

/** A new key: one that the browser holds where it can, else a secret for the engine to sign with. */
async function freshKey(): Promise<Kept> {
  try {
    // Pages that are not secure, as those of a class over plain http, have no `subtle` at all.
    const pair = await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
    if ("privateKey" in pair) {
      const half = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
      return { identity: hex(half), key: pair.privateKey };
    }
  } catch {
    // An older browser, or no secure page.
  }
  return { identity: hex(crypto.getRandomValues(new Uint8Array(IDENTITY_DIGITS / 2))) };
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
