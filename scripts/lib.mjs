// What the scripts share: paths, running commands, finding tools. Node built-ins only.
import { spawn, spawnSync } from "node:child_process";
import { accessSync, constants, existsSync, readFileSync, readdirSync, realpathSync } from "node:fs";
import { homedir } from "node:os";
import { delimiter, dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

export const root = dirname(dirname(fileURLToPath(import.meta.url)));
export const windows = process.platform === "win32";
export const target = "wasm32-unknown-unknown";
export const targetDir = process.env.CARGO_TARGET_DIR ?? join(root, "target");
export const cacheDir = process.env.LORA_CACHE
  ?? join(process.env.XDG_CACHE_HOME || join(homedir(), ".cache"), "lora-webgpu");
export const budgets = JSON.parse(readFileSync(join(root, "scripts/budgets.json"), "utf8"));

// One failure, one sentence; anything else that is thrown is a bug of ours and keeps its stack.
export class Stop extends Error {}
export const stop = (sentence, command) => {
  throw new Stop(command ? `${sentence} Please run:\n\n    ${command}\n\nand then this again.` : sentence);
};
export const main = (body) => body().catch((error) => {
  console.error(error instanceof Stop ? `\n✗ ${error.message}` : error);
  process.exit(1);
});

export const say = (text) => console.log(`• ${text}`);
export const seconds = (since) => `${((performance.now() - since) / 1000).toFixed(1)} s`;

// The first of `names` found as an executable: a path as it is, a bare name along PATH.
export function which(...names) {
  const folders = (process.env.PATH ?? "").split(delimiter).filter(Boolean);
  const endings = windows ? [".exe", ".cmd", ""] : [""];
  for (const name of names) {
    const bases = /[/\\]/.test(name) ? [name] : folders.map((folder) => join(folder, name));
    for (const path of bases.flatMap((base) => endings.map((ending) => base + ending))) {
      try {
        accessSync(path, constants.X_OK);
        return path;
      } catch { /* not here */ }
    }
  }
}

// The trimmed standard output of a command, or undefined where it fails.
export function capture(command, args, env) {
  const { status, stdout } = spawnSync(command, args, { cwd: root, encoding: "utf8", env: { ...process.env, ...env }, stdio: ["ignore", "pipe", "ignore"] });
  return status === 0 ? stdout.trim() : undefined;
}

// Runs a command to its end. `output` sees every chunk as it comes; without it the command writes to our own streams.
// Resolves to the exit code.
export function run(command, args, { env, cwd = root, output } = {}) {
  return new Promise((resolve, reject) => {
    const pipe = output ? "pipe" : "inherit";
    const child = spawn(command, args, { cwd, env: { ...process.env, ...env }, stdio: ["ignore", pipe, pipe] });
    if (output) for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", output);
    const end = (signal) => { child.kill(signal); process.exit(130); }; // what ends us ends it
    const signals = ["SIGINT", "SIGTERM"];
    for (const signal of signals) process.on(signal, end);
    child.on("error", reject).on("close", (code, signal) => {
      for (const each of signals) process.off(each, end);
      resolve(code ?? `signal ${signal}`);
    });
  });
}

export async function must(command, args, options) {
  const code = await run(command, args, options);
  if (code !== 0) stop(`«${[command, ...args].join(" ")}» ended with ${code}; its own words are above.`);
}

// A long step: a line that says why, a sign of life while it works, its whole output only where it fails.
export async function long(why, command, args, { env, cwd } = {}) {
  const start = performance.now();
  const tty = process.stdout.isTTY;
  let log = "", done = 0, last = "";
  say(why);
  const alive = () => {
    const state = `  ${seconds(start)}${done ? `, ${done} crates built` : ""}${last ? `: ${last}` : ""}`;
    if (tty) process.stdout.write(`\r\x1b[K${state.slice(0, (process.stdout.columns ?? 80) - 1)}`);
    else console.log(state);
  };
  const clock = setInterval(alive, tty ? 500 : 15_000);
  const code = await run(command, args, { env, cwd, output: (chunk) => {
    log += chunk;
    done += chunk.match(/^\s*Compiling /gm)?.length ?? 0;
    last = chunk.trim().split("\n").pop().trim().slice(0, 90) || last;
  } }).finally(() => clearInterval(clock));
  if (tty) process.stdout.write("\r\x1b[K");
  if (code !== 0) {
    console.error(log.trimEnd().split("\n").slice(-60).join("\n"));
    return false;
  }
  console.log(`  done in ${seconds(start)}`);
  return true;
}

// The version of a crate in Cargo.lock.
export function locked(crate) {
  const lock = readFileSync(join(root, "Cargo.lock"), "utf8");
  return lock.match(new RegExp(`name = "${crate}"\\r?\\nversion = "([^"]+)"`))?.[1]
    ?? stop(`Cargo.lock names no ${crate}.`);
}

// cargo and rustc that belong together, and what makes that pair build for the web:
// those of PATH (rustup's, as a rule), or Debian's, whose std for wasm32 setup builds into the cache.
// LORA_WASM_TARGET=debian insists on the second.
const version = (rustc) => capture(rustc, ["--version"])?.match(/^rustc (\S+)/)?.[1];
export const debianOnly = process.env.LORA_WASM_TARGET === "debian";

export function pathRust() {
  const cargo = which("cargo"), rustc = which("rustc");
  const found = cargo && rustc && version(rustc);
  return found && {
    name: "rustup", cargo, rustc, version: found, env: {},
    get ready() { return existsSync(join(capture(rustc, ["--print", "sysroot"]), "lib/rustlib", target, "lib")); },
  };
}

export function debianRust() {
  const [cargo, rustc, rustdoc] = ["cargo", "rustc", "rustdoc"].map((tool) => `/usr/bin/${tool}`);
  const found = existsSync(cargo) && existsSync(rustc) && version(rustc);
  const lld = "/usr/lib/llvm-22/bin/wasm-ld";
  if (!found || !existsSync(lld)) return;
  const sysroot = join(cacheDir, `std-wasm32-rustc-${found}`);
  const flags = `CARGO_TARGET_${target.toUpperCase().replaceAll("-", "_")}`;
  return {
    name: "Debian", cargo, rustc, version: found, sysroot,
    env: {
      RUSTC: rustc, RUSTDOC: rustdoc, PATH: `/usr/bin${delimiter}${process.env.PATH}`,
      [`${flags}_LINKER`]: lld, [`${flags}_RUSTFLAGS`]: `--sysroot ${sysroot}`, [`${flags}_RUSTDOCFLAGS`]: `--sysroot ${sysroot}`,
    },
    get ready() { return existsSync(join(sysroot, "complete")); },
  };
}

// The pair to work with; setup has seen to it that there is one.
export function rust() {
  const pair = [debianOnly ? undefined : pathRust(), debianRust()].find((each) => each?.ready);
  return pair ?? stop("Rust cannot build for wasm32 yet.", "node scripts/setup.mjs start");
}

// The folder of a tool that setup built with `pair`.
export const toolDir = (tool, toolVersion, pair) => join(cacheDir, `${tool}-${toolVersion}-rustc-${pair.version}`);
export const tool = (dir, name) => join(dir, "bin", windows ? `${name}.exe` : name);

// CHROME and CHROMEDRIVER as the user says, else where they are found.
const macChrome = "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome";
export const chrome = () => process.env.CHROME || which("chromium", "google-chrome", "google-chrome-stable", macChrome);
export const chromedriver = () => process.env.CHROMEDRIVER || which("chromedriver");

// A Vulkan driver in software, so that native tests run alike on machines with and without a GPU (Linux only:
// elsewhere wgpu uses Metal or DirectX). Mesa's lavapipe runs the kernel tests four times as fast as SwiftShader,
// which the browser tests use anyway; Chromium's SwiftShader where there is no Mesa.
export function lavapipe() {
  const folder = "/usr/share/vulkan/icd.d";
  const name = existsSync(folder) && readdirSync(folder).find((each) => each.startsWith("lvp_icd"));
  return name ? join(folder, name) : undefined;
}
export function softwareVulkan() {
  const beside = chrome() && join(dirname(realpathSync(chrome())), "vk_swiftshader_icd.json");
  return [lavapipe(), beside, "/usr/lib/chromium/vk_swiftshader_icd.json"].find((path) => path && existsSync(path));
}
