// The language model's page: training, pausing, a closed tab, a lost device, adapters out and in, models of the visitor's own, broken
// files.
import assert from "node:assert/strict";
import { copyFileSync, cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { unzip } from "../../dist/zip.js";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "./browser.mjs";
import { llamaGguf, safetensors, writeSafetensors } from "./gguf.mjs";
import { deflated } from "./zip.mjs";

const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const site = join(root, "www/dist");
// A small llama of random weights as a folder and as one GGUF file, with a tokenizer of as many tokens: bytes, but for the rarest.
const golden = join(root, "tests/golden/models/llama_tied_all"), config = JSON.parse(readFileSync(join(golden, "config.json")));
const read = JSON.parse(readFileSync(join(root, "www/model/tokenizer.json"), "utf8"));
const tokens = Object.entries(read.model.vocab).sort((a, b) => a[1] - b[1]).map(([token]) => token).slice(0, config.vocab_size - 1).concat("Ġ");
const tokenizer = { ...read, model: { ...read.model, vocab: Object.fromEntries(tokens.map((token, id) => [token, id])), merges: [] } };
const gguf = llamaGguf(config, safetensors(join(golden, "model.safetensors")), {
  "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": [],
  "tokenizer.ggml.token_type": tokens.map((_, i) => (i === 0 ? 3 : 1)), "tokenizer.ggml.eos_token_id": 0,
});

let browser, server, temporary, folder, sharded; // sharded: the same model in two files

before(async () => {
  temporary = mkdtempSync(join(tmpdir(), "lora-"));
  folder = join(temporary, "tiny-llama");
  mkdirSync(folder);
  for (const name of ["config.json", "model.safetensors"]) copyFileSync(join(golden, name), join(folder, name));
  writeFileSync(join(folder, "tokenizer.json"), JSON.stringify(tokenizer));
  writeFileSync(join(folder, "tokenizer_config.json"), JSON.stringify({ eos_token: "<|endoftext|>" }));
  sharded = join(temporary, "in-two-files");
  cpSync(folder, sharded, { recursive: true });
  rmSync(join(sharded, "model.safetensors"));
  const tensors = safetensors(join(golden, "model.safetensors")), names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
  const weightMap = Object.fromEntries(tensors.map(({ name }) => [name, names[Number(/layers\.1\./.test(name))]]));
  for (const file of names) writeFileSync(join(sharded, file), writeSafetensors(tensors.filter(({ name }) => weightMap[name] === file)));
  writeFileSync(join(sharded, "model.safetensors.index.json"), JSON.stringify({ metadata: {}, weight_map: weightMap }));
  assert.ok(existsSync(join(site, "model.html")), "www/dist has no model.html: npm run build");
  server = await serve(site, 0);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
  rmSync(temporary, { recursive: true, force: true });
});

const POLL = { polling: 50 };
const state = (page, ...names) => page.waitForFunction((names) => names.includes(document.documentElement.dataset.state), names, POLL);
const snapshot = (page) => page.evaluate(() => lmPage.snapshot());
const status = (page) => page.textContent("#status");

async function until(page, condition) {
  for (let now = await snapshot(page); !condition(now); now = await snapshot(page)) await new Promise((done) => { setTimeout(done, 50); });
}

// Drops files `{ name: bytes }` on the page, as a person would.
const drop = (page, files) => page.evaluate((files) => {
  const dataTransfer = new DataTransfer();
  for (const [name, base64] of files) dataTransfer.items.add(new File([Uint8Array.from(atob(base64), (c) => c.charCodeAt(0))], name));
  dispatchEvent(new DragEvent("drop", { dataTransfer, cancelable: true }));
}, Object.entries(files).map(([name, bytes]) => [name, Buffer.from(bytes).toString("base64")]));
// Drops what lies on the disk, folders as such: what only the browser can make of it.
async function dropPaths(page, ...files) {
  const session = await page.context().newCDPSession(page);
  for (const type of ["dragEnter", "dragOver", "drop"]) await session.send("Input.dispatchDragEvent", { type, x: 700, y: 60, data: { items: [], files, dragOperationsMask: 1 } });
  await session.detach();
}
const complaint = async (page, words) => {
  await page.waitForFunction(() => !document.querySelector("#problem").hidden, undefined, POLL);
  assert.match(await page.textContent("#problem-text"), words);
  await page.click("#dismiss");
};
// Does something that ends in writing, and waits for that.
const written = async (page, work) => {
  if (work) await page.evaluate(() => { document.querySelector("#status").textContent = ""; });
  await work?.();
  await page.waitForFunction(() => document.querySelector("#status").textContent === "Written." && document.documentElement.dataset.state === "ready", undefined, POLL);
};
const opened = async (page, name) => {
  await page.waitForFunction((name) => document.querySelector("#model-name").textContent === name, name, POLL);
  await written(page); // which it begins with
};

// Small, for a GPU in software.
async function configure(page, settings) {
  await page.evaluate(() => { for (const fold of document.querySelectorAll("#settings details")) fold.open = true; });
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
    await written(page, () => page.click("#write"));
    return Promise.all([page.textContent("#base-text"), page.textContent("#adapter-text")]);
  };
  const none = await write(0);
  assert.equal(none[0], none[1]);
  const one = await write(1);
  assert.equal(one[0], none[0]);
  assert.notEqual(one[1], one[0]);

  // PEFT's two files, out and in.
  const [file] = await Promise.all([page.waitForEvent("download"), page.click("#download")]);
  const files = Object.fromEntries(await unzip(await readFile(await file.path()), () => true));
  assert.deepEqual(Object.keys(files), ["adapter_config.json", "adapter_model.safetensors"]);
  const config = JSON.parse(new TextDecoder().decode(files["adapter_config.json"]));
  assert.deepEqual([config.r, config.lora_alpha, config.peft_type], [4, 8, "LORA"]);
  await page.reload();
  await state(page, "writing");
  assert.ok(await page.isDisabled("#scale"), "a new page has no adapter");
  await page.fill("#prompt", "Day 1.");
  await configure(page, {});
  await state(page, "ready");
  await written(page, async () => page.setInputFiles("#adapter-file", await file.path()));
  assert.deepEqual(await write(1), one, "the same words");
  assert.match(await page.textContent("#adapter-report"), new RegExp(`: ${modules.length} of the model’s ${modules.length} modules adapted, rank 4, [\\d,.]+ parameters`));
  const names = Object.keys(files);
  await written(page, () => page.setInputFiles("#adapter-file", names.map((name) => ({ name, mimeType: "application/octet-stream", buffer: Buffer.from(files[name]) }))));
  assert.equal((await write(1))[1], one[1], "and by the two files alone");
  const packed = deflated({ "my adapter/notes.txt": Buffer.from("mine"), ...Object.fromEntries(names.map((name) => [`my adapter/${name}`, files[name]])) });
  await written(page, () => page.setInputFiles("#adapter-file", { name: "My adapter.ZIP", mimeType: "application/zip", buffer: Buffer.from(packed) }));
  assert.equal((await write(1))[1], one[1], "and packed again by another program");

  // What is none says so, and leaves the adapter.
  for (const [broken, words] of [
    [[{ name: "adapter.zip", mimeType: "application/zip", buffer: Buffer.from("no archive") }], /expected a zip of adapter_config\.json and adapter_model\.safetensors/],
    [[{ name: "adapter_config.json", mimeType: "application/json", buffer: Buffer.from(files[names[0]]) }, { name: "adapter_model.safetensors", mimeType: "", buffer: Buffer.from(files[names[1]].slice(0, 1000)) }], /adapter|safetensors/],
    [[{ name: "adapter_config.json", mimeType: "application/json", buffer: Buffer.from("{") }, { name: "adapter_model.safetensors", mimeType: "", buffer: Buffer.from(files[names[1]]) }], /adapterConfig|adapter_config/],
  ]) {
    await page.setInputFiles("#adapter-file", broken);
    await page.waitForSelector("#problem:not([hidden])");
    assert.match(await page.textContent("#problem-text"), words);
    await page.click("#dismiss");
  }
});

