// Checkpoints in the browser's file system, on a disk: what survives pages, workers and quotas; examples/checkpoint.
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { launchIn } from "./browser.mjs";

let browser, server, folder;
before(async () => {
  server = await serve(root, 0);
  folder = mkdtempSync(join(tmpdir(), "checkpoints-"));
  browser = await launchIn(folder);
});
after(async () => {
  await browser?.close();
  await server?.close();
  rmSync(folder, { recursive: true, force: true });
});

// A page with the package, `state(number)`, which is as a trainer with a state of some bytes, and `inWorker(work, data)`,
// which runs a function there and gives `{ result, worker }`; what the function gives to `say` ends the waiting, too.
async function open() {
  const page = await browser.newPage();
  page.setDefaultTimeout(60_000);
  await page.goto(`${server.url}tests/e2e/blank.html`);
  await page.evaluate(async (tools) => {
    (0, eval)(tools); // oxlint-disable-line no-eval
    globalThis.L = await import("/dist/index.js");
    globalThis.inWorker = (work, data) => new Promise((done, fail) => {
      const source = `const L = await import("${location.origin}/dist/index.js");
        ${tools}
        globalThis.say = (result) => postMessage({ result });
        onmessage = async ({ data }) => say(await (${work})(data).catch((error) => error.code ?? String(error)));
        postMessage({ ready: true });`;
      const worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })), { type: "module" });
      worker.onerror = ({ message }) => fail(new Error(message));
      worker.onmessage = ({ data: { ready, result } }) => (ready ? worker.postMessage(data) : done({ result, worker }));
    });
  }, TOOLS);
  return page;
}
const TOOLS = `
  globalThis.state = (number) => ({
    saveState: async () => new Uint8Array(200_000).map((_, i) => number + i),
    loadState: ([first]) => { globalThis.loaded = first; return { bitsMayDiffer: false }; },
  });
  globalThis.restored = async (name) => {
    const run = await L.Checkpoints.open(name);
    globalThis.loaded = undefined;
    const found = await run.restore(state(0)).catch((error) => ({ code: error.code }));
    await run.close();
    return found?.code ?? loaded;
  };
  // A worker that is ended while it computes holds its run for some seconds more.
  globalThis.freed = async (name) => {
    while ((await L.Checkpoints.list()).some((run) => run.name === name && run.inUse)) await new Promise((done) => setTimeout(done, 100));
  };
  globalThis.code = (promise) => promise.then(() => "success", (error) => error.code ?? String(error));
`;
const onPage = async (work, data) => {
  const page = await open();
  try {
    return await page.evaluate(work, data);
  } finally {
    await page.close();
  }
};

test("what a run keeps: the last state, through page and worker alike, until it is deleted", async () => {
  const result = await onPage(async () => {
    const run = await L.Checkpoints.open("a/b …");
    const nothing = await run.restore(state(0));
    await Promise.all([run.save(state(1)), run.save(state(2))]);
    const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle("lora-webgpu-checkpoints");
    await folder.getDirectoryHandle("%zz.run", { create: true }); // nobody's name
    const inUse = await L.Checkpoints.list();
    await folder.removeEntry("%zz.run");
    await run.close();
    await run.close();
    const closed = await code(run.save(state(3)));
    const fromPage = await inWorker(async () => {
      const before = await restored("a/b …");
      const run = await L.Checkpoints.open("a/b …");
      await run.save(state(4));
      await run.save(state(5));
      await run.close();
      return before;
    });
    fromPage.worker.terminate();
    const fromWorker = await restored("a/b …");
    const listed = await L.Checkpoints.list();
    await L.Checkpoints.delete("a/b …");
    await L.Checkpoints.delete("a/b …");
    const names = [];
    for (const name of ["", "x".repeat(300), "\ud800", 7, undefined]) names.push(await code(L.Checkpoints.open(name)));
    const dots = await L.Checkpoints.open("..");
    await dots.close();
    await L.Checkpoints.delete("..");
    return { nothing, inUse, closed, fromPage: fromPage.result, fromWorker, listed, after: await L.Checkpoints.list(), names, persist: await L.Checkpoints.persist() };
  });
  assert.equal(result.nothing, undefined);
  const [{ name, inUse }] = result.inUse;
  assert.deepEqual([name, inUse], ["a/b …", true]);
  assert.equal(result.closed, "disposed");
  assert.deepEqual([result.fromPage, result.fromWorker], [2, 5]);
  assert.equal(result.listed.length, 1);
  const [listed] = result.listed;
  assert.equal(listed.bytes, 2 * 200_056);
  assert.ok(!listed.inUse && Math.abs(listed.savedAt - Date.now()) < 60_000);
  assert.deepEqual(result.after, []);
  assert.deepEqual(result.names, Array(5).fill("invalid-argument"));
  assert.equal(typeof result.persist, "boolean");
});

