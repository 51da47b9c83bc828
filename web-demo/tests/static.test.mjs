// Goal: a static folder has the lesson, its sheet and the page on data centres, no links elsewhere, and little weight.
import assert from "node:assert/strict";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { gzipSync } from "node:zlib";
import { build } from "vite";
import { axe, faults } from "./axe.mjs";
import { chromiumFlagsWithoutGpu, launch, root, serve, until } from "./support.mjs";

/** Limit of the lesson's compressed bytes without its engine. */
const WEIGHT_MAX = 250_000;
const SITE = "https://example.org/lesson/";

let folder, browser, site;

before(async () => {
  folder = await mkdtemp(join(tmpdir(), "archipelago-static-"));
  process.env.SITE = SITE;
  const configFile = join(root, "vite.config.ts");
  await build({ configFile, mode: "static", root: join(root, "pages"), logLevel: "error", build: { outDir: folder } });
  [browser, site] = await Promise.all([launch(chromiumFlagsWithoutGpu), serve(folder)]);
});
after(async () => {
  await Promise.all([browser?.close(), site?.stop()]);
  await rm(folder, { recursive: true, force: true });
});

async function open(t, path) {
  const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
  const trouble = [];
  const responses = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  page.on("console", (message) => message.type() === "error" && trouble.push(message.text()));
  page.on("response", (response) => {
    responses.push(response);
    if (!response.url().startsWith(site.url)) trouble.push(`asks ${response.url()}`);
  });
  t.after(async () => {
    await page.close();
    assert.deepEqual(trouble, []);
  });
  await page.addInitScript(axe);
  await page.goto(site.url + path);
  return { page, responses };
}

test("the lesson without its engine is light", async (t) => {
  const { page, responses } = await open(t, "teach.html");
  await until("the run", async () => /islands? trains?/.test(await page.textContent("#sentence")));
  const weights = new Map();
  for (const response of responses) {
    const url = response.url();
    if (!url.endsWith(".wasm")) weights.set(url, gzipSync(await response.body()).length);
  }
  const weight = [...weights.values()].reduce((sum, one) => sum + one, 0);
  assert.ok(
    [...weights.keys()].some((url) => /worker/.test(url)),
    "its Workers count",
  );
  assert.ok(weight <= WEIGHT_MAX, `${weight} bytes: ${JSON.stringify([...weights])}`);
  t.diagnostic(`${Math.round(weight / 1_000)} kB`);
});

for (const path of ["index.html", "teach.html", "teach.html?sheet", "scale.html"]) {
  test(`"${path}" leads to pages that are there, and to none of a syncer's`, async (t) => {
    const { page } = await open(t, path);
    await page.waitForTimeout(1_000);
    const links = await page.locator("a[href]").evaluateAll((all) => all.map(({ href }) => href));
    const pages = new Set(links.map((link) => link.replace(/#.*/, "")));
    assert.ok(pages.size >= 2, String(links));
    for (const one of pages) {
      assert.ok(one.startsWith(site.url), one);
      assert.equal((await fetch(one)).status, 200, one);
    }
    assert.equal(await page.locator(".of-run").count(), 0);
    assert.deepEqual(await faults(page), []);
  });
}

test("links to it have a title, words and a picture where they are shared", async () => {
  for (const name of ["index.html", "teach.html", "scale.html"]) {
    const html = await readFile(join(folder, name), "utf8");
    for (const tag of ["og:title", "og:description", "og:site_name", "og:url", "twitter:card"])
      assert.ok(html.includes(`"${tag}"`), `${tag} of ${name}`);
    assert.ok(html.includes(`content="${SITE}preview.gif"`), name);
  }
  assert.ok((await readFile(join(folder, "preview.gif"))).length > 10_000);
});
