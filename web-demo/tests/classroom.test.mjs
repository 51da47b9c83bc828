// Goal: a class joins by its link over plain http, and its teacher slows and drops islands during the run.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { axe, faults } from "./axe.mjs";
import { chromiumFlagsWithoutGpu, launch, startSyncer, until } from "./support.mjs";

const INVITE = "#invite=open-sesame";
let syncer, browser, origin;
const trouble = [];

before(async () => {
  // A name on the local network: browsers treat such a page as insecure, as on a student's phone.
  const elsewhere = "--host-resolver-rules=MAP classroom.local 127.0.0.1";
  [syncer, browser] = await Promise.all([
    startSyncer("--classroom", "--allow-host", "classroom.local", "--invite", INVITE.replace("#invite=", "")),
    launch([...chromiumFlagsWithoutGpu, elsewhere]),
  ]);
  origin = `http://classroom.local:${new URL(syncer.url).port}/`;
});
after(() => Promise.all([syncer?.stop(), browser?.close()]));

async function newcomer() {
  const context = await browser.newContext({ viewport: { width: 360, height: 800 } });
  await context.addInitScript(axe);
  return context;
}

async function open(context, path = "") {
  const page = await context.newPage();
  page.on("pageerror", (error) => trouble.push(String(error)));
  await page.goto(origin + path + INVITE);
  return page;
}

/** Opens the page of a student that trains. */
async function student(name) {
  const page = await open(await newcomer());
  await until("the field for a name", () => page.isVisible("#who #name"));
  await page.fill("#name", name);
  await page.click("#start");
  await says(page, "#sentence", /^Training/);
  return page;
}

/** Opens a page in a browser that has this key. */
async function twin(identity) {
  const page = await open(await newcomer());
  await page.evaluate(
    async ([identity, place]) => {
      const asked = indexedDB.open("archipelago", 1);
      asked.onupgradeneeded = () => asked.result.createObjectStore("learners");
      const db = await new Promise((resolve) => (asked.onsuccess = () => resolve(asked.result)));
      const put = db.transaction("learners", "readwrite").objectStore("learners").put({ identity }, place);
      await new Promise((resolve) => (put.onsuccess = resolve));
      db.close();
    },
    [identity, origin],
  );
  return page;
}

const says = (page, selector, pattern) =>
  until(`${selector} to say ${pattern}`, async () => pattern.test(await page.textContent(selector)));

/** Returns the learner of this name, from the public status. */
const shown = async (name) => (await syncer.status()).learners.find((learner) => learner.name === name);

/** Returns Ada's training as a share of Ben's while Ben trains this many tokens. */
async function whileBenTrains(tokens) {
  const begun = { ada: (await shown("Ada")).tokensTrained, ben: (await shown("Ben")).tokensTrained };
  const ben = await until("Ben to train on", async () => {
    const now = (await shown("Ben")).tokensTrained;
    return now >= begun.ben + tokens && now - begun.ben;
  });
  return ((await shown("Ada")).tokensTrained - begun.ada) / ben;
}

