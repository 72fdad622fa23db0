// node classify.mjs DIR [--json] TEXT...     what `ade predict` says, without Python
// Without a text, each line of standard input is one.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { text as whole } from "node:stream/consumers";
import * as ort from "onnxruntime-web";
import { Classifier } from "./classify.js";

async function main([folder, ...rest]) {
  let texts = rest.filter((word) => word !== "--json");
  if (!folder || folder.startsWith("--")) throw new Error("give the folder that 'ade export' wrote, then texts");
  if (!texts.length) texts = (await whole(process.stdin)).replace(/\r?\n$/, "").split(/\r?\n/);
  ort.env.wasm.numThreads = 1; // a model this small is faster without
  const classifier = await Classifier.load(ort, (name) => readFile(join(folder, name)));
  const answers = await classifier.classify(texts);
  if (rest.includes("--json")) console.log(JSON.stringify(answers));
  else for (const { decided, labels } of answers) console.log(line(decided, labels));
}

function line(decided, labels) {
  if (Array.isArray(decided)) return decided.join(", ");
  return labels.length ? `${decided}\t${labels[0].probability.toFixed(4)}` : String(decided);
}

main(process.argv.slice(2)).catch((error) => {
  console.error(`classify: ${error.message}`);
  process.exitCode = 2;
});
