// Goal: a teacher's printed sheet has the chapters' texts, and each of its links opens the lesson at that question.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { axe, faults } from "./axe.mjs";
import { chromiumFlagsWithoutGpu, launch, load, root, serve, until } from "./support.mjs";

let browser, site, CHAPTERS;

before(async () => {
  [browser, site] = await Promise.all([launch(chromiumFlagsWithoutGpu), serve(join(root, "dist"))]);
  ({ CHAPTERS } = await load("teach/guide/chapters/index.ts"));
});
after(() => Promise.all([browser?.close(), site?.stop()]));

async function open(t, options = {}) {
  const page = await browser.newPage(options);
  t.after(() => page.close());
  await page.addInitScript(axe);
  await page.goto(`${site.url}teach.html?sheet`);
  return page;
}

test("it has what each chapter has, and marks the right answer alone", async (t) => {
  const page = await open(t);
  const rows = page.locator("#sheet-chapters > li");
  assert.equal(await rows.count(), CHAPTERS.length);
  for (const [at, { title, goal, minutes, question, answers, usual, moral }] of CHAPTERS.entries()) {
    const row = rows.nth(at);
    const said = await row.textContent();
    for (const part of [title, goal, `${minutes} min`, question, ...answers, moral])
      assert.ok(said.includes(part), part);
    assert.equal(await row.locator(".usual").textContent(), `${answers[usual]} ✓ right`);
  }
  assert.ok(await page.isHidden("#stage"), "and nothing runs beside it");
});

test("its links open the lesson at the question, and it leads back", async (t) => {
  const page = await open(t);
  const links = await page.locator(".opens a").evaluateAll((all) => all.map(({ href }) => href));
  assert.equal(links.length, CHAPTERS.length + 1);
  await page.goto(links[2]);
  await until("the question", async () => (await page.textContent("#question")) === CHAPTERS[2].question);
  await page.goto(`${site.url}teach.html?sheet`);
  await page.goto(links.at(-1));
  await until("the challenge", () => page.isVisible("#challenge-goal"));
  assert.equal(await page.textContent("#notice"), "");
  await page.goto(`${site.url}teach.html?sheet`);
  await page.click("#sheet-back");
  await until("the lesson", () => page.isVisible("#invite"));
});

test("on paper it is black on white, without what only a screen can do, three chapters a page", async (t) => {
  for (const colorScheme of ["light", "dark"]) {
    const page = await open(t, { colorScheme, viewport: { width: 794, height: 1_123 } });
    assert.deepEqual(await faults(page), []);
    await page.emulateMedia({ media: "print" });
    for (const hidden of ["header.site", "footer.site", "#sheet-print"]) assert.ok(await page.isHidden(hidden), hidden);
    const lightness = await page.evaluate(() => {
      const context = new OffscreenCanvas(1, 1).getContext("2d");
      context.fillStyle = getComputedStyle(document.body).color;
      context.fillRect(0, 0, 1, 1);
      return context.getImageData(0, 0, 1, 1).data[0];
    });
    assert.ok(lightness < 80, `ink of ${lightness} in the ${colorScheme} theme`);
    const pdf = await page.pdf({ preferCSSPageSize: true });
    const pages = pdf.toString("latin1").match(/\/Type\s*\/Page\b/g).length;
    assert.ok(pages <= 4, `${pages} pages`);
  }
});