test("a class over plain http, with a hand on each island", async () => {
  const [ada, ben] = [await student("Ada"), await student("Ben")];
  assert.deepEqual(await ada.evaluate(() => [isSecureContext, navigator.locks, navigator.gpu]), [
    false,
    undefined,
    undefined,
  ]);
  await says(ada, "#insecure", /plain http.*no WebGPU.*processor/);
  await until(
    "both to be merged",
    async () => (await shown("Ada"))?.tokensMerged > 0 && (await shown("Ben"))?.tokensMerged > 0,
  );
  assert.match((await shown("Ada")).device, /^browser, cpu/);

  const teacher = await open(await newcomer(), "dashboard");
  await until("both islands", async () => (await teacher.locator("#islands li").count()) === 2);
  const row = (name) => teacher.locator("#islands li", { hasText: name });
  const press = (name, button) => row(name).getByRole("button", { name: button, exact: true }).click();
  await row("Ada").locator(".spot").click();
  await teacher.fill(".island-card .ask input", await syncer.token());
  await teacher.keyboard.press("Enter");
  const badge = (name, pattern) =>
    until(`${name}'s badge to say ${pattern}`, async () =>
      pattern.test(await row(name).locator(".badge").textContent()),
    );

  const before = await whileBenTrains(40_000);
  await press("Ada", "×8 slower");
  await says(ada, "#sentence", /^Training, balanced, slowed ×8 by the owner of the run\.$/);
  await badge("Ada", /^slowed ×8$/);
  const slowed = await whileBenTrains(40_000);
  assert.ok(slowed < before / 2, `Ada trained ${before.toFixed(2)} of what Ben did, slowed down ${slowed.toFixed(2)}`);
  await says(ben, "#sentence", /^Training, balanced\.$/);
  await press("Ada", "Full speed");
  await says(ada, "#sentence", /^Training, balanced\.$/);

  // A dropped learner says so, the others are merged on, and it returns by itself under the same identity.
  const { rounds } = await syncer.status();
  await teacher.fill(".island-card [type=number]", "9");
  await press("Ada", "Drop");
  await says(
    ada,
    "#sentence",
    /^Dropped: the owner of the run dropped this learner for a while\.(.+ when it is back\.)? It (may return in \d s|returns now)\.$/,
  );
  await until("Ada to be back", async () => (await shown("Ada")).state === "training");
  await says(ada, "#sentence", /^Training, balanced\.$/);
  const back = await shown("Ada");
  await until("Ada to be merged again", async () => (await shown("Ada")).fates.merged > back.fates.merged);
  const status = await syncer.status();
  assert.ok(status.rounds > rounds && status.learnersTotal === 2, JSON.stringify(status.learnersByState));

  // An owner who reconsiders does not have to wait.
  await teacher.fill(".island-card [type=number]", "3000");
  await press("Ada", "Drop");
  await badge("Ada", /^dropped, (2999|3000) s$/);
  assert.deepEqual(await faults(teacher), []);
  assert.deepEqual(await faults(ada), []);
  for (const page of [teacher, ada]) {
    assert.ok(
      (await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)) <= 0,
      `${page.url()} sticks out`,
    );
  }
  await press("Ada", "Let it back");
  await says(ada, "#sentence", /^Training, balanced\.$/);
  assert.deepEqual(trouble, []);
  for (const page of [ada, ben, teacher]) await page.context().close();
});

test("a second tab waits for the first, without locks too", async () => {
  const first = await student("Cleo");
  const second = await open(first.context());
  await until("the field for a name", () => second.isVisible("#who #name"));
  await second.click("#start");
  await says(second, "#sentence", /^Waiting: another tab/);
  const third = await open(first.context());
  await until("the field for a name", () => third.isVisible("#who #name"));
  await third.click("#start");
  await says(third, "#sentence", /^Waiting: another tab/);
  assert.match(await first.textContent("#sentence"), /^Training/);
  const total = (await syncer.status()).learnersTotal;
  await first.close();
  await until(
    "one of them to take over",
    async () =>
      (await Promise.all([second, third].map((page) => page.textContent("#sentence")))).filter((text) =>
        /^Training/.test(text),
      ).length === 1,
  );
  assert.equal((await syncer.status()).learnersTotal, total, "it is the same learner");
  await second.context().close();
});

test("a twin that took over is named, where nothing kept them apart", async () => {
  // Imitates a copied browser profile: the same key without a shared lock.
  const identity = "7".repeat(64);
  const [first, second] = await Promise.all([twin(identity), twin(identity)]);
  await first.click("#start");
  await says(first, "#sentence", /^Training/);
  await second.click("#start");
  await says(second, "#sentence", /^Training/);
  await says(first, "#sentence", /^Not training: another tab or window of this browser trains in this run now\.$/);
  await Promise.all([first.context().close(), second.context().close()]);
});
