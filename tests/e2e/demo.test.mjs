// The built demo in a real browser. LORA_SCREENSHOTS=folder leaves pictures of the trained demo there.
import assert from "node:assert/strict";
import { existsSync, mkdirSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { unzip } from "../../dist/zip.js";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import { percent } from "../../www/format.js";
import { launch, onPage } from "./browser.mjs";

const site = join(root, "www/dist");
let browser, server;

before(async () => {
  assert.ok(existsSync(join(site, "index.html")), "www/dist is missing: npm run build");
  server = await serve(site, 0);
  browser = await launch();
});
after(async () => {
  await browser?.close();
  await server?.close();
});

// Beside it stands the next number.
test("a share takes no more room than 100 %, however small", () => {
  assert.deepEqual([1, 0.0634, 0.000123, 6.3e-7, 0].map(percent), ["100\u00a0%", "6.34\u00a0%", "0.0123\u00a0%", "<\u00a00.01\u00a0%", "0\u00a0%"]);
  for (let share = 1; share > 1e-9; share /= 1.7) assert.ok(percent(share).length <= 8, percent(share));
});

const POLL = { polling: 50 }; // not by animation frames, which one of the tests does without
const state = (page, ...names) => page.waitForFunction((names) => names.includes(document.documentElement.dataset.state), names, POLL);

// The page's state with its matrices as plain arrays.
const snapshot = (page) => page.evaluate(() => {
  const { target, learnt, ...rest } = loraDemo.snapshot();
  return { ...rest, target: Array.from(target), learnt: Array.from(learnt) };
});
// The condition is tested here: the page's policy lets nobody evaluate a text.
async function until(page, condition) {
  const look = () => page.evaluate(() => { const { step, loss, lossOff, distance } = loraDemo.snapshot(); return { step, loss, lossOff, distance }; });
  for (let now = await look(); !condition(now); now = await look()) await new Promise((done) => { setTimeout(done, 50); });
}

const demo = (name, options, body) => test(name, () => onPage(browser, server.url, options, async (page, errors) => {
  await state(page, "ready", "missing");
  await body(page, errors);
}));

// ‖a − b‖ / ‖b‖
const distance = (a, b) => Math.sqrt(a.reduce((sum, value, i) => sum + (value - b[i]) ** 2, 0) / b.reduce((sum, value) => sum + value ** 2, 0));

async function screenshots(page) {
  const folder = process.env.LORA_SCREENSHOTS;
  if (!folder) return;
  mkdirSync(folder, { recursive: true });
  await page.mouse.move(0, 0);
  await page.evaluate(() => document.activeElement.blur());
  for (const [device, width, height] of [["desktop", 1600, 800], ["phone", 360, 740]]) {
    for (const colorScheme of ["light", "dark"]) {
      await page.setViewportSize({ width, height });
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      // The charts follow a ResizeObserver, then a frame.
      await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))); }));
      await page.screenshot({ path: join(folder, `${device}-${colorScheme}.png`), fullPage: device === "phone" });
    }
  }
}

