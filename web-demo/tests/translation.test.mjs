// Goal: a translation is one file that a teacher opens or shares. The whole lesson follows it; bad files are reported.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { ANSWERS } from "./answers.mjs";
import { axe, faults } from "./axe.mjs";
import { browser, canBreak, context, open, page, says, shownMs, site } from "./lesson-page.mjs";
import { root, until } from "./support.mjs";

const english = JSON.parse(await readFile(join(root, "pages/words/en.json"), "utf8"));

/** Returns `words` with each text in brackets, so that text without brackets is untranslated. */
function bracketed(words) {
  if (typeof words === "string") return `⟦${words}⟧`;
  if (Array.isArray(words)) return words.map(bracketed);
  return Object.fromEntries(Object.entries(words).map(([key, value]) => [key, bracketed(value)]));
}

const pseudo = { ...bracketed(english), language: "de" };

/** Adds this file next to the page on the host. */
function beside(name, body, status = 200) {
  return context.route(`**/${name}`, (route) => route.fulfill({ status, contentType: "application/json", body }));
}

/** Opens the page with a file of words next to it. */
async function openWith(name, rest = "") {
  await page.goto(`${site.url}teach.html?words=${name}${rest}`);
}

/** Chooses a local file. */
async function give(text, name = "given.json") {
  await page.click("#words summary");
  const file = { name, mimeType: "application/json", buffer: Buffer.from(text) };
  await page.setInputFiles("#words-file", file);
}

/** Returns text outside brackets, except figures with their units, and names that are the same in every language. */
function leftOf(text) {
  let rest = text;
  for (let before = ""; before !== rest; ) [before, rest] = [rest, rest.replace(/⟦[^⟦⟧]*⟧/g, " ")];
  const words = rest.match(/\p{L}[\p{L}-]*/gu) ?? [];
  return words.filter((word) => !/^(Archipelago|s|ms|min|h|d|B|kB|MB|k|M)$/.test(word));
}

/** Returns all text of the page, except the model's texts, keys, and displayed links. */
function allSaid() {
  return page.evaluate(() => {
    const copy = document.documentElement.cloneNode(true);
    for (const no of copy.querySelectorAll("script, style, noscript, kbd, link, .sample, .opens, #digest")) no.remove();
    const attributes = ["aria-label", "title", "placeholder", "alt", "aria-valuetext"];
    const labels = attributes.flatMap((name) =>
      [...copy.querySelectorAll(`[${name}]`)].map((one) => one.getAttribute(name)),
    );
    const described = [...copy.querySelectorAll("meta[name=description]")].map((one) => one.content);
    return [copy.textContent, ...labels, ...described, ...(globalThis.drawn ?? [])];
  });
}

async function allTranslated(what) {
  const left = (await allSaid()).flatMap((text) => leftOf(text));
  assert.deepEqual(left, [], what);
}

/** Records words drawn on canvases. */
function drawings() {
  globalThis.drawn = new Set();
  const { fillText } = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    globalThis.drawn.add(text);
    return fillText.call(this, text, ...rest);
  };
}

test("in another language nothing is left in English: chapters, pictures, challenge, sheet and large machines", async () => {
  await beside("pseudo.json", JSON.stringify(pseudo));
  await page.addInitScript(drawings);
  await openWith("pseudo.json", "#view=lanes");
  await until(
    "the run to begin",
    async () => /⟦/.test(await page.textContent("#sentence")) && (await page.isVisible("#islands li")),
  );
  assert.equal(await page.getAttribute("html", "lang"), "de");
  await page.click("#events summary");
  for (const id of ["kill-0", "slow-1", "far-2", "partition-3", "poison-4"]) await page.click(`[data-does=${id}]`);
  await says("#sentence", /⟦1|⟦Islands? 1/);
  await until("the lanes", () => page.evaluate(() => [...globalThis.drawn].some((text) => /Syncer/.test(text))));
  await allTranslated("lanes");
  await page.click("#view-map");
  await until("the sea", () => page.evaluate(() => [...globalThis.drawn].some((text) => /In lock-step:/.test(text))));
  for (const id of [...Object.keys(ANSWERS), "challenge"]) {
    await page.evaluate((id) => (location.hash = `#chapter=${id}`), id);
    await until(id, async () => (await page.getAttribute("[aria-current=step]", "data-chapter")) === id);
    await allTranslated(id);
  }
  await page.goto(`${site.url}teach.html?sheet`);
  await page.waitForSelector("#sheet-challenge h2");
  await allTranslated("sheet");
  await page.goto(`${site.url}scale.html`);
  await until("the figures", async () => (await page.textContent("#working")) === "");
  await allTranslated("scale");
});

test("what was seen in a chapter is told in the language of the page, with its numbers", async () => {
  await beside("pseudo.json", JSON.stringify(pseudo));
  await openWith("pseudo.json", "#chapter=lockstep&x=16");
  await page.click("#answers button >> nth=2");
  await until("it to be time to break", canBreak);
  await page.click("#break");
  await says("#found-text", /^⟦As you predicted.⟧ ⟦/);
  await allTranslated("lockstep");
  assert.match(await page.textContent("#time"), /^\d+,\d s$/);
  await page.click("#chapter-after");
  await page.click("#dots button >> nth=-1");
  await page.click("#chapter-before");
  await page.waitForSelector("#scores li");
  await allTranslated("ending");
});

