// Goal: goodput and links are computed off the page's thread, follow the sliders, and are in the address.
import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, beforeEach, test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, load, root, serve, until } from "./support.mjs";

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

/** Waits until everything is computed. */
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
  // Seven lines, and the paper's thirty figures.
  assert.equal(await page.locator("#goodput-plot .plot-line").count(), 7);
  assert.equal(await page.locator("#goodput-plot .plot-mark").count(), 30);
});

test("ours is near the paper's in every cell", async () => {
  await open();
  await page.click("summary");
  const cells = await page.locator("#goodput-rows td").allTextContents();
  assert.equal(cells.length, 35);
  // The paper has no figures for 32 learners.
  assert.ok(
    cells.slice(30).every((cell) => /^\d+$/.test(cell)),
    String(cells.slice(30)),
  );
  for (const cell of cells.slice(0, 30)) {
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

/** Returns the table of links: method, ours and the paper's, NaN for missing ones. */
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
  assert.match(await page.textContent("#link-rows"), /no link is enough/);
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
  await until("it to be said", async () => /could not be computed/.test(await page.textContent("#notice")));
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

test("what is set is drawn before all others, and said as people say it", async () => {
  await open("#v=1&learners=32&mtbiYears=0.0833");
  const strong = () => page.locator("#goodput-plot .plot-name[data-strong]").allTextContents();
  assert.deepEqual(await strong(), ["M = 32"]);
  assert.equal(await page.textContent("output[for=knob-mtbiYears]"), "1 month");
  await page.focus("#knob-learners");
  await page.keyboard.press("Home");
  await worked();
  await until("the other line", async () => (await strong()).join() === "M = 1, elastic");
});

test("axes have titles, and no tick is cut off", async () => {
  await open("#v=1&paramsBillion=1000&stepS=0.1");
  for (const plot of ["#goodput-plot", "#link-plot"]) {
    assert.equal(await page.locator(`${plot} .plot-title`).count(), 2);
    const left = await page.locator(`${plot} text`).evaluateAll((all) => {
      const edge = all[0].ownerSVGElement.getBoundingClientRect().left;
      return Math.min(...all.map((text) => text.getBoundingClientRect().left - edge));
    });
    assert.ok(left >= 0, `${plot}: ${left}`);
  }
  assert.ok((await page.locator("#link-plot .plot-tick").allTextContents()).includes("100 k"));
});

test("a chart's values are read with the pointer and with keys", async () => {
  await open();
  const panel = page.locator("#goodput-reader .reader-panel");
  const { x, y, width, height } = await page.locator("#goodput-reader").boundingBox();
  await page.mouse.move(x + width / 2, y + height / 2);
  assert.match(await panel.textContent(), /chips.*M = 8\d/);
  await page.mouse.move(x - 50, y);
  assert.ok(await panel.isHidden());
  await page.focus("#goodput-reader");
  await page.keyboard.press("Home");
  const spoken = () => page.getAttribute("#goodput-reader", "aria-valuetext");
  assert.match(await spoken(), /^10 k chips: M = 1, not elastic \d/);
  await page.keyboard.press("ArrowRight");
  assert.match(await spoken(), /^20 k chips/);
  await page.keyboard.press("End");
  assert.match(await spoken(), /^5 M chips/);
  await page.keyboard.press("Escape");
  assert.ok(await panel.isHidden());
  await page.focus("#link-reader");
  assert.match(await page.getAttribute("#link-reader", "aria-valuetext"), /^compute busy 50\.0 %: .*Gbit\/s/);
});

/** Returns the content of the failure picture, as one text. */
const pictured = () => page.evaluate(() => document.getElementById("faults").toDataURL());

test("failures come at the pace that is set, rest when asked to, and stand still for those who want no motion", async () => {
  await open();
  await page.locator("#faults").scrollIntoViewIfNeeded();
  assert.match(
    await page.textContent("#faults-said"),
    /^Each square is 3,125 chips.*7 others go on\. Shown 10 times as fast/,
  );
  const first = await pictured();
  await until("another failure", async () => (await pictured()) !== first);
  await page.click("#faults-pause");
  const paused = await pictured();
  await page.waitForTimeout(2_000);
  assert.equal(await pictured(), paused);
  await page.emulateMedia({ reducedMotion: "reduce" });
  await page.reload();
  await worked();
  const still = await pictured();
  await page.waitForTimeout(2_000);
  assert.equal(await pictured(), still);
  assert.match(await page.textContent("#faults-said"), /Shown at one moment/);
});

test("the picture's pace is that of the machine, faster or slower by a round number", async () => {
  const { paceOf } = await load("scale/pace.ts");
  const check = (everyS, shownS, said) => {
    const pace = paceOf(everyS);
    assert.deepEqual([Number(pace.shownS.toFixed(3)), pace.said], [shownS, said]);
  };
  check(26, 2.6, "Shown 10 times as fast");
  check(2.2, 2.2, "Shown in real time");
  check(0.5, 0.5, "Shown in real time");
  check(3_153.6, 3.154, "Shown 1,000 times as fast");
  check(31_536, 3.154, "Shown 10.0 k times as fast");
});

test("on a phone the chart stays in view above what moves it", async () => {
  await page.setViewportSize({ width: 360, height: 740 });
  await open();
  for (const [knob, plot] of [
    ["#knob-learners", "#goodput-plot"],
    ["#knob-roundsInFlight", "#link-plot"],
  ]) {
    await page.locator(knob).scrollIntoViewIfNeeded();
    await page.locator(knob).evaluate((element) => element.scrollIntoView({ block: "end" }));
    const boxes = await Promise.all([plot, knob].map((one) => page.locator(one).boundingBox()));
    assert.ok(boxes[0].y >= -1 && boxes[0].y + boxes[0].height <= boxes[1].y, JSON.stringify(boxes));
    assert.ok(boxes[1].y + boxes[1].height <= 741, JSON.stringify(boxes));
  }
});

test("no word of a chart is cut, however narrow it is", async () => {
  for (const width of [320, 360, 640, 1_280]) {
    await page.setViewportSize({ width, height: 740 });
    await open();
    const cut = await page.evaluate(() =>
      [...document.querySelectorAll("svg.plot text")]
        .filter((text) => {
          const [word, plot] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
          return word.left < plot.left - 0.5 || word.right > plot.right + 0.5;
        })
        .map((text) => text.textContent),
    );
    assert.deepEqual(cut, [], `${width} px wide`);
  }
});