const watchTasks = () => {
  globalThis.longTasks = [];
  new PerformanceObserver((list) => longTasks.push(...list.getEntries().map(({ duration }) => duration))).observe({ type: "longtask" });
};
demo("the adapter learns the hidden change, and the page stays responsive", { init: watchTasks }, async (page) => {
  const start = await snapshot(page);
  assert.equal(start.step, 0);
  assert.ok(start.settings.rank >= start.settings.targetRank);
  assert.ok(start.info.isSoftware === await page.isVisible("#software"));
  assert.equal(start.loss, start.lossOff, "B = 0: the adapter changes nothing yet");
  assert.ok(start.learnt.every((value) => value === 0));

  const began = performance.now();
  await page.evaluate(() => { longTasks.length = 0; });
  await page.click("#train");
  await state(page, "training");
  await until(page, (now) => now.step > 0);

  // Events are handled between two steps: how long did ten key presses wait?
  await page.evaluate(() => {
    globalThis.waits = [];
    addEventListener("keydown", (event) => waits.push(performance.now() - event.timeStamp));
  });
  for (let i = 0; i < 10; i += 1) await page.keyboard.press("Shift");
  const waits = await page.evaluate(() => waits);
  assert.equal(waits.length, 10);
  assert.equal((await snapshot(page)).step > 0, true);
  assert.equal(await page.getAttribute("html", "data-state"), "training");
  console.log(`  key presses while training waited at most ${Math.max(...waits).toFixed(0)} ms`);
  assert.ok(Math.max(...waits) < 1000);

  await until(page, (now) => now.loss < now.lossOff / 100);
  console.log(`  a hundredfold below after ${((performance.now() - began) / 1000).toFixed(1)} s`);
  await until(page, (now) => now.distance < 0.002);
  await page.click("#train");
  await state(page, "paused");
  const tasks = await page.evaluate(() => longTasks);
  console.log(`  ${tasks.length} long tasks on the page, the longest ${Math.max(0, ...tasks).toFixed(0)} ms`);
  assert.ok(Math.max(0, ...tasks) < 500);
  const end = await snapshot(page);
  console.log(`  step ${end.step}: loss ${start.loss} → ${end.loss}, distance of α/r·B·A to ΔW* ${end.distance}`);
  assert.ok(end.loss < start.loss / 100);
  assert.ok(Math.abs(end.lossOff - start.lossOff) <= 1e-6 * start.lossOff, "the base is frozen");
  assert.ok(distance(end.learnt, end.target) < 0.002);
  assert.deepEqual([start.hidden.length, start.sigma], [4, [0, 0, 0, 0]]);
  end.hidden.forEach((sigma, i) => assert.ok(Math.abs(end.sigma[i] / sigma - 1) < 0.005, `singular values ${end.sigma}, hidden ${end.hidden}`));
  const bars = await page.evaluate(() => [...document.querySelectorAll("#spectrum span")].map(({ children }) => [...children].map(({ style }) => parseFloat(style.height))));
  assert.equal(bars.length, 4);
  for (const [hidden, learnt] of bars) assert.ok(hidden > 10 && Math.abs(hidden - learnt) < 1);

  // What the eye sees: the two pictures, and the numbers.
  await page.waitForFunction((loss) => Number(document.querySelector("#n-loss").value) === loss, end.loss);
  const pixels = await page.evaluate(() => ["map-target", "map-learnt"].map((id) => {
    const canvas = document.getElementById(id);
    return Array.from(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data);
  }));
  assert.equal(pixels[0].length, 4 * end.target.length);
  assert.ok(new Set(pixels[0]).size > 50, "a picture, not a surface");
  assert.ok(Math.max(...pixels[0].map((value, i) => Math.abs(value - pixels[1][i]))) <= 8);
  assert.match(await page.getAttribute("#map-learnt", "aria-label"), /64 rows, 64 columns/);
  assert.match(await page.textContent("#status"), /^Paused after/);
  await screenshots(page);
});

demo("Pause, Step and Reset", {}, async (page) => {
  await page.click("#step");
  await until(page, (now) => now.step === 1);
  await state(page, "paused");
  await page.click("#train");
  await until(page, (now) => now.step > 5);
  await page.click("#train");
  await state(page, "paused");
  const { step } = await snapshot(page);
  await page.click("#step");
  await until(page, (now) => now.step !== step);
  assert.equal((await snapshot(page)).step, step + 1, "nothing else ran in between");
  await page.click("#reset");
  await until(page, (now) => now.step === 0);
  await state(page, "ready");
  const { loss, lossOff, learnt } = await snapshot(page);
  assert.equal(loss, lossOff);
  assert.ok(learnt.every((value) => value === 0));
});

demo("the same seed gives the same numbers", {}, async (page) => {
  const losses = [];
  for (let run = 0; run < 2; run += 1) {
    for (let step = 1; step <= 3; step += 1) {
      await page.click("#step");
      await until(page, (now) => now.step === step);
    }
    losses.push((await snapshot(page)).loss);
    await page.click("#reset");
    await until(page, (now) => now.step === 0);
    await state(page, "ready");
  }
  assert.equal(losses[0], losses[1]);
});

demo("the adapter switched off and on", {}, async (page) => {
  await page.click("#train");
  await until(page, (now) => now.loss < now.lossOff / 2);
  await page.click("#enabled"); // while it trains: training waits
  await page.waitForFunction(() => !loraDemo.snapshot().enabled);
  await state(page, "paused");
  const off = await snapshot(page);
  assert.equal(off.loss, off.lossOff);
  assert.ok(off.learnt.every((value) => value === 0));
  assert.ok(await page.isDisabled("#train") && await page.isDisabled("#step"));
  assert.equal(await page.textContent("#n-loss-label"), "Loss, adapter off");
  await page.click("#enabled");
  await state(page, "training"); // and goes on
  await until(page, (now) => now.step > off.step);
  assert.ok((await snapshot(page)).loss < off.lossOff / 2);
});

