// Runs parity tests in a worker; after a failed test the next one gets a new worker.

/** Timeout of a test; far more than a busy machine needs. */
const LIMIT_MS = 600_000;

let worker;

/** Resolves with the worker's answer to `message`, or to its start. */
function answer(message) {
  const { promise, resolve, reject } = Promise.withResolvers();
  const limit = setTimeout(() => reject(new Error(`no answer in ${LIMIT_MS} ms`)), LIMIT_MS);
  worker.onmessage = ({ data }) => ("failed" in data ? reject(new Error(data.failed)) : resolve(data));
  worker.onerror = (event) => reject(new Error(event.message ?? "the worker cannot be loaded"));
  if (message !== undefined) worker.postMessage(message);
  return promise
    .finally(() => clearTimeout(limit))
    .catch((error) => {
      worker.terminate();
      worker = undefined;
      throw error;
    });
}

/** Starts a worker, if there is none, and returns the names of the tests. */
async function start() {
  worker = new Worker("parity.worker.mjs", { type: "module" });
  return (await answer()).names;
}

async function run(index) {
  if (worker === undefined) await start();
  await answer(index);
}

window.parity = { start, run };
