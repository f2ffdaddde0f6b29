// node scripts/setup.mjs start|test|wasm-pack: brings what the named command needs, and says why.
// Idempotent: what is there and answers `--version` is left alone, what is broken or half-built is made anew.
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, readdirSync, rmSync, cpSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { cacheDir, capture, chrome, chromedriver, debianOnly, debianRust, lavapipe, locked, long, main, must, pathRust, root, rust, say, seconds, softwareVulkan, stop, target, tool, toolDir, which, windows } from "./lib.mjs";

const WASM_PACK = "0.15.1";

// What stands for all of Debian's packages on other Linuxes.
const ELSEWHERE = {
  dnf: "sudo dnf install -y gcc chromium chromedriver vulkan-loader mesa-vulkan-drivers",
  pacman: "sudo pacman -S --needed gcc chromium vulkan-icd-loader vulkan-swrast",
};

// Debian packages: by ourselves where we are root, otherwise one command for the user. Never sudo.
async function apt(why, ...packages) {
  const install = `apt-get install -y --no-install-recommends ${packages.join(" ")}`;
  if (!which("apt-get")) stop(`${why}: Debian's ${packages.join(", ")} or their like are missing, and there is no apt-get here.`, ELSEWHERE[Object.keys(ELSEWHERE).find((name) => which(name))]);
  if (process.getuid() !== 0) stop(`${why}: ${packages.join(", ")} are missing, and installing them needs root.`, `sudo sh -c 'apt-get update && ${install}'`);
  const env = { DEBIAN_FRONTEND: "noninteractive" };
  const wait = ["-o", "DPkg::Lock::Timeout=300"];
  const lists = existsSync("/var/lib/apt/lists") && readdirSync("/var/lib/apt/lists").some((name) => /_Packages(\.\w+)?$/.test(name));
  const update = () => long("Fetching Debian's package lists (apt-get update).", "apt-get", [...wait, "update"], { env });
  const add = () => long(`Installing ${packages.join(", ")} by apt-get: ${why}.`, "apt-get", [...wait, ...install.split(" ").slice(1)], { env });
  if (!lists) await update();
  if (await add()) return;
  // Old lists name versions that the mirror no longer has.
  if (lists && await update() && await add()) return;
  stop("apt-get could not install them; its own words are above.");
}

// The one command that helps, by system.
const other = (mac, win, debian) => ({ darwin: mac, win32: win })[process.platform] ?? debian;

// The oldest compiler that Cargo.toml accepts.
const least = readFileSync(join(root, "Cargo.toml"), "utf8").match(/^rust-version = "(.+)"/m)[1];
const old = ({ version }) => version.localeCompare(least, undefined, { numeric: true }) < 0;

async function rustForWeb() {
  const pair = pathRust();
  if (!pair && !which("apt-get"))
    stop("Rust is not installed.", other("brew install rustup && rustup default stable", "winget install Rustlang.Rustup", "curl -sSf https://sh.rustup.rs | sh -s -- -y"));
  if (pair && old(pair) && !debianOnly) stop(`rustc ${pair.version} is older than the ${least} that this crate needs.`, which("rustup") ? "rustup update stable" : "apt-get install rustc-web cargo-web");

  if (pair && !debianOnly) {
    if (pair.ready) return pair;
    if (which("rustup") && await long(`Adding Rust's ${target} target: the kernels' host code runs in the page as WebAssembly.`, "rustup", ["target", "add", target]) && pair.ready) return pair;
    if (!which("apt-get")) stop(`The ${target} target could not be added.`, `rustup target add ${target}`);
    say("No target from rustup; Debian's Rust for the web takes its place.");
  }
  return debianForWeb();
}

