// Goal: a page recovers by itself from unreported network failures: timeouts and backoff in a browser.
import assert from "node:assert/strict";
import { connect, createServer } from "node:net";
import { after, before, test } from "node:test";
import { chromiumFlagsWithoutGpu, launch, startSyncer, until } from "./support.mjs";

let syncer, browser;

before(async () => {
  [syncer, browser] = await Promise.all([startSyncer("--total-tokens", "2000000"), launch(chromiumFlagsWithoutGpu)]);
});
after(() => Promise.all([syncer?.stop(), browser?.close()]));

/** A proxy to the syncer that can drop the traffic of open connections, or refuse and count new ones. */
async function router(url) {
  const { hostname, port } = new URL(url);
  const open = new Set();
  const state = { refuses: false, refused: 0, upgrades: 0 };
  const server = createServer((near) => {
    if (state.refuses) {
      state.refused += 1;
      return near.destroy();
    }
    near.once("data", (head) => {
      if (/upgrade: websocket/i.test(head.toString("latin1"))) state.upgrades += 1;
    });
    const far = connect(Number(port), hostname);
    for (const [one, other] of [
      [near, far],
      [far, near],
    ]) {
      open.add(one);
      one.on("error", () => other.destroy());
      one.on("close", () => open.delete(one) && other.destroy());
      one.pipe(other);
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  return {
    url: `http://127.0.0.1:${server.address().port}/`,
    state,
    /** Abandons open connections: they stay open but carry nothing, not even the end of one side. */
    swallow() {
      for (const socket of open) {
        socket.unpipe().resume();
        socket
          .removeAllListeners("close")
          .removeAllListeners("error")
          .on("error", () => {});
      }
    },
    /** Closes all connections, and refuses new ones. */
    refuse() {
      state.refuses = true;
      for (const socket of open) socket.destroy();
    },
    stop() {
      for (const socket of open) socket.destroy();
      return new Promise((closed) => server.close(closed));
    },
  };
}

async function contribute(url, name) {
  const context = await browser.newContext();
  const page = await context.newPage();
  const settings = { name, engine: "cpu", mode: "gentle" };
  await page.addInitScript((kept) => localStorage.setItem("archipelago.settings", JSON.stringify(kept)), settings);
  await page.goto(url);
  await page.click("#start");
  return { context, page };
}

async function learner(name) {
  const { learners } = await syncer.status();
  return learners.find((learner) => learner.name === name);
}

const merged = (name, tokens = 0) =>
  until(`tokens of ${name} to be merged`, async () =>
    (await learner(name))?.tokensMerged > tokens ? learner(name) : undefined,
  );
const sentence = (page) => page.textContent("#sentence");

test("a connection that carries nothing any more is given up after a minute", { timeout: 180_000 }, async () => {
  const network = await router(syncer.url);
  const { context, page } = await contribute(network.url, "patient");
  const before = await merged("patient");
  network.swallow();
  const from = Date.now();
  // Until its timeout it has no sign of a failure, and does not reconnect.
  while (Date.now() - from < 50_000) {
    assert.equal(network.state.upgrades, 1, `it came anew after ${Date.now() - from} ms`);
    assert.doesNotMatch(await sentence(page), /Not connected/);
    await page.waitForTimeout(1_000);
  }
  while (
    !((await learner("patient")).tokensMerged > before.tokensMerged && (await learner("patient")).state === "training")
  ) {
    assert.ok(Date.now() - from < 100_000, `still not back: ${await sentence(page)}`);
    await page.waitForTimeout(1_000);
  }
  assert.equal((await learner("patient")).learner, before.learner);
  await context.close();
  await network.stop();
});

test("a page whose network is back need not wait for the end of a minute", { timeout: 120_000 }, async () => {
  const network = await router(syncer.url);
  const { context, page } = await contribute(network.url, "hasty");
  await merged("hasty");
  network.swallow();
  await page.waitForTimeout(12_000);
  // Messages in flight to the syncer have arrived by now.
  const before = await learner("hasty");
  await page.evaluate(() => dispatchEvent(new Event("online")));
  const after = await merged("hasty", before.tokensMerged);
  assert.equal(after.learner, before.learner);
  await context.close();
  await network.stop();
});

test("a syncer that is gone is asked for seldom", { timeout: 120_000 }, async () => {
  const network = await router(syncer.url);
  const { context, page } = await contribute(network.url, "modest");
  const before = await merged("modest");
  network.refuse();
  await until("the page to say so", async () => /Not connected \(.+\), trying again/.test(await sentence(page)));
  network.state.refused = 0;
  await page.waitForTimeout(8_000);
  // At most after 0.25, 0.5, 1, 2 and 4 s; some of the page's own requests are refused too.
  const { refused } = network.state;
  assert.ok(refused >= 1 && refused < 25, `${refused} attempts in 8 s`);
  network.state.refuses = false;
  const after = await merged("modest", before.tokensMerged);
  assert.equal(after.learner, before.learner);
  await context.close();
  await network.stop();
});
