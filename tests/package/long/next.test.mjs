// The tarball in Next 16, by both of its bundlers. Its packages are a third of a gigabyte: npm run test:package, not npm test.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { root, run } from "../../../scripts/lib.mjs";
import { packages } from "../../../scripts/setup.mjs";
import { serve } from "../../../scripts/start.mjs";
import { launch, onPage } from "../../e2e/browser.mjs";

const app = join(root, "tests/package/next"), modules = join(app, "node_modules");
let browser;
before(async () => {
  await packages("Next", app);
  const folder = mkdtempSync(join(tmpdir(), "lora-webgpu-"));
  const pack = spawnSync("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", folder], { cwd: root, encoding: "utf8", shell: process.platform === "win32" });
  assert.equal(pack.status, 0, pack.stderr);
  const [{ filename }] = Object.values(JSON.parse(pack.stdout));
  assert.equal(spawnSync("tar", ["-xzf", filename], { cwd: folder }).status, 0);
  rmSync(join(modules, "lora-webgpu"), { recursive: true, force: true });
  cpSync(join(folder, "package"), join(modules, "lora-webgpu"), { recursive: true });
  rmSync(folder, { recursive: true });
  browser = await launch();
});
after(() => browser?.close());

for (const bundler of ["turbopack", "webpack"]) {
  test(`Next, built by ${bundler}`, async () => {
    const OUT_DIR = `node_modules/built-by-${bundler}`;
    let output = "";
    const code = await run(process.execPath, [join(modules, "next/dist/bin/next"), "build", `--${bundler}`], { cwd: app, env: { OUT_DIR, NEXT_TELEMETRY_DISABLED: "1" }, output: (chunk) => { output += chunk; } });
    assert.equal(code, 0, output);
    const site = await serve(join(app, OUT_DIR), 0);
    try {
      await onPage(browser, site.url, {}, async (page) => {
        await page.waitForFunction(() => document.querySelector("output")?.textContent !== "waiting");
        assert.equal(await page.textContent("output"), "2,4");
      });
    } finally {
      await site.close();
    }
  });
}
