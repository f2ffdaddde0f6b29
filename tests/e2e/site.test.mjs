// The built site, page by page: what it may reach, what it weighs, whether everybody can use it.
// LORA_SCREENSHOTS=folder leaves pictures of each page there.
import assert from "node:assert/strict";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { availableParallelism, loadavg, tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import ts from "typescript";
import { root } from "../../scripts/lib.mjs";
import { serve } from "../../scripts/start.mjs";
import * as words from "../../www/text.js";
import { launch, onPage } from "./browser.mjs";

const site = join(root, "www/dist");
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const pages = () => [...readdirSync(site), ...readdirSync(join(site, "docs")).map((name) => `docs/${name}`)].filter((name) => name.endsWith(".html")).sort();
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

const POLL = { polling: 50 };
const state = (page, ...names) => page.waitForFunction((names) => [undefined, ...names].includes(document.documentElement.dataset.state), names, POLL);
const settled = (page) => state(page, "ready", "writing", "missing", "lost");
const on = (path, options, body) => onPage(browser, server.url + path, options, body);

const violations = (page) => page.evaluate(async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html, failureSummary }) => `${html.slice(0, 120)} (${failureSummary})`).slice(0, 3).join("; ")}`);
});

const sticksOut = (page) => page.evaluate(() => [...document.querySelectorAll("body *")]
  .filter((element) => !element.closest(".scroll, pre, .skip") && element.getBoundingClientRect().right > innerWidth + 0.5)
  .map((element) => element.outerHTML.slice(0, 80)));

test("every page, phone and desktop, light and dark: axe-core finds nothing, and nothing sticks out", async () => {
  const folder = process.env.LORA_SCREENSHOTS;
  if (folder) mkdirSync(folder, { recursive: true });
  assert.ok(pages().includes("index.html") && pages().includes("check.html") && pages().includes("docs/api.html"));
  for (const path of pages()) {
    await on(path, {}, async (page) => {
      await settled(page);
      await page.evaluate(axe);
      for (const [device, width, height] of [["phone", 360, 740], ["desktop", 1600, 900]]) {
        for (const colorScheme of ["light", "dark"]) {
          await page.setViewportSize({ width, height });
          await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
          await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => requestAnimationFrame(done)); }));
          // One pass for each scheme and width, except in the long documents, which differ in words alone.
          if (!path.startsWith("docs/") || device === "phone") assert.deepEqual(await violations(page), [], `${path}, ${device}, ${colorScheme}`);
          assert.deepEqual(await sticksOut(page), [], `${path} at ${width}`);
          if (path === "model.html") assert.ok((await page.locator("#train").boundingBox()).y < height - 40, "Train is at hand");
          if (folder) await page.screenshot({ path: join(folder, `${path.replace("/", "-").slice(0, -5)}-${device}-${colorScheme}.png`), fullPage: device === "phone" && !path.startsWith("docs/") });
        }
      }
    });
  }
  console.log(`  ${pages().length} pages`);
});

test("every page can be reached by its links, and every link of the site leads somewhere", async () => {
  const seen = new Set(), todo = [server.url];
  while (todo.length) {
    const url = todo.pop();
    if (seen.has(url)) continue;
    seen.add(url);
    const response = await fetch(url);
    assert.equal(response.status, 200, url);
    if (!response.headers.get("content-type").startsWith("text/html")) continue;
    const html = await response.text();
    assert.doesNotMatch(html, /\{\{/, url);
    for (const [, href] of html.matchAll(/<a [^>]*href="([^"]+)"/g)) {
      const target = new URL(href, url);
      if (target.host !== new URL(server.url).host) { // code and issues of the project, nothing else
        assert.ok(target.href.startsWith(words.site.repository), target.href);
        const path = target.pathname.split("/blob/main/")[1];
        if (path) assert.ok(existsSync(join(root, path)), `${url} links to ${path}`);
        continue;
      }
      const hash = target.hash;
      target.hash = "";
      if (hash && target.href === url) assert.ok(html.includes(`id="${decodeURIComponent(hash.slice(1))}"`), `${url} has no ${hash}`);
      todo.push(target.href);
    }
  }
  for (const path of pages()) assert.ok(seen.has(server.url + path) || path === "index.html", `${path} is linked from nowhere`);
});

test("the English is in www/text.js: pages have placeholders, and scripts no words", () => {
  const names = readdirSync(join(root, "www"));
  for (const name of names.filter((name) => name.endsWith(".html"))) {
    const source = readFileSync(join(root, "www", name), "utf8").replace(/<!doctype html>|<option[^>]*>(\d+|AdamW|SGD)|\{\{[\w.]+\}\}/g, "").replace(/<[^>]*>/g, "");
    assert.deepEqual(source.match(/\p{L}{2,}/gu), null, name);
  }
  // Two words in a row are somebody's sentence, but for styles of the browser's and what a model is given in its own form.
  const sentence = /\p{L}{2,}[,.:]? \p{Ll}{2,}/u, none = /^\d+px |^\(prefers-|^Question: /;
  const found = [];
  for (const name of names.filter((name) => name.endsWith(".js") && !["text.js", "vite.config.js"].includes(name))) {
    const file = ts.createSourceFile(name, readFileSync(join(root, "www", name), "utf8"), ts.ScriptTarget.ES2022, true);
    const look = (node) => {
      const words = ts.isStringLiteral(node) || ts.isNoSubstitutionTemplateLiteral(node) || ts.isTemplateHead(node) || ts.isTemplateMiddle(node) || ts.isTemplateTail(node) ? node.text : "";
      if (sentence.test(words) && !none.test(words)) found.push(`${name}: ${words}`);
      ts.forEachChild(node, look);
    };
    look(file);
  }
  assert.deepEqual(found, []);
  assert.match("That did not work", sentence);
});

test("the references name everything: what the package exports, what the crate does, every kernel", () => {
  const page = (name) => readFileSync(join(site, `docs/${name}.html`), "utf8");
  const has = (html, id) => assert.ok(html.includes(`id="${id.toLowerCase()}"`), id);
  const api = page("api"), rust = page("rust");
  const exported = (path, pattern) => Array.from(readFileSync(join(root, path), "utf8").matchAll(pattern), ([, names]) => names.split(",").map((name) => name.trim().replace(/^type |^\w+ as /, ""))).flat().filter(Boolean);
  const classes = exported("js/index.ts", /^export (?:type )?\{([^}]*)\}/gm), items = exported("src/lib.rs", /^pub use [\w:]+::\{([^}]*)\};/gm);
  assert.ok(classes.length > 50 && items.length > 50, `${classes.length}, ${items.length}`);
  for (const name of classes) has(api, name);
  for (const name of items) has(rust, name.replaceAll("_", "-"));
  for (const name of readdirSync(join(root, "shaders/lora"))) has(rust, `kernels-lora-${name.slice(0, -5).replaceAll("_", "-")}-record`);
});

// The page's promise that nothing leaves it, kept by the browser.
test("no request to another host leaves a page or a worker", async () => {
  let arrived = [];
  const other = createServer((request, response) => {
    arrived.push(request.url);
    response.writeHead(200, { "access-control-allow-origin": "*", "content-type": "text/javascript" }).end("export {};");
  });
  await new Promise((done) => { other.listen(0, "127.0.0.1", done); });
  const elsewhere = `http://127.0.0.1:${other.address().port}`;
  try {
    assert.equal((await fetch(`${elsewhere}/from-node`)).status, 200);
    assert.deepEqual(arrived, ["/from-node"], "the other host can be reached as such");
    arrived = [];
    const attempt = async (elsewhere) => {
      const how = {
        fetch: () => fetch(`${elsewhere}/fetch`, { mode: "no-cors" }),
        cors: () => fetch(`${elsewhere}/cors`, { method: "POST", body: "weights" }),
        import: () => import(`${elsewhere}/import.js`),
        socket: () => new Promise((done, fail) => { const socket = new WebSocket(elsewhere.replace("http", "ws")); socket.onopen = done; socket.onerror = fail; }),
      };
      if (globalThis.Image) {
        how.image = () => new Promise((done, fail) => { Object.assign(new Image(), { onload: done, onerror: fail, src: `${elsewhere}/image` }); });
        how.style = () => new Promise((done, fail) => { document.head.append(Object.assign(document.createElement("link"), { rel: "stylesheet", href: `${elsewhere}/style`, onload: done, onerror: fail })); });
      }
      const results = {};
      for (const [name, go] of Object.entries(how)) results[name] = await Promise.resolve().then(go).then(() => "went", () => "refused");
      navigator.sendBeacon?.(`${elsewhere}/beacon`, "weights");
      return results;
    };
    await on("check.html", {}, async (page, errors) => {
      await state(page, "ready");
      const here = await page.evaluate(attempt, elsewhere);
      const [worker] = page.workers();
      const there = await worker.evaluate(attempt, elsewhere);
      await page.waitForTimeout(300); // a beacon tells nobody
      assert.deepEqual(Object.values(here), Object.keys(here).map(() => "refused"), JSON.stringify(here));
      assert.deepEqual(Object.values(there), Object.keys(there).map(() => "refused"), JSON.stringify(there));
      assert.equal(Object.keys(there).length, 4);
      errors.length = 0; // the browser's own words about what it refused
    });
    assert.deepEqual(arrived, []);
  } finally {
    other.closeAllConnections();
    other.close();
  }
});