test("a file that was opened is kept, what it lacks is named, and English is a press away", async () => {
  const some = { language: "fr-ca", nav: { lesson: "Casser" }, page: { title: "Titre" } };
  await open("#chapter=quorum");
  assert.ok(await page.isHidden("#words-notice"));
  await page.click("#words summary");
  assert.ok(await page.isHidden("#words-back"));
  await page.click("#words summary");
  await give(JSON.stringify(some));
  await says("[aria-current=page]", /^Casser$/);
  assert.equal(await page.getAttribute("html", "lang"), "fr-CA");
  assert.match(
    await page.textContent("#words-notice"),
    /^\d{3} texts of this translation are missing, and are in English: "page.description", "page.name", "page.skip" and \d{3} more\.$/,
  );
  await until("the chapter to be open still", async () => (await page.title()) === "Quorum · Titre");
  await open("#chapter=grace");
  assert.equal(await page.textContent("[aria-current=page]"), "Casser");
  await page.click("#words summary");
  await page.click("#words-back");
  await says("[aria-current=page]", /^Break a run$/);
  assert.equal(await page.getAttribute("html", "lang"), "en-GB");
  assert.ok(await page.isHidden("#words-notice"));
});

test("the words are saved as a file, and the file opens again", async () => {
  await open();
  await page.click("#words summary");
  const [download] = await Promise.all([page.waitForEvent("download"), page.click("#words-save")]);
  assert.equal(download.suggestedFilename(), "en.json");
  const saved = await readFile(await download.path(), "utf8");
  assert.deepEqual(JSON.parse(saved), english);
  await page.setInputFiles("#words-file", {
    name: "de.json",
    mimeType: "",
    buffer: Buffer.from(saved.replace("en-GB", "de")),
  });
  await until("the other language", async () => (await page.getAttribute("html", "lang").catch(() => "")) === "de");
  assert.ok(await page.isHidden("#words-notice"));
});

test("a file that is given and is no translation is told, and nothing of it is shown", async () => {
  await open();
  await give(
    JSON.stringify({ ...english, nav: { ...english.nav, lesson: '<img src="x" onerror="document.title = 1">' } }),
    "evil.json",
  );
  await says(
    "#words-said",
    /^evil\.json is not used: "nav\.lesson" contains markup .* The page keeps its previous words\.$/,
  );
  await page.setInputFiles("#words-file", { name: "large.json", mimeType: "", buffer: Buffer.alloc(5_000_000, 32) });
  await says("#words-said", /^large\.json is not used: it has more than 200 kB/);
  await page.setInputFiles("#words-file", {
    name: "photo.png",
    mimeType: "image/png",
    buffer: Buffer.from([137, 80, 78, 71]),
  });
  await says("#words-said", /^photo\.png is not used: it is not JSON/);
  await page.setInputFiles("#words-file", {
    name: "n.json",
    mimeType: "",
    buffer: Buffer.from('{"language":"de","a":{},"b":1,"c":1,"<d>":1}'),
  });
  await says("#words-said", /^n\.json is not used: this page has no text "a", "b", "c" and 1 more\./);
  assert.equal(await page.textContent("[aria-current=page]"), "Break a run");
  assert.deepEqual(await page.evaluate(() => Object.keys(localStorage)), []);
});

test("a browser that keeps nothing says so", async () => {
  await page.addInitScript(() => {
    Storage.prototype.setItem = () => {
      throw new DOMException("no", "QuotaExceededError");
    };
  });
  await open();
  await give(JSON.stringify({ language: "de" }));
  await says("#words-said", /^It cannot be stored here/);
});

test("a file that the address names is told too, and kept words that no longer fit", async () => {
  await page.addInitScript(axe);
  const notice = async (name, pattern) => {
    await openWith(name);
    await says("#words-notice", pattern);
    assert.equal(await page.textContent("[aria-current=page]"), "Break a run", name);
    assert.equal(await page.getAttribute("html", "lang"), "en-GB");
  };
  await notice("../other.json", /^\.\.\/other\.json is not used: the name of such a file/);
  await notice("https:%2F%2Fexample.org%2Fx.json", /^https:\/\/example\.org\/x\.json is not used: the name/);
  await beside("large.json", `"${"x".repeat(5_000_000)}"`);
  await notice("large.json", /^large\.json is not used: it has more than 200 kB/);
  await beside("page.json", "<!doctype html>");
  await notice("page.json", /^page\.json is not used: it is not JSON/);
  await until("the run to begin", async () => (await shownMs()) > 1_000);
  assert.deepEqual(await faults(page), []);
  await page.evaluate(() => localStorage.setItem("archipelago.words", '{"language":"de","old":"x"}'));
  await open();
  await says("#words-notice", /^The stored translation is not used: this page has no text "old"\./);
});

test("without JavaScript the page has its words", async () => {
  const still = await browser.newContext({ javaScriptEnabled: false });
  const other = await still.newPage();
  await other.goto(`${site.url}teach.html`);
  assert.match(await other.textContent("noscript"), /^This page needs JavaScript/);
  assert.equal(
    await other.textContent(".invitation >> nth=0"),
    english.opening.invitation.replace("{kill}", "Kill an island"),
  );
  assert.equal(await other.textContent("#invite"), "Kill island 3");
  assert.equal(await other.title(), english.page.title);
  assert.equal(await other.getAttribute("html", "lang"), "en-GB");
  await still.close();
});
