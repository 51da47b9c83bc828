// Goal: goodput and links are worked out beside the page, follow the sliders, and stand in the address.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, root, serve, until } from "./support.mjs";

let browser, site, page;

before(async () => {
  [browser, site] = await Promise.all([launch(chromiumFlagsWithoutGpu), serve(join(root, "dist"))]);
});
after(() => Promise.all([browser?.close(), site?.stop()]));
beforeEach(async (test) => {
  page = await browser.newPage({ viewport: { width: 1280, height: 1_800 } });
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  test.after(async () => {
    await page.close();
    assert.deepEqual(trouble, []);
  });
});

async function open(hash = "") {
  await page.goto(`${site.url}scale.html${hash}`);
  await worked();
}

/** Until everything is worked out. */
function worked() {
  return until(
    "the figures",
    async () => (await page.textContent("#working")) === "" && /breaks every/.test(await page.textContent("#reading")),
  );
}

async function goodputs() {
  const text = await page.textContent("#reading");
  return [...text.matchAll(/([\d.]+) %/g)].map((match) => Number(match[1]));
}

test("it says what breaks how often, and what is left of the machines' time", async () => {
  await open();
  assert.match(await page.textContent("#reading"), /^At 1\.2 M chips something breaks every 26 s\. One elastic run/);
  const [one, eight] = await goodputs();
  assert.ok(one < eight && eight < 100, `${one} ${eight}`);
  // Six lines, and the paper's thirty figures.
  assert.equal(await page.locator("#goodput-plot .plot-line").count(), 6);
  assert.equal(await page.locator("#goodput-plot .plot-mark").count(), 30);
});

test("ours is near the paper's in every cell", async () => {
  await open();
  await page.click("summary");
  const cells = await page.locator("#goodput-rows td").allTextContents();
  assert.equal(cells.length, 30);
  for (const cell of cells) {
    const [, ours, paper] = /^(\d+) \((\d+)\)$/.exec(cell) ?? assert.fail(cell);
    assert.ok(Math.abs(ours - paper) <= 3, cell);
  }
});

test("sliders change figures and address, and a link brings them back", async () => {
  await open();
  const [, before] = await goodputs();
  await page.focus("#knob-chips");
  await page.keyboard.press("End");
  await until("five million chips", async () =>
    /^At 5 M chips something breaks every 6\.3 s/.test(await page.textContent("#reading")),
  );
  await worked();
  assert.ok((await goodputs())[1] < before);
  await page.focus("#knob-mtbiYears");
  await page.keyboard.press("ArrowRight");
  await until("fewer interruptions", async () => /every 13 s/.test(await page.textContent("#reading")));
  await worked();
  assert.equal(await page.locator("#goodput-plot .plot-mark").count(), 0, "the paper has nothing for two years");
  const [url, reading] = [page.url(), await page.textContent("#reading")];
  assert.equal(await page.inputValue("#link-url"), url);
  await page.goto("about:blank");
  await page.goto(url);
  await until("the same", async () => (await page.textContent("#reading")) === reading);
});

test("links: decoupled needs far less, and less with fewer bits", async () => {
  await open();
  const rates = async () => (await page.locator("#link-rows td:nth-child(3)").allTextContents()).map(Number);
  const [parallel, , , decoupled, int4] = await rates();
  assert.ok(parallel > 50 * decoupled && decoupled > 3.5 * int4, `${parallel} ${decoupled} ${int4}`);
  await page.focus("#knob-dataCentres");
  await page.keyboard.press("End");
  await until("more for more data centres", async () => (await rates())[0] > 1.3 * parallel);
});

/** The table of links: method, ours and the paper's, NaN where there is none. */
async function links() {
  const rows = await page
    .locator("#link-rows tr")
    .evaluateAll((all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
  return rows.map(([method, , ours, paper]) => ({
    method,
    ours: Number(ours),
    paper: paper === "" ? NaN : Number(paper),
  }));
}

test("links are near the paper's, and the paper's stand only beside its own settings", async () => {
  const published = async () => (await links()).filter(({ paper }) => paper > 0);
  for (const [dataCentres, count] of [
    [2, 3],
    [8, 2],
  ]) {
    await open(`#v=1&dataCentres=${dataCentres}`);
    const found = await published();
    assert.equal(found.length, count);
    for (const { method, ours, paper } of found)
      assert.ok(Math.abs(ours / paper - 1) <= 0.1, `${method}, ${dataCentres}: ${ours} beside ${paper}`);
  }
  for (const other of [
    "paramsBillion=10",
    "stepS=2",
    "utilisation=0.8",
    "syncEvery=48",
    "fragments=12",
    "roundsInFlight=3",
  ]) {
    await open(`#v=1&${other}`);
    assert.deepEqual(await published(), [], other);
  }
});

test("where latency alone takes too long, no link is promised", async () => {
  await open("#v=1&dataCentres=16&stepS=0.1&roundsInFlight=1");
  assert.match(
    await page.textContent("#link-reading"),
    /For Decoupled DiLoCo no link is fast enough: latency alone takes longer than 1 step\./,
  );
  assert.match(await page.textContent("#link-rows"), /no link will do/);
});

test("figures that could not be worked out are said, and the next ones come", async () => {
  await page.addInitScript(() => {
    const Real = Worker;
    window.Worker = class extends Real {
      constructor(...all) {
        super(...all);
        window.theWorker = this;
      }
    };
  });
  await open();
  await page.evaluate(() =>
    window.theWorker.postMessage({
      job: -1,
      questions: [
        { of: "link", line: 0, x: 0, spec: {} },
        { of: "link", line: 0, x: 1, spec: {} },
      ],
    }),
  );
  await until("it to be said", async () => /could not be worked out/.test(await page.textContent("#notice")));
  await page.focus("#knob-chips");
  await page.keyboard.press("End");
  await until("the next figures", async () => /^At 5 M chips/.test(await page.textContent("#reading")));
  await worked();
  assert.ok(await page.isHidden("#notice"));
});

test("the link to the content leads there, and what is set stays", async () => {
  await open("#v=1&chips=5000000");
  await page.focus(".skip");
  await page.keyboard.press("Enter");
  await until("the address", () => page.url().endsWith("#v=1&chips=5000000"));
  await worked();
  assert.match(await page.textContent("#reading"), /^At 5 M chips/);
});

test("what a link cannot mean is said, and the rest counts", async () => {
  await open("#v=1&chips=3&learners=16");
  assert.match(await page.textContent("#notice"), /Chips/);
  assert.match(await page.textContent("#reading"), /^At 1\.2 M chips.*16 learners/);
});