// Counts the wake locks that are held, and whether the browser was asked to keep what is stored.
const watchLocks = () => {
  globalThis.locks = 0;
  globalThis.asked = 0;
  Object.defineProperty(Navigator.prototype, "wakeLock", { configurable: true, value: { request: async (kind) => {
    if (kind === "screen") globalThis.locks += 1;
    return { release: async () => { globalThis.locks -= 1; } };
  } } });
  StorageManager.prototype.persist = async () => { globalThis.asked += 1; return true; };
  StorageManager.prototype.persisted = async () => globalThis.asked > 0;
};
lm("paused, the tab closed, and gone on with in another; kept for good; deleted", { init: watchLocks }, async (page, errors) => {
  await configure(page, { steps: 5 });
  assert.ok(await page.isHidden("#persist"), "nothing to keep");
  // At once, however slow the machine and this test are: the page tells of a step before the next one is through.
  await page.evaluate(() => {
    const observer = new MutationObserver(() => {
      if (!(document.querySelector("#n-step").value >= 1)) return;
      observer.disconnect();
      document.querySelector("#pause").click();
    });
    observer.observe(document.querySelector("#n-step"), { attributes: true, childList: true });
  });
  await page.click("#train");
  await page.waitForFunction(() => locks === 1, undefined, POLL); // while it trains the screen stays on
  await state(page, "paused");
  await page.waitForFunction(() => locks === 0, undefined, POLL);
  const before = await snapshot(page);
  assert.ok(before.step >= 1 && before.step < 5, `${before.step}`);
  await page.reload();
  await page.waitForSelector("#runs li");
  assert.match(await page.textContent("#runs li span"), /A ship’s log, .* MB/);
  await page.click("#runs button >> nth=0"); // ends what the base writes
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
  await page.waitForFunction(() => document.querySelectorAll("#runs button").length === 4, undefined, POLL); // both are over and free
  await page.reload();
  await page.waitForFunction(() => document.querySelectorAll("#runs li").length === 2, undefined, POLL);
  await page.click("#persist");
  await page.waitForFunction(() => document.querySelector("#persist").hidden, undefined, POLL);
  assert.equal(await page.evaluate(() => asked), 1);
  for (const left of [1, 0]) {
    await page.click("#runs li >> nth=0 >> button >> nth=1");
    await page.waitForFunction((left) => document.querySelectorAll("#runs li").length === left, left, POLL);
  }
  errors.splice(0, errors.length, ...errors.filter((text) => !/^failed: .*(worker|texts|model)/.test(text))); // fetches that a reload broke off
});