// Debian ships std for wasm32 as source: built once, kept in the cache, given to rustc as its sysroot.
async function debianForWeb() {
  if (debianRust()?.ready) return debianRust();
  if (!debianRust() || old(debianRust()) || !existsSync("/usr/lib/rustlib/src/rust/library/std"))
    await apt("a Rust compiler that can build for the web", "rustc-web", "cargo-web", "rust-web-src", "lld-22");
  const pair = debianRust() ?? stop("Debian's rustc, cargo and lld-22 are not where they belong although they were installed.");
  if (old(pair)) stop(`Debian's rustc ${pair.version} is older than the ${least} that this crate needs; install rustup.`);

  const work = join(cacheDir, "build-std"), release = join(work, "target", target, "release", "deps");
  const { env, cargo, sysroot } = pair;
  rmSync(work, { recursive: true, force: true });
  mkdirSync(join(work, "src"), { recursive: true });
  writeFileSync(join(work, "Cargo.toml"), '[package]\nname = "empty"\nversion = "0.0.0"\nedition = "2024"\n');
  writeFileSync(join(work, "src/lib.rs"), "#![no_std]\n");
  const bare = Object.fromEntries(Object.entries(env).filter(([name]) => !name.endsWith("RUSTFLAGS")));
  const built = await long(`Building Rust's standard library for ${target} (once, about 2 minutes).`, cargo,
    ["build", "-Zbuild-std=std,panic_abort,test,proc_macro", "--release", "--target", target],
    { cwd: work, env: { ...bare, RUSTC_BOOTSTRAP: "1", CARGO_TARGET_DIR: join(work, "target") } });
  if (!built) stop("The standard library did not build; the compiler's words are above.");
  rmSync(sysroot, { recursive: true, force: true });
  const lib = join(sysroot, "lib/rustlib", target, "lib");
  for (const name of readdirSync(release)) if (name.endsWith(".rlib") && !name.startsWith("libempty")) cpSync(join(release, name), join(lib, name));
  writeFileSync(join(sysroot, "complete"), "");
  rmSync(work, { recursive: true, force: true });
  return pair;
}

// A tool from crates.io, into a folder named by version and compiler. Unoptimised on purpose: it builds in
// a fifth of the time and works on small files. Not --locked: its lock file does not resolve.
async function cargoTool(crate, name, version, binaries, why, pair) {
  const dir = toolDir(name, version, pair);
  const works = () => binaries.every((binary) => capture(tool(dir, binary), ["--version"])?.split(/\s+/).includes(version));
  if (works()) return dir;
  if (existsSync(dir)) say(`${name} in the cache is broken or half-built: making it anew.`);
  rmSync(dir, { recursive: true, force: true });
  const build = join(cacheDir, `build-${name}-${pair.version}`); // kept until done, so that an interrupted build goes on
  const profile = "CARGO_PROFILE_RELEASE_";
  const done = await long(`Building ${crate} ${version}: ${why} (once, 2 to 10 minutes).`, pair.cargo,
    ["install", crate, "--version", version, "--root", dir],
    { cwd: cacheDir, env: { ...pair.env, CARGO_TARGET_DIR: build, [`${profile}OPT_LEVEL`]: "1", [`${profile}LTO`]: "off", [`${profile}DEBUG`]: "0", [`${profile}CODEGEN_UNITS`]: "16" } });
  if (!done || !works()) stop(`${crate} ${version} could not be built; cargo's words are above.`);
  rmSync(build, { recursive: true, force: true });
  return dir;
}

// npm ci in a folder whose node_modules is missing or was made from another lock file.
export async function packages(why, folder = root) {
  const stamp = join(folder, "node_modules/.lora-webgpu-lock");
  const lock = createHash("sha256").update(readFileSync(join(folder, "package-lock.json"))).update(process.version).digest("hex");
  if (existsSync(stamp) && readFileSync(stamp, "utf8") === lock) return;
  const npm = process.env.npm_execpath; // npm's own script, where npm started us
  const args = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];
  const [command, rest] = npm?.endsWith(".js") ? [process.execPath, [npm, ...args]] : windows ? ["cmd", ["/c", "npm", ...args]] : ["npm", args];
  if (!await long(`Installing npm's packages: ${why}.`, command, rest, { cwd: folder })) stop("npm could not install the packages; its words are above.");
  writeFileSync(stamp, lock);
}

