// The language model's page: training, pausing, a closed tab, a lost device, adapters out and in, broken files.
import assert from "node:assert/strict";
import { existsSync, mkdirSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { unzip } from "../../www/zip.js";
import { launch, onPage } from "./browser.mjs";

const site = join(root, "www/dist");
let browser, server;

before(async () => {
  assert.ok(existsSync(join(site, "model.html")), "www/dist has no model.html: npm run build");
  server = await serve(site, 0);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

const POLL = { polling: 50 };
const state = (page, ...names) => page.waitForFunction((names) => names.includes(document.documentElement.dataset.state), names, POLL);
const snapshot = (page) => page.evaluate(() => lmPage.snapshot());
const status = (page) => page.textContent("#status");

async function until(page, condition) {
  for (let now = await snapshot(page); !condition(now); now = await snapshot(page)) await new Promise((done) => { setTimeout(done, 50); });
}

// Small, for a GPU in software.
async function configure(page, settings) {
  await page.evaluate(() => { document.querySelector("#settings details").open = true; });
  const { modules = "qv", ...numbers } = { rank: 4, alpha: 8, lr: 0.01, batchSize: 2, length: 24, every: 100, sampleTokens: 6, ...settings };
  for (const [name, value] of Object.entries(numbers)) await page.fill(`[name=${name}]`, String(value));
  await page.selectOption("[name=modules]", modules);
}

const watchTasks = () => {
  globalThis.longTasks = [];
  new PerformanceObserver((list) => longTasks.push(...list.getEntries().map(({ duration }) => duration))).observe({ type: "longtask" });
};
const lm = (name, options, body) => test(name, () => onPage(browser, `${server.url}model.html`, { init: watchTasks, ...options }, async (page, errors) => {
  await state(page, "writing");
  await body(page, errors);
}));

lm("the base writes; a training's loss falls; the adapter is downloaded and comes back; its scale counts", {}, async (page) => {
  await page.waitForFunction(() => /\w \w/.test(document.querySelector("#base-text").textContent), undefined, POLL);
  const base = await page.textContent("#base-text");
  assert.ok(base.length > 2, "the base writes while one looks on");
  assert.ok(await page.isDisabled("#download") && await page.isDisabled("#scale"));
  await page.fill("#prompt", "Day 1.");
  await configure(page, { steps: 8, every: 4, modules: "all", length: 32 });
  await page.evaluate(() => { longTasks.length = 0; });
  const began = performance.now();
  await page.click("#train");
  await state(page, "training");
  await until(page, ({ step }) => step >= 1);
  assert.match(await status(page), /^Step \d of 8/);
  assert.ok(await page.isDisabled("[name=rank]"), "settings wait for the end");
  await state(page, "ready");
  const { losses, samples, tokensPerSecond, left, settings, modules } = await snapshot(page);
  console.log(`  ${modules.length} modules; losses ${losses.map(([, loss]) => loss.toFixed(2)).join(" ")}; ${tokensPerSecond.toFixed(0)} tokens/s; ${((performance.now() - began) / 1000).toFixed(1)} s in all`);
  assert.deepEqual(losses.map(([step]) => step), [1, 2, 3, 4, 5, 6, 7, 8]);
  const mean = (some) => some.reduce((sum, [, loss]) => sum + loss, 0) / some.length;
  assert.ok(mean(losses.slice(-3)) < mean(losses.slice(0, 3)) - 0.1, "the loss falls");
  assert.deepEqual(samples.map(({ step }) => step), [0, 4, 8]);
  assert.ok(samples[2].held < samples[0].held, "and so does that of the text held out");
  assert.equal(settings.prompt, "Day 1.");
  assert.ok(left === 0 && tokensPerSecond > 0);
  const value = (id) => page.getAttribute(id, "value").then(Number);
  assert.ok(Math.abs(Math.log(await value("#n-perplexity")) - await value("#n-loss")) < 1e-9);
  const tasks = await page.evaluate(() => longTasks);
  console.log(`  ${tasks.length} long tasks on the page, the longest ${Math.max(0, ...tasks).toFixed(0)} ms`);
  assert.ok(Math.max(0, ...tasks) < 500);

  // Side by side: with scale 0 the adapter is none.
  const write = async (scale) => {
    await page.evaluate((scale) => { document.querySelector("#scale").value = scale; document.querySelector("#temperature").value = 0; }, scale);
    await page.click("#write");
    await state(page, "writing");
    await state(page, "ready");
    return Promise.all([page.textContent("#base-text"), page.textContent("#adapter-text")]);
  };
  const none = await write(0);
  assert.equal(none[0], none[1]);
  const one = await write(1);
  assert.equal(one[0], none[0]);
  assert.notEqual(one[1], one[0]);

  // PEFT's two files, out and in.
  const [file] = await Promise.all([page.waitForEvent("download"), page.click("#download")]);
  const files = unzip(await readFile(await file.path()));
  assert.deepEqual(Object.keys(files), ["adapter_config.json", "adapter_model.safetensors"]);
  const config = JSON.parse(new TextDecoder().decode(files["adapter_config.json"]));
  assert.deepEqual([config.r, config.lora_alpha, config.peft_type], [4, 8, "LORA"]);
  await page.reload();
  await state(page, "writing");
  assert.ok(await page.isDisabled("#scale"), "a new page has no adapter");
  await page.fill("#prompt", "Day 1.");
  await configure(page, {});
  await state(page, "ready");
  await page.setInputFiles("#adapter-file", await file.path());
  await state(page, "writing");
  await state(page, "ready");
  assert.deepEqual(await write(1), one, "the same words");
  const names = Object.keys(files);
  await page.setInputFiles("#adapter-file", names.map((name) => ({ name, mimeType: "application/octet-stream", buffer: Buffer.from(files[name]) })));
  await state(page, "writing");
  await state(page, "ready");
  assert.equal((await write(1))[1], one[1], "and by the two files alone");

  // What is none says so, and leaves the adapter.
  for (const [broken, words] of [
    [[{ name: "adapter.zip", mimeType: "application/zip", buffer: Buffer.from("no archive") }], /An adapter is a zip/],
    [[{ name: "adapter_config.json", mimeType: "application/json", buffer: Buffer.from(files[names[0]]) }, { name: "adapter_model.safetensors", mimeType: "", buffer: Buffer.from(files[names[1]].slice(0, 1000)) }], /adapter|safetensors/],
    [[{ name: "adapter_config.json", mimeType: "application/json", buffer: Buffer.from("{") }, { name: "adapter_model.safetensors", mimeType: "", buffer: Buffer.from(files[names[1]]) }], /adapterConfig|adapter_config/],
  ]) {
    await page.setInputFiles("#adapter-file", broken);
    await page.waitForSelector("#problem:not([hidden])");
    assert.match(await page.textContent("#problem-text"), words);
    await page.click("#dismiss");
  }
});

lm("paused, the tab closed, and gone on with in another; deleted", {}, async (page, errors) => {
  await configure(page, { steps: 5 });
  await page.click("#train");
  await until(page, ({ step }) => step >= 1);
  await page.click("#pause");
  await state(page, "paused");
  const before = await snapshot(page);
  assert.ok(before.step >= 1 && before.step < 5, `${before.step}`);
  await page.reload();
  await page.waitForSelector("#runs li");
  assert.match(await page.textContent("#runs li span"), /A ship’s log, .* MB/);
  await state(page, "ready");
  await page.click("#runs button >> nth=0");
  await state(page, "paused");
  const found = await snapshot(page);
  assert.deepEqual([found.step, found.losses, found.settings], [before.step, before.losses, before.settings]);
  assert.equal(await page.inputValue("[name=rank]"), "4");
  await page.click("#train");
  await state(page, "training");
  await state(page, "ready");
  const { step, losses } = await snapshot(page);
  assert.equal(step, 5);
  assert.deepEqual(losses.slice(0, before.step), before.losses);
  console.log(`  ${before.step} steps, a reload, then ${5 - before.step} more: ${losses.map(([, loss]) => loss.toFixed(3)).join(" ")}`);
  // The whole in one go gives the same numbers.
  await page.click("#train");
  await until(page, (now) => now.step === 0 || now.losses.length < 5);
  await state(page, "ready");
  assert.deepEqual((await snapshot(page)).losses, losses, "the same bits as without the interruption");
  await page.reload();
  await state(page, "ready");
  await page.waitForFunction(() => document.querySelectorAll("#runs li").length === 2, undefined, POLL);
  for (let i = 0; i < 2; i += 1) await page.click("#runs li >> nth=0 >> button >> nth=1");
  await page.waitForFunction(() => !document.querySelector("#runs li"), undefined, POLL);
  errors.splice(0, errors.length, ...errors.filter((text) => !/^failed: .*(worker|texts|model)/.test(text))); // fetches that a reload broke off
});

lm("stopped; a text of one's own; JSON lines with one that is broken", {}, async (page) => {
  await configure(page, { steps: 50 });
  await page.fill("#text", '{"prompt": "Hello.", "completion": " Ahoy, friend, said the keeper."}\n{"prompt": 3}\n{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Mind the step, friend."}]}\n');
  assert.equal(await page.inputValue("#style"), "");
  await page.click("#train");
  await page.waitForSelector("#problem:not([hidden])");
  assert.match(await page.textContent("#problem-text"), /1 line could not be read, the first of them line 2/);
  await until(page, ({ step }) => step >= 1);
  await page.click("#stop");
  await state(page, "ready");
  assert.match(await status(page), /^Stopped after|^Paused after/);
  assert.ok(!await page.isDisabled("#train") && !await page.isDisabled("#download"));
  await page.fill("#text", "");
  await page.click("#dismiss");
  await page.click("#train");
  await page.waitForFunction(() => /no text to learn from/.test(document.querySelector("#problem-text").textContent), undefined, POLL);
  await state(page, "ready");
  await page.setInputFiles("#text-file", { name: "picture.png", mimeType: "image/png", buffer: Buffer.from([137, 80, 78, 71, 0, 0, 0]) });
  await page.waitForFunction(() => /picture.png is not a text/.test(document.querySelector("#problem-text").textContent), undefined, POLL);
  await page.setInputFiles("#text-file", { name: "own.txt", mimeType: "text/plain", buffer: Buffer.from("A tale of my own. ".repeat(20)) });
  await page.waitForFunction(() => document.querySelector("#text").value.startsWith("A tale of my own."), undefined, POLL);
});

lm("a device that is lost: one click, and it goes on from the last checkpoint", {}, async (page, errors) => {
  await configure(page, { steps: 5 });
  await page.click("#train");
  await until(page, ({ step }) => step >= 1);
  await page.click("#pause");
  await state(page, "paused");
  const { step: saved, losses } = await snapshot(page);
  await page.click("#train");
  await until(page, ({ step }) => step > saved);
  await page.evaluate(() => { lmPage.destroyDevice(); });
  await state(page, "lost");
  assert.match(await page.textContent("#problem-text"), /can go on from where it was last saved/);
  await page.click("#restart");
  await state(page, "paused");
  const now = await snapshot(page);
  assert.deepEqual([now.step, now.losses], [saved, losses]);
  await page.click("#train");
  await state(page, "training");
  await state(page, "ready");
  assert.equal((await snapshot(page)).step, 5);
  errors.splice(0, errors.length, ...errors.filter((text) => !/device|destroyed|lost|failed: .*/i.test(text)));
});

if (process.env.LORA_SCREENSHOTS) lm("pictures of the page after a training", {}, async (page) => {
  mkdirSync(process.env.LORA_SCREENSHOTS, { recursive: true });
  await configure(page, { steps: 30, lr: 0.003, rank: 8, alpha: 16, batchSize: 4, length: 128, every: 10, sampleTokens: 60 });
  await page.evaluate(() => { document.querySelector("#settings details").open = false; });
  await page.click("#train");
  await state(page, "training");
  await state(page, "ready");
  for (const [device, width, height] of [["desktop", 1600, 1100], ["phone", 360, 740]]) {
    for (const colorScheme of ["light", "dark"]) {
      await page.setViewportSize({ width, height });
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))); }));
      await page.screenshot({ path: join(process.env.LORA_SCREENSHOTS, `model-trained-${device}-${colorScheme}.png`), fullPage: device === "phone" });
    }
  }
});