demo("settings rebuild the layer, also while it trains; a rank below the target's has a floor", {}, async (page) => {
  await page.focus("#rank");
  for (let i = 0; i < 2; i += 1) await page.keyboard.press("ArrowLeft");
  await page.waitForFunction(() => loraDemo.snapshot().settings.rank === 2);
  assert.match(await page.textContent("#too-small"), /below the target’s 4/);
  await state(page, "ready");
  await page.click("#train");
  await until(page, (now) => now.step > 3);
  await page.selectOption("[name=optimizer]", "sgd");
  await page.selectOption("[name=inFeatures]", "32");
  await page.selectOption("[name=outFeatures]", "128");
  await page.waitForFunction(() => {
    const { settings, step } = loraDemo.snapshot();
    return settings.optimizer === "sgd" && settings.inFeatures === 32 && settings.outFeatures === 128 && step > 3;
  });
  assert.equal((await snapshot(page)).learnt.length, 32 * 128);
  await until(page, (now) => now.loss < now.lossOff / 1.3);
});

demo("the rank's effect shows at once: what it can reach, and a training that goes on with it", {}, async (page) => {
  await page.click("#step");
  await until(page, (now) => now.step === 1);
  await page.focus("#rank");
  await page.keyboard.press("ArrowLeft");
  await state(page, "training");
  const { settings, floor, sigma, hidden } = await snapshot(page);
  assert.equal(settings.rank, 3);
  assert.equal(sigma.length, 3);
  assert.ok(Math.abs(floor - hidden[3] ** 2 / 64) < 1e-9, "Eckart–Young");
  assert.equal(Number(await page.getAttribute("#n-floor", "value")), floor);
  assert.deepEqual(await page.evaluate(() => [...document.querySelectorAll("#spectrum span")].map((place) => place.className)), ["", "", "", "beyond"]);
  assert.ok(await page.isVisible("#beyond-key"));
  // A and B are as thick as the rank, on the screen, too.
  const thick = () => page.evaluate(() => ["map-a", "map-b"].map((id) => {
    const canvas = document.getElementById(id), { width, height } = canvas.getBoundingClientRect();
    return [canvas.width, canvas.height, Math.min(width, height)];
  }));
  assert.deepEqual(await thick(), [[64, 3, 9], [3, 64, 9]]);
  assert.equal(await page.textContent("#a-key"), "A, 3\u00a0×\u00a064");
  await until(page, (now) => now.loss < now.lossOff / 2);
  await page.keyboard.press("ArrowRight");
  await until(page, (now) => now.step === 0 || now.loss > now.lossOff / 2);
  await until(page, (now) => now.loss < floor / 2);
});

demo("SGD learns too", {}, async (page) => {
  await page.selectOption("[name=optimizer]", "sgd");
  await page.waitForFunction(() => loraDemo.snapshot().settings.optimizer === "sgd");
  await page.click("#train");
  await until(page, (now) => now.loss < now.lossOff / 100);
});

demo("a bad setting is explained, and the layer before it stays", {}, async (page) => {
  await page.fill("[name=alpha]", "");
  await page.press("[name=alpha]", "Enter");
  await page.waitForSelector("#problem:not([hidden])");
  assert.match(await page.textContent("#problem-text"), /alpha: expected a finite number, got NaN/);
  await page.click("#step");
  await until(page, (now) => now.step === 1);
  await page.click("#train");
  await until(page, (now) => now.step > 2);
  await page.fill("[name=alpha]", "");
  await page.press("[name=seed]", "ArrowUp"); // while it trains
  const { step, settings } = await snapshot(page);
  await until(page, (now) => now.step > step);
  assert.equal(settings.seed, 1);
  await page.click("#train");
  await state(page, "paused");
  await page.fill("[name=alpha]", "8");
  await page.press("[name=alpha]", "Enter");
  await until(page, (now) => now.step === 0);
  await page.waitForSelector("#problem", { state: "hidden" });

  await page.fill("[name=lr]", "-1");
  await page.press("[name=lr]", "Enter");
  await page.waitForSelector("#problem:not([hidden])");
  assert.match(await page.textContent("#problem-text"), /^lr/);
  await page.click("#dismiss");
  await page.waitForSelector("#problem", { state: "hidden" });
});

demo("a learning rate that is too large ends in words, not in NaN for ever", {}, async (page) => {
  await page.selectOption("[name=optimizer]", "sgd");
  await page.fill("[name=lr]", "1000");
  await page.press("[name=lr]", "Enter");
  await page.click("#train");
  await page.waitForSelector("#problem:not([hidden])");
  assert.match(await page.textContent("#problem-text"), /smaller learning rate/);
  assert.equal(await page.getAttribute("html", "data-state"), "paused");
});