async function forStart() {
  const [major, minor] = process.versions.node.split(".").map(Number);
  if (major < 20 || (major === 20 && minor < 19)) stop(`Node ${process.version} is older than the 20.19 that Vite needs.`);
  if (process.platform === "linux" && !which("cc")) await apt("a linker for Rust's build scripts", "gcc", "libc6-dev");
  mkdirSync(cacheDir, { recursive: true });
  const pair = await rustForWeb();
  await cargoTool("wasm-bindgen-cli", "wasm-bindgen", locked("wasm-bindgen"), ["wasm-bindgen", "wasm-bindgen-test-runner"], "it writes the JavaScript around the wasm", pair);
  await packages("TypeScript, Vite, wasm-opt, the plot and the browser driver");
}

async function forTest() {
  const linux = process.platform === "linux";
  for (const name of ["CHROME", "CHROMEDRIVER"]) {
    const path = process.env[name];
    if (path && !which(path)) stop(`${name} names ${path}, which is not an executable.`);
  }
  const missing = [
    !chrome() && "chromium",
    !chromedriver() && "chromium-driver",
    linux && !capture("sh", ["-c", "PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -o libvulkan.so.1"]) && "libvulkan1",
    linux && !lavapipe() && (process.getuid() === 0 || !softwareVulkan()) && "mesa-vulkan-drivers", // SwiftShader serves, slowly
  ].filter(Boolean);
  if (missing.length && !linux) stop("The browser tests need Chrome and its ChromeDriver.", other("brew install --cask google-chrome chromedriver", "winget install Google.Chrome Chromium.ChromeDriver"));
  if (missing.length) await apt("the tests run in a real browser, on a GPU in software", ...missing);

  const release = (path) => capture(path, ["--version"])?.match(/(\d+)\.\d+\.\d+/)?.[1];
  const [browser, driver] = [release(chrome()), release(chromedriver())];
  if (browser && driver && browser !== driver) // Chrome on Windows does not tell its version
    stop(`Browser and driver disagree: ${chrome()} is version ${browser}, ${chromedriver()} is version ${driver}. Set CHROME and CHROMEDRIVER to a matching pair${which("apt-get") ? ", or take Debian's." : "."}`, which("apt-get") && "apt-get install --only-upgrade chromium chromium-driver");
  if (!driver) stop(`${chromedriver()} does not answer --version; set CHROMEDRIVER to a working ChromeDriver.`);
}

// rustfmt and clippy of the same compiler. What is still missing then, the section `lint` fails on.
export async function lintTools(pair) {
  if (["fmt", "clippy"].every((name) => capture(pair.cargo, [name, "--version"], pair.env))) return;
  if (pair.name === "Debian") await apt("formatting and lints", "rustfmt-web", "rust-web-clippy");
  else if (which("rustup")) await must("rustup", ["component", "add", "rustfmt", "clippy"]);
  else stop("rustfmt and clippy are missing, and there is no rustup to add them.", other("brew install rustup", "winget install Rustlang.Rustup", "apt-get install rustfmt-web rust-web-clippy"));
}

// The folder that wasm-pack is in; built only for whoever asks for it.
export const wasmPack = (pair = rust()) => toolDir("wasm-pack", WASM_PACK, pair);
const forWasmPack = () => cargoTool("wasm-pack", "wasm-pack", WASM_PACK, ["wasm-pack"], "another way in which people build and test the crate", rust());

export async function setup(what) {
  const start = performance.now();
  const steps = { start: [forStart], test: [forStart, forTest], "wasm-pack": [forStart, forTest, forWasmPack] }[what];
  if (!steps) stop("Usage: node scripts/setup.mjs start|test|wasm-pack");
  for (const step of steps) await step();
  say(`Set-up for «${what}» is complete (${seconds(start)}).`);
}

if (import.meta.url === pathToFileURL(process.argv[1]).href) main(() => setup(process.argv[2]));
