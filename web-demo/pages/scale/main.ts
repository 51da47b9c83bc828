/** Cost of failures and links at data-centre scale. A Worker computes; the page draws. */

import { fillPage } from "../words/page.js";
import { phrase } from "../words/phrase.js";
import { tellWords } from "../words/view.js";
import "./scale.css";
import { find, make, say, setText } from "../shared/dom.js";
import { copyFrom, isPart } from "../shared/link.js";
import { showRunLinks } from "../shared/nav.js";
import { Explorer } from "./explorer.js";
import { GoodputView } from "./goodput.js";
import { LinkView } from "./link.js";
import { FAILURES, type Knob, LINKS, read, type Settings, write } from "./settings.js";

fillPage();
tellWords();
showRunLinks();
const notice = find("notice", HTMLElement);
const goodput = new GoodputView();
const link = new LinkView();
const url = find("link-url", HTMLInputElement);
const shows: (() => void)[] = [];

let settings: Settings;

const explorer = new Explorer(
  (results, done) => {
    goodput.show(settings, results);
    link.show(settings, results);
    setText(find("working", HTMLElement), done ? "" : phrase("scale.working"));
  },
  (why) => {
    notify(phrase("scale.failed", { why }));
    setText(find("working", HTMLElement), "");
  },
);

function notify(text: string): void {
  notice.hidden = text === "";
  setText(notice, text);
}

/** Updates the link to the current settings, and forgets that an earlier one was copied. */
function showLink(): void {
  url.value = new URL(write(settings), location.href).href;
  setText(find("copied", HTMLElement), "");
}

/** Writes the settings into the address. */
function address(): void {
  window.history.replaceState(null, "", write(settings));
}

function change(key: keyof Settings, value: number): void {
  settings = { ...settings, [key]: value };
  notify("");
  address();
  showLink();
  ask();
}

/** Requests results for the current settings. */
function ask(): void {
  setText(find("working", HTMLElement), phrase("scale.working"));
  explorer.ask(settings);
}

function field({ key, label, values, say }: Knob): HTMLElement {
  const id = `knob-${key}`;
  const input = make("input", { id, type: "range", min: "0", max: String(values.length - 1), step: "1" });
  const output = make("output", { class: "number", for: id });
  const show = () => {
    const value = values[Number(input.value)] ?? values[0]!;
    setText(output, say(value));
    input.setAttribute("aria-valuetext", say(value));
  };
  input.addEventListener("input", () => {
    show();
    change(key, values[Number(input.value)]!);
  });
  shows.push(() => {
    input.value = String(values.indexOf(settings[key]));
    show();
  });
  return make(
    "div",
    { class: "field" },
    make("div", { class: "actions spread" }, make("label", { for: id }, label), output),
    input,
  );
}

function open(): void {
  const { settings: found, wrong } = read(location.hash);
  settings = found;
  const quoted = wrong.map((label) => `"${label}"`).join(", ");
  notify(wrong.length === 0 ? "" : phrase("scale.wrong", { settings: quoted }));
  for (const show of shows) show();
  showLink();
  ask();
}

find("failures", HTMLElement).append(...FAILURES.map(field));
find("links", HTMLElement).append(...LINKS.map(field));
find("copy", HTMLButtonElement).addEventListener("click", async () => {
  const isCopied = await copyFrom(url);
  say(find("copied", HTMLElement), phrase(isCopied ? "scale.share.copied" : "scale.share.selected"));
});
window.addEventListener("hashchange", () => (isPart(location.hash) ? address() : open()));
open();
