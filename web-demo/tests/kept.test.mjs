// Goal: what a browser keeps is kept, and one that refuses storage is no reason not to train.
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
  assert.match(keeper.identity, /^[0-9a-f]{32}$/);
  // It still holds moments for as long as it lives, of the same run and model only.
  const moments = { steps: 3, vectors: [new Float32Array(2), new Float32Array(2)] };
  keeper.keep("run", moments);
  assert.equal(keeper.moments("run", 2)?.steps, 3);
  assert.equal(keeper.moments("run", 3), undefined);
  assert.equal(keeper.moments("other", 2), undefined);
  assert.notEqual((await Keeper.open("http://host:7700/", false)).identity, keeper.identity);
});
