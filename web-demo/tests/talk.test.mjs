// Goal: a page generates text with a run's model, stops at once, and supports every vocabulary.
import assert from "node:assert/strict";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, startSyncer, until } from "./support.mjs";

let syncer, spelling, browser, folder;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "archipelago-text-"));
  const text = join(folder, "text.txt");
  await writeFile(text, "the sea is wide and the islands are många, and each one trains alone. ".repeat(3_000));
  [syncer, spelling, browser] = await Promise.all([
    startSyncer("--invite", "open-sesame"),
    startSyncer("--vocab", "300", "--data", text),
    launch(chromiumFlagsWithoutGpu),
  ]);
});
after(async () => {
  await Promise.all([syncer?.stop(), spelling?.stop(), browser?.close()]);
  if (folder) await rm(folder, { recursive: true, force: true });
});

async function open(url) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  await page.goto(url);
  return { page, trouble };
}

function says(page, selector, pattern) {
  return until(`${selector} to say ${pattern}`, async () => pattern.test(await page.textContent(selector)));
}

test("the model goes on with what a visitor writes, and nothing is fetched before", async () => {
  const { page, trouble } = await open(`${syncer.url}#invite=open-sesame`);
  const asked = [];
  page.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await says(page, "#talk-state", /The first text fetches the model, 234 kB; nothing is fetched before\.$/);
  const traffic = () =>
    page.evaluate(() => JSON.parse(localStorage.getItem("archipelago.traffic") ?? '{"bytes":0}').bytes);
  assert.equal(await traffic(), 0);
  await page.fill("#talk-prompt", "<b>The</b> ü");
  await page.press("#talk-prompt", "Enter");
  await says(page, "#talk-state", /^\d+ letters, [\d.,]+( k)? a second, by the model as of (just now|.+ ago)\.$/);
  const text = await page.textContent("#talk-text");
  assert.ok(text.startsWith("<b>The</b> ü") && text.length > 100, text);
  assert.equal(await traffic(), 2 * 117_056, "what it took counts for the day");
  assert.equal(asked.filter((path) => path.includes("/fragments/")).length, (await syncer.status()).fragments.length);
  assert.equal(asked.filter((path) => /\/(tokens|text)$/.test(path)).length, 0, "bytes are spelt here");
  // The fetched parameters need no syncer.
  asked.length = 0;
  await page.fill("#talk-daring", "0");
  await page.click("#talk-go");
  // A short text may be finished between two checks, so waits for the text and not for the sign of writing.
  await until("another text", async () => (await page.textContent("#talk-text")) !== text);
  await says(page, "#talk-state", /^\d+ letters/);
  assert.deepEqual(
    asked.filter((path) => path.includes("/runs/")),
    [],
  );
  await page.click("#talk-anew");
  await says(page, "#talk-state", /^The model as of now is here: 234 kB fetched\.$/);
  assert.deepEqual(trouble, []);
  await page.close();
});

test("stop is at once, and the text stays", async () => {
  const { page } = await open(`${syncer.url}#invite=open-sesame`);
  const cut = await page.evaluate(async () => {
    const { Writer } = window.archipelago;
    // Counts the Worker's messages: a cancelled text is not generated further.
    let heard = 0;
    window.Worker = class extends Worker {
      set onmessage(hear) {
        super.onmessage = (event) => {
          heard += event.data.is === "wrote" ? 1 : 0;
          hear(event);
        };
      }
    };
    const writer = new Writer(location.href);
    await writer.refresh();
    const stop = new AbortController();
    let text = "";
    for await (const piece of writer.write("The ", { tokens: 100_000, signal: stop.signal })) {
      text += piece;
      if (text.length > 200) stop.abort();
    }
    // A short text may still arrive after the stop; nothing more arrives of the long one.
    for await (const piece of writer.write("The ", { tokens: 1 })) text += piece;
    const then = heard;
    await new Promise((resolve) => setTimeout(resolve, 500));
    return { letters: text.length, then, now: heard };
  });
  assert.ok(cut.letters > 200 && cut.letters < 1_000, `${cut.letters} letters`);
  assert.ok(cut.then > 0 && cut.now === cut.then, `${cut.now - cut.then} pieces came after the stop`);
  await page.close();
});

test("the same seed writes the same text, a second text ends the first, and bad input is said", async () => {
  const { page } = await open(`${syncer.url}#invite=open-sesame`);
  const found = await page.evaluate(async () => {
    const { Writer } = window.archipelago;
    const all = async (texts) => (await Array.fromAsync(texts)).join("");
    const code = (promise) =>
      promise.then(
        () => "none",
        (error) => error.code,
      );
    const writer = new Writer(location.href);
    const same = { tokens: 300, seed: 7, temperature: 0.9 };
    const first = await all(writer.write("An island", same));
    const second = await all(writer.write("An island", same));
    const long = all(writer.write("An island", { tokens: 100_000, seed: 7 }));
    await new Promise((resolve) => setTimeout(resolve, 100));
    const other = await all(writer.write("An island", { tokens: 10, seed: 8 }));
    const codes = [
      await code(all(writer.write("", same))),
      await code(all(writer.write("a", { tokens: 0 }))),
      await code(all(new Writer(location.href.replace("sesame", "wheat")).write("a"))),
      await code(all(new Writer("http://127.0.0.1:9/").write("a"))),
      await code(all(new Writer("ftp://somewhere").write("a"))),
    ];
    // Concurrent requests for parameters share one fetch, and end a text in progress.
    const under = all(writer.write("An island", { tokens: 100_000 }));
    await new Promise((resolve) => setTimeout(resolve, 100));
    const [one, two] = await Promise.all([writer.refresh(), writer.refresh()]);
    const again = { same: one === two, cut: (await under).length };
    const plain = await all(new Writer(location.host + location.hash).write("a", { tokens: 20 }));
    const after = all(writer.write("An island", { tokens: 100_000 }));
    setTimeout(() => writer.close(), 50);
    return { first, second, cut: (await long).length, again, plain, other, codes, closed: await code(after) };
  });
  assert.equal(found.first, found.second);
  assert.ok(found.first.length > 200);
  assert.ok(found.cut < 20_000, `the first of two texts went on: ${found.cut} letters`);
  assert.ok(found.other.length > 3);
  assert.deepEqual(found.codes, ["options", "options", "refused", "unreachable", "options"]);
  assert.ok(found.again.same && found.again.cut > 0 && found.again.cut < 20_000, JSON.stringify(found.again));
  assert.ok(found.plain.length > 3, "an address without a scheme will do");
  assert.equal(found.closed, "aborted");
  await page.close();
});

test("where tokens are no bytes the syncer spells, letters of several bytes included", async () => {
  const { page, trouble } = await open(spelling.url);
  await page.fill("#talk-prompt", "the islands are många");
  await page.click("#talk-go");
  await says(page, "#talk-state", /^\d+ letters/);
  const text = await page.textContent("#talk-text");
  assert.ok(text.startsWith("the islands are många") && text.length > 400, text);
  assert.deepEqual(trouble, []);
  await page.close();
});
