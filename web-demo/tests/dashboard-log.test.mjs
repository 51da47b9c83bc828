// Goal: an owner sees events and problems in plain words, and can tell old news from new.
import assert from "node:assert/strict";
import { test } from "node:test";
import { axe, faults } from "./axe.mjs";
import { line } from "./canned.mjs";
import { until } from "./support.mjs";
import { open, page, says, syncer } from "./watched.mjs";

const rows = () =>
  page.$$eval("#log-rows li", (items) => items.map((item) => [...item.children].map((one) => one.textContent)));

test("what happened is folded, newest first, and goes on", async () => {
  syncer.log = [
    line(3, 7_300, { kind: "owner", learner: null, name: null, text: "The owner paused the run." }),
    line(2, 90_000, {
      kind: "refused",
      name: "bob",
      text: "An update of bob was refused: it is far larger than usual.",
    }),
    line(1, 200_000),
  ];
  await open();
  await says("#log-newest", /^2 h ago: The owner paused the run\.$/);
  assert.deepEqual(await rows(), [], "nothing is drawn that is folded away");
  await page.click("#log-details summary");
  const [paused, refused, joined] = [
    ["2 h ago", "The owner paused the run."],
    ["1 d ago", "An update of bob was refused: it is far larger than usual."],
    ["2 d ago", "anna joined."],
  ];
  await until("the lines", async () => (await rows()).length === 3);
  assert.deepEqual(await rows(), [paused, refused, joined]);

  // News includes lines that are present already; foreign text stays text.
  const hostile = "<img src=x onerror=alert(1)> joined.";
  syncer.say("log", syncer.logView([line(4, 1, { name: "<img>", text: hostile }), ...syncer.log]));
  await says("#log-newest", /^just now: <img/);
  assert.deepEqual((await rows())[0], ["just now", hostile]);
  assert.equal((await rows()).length, 4);
  assert.equal(await page.$("#log img"), null);

  await page.fill("#log-name", "BO");
  await says("#log-count", /^1 line of 4 lines$/);
  assert.deepEqual(await rows(), [refused]);
  await page.fill("#log-name", "");
  await says("#log-count", /^4 lines$/);
});

test("what was missed is fetched once the connection is back", async () => {
  await open();
  await says("#log-newest", /anna joined/);
  syncer.log = [line(9, 2, { text: "bob left." }), ...syncer.log];
  syncer.hangUp();
  await says("#log-newest", /bob left/);
});

test("alerts stand at the top as long as they are on", async () => {
  await page.addInitScript(axe);
  await open();
  assert.ok(await page.isHidden("#alerts"));
  const alerts = [
    { kind: "noLearner", text: "No learner has taken part for 10 min.", forS: 60 },
    { kind: "diskFault", text: "The run stands still.", forS: 200_000 },
  ];
  syncer.say("status", { ...syncer.status, alerts });
  await says("#alerts", /No learner has taken part for 10 min\. Alert since \d\d:\d\d/);
  const text = await page.textContent("#alerts");
  // The next second repeats it: a screen reader hears it once.
  await page.evaluate(() => {
    const changed = () => (window.toldAnew = true);
    const options = { childList: true, characterData: true, subtree: true };
    new MutationObserver(changed).observe(document.querySelector("#alerts"), options);
  });
  const later = alerts.map((alert) => ({ ...alert, forS: alert.forS + 59 }));
  syncer.say("status", { ...syncer.status, alerts: later, participation: 0.5 });
  await says("#participation", /50/);
  assert.equal(await page.textContent("#alerts"), text);
  assert.ok(!(await page.evaluate(() => window.toldAnew)));
  await page.click("#log-details summary");
  assert.deepEqual(await faults(page), []);
  syncer.say("status", syncer.status);
  await until("the alerts to go", () => page.isHidden("#alerts"));
});

test("the age of the last news turns red", async () => {
  await page.clock.install();
  await open();
  await page.clock.fastForward(1_500);
  await says("#news", /^Last news from the syncer: just now$/);
  assert.equal(await page.getAttribute("#news", "data-tone"), null);
  await page.clock.fastForward(11_000);
  await says("#news", /^Last news from the syncer: 1[1-9] s ago$/);
  assert.equal(await page.getAttribute("#news", "data-tone"), "trouble");
  syncer.say("status", syncer.status);
  await until("new news", async () => {
    await page.clock.fastForward(1_000);
    return (await page.getAttribute("#news", "data-tone")) === null;
  });
});
