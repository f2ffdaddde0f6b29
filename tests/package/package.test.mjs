// The tarball as people install it: what is in it, and that it works in what they build with. Nothing here reads dist/.
import assert from "node:assert/strict";
import { execFile, spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";
import { budgets, root } from "../../scripts/lib.mjs";
import { packages } from "../../scripts/setup.mjs";
import { serve } from "../../scripts/start.mjs";
import { launch, onPage } from "../e2e/browser.mjs";

const here = join(root, "tests/package"), tools = join(here, "tools/node_modules");
const LARGEST = budgets.gzip.tarball;

let browser, folder, packed, site;
before(async () => {
  await packages("other bundlers and TypeScripts", join(here, "tools"));
  folder = mkdtempSync(join(tmpdir(), "lora-webgpu-"));
  const output = npm(root, "pack", "--json", "--ignore-scripts", "--pack-destination", folder);
  packed = Object.values(JSON.parse(output))[0];
  cpSync(join(here, "app"), folder, { recursive: true });
  // Where there is no import map, in workers and under a strict policy, the file itself is imported.
  writeFileSync(join(folder, "direct.js"), readFileSync(join(folder, "main.js"), "utf8").replace('"lora-webgpu"', '"./node_modules/lora-webgpu/dist/index.js"'));
  writeFileSync(join(folder, "package.json"), JSON.stringify({ name: "somebody-elses", private: true, type: "module" }));
  npm(folder, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--offline", join(folder, packed.filename));
  browser = await launch();
  site = await serve(folder, 0);
});
after(async () => {
  await browser?.close();
  await site?.close();
  if (folder) rmSync(folder, { recursive: true, force: true });
});

function npm(cwd, ...args) {
  const script = process.env.npm_execpath, own = script?.endsWith(".js"); // npm's own script, where npm started us
  const { status, stdout, stderr } = spawnSync(own ? process.execPath : "npm", own ? [script, ...args] : args, { cwd, encoding: "utf8", shell: !own && process.platform === "win32" });
  assert.equal(status, 0, stderr);
  return stdout;
}
const installed = (...path) => join(folder, "node_modules/lora-webgpu", ...path);
const page = (name, content) => writeFileSync(join(folder, name), content);
const html = (head) => `<!doctype html><meta charset="utf-8"><title>A page</title><link rel="icon" href="data:,">${head}`;
const importMap = '<script type="importmap">{ "imports": { "lora-webgpu": "./node_modules/lora-webgpu/dist/index.js" } }</script>';

const RESULT = { outputs: [[5.5, 10.5], [8.5, 13.5]], trained: true };
/** Opens a page that runs the app, and compares what it computes. */
const works = (url, options = {}) => onPage(browser, url, options, async (own) => {
  await own.waitForFunction(() => globalThis.done);
  assert.deepEqual(await own.evaluate(() => globalThis.done), RESULT);
});

test("the tarball holds exactly the classes, their types, the wasm, the command, the licences and the README", () => {
  const classes = readdirSync(join(root, "js")).flatMap((name) => [".js", ".d.ts"].map((ending) => `dist/${name.replace(/\.ts$/, ending)}`));
  const expected = ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "package.json", "bin/lora-webgpu.mjs", "dist/wasm/lora_webgpu.js", "dist/wasm/lora_webgpu_bg.wasm", ...classes];
  assert.deepEqual(packed.files.map(({ path }) => path).sort(), expected.sort());
  console.log(`# the tarball has ${packed.size} bytes of ${LARGEST}, ${packed.unpackedSize} unpacked`);
  assert.ok(packed.size <= LARGEST, `${packed.size} bytes`);
  const { exports } = JSON.parse(readFileSync(installed("package.json"), "utf8"));
  for (const path of Object.values(exports).flatMap((entry) => (typeof entry === "string" ? entry : Object.values(entry)))) assert.ok(existsSync(installed(path)), path);
  for (const { path } of packed.files) {
    const content = readFileSync(installed(path), "latin1");
    for (const secret of [root, homedir()].filter((each) => each.length > 1)) assert.ok(!content.includes(secret), `${path} names ${secret}, where it was built`);
  }
});

test("Node imports it, and only asking for a Gpu says that there is no WebGPU; init() reads the wasm from disk", async () => {
  const run = async (...args) => JSON.parse((await promisify(execFile)(process.execPath, args, { cwd: folder })).stdout);
  const script = (load) => `(async () => {
    const lora = await ${load};
    const code = (work) => Promise.resolve().then(work).then(() => "none", (error) => (error instanceof lora.LoraError ? error.code + ": " + error.message : String(error)));
    const request = await code(() => lora.Gpu.request());
    const same = lora.init() === lora.init();
    const init = await code(() => lora.init());
    console.log(JSON.stringify({ request, init, same, loss: lora.mse(), names: Object.keys(lora).length }));
  })()`;
  const imported = await run("--input-type=module", "-e", script('import("lora-webgpu")'));
  assert.match(imported.request, /^no-webgpu: .*navigator\.gpu/);
  assert.equal(imported.init, "none");
  assert.ok(imported.same && imported.names > 20);
  assert.deepEqual(imported.loss, { kind: "mse" });
  const require = createRequire(join(folder, "main.js"));
  for (const name of ["lora-webgpu/package.json", "lora-webgpu/lora_webgpu_bg.wasm"]) assert.ok(existsSync(require.resolve(name)), name);
  assert.throws(() => require.resolve("lora-webgpu/dist/gpu.js"), { code: "ERR_PACKAGE_PATH_NOT_EXPORTED" });
});

test("a page without a bundler", async () => {
  page("plain.html", html(`${importMap}<script type="module" src="./main.js"></script>`));
  await works(`${site.url}plain.html`);
});

test("a Web Worker, also of a page with the strict policy", async () => {
  page("start.js", 'globalThis.done = new Promise((resolve) => { new Worker("./direct.js", { type: "module" }).onmessage = ({ data }) => resolve(data); });');
  const policy = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; img-src data:; require-trusted-types-for 'script'; trusted-types scripts";
  page("worker.html", html('<script type="module" src="./start.js"></script>'));
  await works(`${site.url}worker.html`);
  page("start-strict.js", `const scripts = trustedTypes.createPolicy("scripts", { createScriptURL: (url) => url });\n${readFileSync(join(folder, "start.js"), "utf8").replace('"./direct.js"', 'scripts.createScriptURL("./direct.js")')}`);
  page("worker-strict.html", html(`<meta http-equiv="Content-Security-Policy" content="${policy}"><script type="module" src="./start-strict.js"></script>`));
  await works(`${site.url}worker-strict.html`);
});

test("a page under a strict Content-Security-Policy", async () => {
  page("strict.html", html(`<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; connect-src 'self'; img-src data:; require-trusted-types-for 'script'"><script type="module" src="./direct.js"></script>`));
  await works(`${site.url}strict.html`);
});

test("two versions on one page, on one device and in one buffer", async () => {
  const other = join(folder, "node_modules/lora-webgpu-other");
  cpSync(installed(), other, { recursive: true });
  writeFileSync(join(other, "package.json"), readFileSync(installed("package.json"), "utf8").replace(/"version": "[^"]+"/, '"version": "99.0.0"'));
  page("two.html", html(`<script type="module">
    import * as one from "./node_modules/lora-webgpu/dist/index.js";
    import * as two from "./node_modules/lora-webgpu-other/dist/index.js";
    globalThis.done = (async () => {
      const gpus = [await one.Gpu.request()];
      gpus.push(await two.Gpu.fromDevice(gpus[0].device));
      const [y, output] = [new one.Tensor(gpus[0], { shape: [2], data: Float32Array.of(1, 2) }), new one.Tensor(gpus[0], { shape: [2] })];
      const lent = { y: two.Tensor.fromBuffer(gpus[1], { buffer: y.buffer, shape: [2] }), output: two.Tensor.fromBuffer(gpus[1], { buffer: output.buffer, shape: [2] }) };
      for (const [gpu, tensors, scale] of [[gpus[0], { y, output }, 1], [gpus[1], lent, 10]]) {
        const rec = gpu.record();
        rec.addScaled({ ...tensors, scale });
        await rec.submit();
      }
      const mixed = await gpus[1].record().submit().then(() => { try { gpus[1].record().zero(y); } catch (error) { return [error instanceof two.LoraError, error instanceof one.LoraError, error.code]; } });
      gpus[1].dispose();
      return { values: Array.from(await output.read()), mixed, different: one.Gpu !== two.Gpu };
    })();
  </script>`));
  await onPage(browser, `${site.url}two.html`, {}, async (own) => {
    await own.waitForFunction(() => globalThis.done);
    assert.deepEqual(await own.evaluate(() => globalThis.done), { values: [11, 22], mixed: [true, false, "invalid-argument"], different: true });
  });
});

test("init() takes nothing, an address, a response or bytes, twice, and again after a failure", async () => {
  page("bare.html", html(importMap));
  page("page-not-found.html", html("<h1>Not the wasm</h1>"));
  const wasm = "./node_modules/lora-webgpu/dist/wasm/lora_webgpu_bg.wasm";
  const cases = {
    nothing: "undefined", address: `"${wasm}"`, URL: `new URL("${wasm}", location.href)`, response: `await fetch("${wasm}")`, "promise of one": `fetch("${wasm}")`,
    buffer: `await (await fetch("${wasm}")).arrayBuffer()`, bytes: `new Uint8Array(await (await fetch("${wasm}")).arrayBuffer())`,
  };
  for (const [name, source] of Object.entries(cases)) {
    await onPage(browser, `${site.url}bare.html`, {}, async (own) => {
      const found = await own.evaluate(async (text) => {
        const make = new Function("location", `return (async () => { const { Gpu, init, Tensor } = await import("lora-webgpu"); const first = init(${text}); const same = first === init(); await first; const gpu = await Gpu.request(); return [same, Array.from(await new Tensor(gpu, { shape: [2], data: Float32Array.of(1, 2) }).read())]; })()`);
        return make(location);
      }, source);
      assert.deepEqual(found, [true, [1, 2]], name);
    });
  }
  const failures = await onPageResult(`${site.url}bare.html`, async () => {
    const { Gpu, init, LoraError } = await import("lora-webgpu");
    const failure = (source) => init(source).then(() => ["none"], (error) => [error instanceof LoraError && error.code, error.message]);
    const found = {
      html: await failure("./page-not-found.html"),
      bytes: await failure(Uint8Array.of(1, 2, 3)),
      truncated: await failure(new Uint8Array(await (await fetch("./node_modules/lora-webgpu/dist/wasm/lora_webgpu_bg.wasm")).arrayBuffer()).subarray(0, 5000)),
      rejected: await failure(Promise.reject(new TypeError("offline"))),
      scheme: await failure("nowhere:"),
      number: await failure(42),
    };
    const gpu = await Gpu.request(); // tries again by itself
    return { found, gpu: typeof gpu.info.vendor };
  }, /Fetch API cannot load nowhere|nowhere:|URL scheme/);
  for (const [name, [code, message]] of Object.entries(failures.found)) assert.equal(code, "wasm-load", `${name}: ${message}`);
  assert.match(failures.found.html[1], /HTML.*page-not-found\.html.*optimizeDeps\.exclude.*init\(/);
  assert.match(failures.found.rejected[1], /offline/);
  assert.equal(failures.gpu, "string");
});

/** What `work` gives on a page whose errors that match `expected` are the test's own. */
async function onPageResult(url, work, expected = /^$/) {
  let result;
  await onPage(browser, url, {}, async (own, errors) => {
    result = await own.evaluate(work);
    errors.splice(0, errors.length, ...errors.filter((text) => !expected.test(text)));
  });
  return result;
}

for (const [name, path] of [["7", join(tools, "vite-7")], ["8", join(root, "node_modules/vite")]]) {
  test(`Vite ${name}, in development and built`, async () => {
    const { build, createServer } = await import(pathToFileURL(join(path, "dist/node/index.js")));
    const { version } = JSON.parse(readFileSync(join(path, "package.json"), "utf8"));
    assert.ok(version.startsWith(`${name}.`), version);
    const options = { root: folder, configFile: false, logLevel: "error", cacheDir: join(folder, `vite-${name}`), clearScreen: false };
    const dev = async (more, work) => {
      rmSync(options.cacheDir, { recursive: true, force: true });
      const server = await createServer({ ...options, ...more, server: { host: "127.0.0.1", port: 5210, hmr: false, watch: null } });
      try {
        await server.listen();
        await work(server.resolvedUrls.local[0]);
      } finally {
        await server.close();
      }
    };
    await dev({ optimizeDeps: { exclude: ["lora-webgpu"] } }, works);
    // As it comes, 8 finds the wasm; 7 moves the script away from it, which the error says, with both cures.
    writeFileSync(join(folder, "address.js"), 'export { default } from "lora-webgpu/lora_webgpu_bg.wasm?url";');
    await dev({}, (url) => onPage(browser, url, {}, async (own) => {
      await own.waitForFunction(() => globalThis.done);
      const found = await own.evaluate(() => globalThis.done);
      if (name !== "7") return assert.deepEqual(found, RESULT);
      assert.equal(found.code, "wasm-load");
      assert.match(found.message, /HTML.*optimizeDeps\.exclude: \["lora-webgpu"\].*init\(url\)/);
      await own.evaluate(async () => init((await import(new URL("/address.js", location.href))).default));
      assert.deepEqual(await own.evaluate(() => again()), RESULT);
    }));
    const outDir = join(folder, `built-by-vite-${name}`);
    await build({ ...options, build: { outDir, emptyOutDir: true }, base: "./" });
    const built = await serve(outDir, 0);
    await works(built.url).finally(() => built.close());
  });
}

test("webpack 5", async () => {
  const webpack = createRequire(join(tools, "webpack/package.json"))("webpack");
  const outDir = join(folder, "built-by-webpack");
  const stats = await promisify(webpack)({ context: folder, mode: "production", entry: "./main.js", output: { path: outDir }, performance: false });
  assert.ok(!stats.hasErrors() && !stats.hasWarnings(), stats.toString());
  writeFileSync(join(outDir, "index.html"), html('<script src="./main.js"></script>'));
  const built = await serve(outDir, 0);
  await works(built.url).finally(() => built.close());
});

test("types hold under strict and skipLibCheck: false, on TypeScript from 5.4 on, alone and beside @webgpu/types", async () => {
  const compilers = { "5.4": join(tools, "typescript-5.4"), "5.9": join(tools, "typescript-5.9"), "6": join(root, "node_modules/typescript"), "7": join(tools, "typescript-7") };
  const types = join(folder, "types");
  mkdirSync(join(types, "node_modules"), { recursive: true });
  cpSync(installed(), join(types, "node_modules/lora-webgpu"), { recursive: true });
  cpSync(join(tools, "@webgpu/types"), join(types, "node_modules/@webgpu/types"), { recursive: true });
  cpSync(join(here, "types.ts"), join(types, "types.ts"));
  writeFileSync(join(types, "package.json"), JSON.stringify({ name: "types", private: true, type: "module" }));
  const all = [];
  for (const [name, path] of Object.entries(compilers)) {
    const { version, bin } = JSON.parse(readFileSync(join(path, "package.json"), "utf8"));
    assert.ok(version.startsWith(`${name}.`), version);
    // From 6 on TypeScript's own DOM library has WebGPU, with which @webgpu/types does not go.
    const beside = Number(name) < 6 ? ["@webgpu/types"] : [];
    for (const [moduleResolution, module, more] of [["bundler", "ESNext", []], ["nodenext", "NodeNext", beside]]) {
      const config = `${name}-${moduleResolution}.json`;
      const compilerOptions = { strict: true, skipLibCheck: false, noEmit: true, target: "ES2022", lib: ["ES2022", "DOM"], module, moduleResolution, types: more };
      writeFileSync(join(types, config), JSON.stringify({ compilerOptions, files: ["types.ts"] }));
      all.push(promisify(execFile)(process.execPath, [join(path, bin.tsc), "-p", config], { cwd: types }).then(
        () => [version, moduleResolution, ...more].join(" "),
        (error) => assert.fail(`TypeScript ${version}, ${moduleResolution}, ${more}: ${error.stdout || error.message}`),
      ));
    }
    await Promise.all(all); // two at once
  }
  console.log(`# compiled by TypeScript ${(await Promise.all(all)).join("; ")}`);
});