test("every response has the policy, scripts, workers, wasm and what is missing included", async () => {
  const files = readdirSync(site, { recursive: true }).filter((name) => /\.\w+$/.test(name));
  for (const kind of [".html", ".js", ".wasm", ".css"]) assert.ok(files.some((name) => name.endsWith(kind)), kind);
  assert.ok(files.some((name) => name.includes("worker")));
  for (const name of [...files, "missing", ""]) {
    const response = await fetch(server.url + name, { method: "HEAD" });
    const policy = response.headers.get("content-security-policy");
    assert.match(policy, /^default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self';/, name);
    assert.doesNotMatch(policy, /'unsafe|https?:|\*/, "neither eval, inline scripts nor other hosts");
  }
});

test("under a sub-path, without any header", async () => {
  const folder = mkdtempSync(join(tmpdir(), "lora-site-"));
  cpSync(site, join(folder, "x"), { recursive: true });
  const plain = await serve(folder, 0);
  try {
    assert.equal((await fetch(`${plain.url}x/`)).headers.get("content-security-policy"), null);
    await onPage(browser, `${plain.url}x/`, {}, async (page) => {
      await state(page, "ready");
      await page.click("#step");
      await page.waitForFunction(() => loraDemo.snapshot().step === 1, undefined, POLL);
      await page.click(`nav >> text=${words.site.check}`);
      await state(page, "ready");
      assert.equal(page.url(), `${plain.url}x/check.html`);
      await page.click(`nav >> text=${words.site.docs}`);
      await page.click(`text=${words.docs.api}`);
      assert.equal(page.url(), `${plain.url}x/docs/api.html`);
      await page.click(`nav >> text=${words.site.layer}`);
      await state(page, "ready");
      assert.equal(page.url(), `${plain.url}x/`);
    });
  } finally {
    await plain.close();
    rmSync(folder, { recursive: true });
  }
});

// What a visitor may do first on a page, and sees the effect of.
const FIRST = {
  "index.html": async (page) => { await page.click("#step"); await page.waitForFunction(() => loraDemo.snapshot().step === 1, undefined, POLL); },
  "model.html": async (page) => { await page.selectOption("#style", "recipes.txt"); await page.waitForFunction(() => document.querySelector("#text").value.startsWith("BARLEY"), undefined, POLL); },
  "check.html": (page) => page.waitForSelector("#start:enabled"),
};
test("what a page weighs, and how soon it can be used", async () => {
  for (const path of pages()) {
    const context = await browser.newContext(); // nothing is cached
    try {
      const page = await context.newPage(), sizes = [];
      page.on("requestfinished", (request) => { if (!/\/(model|texts)\//.test(request.url())) sizes.push(request.sizes()); }); // without the model, and what is learnt
      const began = performance.now(), since = () => ((performance.now() - began) / 1000).toFixed(2);
      await page.goto(server.url + path);
      await FIRST[path]?.(page);
      const first = since();
      await state(page, "ready", "writing", "paused", "missing");
      const ready = since();
      const bytes = (await Promise.all(sizes)).reduce((sum, { responseBodySize, responseHeadersSize }) => sum + responseBodySize + responseHeadersSize, 0);
      console.log(`  ${path.padEnd(26)} ${(bytes / 1000).toFixed(0).padStart(4)} KB, first interaction after ${first} s${path === "model.html" ? `, the model is there after ${ready} s` : ""}`);
      assert.ok(bytes > 3000 && bytes < 400_000, `${path}: ${bytes} bytes transferred`);
    } finally {
      await context.close();
    }
  }
});

const watchTasks = () => {
  globalThis.longTasks = [];
  new PerformanceObserver((list) => longTasks.push(...list.getEntries().map(({ duration }) => duration))).observe({ type: "longtask" });
};

test("Check my GPU: every kernel of this device and the gradients agree with the reference, while the page stays free", async () => {
  await on("check.html", { init: watchTasks, permissions: ["clipboard-read", "clipboard-write"] }, async (page) => {
    await state(page, "ready");
    const listed = readFileSync(join(root, "docs/numerics.md"), "utf8").match(/^\| `\w+\/\w+`/gm).map((line) => line.slice(3, -1)).sort();
    await page.evaluate(() => { longTasks.length = 0; });
    await page.click("#start");
    await state(page, "done");
    const { results, gradients, compiling, seconds, markdown, facts } = await page.evaluate(() => gpuCheck.report());
    assert.deepEqual(results.map(({ name }) => name).sort(), listed, "every kernel is in the table");
    // Which ones a device is given is checked against the source by tests/contract.rs.
    const chosen = results.filter(({ chosen }) => chosen), others = results.filter(({ chosen }) => !chosen);
    assert.ok(chosen.length > others.length && others.some(({ name }) => name === "nn/attention_tiled"), "on a software adapter");
    for (const { name, error, shapes, share, ms } of chosen) {
      assert.equal(error, "", name);
      assert.ok(shapes >= 1 && share >= 0 && share <= 1 && ms > 0, `${name}: ${JSON.stringify({ shapes, share, ms })}`);
    }
    for (const { name, error, shapes } of others) assert.deepEqual([error, shapes], ["", 0], name);
    assert.ok(results.some(({ share }) => share > 0.01), "f32 errs");
    assert.equal(gradients.error, "");
    assert.ok(gradients.shapes >= 1 && gradients.worst > 0 && gradients.worst <= 1e-3);
    const tasks = await page.evaluate(() => longTasks);
    console.log(`  ${chosen.length} kernels and ${others.length} of other devices, ${results.reduce((sum, { shapes }) => sum + shapes, 0)} runs, gradients to ${gradients.worst.toExponential(1)}, ${seconds.toFixed(1)} s, ${compiling.toFixed(1)} of them waiting for compilers, at a load of ${loadavg()[0].toFixed(0)} on ${availableParallelism()} cores; ${tasks.length} long tasks, the longest ${Math.max(0, ...tasks).toFixed(0)} ms`);
    assert.ok((await page.textContent("#status")).startsWith(`All ${chosen.length} kernels of this device, and the gradients, agree`));
    assert.ok(Object.keys(facts.limits).length > 20 && facts.limits.maxBufferSize > 0);
    await page.click("#copy");
    await page.waitForFunction((copied) => document.querySelector("#status").textContent.endsWith(copied), words.check.copied, POLL);
    const text = await page.evaluate(() => navigator.clipboard.readText());
    assert.equal(text.split("\n").length, markdown.split("\n").length);
    assert.match(text, /\| lora\/grad_a \| agrees \|[\s\S]*\| nn\/attention_tiled \| not used on this device \|[\s\S]*\| maxStorageBufferBindingSize \|/);
    await page.evaluate(axe);
    assert.deepEqual(await violations(page), []);
    if (process.env.LORA_SCREENSHOTS) await page.screenshot({ path: join(process.env.LORA_SCREENSHOTS, "check-done-desktop-light.png") });
  });
});

// A driver that computes wrongly must show. One stands in whose copies are of something else.
test("Check my GPU: a device that computes wrongly is found out, and the page says where", async () => {
  const context = await browser.newContext();
  try {
    const page = await context.newPage();
    page.setDefaultTimeout(120_000); // a stop waits for what is being compiled
    // Every worker begins with a line that makes one kernel's scale wrong.
    await page.route(/check\.worker.*\.js$/, async (route) => {
      const response = await route.fetch();
      const wrong = `{ const { createShaderModule } = GPUDevice.prototype;
        GPUDevice.prototype.createShaderModule = function (descriptor) {
          return createShaderModule.call(this, { ...descriptor, code: descriptor.code.replace(/params\\.scale/g, "(2.0 * params.scale)") });
        }; }\n`;
      await route.fulfill({ response, body: wrong + await response.text() });
    });
    await page.goto(`${server.url}check.html`);
    await state(page, "ready");
    // Until something of each is there; the rest can be had afterwards.
    await page.click("#start");
    const reached = (n) => page.waitForFunction((n) => gpuCheck.report().results.filter(({ shapes, error }) => shapes || error).length >= n, n, POLL);
    await reached(20);
    await page.click("#start");
    await state(page, "done");
    const { results } = await page.evaluate(() => gpuCheck.report());
    assert.ok(results.some(({ shapes, error }) => !shapes && !error), "it was stopped");
    const wrong = results.filter(({ error }) => error).map(({ name }) => name);
    console.log(`  found wrong: ${wrong.join(", ")}`);
    assert.ok(wrong.includes("lora/grad_a") && wrong.includes("lora/add_scaled"));
    assert.ok(!wrong.includes("lora/project_a") && !wrong.includes("loss/mse"));
    assert.match(await page.textContent("#status"), /came out wrong/);
    assert.match(await page.textContent("#kernels"), /wrong: lora\/grad_a at .* is not/);
    assert.match(await page.getAttribute("#status", "class"), /warn/);
    await page.click("#rest");
    await reached(results.filter(({ shapes, error }) => shapes || error).length + 1);
    await page.click("#start");
    await state(page, "done");
  } finally {
    await context.close();
  }
});

// As some browsers hide it; the package then times both kinds of kernels.
test("Check my GPU runs what the package would choose where the adapter does not say what it is", async () => {
  await on("check.html", {}, async (page) => {
    await page.route(/check\.worker.*\.js$/, async (route) => {
      const response = await route.fetch();
      const silent = `for (const [type, name] of [[GPUAdapter, "info"], [GPUDevice, "adapterInfo"]])
        Object.defineProperty(type.prototype, name, { value: { vendor: "", architecture: "", device: "", description: "" } });\n`;
      await route.fulfill({ response, body: silent + await response.text() });
    });
    await page.goto(`${server.url}check.html`);
    await state(page, "ready");
    await page.click("#start");
    await page.waitForFunction(() => gpuCheck.report().results.some(({ shapes }) => shapes), undefined, POLL);
    await page.click("#start");
    await state(page, "done");
    const { profile, facts, results } = await page.evaluate(() => gpuCheck.report());
    assert.deepEqual([profile, facts.isSoftware, facts.vendor], ["software", false, ""]);
    const chosen = results.filter(({ chosen }) => chosen).map(({ name }) => name);
    assert.ok(chosen.includes("base/linear_quad") && chosen.includes("nn/attention") && !chosen.includes("nn/attention_tiled"));
  });
});

test("Check my GPU: on a GPU, too, what needs subgroups or f16 can be run where the adapter has them, and only there", async () => {
  const lists = readFileSync(join(root, "tests/kernels/chosen.rs"), "utf8");
  const listed = (name) => lists.match(new RegExp(`const ${name}: [^=]*=\\s*&\\[([^\\]]*)\\]`))[1].match(/\w+\/\w+/g);
  for (const has of [true, false]) {
    await on("check.html", {}, async (page) => {
      await page.route(/check\.worker.*\.js$/, async (route) => {
        const response = await route.fetch();
        const gpu = `for (const [type, name] of [[GPUAdapter, "info"], [GPUDevice, "adapterInfo"]])
            Object.defineProperty(type.prototype, name, { value: { vendor: "nvidia", architecture: "", device: "", description: "" } });
          { const { get } = Object.getOwnPropertyDescriptor(GPUAdapter.prototype, "features");
            Object.defineProperty(GPUAdapter.prototype, "features", { get() { return new Set([...get.call(this)].filter((name) => ${has} || name !== "subgroups")); } }); }
          GPUDevice.prototype.createComputePipelineAsync = () => new Promise(() => {}); // nothing is to run\n`;
        await route.fulfill({ response, body: gpu + await response.text() });
      });
      await page.goto(`${server.url}check.html`);
      await state(page, "ready");
      await page.click("#start");
      await page.waitForFunction(() => gpuCheck.report().results?.length, undefined, POLL);
      const { results, facts } = await page.evaluate(() => gpuCheck.report());
      assert.equal(facts.features.includes("subgroups"), has);
      const of = (key) => results.filter((result) => result[key]).map(({ name }) => name);
      assert.ok(of("chosen").includes("nn/attention_tiled") && !of("chosen").includes("base/linear_quad"));
      const missing = [...(has ? [] : ["QUADS", "SUBGROUPS"]), ...(facts.features.includes("shader-f16") ? [] : ["F16"])].flatMap(listed);
      const impossible = results.map(({ name }) => name).filter((name) => !of("possible").includes(name));
      // A product of the base has a kernel for each layout of the weight.
      assert.deepEqual(impossible.filter((name) => !missing.some((kernel) => name === kernel || name.startsWith(`${kernel}_`))), []);
      for (const kernel of missing) assert.ok(impossible.some((name) => name.startsWith(kernel)), kernel);
      if (!has) assert.match(await page.textContent("#kernels"), new RegExp(words.check.impossible));
    });
  }
});
test("Check my GPU without WebGPU says what is needed", async () => {
  await on("check.html", {}, async (page, errors) => {
    await page.route(/check\.worker.*\.js$/, async (route) => {
      const response = await route.fetch();
      await route.fulfill({ response, body: `Object.defineProperty(WorkerNavigator.prototype, "gpu", { value: undefined });\n${await response.text()}` });
    });
    await page.goto(`${server.url}check.html`);
    await state(page, "missing");
    assert.match(await page.textContent("#missing-text"), /no WebGPU/);
    assert.ok(await page.isHidden("#app"));
    errors.length = 0;
  });
});
