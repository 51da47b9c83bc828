// Goal: a server's list of runs, the challenge and the talk with the model are complete in every window and both
// themes. They can be used by keyboard alone, zoomed, and without motion.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { axe, faults } from "./axe.mjs";
import { chromiumFlagsWithoutGpu, launch, root, serve, startHouse, startSyncer, until } from "./support.mjs";

const SIZES = [
  [1920, 1080],
  [1366, 768],
  [1280, 800],
  [360, 740],
  // 1280 × 800 at 200 %.
  [640, 400],
];
/** Sizes with different layouts; other properties are the same at all sizes. */
const CHECKED = [1280, 360];
const WIDE = { width: 1280, height: 800 };
const PHONE = { width: 360, height: 740 };
/** The longest name that a run can have. */
const LONG = "the-collected-letters-of-an-aunt";
const BOARD =
  "&b=1.4008!0.9126!k:1,g:0.8,h:24,c:int4!r2@12000~s4x1@22000~h5@32000~r1@42000!A name of twenty-four l." +
  "&b=1.9!0.9!k:2!!Ben";

let house, syncer, site, browser, token;

before(async () => {
  [house, syncer, site, browser] = await Promise.all([
    startHouse(),
    startSyncer(),
    serve(join(root, "dist")),
    launch(chromiumFlagsWithoutGpu),
  ]);
  token = (await readFile(join(house.folder, "admin.token"), "utf8")).trim();
  for (const name of [LONG, "tales"]) {
    const settings = 'preset = "tiny"\ncorpus-bytes = "256KiB"\ninvite = "auto"\n';
    const answer = await order("v1/runs", { name, settings });
    assert.ok(answer.ok, await answer.text());
  }
  assert.ok((await order("v1/runs/tales/archive")).ok);
});
after(() => Promise.all([house?.stop(), syncer?.stop(), site?.stop(), browser?.close()]));

/** Sends an owner's order to the server of several runs. */
function order(path, body = null) {
  const headers = { authorization: `Bearer ${token}`, ...(body ? { "content-type": "application/json" } : {}) };
  return fetch(new URL(path, house.url), { method: "POST", headers, body: body && JSON.stringify(body) });
}

const says = (page, selector, pattern) =>
  until(`${selector} to say ${pattern}`, async () => pattern.test(await page.textContent(selector)));

async function talk(page) {
  await page.locator("#talk").scrollIntoViewIfNeeded();
  await page.fill("#talk-prompt", "The sea");
  await page.press("#talk-prompt", "Enter");
  await says(page, "#talk-state", /^\d+ letters/);
}

const RUN = `#runs > [data-name=${LONG}]`;
const IN_RUN = ["h2", ".state"].map((part) => `${RUN} ${part}`);

/** Each place: how to reach it, which parts must be in view together, and which parts keys must reach. */
const PLACES = {
  "the runs of a server": {
    url: () => house.url,
    reach: (page) => until("both runs", async () => (await page.locator("#runs > li").count()) === 2),
    sight: ["#sentence", ...IN_RUN],
    keys: [`${RUN} h2 a`, `${RUN} .primary`, "#owner-title"],
  },
  "the runs of a server, for their owner": {
    url: () => `${house.url}#token=${token}`,
    reach: (page) =>
      until("buttons", async () => (await page.locator("#runs [data-order=archive]:visible").count()) === 1),
    sight: ["#sentence", ...IN_RUN],
    keys: [`${RUN} [data-order=delete]`, "#owner-token", "#new-name", "#create [type=submit]"],
  },
  "the challenge": {
    url: () => `${site.url}teach.html#v=1&chapter=challenge${BOARD}`,
    async reach(page) {
      await until("the board", async () => (await page.locator("#board li").count()) === 2);
      await says(page, "#sentence", /train/);
    },
    sight: ["#picture", "#challenge-title"],
    keys: ["#challenge-again", ".board-check", ".board-watch", "#board-copy", "#knob-quorum"],
  },
  "the talk on the visitor's page": {
    url: () => syncer.url,
    reach: talk,
    sight: ["#talk-go", "#talk-text", "#talk-state"],
    keys: ["#talk-prompt", "#talk-daring", "#talk-go", "#talk-anew", "#talk-text"],
  },
  "the talk on the dashboard": {
    url: () => new URL("dashboard", syncer.url).href,
    reach: talk,
    sight: ["#talk-go", "#talk-text", "#talk-state"],
    keys: ["#talk-prompt", "#talk-daring", "#talk-go", "#talk-anew", "#talk-text"],
  },
};

async function open({ url, reach }, options) {
  const context = await browser.newContext(options);
  await context.addInitScript(axe);
  const page = await context.newPage();
  const trouble = [];
  page.on("pageerror", (error) => trouble.push(String(error)));
  await page.goto(url());
  await atRest(page);
  await reach(page);
  return { context, page, trouble };
}

