// Goal: a browser keeps the learner's state, and one that refuses storage can still train.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Keeper } from "../package/dist/kept.js";

test("a browser that refuses storage gives a fresh identity, and says why", async () => {
  globalThis.indexedDB = {
    open() {
      throw new Error("private windows keep nothing");
    },
  };
  const keeper = await Keeper.open("http://host:7700/", true);
  assert.equal(keeper.refused, "private windows keep nothing");
  assert.match(keeper.identity, /^[0-9a-f]{64}$/);
  // It still holds moments in memory, for the same run and model only.
  const moments = { steps: 3, vectors: [new Float32Array(2), new Float32Array(2)] };
  keeper.keep("run", moments);
  assert.equal(keeper.moments("run", 2)?.steps, 3);
  assert.equal(keeper.moments("run", 3), undefined);
  assert.equal(keeper.moments("other", 2), undefined);
  // Its signature can be verified, and no script can read its key.
  assert.equal(keeper.browserSigns, true);
  const text = new TextEncoder().encode("a text");
  const raw = Uint8Array.from(keeper.identity.match(/../g), (digits) => Number.parseInt(digits, 16));
  const half = await crypto.subtle.importKey("raw", raw, "Ed25519", true, ["verify"]);
  assert.equal(await crypto.subtle.verify("Ed25519", half, await keeper.sign(text), text), true);
  assert.notEqual((await Keeper.open("http://host:7700/", false)).identity, keeper.identity);
});

test("a browser without keys of its own has the engine sign", async (context) => {
  context.mock.method(crypto.subtle, "generateKey", async () => {
    throw new DOMException("Unrecognized name.", "NotSupportedError");
  });
  const keeper = await Keeper.open("http://host:7700/", false);
  assert.equal(keeper.browserSigns, false);
  assert.match(keeper.identity, /^[0-9a-f]{64}$/);
  await assert.rejects(keeper.sign(new Uint8Array(64)), /holds no key/);
});
