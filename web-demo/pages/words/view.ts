/** Saves the words of the page as a file, opens a translation, and returns to English. */
import { find, say } from "../shared/dom.js";
import { bytes } from "../shared/format.js";
import { save } from "../shared/save.js";
import { check, WORDS_BYTES_MAX } from "./check.js";
import { FIELD, keep, type Refused } from "./kept.js";
import { listed, phrase, WORDS } from "./phrase.js";
import { ENGLISH_FILE } from "./texts.js";

/** Limit of named keys; the rest is counted. */
const NAMED_MAX = 3;

/** Reports missing words, or the reason why a file was rejected. */
export function tellWords(): void {
  const { refused, missing } = WORDS;
  const notice = refused ? refusal(refused) : missing.length > 0 ? partly(missing) : "";
  const place = find("words-notice", HTMLElement);
  place.textContent = notice;
  place.hidden = notice === "";
}

/** Lets the viewer save and open words. */
export function showWords(): void {
  const file = find("words-file", HTMLInputElement);
  const back = find("words-back", HTMLButtonElement);
  find("words-save", HTMLButtonElement).addEventListener("click", () =>
    save(new Blob([ENGLISH_FILE], { type: "application/json" }), "en.json"),
  );
  find("words-open", HTMLButtonElement).addEventListener("click", () => file.click());
  file.addEventListener("change", () => void open(file));
  back.hidden = !WORDS.isTranslated;
  back.addEventListener("click", () => {
    keep(null);
    anew();
  });
}

async function open(field: HTMLInputElement): Promise<void> {
  const [file] = field.files ?? [];
  if (!file) return;
  const said = find("words-said", HTMLElement);
  // Lets the same file be chosen again after a correction.
  field.value = "";
  const refuse = (why: Refused["why"], keys: readonly string[] = []) =>
    say(said, refusal({ file: file.name, why, keys }));
  if (file.size > WORDS_BYTES_MAX) return refuse("large");
  try {
    const text = await file.text();
    const checked = check(text);
    if (!checked.ok) refuse(checked.why, checked.keys);
    else if (keep(text)) anew();
    else say(said, phrase("words.stays"));
  } catch {
    refuse("unread");
  }
}

/** Reloads the page with the stored words, without the file named in its address. */
function anew(): void {
  const url = new URL(location.href);
  url.searchParams.delete(FIELD);
  // A change of the fragment alone would not reload the page.
  if (url.href === location.href) location.reload();
  else location.replace(url);
}

function partly(missing: readonly string[]): string {
  return phrase("words.partly", { count: missing.length, keys: named(missing) });
}

/** Describes in one sentence why a file was refused. */
function refusal({ file, why, keys }: Refused): string {
  const values = { keys: named(keys), max: bytes(WORDS_BYTES_MAX) };
  return phrase("words.refused", { file: file ?? phrase("words.kept"), why: phrase(`words.why.${why}`, values) });
}

function named(keys: readonly string[]): string {
  const quoted = keys.slice(0, NAMED_MAX).map((key) => `"${key.slice(0, 60)}"`);
  const more = keys.length - quoted.length;
  return more > 0 ? phrase("words.more", { keys: quoted.join(", "), count: more }) : listed(quoted);
}
