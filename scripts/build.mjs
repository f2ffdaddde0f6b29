// npm run build: Rust → wasm → glue → dist/ (what npm gets), then www/ → www/dist (the site), and the sizes beside the budget.
import { existsSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { homedir } from "node:os";
import { join, relative } from "node:path";
import { pathToFileURL } from "node:url";
import { gzipSync } from "node:zlib";
import { writeDocs } from "./docs.mjs";
import { budgets, locked, main, must, root, rust, say, seconds, stop, target, targetDir, tool, toolDir } from "./lib.mjs";
import { nameByLikeness, shortenImports } from "./shrink.mjs";

// What rustc's wasm32 target emits since 1.87, and every browser with WebGPU understands.
const FEATURES = ["bulk-memory", "bulk-memory-opt", "multivalue", "mutable-globals", "nontrapping-float-to-int", "reference-types", "sign-ext"];
const node = (script, ...args) => must(process.execPath, [join(root, "node_modules", script), ...args]);

export async function build() {
  const start = performance.now();
  const pair = rust();
  const dist = join(root, "dist"), site = existsSync(join(root, "www/index.html"));
  const built = join(targetDir, target, "wasm");
  const bindgen = tool(toolDir("wasm-bindgen", locked("wasm-bindgen"), pair), "wasm-bindgen");
  const finish = async (wasm, folder, name) => {
    rmSync(folder, { recursive: true, force: true });
    await must(bindgen, ["--target", "web", "--out-dir", folder, "--out-name", name, wasm]);
    const path = join(folder, `${name}_bg.wasm`);
    const optimize = (...options) => node("binaryen/bin/wasm-opt", ...options, ...FEATURES.map((name) => `--enable-${name}`), path, "-o", path);
    // A function inlined into its only caller, and a local for what is computed twice, make the file smaller, but what gzip
    // leaves of it larger (by 5 % and 0.3 %).
    await optimize("--one-caller-inline-max-function-size", "0", "--skip-pass=local-cse", "-Oz", "--converge", "--strip-producers");
    shortenImports(path, join(folder, `${name}.js`));
    nameByLikeness(path);
    await optimize("--reorder-functions-by-name");
  };

  say("Compiling the crate to WebAssembly.");
  const what = site ? ["--lib", "--example", "check"] : ["--lib"]; // the site's self-check is a wasm of its own
  await must(pair.cargo, ["build", ...what, "--profile", "wasm", "--target", target], { env: { ...pair.env, ...withoutPaths(pair.env) } });

  say("Writing its JavaScript and shrinking it (wasm-bindgen, wasm-opt).");
  rmSync(dist, { recursive: true, force: true });
  await Promise.all([
    finish(join(built, "lora_webgpu.wasm"), join(dist, "wasm"), "lora_webgpu"),
    site && finish(join(built, "examples/check.wasm"), join(root, "www/wasm"), "check"),
  ]);
  const { minifySync } = await import("vite"); // installed by set-up, not a built-in
  const minify = (path, options) => writeFileSync(path, minifySync(path, readFileSync(path, "utf8"), { module: true, ...options }).code);
  minify(join(dist, "wasm/lora_webgpu.js"));

  if (existsSync(join(root, "js/index.ts"))) {
    say("Compiling the public classes (js/, TypeScript).");
    await node("typescript/bin/tsc", "-p", root);
    // Without comments, which the declarations have, but by the names of classes, which errors say.
    const keepNames = { class: true, function: true };
    for (const name of readdirSync(dist)) if (name.endsWith(".js")) minify(join(dist, name), { mangle: { keepNames }, compress: { keepNames } });
  }
  if (site) {
    say("Building the site (www/ and docs/, Vite).");
    await writeDocs();
    await node("vite/bin/vite.js", "build", join(root, "www"), "--config", join(root, "www/vite.config.js"), "--logLevel", "warn");
  }
  sizes(dist);
  say(`Built in ${seconds(start)}.`);
}

// Panics name source files: without this, by where they lie on this machine.
function withoutPaths(env) {
  const registry = join(process.env.CARGO_HOME ?? join(homedir(), ".cargo"), "registry/src");
  const sources = existsSync(registry) ? readdirSync(registry).map((name) => join(registry, name)) : [];
  const flags = env[`CARGO_TARGET_${target.toUpperCase().replaceAll("-", "_")}_RUSTFLAGS`] ?? process.env.RUSTFLAGS ?? "";
  const remaps = [...sources, root].map((path) => `--remap-path-prefix=${path}=.`);
  return { CARGO_ENCODED_RUSTFLAGS: [...flags.split(" ").filter(Boolean), ...remaps].join("\x1f") };
}

// What a visitor downloads, gzipped, beside what it may weigh.
function sizes(dist) {
  const files = readdirSync(dist, { recursive: true }).filter((name) => /\.(wasm|js)$/.test(name)).map((name) => join(dist, name));
  const gzip = (paths) => paths.reduce((sum, path) => sum + gzipSync(readFileSync(path), { level: 9 }).length, 0);
  const inWasm = files.filter((path) => relative(dist, path).startsWith("wasm"));
  const found = {
    "wasm": gzip(inWasm.filter((path) => path.endsWith(".wasm"))),
    "glue": gzip(inWasm.filter((path) => path.endsWith(".js"))),
    "wasm + glue": gzip(inWasm),
    "classes": gzip(files.filter((path) => !inWasm.includes(path))),
    "total": gzip(files),
  };
  console.log("\n  gzipped        bytes      budget");
  const over = [];
  for (const [name, bytes] of Object.entries(found)) {
    const budget = budgets.gzip[name];
    if (bytes > budget) over.push(`${name} is ${bytes - budget} bytes above its budget`);
    console.log(`  ${name.padEnd(12)} ${String(bytes).padStart(7)} ${String(budget ?? "").padStart(11)}${bytes > budget ? "  ✗" : ""}`);
  }
  console.log();
  if (over.length) stop(`${over.join("; ")} (scripts/budgets.json: raise it only with a reason).`);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) main(build);