/** Waits until the page has its height: charts load a moment later, and would move the focused element. */
async function atRest(page) {
  let [last, calm] = [0, 0];
  for (let look = 0; look < 50 && calm < 5; look += 1) {
    await new Promise((resolve) => setTimeout(resolve, 100));
    const height = await page.evaluate(() => document.documentElement.scrollHeight);
    [last, calm] = [height, height === last ? calm + 1 : 0];
  }
}

/** Returns elements whose text does not fit. */
function cutOff() {
  // Elements that scroll or take input show the rest.
  const isCut = (one) => one.scrollWidth > one.clientWidth + 1 && /hidden|clip/.test(getComputedStyle(one).overflowX);
  return [...document.querySelectorAll("main *:not(input, #pins, .hidden-text, .hidden-text *)")]
    .filter((one) => one.checkVisibility() && isCut(one))
    .map((one) => `${one.tagName} ${one.id || one.className}: ${one.textContent.slice(0, 60)}`);
}

/** Returns those of `selectors` that are partly outside the window or covered. */
function unseen(selectors) {
  return selectors.filter((selector) => {
    const one = document.querySelector(selector);
    const { left, right, top, bottom } = one.getBoundingClientRect();
    const hit = document.elementFromPoint((left + right) / 2, (top + bottom) / 2);
    return top < -1 || left < 0 || bottom > innerHeight + 1 || right > innerWidth || !one.contains(hit);
  });
}

for (const [name, place] of Object.entries(PLACES)) {
  for (const colorScheme of ["light", "dark"]) {
    test(`${name} in the ${colorScheme} theme, in every window`, async () => {
      const { context, page, trouble } = await open(place, { colorScheme, viewport: WIDE });
      for (const [width, height] of SIZES) {
        await page.setViewportSize({ width, height });
        const said = `${width} × ${height}`;
        if (place.reach === talk) await page.locator("#talk-go").evaluate((one) => one.scrollIntoView());
        const wider = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(wider <= 0, `${wider} px stick out of ${said}`);
        assert.deepEqual(await page.evaluate(cutOff), [], said);
        // A window of 400 px has no room for all of it at once.
        if (height > 400) assert.deepEqual(await page.evaluate(unseen, place.sight), [], said);
        if (CHECKED.includes(width)) assert.deepEqual(await faults(page), [], said);
      }
      assert.deepEqual(trouble, []);
      await context.close();
    });
  }

  test(`${name} with keys alone, zoomed to 200 %, on a phone, and without motion`, async () => {
    const { context, page } = await open(place, { viewport: WIDE, reducedMotion: "reduce" });
    const moving = await page.evaluate(
      () => document.getAnimations().filter(({ playState }) => playState === "running").length,
    );
    assert.equal(moving, 0);
    for (const viewport of [WIDE, { width: 640, height: 400 }, PHONE]) {
      await page.setViewportSize(viewport);
      await atRest(page);
      await page.focus(".skip");
      const reached = new Set();
      for (let press = 0; press < 160; press += 1) {
        await page.keyboard.press("Tab");
        let focus = await page.evaluate(focused, place.keys);
        if (focus?.fault) {
          // A live update may have moved the page between key and check: checks once more, at rest.
          await atRest(page);
          for (const key of ["Shift+Tab", "Tab"]) await page.keyboard.press(key);
          focus = await page.evaluate(focused, place.keys);
        }
        if (focus === null) break;
        assert.equal(focus.fault, "", `${focus.name} at ${viewport.width} px`);
        for (const key of focus.keys) reached.add(key);
        if (reached.size === place.keys.length) break;
      }
      assert.deepEqual([...reached].sort(), [...place.keys].sort(), `${viewport.width} px wide`);
    }
    await context.close();
  });
}

/** Returns the focused element, the matching `keys`, and the fault of its visibility; `null` at the end of the page. */
function focused(keys) {
  const one = document.activeElement;
  if (!one || one === document.body) return null;
  const { left, right, top, bottom } = one.getBoundingClientRect();
  const name = `${one.tagName} ${one.id || one.className} ${one.textContent.slice(0, 30)}`;
  // A radio button is marked on its label.
  const styles = [one, one.closest("label")].filter(Boolean).map((marked) => getComputedStyle(marked));
  const isOut = bottom <= 0 || top >= innerHeight || right <= 0 || left >= innerWidth;
  const [x, y] = [(left + right) / 2, (Math.max(0, top) + Math.min(innerHeight, bottom)) / 2];
  const hit = document.elementFromPoint(Math.min(innerWidth - 1, Math.max(0, x)), y);
  const isCovered = !isOut && hit !== null && !one.contains(hit) && !hit.contains(one);
  const isPlain = styles.every(({ outlineStyle, boxShadow }) => outlineStyle === "none" && boxShadow === "none");
  const fault = isOut
    ? "out of sight"
    : isCovered
      ? `under ${hit.tagName} ${hit.id || hit.className}`
      : isPlain
        ? "plain"
        : "";
  return { name, fault, keys: keys.filter((key) => one.matches(key)) };
}