lm("a paused run is let go for another adapter; one that cannot be gone on with leaves the adapter, and can be deleted", {}, async (page) => {
  const open = () => page.evaluate(async () => (await navigator.locks.query()).held.filter(({ name }) => name.includes("checkpoints")).length);
  await configure(page, { steps: 30 });
  await page.evaluate(() => { document.querySelector("#temperature").value = 0; });
  await page.click("#train");
  await until(page, ({ step }) => step >= 2);
  await page.click("#pause");
  await state(page, "paused");
  assert.equal(await open(), 1);
  const [file] = await Promise.all([page.waitForEvent("download"), page.click("#download")]);
  await written(page, async () => page.setInputFiles("#adapter-file", await file.path()));
  assert.equal(await open(), 0, "the paused run");
  const words = await page.textContent("#adapter-text");
  assert.ok(words);

  // Its settings say another rank than its state has.
  await page.evaluate(async () => {
    const runs = await (await navigator.storage.getDirectory()).getDirectoryHandle("lora-webgpu-checkpoints");
    for await (const folder of runs.values()) for await (const handle of folder.values()) {
      const bytes = new Uint8Array(await (await handle.getFile()).arrayBuffer());
      const at = new TextDecoder("latin1").decode(bytes).indexOf('"rank":4') + 7;
      if (at < 7) continue;
      bytes[at] += 1;
      bytes.set(new Uint8Array(await crypto.subtle.digest("SHA-256", bytes.subarray(32))));
      const stream = await handle.createWritable();
      await stream.write(bytes);
      await stream.close();
    }
  });
  await page.click("#runs button >> nth=0");
  await complaint(page, /expected .*q_proj.* 5, .*got .*q_proj.* 4, /);
  await state(page, "ready");
  assert.equal(await open(), 0, "the run of which no training could be made");
  await written(page, () => page.click("#write"));
  assert.equal(await page.textContent("#adapter-text"), words);
  await page.click("#runs li >> nth=0 >> button >> nth=1");
  await page.waitForFunction(() => document.querySelectorAll("#runs li").length === 0, undefined, POLL);
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

lm("JSON lines dropped: what truncation takes is told; the chart follows the theme", {}, async (page) => {
  await configure(page, { length: 20 });
  const long = "a very long question that goes on and on and on and never seems to come to any end at all";
  const lines = [{ prompt: "Hi.", completion: " Ahoy." }, { prompt: "Hi.", completion: ` ${long}` }, { prompt: long, completion: " Lost." }, { messages: [{ role: "user", content: "Hi" }, { role: "assistant", content: "Yes." }] }];
  await drop(page, { "chats.jsonl": `${lines.map((line) => JSON.stringify(line)).join("\n")}\nno JSON\n` });
  await complaint(page, /^1 line could not be read, the first of them line 5: .* 2 examples cut off at 20 tokens, 18 tokens in all\. 1 example left out/);
  assert.equal((await page.inputValue("#text")).split("\n").length, 6);
  await drop(page, { "lost.jsonl": JSON.stringify(lines[2]) });
  await complaint(page, /No example has anything to learn within 20 tokens/);
  // The chart has the theme's colours at once.
  const light = await page.evaluate(() => document.querySelector("#chart canvas").toDataURL());
  await page.emulateMedia({ colorScheme: "dark" });
  await page.waitForFunction((light) => document.querySelector("#chart canvas").toDataURL() !== light, light, POLL);
});

lm("a model of one's own, from a folder and from a GGUF file: trained, its adapter taken out three ways, its run gone on with", {}, async (page, errors) => {
  const asked = [];
  page.on("request", (request) => { if (!request.url().startsWith("blob:")) asked.push(request.url()); });
  await page.setInputFiles("#model-folder", folder);
  await opened(page, "tiny-llama");
  assert.deepEqual(asked, [], "nothing is sent or fetched");
  assert.match(await page.textContent("#model-facts"), /^2 layers, 14 modules, .* MB on the GPU; at most 128 tokens\.$/);
  const estimate = () => page.textContent("#estimate");
  await configure(page, { steps: 6, lr: 0.02, modules: "all", length: 32 });
  await page.waitForFunction(() => /^Training needs [\d.]+ MB/.test(document.querySelector("#estimate").textContent), undefined, POLL);
  const small = await estimate();
  await page.fill("[name=batchSize]", "8");
  await page.waitForFunction((small) => document.querySelector("#estimate").textContent !== small, small, POLL);
  await page.fill("[name=batchSize]", "2");
  await page.evaluate(() => { for (const fold of document.querySelectorAll("#settings details")) fold.open = true; });
  assert.equal(await page.textContent("#module-names li >> nth=0"), "2 × self_attn.q_proj");
  await page.evaluate(axe);
  const violations = await page.evaluate(() => axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) => violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ target }) => target).join()}`)));
  assert.deepEqual(violations, []);

  await page.fill("#text", "the tide was low at dawn. ".repeat(12));
  await page.fill("#prompt", "the ");
  await page.evaluate(() => { document.querySelector("#temperature").value = 0; });
  await page.click("#train");
  await page.waitForFunction(() => lmPage.snapshot().step === 6 && document.documentElement.dataset.state === "ready", undefined, POLL);
  const { losses, name } = await snapshot(page);
  console.log(`  ${small} losses ${losses.map(([, loss]) => loss.toFixed(2)).join(" ")}`);
  assert.ok(losses.length === 6 && losses[5][1] < losses[0][1] - 0.1, "the loss falls");
  assert.match(name, /^tiny-llama: Your own text/);
  const write = async () => {
    await written(page, () => page.click("#write"));
    return page.textContent("#adapter-text");
  };
  const words = await write();

  const take = async (button) => {
    const [file] = await Promise.all([page.waitForEvent("download"), page.click(button)]);
    return [file.suggestedFilename(), await file.path()];
  };
  const [, peft] = await take("#download"), [ggufName, adapter] = await take("#download-gguf"), [mergedName, merged] = await take("#download-merged");
  assert.deepEqual([ggufName, mergedName], ["adapter.gguf", "model.safetensors"]);
  assert.equal(readFileSync(adapter).subarray(0, 4).toString(), "GGUF");
  // Merged is W + alpha/rank·B·A, in float32 here.
  writeFileSync(join(temporary, "adapter"), (await unzip(readFileSync(peft), () => true)).get("adapter_model.safetensors"));
  const floats = ({ bytes }) => new Float32Array(new Uint8Array(bytes).buffer);
  const find = (file, end) => safetensors(file).find(({ name }) => name.endsWith(end));
  const module = "layers.1.mlp.down_proj", [weight, was] = [merged, join(folder, "model.safetensors")].map((file) => find(file, `${module}.weight`));
  const [a, b] = ["A", "B"].map((half) => floats(find(join(temporary, "adapter"), `${module}.lora_${half}.weight`)));
  const [rows, columns] = weight.shape, [now, before] = [floats(weight), floats(was)], rank = 4;
  let [worst, moved] = [0, 0];
  for (let i = 0; i < rows * columns; i += 1) {
    let sum = 0;
    for (let k = 0; k < rank; k += 1) sum += b[Math.floor(i / columns) * rank + k] * a[k * columns + (i % columns)];
    worst = Math.max(worst, Math.abs(before[i] + (8 / rank) * sum - now[i]));
    moved = Math.max(moved, Math.abs(now[i] - before[i]));
  }
  console.log(`  merged: weights moved by up to ${moved.toExponential(1)}, off by ${worst.toExponential(1)}`);
  assert.ok(moved > 1e-3 && worst < 1e-6);

  // What is broken is told, and leaves model and adapter.
  const files = Object.fromEntries(["config.json", "model.safetensors", "tokenizer.json"].map((name) => [name, readFileSync(join(folder, name))]));
  const { "tokenizer.json": _, ...without } = files;
  for (const [broken, message] of [
    [without, /There is no tokenizer\.json among the files/],
    [{ ...files, "tokenizer.json": "{" }, /tokenizer\.json cannot be read: it is not JSON/],
    [{ ...files, "tokenizer.json": "{}" }, /The tokenizer cannot be used/],
    [{ ...files, "config.json": JSON.stringify({ ...config, model_type: "mamba" }) }, /mamba/],
    [{ ...files, "model.safetensors": files["model.safetensors"].subarray(0, 5000) }, /model\.safetensors/],
    [{ "broken.gguf": gguf.subarray(0, 3000) }, /cut off/],
    [{ "adapter.gguf": readFileSync(adapter).subarray(0, 3000) }, /./],
  ]) {
    await drop(page, broken);
    await complaint(page, message);
    await state(page, "ready");
    assert.equal(await page.textContent("#model-name"), "tiny-llama");
  }
  assert.equal(await write(), words, "the same words");

  // Another page: the run belongs to the model, which is asked for and known again.
  await page.reload();
  await page.waitForSelector("#runs li");
  await page.click("#runs button >> nth=0");
  await complaint(page, /trained on another model, tiny-llama: open it first/);
  await page.evaluate(async (files) => {
    const picked = await (await navigator.storage.getDirectory()).getDirectoryHandle("tiny-llama", { create: true });
    for (const [name, base64] of files) {
      const stream = await (await picked.getFileHandle(name, { create: true })).createWritable();
      await stream.write(Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)));
      await stream.close();
    }
    globalThis.showDirectoryPicker = async () => picked; // which only a person can answer
    document.querySelector("#own").open = true;
    document.querySelector("#pick-folder").hidden = false;
  }, Object.entries(files).map(([name, bytes]) => [name, bytes.toString("base64")]));
  await page.click("#pick-folder");
  await opened(page, "tiny-llama");
  // And once more: now the browser knows the folder, and opens it by itself, if it lets the page ask.
  await page.reload();
  await page.waitForSelector("#runs li");
  await page.evaluate(() => {
    const { requestPermission } = FileSystemHandle.prototype;
    FileSystemHandle.prototype.requestPermission = () => Promise.reject(new DOMException("no click", "SecurityError"));
    globalThis.letAsk = () => { FileSystemHandle.prototype.requestPermission = requestPermission; };
  });
  await page.click("#runs button >> nth=0");
  await complaint(page, /trained on another model, tiny-llama: open it first/);
  await page.evaluate(() => letAsk());
  await page.click("#runs button >> nth=0");
  await page.waitForFunction(() => lmPage.snapshot().hasAdapter, undefined, POLL);
  const found = await snapshot(page);
  assert.deepEqual([found.losses, found.model], [losses, "tiny-llama"]);
  await page.evaluate(() => { document.querySelector("#temperature").value = 0; });
  assert.equal(await write(), words, "the same words after the run was read");

  // The GGUF file is the same model; llama.cpp's adapter comes back on it.
  await page.evaluate(() => { document.querySelector("#packing").value = "q8_0"; });
  await drop(page, { "packed.gguf": gguf });
  await opened(page, "packed");
  assert.ok(await page.isVisible("#merged-hint"));
  await page.evaluate(() => { document.querySelector("#packing").value = "as-is"; });
  await drop(page, { "tiny.gguf": gguf });
  await opened(page, "tiny");
  await written(page, () => drop(page, { "adapter.gguf": readFileSync(adapter) }));
  assert.equal(await page.textContent("#adapter-text"), words, "the same words from GGUF");
  assert.ok(await page.isDisabled("#download-merged") && !await page.isDisabled("#download-gguf"));
  await page.evaluate(() => { document.querySelector("#own").open = true; });
  await page.click("#small-model");
  await opened(page, "The small model");
  errors.splice(0, errors.length, ...errors.filter((text) => !/^failed: .*(worker|texts|model)/.test(text))); // fetches that a reload broke off
});

lm("folders dropped from the disk, where the browser gives handles and where it does not; a model in several files leaves as such", {}, async (page) => {
  await dropPaths(page, folder);
  await opened(page, "tiny-llama");
  await page.evaluate(() => { delete DataTransferItem.prototype.getAsFileSystemHandle; });
  await dropPaths(page, sharded);
  await opened(page, "in-two-files");
  await configure(page, { steps: 2, modules: "all", sampleTokens: 1 });
  await page.fill("#text", "the tide was low at dawn. ".repeat(12));
  await page.click("#train");
  await page.waitForFunction(() => lmPage.snapshot().step === 2 && document.documentElement.dataset.state === "ready", undefined, POLL);
  const downloads = [];
  page.on("download", (file) => downloads.push(file));
  await page.click("#download-merged");
  while (downloads.length < 3) await page.waitForTimeout(20);
  const files = Object.fromEntries(await Promise.all(downloads.map(async (file) => [file.suggestedFilename(), await file.path()])));
  const index = readFileSync(files["model.safetensors.index.json"], "utf8"), { weight_map: map } = JSON.parse(index);
  assert.equal(index, readFileSync(join(sharded, "model.safetensors.index.json"), "utf8"));
  assert.deepEqual(Object.keys(files).sort(), [...new Set(Object.values(map)), "model.safetensors.index.json"].sort());
  let changed = 0;
  for (const name of new Set(Object.values(map))) {
    const [after, before] = [files[name], join(sharded, name)].map(safetensors);
    assert.deepEqual(after.map(({ name, shape, dtype }) => ({ name, shape, dtype })), before.map(({ name, shape, dtype }) => ({ name, shape, dtype })));
    for (const [i, { name: tensor, bytes }] of after.entries()) {
      assert.equal(map[tensor], name);
      if (!bytes.equals(before[i].bytes)) changed += 1;
    }
  }
  assert.equal(changed, 14, "every linear layer");
  // Its run is of these files: others of the same model are not taken for them, and the same ones are when they come again.
  await dropPaths(page, folder);
  await opened(page, "tiny-llama");
  await page.click("#runs button >> nth=0");
  await complaint(page, /trained on another model, in-two-files: open it first/);
  await dropPaths(page, sharded);
  await opened(page, "in-two-files");
  await page.click("#runs button >> nth=0");
  await page.waitForFunction(() => lmPage.snapshot().hasAdapter, undefined, POLL);
  assert.equal((await snapshot(page)).step, 2);
  // An adapter's folder, too.
  const adapter = join(temporary, "an adapter");
  mkdirSync(adapter);
  const [file] = await Promise.all([page.waitForEvent("download"), page.click("#download")]);
  for (const [name, bytes] of await unzip(readFileSync(await file.path()), () => true)) writeFileSync(join(adapter, name), bytes);
  await written(page, () => dropPaths(page, adapter));
  assert.match(await page.textContent("#adapter-report"), /14 of the model’s 14 modules/);
});

// Saves when it is hidden, since it may be closed then; trains on, as there are no animation frames.
const hide = (page) => page.evaluate(() => {
  globalThis.requestAnimationFrame = () => 1;
  Object.defineProperty(document, "hidden", { configurable: true, value: true });
  document.dispatchEvent(new Event("visibilitychange"));
});
lm("hidden, it trains on; its device lost in the middle: one click, and it carries on from the last checkpoint", {}, async (page, errors) => {
  await configure(page, { steps: 6 });
  await page.click("#train");
  await until(page, ({ step }) => step >= 1);
  await hide(page); // saved with the step that was under way
  await until(page, ({ step }) => step >= 3);
  const { losses, step } = await snapshot(page);
  await page.evaluate(() => { lmPage.destroyDevice(); });
  await state(page, "lost");
  assert.match(await page.textContent("#problem-text"), /can go on from where it was last saved/);
  assert.ok(step < 6, "in the middle");
  assert.equal(await page.textContent("#restart"), "Carry on");
  await page.click("#restart");
  await state(page, "training");
  const saved = (await snapshot(page)).step;
  assert.ok(saved >= 1 && saved <= step, `saved at ${saved}, lost after ${step}`);
  await state(page, "ready");
  const now = await snapshot(page);
  console.log(`  saved after ${saved} steps, lost after ${step}: ${now.losses.map(([, loss]) => loss.toFixed(3)).join(" ")}`);
  assert.deepEqual(now.losses.map(([step]) => step), [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(now.losses.slice(0, losses.length), losses, "the steps that were lost come out as they were");
  errors.splice(0, errors.length, ...errors.filter((text) => !/device|destroyed|lost|failed: .*/i.test(text)));
});