// A worker is ended inside the file operation `method` of its second checkpoint, at the `nth` call; a write has done half.
const STAGES = [["truncate", 1, 1], ["write", 1, 1], ["flush", 1, 1], ["write", 2, 1], ["flush", 2], ["close", 1]];
for (const [method, nth, expected] of STAGES) test(`a worker ended in ${method} ${nth} leaves a whole checkpoint`, async () => {
  const result = await onPage(async ([method, nth]) => {
    const { result, worker } = await inWorker(async ([method, nth]) => {
      const run = await L.Checkpoints.open("crash");
      await run.save(state(1));
      const files = FileSystemSyncAccessHandle.prototype;
      const original = files[method];
      let calls = 0;
      files[method] = function (data, ...rest) {
        if (++calls < nth) return original.call(this, data, ...rest);
        if (method === "write") original.call(this, data.subarray(0, data.length / 2), ...rest);
        say("inside");
        for (;;);
      };
      await run.save(state(2));
      return "not ended";
    }, [method, nth]);
    worker.terminate();
    await freed("crash");
    const after = await restored("crash");
    const run = await L.Checkpoints.open("crash");
    await run.save(state(3));
    await run.close();
    const last = await restored("crash");
    await L.Checkpoints.delete("crash");
    return { result, after, last };
  }, [method, nth]);
  assert.equal(result.result, "inside");
  // Once all of it is written either may be found.
  if (expected) assert.equal(result.after, expected);
  else assert.ok([1, 2].includes(result.after), `${result.after}`);
  assert.equal(result.last, 3);
});

test("a page closed while it writes leaves the checkpoint before", async () => {
  const page = await open();
  await page.evaluate(async () => {
    const run = await L.Checkpoints.open("closed");
    await run.save(state(1));
    await new Promise((inside) => {
      FileSystemWritableFileStream.prototype.close = () => new Promise(inside);
      run.save(state(2));
    });
  });
  await page.close();
  assert.equal(await onPage(() => restored("closed")), 1);
});

test("damage is noticed: of one file, the other is taken; of both, it is said", async () => {
  const result = await onPage(async () => {
    const run = await L.Checkpoints.open("damaged");
    await run.save(state(1));
    await run.save(state(2));
    await run.close();
    const folder = await (await (await navigator.storage.getDirectory()).getDirectoryHandle("lora-webgpu-checkpoints")).getDirectoryHandle("damaged.run");
    const found = [];
    for (const slot of ["b", "a"]) {
      const handle = await folder.getFileHandle(slot);
      const bytes = new Uint8Array(await (await handle.getFile()).arrayBuffer());
      bytes[150_000] ^= 4;
      const file = await handle.createWritable();
      await file.write(bytes);
      await file.close();
      found.push(await restored("damaged"));
    }
    return found;
  });
  assert.deepEqual(result, [1, "checkpoint"]);
});

test("a second tab on the same run is told so, until the first lets go", async () => {
  const first = await open();
  await first.evaluate(async () => { globalThis.run = await L.Checkpoints.open("shared"); });
  const attempt = () => onPage(async () => [await code(L.Checkpoints.open("shared")), await code(L.Checkpoints.delete("shared")), await code(L.Checkpoints.open("another"))]);
  assert.deepEqual(await attempt(), ["checkpoint-in-use", "checkpoint-in-use", "success"]);
  await first.close();
  assert.deepEqual(await onPage(async () => [await code(L.Checkpoints.open("shared"))]), ["success"]);
});

