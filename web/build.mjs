// Builds the dashboard into dist/, which is committed and embedded in the server: a newcomer needs no Node.
// The output depends on nothing but the sources and the locked packages, so CI can rebuild and compare it.
import { build } from "esbuild";
import { cp, mkdir, readdir, rm } from "node:fs/promises";

const shared = {
  bundle: true,
  jsx: "automatic",
  jsxImportSource: "preact",
  target: ["es2022"],
  legalComments: "none",
  charset: "utf8",
};

if (process.argv.includes("--test")) {
  const tests = (await readdir("src", { recursive: true })).filter((name) => name.endsWith(".test.ts"));
  await rm("dist-test", { recursive: true, force: true });
  await build({
    ...shared,
    entryPoints: tests.map((name) => `src/${name}`),
    outdir: "dist-test",
    outExtension: { ".js": ".mjs" },
    format: "esm",
    platform: "node",
  });
} else {
  await rm("dist", { recursive: true, force: true });
  await mkdir("dist");
  await build({
    ...shared,
    entryPoints: { app: "src/main.tsx", style: "src/style.css" },
    outdir: "dist",
    format: "esm",
    minify: true,
  });
  await cp("src/index.html", "dist/index.html");
  await cp("src/icon.svg", "dist/icon.svg");
}