demo("A and B come as PEFT's two files, which have the page's own product", {}, async (page) => {
  await page.click("#train");
  await until(page, (now) => now.loss < now.lossOff / 2);
  await page.click("#train");
  await state(page, "paused");
  const [file] = await Promise.all([page.waitForEvent("download"), page.click("#download")]);
  assert.equal(file.suggestedFilename(), "lora-demo-r4.zip");
  const files = await unzip(await readFile(await file.path()), () => true);
  const config = JSON.parse(new TextDecoder().decode(files.get("adapter_config.json")));
  assert.deepEqual([config.peft_type, config.r, config.lora_alpha, config.target_modules], ["LORA", 4, 8, ["demo"]]);
  const bytes = Buffer.from(files.get("adapter_model.safetensors"));
  const size = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + size).toString());
  const tensor = (name) => {
    const { dtype, shape, data_offsets: [from, to] } = header[`base_model.model.demo.lora_${name}.weight`];
    assert.equal(dtype, "F32");
    assert.equal(to - from, 4 * shape[0] * shape[1]);
    return { shape, at: (row, column) => bytes.readFloatLE(8 + size + from + 4 * (row * shape[1] + column)) };
  };
  const a = tensor("A"), b = tensor("B");
  assert.deepEqual([a.shape, b.shape], [[4, 64], [64, 4]]);
  const { learnt, scaling } = await snapshot(page);
  assert.equal(scaling, 2);
  const product = learnt.map((_, i) => scaling * [0, 1, 2, 3].reduce((sum, r) => sum + b.at(Math.floor(i / 64), r) * a.at(r, i % 64), 0));
  assert.ok(distance(product, learnt) < 1e-6);
});

demo("by keyboard alone", {}, async (page) => {
  const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.name);
  const order = [];
  await page.focus("#train");
  await page.keyboard.press("Shift+Tab"); // the last link of the site's navigation
  for (let i = 0; i < 13; i += 1) {
    await page.keyboard.press("Tab");
    order.push(await focused());
  }
  assert.deepEqual(order, ["train", "step", "reset", "enabled", "download", "rank", "alpha", "targetRank", "inFeatures", "outFeatures", "optimizer", "lr", "pace"]);
  await page.focus("#train");
  await page.keyboard.press("Space");
  await state(page, "training");
  await page.keyboard.press("Enter");
  await state(page, "paused");
  assert.equal(await focused(), "train");
});

// A hidden tab gets no animation frames.
demo("training needs no animation frames", { init: () => { globalThis.requestAnimationFrame = () => 1; } }, async (page) => {
  await page.click("#train");
  await until(page, (now) => now.step > 10);
});

demo("a lost device is said, and one click starts again", {}, async (page, errors) => {
  await page.click("#train");
  await until(page, (now) => now.step > 0);
  await page.evaluate(() => { loraDemo.destroyDevice(); });
  await state(page, "lost");
  assert.match(await page.textContent("#problem-text"), /GPU was lost/);
  await page.click("#restart");
  await state(page, "ready");
  await page.waitForSelector("#problem", { state: "hidden" });
  await page.click("#step");
  await until(page, (now) => now.step === 1);
  // Chromium's own words about work on a destroyed device are no fault of the page.
  errors.splice(0, errors.length, ...errors.filter((text) => !/device|destroyed|lost/i.test(text)));
});

for (const [code, words, before] of [
  ["no-webgpu", /no WebGPU/, 'Object.defineProperty(WorkerNavigator.prototype, "gpu", { value: undefined });'],
  ["no-adapter", /no GPU to this page/, "GPU.prototype.requestAdapter = async () => null;"],
]) {
  demo(`${code}: the page says what is needed`, {}, async (page) => {
    // The worker begins with a line that takes the GPU away.
    await page.route(/session\.worker.*\.js$/, async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, body: `${before}\n${await response.text()}` });
    });
    await page.reload();
    await state(page, "missing");
    const notice = page.locator("#missing");
    assert.ok(await notice.isVisible());
    assert.match(await notice.innerText(), words);
    assert.match(await notice.innerText(), /Chrome and Edge 113[\s\S]*enable-unsafe-webgpu[\s\S]*Safari 26[\s\S]*Firefox 141[\s\S]*Troubleshooting/);
    assert.ok(await page.isHidden("#app"));
  });
}

demo("at every width nothing sticks out, and the two maps are of one size", {}, async (page) => {
  await page.click("#step");
  await until(page, (now) => now.step === 1);
  for (const width of [360, 768, 1200, 1600]) {
    await page.setViewportSize({ width, height: 800 });
    const { wide, sizes } = await page.evaluate(async () => {
      await new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done))); }); // the charts follow their boxes
      const wide = [...document.querySelectorAll("body *")].filter((element) => element.getBoundingClientRect().right > innerWidth + 0.5).map((element) => element.outerHTML.slice(0, 80));
      return { wide, sizes: ["map-target", "map-learnt"].map((id) => { const { top, width, height } = document.getElementById(id).getBoundingClientRect(); return [top, width, height].map(Math.round); }) };
    });
    assert.deepEqual(wide, [], `${width}`);
    assert.deepEqual(sizes[0], sizes[1], `${width}`);
  }
});