// The browser itself refuses: its quota for this site is set to little.
for (const where of ["page", "worker"]) test(`a full storage is said, and the training in the ${where} goes on`, async () => {
  const page = await open();
  const client = await browser.newCDPSession(page);
  const origin = new URL(server.url).origin;
  try {
    const train = async ({ where }) => {
      const run = await L.Checkpoints.open(`quota ${where}`);
      await run.save(state(1));
      const gpu = await L.Gpu.request();
      const weight = Float32Array.from({ length: 600 * 500 }, (_, i) => Math.sin(i));
      const layers = [new L.LoraLinear(gpu, { inFeatures: 600, outFeatures: 500, rank: 300, seed: 1, weight })]; // 4 MB of state
      const trainer = new L.Trainer(gpu, { layers, loss: L.mse(), optimizer: L.adamw({ lr: 1e-4 }) });
      const batches = Array.from({ length: 3 }, () => ({ x: weight.slice(0, 600), target: weight.slice(0, 500) }));
      const [records, told] = [[], []];
      const checkpoints = { run, every: 2, onError: (error) => told.push(error.code) };
      for await (const record of trainer.train(batches, { epochs: 2, logEvery: 2, checkpoints })) records.push(record);
      const direct = await code(run.save(trainer));
      await run.close();
      return { steps: records.map((r) => r.step), errors: records.map((r) => r.checkpointError?.code).filter(Boolean), told, direct, kept: await restored(`quota ${where}`) };
    };
    // Room for the first state alone.
    const used = await page.evaluate(async () => (await navigator.storage.estimate()).usage);
    await client.send("Storage.overrideQuotaForOrigin", { origin, quotaSize: used + 3_000_000 });
    const result = where === "page"
      ? await page.evaluate(train, { where })
      : await page.evaluate(async ([work, data]) => (await inWorker(work, data)).result, [String(train), { where }]);
    assert.deepEqual(result.steps, [2, 4, 6], JSON.stringify(result));
    assert.deepEqual(result.told, Array(3).fill("storage-full"));
    assert.ok(result.errors.length > 0 && result.errors.every((code) => code === "storage-full"), `${result.errors}`);
    assert.equal(result.direct, "storage-full");
    assert.equal(result.kept, 1, "the checkpoint before is still there");
  } finally {
    await client.send("Storage.overrideQuotaForOrigin", { origin });
    await page.close();
  }
});

test("the example trains, is closed, and goes on with the same bits, also in a browser that was started anew", async () => {
  const start = async (run) => {
    const page = await browser.newPage();
    page.setDefaultTimeout(120_000);
    await page.goto(`${server.url}examples/checkpoint/index.html?steps=1600&run=${run}`);
    return page;
  };
  const data = (page) => page.evaluate(() => ({ ...document.documentElement.dataset, status: document.querySelector("#status").value }));
  const saved = (page, step) => page.waitForFunction((step) => Number(document.documentElement.dataset.saved) >= step, step);
  const end = async (page) => {
    await page.waitForFunction(() => ["done", "failed"].includes(document.documentElement.dataset.state));
    const result = await data(page);
    await page.close();
    return result;
  };
  const straight = await end(await start("straight"));
  assert.equal(straight.state, "done", straight.status);
  assert.equal(straight.resumed, "0");

  let page = await start("broken");
  await saved(page, 150);
  // A page that is hidden has a checkpoint written, not only every 50 steps.
  await page.evaluate(() => {
    Object.defineProperty(document, "hidden", { value: true });
    setInterval(() => document.dispatchEvent(new Event("visibilitychange")), 50);
  });
  await page.waitForFunction(() => Number(document.documentElement.dataset.saved) % 50 > 0);
  const hidden = Number((await data(page)).saved);
  await page.close();
  page = await start("broken");
  await saved(page, 600);
  const second = await data(page);
  await browser.close(); // with the page in mid-training
  browser = await launchIn(folder);
  const third = await end(await start("broken"));
  assert.ok(hidden > 150 && Number(second.resumed) >= hidden, `${hidden}, ${JSON.stringify(second)}`);
  assert.ok(Number(third.resumed) >= 600 && Number(third.resumed) < 1600, JSON.stringify(third));
  assert.match(third.status, /^done after 1600 steps/);
  assert.equal(third.adapter, straight.adapter);

  // A run that was finished has nothing more to do.
  const again = await end(await start("broken"));
  assert.deepEqual([again.resumed, again.adapter], ["1600", straight.adapter]);
});
