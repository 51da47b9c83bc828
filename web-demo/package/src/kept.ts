/** A learner's state in IndexedDB: its identity and the optimiser's moments. */

/** The optimiser's state after `steps` steps; each vector is as long as the parameters. */
export interface OptimiserState {
  readonly steps: number;
  readonly vectors: readonly Float32Array[];
}

/** State for one syncer. */
interface Kept {
  /** 64 hex digits: the public key if `key` is set, else the secret. */
  readonly identity: string;
  /** The private key, if the browser can hold one; no script can read it. */
  readonly key?: CryptoKey;
  readonly moments?: OptimiserState & { readonly run: string };
}

/** Hex digits of an identity; earlier versions stored shorter secrets, which cannot sign. */
const IDENTITY_DIGITS = 64;

/** State for one syncer; in memory only where the browser refuses storage. */
export class Keeper {
  /** Reason why the browser stores nothing. */
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

  /** Loads the state for `syncer`, or creates a new identity. Never fails. */
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

  /** Whether the browser holds the secret and signs; if not, a script of this page could read the secret. */
  get browserSigns(): boolean {
    return this.#kept.key !== undefined;
  }

  /** Returns the Ed25519 signature of `text` by the key that the browser holds. */
  async sign(text: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
    const { key } = this.#kept;
    if (!key) throw new Error("the browser holds no key");
    return new Uint8Array(await crypto.subtle.sign("Ed25519", key, text));
  }

  /** Whether other pages of this browser find the same identity. */
  get shared(): boolean {
    return this.#db !== undefined;
  }

  /** 64 hex digits: the public key if the browser signs, else the secret. */
  get identity(): string {
    return this.#kept.identity;
  }

  /** The moments of `run`, if they belong to a model with `params` parameters. */
  moments(run: string, params: number): OptimiserState | undefined {
    const { moments } = this.#kept;
    // An earlier release stored them under other names.
    // With Muon, the second vector is shorter. The engine checks the rest.
    const fits = moments?.vectors?.[0]?.length === params;
    return moments?.run === run && fits ? moments : undefined;
  }

  /** Stores the moments of `run` in the background. */
  keep(run: string, moments: OptimiserState): void {
    this.#kept = { ...this.#kept, moments: { ...moments, run } };
    // A full disk costs the moments, not the training.
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

/** Creates a key: held by the browser where possible, else a secret with which the engine signs. */
async function freshKey(): Promise<Kept> {
  try {
    // Insecure pages, such as a classroom's over plain http, have no `subtle` at all.
    const pair = await crypto.subtle.generateKey("Ed25519", false, ["sign", "verify"]);
    if ("privateKey" in pair) {
      const half = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
      return { identity: hex(half), key: pair.privateKey };
    }
  } catch {
    // An older browser or an insecure page.
  }
  return { identity: hex(crypto.getRandomValues(new Uint8Array(IDENTITY_DIGITS / 2))) };
}

function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
