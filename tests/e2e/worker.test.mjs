// examples/worker: training off the page's thread.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "./browser.mjs";

let browser, server;
before(async () => {
  server = await serve(root, 0);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

// Counts what the page itself asks of WebGPU and of WebAssembly, and its frames.
function watch() {
  globalThis.asked = [];
  const spy = (object, name) => {
    const original = object[name];
    object[name] = function (...args) {
      asked.push(name);
      return original.apply(this, args);
    };
  };
  spy(GPU.prototype, "requestAdapter");
  for (const name of ["instantiate", "instantiateStreaming", "compile", "compileStreaming"]) spy(WebAssembly, name);
  globalThis.frames_ = 0;
  const count = () => { frames_ += 1; requestAnimationFrame(count); };
  requestAnimationFrame(count);
}

test("a worker trains while the page creates no device, runs no wasm, and goes on handling input", () =>
  onPage(browser, `${server.url}examples/worker/index.html?steps=400`, { init: watch }, async (page) => {
    await page.waitForFunction(() => document.querySelector("#status").value.startsWith("step"));
    const [start, first] = await page.evaluate(() => [performance.now(), frames_]);
    let longest = 0;
    while ((await page.evaluate(() => document.documentElement.dataset.state)) === "training") {
      const waited = await page.evaluate(() => new Promise((done) => {
        const sent = performance.now();
        addEventListener("keydown", () => done(performance.now() - sent), { once: true });
        setTimeout(() => dispatchEvent(new KeyboardEvent("keydown", { key: "a" })));
      }));
      longest = Math.max(longest, waited);
    }
    const { state, status, asked, end, last } = await page.evaluate(() => ({
      state: document.documentElement.dataset.state, status: document.querySelector("#status").value, asked, end: performance.now(), last: frames_,
    }));
    console.log(`# the page drew ${((1000 * (last - first)) / (end - start)).toFixed(0)} frames a second; a key waited at most ${longest.toFixed(0)} ms`);
    assert.equal(state, "done", status);
    assert.match(status, /^done after 400 steps/);
    assert.deepEqual(asked, [], "the page itself uses neither WebGPU nor WebAssembly");
    assert.ok(last > first, "frames were drawn meanwhile");
  }));

test("the page can stop the worker's training", () =>
  onPage(browser, `${server.url}examples/worker/index.html?steps=1000000`, {}, async (page) => {
    await page.waitForFunction(() => document.querySelector("#status").value.startsWith("step"));
    await page.click("#stop");
    await page.waitForFunction(() => document.documentElement.dataset.state === "done");
    assert.ok(Number(/after (\d+) steps/.exec(await page.evaluate(() => document.querySelector("#status").value))[1]) < 1_000_000);
  }));
