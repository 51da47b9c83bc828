/**
 * Selects the words of the pages: those of a file next to the page that the address names, those opened here
 * before, or English. Stored words are validated on each visit, since the page may have changed.
 */
import { type Checked, check, type Why, WORDS_BYTES_MAX } from "./check.js";
import { ENGLISH, type Texts } from "./texts.js";

/** Reason for a missing file. */
export type Absent = "unread" | "absent" | "name";

/** A rejected file, and the reason. */
export interface Refused {
  /** Its name; `null` for the stored one. */
  readonly file: string | null;
  readonly why: Why | Absent;
  readonly keys: readonly string[];
}

/** The words in use. */
export interface Words {
  readonly language: string;
  readonly texts: Texts;
  readonly isTranslated: boolean;
  readonly missing: readonly string[];
  readonly refused: Refused | null;
}

/** Query field that names a file. */
export const FIELD = "words";
const KEPT = "archipelago.words";
/** A file next to the page: its name cannot lead elsewhere. */
const NAME = /^[\w-]+(?:\.[\w-]+)*\.json$/;

const IN_ENGLISH: Words = {
  language: ENGLISH.get("language") as string,
  texts: ENGLISH,
  isTranslated: false,
  missing: [],
  refused: null,
};

/** Stores a file for later visits, or removes it for `null`; returns false if the browser has no storage. */
export function keep(file: string | null): boolean {
  try {
    if (file === null) localStorage.removeItem(KEPT);
    else localStorage.setItem(KEPT, file);
    return true;
  } catch {
    return false;
  }
}

function kept(): string | null {
  try {
    return localStorage.getItem(KEPT);
  } catch {
    return null;
  }
}

/** Words after validation. */
function wordsOf(checked: Checked, file: string | null): Words {
  if (checked.ok) return { ...checked, isTranslated: true, refused: null };
  return { ...IN_ENGLISH, refused: { file, why: checked.why, keys: checked.keys } };
}

/** Returns the words for this visit. */
export async function choose(): Promise<Words> {
  if (typeof location === "undefined") return IN_ENGLISH;
  const name = new URLSearchParams(location.search).get(FIELD);
  const before = kept();
  const words = before === null ? IN_ENGLISH : wordsOf(check(before), null);
  if (name === null) return words;
  const file = await fetched(name);
  if (!file.ok) return { ...words, refused: { file: name, why: file.why, keys: [] } };
  const checked = check(file.text);
  if (!checked.ok) return { ...words, refused: { file: name, why: checked.why, keys: checked.keys } };
  keep(file.text);
  return wordsOf(checked, name);
}

type Fetched = { readonly ok: true; readonly text: string } | { readonly ok: false; readonly why: Why | Absent };

async function fetched(name: string): Promise<Fetched> {
  if (!NAME.test(name)) return { ok: false, why: "name" };
  try {
    const response = await fetch(new URL(name, location.href), { redirect: "error" });
    if (!response.ok) return { ok: false, why: "absent" };
    const text = await bounded(response);
    return text === null ? { ok: false, why: "large" } : { ok: true, text };
  } catch {
    return { ok: false, why: "unread" };
  }
}

/** Returns the text of a response, or `null` if it is too long; reads no more than the limit. */
async function bounded(response: Response): Promise<string | null> {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  let size = 0;
  const reader = response.body?.getReader();
  for (let part = await reader?.read(); part && !part.done; part = await reader?.read()) {
    parts.push(part.value);
    size += part.value.byteLength;
    if (size <= WORDS_BYTES_MAX) continue;
    await reader?.cancel();
    return null;
  }
  return new Blob(parts).text();
}
