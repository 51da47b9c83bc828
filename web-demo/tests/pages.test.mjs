// Goal: every page is accessible, in both themes, wide and narrow, and sends no request to other servers.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { axe, faults } from "./axe.mjs";
import { chromiumFlagsWithoutGpu, launch, startSyncer, until } from "./support.mjs";

let syncer, browser;

before(async () => {
  [syncer, browser] = await Promise.all([startSyncer(), launch(chromiumFlagsWithoutGpu)]);
});
after(() => Promise.all([syncer?.stop(), browser?.close()]));

async function open(path, colorScheme, width) {
  const context = await browser.newContext({ colorScheme, viewport: { width, height: 800 } });
  await context.addInitScript(axe);
  const page = await context.newPage();
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  page.on("console", (message) => message.type() === "error" && trouble.push(message.text()));
  page.on("request", (request) => {
    if (!/^(data|blob):/.test(request.url()) && !request.url().startsWith(syncer.url))
      trouble.push(`asks ${request.url()}`);
  });
  await page.goto(new URL(path, syncer.url).href);
  return { context, page, trouble };
}

for (const path of ["./", "./dashboard", "./teach", "./scale"]) {
  for (const colorScheme of ["light", "dark"]) {
    for (const width of [360, 1280]) {
      test(`${path} in the ${colorScheme} theme, ${width} px wide`, async () => {
        const { context, page, trouble } = await open(path, colorScheme, width);
        if (path === "./") {
          await until("the run to be described", async () => /language model/.test(await page.textContent("#about")));
          await page.click("#start");
          await until("it to train", async () => /^Training/.test(await page.textContent("#sentence")));
          await until("a receipt", () => page.$("#receipts li"));
        } else {
          await until("the run to be shown", async () => /\d/.test(await page.textContent("main")));
          if (path === "./teach")
            await until("the picture", async () => /\S/.test(await page.textContent(".pin-name")));
          await page.waitForTimeout(1_500);
        }
        assert.deepEqual(await faults(page), []);
        const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(wider <= 0, `${wider} px stick out`);
        assert.deepEqual(trouble, []);
        await context.close();
      });
    }
  }
}

test("the ways to the other pages are seen whole on the smallest phone", async () => {
  for (const width of [320, 360]) {
    const { context, page } = await open("./dashboard", "light", width);
    await until("four ways", async () => (await page.locator("header nav a:visible").count()) === 4);
    const cut = await page.locator("header nav a").evaluateAll((links) => {
      const { right } = links[0].parentElement.getBoundingClientRect();
      const isCut = (box) => box.left < 0 || box.right > Math.min(right, innerWidth) + 0.5;
      return links.filter((link) => isCut(link.getBoundingClientRect())).map(({ textContent }) => textContent);
    });
    assert.deepEqual(cut, [], `${width} px wide`);
    await context.close();
  }
});

test("each page leads to the others, and a page on a static host to none that is not there", async () => {
  for (const path of ["./", "./dashboard", "./teach", "./scale"]) {
    const { context, page } = await open(path, "light", 1280);
    await until("four ways", async () => (await page.locator("header nav a:visible").count()) === 4);
    await context.close();
  }
  // Named as on a static host.
  const { context, page } = await open("./teach.html", "light", 1280);
  assert.equal(await page.locator("header nav a:visible").count(), 2);
  await context.close();
});

test("the whole of a run can be done with the keyboard", async () => {
  const { context, page } = await open("./", "light", 1280);
  const reach = async (id) => {
    for (let i = 0; i < 60; i++) {
      if ((await page.evaluate(() => document.activeElement?.id)) === id) return;
      await page.keyboard.press("Tab");
    }
    assert.fail(`Tab never reaches #${id}`);
  };
  await reach("start");
  await page.keyboard.press("Enter");
  await until("it to train", async () => /^Training/.test(await page.textContent("#sentence")));
  await reach("stop");
  await page.keyboard.press("Enter");
  await until("it to stop", async () => /^Stopped/.test(await page.textContent("#sentence")));
  await context.close();
});

test("pages are kept by browsers as they should be", async () => {
  const page = await fetch(syncer.url);
  assert.equal(page.headers.get("cache-control"), "no-cache");
  const again = await fetch(syncer.url, { headers: { "if-none-match": page.headers.get("etag") } });
  assert.equal(again.status, 304);
  const [, asset] = /"\.\/(assets\/[^"]+\.js)"/.exec(await page.text());
  const code = await fetch(new URL(asset, syncer.url));
  assert.match(code.headers.get("cache-control"), /immutable/);
  assert.equal(code.headers.get("content-encoding"), "gzip");
});
